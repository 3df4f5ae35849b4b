/* SPDX-License-Identifier: Apache-2.0
 *
 * sharing.c - memory of GPUs in several processes. Whoever maps it may read and
 * write all of it: cuMemSetAccess binds only the process that calls it. There
 * are four kinds of keys.
 *
 * A file is the descriptor that the driver makes of memory that cuMemCreate
 * made for it. It says nothing by itself: length and device go beside it. The
 * driver keeps the memory while anybody has a descriptor or a mapping of it.
 *
 * A legacy key is a text of the driver for a whole allocation of cuMemAlloc. The
 * driver does not keep that: an owner who frees it while another process has it
 * open corrupts memory. So a descriptor goes with the key, one end of a pipe,
 * which that process keeps for as long as it has the memory open. The owner
 * keeps the other end (lease), and finds nobody there when all have let go, or
 * have died.
 *
 * A lent file is that of memory which the program itself made by cuMemCreate, as
 * torch does for expandable segments. The driver keeps that as long as others have
 * it, but the program goes on to use it once its region is closed, and must not
 * find copies of others under way. So the key has such an end of a pipe as its
 * second descriptor.
 *
 * A fabric handle is 64 bytes of the driver for memory that cuMemCreate made for
 * it. It comes without a descriptor, so it also goes to other hosts of the same
 * NVLink domain. The driver gives and takes it only where it may use a channel of
 * IMEX. The driver keeps the memory for processes that have it mapped.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

enum key_way { KEY_FILE = 1, KEY_LEGACY, KEY_FABRIC, KEY_LENT };

/* How many descriptors a key has. */
static const uint32_t key_fds[] = {
    [KEY_FILE] = 1, [KEY_LEGACY] = 1, [KEY_FABRIC] = 0, [KEY_LENT] = 2};

/* The bytes of a key. */
struct cuda_key {
  uint64_t way, size, offset;
  CUuuid device;
  union {
    CUipcMemHandle legacy;
    CUmemFabricHandle fabric;
  };
};
_Static_assert(sizeof(struct cuda_key) <= MEMORY_KEY, "it fits in a key");

/* ---- Giving -------------------------------------------------------------- */

/* What this process gave legacy keys of: the driver opens none of its own, and a
 * peer may send ours back. */
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *own_first;

static void own_add(struct allocation *a) {
  pthread_mutex_lock(&own_lock);
  a->next = own_first;
  own_first = a;
  pthread_mutex_unlock(&own_lock);
}

static void own_remove(const struct allocation *a) {
  pthread_mutex_lock(&own_lock);
  struct allocation **at = &own_first;
  while (*at && *at != a)
    at = &(*at)->next;
  if (*at)
    *at = a->next;
  pthread_mutex_unlock(&own_lock);
}

static bool own_has(const CUipcMemHandle *legacy) {
  pthread_mutex_lock(&own_lock);
  const struct allocation *a = own_first;
  while (a && memcmp(&a->legacy, legacy, sizeof *legacy) != 0)
    a = a->next;
  pthread_mutex_unlock(&own_lock);
  return a;
}

struct allocation *cuda_allocation(void) {
  struct allocation *a = calloc(1, sizeof *a);
  for (int i = 0; a && i < FDS; i++)
    a->fds[i] = -1;
  return a;
}

/* A child of a fork leaves its copy of the list: the lock may be held in it by a
 * thread that the child does not have. */
void cuda_forget_files(struct allocation *a) {
  if (a->giver == getpid())
    own_remove(a);
  for (int i = 0; i < FDS; i++)
    forked_close(&a->fds[i]);
  forked_forget(&a->forked);
}

/* The handle is asked for by address, as the mapping alone keeps the memory. */
static CUresult cuda_export_as(struct cuda *c, const uint8_t *pointer,
                               CUmemAllocationHandleType type, void *out) {
  CUmemGenericAllocationHandle handle;
  const struct cuda_driver *d = c->driver;
  CUresult result =
      d->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)pointer);
  if (result != CUDA_SUCCESS)
    return result;
  result = d->cuMemExportToShareableHandle(out, handle, type, 0);
  d->cuMemRelease(handle);
  return result;
}

static CUresult cuda_export_file(struct cuda *c, const uint8_t *pointer,
                                 struct allocation *a) {
  int *file = &a->fds[FD_FILE];
  if (*file >= 0)
    return CUDA_SUCCESS;
  CUresult result = cuda_export_as(
      c, pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, file);
  if (result == CUDA_SUCCESS)
    fcntl(*file, F_SETFD, FD_CLOEXEC);
  return result;
}

static CUresult cuda_make_lease(struct allocation *a) {
  int ends[2];
  if (a->fds[FD_END] >= 0)
    return CUDA_SUCCESS;
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  a->fds[FD_LEASE] = ends[0];
  a->fds[FD_END] = ends[1];
  return CUDA_SUCCESS;
}

static CUresult cuda_export_legacy(struct cuda *c, const uint8_t *pointer,
                                   struct allocation *a, struct cuda_key *k) {
  CUresult result = c->driver->cuIpcGetMemHandle(
      &k->legacy, (CUdeviceptr)(uintptr_t)pointer - a->offset);
  k->way = KEY_LEGACY;
  if (result == CUDA_SUCCESS)
    result = cuda_make_lease(a);
  if (result != CUDA_SUCCESS || a->giver == getpid())
    return result;
  a->legacy = k->legacy;
  a->giver = getpid();
  own_add(a);
  return CUDA_SUCCESS;
}

static CUresult cuda_export_admitted(struct cuda *c, const uint8_t *pointer,
                                     struct allocation *a, struct cuda_key *k) {
  if (cuda_pointer_has(
          c->driver, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer) &
      0xff)
    return cuda_export_legacy(c, pointer, a, k);
  k->way = KEY_LENT;
  CUresult result = cuda_export_file(c, pointer, a);
  return result == CUDA_SUCCESS ? cuda_make_lease(a) : result;
}

static CUresult cuda_export(struct cuda *c, const uint8_t *pointer,
                            struct allocation *a, struct cuda_key *k) {
  CUresult result = c->driver->cuDeviceGetUuid(&k->device, c->device);
  if (result == CUDA_SUCCESS)
    result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = a->admitted ? cuda_export_admitted(c, pointer, a, k)
                       : cuda_export_file(c, pointer, a);
  cuda_leave(c);
  forked_closes(&a->forked, a->fds, FDS);
  return result;
}

/* Can the driver give a key of it? Admitted memory that has none says so when it
 * is asked for one. */
static bool cuda_has_keys(const struct cuda *c, const struct allocation *a) {
  return a->admitted ? a->whole : c->shares && a->size > 0;
}

static int cuda_share(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void *handle, int access,
                      struct memory_key *key) {
  (void)length, (void)access;
  struct cuda *c = context->own;
  struct allocation *a = handle;
  struct cuda_key k = {.way = KEY_FILE, .size = a->size, .offset = a->offset};
  if (!cuda_has_keys(c, a))
    return PERIGEE_UNSUPPORTED;
  CUresult result = cuda_export(c, pointer, a, &k);
  if (result != CUDA_SUCCESS)
    return cuda_fails(c, PERIGEE_UNSUPPORTED, "exporting memory", result);
  *key = (struct memory_key){
      .length = sizeof k,
      .fd_count = key_fds[k.way],
      .fds = {a->fds[k.way == KEY_LEGACY ? FD_END : FD_FILE], a->fds[FD_END]}};
  memcpy(key->bytes, &k, sizeof k);
  return PERIGEE_OK;
}

static CUresult cuda_export_fabric(struct cuda *c, const uint8_t *pointer,
                                   struct cuda_key *k) {
  CUresult result = c->driver->cuDeviceGetUuid(&k->device, c->device);
  if (result == CUDA_SUCCESS)
    result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_export_as(c, pointer, CU_MEM_HANDLE_TYPE_FABRIC, &k->fabric);
  cuda_leave(c);
  return result;
}

/* Was the memory made for it? */
static bool cuda_has_fabric(const struct cuda *c, const struct allocation *a,
                            const uint8_t *pointer) {
  return cuda_has_keys(c, a) &&
         cuda_pointer_has(c->driver, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                          pointer) &
             CU_MEM_HANDLE_TYPE_FABRIC;
}

static int cuda_lacks_fabric(struct cuda *c) {
  static const char what[] = "memory has no fabric handle";
  if (c->fabric_refused != CUDA_SUCCESS)
    return cuda_fails(c, PERIGEE_UNSUPPORTED, what, c->fabric_refused);
  snprintf(c->why, sizeof c->why, "%s: it was not made for one", what);
  return PERIGEE_UNSUPPORTED;
}

static int cuda_share_bytes(const struct memory_context *context,
                            uint8_t *pointer, void *handle,
                            struct memory_key *key) {
  struct cuda *c = context->own;
  const struct allocation *a = handle;
  struct cuda_key k = {.way = KEY_FABRIC, .size = a->size, .offset = a->offset};
  if (!cuda_has_fabric(c, a, pointer))
    return cuda_lacks_fabric(c);
  CUresult result = cuda_export_fabric(c, pointer, &k);
  if (result != CUDA_SUCCESS)
    return cuda_fails(c, PERIGEE_UNSUPPORTED, "exporting memory", result);
  *key = (struct memory_key){.length = sizeof k};
  memcpy(key->bytes, &k, sizeof k);
  return PERIGEE_OK;
}

/* This side's end of the pipe for others is closed first. */
static bool cuda_held(const struct memory_context *context, void *handle) {
  (void)context;
  struct allocation *a = handle;
  struct pollfd lease = {.fd = a->fds[FD_LEASE]};
  if (lease.fd < 0)
    return false;
  forked_close(&a->fds[FD_END]);
  return poll(&lease, 1, 0) == 0;
}

/* ---- Taking -------------------------------------------------------------- */

static bool cuda_key_read(const struct memory_key *key, struct cuda_key *k) {
  if (key->length != sizeof *k)
    return false;
  memcpy(k, key->bytes, sizeof *k);
  return k->way >= KEY_FILE && k->way <= KEY_LENT &&
         key->fd_count == key_fds[k->way] && k->size > 0 &&
         k->size <= UINT64_C(1) << 41 && k->offset < k->size;
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

static uint64_t cuda_spans(const struct memory_key *key) {
  struct cuda_key k;
  return cuda_key_read(key, &k) ? k.size : 0;
}

/* What was adopted, for leave. */
struct adopted {
  CUdeviceptr base;
  uint64_t size;
  bool legacy;
};

/* By a descriptor, or by a fabric handle. */
static CUresult cuda_import_made(struct cuda *c, struct cuda_key k, int file,
                                 int rights, struct adopted *m) {
  CUmemGenericAllocationHandle handle;
  bool fabric = k.way == KEY_FABRIC;
  CUresult result = c->driver->cuMemImportFromShareableHandle(
      &handle, fabric ? (void *)&k.fabric : (void *)(uintptr_t)file,
      fabric ? CU_MEM_HANDLE_TYPE_FABRIC
             : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_map(c, handle, m->size, rights, &m->base);
  c->driver->cuMemRelease(handle); /* the mapping keeps the memory */
  return result;
}

/* The driver refuses descriptors and texts that are not its own, and sizes of
 * files that are not the allocation's. The size of a legacy one is asked for. */
static CUresult cuda_import_legacy(struct cuda *c, const struct cuda_key *k,
                                   struct adopted *m) {
  CUdeviceptr base = 0;
  size_t size = 0;
  CUresult result = c->driver->cuIpcOpenMemHandle(
      &m->base, k->legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS)
    return result;
  result = c->driver->cuMemGetAddressRange(&base, &size, m->base);
  if (result == CUDA_SUCCESS && base == m->base && size == m->size)
    return CUDA_SUCCESS;
  c->driver->cuIpcCloseMemHandle(m->base);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
}

static CUresult cuda_import(struct cuda *c, const struct cuda_key *k, int file,
                            int rights, struct adopted *m) {
  m->size = k->size;
  m->legacy = k->way == KEY_LEGACY;
  if (m->legacy && own_has(&k->legacy))
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = m->legacy ? cuda_import_legacy(c, k, m)
                     : cuda_import_made(c, *k, file, rights, m);
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

static void adopted_end(const struct cuda *c, struct adopted *m) {
  if (cuda_enter(c) == CUDA_SUCCESS) {
    if (m->legacy)
      c->driver->cuIpcCloseMemHandle(m->base);
    else
      cuda_unmap(c, m->base, m->size);
    cuda_leave(c);
  }
  free(m);
}

static int cuda_refuses(struct cuda *c) {
  snprintf(c->why, sizeof c->why, "the key is of no such memory");
  return PERIGEE_PROTOCOL;
}

/* The driver refuses descriptors and texts that are not its own, and sizes that
 * are not the allocation's. */
static int cuda_adopt(const struct memory_context *context,
                      const struct memory_key *key, uint64_t length, int access,
                      uint8_t **pointer, void **handle) {
  struct cuda *c = context->own;
  struct cuda_key k;
  int rights = access & PERIGEE_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                      : CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (!cuda_key_read(key, &k) || k.size - k.offset < length)
    return cuda_refuses(c);
  struct adopted *m = calloc(1, sizeof *m);
  if (!m)
    return PERIGEE_NO_MEMORY;
  CUresult result = cuda_import(c, &k, key->fds[0], rights, m);
  if (result != CUDA_SUCCESS) {
    free(m);
    return cuda_fails(c, cuda_import_status(result), "opening memory", result);
  }
  *pointer = (uint8_t *)(uintptr_t)(m->base + k.offset);
  *handle = m;
  return PERIGEE_OK;
}

static void cuda_part(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void *handle) {
  (void)pointer, (void)length;
  adopted_end(context->own, handle);
}

const struct memory_sharing cuda_sharing = {
    .whose = cuda_whose,
    .spans = cuda_spans,
    .share = cuda_share,
    .share_bytes = cuda_share_bytes,
    .adopt = cuda_adopt,
    .leave = cuda_part,
    .held = cuda_held,
};
