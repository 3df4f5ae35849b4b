/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as floor_cuda.c uses it: a device with a stream by CUDA's driver, and
 * how the end of a copy is awaited. A call that fails ends the program; where
 * there is no GPU it says so, and its exit status is 77.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "floor.h"

#include "memory/cuda/driver.h"

enum { NOT_RUN = 77 };

/* How the CPU sees that a stream has come so far: by asking the driver, or by a
 * word of pinned memory that the stream writes. */
enum end { END_QUERY, END_WORD, ENDS };

struct gpu {
  const struct cuda_driver *d;
  CUdevice device;
  CUcontext context;
  CUstream stream;
  _Atomic uint64_t *done; /* pinned; NULL: streams cannot write words */
  CUdeviceptr word;       /* the same for the stream */
  uint64_t asked;
};

__attribute__((noreturn)) static inline void not_run(const char *reason) {
  printf("not run: %s\n", reason);
  exit(NOT_RUN);
}

static inline void must(const struct gpu *g, const char *what,
                        CUresult result) {
  char reason[CUDA_REASON];
  if (result == CUDA_SUCCESS)
    return;
  cuda_explain(g->d, what, result, reason);
  fprintf(stderr, "%s\n", reason);
  exit(1);
}

/* For what a machine may not be able to do. */
static inline void may(const struct gpu *g, const char *what, CUresult result) {
  char reason[CUDA_REASON];
  if (result == CUDA_SUCCESS)
    return;
  cuda_explain(g->d, what, result, reason);
  not_run(reason);
}

static inline bool gpu_has(const struct gpu *g, CUdevice_attribute attribute) {
  int value = 0;
  return g->d->cuDeviceGetAttribute(&value, attribute, g->device) ==
             CUDA_SUCCESS &&
         value != 0;
}

/* Other devices' streams may use it, too. */
static inline void *gpu_pin(const struct gpu *g, size_t bytes) {
  void *at = NULL;
  must(g, "pinning memory",
       g->d->cuMemHostAlloc(
           &at, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  memset(at, 0, bytes);
  return at;
}

static inline CUdeviceptr gpu_memory(const struct gpu *g, size_t bytes) {
  CUdeviceptr at = 0;
  must(g, "allocating memory", g->d->cuMemAlloc(&at, bytes));
  return at;
}

static inline CUdeviceptr as_device(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

/* Opens a device and makes its context the thread's. */
static inline struct gpu gpu_open(int number) {
  char reason[CUDA_REASON];
  struct gpu g = {.d = cuda_driver(reason)};
  if (!g.d)
    not_run(reason);
  may(&g, "finding the device", g.d->cuDeviceGet(&g.device, number));
  must(&g, "opening the device",
       g.d->cuDevicePrimaryCtxRetain(&g.context, g.device));
  must(&g, "entering the device", g.d->cuCtxPushCurrent(g.context));
  must(&g, "making a stream",
       g.d->cuStreamCreate(&g.stream, CU_STREAM_NON_BLOCKING));
  if (gpu_has(&g, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    g.done = gpu_pin(&g, LINE);
    must(&g, "finding pinned memory",
         g.d->cuMemHostGetDevicePointer(&g.word, (void *)g.done, 0));
  }
  return g;
}

/* Waits until the stream has done all that it was asked for. */
static inline void gpu_await(struct gpu *g, enum end end) {
  CUresult result = CUDA_ERROR_NOT_READY;
  if (end == END_WORD) {
    must(g, "writing a word",
         g->d->cuStreamWriteValue64(g->stream, g->word, ++g->asked,
                                    CU_STREAM_WRITE_VALUE_DEFAULT));
    while (atomic_load_explicit(g->done, memory_order_acquire) < g->asked)
      ;
    return;
  }
  while (result == CUDA_ERROR_NOT_READY)
    result = g->d->cuStreamQuery(g->stream);
  must(g, "copying", result);
}

static inline void gpu_copy(const struct gpu *g, CUdeviceptr to,
                            CUdeviceptr from, size_t bytes) {
  must(g, "copying", g->d->cuMemcpyAsync(to, from, bytes, g->stream));
}

/* Copies `count` bytes that lie to_step and from_step apart. */
static inline void gpu_copy_bytes(const struct gpu *g, CUdeviceptr to,
                                  size_t to_step, CUdeviceptr from,
                                  size_t from_step, size_t count) {
  CUDA_MEMCPY2D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = from;
  c.dstDevice = to;
  c.srcPitch = from_step;
  c.dstPitch = to_step;
  c.WidthInBytes = 1;
  c.Height = count;
  must(g, "copying bytes", g->d->cuMemcpy2DAsync(&c, g->stream));
}

#endif
