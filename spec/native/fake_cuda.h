/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda.h - children with the fake of CUDA's driver (spec/gpu/), for the
 * tests of the fake. A child's checks end the child, not the test program, which
 * never loads the driver: a forked child could not use it then.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/cuda/driver.h"

/* What a child has: contexts of the devices that it sees, of which that of
 * device 0 is the current one; a stream of it; and a socket, in a pair. */
struct gpu {
  const struct cuda_driver *d;
  int devices;
  CUcontext contexts[2];
  CUstream stream;
  int socket;
};
extern struct gpu gpu;

/* How a child is set (FAKE_CUDA), and what it does. */
struct child {
  const char *settings;
  void (*run)(void);
  const char *sentence; /* the fake ends it with this one; NULL: it ends well */
};

/* Runs children, two as a pair. The test is skipped without a fake. */
void children_run(const struct child *list, int count);
/* A row of a table of tests, for one child. */
void child_test(void **state);
#define CHILD(settings, run, sentence)                                         \
  {                                                                            \
#run, child_test, NULL, NULL, &(struct child) {                            \
      settings, run, sentence                                                  \
    }                                                                          \
  }

__attribute__((noreturn)) void child_fails(int line, const char *what,
                                           int64_t is);
#define EQUAL(is, wanted)                                                      \
  do {                                                                         \
    int64_t is_ = (int64_t)(is);                                               \
    if (is_ != (int64_t)(wanted))                                              \
      child_fails(__LINE__, #is " is not " #wanted, is_);                      \
  } while (0)
#define WORKS(call) EQUAL(call, 0)

/* Functions of the fake that driver.h does not have. */
void *fake_function(const char *name);
uint64_t fake_count(const char *name);

CUdeviceptr address_of(const void *pointer);
/* Pinned memory of the host. */
uint8_t *pinned_new(size_t bytes);
/* Memory of cuMemCreate that can be exported, of a device; it is mapped for no
 * device yet. */
struct virtual {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at;
  size_t size;
};
struct virtual virtual_new(size_t size, CUdevice device);
/* The same, of those types of handles. */
struct virtual virtual_typed(size_t size, CUdevice device, int types);
/* Maps a handle of memory of that size. */
CUdeviceptr virtual_map(CUmemGenericAllocationHandle handle, size_t size);
CUresult virtual_allow(const struct virtual *v, CUdevice device, int flags);
/* Sets bytes by the stream, or compares all of them; and waits for it. */
void device_set(CUdeviceptr at, int byte, size_t bytes);
void device_same(CUdeviceptr at, int byte, size_t bytes);

/* To the other child and from it; false: it has ended. */
void give(const void *bytes, size_t length);
bool get(void *bytes, size_t length);
void give_descriptor(int fd);
int get_descriptor(void);

#endif
