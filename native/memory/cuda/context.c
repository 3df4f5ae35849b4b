/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c - contexts of GPUs, and what is mapped for them.
 *
 * A context of an engine uses the device's primary context, as the CUDA
 * runtime, torch and CuPy do, so their memory can be registered. It has three
 * streams of its own: to the device, from it, and inside it. They wait for no
 * other stream, nor does another one wait for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

int cuda_fails(struct cuda *c, int status, const char *what, CUresult result) {
  cuda_explain(c->driver, what, result, c->why);
  return status;
}

/* While some thread of the program captures a graph, other calls than those that
 * give work to a stream fail and end that, unless their thread has said that it
 * knows what it does. */
static _Thread_local CUstreamCaptureMode mode_before;
static _Thread_local bool relaxed; /* mode_before is what the driver said */

CUresult cuda_enter(const struct cuda *c) {
  CUresult result = c->driver->cuCtxPushCurrent(c->context);
  if (result != CUDA_SUCCESS)
    return result;
  mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
  relaxed = c->driver->cuThreadExchangeStreamCaptureMode(&mode_before) ==
            CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

void cuda_leave(const struct cuda *c) {
  CUcontext before;
  if (relaxed)
    c->driver->cuThreadExchangeStreamCaptureMode(&mode_before);
  c->driver->cuCtxPopCurrent(&before);
}

/* ---- Contexts ------------------------------------------------------------ */

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

static void cuda_end_streams(struct cuda *c) {
  bell_close(c);
  for (int i = 0; i < WAYS; i++)
    if (c->streams[i].handle)
      c->driver->cuStreamDestroy(c->streams[i].handle);
  if (c->pinned)
    c->driver->cuMemFreeHost(c->pinned);
}

void cuda_close(void *own) {
  struct cuda *c = own;
  if (cuda_enter(c) == CUDA_SUCCESS) {
    cuda_end_streams(c);
    cuda_leave(c);
  }
  c->driver->cuDevicePrimaryCtxRelease(c->device);
  bell_free(c);
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
  c->pins_work =
      cuda_attribute(c, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) &&
      cuda_attribute(
          c, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  c->max_pitch = cuda_attribute(c, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  c->virtual_memory = cuda_attribute(
      c, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  c->shares =
      c->virtual_memory &&
      cuda_attribute(
          c, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  c->fabric =
      c->shares &&
      cuda_attribute(c, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
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

int cuda_open(uint32_t device, void **own, char reason[MEMORY_REASON]) {
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

const char *cuda_why(const struct memory_context *context) {
  return ((const struct cuda *)context->own)->why;
}

uint64_t cuda_pointer_has(const struct cuda_driver *d,
                          CUpointer_attribute attribute,
                          const uint8_t *pointer) {
  uint64_t answer = 0; /* 8 zeroed bytes, whatever the attribute's width */
  void *answers[] = {&answer};
  return d->cuPointerGetAttributes(1, &attribute, answers,
                                   (CUdeviceptr)(uintptr_t)pointer) ==
                 CUDA_SUCCESS
             ? answer
             : 0;
}

/* ---- Mapping ------------------------------------------------------------- */

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
