/* SPDX-License-Identifier: Apache-2.0
 *
 * cut.c - guards of mapped files (cut.h).
 *
 * The handler may run in any thread at any time, so it takes no lock. A guard is
 * visible once its length is stored (release), after its start; the handler reads
 * them in the other order (acquire). A guard is forgotten before its memory is
 * unmapped, by who owns that memory, and so not while the handler needs it.
 */
#include "cut.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARDS = 1024 };

static struct guard {
  _Atomic uintptr_t start; /* 0: free */
  _Atomic uint64_t length; /* 0: not ready */
} guards[GUARDS];
static struct sigaction guard_before;
static uintptr_t guard_page; /* bytes of a page, a power of two */
static pthread_mutex_t guard_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool guard_covers(uintptr_t at) {
  for (int i = 0; i < GUARDS; i++) {
    uint64_t length =
        atomic_load_explicit(&guards[i].length, memory_order_acquire);
    uintptr_t start =
        atomic_load_explicit(&guards[i].start, memory_order_relaxed);
    if (at - start < length)
      return true;
  }
  return false;
}

/* The signal is blocked until the handler has returned. */
static void guard_end(int number) {
  signal(number, SIG_DFL);
  raise(number);
}

static void guard_pass_on(int number, siginfo_t *info, void *context) {
  if (guard_before.sa_flags & SA_SIGINFO)
    guard_before.sa_sigaction(number, info, context);
  else if (guard_before.sa_handler == SIG_DFL)
    guard_end(number);
  else if (guard_before.sa_handler != SIG_IGN)
    guard_before.sa_handler(number);
  else if (info->si_code > 0) /* the kernel's cannot be ignored */
    guard_end(number);
}

static void guard_signal(int number, siginfo_t *info, void *context) {
  uintptr_t at = (uintptr_t)info->si_addr;
  void *page = (void *)(at & ~(guard_page - 1));
  bool kernel = info->si_code > 0; /* and nobody's kill(2) */
  if (kernel && guard_covers(at) &&
      mmap(page, guard_page, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page)
    return;
  guard_pass_on(number, info, context);
}

static void guard_lock(void) {
  pthread_mutex_lock(&guard_mutex);
}

static void guard_unlock(void) {
  pthread_mutex_unlock(&guard_mutex);
}

/* A child writes into none of its parent's files. */
static void guard_forked(void) {
  for (int i = 0; i < GUARDS; i++)
    if (guards[i].length > 0)
      (void)mmap(
          (void *)guards[i].start, guards[i].length, PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  guard_unlock();
}

static void guard_watch_forks(void) {
  pthread_atfork(guard_lock, guard_unlock, guard_forked);
}

void cut_watch_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, guard_watch_forks);
}

/* Takes the place of whatever handler there is now. */
static void guard_install(void) {
  struct sigaction now, ours = {.sa_sigaction = guard_signal,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&ours.sa_mask);
  cut_watch_forks();
  guard_lock();
  guard_page = (uintptr_t)sysconf(_SC_PAGESIZE);
  if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction != guard_signal) {
    guard_before = now;
    (void)sigaction(SIGBUS, &ours, NULL);
  }
  guard_unlock();
}

bool cut_guard(void *memory, uint64_t length) {
  guard_install();
  for (int i = 0; i < GUARDS; i++) {
    uintptr_t none = 0;
    if (!atomic_compare_exchange_strong(&guards[i].start, &none,
                                        (uintptr_t)memory))
      continue;
    atomic_store_explicit(&guards[i].length, length, memory_order_release);
    return true;
  }
  return false;
}

void cut_forget(const void *memory) {
  for (int i = 0; i < GUARDS && memory; i++) {
    if (atomic_load(&guards[i].start) != (uintptr_t)memory)
      continue;
    atomic_store(&guards[i].length, 0);
    atomic_store(&guards[i].start, 0);
  }
}
