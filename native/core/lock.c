/* SPDX-License-Identifier: Apache-2.0 */
#include "lock.h"

void lock_wait(struct lock *lock) {
  if (pthread_mutex_trylock(&lock->mutex) == 0)
    return;
  atomic_store(&lock->wanted, true);
  pthread_mutex_lock(&lock->mutex);
  atomic_store(&lock->wanted, false);
}

bool lock_take(struct perigee_engine *engine, enum entry entry) {
  struct lock *lock = engine->lock;
  if (!engine_alive(engine)) {
    engine->shared = false;
    return false;
  }
  lock_wait(lock);
  if (!engine->aside) /* the program reads this field without the lock */
    engine->shared = false;
  lock->polling = entry == ENTRY_POLL;
  lock->entered(lock, entry);
  return true;
}

void lock_give(struct perigee_engine *engine) {
  if (!engine->aside)
    engine->shared = true;
  pthread_mutex_unlock(&engine->lock->mutex);
}

int lock_open(struct lock *lock) {
  pthread_mutexattr_t recursive;
  if (pthread_mutexattr_init(&recursive) != 0)
    return PERIGEE_NO_MEMORY;
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  int error = pthread_mutex_init(&lock->mutex, &recursive);
  pthread_mutexattr_destroy(&recursive);
  return error == 0 ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}
