/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c - the kind of memory "cuda": that of NVIDIA's GPUs, by their driver.
 * "cuda:1" is the second device that CUDA shows this process.
 *
 * A context of an engine uses the device's primary context, as the CUDA
 * runtime, torch and CuPy do, so their memory can be registered. It has three
 * streams of its own: to the device, from it, and inside it. They wait for no
 * other stream, nor does another one wait for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

int cuda_fails(struct cuda *c, int status, const char *what, CUresult result) {
  cuda_explain(c->driver, what, result, c->why);
  return status;
}

CUresult cuda_enter(const struct cuda *c) {
  return c->driver->cuCtxPushCurrent(c->context);
}

void cuda_leave(const struct cuda *c) {
  CUcontext before;
  c->driver->cuCtxPopCurrent(&before);
}

/* ---- Contexts -------------------------------------------------------------- */

static int cuda_attribute(const struct cuda *c, int attribute) {
  int value = 0;
  return c->driver->cuDeviceGetAttribute(&value, attribute, c->device) ==
                 CUDA_SUCCESS
             ? value
             : 0;
}

static int cuda_find_device(struct cuda *c, uint32_t number) {
  int count = 0;
  CUresult result = c->driver->cuDeviceGetCount(&count);
  if (result == CUDA_SUCCESS && number >= (uint32_t)count) {
    snprintf(c->why, sizeof c->why, "CUDA shows %d devices, not number %u",
             count, number);
    return PERIGEE_NOT_FOUND;
  }
  if (result == CUDA_SUCCESS)
    result = c->driver->cuDeviceGet(&c->device, (int)number);
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_SYSTEM, "finding the device", result);
}

/* Pinned memory for slots and words. Portable: for each context of the
 * process, as copies between devices use the other's memory. */
static CUresult cuda_pin(struct cuda *c) {
  uint64_t slots = (uint64_t)SLOTS * COPY_PIECE;
  CUdeviceptr device;
  CUresult result = c->driver->cuMemHostAlloc(
      (void **)&c->pinned, slots + WAYS * 64,
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS)
    result = c->driver->cuMemHostGetDevicePointer(&device, c->pinned, 0);
  for (int i = 0; i < WAYS && result == CUDA_SUCCESS; i++) {
    uint64_t at = slots + 64 * (uint64_t)i; /* a line for each word */
    c->streams[i].done = (_Atomic uint64_t *)(void *)(c->pinned + at);
    atomic_init(c->streams[i].done, 0);
    c->streams[i].word = device + at;
    result = c->driver->cuStreamCreate(&c->streams[i].handle,
                                       CU_STREAM_NON_BLOCKING);
  }
  return result;
}

static void cuda_unpin(struct cuda *c) {
  for (int i = 0; i < WAYS; i++)
    if (c->streams[i].handle)
      c->driver->cuStreamDestroy(c->streams[i].handle);
  if (c->pinned)
    c->driver->cuMemFreeHost(c->pinned);
}

static void cuda_close(void *own) {
  struct cuda *c = own;
  if (cuda_enter(c) == CUDA_SUCCESS) {
    cuda_unpin(c);
    cuda_leave(c);
  }
  c->driver->cuDevicePrimaryCtxRelease(c->device);
  free(c->entries);
  free(c);
}

static int cuda_prepare(struct cuda *c) {
  if (!cuda_attribute(c, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    snprintf(c->why, sizeof c->why,
             "this device's streams cannot write 64-bit words "
             "(cuStreamWriteValue64)");
    return PERIGEE_UNSUPPORTED;
  }
  c->max_pitch = cuda_attribute(c, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  c->virtual_memory = cuda_attribute(
      c, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  c->shares =
      c->virtual_memory &&
      cuda_attribute(
          c, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  c->rdma = cuda_attribute(
      c, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  CUresult result = cuda_enter(c);
  if (result == CUDA_SUCCESS) {
    result = cuda_pin(c);
    cuda_leave(c);
  }
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_NO_MEMORY, "pinning host memory", result);
}

/* Retains the device's primary context, which others of the process may use,
 * too. */
static int cuda_retain(struct cuda *c, uint32_t device) {
  int status = cuda_find_device(c, device);
  if (status < 0)
    return status;
  CUresult result = c->driver->cuDevicePrimaryCtxRetain(&c->context, c->device);
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_SYSTEM, "opening the device", result);
}

static int cuda_open(uint32_t device, void **own, char reason[MEMORY_REASON]) {
  const struct cuda_driver *driver = cuda_driver(reason);
  if (!driver)
    return PERIGEE_UNSUPPORTED;
  struct cuda *c = calloc(1, sizeof *c);
  if (!c)
    return PERIGEE_NO_MEMORY;
  c->driver = driver;
  int status = cuda_retain(c, device);
  bool retained = status == PERIGEE_OK;
  if (retained)
    status = cuda_prepare(c);
  *own = c;
  if (status == PERIGEE_OK)
    return PERIGEE_OK;
  snprintf(reason, MEMORY_REASON, "cuda:%u: %s", device, c->why);
  if (retained)
    cuda_close(c);
  else
    free(c);
  return status;
}

static const char *cuda_why(const struct memory_context *context) {
  return ((const struct cuda *)context->own)->why;
}

/* ---- Memory ---------------------------------------------------------------- */

static CUmemAllocationProp cuda_properties(const struct cuda *c, bool shared) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  if (shared && c->shares)
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, c->device};
  p.allocFlags.gpuDirectRDMACapable = c->rdma;
  return p;
}

CUresult cuda_map(struct cuda *c, CUmemGenericAllocationHandle handle,
                  uint64_t size, int rights, CUdeviceptr *out) {
  const struct cuda_driver *d = c->driver;
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device}, rights};
  CUresult result = d->cuMemAddressReserve(out, size, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    return result;
  result = d->cuMemMap(*out, size, 0, handle, 0);
  if (result == CUDA_SUCCESS) {
    result = d->cuMemSetAccess(*out, size, &access, 1);
    if (result == CUDA_SUCCESS)
      return CUDA_SUCCESS;
    d->cuMemUnmap(*out, size);
  }
  d->cuMemAddressFree(*out, size);
  return result;
}

void cuda_unmap(const struct cuda *c, CUdeviceptr at, uint64_t size) {
  c->driver->cuMemUnmap(at, size);
  c->driver->cuMemAddressFree(at, size);
}

static CUresult cuda_make_virtual(struct cuda *c, uint64_t length, bool shared,
                                  uint64_t *size, CUdeviceptr *out) {
  CUmemAllocationProp p = cuda_properties(c, shared);
  CUmemGenericAllocationHandle handle;
  size_t unit = 0;
  CUresult result = c->driver->cuMemGetAllocationGranularity(
      &unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS)
    return result;
  *size = (length + unit - 1) / unit * unit;
  result = c->driver->cuMemCreate(&handle, *size, &p, 0);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_map(c, handle, *size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, out);
  c->driver->cuMemRelease(handle); /* the mapping keeps the memory */
  return result;
}

static void cuda_drop(const struct cuda *c, CUdeviceptr at, uint64_t size) {
  if (size == 0)
    c->driver->cuMemFree(at);
  else
    cuda_unmap(c, at, size);
}

static CUresult cuda_zero(struct cuda *c, CUdeviceptr at, uint64_t length) {
  CUstream stream = c->streams[WAY_INSIDE].handle;
  CUresult result = c->driver->cuMemsetD8Async(at, 0, length, stream);
  return result == CUDA_SUCCESS ? c->driver->cuStreamSynchronize(stream)
                                : result;
}

static CUresult cuda_make_here(struct cuda *c, uint64_t length, bool shared,
                               uint64_t *size, CUdeviceptr *at) {
  CUresult result = c->virtual_memory
                        ? cuda_make_virtual(c, length, shared, size, at)
                        : c->driver->cuMemAlloc(at, length);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_zero(c, *at, length);
  if (result != CUDA_SUCCESS)
    cuda_drop(c, *at, *size);
  return result;
}

static CUresult cuda_make(struct cuda *c, uint64_t length, bool shared,
                          uint64_t *size, CUdeviceptr *at) {
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_make_here(c, length, shared, size, at);
  cuda_leave(c);
  return result;
}

static int cuda_allocate(const struct memory_context *context, uint64_t length,
                         bool shared, uint8_t **pointer, void **handle) {
  struct cuda *c = context->own;
  struct allocation *a = calloc(1, sizeof *a);
  CUdeviceptr at = 0;
  if (!a)
    return PERIGEE_NO_MEMORY;
  a->file = -1;
  CUresult result = cuda_make(c, length, shared, &a->size, &at);
  if (result != CUDA_SUCCESS) {
    free(a);
    return cuda_fails(c,
                      result == CUDA_ERROR_OUT_OF_MEMORY ? PERIGEE_NO_MEMORY
                                                         : PERIGEE_SYSTEM,
                      "allocating memory of the device", result);
  }
  *pointer = (uint8_t *)(uintptr_t)at;
  *handle = a;
  return PERIGEE_OK;
}

static void cuda_release(const struct memory_context *context, uint8_t *pointer,
                         uint64_t length, void *handle) {
  (void)length;
  const struct cuda *c = context->own;
  struct allocation *a = handle;
  if (cuda_enter(c) == CUDA_SUCCESS) {
    cuda_drop(c, (CUdeviceptr)(uintptr_t)pointer, a->size);
    cuda_leave(c);
  }
  if (a->file >= 0)
    close(a->file);
  free(a);
}

/* Managed memory is the host's, too: the CPU may touch it, and so it is treated
 * as host memory. No driver is loaded to find out. */
static int cuda_owner_of(const void *pointer) {
  const struct cuda_driver *d = cuda_driver_there();
  /* A cell of 8 zeroed bytes for each, whatever the attribute's width. */
  uint64_t type = 0, managed = 0, device = 0;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *answers[] = {&type, &managed, &device};
  if (!d || d->cuPointerGetAttributes(3, asked, answers,
                                      (CUdeviceptr)(uintptr_t)pointer) !=
                CUDA_SUCCESS)
    return -1;
  return (uint32_t)type == CU_MEMORYTYPE_DEVICE && !(managed & 0xff)
             ? (int)(uint32_t)device
             : -1;
}

const struct perigee_memory memory_cuda_kind = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .owner_of = cuda_owner_of,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .why = cuda_why,
    .copies = &cuda_copies,
    .sharing = &cuda_sharing,
};
