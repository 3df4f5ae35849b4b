/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_hold_test.c - holders: real processes that keep real memory.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "perigee.h"

#define SECONDS INT64_C(1000000000)

struct scene {
  char folder[64], path[80];
};

static struct scene scene_open(void) {
  struct scene s = {.folder = "/tmp/perigee-hold-XXXXXX"};
  assert_non_null(mkdtemp(s.folder));
  snprintf(s.path, sizeof s.path, "%s/hold", s.folder);
  return s;
}

static void scene_close(struct scene *s, int holder) {
  assert_int_equal(perigee_cache_hold_end(holder), 0);
  close(holder);
  while (access(s->path, F_OK) == 0)
    usleep(1000);
  assert_int_equal(rmdir(s->folder), 0);
}

static int memory_of(const char *text) {
  int fd = memfd_create("held", MFD_CLOEXEC);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  return fd;
}

static void assert_text(int fd, const char *text) {
  char bytes[64] = "";
  assert_int_equal(pread(fd, bytes, sizeof bytes - 1, 0), strlen(text));
  assert_string_equal(bytes, text);
}

static void what_is_held_outlives_who_put_it(void **state) {
  struct scene s = scene_open();
  char name[PERIGEE_CACHE_HELD_NAME];
  int fd, status;
  (void)state;
  pid_t child = fork();
  if (child == 0) {
    int holder = perigee_cache_hold(s.path, 60 * SECONDS);
    perigee_cache_hold_put(holder, "one", memory_of("first"));
    perigee_cache_hold_put(holder, "two", memory_of("second"));
    perigee_cache_hold_put(holder, "one", memory_of("third"));
    raise(SIGKILL);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_true(holder >= 0);
  assert_int_equal(perigee_cache_hold_take(holder, 0, name, &fd), 0);
  assert_string_equal(name, "one");
  assert_text(fd, "third");
  close(fd);
  assert_int_equal(perigee_cache_hold_drop(holder, "one"), 0);
  assert_int_equal(perigee_cache_hold_take(holder, 0, name, &fd), 0);
  assert_string_equal(name, "two");
  assert_text(fd, "second");
  close(fd);
  assert_int_equal(perigee_cache_hold_take(holder, 1, name, &fd),
                   PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_cache_hold_drop(holder, "one"), PERIGEE_NOT_FOUND);
  scene_close(&s, holder);
}

static void a_holder_has_nothing_of_who_started_it(void **state) {
  struct scene s = scene_open();
  int ends[2];
  char byte;
  (void)state;
  assert_int_equal(pipe(ends), 0);
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_true(holder >= 0);
  close(ends[1]);
  assert_int_equal(read(ends[0], &byte, 1), 0); /* nobody else has it */
  close(ends[0]);
  scene_close(&s, holder);
}

/* Memory is sealed only if nobody has it mapped. */
static void a_holder_has_no_memory_that_is_shared(void **state) {
  struct scene s = scene_open();
  (void)state;
  int fd = memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(fd, 4096), 0);
  void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_true(memory != MAP_FAILED);
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_true(holder >= 0);
  assert_int_equal(munmap(memory, 4096), 0);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  close(fd);
  scene_close(&s, holder);
}

static void one_process_at_a_time_has_a_holder(void **state) {
  struct scene s = scene_open();
  (void)state;
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_int_equal(perigee_cache_hold(s.path, 60 * SECONDS),
                   PERIGEE_NAME_TAKEN);
  close(holder);
  holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_true(holder >= 0);
  scene_close(&s, holder);
}

static void a_holder_ends_if_nobody_comes(void **state) {
  struct scene s = scene_open();
  (void)state;
  close(perigee_cache_hold(s.path, SECONDS / 20));
  while (access(s.path, F_OK) == 0)
    usleep(1000);
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_true(holder >= 0); /* a new one */
  scene_close(&s, holder);
}

static void names_and_paths_are_checked(void **state) {
  struct scene s = scene_open();
  char path[200];
  (void)state;
  memset(path, 'p', sizeof path - 1);
  path[sizeof path - 1] = 0;
  assert_int_equal(perigee_cache_hold(path, SECONDS), PERIGEE_INVALID);
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_int_equal(perigee_cache_hold_put(holder, "", 0), PERIGEE_INVALID);
  assert_int_equal(perigee_cache_hold_put(holder, path, 0), PERIGEE_INVALID);
  assert_int_equal(perigee_cache_hold_put(holder, "a", -1), PERIGEE_INVALID);
  scene_close(&s, holder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_held_outlives_who_put_it),
      cmocka_unit_test(a_holder_has_nothing_of_who_started_it),
      cmocka_unit_test(a_holder_has_no_memory_that_is_shared),
      cmocka_unit_test(one_process_at_a_time_has_a_holder),
      cmocka_unit_test(a_holder_ends_if_nobody_comes),
      cmocka_unit_test(names_and_paths_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
