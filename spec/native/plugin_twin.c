/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_twin.c - a third kind of memory for specs: two devices, each with a
 * thread that carries out copies while the engine goes on, a few at a time, the
 * newest first. The CPU may touch none of it. It is one file, and nothing else
 * in the tree depends on it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"

enum { DEVICES = 2, AREAS = 1024, COPIES = 4 };

/* A device's memory: PROT_NONE, and mapped a second time for its copies. */
struct stretch {
  uint8_t *seen, *alias;
  uint64_t length;
  int device;
};

enum progress { FREE, ASKED, DONE };

/* The state of a context. */
struct stream {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t asked, done;
  struct memory_copy copies[COPIES];
  enum progress progress[COPIES];
  bool over;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stretch areas[AREAS];

/* ---- Memory ---------------------------------------------------------------- */

static int map(struct stretch *a, uint64_t length, uint32_t device) {
  int fd = memfd_create("twin", MFD_CLOEXEC);
  if (fd < 0)
    return PERIGEE_SYSTEM;
  if (ftruncate(fd, (off_t)length) == 0) {
    void *seen = mmap(NULL, length, PROT_NONE, MAP_SHARED, fd, 0);
    void *alias = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (seen != MAP_FAILED && alias != MAP_FAILED)
      *a = (struct stretch){seen, alias, length, (int)device};
  }
  close(fd);
  return a->length ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static int twin_allocate(const struct memory_context *context, uint64_t length,
                         bool shared, uint8_t **pointer, void **handle) {
  int status = shared ? PERIGEE_UNSUPPORTED : PERIGEE_NO_MEMORY, i = 0;
  pthread_mutex_lock(&lock);
  while (i < AREAS && areas[i].length)
    i++;
  if (i < AREAS && !shared)
    status = map(&areas[i], length, context->device);
  if (status == PERIGEE_OK) {
    *pointer = areas[i].seen;
    *handle = &areas[i];
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static void twin_release(const struct memory_context *context, uint8_t *pointer,
                         uint64_t length, void *handle) {
  struct stretch *a = handle;
  pthread_mutex_lock(&lock);
  if (a->device != (int)context->device)
    abort(); /* the memory of another device */
  munmap(pointer, length);
  munmap(a->alias, length);
  *a = (struct stretch){0};
  pthread_mutex_unlock(&lock);
}

static struct stretch *area_at(const void *pointer) {
  const uint8_t *p = pointer;
  for (int i = 0; i < AREAS; i++)
    if (p >= areas[i].seen && p < areas[i].seen + areas[i].length)
      return &areas[i];
  return NULL;
}

static int twin_owner_of(const void *pointer) {
  pthread_mutex_lock(&lock);
  const struct stretch *a = area_at(pointer);
  int device = a ? a->device : -1;
  pthread_mutex_unlock(&lock);
  return device;
}

/* ---- Copies ---------------------------------------------------------------- */

static uint8_t *reach(const uint8_t *pointer,
                      const struct memory_context *memory) {
  if (memory->direct)
    return (uint8_t *)(uintptr_t)pointer;
  const struct stretch *a = area_at(pointer);
  if (!a || a->device != (int)memory->device)
    abort(); /* not the memory that the copy names */
  return a->alias + (pointer - a->seen);
}

static void carry_out(const struct memory_copy *c) {
  for (uint64_t i = 0; i < c->count; i++)
    memcpy(c->to + i * c->to_stride, c->from + i * c->from_stride, c->block);
}

static int last(const struct stream *s, enum progress progress) {
  int i = COPIES - 1;
  while (i >= 0 && s->progress[i] != progress)
    i--;
  return i;
}

static void *work(void *stream) {
  struct stream *s = stream;
  pthread_mutex_lock(&s->lock);
  while (!s->over) {
    int i = last(s, ASKED);
    if (i < 0) {
      pthread_cond_wait(&s->asked, &s->lock);
      continue;
    }
    pthread_mutex_unlock(&s->lock);
    carry_out(&s->copies[i]);
    pthread_mutex_lock(&s->lock);
    s->progress[i] = DONE;
    pthread_cond_broadcast(&s->done);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static int twin_copy(const struct memory_context *context,
                     const struct memory_copy *copy, uint64_t *ticket) {
  struct stream *s = context->own;
  struct memory_copy c = *copy;
  pthread_mutex_lock(&lock);
  c.to = reach(copy->to, copy->to_memory);
  c.from = reach(copy->from, copy->from_memory);
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(&s->lock);
  int i = last(s, FREE);
  if (i == 0 && !copy->waited_for) /* that one is kept for them */
    i = -1;
  if (i >= 0) {
    s->copies[i] = c;
    s->progress[i] = ASKED;
    *ticket = (uint64_t)i + 1;
    pthread_cond_signal(&s->asked);
  }
  pthread_mutex_unlock(&s->lock);
  return i < 0 ? PERIGEE_AGAIN : PERIGEE_OK;
}

static int twin_finished(const struct memory_context *context,
                         uint64_t ticket) {
  struct stream *s = context->own;
  pthread_mutex_lock(&s->lock);
  enum progress *p = &s->progress[ticket - 1];
  if (*p == FREE)
    abort(); /* the copy was over already */
  bool done = *p == DONE;
  if (done)
    *p = FREE;
  pthread_mutex_unlock(&s->lock);
  return done;
}

static void twin_drain(const struct memory_context *context) {
  struct stream *s = context->own;
  pthread_mutex_lock(&s->lock);
  while (last(s, ASKED) >= 0)
    pthread_cond_wait(&s->done, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

/* ---- Contexts -------------------------------------------------------------- */

static int twin_open(uint32_t device, void **own, char reason[MEMORY_REASON]) {
  if (device >= DEVICES) {
    snprintf(reason, MEMORY_REASON, "a twin has two devices, 0 and 1");
    return PERIGEE_NOT_FOUND;
  }
  struct stream *s = calloc(1, sizeof *s);
  if (!s)
    return PERIGEE_NO_MEMORY;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->asked, NULL);
  pthread_cond_init(&s->done, NULL);
  if (pthread_create(&s->thread, NULL, work, s) != 0) {
    free(s);
    return PERIGEE_NO_MEMORY;
  }
  *own = s;
  return PERIGEE_OK;
}

static void twin_close(void *own) {
  struct stream *s = own;
  pthread_mutex_lock(&s->lock);
  if (last(s, ASKED) >= 0)
    abort(); /* a pending copy may outlive its memory */
  s->over = true;
  pthread_cond_signal(&s->asked);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  free(s);
}

static const struct memory_copies copies = {
    .copy = twin_copy,
    .finished = twin_finished,
    .drain = twin_drain,
};

PERIGEE_API const struct perigee_memory perigee_memory_twin = {
    .name = "twin",
    .open = twin_open,
    .close = twin_close,
    .owner_of = twin_owner_of,
    .allocate = twin_allocate,
    .release = twin_release,
    .copies = &copies,
};
