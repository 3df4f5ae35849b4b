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

enum { GUARDS = 64, PAGE = 4096 };

static struct guard {
  _Atomic uintptr_t start; /* 0: free */
  _Atomic uint64_t length; /* 0: not ready */
} guards[GUARDS];
static struct sigaction guard_before;
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

/* With the default, the access that is made again ends the process. */
static void guard_pass_on(int number, siginfo_t *info, void *context) {
  if (guard_before.sa_flags & SA_SIGINFO)
    guard_before.sa_sigaction(number, info, context);
  else if (guard_before.sa_handler == SIG_DFL ||
           guard_before.sa_handler == SIG_IGN)
    signal(number, SIG_DFL);
  else
    guard_before.sa_handler(number);
}

static void guard_signal(int number, siginfo_t *info, void *context) {
  uintptr_t at = (uintptr_t)info->si_addr;
  void *page = (void *)(at & ~(uintptr_t)(PAGE - 1));
  bool kernel = info->si_code > 0; /* and nobody's kill(2) */
  if (kernel && guard_covers(at) &&
      mmap(page, PAGE, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page)
    return;
  guard_pass_on(number, info, context);
}

/* Takes the place of whatever handler there is now. */
static void guard_install(void) {
  struct sigaction now, ours = {.sa_sigaction = guard_signal,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&ours.sa_mask);
  pthread_mutex_lock(&guard_mutex);
  if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction != guard_signal) {
    guard_before = now;
    (void)sigaction(SIGBUS, &ours, NULL);
  }
  pthread_mutex_unlock(&guard_mutex);
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
