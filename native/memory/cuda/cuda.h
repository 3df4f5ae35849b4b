/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.h - what the files of the kind of memory "cuda" share: context.c has the
 * contexts of devices, copies.c the copies, bell.c what tells of their end, kernel.c the kernel that does some,
 * trial.c what is found out about that, sharing.c what other processes get of
 * the memory, cuda.c the rest of the kind.
 */
#ifndef MEMORY_CUDA_H
#define MEMORY_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"
#include "host/forked.h"
#include "memory/memory.h"

enum { COPIES = 64, SLOTS = 32, LOOK = 256 };

enum way { WAY_TO, WAY_FROM, WAY_INSIDE, WAYS };

struct stream {
  CUstream handle;
  uint64_t asked;         /* number of its last copy */
  _Atomic uint64_t *done; /* that of the last one that has ended */
  CUdeviceptr word;       /* the same word, for the device */
  bool failed;            /* it does no more: what it had not done has ended */
  /* Of bell.c: */
  CUstream ringer; /* NULL: not made yet */
  CUevent passed;  /* the copies before */
  uint64_t rings;  /* number of the last copy that it rings for */
};

struct copying {
  struct memory_copy copy; /* of WAY_FROM, to be scattered */
  uint64_t number;
  uint32_t looks;
  int slot;        /* -1: none */
  struct pin *pin; /* NULL: none */
  uint8_t way;
  bool open;
};

struct entries;
struct bell;

/* A piece of host memory of a region (pins.c). */
enum pin_state { PIN_FREE, PIN_SEEN, PIN_REGISTERED, PIN_REFUSED };
enum { PIN_SETS = 64, PIN_WAYS = 4 };
struct pin {
  const struct area *area;
  uint8_t *base;
  uint64_t length, used;
  const uint8_t *last; /* where the last copy began */
  uint32_t busy;       /* copies under way */
  uint8_t state;
};

/* A piece, as the kernel reads it. */
struct piece {
  CUdeviceptr to, from;
  uint64_t bytes;
};

enum { TABLES = 8, TABLE_PIECES = 4096 };

/* The copy kernel, and tables of pieces for it (kernel.c). */
struct kernel {
  CUmodule module;
  CUfunction function;
  struct piece *tables;     /* pinned; a word lies behind them */
  CUdeviceptr device;       /* the same, for the device */
  uint64_t numbers[TABLES]; /* each is free once the stream has told this */
};

/* How the pieces of a batch go. */
struct rule {
  uint64_t kernel_most;  /* bytes of a piece that goes by the kernel; 0: none */
  uint64_t kernel_least; /* calls of the driver that it has to be in place of */
  bool batches;          /* others go by the driver's batches */
};

enum trial_state { TRIAL_NOT, TRIAL_RUNS, TRIAL_DONE, TRIAL_OVER };
enum trial_force { FORCE_NONE, FORCE_LOOP, FORCE_BATCH, FORCE_KERNEL };

/* What is found out about the kernel (trial.c). */
struct trial {
  _Atomic uint32_t state;
  _Atomic bool ends; /* the context closes */
  uint8_t force;     /* what the environment asks for */
  bool thread_runs;
  pthread_t thread;
  struct rule rule; /* that holds */
  /* The thread's, until it is done. */
  struct rule found;
  struct kernel kernel;
  CUdeviceptr scratch;
  struct stream stream;  /* that does what is tried */
  bool stuck;            /* the device did not end what was tried */
  char why[CUDA_REASON]; /* why there is no kernel; "": it is not faster */
};

struct cuda {
  const struct cuda_driver *driver;
  CUdevice device;
  CUcontext context;
  int max_pitch;
  bool virtual_memory, shares, rdma;
  bool fabric;             /* memory is made with fabric handles, too */
  CUresult fabric_refused; /* or the driver gave none, for this */
  struct stream streams[WAYS];
  uint8_t *pinned; /* the slots, and behind them the words */
  uint32_t used;   /* bits of slots */
  struct copying copies[COPIES];
  struct pin pins[PIN_SETS][PIN_WAYS];
  uint64_t pin_clock;
  bool pins_work; /* host memory is registered, and used by its address there */
  struct bell *bell;       /* NULL: not made yet */
  bool mute;               /* the driver has refused to ring it */
  struct entries *entries; /* of the driver's batches; made at the first */
  struct trial trial;
  char why[CUDA_REASON]; /* the last failure */
};

_Static_assert(SLOTS == 32, "a bit of `used` for each");

/* Descriptors of memory for others: the driver's file; of a pipe, the end that goes
 * with its key, and the one that tells when nobody has that any more. */
enum { FD_FILE, FD_END, FD_LEASE, FDS };

/* Memory of allocate, or that was admitted. */
struct allocation {
  uint64_t size; /* of the whole; 0: of allocate, by cuMemAlloc */
  int fds[FDS];  /* -1: none */
  struct forked forked;
  /* Of admitted memory only. */
  bool admitted;
  bool whole;      /* all of it lies in one allocation */
  uint64_t offset; /* in that allocation */
  uint64_t number; /* of that allocation, for ever */
  CUipcMemHandle legacy;
  pid_t giver;             /* the process that gave that key */
  struct allocation *next; /* in the process's list of those with legacy keys */
};

/* As of perigee_memory. */
int cuda_open(uint32_t device, void **own, char reason[MEMORY_REASON]);
void cuda_close(void *own);
const char *cuda_why(const struct memory_context *context);
/* Keeps what failed for `why`, and returns the status. */
int cuda_fails(struct cuda *c, int status, const char *what, CUresult result);
/* Makes the device's context the thread's current one, and has the thread's calls
 * leave captures of graphs alone, until cuda_leave, which is called only if this
 * succeeds: else it would take away the program's. */
CUresult cuda_enter(const struct cuda *c);
void cuda_leave(const struct cuda *c);
/* Returns an attribute of an address; 0: it has none. */
uint64_t cuda_pointer_has(const struct cuda_driver *,
                          CUpointer_attribute attribute,
                          const uint8_t *pointer);
/* Returns zeros and no descriptors, or NULL. */
struct allocation *cuda_allocation(void);
/* Closes the descriptors of an allocation. */
void cuda_forget_files(struct allocation *a);
/* Maps memory at an address that is reserved for it, for the context's
 * device, with those rights (CU_MEM_ACCESS_...). */
CUresult cuda_map(struct cuda *c, CUmemGenericAllocationHandle handle,
                  uint64_t size, int rights, CUdeviceptr *out);
void cuda_unmap(const struct cuda *c, CUdeviceptr at, uint64_t size);

/* copies.c */
bool copy_is_over(const struct cuda *c, const struct copying *k);
/* Asks the driver whether the stream has failed. */
void stream_check(struct cuda *c, struct stream *s);
/* Waits until the stream has done all that it was asked for. The context has been
 * entered. */
CUresult stream_rest(struct cuda *c, struct stream *s);
/* bell.c. The context has been entered for bell_close, and no copy is under
 * way. */
int cuda_tell(const struct memory_context *context, int *fd);
void bell_close(struct cuda *c);
/* Lets go of the bell, without the driver. */
void bell_free(struct cuda *c);

/* As memory_copies. */
uint64_t cuda_most(const struct memory_context *context, struct area *area,
                   const uint8_t *at);
/* No copy uses its pins. */
void cuda_unpin(const struct memory_context *context, const struct area *area);
/* Returns the pin that these bytes of the host lie in, which stays until busy is
 * 0 again; NULL: there is none. */
struct pin *pin_take(struct cuda *c, const uint8_t *at, uint64_t length);
void pins_close(struct cuda *c);

/* As of perigee_memory. */
int cuda_describe(const struct memory_context *context, char *text,
                  size_t size);

/* trial.c */
/* Reads the environment. */
int trial_open(struct cuda *c);
/* Returns how the pieces of a batch of so many calls go. Begins the trial at the
 * first one of more than a few. */
const struct rule *trial_rule(struct cuda *c, uint64_t calls);
/* The kernel was not launched: no more pieces go by it. */
void trial_give_up(struct cuda *c, CUresult result);
/* A batch was refused: no more pieces go by those. */
void trial_give_up_batches(struct cuda *c, CUresult result);
/* Waits for the thread. */
void trial_close(struct cuda *c);

/* Times in ns of the samples of a trial, by each way. */
enum pieces_by { BY_LOOP, BY_BATCH, BY_KERNEL, BYS };
enum { SAMPLES = 5 };
struct trial_times {
  int64_t of[SAMPLES][BYS];
};
struct rule trial_judge(const struct trial_times *times);

/* kernel.c. The context has been entered. */
extern const char kernel_text[];
/* Pins the tables. */
CUresult kernel_pin(const struct cuda *c, struct kernel *k);
/* Has the driver compile the kernel, which takes it milliseconds. */
CUresult kernel_compile(const struct cuda *c, struct kernel *k);
void kernel_drop(const struct cuda *c, struct kernel *k);
/* Has the stream copy the first pieces of a table, which have so many bytes in
 * all. */
CUresult kernel_launch(const struct cuda *c, const struct kernel *k, int table,
                       uint32_t count, uint64_t bytes, CUstream stream);
/* How many tables are free once the stream has told this number? */
uint32_t kernel_free(const struct kernel *k, uint64_t number);
/* Takes a free table, of which there is one, until what the stream is asked for
 * next has ended. */
int kernel_take(struct kernel *k, const struct stream *s);
struct piece *kernel_table(const struct kernel *k, int table);

extern const struct memory_copies cuda_copies;
extern const struct memory_sharing cuda_sharing;
extern const struct memory_admission cuda_admission;

#endif
