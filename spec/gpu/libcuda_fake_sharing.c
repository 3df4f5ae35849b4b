/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake_sharing.c - memory of the fake of CUDA's driver that several
 * processes use: by descriptors of cuMemExportToShareableHandle, and by handles
 * of 64 bytes, which name a file of a process (/proc/PID/fd/N): fabric handles,
 * and the older ones.
 *
 * Each memory is a memfd whose size is sealed. A page behind the memory, the
 * card, says how large it is and of which device. Whatever a program gives here
 * may come from anybody: all of it is checked, and refused with an error.
 *
 * A process that has opened a handle holds a read lock of one byte of the file,
 * whose place is the process's number, until it closes the handle or ends. The
 * owner of memory with an older handle takes a write lock of all bytes before it
 * frees the memory, so the kernel tells whether somebody has it open. That of
 * memory with a fabric handle only looks, and counts "freed while imported".
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcuda_fake.h"

#define NAME "fake cuda"

enum { CARD_PAGE = 4096, SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW };

/* ---- Files ----------------------------------------------------------------
 * */

static const char card_magic[16] = "fake CUDA's card";

int fake_file_new(uint64_t size, CUdevice device, bool legacy, int types,
                  struct card *card) {
  *card = (struct card){.size = size,
                        .legacy = legacy,
                        .types = (uint32_t)types,
                        .process = getpid(),
                        .uuid = fake_uuid(device)};
  memcpy(card->magic, card_magic, sizeof card_magic);
  int fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || getrandom(card->id, sizeof card->id, 0) != sizeof card->id ||
      ftruncate(fd, (off_t)(size + CARD_PAGE)) != 0 ||
      pwrite(fd, card, sizeof *card, (off_t)size) != sizeof *card ||
      fcntl(fd, F_ADD_SEALS, SEALS) != 0)
    fake_fatal("no memory: %s", strerror(errno));
  return fd;
}

/* Can streams use it? A descriptor may be one that only reads. */
static bool file_maps(int fd, uint64_t size) {
  void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    return false;
  munmap(p, size);
  return true;
}

/* Reads the card of a file that may be anything. The seals keep its size as it
 * is, so no access to its memory fails later. */
static bool card_read(int fd, bool legacy, struct card *card) {
  struct stat is;
  if (fstat(fd, &is) != 0 || !S_ISREG(is.st_mode) || is.st_size <= CARD_PAGE ||
      fcntl(fd, F_GET_SEALS) != SEALS)
    return false;
  uint64_t size = (uint64_t)is.st_size - CARD_PAGE;
  return pread(fd, card, sizeof *card, (off_t)size) == sizeof *card &&
         memcmp(card->magic, card_magic, sizeof card_magic) == 0 &&
         card->size == size && size % (legacy ? CARD_PAGE : UNIT) == 0 &&
         card->legacy == legacy && file_maps(fd, size);
}

/* No bytes: all of them. */
static bool file_lock(int fd, short type, off_t at, off_t bytes) {
  struct flock lock = {
      .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = bytes};
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* Has the process ended, or does it end? In the kernel's list of states the
 * sixth number behind the name has the bit PF_EXITING then. */
static bool process_ends(int process) {
  char path[64], line[1024] = "", state = 'X';
  unsigned long flags = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE *file = fopen(path, "re");
  const char *name_end =
      file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
  if (file)
    fclose(file);
  return !name_end ||
         sscanf(name_end, ") %c %*d %*d %*d %*d %*d %lu", &state, &flags) < 2 ||
         state == 'Z' || state == 'X' || flags & 4;
}

bool fake_file_is_open_elsewhere(int fd) {
  struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(fd, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
}

/* A process that ends closes its files one after the other, so somebody may know
 * of its end before this file is closed. */
void fake_file_retire(int fd) {
  for (int tries = 0; !file_lock(fd, F_WRLCK, 0, 0); tries++) {
    struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    bool held = fcntl(fd, F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
    if (held && (tries == 10000 || !process_ends((int)other.l_start)))
      fake_fatal("cuMemFree of memory that another process has open, %d",
                 (int)other.l_start);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
}

/* ---- Handles of 64 bytes --------------------------------------------------
 * */

struct ticket {
  char magic[16];
  int64_t process, fd;
  uint8_t id[16];
  int64_t channel; /* of a fabric handle */
  uint8_t zeros[8];
};
_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle) &&
                   sizeof(struct ticket) == sizeof(CUmemFabricHandle),
               "a ticket is a handle");

static const char ticket_magic[16] = "fake CUDA's memo";
static const char fabric_magic[16] = "fake CUDA's mesh";

static bool ticket_is_good(const struct ticket *t, const char magic[16]) {
  static const uint8_t zeros[sizeof t->zeros];
  return memcmp(t->magic, magic, sizeof t->magic) == 0 && t->process > 0 &&
         t->process <= INT_MAX && t->fd >= 0 && t->fd <= INT_MAX &&
         memcmp(t->zeros, zeros, sizeof zeros) == 0;
}

/* Opens the file that a ticket names. What is no memfd of the fake is not
 * opened: a device, say, could do something then. Returns -1: there is none. */
static int ticket_open(const struct ticket *t, bool legacy, struct card *card) {
  char path[64], is[64] = "";
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)t->process, (int)t->fd);
  if (readlink(path, is, sizeof is - 1) < 0 ||
      strcmp(is, "/memfd:" NAME " (deleted)") != 0)
    return -1;
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return -1;
  /* A thread's number is good for /proc, too. */
  if (card_read(fd, legacy, card) && card->process == t->process &&
      memcmp(card->id, t->id, sizeof t->id) == 0 &&
      file_lock(fd, F_RDLCK, getpid(), 1))
    return fd;
  close(fd);
  return -1;
}

/* ---- Memory of cuMemCreate ------------------------------------------------
 * */

static CUresult made_give_file(const struct made *m, void *to) {
  int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *(int *)to = fd;
  return CUDA_SUCCESS;
}

static CUresult made_give_fabric(const struct made *m, void *to) {
  struct ticket t = {
      .process = getpid(), .fd = m->fd, .channel = fake_set.channel};
  struct card card;
  if (fake_set.channel == 0)
    return NOT_PERMITTED;
  if (!card_read(m->fd, false, &card))
    fake_fatal("the card of memory of this process is not there");
  memcpy(t.magic, fabric_magic, sizeof t.magic);
  memcpy(t.id, card.id, sizeof t.id);
  memcpy(to, &t, sizeof t);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable,
                                      CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  BEGIN("cuMemExportToShareableHandle");
  CUresult result = INVALID_VALUE;
  pthread_mutex_lock(&fake_lock);
  const struct made *m = fake_made(handle, "cuMemExportToShareableHandle");
  if (m->types & type && flags == 0)
    result = type == CU_MEM_HANDLE_TYPE_FABRIC ? made_give_fabric(m, shareable)
                                               : made_give_file(m, shareable);
  pthread_mutex_unlock(&fake_lock);
  return result;
}

/* The descriptor is the memory's from now on. That of a device of another host is
 * as if it were the first one's. */
static CUresult made_take(CUmemGenericAllocationHandle *handle, int fd,
                          const struct card *card, bool fabric) {
  CUdevice device = fake_device_of(&card->uuid);
  pthread_mutex_lock(&fake_lock);
  *handle =
      fake_made_new(fd, card->size, device < 0 ? 0 : device, (int)card->types);
  fake_made(*handle, "cuMemImportFromShareableHandle")->imported = fabric;
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

static bool types_are_good(uint32_t types, uint32_t type) {
  return types & type &&
         !(types & ~(uint32_t)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                               CU_MEM_HANDLE_TYPE_FABRIC));
}

static CUresult made_take_file(CUmemGenericAllocationHandle *handle,
                               uintptr_t given) {
  struct card card;
  if (given > INT_MAX || !card_read((int)given, false, &card) ||
      !types_are_good(card.types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_INVALID_HANDLE;
  if (fake_device_of(&card.uuid) < 0)
    return NOT_SUPPORTED;
  int fd = fcntl((int)given, F_DUPFD_CLOEXEC, 0);
  return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY
                : made_take(handle, fd, &card, false);
}

static CUresult made_take_fabric(CUmemGenericAllocationHandle *handle,
                                 const struct ticket *t) {
  struct card card;
  if (!fake_has_fabric())
    return NOT_SUPPORTED;
  if (!ticket_is_good(t, fabric_magic))
    return CUDA_ERROR_INVALID_HANDLE;
  if (fake_set.channel == 0 || t->channel != fake_set.channel)
    return NOT_PERMITTED;
  int fd = ticket_open(t, false, &card);
  if (fd < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  if (types_are_good(card.types, CU_MEM_HANDLE_TYPE_FABRIC))
    return made_take(handle, fd, &card, true);
  close(fd);
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                        void *shareable,
                                        CUmemAllocationHandleType type) {
  BEGIN("cuMemImportFromShareableHandle");
  struct ticket t;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return made_take_file(handle, (uintptr_t)shareable);
  if (type != CU_MEM_HANDLE_TYPE_FABRIC || !shareable)
    return INVALID_VALUE;
  memcpy(&t, shareable, sizeof t);
  return made_take_fabric(handle, &t);
}

/* ---- Older handles --------------------------------------------------------
 * */

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
  fake_current("cuIpcGetMemHandle");
  BEGIN("cuIpcGetMemHandle");
  struct ticket t = {.process = getpid()};
  pthread_mutex_lock(&fake_lock);
  const struct range *r = fake_range_of(pointer);
  bool is = r && r->kind == ALLOCATED;
  if (is) {
    t.fd = r->fd;
    memcpy(t.id, r->id, sizeof t.id);
  }
  pthread_mutex_unlock(&fake_lock);
  memcpy(t.magic, ticket_magic, sizeof t.magic);
  if (is)
    memcpy(handle, &t, sizeof t);
  return is ? CUDA_SUCCESS : INVALID_VALUE;
}

struct opened {
  const uint8_t *id;
  CUdevice device;
};

static bool is_own(const struct range *r, const void *with) {
  const struct opened *o = with;
  return r->kind == ALLOCATED && memcmp(r->id, o->id, sizeof r->id) == 0;
}

static bool is_opened(const struct range *r, const void *with) {
  const struct opened *o = with;
  return r->kind == OPENED && r->opened_for == o->device &&
         memcmp(r->id, o->id, sizeof r->id) == 0;
}

static CUresult ticket_map(CUdeviceptr *pointer, int fd,
                           const struct card *card, CUdevice device) {
  CUdevice of = fake_device_of(&card->uuid);
  if (of < 0 || (of != device && !fake_set.peers)) {
    close(fd);
    return of < 0 ? MAP_FAILED_THERE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  struct range *r = fake_range_open(fd, card->size, OPENED, of);
  memset(r->access, 0, sizeof r->access);
  r->access[device] = READS | WRITES;
  memcpy(r->id, card->id, sizeof r->id);
  r->opened_for = device;
  r->opens = 1;
  *pointer = (uintptr_t)r->base;
  return CUDA_SUCCESS;
}

static CUresult ticket_use(CUdeviceptr *pointer, const struct ticket *t,
                           CUdevice device) {
  struct opened o = {t->id, device};
  struct card card;
  if (fake_range_find(is_own, &o))
    fake_fatal("cuIpcOpenMemHandle of memory of this process");
  struct range *r = fake_range_find(is_opened, &o);
  if (r) {
    r->opens++;
    *pointer = (uintptr_t)r->base;
    return CUDA_SUCCESS;
  }
  int fd = ticket_open(t, true, &card);
  return fd < 0 ? INVALID_VALUE : ticket_map(pointer, fd, &card, device);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle,
                            unsigned flags) {
  CUcontext c = fake_current("cuIpcOpenMemHandle");
  BEGIN("cuIpcOpenMemHandle");
  struct ticket t;
  memcpy(&t, &handle, sizeof t);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
      !ticket_is_good(&t, ticket_magic) || t.channel != 0)
    return INVALID_VALUE;
  pthread_mutex_lock(&fake_lock);
  CUresult result = ticket_use(pointer, &t, c->device);
  pthread_mutex_unlock(&fake_lock);
  return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  CUcontext c = fake_current("cuIpcCloseMemHandle");
  COUNT("cuIpcCloseMemHandle", 1);
  pthread_mutex_lock(&fake_lock);
  struct range *r = fake_range_of(pointer);
  if (!r || r->kind != OPENED || (uintptr_t)r->base != pointer ||
      r->opened_for != c->device)
    fake_fatal("cuIpcCloseMemHandle of what this context has not open");
  if (--r->opens == 0) {
    /* A forked child may have the descriptor, too. */
    file_lock(r->fd, F_UNLCK, 0, 0);
    fake_range_close(r, "cuIpcCloseMemHandle");
  }
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}
