/* SPDX-License-Identifier: Apache-2.0
 *
 * bell.c - tells an engine that sleeps when copies have ended, by a descriptor.
 * Only engines that go to sleep with copies under way pay for it.
 *
 * Each stream with copies has a second one beside it, its ringer, which waits for
 * an event behind the copies and then calls a function here, in a thread of the
 * driver. Copies that are asked for later wait for none of that.
 *
 *   ringer   event                                       becomes
 *   quiet    the engine goes to sleep, copies are        asked
 *            under way
 *   asked    it goes to sleep again, before these        asked: the driver is
 *            copies have ended                           asked for failures
 *   asked    these copies have ended                     quiet: it rings
 *   quiet    the driver refuses, and no device broke     quiet for ever
 *
 * The bell is held by the context, and by each call of the function that is to
 * come: the last one closes the descriptor. A call that never comes, as of a
 * device that broke, holds it for ever, rather than write to a descriptor that has
 * become another one.
 */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/status.h"
#include "cuda.h"

struct bell {
  _Atomic uint32_t holders;
  int fd;
};

/* Whoever comes last sees all that the others did (release, acquire). */
static void bell_drop(struct bell *bell) {
  if (atomic_fetch_sub_explicit(&bell->holders, 1, memory_order_acq_rel) > 1)
    return;
  close(bell->fd);
  free(bell);
}

/* In a thread of the driver, which must not be called from here. */
static void bell_ring(void *with) {
  struct bell *bell = with;
  eventfd_write(bell->fd, 1);
  bell_drop(bell);
}

static bool bell_open(struct cuda *c) {
  struct bell *bell = c->bell ? NULL : malloc(sizeof *bell);
  if (!bell)
    return c->bell;
  atomic_init(&bell->holders, 1);
  bell->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (bell->fd < 0) {
    free(bell);
    return false;
  }
  c->bell = bell;
  return true;
}

static CUresult ringer_open(struct cuda *c, struct stream *s) {
  CUresult result = CUDA_SUCCESS;
  if (!s->passed)
    result = c->driver->cuEventCreate(&s->passed, CU_EVENT_DISABLE_TIMING);
  if (result == CUDA_SUCCESS && !s->ringer)
    result = c->driver->cuStreamCreate(&s->ringer, CU_STREAM_NON_BLOCKING);
  return result;
}

/* Relaxed: this holder keeps the bell meanwhile, and the driver's queue orders
 * the rest. */
static CUresult ringer_ask(struct cuda *c, struct stream *s) {
  const struct cuda_driver *d = c->driver;
  CUresult result = ringer_open(c, s);
  if (result == CUDA_SUCCESS)
    result = d->cuEventRecord(s->passed, s->handle);
  if (result == CUDA_SUCCESS)
    result = d->cuStreamWaitEvent(s->ringer, s->passed, 0);
  if (result != CUDA_SUCCESS)
    return result;
  atomic_fetch_add_explicit(&c->bell->holders, 1, memory_order_relaxed);
  result = d->cuLaunchHostFunc(s->ringer, bell_ring, c->bell);
  if (result != CUDA_SUCCESS)
    bell_drop(c->bell);
  else
    s->rings = s->asked;
  return result;
}

static bool stream_tell(struct cuda *c, struct stream *s) {
  if (s->rings > atomic_load_explicit(s->done, memory_order_acquire)) {
    stream_check(c, s);
    return !s->failed;
  }
  CUresult result = cuda_enter(c);
  if (result == CUDA_SUCCESS) {
    result = ringer_ask(c, s);
    cuda_leave(c);
  }
  if (result == CUDA_SUCCESS)
    return true;
  stream_check(c, s);
  c->mute = !s->failed && result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return false;
}

/* Finds the ways of copies under way. False: some copy has ended already. */
static bool ways_open(const struct cuda *c, bool open[WAYS]) {
  for (int i = 0; i < COPIES; i++) {
    const struct copying *k = &c->copies[i];
    if (k->open && (c->streams[k->way].failed || copy_is_over(c, k)))
      return false;
    if (k->open)
      open[k->way] = true;
  }
  return true;
}

int cuda_tell(const struct memory_context *context, int *fd) {
  struct cuda *c = context->own;
  bool open[WAYS] = {false};
  if (!ways_open(c, open))
    return PERIGEE_AGAIN;
  if (!open[WAY_TO] && !open[WAY_FROM] && !open[WAY_INSIDE])
    return 0;
  if (c->mute || !bell_open(c))
    return PERIGEE_UNSUPPORTED;
  for (int i = 0; i < WAYS; i++)
    if (open[i] && !stream_tell(c, &c->streams[i]))
      return PERIGEE_AGAIN;
  *fd = c->bell->fd;
  return 1;
}

/* All copies have ended, so no ringer waits long, but one of a device that broke,
 * of which the driver does not say when it calls. */
void bell_close(struct cuda *c) {
  for (int i = 0; i < WAYS; i++) {
    struct stream *s = &c->streams[i];
    if (s->ringer) {
      c->driver->cuStreamSynchronize(s->ringer);
      c->driver->cuStreamDestroy(s->ringer);
    }
    if (s->passed)
      c->driver->cuEventDestroy(s->passed);
  }
}

void bell_free(struct cuda *c) {
  if (c->bell)
    bell_drop(c->bell);
  c->bell = NULL;
}
