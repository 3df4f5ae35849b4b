/* SPDX-License-Identifier: Apache-2.0
 *
 * vault_test.c - no memory for keys, at each step of a handshake, on either
 * side: both sides are told so and what to raise, and not that the secret is
 * wrong. A process that locks all its memory gets none beyond RLIMIT_MEMLOCK.
 */
#include "core/engine.h"
#include "door.h"

#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char words[] = "correct horse battery staple";
enum { AS_EXPECTED, OTHERWISE, NOT_TO_BE_HAD };

/* Both sides have memory for more seals than they need. */
static void provide(struct pair *p) {
  enum { MANY = 20 };
  for (int side = 0; side < 2; side++) {
    struct vault *v = &p->engine[side]->vault;
    void *taken[MANY];
    for (int i = 0; i < MANY; i++)
      taken[i] = vault_take(v, VAULT_LARGE);
    for (int i = 0; i < MANY; i++)
      vault_give(v, taken[i], VAULT_LARGE);
  }
}

/* The side, which gets no new memory, has so many cells left for seals. */
static void leave(struct pair *p, int side, int cells) {
  struct vault *v = &p->engine[side]->vault;
  void *last[2] = {NULL, NULL}, *cell;
  while ((cell = vault_take(v, VAULT_LARGE))) {
    last[1] = last[0];
    last[0] = cell;
  }
  for (int i = 0; i < cells; i++)
    vault_give(v, last[i], VAULT_LARGE);
}

/* malloc keeps what it has; the system gives no more. */
static bool lock_all(void) {
  const struct rlimit little = {4096, 4096};
  enum { HEAP = 16 << 20 };
  mallopt(M_MMAP_THRESHOLD, 2 * HEAP);
  mallopt(M_TRIM_THRESHOLD, 2 * HEAP);
  void *volatile heap = malloc(HEAP); /* or compilers leave out the pair */
  free(heap);
  if (setresuid(65534, 65534, 65534) != 0 || mlockall(MCL_FUTURE) != 0 ||
      setrlimit(RLIMIT_MEMLOCK, &little) != 0)
    return false;
  return mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
         MAP_FAILED;
}

static bool told_so(const struct perigee_event *e) {
  return e->status == PERIGEE_NO_MEMORY && e->pointer &&
         strstr((const char *)e->pointer, "RLIMIT_MEMLOCK");
}

/* Polls until both sides have reported. */
static int dial(struct pair *p) {
  struct perigee_event e;
  bool dialer = false, listener = false;
  perigee_connect(p->engine[0], p->address, "inproc", 20000 * MS);
  for (int64_t end = clock_now() + 20000 * MS; clock_now() < end;) {
    if (perigee_poll(p->engine[0], &e, 1) == 1)
      dialer = told_so(&e);
    if (perigee_poll(p->engine[1], &e, 1) == 1)
      listener = told_so(&e);
    if (dialer && listener)
      return AS_EXPECTED;
  }
  return OTHERWISE;
}

/* The side has memory for so many seals; it needs two. */
static void with_little_memory(int side, int cells) {
  struct pair p;
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    open_with(&p, words, words);
    provide(&p);
    if (!lock_all())
      _exit(NOT_TO_BE_HAD);
    leave(&p, side, cells);
    _exit(dial(&p));
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == NOT_TO_BE_HAD)
    skip();
  assert_int_equal(WEXITSTATUS(status), AS_EXPECTED);
}

static void who_listens_says_that_there_is_no_memory(void **state) {
  (void)state;
  with_little_memory(1, 1);
}

static void who_dials_says_that_there_is_no_memory(void **state) {
  (void)state;
  with_little_memory(0, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_listens_says_that_there_is_no_memory),
      cmocka_unit_test(who_dials_says_that_there_is_no_memory),
  };
  return cmocka_run_group_tests_name("vault", tests, NULL, NULL);
}
