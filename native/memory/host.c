/* SPDX-License-Identifier: Apache-2.0
 *
 * host.c - host memory: anonymous pages, or pages of a memfd if they may be
 * shared. The handle is the memfd's descriptor plus one, or NULL.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "host/adopted.h"
#include "host/sized.h"
#include "backing.h"
#include "memory.h"

enum { SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

static int host_fd(const void *handle) {
  return (int)(intptr_t)handle - 1;
}

static void *host_handle(int fd) {
  return (void *)(intptr_t)(fd + 1); // NOLINT(performance-no-int-to-ptr)
}

/* Maps at a multiple of a huge page what is as long as one: elsewhere the
 * processor has small ones. A free address that somebody else takes meanwhile
 * costs no more than that. */
static void *host_mmap(uint64_t length, int rights, int flags, int fd) {
  void *at = NULL;
  uint64_t room = length + HUGE_PAGE;
  if (length >= HUGE_PAGE)
    at = mmap(NULL, room, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    at = NULL;
  if (at) {
    munmap(at, room);
    at = (uint8_t *)at + (-(uintptr_t)at & (HUGE_PAGE - 1));
  }
  return mmap(at, length, rights, flags, fd, 0);
}

static int host_map(int fd, uint64_t length, uint8_t **pointer) {
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void *p = host_mmap(length, PROT_READ | PROT_WRITE, flags, fd);
  if (p == MAP_FAILED)
    return PERIGEE_NO_MEMORY;
  *pointer = p;
  return PERIGEE_OK;
}

/* The size is sealed, so no peer can shrink it. A child process does not
 * inherit the mapping. */
static int host_allocate_shared(uint64_t length, uint8_t **pointer,
                                void **handle) {
  int fd = memfd_create("perigee-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return system_status(errno);
  if (!sized(fd, length) || fcntl(fd, F_ADD_SEALS, SIZE_SEALS) != 0 ||
      host_map(fd, length, pointer) < 0)
    goto fail;
  madvise(*pointer, length, MADV_DONTFORK);
  *handle = host_handle(fd);
  return PERIGEE_OK;
fail:
  close(fd);
  return PERIGEE_NO_MEMORY;
}

static int host_allocate(const struct memory_context *context, uint64_t length,
                         bool shared, uint8_t **pointer, void **handle) {
  (void)context;
  *handle = NULL;
  return shared ? host_allocate_shared(length, pointer, handle)
                : host_map(-1, length, pointer);
}

/* A private mapping has the file's pages for as long as they are only read, and
 * is possible whatever the file is sealed against. */
int memory_host_of_file(int fd, uint64_t length, uint8_t **pointer,
                        void **handle) {
  uint64_t is;
  if (!adopted_memory(fd, SIZE_SEALS, &is) || is < length)
    return PERIGEE_INVALID;
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0)
    return system_status(errno);
  void *p = host_mmap(length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_NORESERVE, own);
  if (p == MAP_FAILED) {
    close(own);
    return PERIGEE_NO_MEMORY;
  }
  madvise(p, length, MADV_DONTFORK);
  *pointer = p;
  *handle = host_handle(own);
  return PERIGEE_OK;
}

static void host_release(const struct memory_context *context, uint8_t *pointer,
                         uint64_t length, void *handle) {
  (void)context;
  if (handle) /* the mapping keeps the memory */
    close(host_fd(handle));
  adopted_unmap(pointer, length, length);
}

/* ---- Sharing --------------------------------------------------------------- */

/* A peer that may only read cannot get write access by opening the memfd again
 * through /proc, because a seal holds for all descriptors. An adopted file may be
 * sealed against that seal. */
static int host_share(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void *handle, int access,
                      struct memory_key *key) {
  (void)context, (void)pointer, (void)length;
  int seals = F_SEAL_SEAL;
  if (!(access & PERIGEE_WRITE))
    seals |= F_SEAL_FUTURE_WRITE;
  int fd = host_fd(handle), have = fcntl(fd, F_GET_SEALS);
  if (have < 0 || (!(have & F_SEAL_SEAL) && fcntl(fd, F_ADD_SEALS, seals) != 0))
    return PERIGEE_SYSTEM;
  if (have & F_SEAL_SEAL && !(access & PERIGEE_WRITE) &&
      !(have & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
    return PERIGEE_INVALID;
  *key = (struct memory_key){.fd_count = 1, .fds = {fd}};
  return PERIGEE_OK;
}

/* Returns whether it is a memfd of sealed size that has so many bytes. */
static bool host_key_is_sound(const struct memory_key *key, uint64_t length) {
  uint64_t is;
  return key->length == 0 && key->fd_count == 1 && length > 0 &&
         adopted_memory(key->fds[0], SIZE_SEALS, &is) && is >= length;
}

static int host_adopt(const struct memory_context *context,
                      const struct memory_key *key, uint64_t length, int access,
                      uint8_t **pointer, void **handle) {
  (void)context;
  int rights = access & PERIGEE_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
  if (!host_key_is_sound(key, length))
    return PERIGEE_PROTOCOL;
  void *p = host_mmap(length, rights, MAP_SHARED | MAP_NORESERVE, key->fds[0]);
  if (p == MAP_FAILED) /* sealed against these rights, or there is no room */
    return errno == EPERM || errno == EACCES ? PERIGEE_PROTOCOL
                                             : PERIGEE_NO_MEMORY;
  madvise(p, length, MADV_DONTFORK);
  *pointer = p;
  *handle = NULL;
  return PERIGEE_OK;
}

static void host_leave(const struct memory_context *context, uint8_t *pointer,
                       uint64_t length, void *handle) {
  (void)context, (void)handle;
  adopted_unmap(pointer, length, length);
}

static const struct memory_sharing host_sharing = {
    .binds = true,
    .share = host_share,
    .adopt = host_adopt,
    .leave = host_leave,
};

const struct perigee_memory memory_host_kind = {
    .name = "host",
    .direct = true,
    .allocate = host_allocate,
    .release = host_release,
    .sharing = &host_sharing,
};

const struct memory_context memory_host = {.kind = &memory_host_kind,
                                           .direct = true};
