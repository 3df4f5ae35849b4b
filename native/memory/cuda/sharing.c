/* SPDX-License-Identifier: Apache-2.0
 *
 * sharing.c - memory of GPUs in several processes of one host. A key is the
 * descriptor of an allocation, which the driver makes, and which says nothing
 * by itself: length and device go beside it. The driver keeps the memory while
 * anybody has a descriptor or a mapping of it.
 *
 * Whoever maps it may read and write all of it: cuMemSetAccess binds only the
 * process that calls it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

/* The bytes of a key. */
struct cuda_key {
  uint64_t version, size;
  CUuuid device;
};
enum { KEY_VERSION = 1, UNIT_MOST = 32 << 20 };
_Static_assert(sizeof(struct cuda_key) <= MEMORY_KEY, "it fits in a key");

/* ---- Giving -------------------------------------------------------------- */

/* The handle is asked for by address, as the mapping alone keeps the memory. */
static CUresult cuda_export(struct cuda *c, const uint8_t *pointer, int *file) {
  CUmemGenericAllocationHandle handle;
  const struct cuda_driver *d = c->driver;
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = d->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)pointer);
  if (result == CUDA_SUCCESS) {
    result = d->cuMemExportToShareableHandle(
        file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    d->cuMemRelease(handle);
  }
  cuda_leave(c);
  return result;
}

static int cuda_share(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void *handle, int access,
                      struct memory_key *key) {
  (void)length, (void)access;
  struct cuda *c = context->own;
  struct allocation *a = handle;
  struct cuda_key k = {.version = KEY_VERSION, .size = a->size};
  if (!c->shares || a->size == 0)
    return PERIGEE_UNSUPPORTED;
  CUresult result = c->driver->cuDeviceGetUuid(&k.device, c->device);
  if (result == CUDA_SUCCESS && a->file < 0) {
    result = cuda_export(c, pointer, &a->file);
    if (result == CUDA_SUCCESS)
      fcntl(a->file, F_SETFD, FD_CLOEXEC);
  }
  if (result != CUDA_SUCCESS)
    return cuda_fails(c, PERIGEE_SYSTEM, "exporting memory", result);
  *key =
      (struct memory_key){.length = sizeof k, .fd_count = 1, .fds = {a->file}};
  memcpy(key->bytes, &k, sizeof k);
  return PERIGEE_OK;
}

/* ---- Taking -------------------------------------------------------------- */

static bool cuda_key_read(const struct memory_key *key, struct cuda_key *k) {
  if (key->length != sizeof *k || key->fd_count != 1)
    return false;
  memcpy(k, key->bytes, sizeof *k);
  return k->version == KEY_VERSION && k->size > 0 &&
         k->size <= UINT64_C(1) << 41;
}

static int cuda_whose(const struct memory_key *key) {
  const struct cuda_driver *d = cuda_driver_there();
  struct cuda_key k;
  CUuuid uuid;
  CUdevice device;
  int count = 0;
  if (!d || !cuda_key_read(key, &k) ||
      d->cuDeviceGetCount(&count) != CUDA_SUCCESS)
    return -1;
  for (int i = 0; i < count; i++)
    if (d->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
        d->cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS &&
        memcmp(&uuid, &k.device, sizeof uuid) == 0)
      return i;
  return -1;
}

static CUresult cuda_import(struct cuda *c, int file, uint64_t size, int rights,
                            CUdeviceptr *at) {
  CUmemGenericAllocationHandle handle;
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = c->driver->cuMemImportFromShareableHandle(
      &handle, (void *)(uintptr_t)file,
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) {
    result = cuda_map(c, handle, size, rights, at);
    c->driver->cuMemRelease(handle); /* the mapping keeps the memory */
  }
  cuda_leave(c);
  return result;
}

static int cuda_import_status(CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return PERIGEE_NO_MEMORY;
  return result == CUDA_ERROR_INVALID_VALUE ||
                 result == CUDA_ERROR_INVALID_HANDLE
             ? PERIGEE_PROTOCOL
             : PERIGEE_UNSUPPORTED;
}

/* An allocation is as long as its memory, rounded up to the device's unit. More
 * would take addresses that nobody counts. */
static bool cuda_key_fits(const struct cuda_key *k, uint64_t length) {
  return k->size >= length && k->size - length < UNIT_MOST;
}

static int cuda_refuses(struct cuda *c) {
  snprintf(c->why, sizeof c->why, "the key is of no such memory");
  return PERIGEE_PROTOCOL;
}

/* The driver refuses descriptors that are not its own, and sizes that are not
 * the allocation's. */
static int cuda_adopt(const struct memory_context *context,
                      const struct memory_key *key, uint64_t length, int access,
                      uint8_t **pointer, void **handle) {
  struct cuda *c = context->own;
  struct cuda_key k;
  CUdeviceptr at;
  int rights = access & PERIGEE_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                      : CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (!cuda_key_read(key, &k) || !cuda_key_fits(&k, length))
    return cuda_refuses(c);
  CUresult result = cuda_import(c, key->fds[0], k.size, rights, &at);
  if (result != CUDA_SUCCESS)
    return cuda_fails(c, cuda_import_status(result), "opening memory", result);
  *pointer = (uint8_t *)(uintptr_t)at;
  *handle = (void *)(uintptr_t)k.size;
  return PERIGEE_OK;
}

static void cuda_part(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void *handle) {
  (void)length;
  const struct cuda *c = context->own;
  if (cuda_enter(c) != CUDA_SUCCESS)
    return;
  cuda_unmap(c, (CUdeviceptr)(uintptr_t)pointer, (uintptr_t)handle);
  cuda_leave(c);
}

const struct memory_sharing cuda_sharing = {
    .whose = cuda_whose,
    .share = cuda_share,
    .adopt = cuda_adopt,
    .leave = cuda_part,
};
