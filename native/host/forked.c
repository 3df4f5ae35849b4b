/* SPDX-License-Identifier: Apache-2.0
 *
 * forked.c - what a child of a fork closes (forked.h). The list is whole in the
 * child, as no thread changes it while the process forks.
 *
 * Order. Engines call this with their locks held, and a fork waits for the locks
 * of engines with a thread, too (engine/progress.c). So it has to take those
 * first and this one after them. It calls what was registered last first, so
 * this file's functions are registered before those of engines: progress.c calls
 * forked_watch first. Registering itself may wait until a fork has ended, which
 * must not be while an engine's lock is held; by then it was done. Nothing is
 * waited for with this lock held.
 */
#include "forked.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t forked_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct node forked_all = {&forked_all, &forked_all};

static void forked_lock(void) {
  pthread_mutex_lock(&forked_mutex);
}

static void forked_unlock(void) {
  pthread_mutex_unlock(&forked_mutex);
}

static void forked_shut(int *fd) {
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
}

static void forked_in_child(void) {
  struct node *n;
  while ((n = list_pop(&forked_all))) {
    const struct forked *f = CONTAINER(n, struct forked, node);
    for (uint32_t i = 0; i < f->count; i++)
      forked_shut(&f->fds[i]);
  }
  forked_unlock();
}

static void forked_register(void) {
  pthread_atfork(forked_lock, forked_unlock, forked_in_child);
}

void forked_watch(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, forked_register);
}

void forked_closes(struct forked *forked, int *fds, uint32_t count) {
  forked_watch();
  forked_lock();
  forked->fds = fds;
  forked->count = count;
  if (!forked->node.next)
    list_append(&forked_all, &forked->node);
  forked_unlock();
}

void forked_close(int *fd) {
  forked_lock();
  forked_shut(fd);
  forked_unlock();
}

void forked_forget(struct forked *forked) {
  forked_lock();
  list_remove(&forked->node);
  forked_unlock();
}
