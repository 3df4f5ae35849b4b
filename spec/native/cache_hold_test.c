/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_hold_test.c - holders: real processes that keep real memory.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
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
/* MEMORY: bytes of this process's heap; MOST_KIB: of all of a holder's. */
enum { MEMORY = 1 << 25, MOST_KIB = 1024 };

struct scene {
  char folder[64], path[80];
};

/* The answer to what was asked, with the status of asking. */
static int answer(int holder, int asked) {
  char name[PERIGEE_CACHE_HELD_NAME];
  int fd = -1;
  return asked < 0 ? asked
                   : perigee_cache_hold_answer(holder, 20000, name, &fd);
}

static int put(int holder, const char *name, int fd) {
  return answer(holder, perigee_cache_hold_put(holder, name, fd));
}

static int take(int holder, uint32_t number, char *name, int *fd) {
  int asked = perigee_cache_hold_take(holder, number);
  return asked < 0 ? asked : perigee_cache_hold_answer(holder, 20000, name, fd);
}

static struct scene scene_open(void) {
  struct scene s = {.folder = "/tmp/perigee-hold-XXXXXX"};
  assert_non_null(mkdtemp(s.folder));
  snprintf(s.path, sizeof s.path, "%s/hold", s.folder);
  return s;
}

static void scene_close(struct scene *s, int holder) {
  assert_int_equal(answer(holder, perigee_cache_hold_end(holder)), 0);
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

/* Reads a file of a process; returns its length. */
static long of_process(const char *pid, const char *file, char *text,
                       size_t room) {
  char path[300];
  memset(text, 0, room);
  snprintf(path, sizeof path, "/proc/%s/%s", pid, file);
  int fd = open(path, O_RDONLY);
  long n = fd < 0 ? -1 : read(fd, text, room - 1);
  if (fd >= 0)
    close(fd);
  return n;
}

static bool is_holder(const struct scene *s, const char *pid) {
  char text[256];
  size_t title = sizeof "perigee-hold";
  return of_process(pid, "cmdline", text, sizeof text) > (long)title &&
         strcmp(text, "perigee-hold") == 0 &&
         strcmp(text + title, s->path) == 0;
}

/* Finds the process that holds at a scene's path. */
static void find_holder(const struct scene *s, char pid[32]) {
  DIR *all = opendir("/proc");
  struct dirent *each;
  pid[0] = 0;
  while ((each = readdir(all)))
    if (is_holder(s, each->d_name))
      snprintf(pid, 32, "%.31s", each->d_name);
  closedir(all);
  assert_true(pid[0] != 0);
}

static void what_is_held_outlives_who_put_it(void **state) {
  struct scene s = scene_open();
  char name[PERIGEE_CACHE_HELD_NAME];
  int fd = -1, status;
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
  assert_int_equal(take(holder, 0, name, &fd), 0);
  assert_string_equal(name, "one");
  assert_text(fd, "third");
  close(fd);
  assert_int_equal(answer(holder, perigee_cache_hold_drop(holder, "one")), 0);
  assert_int_equal(take(holder, 0, name, &fd), 0);
  assert_string_equal(name, "two");
  assert_text(fd, "second");
  close(fd);
  assert_int_equal(take(holder, 1, name, &fd), PERIGEE_NOT_FOUND);
  assert_int_equal(answer(holder, perigee_cache_hold_drop(holder, "one")),
                   PERIGEE_NOT_FOUND);
  scene_close(&s, holder);
}

/* A process that ends with answers unread is hung up on by an error. */
static void what_was_asked_is_done_though_nobody_is_answered(void **state) {
  struct scene s = scene_open();
  char pid[32], name[PERIGEE_CACHE_HELD_NAME];
  int fd = -1, text = memory_of("text");
  (void)state;
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_int_equal(put(holder, "first", text), 0);
  find_holder(&s, pid);
  assert_int_equal(perigee_cache_hold_take(holder, 7), 0);
  struct pollfd look = {.fd = holder, .events = POLLIN};
  assert_int_equal(poll(&look, 1, 20000), 1);
  kill((pid_t)strtol(pid, NULL, 10), SIGSTOP);
  assert_int_equal(perigee_cache_hold_put(holder, "last", text), 0);
  close(text);
  close(holder);
  kill((pid_t)strtol(pid, NULL, 10), SIGCONT);
  holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_int_equal(take(holder, 1, name, &fd), 0);
  assert_string_equal(name, "last");
  close(fd);
  scene_close(&s, holder);
}

/* ---- What a holder is --------------------------------------------------- */

static int count_descriptors(const char *pid) {
  char path[64];
  int count = 0;
  snprintf(path, sizeof path, "/proc/%s/fd", pid);
  DIR *all = opendir(path);
  assert_non_null(all);
  for (struct dirent *each; (each = readdir(all));)
    count += each->d_name[0] != '.';
  closedir(all);
  return count;
}

static void a_holder_has_nothing_of_who_started_it(void **state) {
  struct scene s = scene_open();
  char pid[32], text[4096], byte, *heap = malloc(MEMORY);
  int ends[2];
  (void)state;
  assert_int_equal(pipe(ends), 0);
  memset(heap, 7, MEMORY);
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_true(holder >= 0);
  assert_int_equal(put(holder, "one", ends[0]), 0);
  close(ends[1]);
  assert_int_equal(read(ends[0], &byte, 1), 0); /* nobody else has it */
  close(ends[0]);
  find_holder(&s, pid);
  assert_int_equal(of_process(pid, "environ", text, sizeof text), 0);
  assert_int_equal(of_process(pid, "comm", text, sizeof text), 13);
  assert_string_equal(text, "perigee-hold\n");
  /* /dev/null three times, its socket, its client, what it holds */
  assert_int_equal(count_descriptors(pid), 6);
  assert_true(of_process(pid, "status", text, sizeof text) > 0);
  const char *size = strstr(text, "VmSize:");
  assert_non_null(size);
  assert_true(strtol(size + 7, NULL, 10) < MOST_KIB);
  free(heap);
  scene_close(&s, holder);
}

static void a_holder_that_is_stopped_stops_nobody(void **state) {
  struct scene s = scene_open();
  char pid[32], name[PERIGEE_CACHE_HELD_NAME];
  int fd = -1, text = memory_of("text");
  (void)state;
  int holder = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_int_equal(put(holder, "first", text), 0);
  find_holder(&s, pid);
  kill((pid_t)strtol(pid, NULL, 10), SIGSTOP);
  for (int i = 0; i < 10; i++)
    assert_int_equal(perigee_cache_hold_put(holder, "one", text), 0);
  close(text);
  assert_int_equal(perigee_cache_hold_answer(holder, 1, name, &fd),
                   PERIGEE_AGAIN);
  int other = perigee_cache_hold(s.path, 60 * SECONDS);
  assert_int_equal(perigee_cache_hold_take(other, 0), 0);
  assert_int_equal(perigee_cache_hold_answer(other, 1, name, &fd),
                   PERIGEE_AGAIN);
  close(other);
  kill((pid_t)strtol(pid, NULL, 10), SIGCONT);
  for (int i = 0; i < 10; i++)
    assert_int_equal(perigee_cache_hold_answer(holder, 20000, name, &fd), 0);
  assert_int_equal(take(holder, 1, name, &fd), 0);
  assert_text(fd, "text");
  close(fd);
  scene_close(&s, holder);
}

/* One that reads nothing has room for some requests; then it is given up. */
static void a_holder_that_reads_nothing_is_given_up(void **state) {
  struct scene s = scene_open();
  char pid[32];
  (void)state;
  int holder = perigee_cache_hold(s.path, 60 * SECONDS), status = 0, i = 0;
  assert_int_equal(put(holder, "one", 0), 0);
  find_holder(&s, pid);
  kill((pid_t)strtol(pid, NULL, 10), SIGSTOP);
  for (; i < 100000 && status == 0; i++)
    status = perigee_cache_hold_drop(holder, "none");
  assert_int_equal(status, PERIGEE_PEER_LOST);
  close(holder);
  kill((pid_t)strtol(pid, NULL, 10), SIGCONT);
  holder = perigee_cache_hold(s.path, 60 * SECONDS);
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
  int other = perigee_cache_hold(s.path, 60 * SECONDS), fd = -1;
  char name[PERIGEE_CACHE_HELD_NAME];
  assert_int_equal(put(holder, "one", 0), 0);
  assert_int_equal(perigee_cache_hold_take(other, 0), 0);
  assert_int_equal(perigee_cache_hold_answer(other, 10, name, &fd),
                   PERIGEE_AGAIN);
  close(holder);
  assert_int_equal(perigee_cache_hold_answer(other, 20000, name, &fd), 0);
  close(fd);
  scene_close(&s, other);
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
      cmocka_unit_test(what_was_asked_is_done_though_nobody_is_answered),
      cmocka_unit_test(a_holder_has_nothing_of_who_started_it),
      cmocka_unit_test(a_holder_has_no_memory_that_is_shared),
      cmocka_unit_test(a_holder_that_is_stopped_stops_nobody),
      cmocka_unit_test(a_holder_that_reads_nothing_is_given_up),
      cmocka_unit_test(one_process_at_a_time_has_a_holder),
      cmocka_unit_test(a_holder_ends_if_nobody_comes),
      cmocka_unit_test(names_and_paths_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
