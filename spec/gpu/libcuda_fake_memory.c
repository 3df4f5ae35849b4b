/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake_memory.c - the memory of the fake of CUDA's driver: ranges of
 * addresses of devices and of pinned memory, and virtual memory.
 *
 * A range of a device's memory is mapped twice: at the address that the program
 * has, where the CPU must not touch it, and as an alias, for streams. A
 * reservation has an alias as a whole, so that streams copy across the borders
 * of what is mapped in it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libcuda_fake.h"

enum { RANGES = 8192, PAGE = 4096 };

/* ---- Ranges ---------------------------------------------------------------
 * */

static struct range ranges[RANGES];
static int ranges_used; /* the first that was never used */
static uint64_t ranges_made;

static uint8_t *pointer_of(CUdeviceptr at) {
  return (uint8_t *)(uintptr_t)at;
}

static CUdeviceptr address_of(const void *p) {
  return (CUdeviceptr)(uintptr_t)p;
}

struct range *fake_range_find(bool (*f)(const struct range *, const void *),
                              const void *with) {
  for (int i = 0; i < ranges_used; i++)
    if (ranges[i].base && f(&ranges[i], with))
      return &ranges[i];
  return NULL;
}

static bool range_touches(const struct range *r, const void *with) {
  const struct span *s = with;
  return s->at < address_of(r->base) + r->size &&
         s->at + s->bytes > address_of(r->base);
}

struct range *fake_range_of(CUdeviceptr at) {
  return fake_range_find(range_touches, &(struct span){at, 1});
}

static struct range *range_free(void) {
  int i = 0;
  while (i < ranges_used && ranges[i].base)
    i++;
  if (i == RANGES)
    fake_fatal("too many allocations");
  ranges_used += i == ranges_used;
  return &ranges[i];
}

/* All devices have access, until somebody says otherwise. */
static struct range *range_new(uint8_t *base, uint8_t *alias, uint64_t size,
                               enum range_kind kind, int device) {
  struct range *r = range_free();
  *r = (struct range){.base = base,
                      .alias = alias,
                      .size = size,
                      .number = ++ranges_made,
                      .kind = kind,
                      .device = device,
                      .fd = -1};
  memset(r->access, READS | WRITES, sizeof r->access);
  return r;
}

static void *file_map(int fd, uint8_t *at, uint64_t size, int access) {
  void *p = mmap(at, size, access, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
  if (p == MAP_FAILED)
    fake_fatal("no memory: %s", strerror(errno));
  return p;
}

struct range *fake_range_open(int fd, uint64_t size, enum range_kind kind,
                              int device) {
  struct range *r = range_new(file_map(fd, NULL, size, PROT_NONE),
                              file_map(fd, NULL, size, PROT_READ | PROT_WRITE),
                              size, kind, device);
  r->fd = fd;
  return r;
}

static void range_end(struct range *r, const char *what) {
  if (r->busy > 0)
    fake_fatal("%s of memory that a stream is copying", what);
  *r = (struct range){0};
}

void fake_range_close(struct range *r, const char *what) {
  struct range was = *r;
  range_end(r, what);
  munmap(was.base, was.size);
  if (was.alias != was.base)
    munmap(was.alias, was.size);
  if (was.fd >= 0)
    close(was.fd);
}

/* ---- Places of streams ----------------------------------------------------
 * */

static void span_check(const struct range *r, CUdevice device, int access) {
  int has = r->access[device];
  if ((has & access) == access)
    return;
  if (r->kind == OPENED)
    fake_fatal("device %d copies memory that was opened in a context of device "
               "%d",
               device, r->opened_for);
  if (has == 0)
    fake_fatal("device %d copies memory that cuMemSetAccess has not allowed "
               "to it",
               device);
  fake_fatal("device %d writes memory that it may only read", device);
}

/* Returns the range behind r, if streams see the two as one memory. */
static struct range *range_behind(const struct range *r) {
  struct range *next = fake_range_of(address_of(r->base + r->size));
  return next && r->kind == MAPPED && next->kind == MAPPED &&
                 next->alias == r->alias + r->size
             ? next
             : NULL;
}

/* Adds to `busy` of each range of the span, which must lie in memory as a whole.
 * Returns the first one. */
static struct range *span_walk(struct span span, CUdevice device, int access,
                               int busy) {
  struct range *first = fake_range_of(span.at), *r = first;
  if (!r)
    fake_fatal("a stream is given %llu bytes at %#llx, which is neither memory "
               "of a device nor pinned",
               (unsigned long long)span.bytes, span.at);
  for (uint64_t before = span.at - address_of(r->base), done = 0;;) {
    if (busy > 0)
      span_check(r, device, access);
    r->busy += busy;
    done += r->size - before;
    if (done >= span.bytes)
      return first;
    before = 0;
    struct range *next = range_behind(r);
    if (!next)
      fake_fatal("%llu bytes at %#llx go beyond an allocation of %llu",
                 (unsigned long long)span.bytes, span.at,
                 (unsigned long long)r->size);
    r = next;
  }
}

/* Host memory that was not pinned may be gone or change before the stream gets
 * there. */
uint8_t *fake_span_take(struct span span, CUdevice device, int access) {
  const struct range *r = span_walk(span, device, access, 1);
  return r->alias + (span.at - address_of(r->base));
}

void fake_span_give(struct span span) {
  if (span.at)
    span_walk(span, 0, 0, -1);
}

/* Are all the pages mapped? */
static bool host_is_mapped(CUdeviceptr at, uint64_t size) {
  unsigned char seen[1024];
  uint64_t most = sizeof seen * PAGE;
  CUdeviceptr end = at + size;
  for (at &= ~(CUdeviceptr)(PAGE - 1); at < end; at += most)
    if (mincore(pointer_of(at), end - at < most ? end - at : most, seen) != 0)
      return false;
  return true;
}

/* Makes all the pages, as who pins them does. They must be of memory that the
 * process may write, or that devices only read. */
static bool host_is_made(void *pointer, uint64_t size, bool read_only) {
  uintptr_t begin = (uintptr_t)pointer & ~(uintptr_t)(PAGE - 1);
  return madvise(pointer_of(begin), (uintptr_t)pointer + size - begin,
                 read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0;
}

void fake_span_look(struct span span) {
  const struct range *r = span.at ? fake_range_of(span.at) : NULL;
  if (r && r->kind == REGISTERED && !host_is_mapped(span.at, span.bytes))
    fake_fatal("a stream copies registered memory that was unmapped");
}

/* ---- Allocations ----------------------------------------------------------
 * */

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) {
  CUcontext c = fake_current("cuMemAlloc");
  BEGIN_UNSAFE("cuMemAlloc");
  uint64_t size = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
  struct card card;
  if (bytes == 0 || bytes > TOTAL)
    return bytes ? CUDA_ERROR_OUT_OF_MEMORY : INVALID_VALUE;
  int fd = fake_file_new(size, c->device, true, 0, &card);
  pthread_mutex_lock(&fake_lock);
  struct range *r = fake_range_open(fd, size, ALLOCATED, c->device);
  memcpy(r->id, card.id, sizeof r->id);
  /* What was there before is seen until somebody writes. */
  memset(r->alias, 0xa5, size);
  *pointer = address_of(r->base);
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

static void *host_map(size_t bytes) {
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
              -1, 0);
}

/* The CPU may touch it, too. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
  CUcontext c = fake_current("cuMemAllocManaged");
  BEGIN("cuMemAllocManaged");
  if (bytes == 0 || flags < 1 || flags > 2)
    return INVALID_VALUE;
  uint8_t *at = host_map(bytes);
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&fake_lock);
  range_new(at, at, bytes, MANAGED, c->device);
  pthread_mutex_unlock(&fake_lock);
  *pointer = address_of(at);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr pointer) {
  fake_current("cuMemFree");
  COUNT("cuMemFree", 1);
  pthread_mutex_lock(&fake_lock);
  struct range *r = fake_range_of(pointer);
  if (!r || (r->kind != ALLOCATED && r->kind != MANAGED) ||
      address_of(r->base) != pointer)
    fake_fatal("cuMemFree of what cuMemAlloc did not give");
  if (r->kind == ALLOCATED)
    fake_file_retire(r->fd);
  fake_range_close(r, "cuMemFree");
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes,
                              CUdeviceptr pointer) {
  fake_current("cuMemGetAddressRange");
  BEGIN("cuMemGetAddressRange");
  if (!base && !bytes)
    return INVALID_VALUE;
  pthread_mutex_lock(&fake_lock);
  const struct range *r = fake_range_of(pointer);
  if (r && base)
    *base = address_of(r->base);
  if (r && bytes)
    *bytes = r->size;
  pthread_mutex_unlock(&fake_lock);
  return r ? CUDA_SUCCESS : NOT_FOUND;
}

/* ---- Pinned memory of the host --------------------------------------------
 * */

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  fake_current("cuMemHostAlloc");
  BEGIN_UNSAFE("cuMemHostAlloc");
  if (flags & ~7u)
    return INVALID_VALUE;
  uint8_t *at = host_map(bytes);
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&fake_lock);
  range_new(at, at, bytes, HOST, -1);
  pthread_mutex_unlock(&fake_lock);
  *pointer = at;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *pointer) {
  fake_current("cuMemFreeHost");
  COUNT("cuMemFreeHost", 1);
  pthread_mutex_lock(&fake_lock);
  struct range *r = fake_range_of(address_of(pointer));
  if (!r || r->kind != HOST || r->base != pointer)
    fake_fatal("cuMemFreeHost of what cuMemHostAlloc did not give");
  uint64_t size = r->size;
  range_end(r, "cuMemFreeHost");
  munmap(pointer, size);
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *pointer,
                                   unsigned flags) {
  BEGIN("cuMemHostGetDevicePointer");
  pthread_mutex_lock(&fake_lock);
  const struct range *r = fake_range_of(address_of(pointer));
  bool is = r && (r->kind == HOST || r->kind == REGISTERED);
  pthread_mutex_unlock(&fake_lock);
  *device = address_of(pointer);
  return is && flags == 0 ? CUDA_SUCCESS : INVALID_VALUE;
}

CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags) {
  fake_current("cuMemHostRegister");
  BEGIN_UNSAFE("cuMemHostRegister");
  if (!fake_has(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED))
    return NOT_SUPPORTED;
  if (!pointer || bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)pointer ||
      flags & ~15u || !host_is_mapped(address_of(pointer), bytes) ||
      !host_is_made(pointer, bytes, flags & 8))
    return INVALID_VALUE;
  pthread_mutex_lock(&fake_lock);
  struct span span = {address_of(pointer), bytes};
  struct range *r = fake_range_find(range_touches, &span);
  CUresult result = !r               ? CUDA_SUCCESS
                    : r->device >= 0 ? INVALID_VALUE
                                     : ALREADY_REGISTERED;
  if (!r) {
    r = range_new(pointer, pointer, bytes, REGISTERED, -1);
    if (flags & 8) /* CU_MEMHOSTREGISTER_READ_ONLY */
      memset(r->access, READS, sizeof r->access);
  }
  pthread_mutex_unlock(&fake_lock);
  return result;
}

CUresult cuMemHostUnregister(void *pointer) {
  fake_current("cuMemHostUnregister");
  BEGIN_UNSAFE("cuMemHostUnregister");
  pthread_mutex_lock(&fake_lock);
  struct range *r = fake_range_of(address_of(pointer));
  bool is = r && r->kind == REGISTERED && r->base == pointer;
  if (is && !host_is_mapped(address_of(pointer), r->size))
    fake_fatal("cuMemHostUnregister of memory that was unmapped before");
  if (is)
    range_end(r, "cuMemHostUnregister");
  pthread_mutex_unlock(&fake_lock);
  return is ? CUDA_SUCCESS : NOT_REGISTERED;
}

/* ---- Memory that can be mapped --------------------------------------------
 * */

static struct made *all_made;

static bool whole(uint64_t size) {
  return size > 0 && size % UNIT == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                       const CUmemAllocationProp *prop,
                                       int option) {
  BEGIN("cuMemGetAllocationGranularity");
  *granularity = UNIT;
  return prop->type == 1 && option == 0 ? CUDA_SUCCESS : INVALID_VALUE;
}

struct made *fake_made(CUmemGenericAllocationHandle handle, const char *what) {
  for (struct made *m = all_made; m; m = m->next)
    if ((uintptr_t)m == handle && m->handles > 0)
      return m;
  fake_fatal("%s of a handle that there is not", what);
}

CUmemGenericAllocationHandle fake_made_new(int fd, uint64_t size, int device,
                                           int types) {
  struct made *m = malloc(sizeof *m);
  if (!m)
    fake_fatal("no memory");
  *m = (struct made){all_made, fd, 1, 0, size, device, types, false};
  all_made = m;
  return (uintptr_t)m;
}

static void made_drop(struct made *m) {
  if (m->handles > 0 || m->mappings > 0)
    return;
  struct made **at = &all_made;
  while (*at != m)
    at = &(*at)->next;
  *at = m->next;
  /* The driver keeps the memory for that process. */
  if (m->types & CU_MEM_HANDLE_TYPE_FABRIC && !m->imported &&
      fake_file_is_open_elsewhere(m->fd))
    COUNT("freed while imported", 1);
  close(m->fd);
  free(m);
}

static CUresult types_refused(int types) {
  if (types &
      ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC))
    return NOT_PERMITTED;
  if (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
      !fake_has(
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
    return NOT_SUPPORTED;
  if (!(types & CU_MEM_HANDLE_TYPE_FABRIC))
    return CUDA_SUCCESS;
  if (!fake_has_fabric())
    return NOT_SUPPORTED;
  return fake_set.channel == 0 ? NOT_PERMITTED : CUDA_SUCCESS;
}

static CUresult made_refused(const CUmemAllocationProp *p, size_t size,
                             unsigned long long flags) {
  if (!whole(size) || flags || p->type != 1 || p->location.type != 1 ||
      p->location.id < 0 || p->location.id >= fake_set.shown)
    return INVALID_VALUE;
  CUresult refused = types_refused(p->requestedHandleTypes);
  if (refused != CUDA_SUCCESS)
    return refused;
  return size > TOTAL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  BEGIN("cuMemCreate");
  CUresult refused = made_refused(prop, size, flags);
  struct card card;
  if (refused != CUDA_SUCCESS)
    return refused;
  int device = prop->location.id, types = prop->requestedHandleTypes;
  int fd = fake_file_new(size, device, false, types, &card);
  pthread_mutex_lock(&fake_lock);
  *handle = fake_made_new(fd, size, device, types);
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  COUNT("cuMemRelease", 1);
  pthread_mutex_lock(&fake_lock);
  struct made *m = fake_made(handle, "cuMemRelease");
  m->handles--;
  made_drop(m);
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                     void *address) {
  BEGIN("cuMemRetainAllocationHandle");
  pthread_mutex_lock(&fake_lock);
  const struct range *r = fake_range_of(address_of(address));
  bool is = r && r->kind == MAPPED;
  if (is) {
    r->made->handles++;
    *handle = (uintptr_t)r->made;
  }
  pthread_mutex_unlock(&fake_lock);
  return is ? CUDA_SUCCESS : INVALID_VALUE;
}

/* ---- Addresses ------------------------------------------------------------
 * */

static struct reservation {
  uint8_t *base, *alias;
  uint64_t size;
} reservations[RANGES];

/* Returns that of [pointer, pointer + size), or NULL. */
static struct reservation *reservation_of(CUdeviceptr pointer, uint64_t size) {
  for (int i = 0; i < RANGES; i++) {
    struct reservation *v = &reservations[i];
    uint64_t at = pointer - address_of(v->base);
    if (v->base && at < v->size && size <= v->size - at)
      return v;
  }
  return NULL;
}

/* Addresses that are a multiple of UNIT, of nothing. */
static uint8_t *addresses_new(uint64_t size) {
  uint8_t *p = mmap(NULL, size + UNIT, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return NULL;
  uint64_t before = -(uintptr_t)p % UNIT;
  if (before > 0)
    munmap(p, before);
  munmap(p + before + size, UNIT - before);
  return p + before;
}

static void addresses_clear(uint8_t *at, uint64_t size) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(at, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
    fake_fatal("no memory: %s", strerror(errno));
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size,
                             size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
  BEGIN("cuMemAddressReserve");
  if (!whole(size) || alignment || address || flags)
    return INVALID_VALUE;
  uint8_t *base = addresses_new(size), *alias = addresses_new(size);
  if (!base || !alias)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&fake_lock);
  int i = 0;
  while (i < RANGES && reservations[i].base)
    i++;
  if (i == RANGES)
    fake_fatal("too many reservations");
  reservations[i] = (struct reservation){base, alias, size};
  pthread_mutex_unlock(&fake_lock);
  *pointer = address_of(base);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  COUNT("cuMemAddressFree", 1);
  pthread_mutex_lock(&fake_lock);
  struct reservation *v = reservation_of(pointer, size);
  if (!v || address_of(v->base) != pointer || v->size != size)
    fake_fatal("cuMemAddressFree of what cuMemAddressReserve did not give");
  if (fake_range_find(range_touches, &(struct span){pointer, size}))
    fake_fatal("cuMemAddressFree of addresses that are mapped");
  munmap(v->base, size);
  munmap(v->alias, size);
  *v = (struct reservation){0};
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

static void made_map(struct made *m, const struct reservation *v,
                     CUdeviceptr pointer) {
  uint8_t *base = pointer_of(pointer), *alias = v->alias + (base - v->base);
  file_map(m->fd, base, m->size, PROT_NONE);
  file_map(m->fd, alias, m->size, PROT_READ | PROT_WRITE);
  struct range *r = range_new(base, alias, m->size, MAPPED, m->device);
  memset(r->access, 0, sizeof r->access);
  r->made = m;
  m->mappings++;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  BEGIN("cuMemMap");
  pthread_mutex_lock(&fake_lock);
  struct made *m = fake_made(handle, "cuMemMap");
  const struct reservation *v = reservation_of(pointer, size);
  bool fits = v && size == m->size && !offset && !flags &&
              pointer % UNIT == 0 &&
              !fake_range_find(range_touches, &(struct span){pointer, size});
  if (fits)
    made_map(m, v, pointer);
  pthread_mutex_unlock(&fake_lock);
  return fits ? CUDA_SUCCESS : INVALID_VALUE;
}

/* Returns the range at `pointer` if it is mapped and ends in the given size. */
static struct range *mapped_at(CUdeviceptr pointer, uint64_t size,
                               const char *what) {
  struct range *r = fake_range_of(pointer);
  if (!r || r->kind != MAPPED || address_of(r->base) != pointer ||
      r->size > size)
    fake_fatal("%s of what is not mapped, or not as a whole", what);
  return r;
}

static void range_unmap(struct range *r) {
  struct range was = *r;
  range_end(r, "cuMemUnmap");
  addresses_clear(was.base, was.size);
  addresses_clear(was.alias, was.size);
  was.made->mappings--;
  made_drop(was.made);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
  COUNT("cuMemUnmap", 1);
  pthread_mutex_lock(&fake_lock);
  for (uint64_t done = 0; done < size;) {
    struct range *r = mapped_at(pointer + done, size - done, "cuMemUnmap");
    done += r->size;
    range_unmap(r);
  }
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

/* ---- Access ---------------------------------------------------------------
 * */

static CUresult access_refused(const struct range *r,
                               const CUmemAccessDesc *to) {
  if (to->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return INVALID_VALUE;
  if (to->location.id < 0 || to->location.id >= fake_set.shown)
    return INVALID_DEVICE;
  if (to->flags != 0 && to->flags != READS && to->flags != (READS | WRITES))
    return INVALID_VALUE;
  return to->location.id == r->device || fake_set.peers
             ? CUDA_SUCCESS
             : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

static CUresult access_set(struct range *r, const CUmemAccessDesc *list,
                           size_t count) {
  for (size_t i = 0; i < count; i++) {
    CUresult refused = access_refused(r, &list[i]);
    if (refused != CUDA_SUCCESS)
      return refused;
  }
  for (size_t i = 0; i < count; i++)
    r->access[list[i].location.id] = (uint8_t)list[i].flags;
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size,
                        const CUmemAccessDesc *list, size_t count) {
  BEGIN("cuMemSetAccess");
  CUresult result = CUDA_SUCCESS;
  if (count == 0)
    return INVALID_VALUE;
  pthread_mutex_lock(&fake_lock);
  for (uint64_t done = 0; done < size && result == CUDA_SUCCESS;) {
    struct range *r = mapped_at(pointer + done, size - done, "cuMemSetAccess");
    result = access_set(r, list, count);
    done += r->size;
  }
  pthread_mutex_unlock(&fake_lock);
  return result;
}

/* ---- Attributes -----------------------------------------------------------
 * */

/* Writes as many bytes as the driver does. An address of nothing has 0. */
static void attribute_write(CUpointer_attribute a, const struct range *r,
                            void *to) {
  if (a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    *(uint32_t *)to = !r ? 0 : r->device < 0 ? 1 : 2;
  else if (a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
    *(int *)to = r ? r->device : -2;
  else if (a == CU_POINTER_ATTRIBUTE_IS_MANAGED)
    *(uint8_t *)to = r && r->kind == MANAGED;
  else if (a == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
    *(uint8_t *)to = r && r->kind == ALLOCATED;
  else if (a == CU_POINTER_ATTRIBUTE_BUFFER_ID)
    *(uint64_t *)to = r ? r->number : 0;
  else if (a == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
    *(uint64_t *)to = r && r->made ? (uint64_t)r->made->types : 0;
  else
    fake_fatal("an attribute %d that it does not know", a);
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data,
                                CUdeviceptr pointer) {
  BEGIN("cuPointerGetAttributes");
  pthread_mutex_lock(&fake_lock);
  const struct range *r = fake_range_of(pointer);
  for (unsigned i = 0; i < count; i++)
    attribute_write(attributes[i], r, data[i]);
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}
