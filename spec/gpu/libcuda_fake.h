/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake.h - what the files of the fake of CUDA's driver share
 * (libcuda_fake.c says what it is). All of it but the settings' reading is under
 * fake_lock.
 */
#ifndef LIBCUDA_FAKE_H
#define LIBCUDA_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/cuda/driver.h"

#define TOTAL ((uint64_t)16 << 30) /* memory of a device */
#define EXPORT __attribute__((visibility("default")))

/* driver.h gives each function the name under which the library exports it. */
#define FAKE_DECLARES(name, version, exported, arguments)                      \
  EXPORT CUresult name arguments __asm__(exported);
CUDA_FUNCTIONS(FAKE_DECLARES)
CUDA_LATER(FAKE_DECLARES)

/* Those that nothing but a spec asks for, and the newer of two. */
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes,
                                  unsigned flags);
EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from,
                                      size_t *bytes, size_t count,
                                      CUmemcpyAttributes *attributes,
                                      size_t *firsts, size_t attribute_count,
                                      CUstream stream);

enum { DEVICES = 8, UNIT = 2 << 20, FAILS = 2 };
enum { READS = 1, WRITES = 2 }; /* bits of CUmemAccess_flags */
/* Errors that the core has no names for. */
enum {
  INVALID_VALUE = 1,
  INVALID_DEVICE = 101,
  MAP_FAILED_THERE = 205,
  NOT_FOUND = 500,
  BROKEN = 700,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  NOT_PERMITTED = 800,
  NOT_SUPPORTED = 801
};

__attribute__((format(printf, 1, 2), noreturn)) void
fake_fatal(const char *format, ...);

/* ---- Settings and counters (libcuda_fake.c) --------------------------------
 * */

struct fake_settings {
  bool read;
  int devices, version, without, peers, captures, deaf, fabric, channel;
  long slow, kernel, compile;
  char no[64];
  struct fake_fail {
    char name[64];
    int at, with, times;
  } fails[FAILS];
  /* Which of the machine's devices the process sees, by its numbers. */
  int shown, machines[DEVICES];
};
extern struct fake_settings fake_set;
extern pthread_mutex_t fake_lock;
extern int fake_broken; /* the error of a broken device */

/* How often a function was called, or what else is counted. */
struct fake_counter {
  const char *name;
  _Atomic uint64_t count;
  struct fake_counter *next;
};
void fake_counter_add(struct fake_counter *c, uint64_t n);

#define COUNT(what, n)                                                         \
  do {                                                                         \
    static struct fake_counter counter = {.name = (what)};                     \
    fake_counter_add(&counter, n);                                             \
  } while (0)

/* Is the thread in a host function? It must not call the driver then. */
extern __thread bool fake_in_host_function;
/* Returns the error that this call is to have, by the script alone. The caller
 * has fake_lock. */
CUresult fake_scripted(const char *name);
/* Returns that, or the error of the broken device. */
CUresult fake_failing(const char *name);

#define BEGIN(name)                                                            \
  do {                                                                         \
    COUNT(name, 1);                                                            \
    CUresult scripted = fake_failing(name);                                    \
    if (scripted != CUDA_SUCCESS)                                              \
      return scripted;                                                         \
  } while (0)

/* Does the program capture a graph, which this call of the thread would end?
 * (cuThreadExchangeStreamCaptureMode) */
bool fake_captured(void);

/* Of what may wait for a device, or may do anything else that a graph has not. */
#define END_CAPTURES                                                           \
  do {                                                                         \
    if (fake_captured()) {                                                     \
      COUNT("captures ended", 1);                                              \
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                            \
    }                                                                          \
  } while (0)

#define BEGIN_UNSAFE(name)                                                     \
  do {                                                                         \
    END_CAPTURES;                                                              \
    BEGIN(name);                                                               \
  } while (0)

/* ---- Devices and contexts (libcuda_fake.c) ---------------------------------
 * */

struct CUctx_st {
  CUdevice device;
  int retained;
};

/* Returns the thread's current context; it must have one. */
CUcontext fake_current(const char *what);
CUuuid fake_uuid(CUdevice device);
/* Returns the number of the device in this process; -1: it does not see it. */
CUdevice fake_device_of(const CUuuid *uuid);
bool fake_has(int attribute);
/* Do devices have fabric handles, whoever may use them? */
bool fake_has_fabric(void);

/* ---- Memory (libcuda_fake_memory.c) ----------------------------------------
 * */

enum range_kind {
  ALLOCATED,  /* by cuMemAlloc */
  MANAGED,    /* by cuMemAllocManaged */
  HOST,       /* by cuMemHostAlloc */
  REGISTERED, /* by cuMemHostRegister */
  MAPPED,     /* by cuMemMap */
  OPENED      /* by cuIpcOpenMemHandle */
};

/* Memory of a device, or pinned memory of the host. */
struct range {
  uint8_t *base, *alias; /* as others see it, and as streams do */
  uint64_t size, number; /* no two have the same number */
  enum range_kind kind;
  int device; /* -1: the host's */
  int busy;   /* operations of streams that name it */
  uint8_t access[DEVICES];
  struct made *made;   /* of MAPPED */
  int fd;              /* of ALLOCATED and OPENED */
  uint8_t id[16];      /* likewise */
  int opens;           /* of OPENED: how often, */
  CUdevice opened_for; /* and in a context of which device */
};

struct range *fake_range_of(CUdeviceptr at);
/* Returns the first range for which f is true, or NULL. */
struct range *fake_range_find(bool (*f)(const struct range *, const void *),
                              const void *with);
/* Maps a file at any address, for others and for streams. */
struct range *fake_range_open(int fd, uint64_t size, enum range_kind kind,
                              int device);
/* Unmaps it from both, and closes its file. */
void fake_range_close(struct range *r, const char *what);

/* A place that a stream uses. */
struct span {
  CUdeviceptr at;
  uint64_t bytes;
};
/* Takes it for a device; returns where streams find it. */
uint8_t *fake_span_take(struct span span, CUdevice device, int access);
void fake_span_give(struct span span);
/* Is called before the stream uses it: host memory may have gone. */
void fake_span_look(struct span span);

/* Memory of cuMemCreate: its handles, and the places where it is mapped. */
struct made {
  struct made *next;
  int fd, handles, mappings;
  uint64_t size;
  int device, types;
  bool imported; /* by a fabric handle */
};
struct made *fake_made(CUmemGenericAllocationHandle handle, const char *what);
CUmemGenericAllocationHandle fake_made_new(int fd, uint64_t size, int device,
                                           int types);

/* ---- Streams (libcuda_fake_streams.c) ---------------------------------------
 * */

/* Work of a stream that another file does, in the stream's thread. */
struct task {
  void (*run)(
      struct task *); /* without the lock, unless the device is broken */
  void (*end)(struct task *); /* with it; the last call */
  bool quick;                 /* it takes no time */
};
CUcontext fake_stream_context(CUstream stream);
/* The stream must be one of the current context. */
void fake_stream_check(CUstream stream);
void fake_stream_give(CUstream stream, struct task *task);
/* Sleeps for as long as a setting says meanwhile. */
void fake_pause(const long *microseconds);
/* Ends the process if an entry writes what another one reads or writes. */
void fake_check_overlaps(const CUdeviceptr *to, const CUdeviceptr *from,
                         const size_t *bytes, size_t count);

/* ---- Files that processes share (libcuda_fake_sharing.c) -------------------
 * */

/* The page behind the memory in its file. */
struct card {
  char magic[16];
  uint64_t size;
  int64_t process; /* that made it */
  uint32_t legacy, types;
  CUuuid uuid;
  uint8_t id[16];
};
/* Makes a file of that size; fills in the card. Returns its descriptor. */
int fake_file_new(uint64_t size, CUdevice device, bool legacy, int types,
                  struct card *card);
/* From now on no process can open it by a handle; nor may one have it open. */
void fake_file_retire(int fd);
/* Does another process have it open, by a handle of either kind? */
bool fake_file_is_open_elsewhere(int fd);

#endif
