/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_opaque.c - a kind of memory for specs that the CPU must not touch,
 * like GPU memory. Its pages are PROT_NONE except for its own copies, which
 * happen several polls after they were asked for. Code that touches it, or
 * returns a buffer too early, fails the test.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/memory.h"

enum { AREAS = 4096, COPIES = 64, POLLS = 3 };

struct stretch {
  uint8_t *seen, *alias; /* PROT_NONE; mapped for our own copies */
  uint64_t length;
  int fd;
};

struct waiting {
  struct memory_copy copy;
  int polls; /* polls left; 0: done */
  bool open;
};

/* The state of a context. */
struct queue {
  struct waiting copies[COPIES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stretch areas[AREAS];

/* The number of copies ever started. */
PERIGEE_API _Atomic uint64_t perigee_opaque_copies;

static int opaque_open(uint32_t device, void **own,
                       char reason[MEMORY_REASON]) {
  (void)reason;
  if (device > 0)
    return PERIGEE_NOT_FOUND;
  *own = calloc(1, sizeof(struct queue));
  return *own ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static void opaque_close(void *own) {
  struct queue *q = own;
  for (int i = 0; i < COPIES; i++)
    if (q->copies[i].open && q->copies[i].polls > 0)
      abort(); /* a pending copy may outlive its memory */
  free(q);
}

/* ---- Areas ----------------------------------------------------------------- */

/* Maps length bytes of a file, which the area then owns. */
static int area_open(struct stretch *a, int fd, uint64_t length) {
  void *seen = mmap(NULL, length, PROT_NONE, MAP_SHARED, fd, 0);
  void *alias = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (seen == MAP_FAILED || alias == MAP_FAILED) {
    close(fd);
    return PERIGEE_NO_MEMORY;
  }
  *a = (struct stretch){seen, alias, length, fd};
  return PERIGEE_OK;
}

static int area_new(int fd, uint64_t length, uint8_t **pointer, void **handle) {
  int status = PERIGEE_NO_MEMORY, i = 0;
  pthread_mutex_lock(&lock);
  while (i < AREAS && areas[i].length)
    i++;
  if (i < AREAS && fd >= 0)
    status = area_open(&areas[i], fd, length);
  if (status == PERIGEE_OK) {
    *pointer = areas[i].seen;
    *handle = &areas[i];
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static int opaque_allocate(const struct memory_context *context,
                           uint64_t length, bool shared, uint8_t **pointer,
                           void **handle) {
  (void)context, (void)shared;
  int fd = memfd_create("opaque", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)length) != 0) {
    close(fd);
    return PERIGEE_NO_MEMORY;
  }
  return area_new(fd, length, pointer, handle);
}

static void opaque_release(const struct memory_context *context,
                           uint8_t *pointer, uint64_t length, void *handle) {
  (void)context;
  struct stretch *a = handle;
  pthread_mutex_lock(&lock);
  munmap(pointer, length);
  munmap(a->alias, length);
  close(a->fd);
  *a = (struct stretch){0};
  pthread_mutex_unlock(&lock);
}

static struct stretch *area_at(const void *pointer) {
  const uint8_t *p = pointer;
  for (int i = 0; i < AREAS; i++)
    if (areas[i].seen && p >= areas[i].seen &&
        p < areas[i].seen + areas[i].length)
      return &areas[i];
  return NULL;
}

static int opaque_owner_of(const void *pointer) {
  pthread_mutex_lock(&lock);
  int device = area_at(pointer) ? 0 : -1;
  pthread_mutex_unlock(&lock);
  return device;
}

/* ---- Copies ---------------------------------------------------------------- */

static uint8_t *reach(const uint8_t *pointer) {
  const struct stretch *a = area_at(pointer);
  return a ? a->alias + (pointer - a->seen) : (uint8_t *)(uintptr_t)pointer;
}

static int opaque_copy(const struct memory_context *context,
                       const struct memory_copy *copy, uint64_t *ticket) {
  struct queue *q = context->own;
  int i = 0, most = copy->waited_for ? COPIES : COPIES - 1;
  while (i < most && q->copies[i].open)
    i++;
  if (i == most)
    return PERIGEE_AGAIN;
  pthread_mutex_lock(&lock);
  q->copies[i] = (struct waiting){*copy, POLLS, true};
  q->copies[i].copy.to = reach(copy->to);
  q->copies[i].copy.from = reach(copy->from);
  pthread_mutex_unlock(&lock);
  atomic_fetch_add(&perigee_opaque_copies, 1);
  *ticket = (uint64_t)i + 1;
  return PERIGEE_OK;
}

static void carry_out(struct waiting *w) {
  const struct memory_copy *c = &w->copy;
  for (uint64_t i = 0; i < c->count; i++)
    memcpy(c->to + i * c->to_stride, c->from + i * c->from_stride, c->block);
  w->polls = 0;
}

static int opaque_finished(const struct memory_context *context,
                           uint64_t ticket) {
  struct queue *q = context->own;
  struct waiting *w = &q->copies[ticket - 1];
  if (ticket == 0 || ticket > COPIES || !w->open)
    abort(); /* the copy was over already */
  if (w->polls > 0 && --w->polls == 0)
    carry_out(w);
  w->open = w->polls > 0;
  return !w->open;
}

static void opaque_drain(const struct memory_context *context) {
  struct queue *q = context->own;
  for (int i = 0; i < COPIES; i++)
    if (q->copies[i].open && q->copies[i].polls > 0)
      carry_out(&q->copies[i]);
}

/* ---- Sharing --------------------------------------------------------------- */

static int opaque_share(const struct memory_context *context, uint8_t *pointer,
                        uint64_t length, void *handle, int access,
                        struct memory_key *key) {
  (void)context, (void)pointer, (void)length, (void)access;
  const struct stretch *a = handle;
  *key = (struct memory_key){.fd_count = 1, .fds = {a->fd}};
  return PERIGEE_OK;
}

static int opaque_adopt(const struct memory_context *context,
                        const struct memory_key *key, uint64_t length,
                        int access, uint8_t **pointer, void **handle) {
  (void)context, (void)access;
  struct stat st;
  if (key->fd_count != 1 || key->length != 0 || fstat(key->fds[0], &st) != 0 ||
      (uint64_t)st.st_size < length)
    return PERIGEE_PROTOCOL;
  return area_new(dup(key->fds[0]), length, pointer, handle);
}

static const struct memory_copies copies = {
    .copy = opaque_copy,
    .finished = opaque_finished,
    .drain = opaque_drain,
};

static const struct memory_sharing sharing = {
    .share = opaque_share,
    .adopt = opaque_adopt,
    .leave = opaque_release,
};

PERIGEE_API const struct perigee_memory perigee_memory_opaque = {
    .name = "opaque",
    .open = opaque_open,
    .close = opaque_close,
    .owner_of = opaque_owner_of,
    .allocate = opaque_allocate,
    .release = opaque_release,
    .copies = &copies,
    .sharing = &sharing,
};
