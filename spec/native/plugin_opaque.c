/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_opaque.c - a kind of memory for specs that the CPU must not touch,
 * as GPU memory: its pages are PROT_NONE for all but its own copies, which
 * happen only several polls after they were asked for. Whoever touches it,
 * or gives a buffer back too early, is found out.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"

enum { AREAS = 4096, COPIES = 4096, POLLS = 3 };

struct stretch {
  uint8_t *seen, *alias; /* PROT_NONE, and where our own copies go */
  uint64_t length;
};

struct copy {
  uint8_t *to;
  const uint8_t *from;
  uint64_t length;
  int polls; /* 0: free */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stretch areas[AREAS];
static struct copy copies[COPIES];

static int area_open(struct stretch *a, uint64_t length) {
  int fd = memfd_create("opaque", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)length) != 0)
    return PERIGEE_NO_MEMORY;
  a->length = length;
  a->seen = mmap(NULL, length, PROT_NONE, MAP_SHARED, fd, 0);
  a->alias = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return PERIGEE_OK;
}

static int opaque_allocate(uint64_t length, uint8_t **pointer, void **context) {
  int status = PERIGEE_NO_MEMORY;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < AREAS && status != PERIGEE_OK; i++)
    if (!areas[i].length) {
      status = area_open(&areas[i], length);
      *pointer = areas[i].seen;
      *context = &areas[i];
      break;
    }
  pthread_mutex_unlock(&lock);
  return status;
}

static void opaque_release(uint8_t *pointer, uint64_t length, void *context) {
  struct stretch *a = context;
  pthread_mutex_lock(&lock);
  munmap(pointer, length);
  munmap(a->alias, length);
  *a = (struct stretch){0};
  pthread_mutex_unlock(&lock);
}

static uint8_t *alias(const uint8_t *inside) {
  for (int i = 0; i < AREAS; i++)
    if (inside >= areas[i].seen && inside < areas[i].seen + areas[i].length)
      return areas[i].alias + (inside - areas[i].seen);
  return NULL;
}

static int ask(uint8_t *to, const uint8_t *from, uint64_t length,
               uint64_t *ticket) {
  for (int i = 0; i < COPIES; i++)
    if (copies[i].polls == 0) {
      copies[i] = (struct copy){to, from, length, POLLS};
      *ticket = (uint64_t)i + 1;
      return PERIGEE_OK;
    }
  return PERIGEE_NO_MEMORY;
}

static int opaque_in(uint8_t *inside, const uint8_t *host, uint64_t length,
                     uint64_t *ticket) {
  pthread_mutex_lock(&lock);
  int status = ask(alias(inside), host, length, ticket);
  pthread_mutex_unlock(&lock);
  return status;
}

static int opaque_out(uint8_t *host, const uint8_t *inside, uint64_t length,
                      uint64_t *ticket) {
  pthread_mutex_lock(&lock);
  int status = ask(host, alias(inside), length, ticket);
  pthread_mutex_unlock(&lock);
  return status;
}

static int opaque_finished(uint64_t ticket) {
  struct copy *c = &copies[ticket - 1];
  pthread_mutex_lock(&lock);
  if (c->polls == 0)
    abort(); /* asked about a copy that is over */
  bool done = --c->polls == 0;
  if (done)
    memcpy(c->to, c->from, c->length);
  pthread_mutex_unlock(&lock);
  return done;
}

PERIGEE_API const struct perigee_memory perigee_memory_opaque = {
    .name = "opaque",
    .allocate = opaque_allocate,
    .release = opaque_release,
    .copy_in = opaque_in,
    .copy_out = opaque_out,
    .finished = opaque_finished,
};
