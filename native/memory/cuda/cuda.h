/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.h - what the files of the kind of memory "cuda" share: context.c has the
 * contexts of devices, copies.c the copies, sharing.c what other processes get
 * of the memory, cuda.c the rest of the kind.
 */
#ifndef MEMORY_CUDA_H
#define MEMORY_CUDA_H

#include <stdatomic.h>

#include "driver.h"
#include "memory/memory.h"

enum { COPIES = 64, SLOTS = 32, LOOK = 256 };

enum way { WAY_TO, WAY_FROM, WAY_INSIDE, WAYS };

struct stream {
  CUstream handle;
  uint64_t asked;         /* number of its last copy */
  _Atomic uint64_t *done; /* that of the last one that has ended */
  CUdeviceptr word;       /* the same word, for the device */
  bool failed;            /* it does no more: what it had not done has ended */
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

struct cuda {
  const struct cuda_driver *driver;
  CUdevice device;
  CUcontext context;
  int max_pitch;
  bool virtual_memory, shares, rdma;
  struct stream streams[WAYS];
  uint8_t *pinned; /* the slots, and behind them the words */
  uint32_t used;   /* bits of slots */
  struct copying copies[COPIES];
  struct pin pins[PIN_SETS][PIN_WAYS];
  uint64_t pin_clock;
  bool pins_work;          /* devices use host memory by the host's address */
  struct entries *entries; /* of the driver's batches; made at the first */
  char why[CUDA_REASON];   /* the last failure */
};

_Static_assert(SLOTS == 32, "a bit of `used` for each");

/* Memory of allocate, or that was admitted. */
struct allocation {
  uint64_t size; /* of the whole; 0: of allocate, by cuMemAlloc */
  int file;      /* its key for others; -1: not made yet */
  /* Of admitted memory only. */
  bool admitted;
  bool whole;      /* all of it lies in one allocation */
  uint64_t offset; /* in that allocation */
  uint64_t number; /* of that allocation, for ever */
  int lease;       /* tells when nobody has `file` any more; -1: none needed */
  CUipcMemHandle legacy;
  struct allocation *next; /* in the process's list of those with legacy keys */
};

/* As of perigee_memory. */
int cuda_open(uint32_t device, void **own, char reason[MEMORY_REASON]);
void cuda_close(void *own);
const char *cuda_why(const struct memory_context *context);
/* Keeps what failed for `why`, and returns the status. */
int cuda_fails(struct cuda *c, int status, const char *what, CUresult result);
/* Makes the device's context the thread's current one until cuda_leave, which
 * is called only if this succeeds: else it would take away the program's. */
CUresult cuda_enter(const struct cuda *c);
void cuda_leave(const struct cuda *c);
/* Returns an attribute of an address; 0: it has none. */
uint64_t cuda_pointer_has(const struct cuda_driver *,
                          CUpointer_attribute attribute,
                          const uint8_t *pointer);
/* Closes the descriptors of an allocation. */
void cuda_forget_files(struct allocation *a);
/* Maps memory at an address that is reserved for it, for the context's
 * device, with those rights (CU_MEM_ACCESS_...). */
CUresult cuda_map(struct cuda *c, CUmemGenericAllocationHandle handle,
                  uint64_t size, int rights, CUdeviceptr *out);
void cuda_unmap(const struct cuda *c, CUdeviceptr at, uint64_t size);

/* As memory_copies. */
uint64_t cuda_most(const struct memory_context *context, struct area *area,
                   const uint8_t *at);
void cuda_unpin(const struct memory_context *context, const struct area *area);
/* Returns the pin that these bytes of the host lie in, which stays until busy is
 * 0 again; NULL: there is none. */
struct pin *pin_take(struct cuda *c, const uint8_t *at, uint64_t length);
void pins_close(struct cuda *c);

extern const struct memory_copies cuda_copies;
extern const struct memory_sharing cuda_sharing;
extern const struct memory_admission cuda_admission;

#endif
