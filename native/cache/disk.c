/* SPDX-License-Identifier: Apache-2.0
 *
 * disk.c - opening the file of a disk. Nothing of a file is changed before it
 * is known to be ours: a regular file of this user's that nobody else may
 * write, is locked by nobody, and begins with the magic number or has nothing
 * but zeros in it. The lock goes with the descriptor, however the process ends.
 * The magic number is written before space is taken: if the process ends
 * meanwhile, the file is known to be ours.
 *
 * A file system without fallocate gives a sparse file; then writes may find it
 * full.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cache/disk.h"
#include "perigee.h"

enum {
  DEPTH = 64,
  MOST_DEPTH = 1024,
  THREADS = 4,
  MOST_THREADS = 64,
  LOCK_TRIES = 50, /* together a second */
  LOCK_PAUSE = 20000,
  LOOK = 1 << 14 /* bytes that are looked at at a time */
};

static int disk_status(int error) {
  switch (error) {
  case ENOSPC:
  case EDQUOT:
  case EFBIG:
    return PERIGEE_CACHE_NO_SPACE;
  case EROFS:
  case EACCES:
  case EPERM:
    return PERIGEE_CACHE_READ_ONLY;
  case ENOMEM:
  case EMFILE:
  case ENFILE:
    return PERIGEE_NO_MEMORY;
  case EWOULDBLOCK:
    return PERIGEE_CACHE_IN_USE;
  default:
    return PERIGEE_SYSTEM;
  }
}

/* ---- Reasons ----------------------------------------------------------- */

struct opening {
  const struct perigee_cache_file_options *o;
  char *reason;
  uint64_t room;
  uint64_t magic;
  bool made, owned; /* by this call; it is locked, and at its path */
};

static int __attribute__((format(printf, 3, 4)))
refuse(const struct opening *w, int status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  if (w->room > 0)
    vsnprintf(w->reason, w->room, format, list);
  va_end(list);
  return status;
}

static int refuse_errno(const struct opening *w, const char *what) {
  int error = errno;
  return refuse(w, disk_status(error), "%s: %s: %s", w->o->path, what,
                strerror(error));
}

/* ---- Whose it is ------------------------------------------------------- */

/* O_NONBLOCK: the open of a FIFO does not wait for a writer. */
static int file_open(struct opening *w, struct perigee_cache_disk *d) {
  d->file = open(w->o->path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (d->file >= 0)
    return fcntl(d->file, F_SETFL, 0) < 0 ? PERIGEE_SYSTEM : PERIGEE_OK;
  if (errno == ENOENT) {
    d->file = open(w->o->path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
    w->made = d->file >= 0;
  }
  return d->file < 0 ? refuse_errno(w, "cannot be opened") : PERIGEE_OK;
}

static int file_judge(const struct opening *w, const struct stat *s) {
  if (!S_ISREG(s->st_mode))
    return refuse(w, PERIGEE_CACHE_FOREIGN, "%s is no regular file",
                  w->o->path);
  if (s->st_uid != geteuid())
    return refuse(w, PERIGEE_CACHE_FOREIGN, "%s is another user's", w->o->path);
  if (s->st_mode & (S_IWGRP | S_IWOTH))
    return refuse(w, PERIGEE_CACHE_FOREIGN, "other users may write to %s",
                  w->o->path);
  return PERIGEE_OK;
}

/* Is the file still what its path names? Who had it may have removed it. */
static bool file_is_current(const struct opening *w,
                            const struct perigee_cache_disk *d) {
  struct stat ours, there;
  return fstat(d->file, &ours) == 0 && stat(w->o->path, &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* The kernel closes the file of a process that was killed when the last of its
 * reads and writes has ended, which may be a while after the process is gone.
 * Only then is the lock free. */
static int file_lock(const struct opening *w,
                     const struct perigee_cache_disk *d) {
  for (int i = 0; i < LOCK_TRIES; i++) {
    if (flock(d->file, LOCK_EX | LOCK_NB) == 0)
      return PERIGEE_OK;
    if (errno != EWOULDBLOCK)
      break;
    usleep(LOCK_PAUSE);
  }
  if (errno == EWOULDBLOCK)
    return refuse(w, PERIGEE_CACHE_IN_USE, "another cache uses %s", w->o->path);
  return refuse_errno(w, "cannot be locked");
}

/* Where the next data are: a file system that cannot tell says that all is. */
static off_t data_from(int file, off_t at) {
  off_t next = lseek(file, at, SEEK_DATA);
  return next < 0 && errno == EINVAL ? at : next;
}

/* Is there nothing but zeros in a file? Negative: it cannot be read. */
static int is_zeros(int file) {
  uint8_t bytes[LOOK];
  off_t at = 0;
  while ((at = data_from(file, at)) >= 0) {
    ssize_t n = pread(file, bytes, sizeof bytes, at);
    if (n <= 0)
      return n < 0 ? -1 : 1;
    if (bytes[0] || memcmp(bytes, bytes + 1, (size_t)n - 1) != 0)
      return 0;
    at += n;
  }
  return errno == ENXIO ? 1 : -1;
}

static int file_head(const struct opening *w, struct perigee_cache_disk *d) {
  uint64_t magic = 0;
  int fits = -1;
  if (pread(d->file, &magic, sizeof magic, 0) >= 0)
    fits = magic == w->magic ? 1 : is_zeros(d->file);
  if (fits < 0)
    return refuse_errno(w, "cannot be read");
  if (!fits)
    return refuse(w, PERIGEE_CACHE_FOREIGN,
                  "%s has something else in it: remove it, or name another",
                  w->o->path);
  d->had_head = magic != 0;
  return PERIGEE_OK;
}

/* ---- Its space --------------------------------------------------------- */

/* fallocate would fill a file system up before it fails. */
static int space_check(const struct opening *w,
                       const struct perigee_cache_disk *d,
                       const struct stat *s) {
  struct statvfs v;
  uint64_t has = (uint64_t)s->st_blocks * 512;
  if (fstatvfs(d->file, &v) < 0)
    return refuse_errno(w, "its file system cannot be asked");
  if (has + (uint64_t)v.f_bavail * v.f_frsize < w->o->size)
    return refuse(w, PERIGEE_CACHE_NO_SPACE,
                  "%s: %llu MiB are free, %llu are wanted", w->o->path,
                  (unsigned long long)(v.f_bavail * v.f_frsize >> 20),
                  (unsigned long long)((w->o->size - has) >> 20));
  return PERIGEE_OK;
}

/* What a ring has left to do for this thread interrupts fallocate on tmpfs. */
static bool file_allocate(int file, uint64_t size) {
  int failed;
  do
    failed = fallocate(file, 0, 0, (off_t)size);
  while (failed && errno == EINTR);
  return !failed || errno == EOPNOTSUPP;
}

static int file_fill(const struct opening *w, struct perigee_cache_disk *d,
                     const struct stat *s) {
  int status = space_check(w, d, s);
  if (status < 0)
    return status;
  if (fchmod(d->file, S_IRUSR | S_IWUSR) < 0)
    return refuse_errno(w, "cannot be this user's alone");
  if (pwrite(d->file, &w->magic, sizeof w->magic, 0) != sizeof w->magic)
    return refuse_errno(w, "cannot be written to");
  if (ftruncate(d->file, (off_t)w->o->size) < 0)
    return refuse_errno(w, "cannot be made as long");
  if (file_allocate(d->file, w->o->size))
    return PERIGEE_OK;
  status = refuse_errno(w, "has no space");
  return ftruncate(d->file, s->st_size) < 0 ? PERIGEE_SYSTEM : status;
}

/* ---- O_DIRECT ---------------------------------------------------------- */

static bool reads_at(const struct perigee_cache_disk *d, uint8_t *to) {
  return pread(d->file, to, DISK_BLOCK, 0) == DISK_BLOCK;
}

/* Finds by trying whether there is O_DIRECT, and what memory it takes. */
static int file_direct(struct perigee_cache_disk *d) {
  enum { FINE = 512 };
  uint8_t *probe = aligned_alloc(DISK_BLOCK, 2 * DISK_BLOCK);
  if (!probe)
    return PERIGEE_NO_MEMORY;
  d->align = 1;
  if (fcntl(d->file, F_SETFL, O_DIRECT) == 0) {
    if (reads_at(d, probe))
      d->align = reads_at(d, probe + FINE) ? FINE : DISK_BLOCK;
    else
      fcntl(d->file, F_SETFL, 0);
  }
  free(probe);
  return PERIGEE_OK;
}

/* ---- The whole --------------------------------------------------------- */

static int file_own(struct opening *w, struct perigee_cache_disk *d,
                    struct stat *s) {
  int status = file_open(w, d);
  if (status == 0 && fstat(d->file, s) < 0)
    status = refuse_errno(w, "cannot be asked");
  if (status == 0)
    status = file_judge(w, s);
  if (status == 0)
    status = file_lock(w, d);
  w->owned = status == 0 && file_is_current(w, d);
  return status;
}

static void file_leave(struct perigee_cache_disk *d) {
  if (d->file >= 0)
    close(d->file);
  d->file = -1;
}

static int file_take(struct opening *w, struct perigee_cache_disk *d) {
  struct stat s;
  int status = file_own(w, d, &s);
  for (int i = 0; status == 0 && !w->owned && i < LOCK_TRIES; i++) {
    file_leave(d);
    w->made = false;
    status = file_own(w, d, &s);
  }
  if (status == 0 && !w->owned)
    status = refuse(w, PERIGEE_CACHE_IN_USE, "others remove %s all the time",
                    w->o->path);
  if (status == 0)
    status = file_head(w, d);
  if (status == 0)
    status = file_fill(w, d, &s);
  if (status == 0 && !w->o->buffered)
    status = file_direct(d);
  return status;
}

static int ops_make(struct perigee_cache_disk *d) {
  d->ops = calloc(d->depth, sizeof *d->ops);
  d->bounces = aligned_alloc(DISK_BLOCK, (size_t)d->depth * DISK_BOUNCE);
  d->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!d->ops || !d->bounces || d->event < 0)
    return PERIGEE_NO_MEMORY;
  for (uint32_t i = 0; i < d->depth; i++) {
    d->ops[i].bounce = d->bounces + (size_t)i * DISK_BOUNCE;
    d->ops[i].next = i + 1 < d->depth ? i + 2 : 0;
  }
  d->free_op = 1;
  return PERIGEE_OK;
}

static void disk_free(struct perigee_cache_disk *d) {
  disk_stop(d);
  if (d->event >= 0)
    close(d->event);
  file_leave(d);
  free(d->bounces);
  free(d->ops);
  free(d);
}

static bool file_options_are_sound(const struct perigee_cache_file_options *o) {
  return o->path && o->size >= DISK_BLOCK && o->size % DISK_BLOCK == 0 &&
         o->size <= UINT64_C(1) << 50 && o->depth <= MOST_DEPTH &&
         o->threads <= MOST_THREADS;
}

int disk_open(const struct perigee_cache_file_options *o, uint64_t magic,
              struct perigee_cache_disk **disk, char *reason, uint64_t room) {
  struct opening w = {.o = o, .reason = reason, .room = room, .magic = magic};
  if (!file_options_are_sound(o))
    return refuse(&w, PERIGEE_INVALID, "options are out of their range");
  struct perigee_cache_disk *d = calloc(1, sizeof *d);
  if (!d)
    return PERIGEE_NO_MEMORY;
  d->file = d->event = -1;
  d->align = 1;
  d->size = o->size;
  d->depth = o->depth ? o->depth : DEPTH;
  int status = file_take(&w, d);
  if (status == 0)
    status = ops_make(d);
  if (status == 0)
    status = disk_begin(d, o->by_threads, o->threads ? o->threads : THREADS);
  if (status < 0) {
    if (w.made && w.owned)
      unlink(o->path);
    disk_free(d);
    return status;
  }
  *disk = d;
  return PERIGEE_OK;
}

int disk_close(struct perigee_cache_disk *d) {
  if (d->busy)
    return PERIGEE_AGAIN;
  disk_free(d);
  return PERIGEE_OK;
}
