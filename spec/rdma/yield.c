/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into QEMU by vm -y: a thread yields the core before it takes a
 * mutex. A CPU of the guest that executes PAUSE leaves QEMU's translated code
 * and takes one, so that guests with more CPUs that poll than this machine has
 * cores wait microseconds for each other, and not time slices.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  /* Relaxed: all threads find the same address, and it is used by itself. */
  static _Atomic uintptr_t found;
  uintptr_t real = atomic_load_explicit(&found, memory_order_relaxed);
  if (!real) {
    real = (uintptr_t)dlsym(RTLD_NEXT, "pthread_mutex_lock");
    atomic_store_explicit(&found, real, memory_order_relaxed);
  }
  sched_yield();
  return ((int (*)(pthread_mutex_t *))real)(mutex);
}
