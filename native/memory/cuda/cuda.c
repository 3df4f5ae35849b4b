/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.c - the kind of memory "cuda": that of NVIDIA's GPUs, by their driver.
 * "cuda:1" is the second device that CUDA shows this process. Here is how it is
 * allocated, and told from other memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cuda.h"

static CUmemAllocationProp cuda_properties(const struct cuda *c, bool shared) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  if (shared && c->shares)
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                             (c->fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0);
  p.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, c->device};
  p.allocFlags.gpuDirectRDMACapable = c->rdma;
  return p;
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

/* A driver that may use no channel of IMEX refuses memory with fabric handles. It
 * is not asked again. */
static CUresult cuda_make_shared(struct cuda *c, uint64_t length,
                                 uint64_t *size, CUdeviceptr *out) {
  CUresult result = cuda_make_virtual(c, length, true, size, out);
  if (!c->fabric || (result != CUDA_ERROR_NOT_PERMITTED &&
                     result != CUDA_ERROR_NOT_SUPPORTED))
    return result;
  c->fabric = false;
  c->fabric_refused = result;
  return cuda_make_virtual(c, length, true, size, out);
}

static void cuda_drop(const struct cuda *c, CUdeviceptr at, uint64_t size) {
  if (size == 0)
    c->driver->cuMemFree(at);
  else
    cuda_unmap(c, at, size);
}

/* A stream that cannot be brought to rest may still write there for all that is
 * known: then the memory stays. */
static CUresult cuda_zero(struct cuda *c, CUdeviceptr at, uint64_t length,
                          uint64_t size) {
  struct stream *s = &c->streams[WAY_INSIDE];
  CUresult result = c->driver->cuMemsetD8Async(at, 0, length, s->handle);
  if (result == CUDA_SUCCESS)
    return stream_rest(c, s);
  cuda_drop(c, at, size);
  return result;
}

static CUresult cuda_make_here(struct cuda *c, uint64_t length, bool shared,
                               uint64_t *size, CUdeviceptr *at) {
  CUresult result = !c->virtual_memory ? c->driver->cuMemAlloc(at, length)
                    : shared           ? cuda_make_shared(c, length, size, at)
                             : cuda_make_virtual(c, length, false, size, at);
  return result == CUDA_SUCCESS ? cuda_zero(c, *at, length, *size) : result;
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
  struct allocation *a = cuda_allocation();
  CUdeviceptr at = 0;
  if (!a)
    return PERIGEE_NO_MEMORY;
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
  cuda_forget_files(a);
  free(a);
}

/* Can the CPU not read it? Nobody knows where a sandbox forbids to ask. */
static bool cuda_hides(const void *pointer) {
  uint8_t byte;
  struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)pointer, 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) < 0 && errno == EFAULT;
}

/* Managed memory is a device's, too, to be refused by that. No driver is loaded
 * to find out. One that does not answer, as after its device broke, must not have
 * a device's memory taken for the host's. */
static int cuda_owner_of(const void *pointer) {
  const struct cuda_driver *d = cuda_driver_there();
  /* A cell of 8 zeroed bytes for each, whatever the attribute's width. */
  uint64_t type = 0, managed = 0, device = 0;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *answers[] = {&type, &managed, &device};
  if (!d)
    return -1;
  if (d->cuPointerGetAttributes(
          3, asked, answers, (CUdeviceptr)(uintptr_t)pointer) != CUDA_SUCCESS)
    return cuda_hides(pointer) ? 0 : -1;
  if (managed & 0xff)
    return (int32_t)device < 0 ? 0 : (int32_t)device;
  return (uint32_t)type == CU_MEMORYTYPE_DEVICE ? (int32_t)device : -1;
}

static int cuda_begin(uint32_t device, void **own, char reason[MEMORY_REASON]) {
  int status = cuda_open(device, own, reason);
  if (status < 0)
    return status;
  status = trial_open(*own);
  if (status == PERIGEE_OK)
    return PERIGEE_OK;
  snprintf(reason, MEMORY_REASON, "%s", ((struct cuda *)*own)->why);
  cuda_close(*own);
  return status;
}

static void cuda_end(void *own) {
  trial_close(own);
  pins_close(own);
  cuda_close(own);
}

const struct perigee_memory memory_cuda_kind = {
    .name = "cuda",
    .open = cuda_begin,
    .close = cuda_end,
    .owner_of = cuda_owner_of,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .why = cuda_why,
    .describe = cuda_describe,
    .copies = &cuda_copies,
    .sharing = &cuda_sharing,
    .admission = &cuda_admission,
};
