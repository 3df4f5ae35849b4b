/* SPDX-License-Identifier: Apache-2.0
 *
 * name_test.c - private folders and names held in them, with real processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "perigee.h"

enum { ROUNDS = 300 };

static char root[64];

static const char *path(const char *rest) {
  static char buffer[256];
  snprintf(buffer, sizeof buffer, "%s/%s", root, rest);
  return buffer;
}

static bool exists(const char *rest) {
  return access(path(rest), F_OK) == 0;
}

static void touch(const char *rest) {
  close(open(path(rest), O_CREAT | O_WRONLY, 0600));
}

static int setup(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/perigee-name-test-XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static int ended(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void folders_are_made_private(void **state) {
  (void)state;
  struct stat entry;
  assert_int_equal(perigee_folder(path("a/b//c/")), PERIGEE_OK);
  assert_int_equal(perigee_folder(path("a/b/c")), PERIGEE_OK);
  assert_int_equal(stat(path("a"), &entry), 0);
  assert_int_equal(entry.st_mode & 07777, 0700);
  assert_int_equal(stat(path("a/b/c"), &entry), 0);
  assert_int_equal(entry.st_mode & 07777, 0700);
}

static void other_folders_are_denied(void **state) {
  (void)state;
  assert_int_equal(mkdir(path("open"), 0700), 0);
  assert_int_equal(chmod(path("open"), 0750), 0);
  assert_int_equal(perigee_folder(path("open")), PERIGEE_DENIED);
  assert_int_equal(mkdir(path("real"), 0700), 0);
  char target[256];
  snprintf(target, sizeof target, "%s", path("real"));
  assert_int_equal(symlink(target, path("link")), 0);
  assert_int_equal(perigee_folder(path("link")), PERIGEE_DENIED);
  assert_int_equal(perigee_folder(path("link/")), PERIGEE_DENIED);
  assert_int_equal(perigee_folder(path("link/inside")), PERIGEE_OK);
  touch("file");
  assert_int_equal(perigee_folder(path("file")), PERIGEE_DENIED);
  assert_int_equal(perigee_folder(path("file/inside")), PERIGEE_SYSTEM);
}

static void folders_of_others_are_denied(void **state) {
  (void)state;
  if (geteuid() != 0)
    skip();
  assert_int_equal(mkdir(path("other"), 0700), 0);
  assert_int_equal(chown(path("other"), 12345, 0), 0);
  assert_int_equal(perigee_folder(path("other")), PERIGEE_DENIED);
  assert_int_equal(perigee_folder(path("other/inside")), PERIGEE_OK);
  assert_int_equal(chmod(root, 01777), 0);
  assert_int_equal(perigee_folder(path("other/again")), PERIGEE_DENIED);
  assert_int_equal(perigee_folder(path("mine/inside")), PERIGEE_OK);
}

/* In a process that is not root, whom the system refuses nothing. */
static int is_told_who_refuses(const char *folder) {
  if (geteuid() == 0 && setuid(12345) != 0)
    return 1;
  if (perigee_folder(folder) != PERIGEE_DENIED)
    return 2;
  return strcmp(perigee_detail(NULL), strerror(EACCES)) == 0 ? 0 : 3;
}

static void a_folder_that_cannot_be_made_tells_why(void **state) {
  (void)state;
  touch("file");
  assert_int_equal(perigee_folder(path("file/inside")), PERIGEE_SYSTEM);
  assert_string_equal(perigee_detail(NULL), strerror(ENOTDIR));
  assert_int_equal(mkdir(path("shut"), 0), 0);
  pid_t child = fork();
  if (child == 0)
    _exit(is_told_who_refuses(path("shut/inside")));
  assert_int_equal(ended(child), 0);
}

static void a_look_tells_whose_a_folder_is(void **state) {
  (void)state;
  assert_int_equal(perigee_folder_look(path("nothing")), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_folder_look(path("nothing/in/it")),
                   PERIGEE_NOT_FOUND);
  assert_int_equal(mkdir(path("whose"), 0755), 0);
  assert_int_equal(perigee_folder_look(path("whose")), PERIGEE_OK);
  touch("no-folder");
  assert_int_equal(perigee_folder_look(path("no-folder")), PERIGEE_DENIED);
  assert_int_equal(symlink("whose", path("a-link")), 0);
  assert_int_equal(perigee_folder_look(path("a-link")), PERIGEE_DENIED);
  assert_int_equal(perigee_folder_look(path("a-link/.")), PERIGEE_OK);
  if (geteuid() != 0)
    return;
  assert_int_equal(chown(path("whose"), 12345, 0), 0);
  assert_int_equal(perigee_folder_look(path("whose")), PERIGEE_DENIED);
}

static void wrong_arguments_are_invalid(void **state) {
  (void)state;
  const char *const names[] = {"", ".", ".hidden", "a/b", "..", "a b", "\xc3"};
  static char text[5000];
  assert_int_equal(perigee_folder(""), PERIGEE_INVALID);
  assert_int_equal(perigee_folder(NULL), PERIGEE_INVALID);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    assert_int_equal(perigee_name_hold(root, names[i]), PERIGEE_INVALID);
  memset(text, 'x', sizeof text - 1);
  assert_int_equal(perigee_folder(text), PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_name_hold(text, "name"), PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_name_hold(root, text + sizeof text - 66),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_name_hold(path("missing"), "x"), PERIGEE_SYSTEM);
}

static void one_holder_at_a_time(void **state) {
  (void)state;
  int held = perigee_name_hold(root, "worker:0");
  assert_true(held >= 0);
  assert_int_equal(fcntl(held, F_GETFD), FD_CLOEXEC);
  assert_int_equal(perigee_name_hold(root, "worker:0"), PERIGEE_NAME_TAKEN);
  touch("worker:0.sock");
  perigee_name_release(held);
  assert_false(exists("worker:0.sock") || exists("worker:0.lock"));
  assert_int_equal(fcntl(held, F_GETFD), -1);
  held = perigee_name_hold(root, "worker:0");
  assert_true(held >= 0);
  perigee_name_release(held);
}

static void links_are_not_followed(void **state) {
  (void)state;
  assert_int_equal(symlink("/tmp/elsewhere", path("x.lock")), 0);
  assert_int_equal(perigee_name_hold(root, "x"), PERIGEE_DENIED);
}

static void what_is_not_held_is_not_closed(void **state) {
  (void)state;
  int descriptor = open("/dev/null", O_RDONLY);
  perigee_name_release(descriptor);
  perigee_name_release(-1);
  assert_int_equal(close(descriptor), 0);
}

static void dead_holders_leftovers_are_taken(void **state) {
  (void)state;
  pid_t child = fork();
  if (child == 0) {
    bool held = perigee_name_hold(root, "x") >= 0;
    touch("x.sock");
    _exit(!held);
  }
  assert_int_equal(ended(child), 0);
  assert_true(exists("x.lock") && exists("x.sock"));
  int held = perigee_name_hold(root, "x");
  assert_true(held >= 0);
  assert_false(exists("x.sock"));
  perigee_name_release(held);
}

/* A program of its own, as exit handlers of the test must not run. */
static void exit_leaves_nothing(void **state) {
  (void)state;
  char self[256];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  assert_true(length > 0);
  self[length] = '\0';
  pid_t child = fork();
  if (child == 0) {
    execl(self, self, "hold", root, (char *)NULL);
    _exit(9);
  }
  assert_int_equal(ended(child), 0);
  assert_false(exists("x.lock") || exists("x.sock") || exists("x.stats"));
}

/* The owner dies, and a child that it has forked lives on. */
static void a_forked_child_holds_no_name(void **state) {
  (void)state;
  int told[2];
  pid_t grandchild = 0;
  assert_int_equal(pipe(told), 0);
  pid_t child = fork();
  if (child == 0) {
    bool held = perigee_name_hold(root, "x") >= 0;
    if (!held)
      _exit(1);
    /* The grandchild tells: what its fork has to do is done by then. */
    if (fork() == 0) {
      grandchild = getpid();
      if (write(told[1], &grandchild, sizeof grandchild) < 0)
        _exit(1);
    }
    pause();
    _exit(0);
  }
  close(told[1]);
  assert_int_equal(read(told[0], &grandchild, sizeof grandchild),
                   sizeof grandchild);
  assert_int_equal(perigee_name_hold(root, "x"), PERIGEE_NAME_TAKEN);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
  int held = perigee_name_hold(root, "x");
  kill(grandchild, SIGKILL);
  assert_true(held >= 0);
  perigee_name_release(held);
  close(told[0]);
}

/* As a daemon does: it closes all, and what it opens then has a name's number. */
static void a_forked_child_keeps_its_own_files_to_the_end(void **state) {
  (void)state;
  char text[8] = "";
  int told[2], held = perigee_name_hold(root, "x");
  assert_int_equal(pipe(told), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(told[1], held);
    fputs("told", fdopen(held, "w"));
    exit(0); /* the library's end comes before the file is written */
  }
  close(told[1]);
  assert_int_equal(ended(child), 0);
  assert_int_equal(read(told[0], text, sizeof text), 4);
  assert_string_equal(text, "told");
  close(told[0]);
  perigee_name_release(held);
}

static bool is_null(int fd) {
  struct stat is, null;
  return fstat(fd, &is) == 0 && stat("/dev/null", &null) == 0 &&
         is.st_rdev == null.st_rdev;
}

/* What it prints would be written into the file of its name, or go to a peer. */
static void a_program_without_standard_descriptors_gets_some(void **state) {
  (void)state;
  for (int engine = 0; engine < 2; engine++) {
    pid_t child = fork();
    if (child == 0) {
      struct perigee_engine *e;
      for (int fd = 0; fd < 3; fd++)
        close(fd);
      int got =
          engine ? perigee_engine_open(NULL, &e) : perigee_name_hold(root, "x");
      _exit(got < 0 ? 9 : !is_null(0) + !is_null(1) + !is_null(2));
    }
    assert_int_equal(ended(child), 0);
  }
}

/* The child's side. A forked child that exits must remove nothing. */
static int hold_and_exit(const char *folder) {
  snprintf(root, sizeof root, "%s", folder);
  if (perigee_name_hold(root, "x") < 0)
    return 1;
  touch("x.sock");
  touch("x.stats");
  pid_t child = fork();
  if (child == 0)
    exit(0);
  bool kept = exists("x.lock") && exists("x.sock") && exists("x.stats");
  return ended(child) == 0 && kept ? 0 : 2;
}

static void a_release_keeps_the_stats_of_a_dead_holder(void **state) {
  (void)state;
  touch("x.stats");
  perigee_name_release(perigee_name_hold(root, "x"));
  assert_true(exists("x.stats") && !exists("x.lock"));
}

/* ---- The race ----------------------------------------------------------- */

struct arena {
  atomic_int ready, tried, won, inside, failures;
};

static void await(atomic_int *counter, int value) {
  while (atomic_load(counter) < value)
    sched_yield();
}

static void own(struct arena *arena, int held, bool die) {
  if (atomic_fetch_add(&arena->inside, 1) != 0)
    atomic_fetch_add(&arena->failures, 1);
  touch("race.sock");
  sched_yield();
  if (!exists("race.lock") || !exists("race.sock"))
    atomic_fetch_add(&arena->failures, 1);
  atomic_fetch_sub(&arena->inside, 1);
  if (die)
    _exit(0);
  perigee_name_release(held);
}

/* Both try once, and exactly one must win. Then the other tries until it
 * gets the name, after the first released it or died. */
static void contend(struct arena *arena, bool die) {
  atomic_fetch_add(&arena->ready, 1);
  await(&arena->ready, 2);
  int held = perigee_name_hold(root, "race");
  if (held >= 0)
    atomic_fetch_add(&arena->won, 1);
  atomic_fetch_add(&arena->tried, 1);
  await(&arena->tried, 2);
  if (atomic_load(&arena->won) != 1)
    atomic_fetch_add(&arena->failures, 1);
  while (held == PERIGEE_NAME_TAKEN)
    held = perigee_name_hold(root, "race");
  if (held >= 0)
    own(arena, held, die);
  _exit(held < 0);
}

static void never_two_owners(void **state) {
  (void)state;
  struct arena *arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(arena != MAP_FAILED);
  for (int round = 0; round < ROUNDS; round++) {
    pid_t children[2];
    memset(arena, 0, sizeof *arena);
    for (int i = 0; i < 2; i++)
      if ((children[i] = fork()) == 0)
        contend(arena, (round + i) % 3 == 0);
    for (int i = 0; i < 2; i++)
      assert_int_equal(ended(children[i]), 0);
    assert_int_equal(atomic_load(&arena->failures), 0);
  }
  munmap(arena, sizeof *arena);
}

/* Removes only unheld locks of the prefix, and the sockets beside them. */
static void what_dead_owners_left_is_swept(void **state) {
  (void)state;
  const char *const left[] = {"any-1.lock", "any-1.sock",   "any-2.lock",
                              "other.lock", "any-.lock.x",  "any-3.sock",
                              "any-!.lock", "any-name.txt", ".lock"};
  enum { LEFT = sizeof left / sizeof *left };
  for (int i = 0; i < LEFT; i++)
    touch(left[i]);
  assert_int_equal(symlink("other.lock", path("any-link.lock")), 0);
  int live = perigee_name_hold(root, "any-live");
  assert_true(live >= 0);
  touch("any-live.sock");
  assert_int_equal(perigee_names_sweep(root, "any-"), 2);
  for (int i = 0; i < LEFT; i++)
    assert_int_equal(exists(left[i]), i > 2);
  assert_true(exists("any-live.lock") && exists("any-live.sock"));
  assert_true(exists("any-link.lock"));
  assert_int_equal(perigee_names_sweep(root, "any-"), 0);
  assert_int_equal(perigee_names_sweep(path("nowhere"), "any-"), 0);
  assert_int_equal(perigee_names_sweep(NULL, "any-"), 0);
  perigee_name_release(live);
  assert_false(exists("any-live.lock"));
}

static int64_t entry(const char *name, char *text, size_t capacity) {
  memset(text, 0, capacity);
  return perigee_entry_read(root, name, text, capacity - 1);
}

static void a_holder_tells_of_itself_while_it_lives(void **state) {
  (void)state;
  char text[64];
  assert_int_equal(entry("one", text, 64), PERIGEE_NOT_FOUND);
  int held = perigee_name_hold(root, "one");
  assert_int_equal(entry("one", text, 64), PERIGEE_AGAIN);
  assert_int_equal(perigee_entry_write(held, "first text", 10), PERIGEE_OK);
  assert_int_equal(entry("one", text, 64), 10);
  assert_string_equal(text, "first text");
  assert_int_equal(perigee_entry_write(held, "next", 4), PERIGEE_OK);
  assert_int_equal(entry("one", text, 64), 4);
  assert_string_equal(text, "next");
  assert_int_equal(entry("one", text, 4), PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_entry_write(held, "", 0), PERIGEE_OK);
  assert_int_equal(entry("one", text, 64), 0);
  assert_int_equal(perigee_entry_write(held, text, PERIGEE_ENTRY_MAX + 1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_entry_write(-1, "x", 1), PERIGEE_INVALID);
  assert_int_equal(entry("../one", text, 64), PERIGEE_INVALID);
  perigee_name_release(held);
  assert_int_equal(entry("one", text, 64), PERIGEE_NOT_FOUND);
}

static void what_the_dead_have_told_is_gone(void **state) {
  (void)state;
  char text[64];
  pid_t child = fork();
  if (child == 0) {
    int held = perigee_name_hold(root, "one");
    _exit(perigee_entry_write(held, "mine", 4) == PERIGEE_OK ? 0 : 1);
  }
  assert_int_equal(ended(child), 0);
  assert_true(exists("one.lock"));
  assert_int_equal(entry("one", text, 64), PERIGEE_NOT_FOUND);
  int held = perigee_name_hold(root, "one");
  assert_int_equal(entry("one", text, 64), PERIGEE_AGAIN);
  perigee_name_release(held);
}

/* As builds from before there were texts have a name: by the lock alone. */
static void a_holder_of_an_older_build_is_seen_by_its_socket(void **state) {
  (void)state;
  char text[64];
  touch("old.lock");
  int held = open(path("old.lock"), O_RDWR | O_CLOEXEC);
  assert_int_equal(flock(held, LOCK_EX | LOCK_NB), 0);
  assert_int_equal(entry("old", text, 64), PERIGEE_NOT_FOUND);
  touch("old.sock");
  assert_int_equal(entry("old", text, 64), PERIGEE_AGAIN);
  assert_int_equal(perigee_name_hold(root, "old"), PERIGEE_NAME_TAKEN);
  close(held);
  assert_int_equal(entry("old", text, 64), PERIGEE_NOT_FOUND);
  held = perigee_name_hold(root, "old");
  assert_true(held >= 0);
  perigee_name_release(held);
}

/* A process of the same user: no more than its own bytes is read, whatever
 * it says. */
static void what_is_no_entry_is_refused(void **state) {
  (void)state;
  char text[64];
  uint64_t head[3] = {4, 0, 0x78787878};
  int held = perigee_name_hold(root, "one");
  assert_int_equal(pwrite(held, head, 20, 0), 20);
  assert_int_equal(entry("one", text, 64), PERIGEE_AGAIN);
  head[0] = UINT64_MAX;
  assert_int_equal(pwrite(held, head, 20, 0), 20);
  assert_int_equal(entry("one", text, 64), PERIGEE_PROTOCOL);
  head[0] = 1000;
  assert_int_equal(pwrite(held, head, 20, 0), 20);
  assert_int_equal(entry("one", text, 64), PERIGEE_TOO_LARGE);
  assert_int_equal(ftruncate(held, 7), 0);
  assert_int_equal(entry("one", text, 64), PERIGEE_AGAIN);
  perigee_name_release(held);
}

/* A reader never sees a mix of two entries while one replaces the other. */
static void what_is_told_is_told_as_a_whole(void **state) {
  (void)state;
  enum { LENGTH = 20000 };
  static char text[LENGTH + 1], got[LENGTH + 1];
  int held = perigee_name_hold(root, "one");
  assert_int_equal(perigee_entry_write(held, text, LENGTH), PERIGEE_OK);
  pid_t child = fork();
  int file = child == 0 ? open(path("one.lock"), O_RDWR) : -1;
  for (int i = 0; child == 0 && i < 5000; i++) {
    memset(text, 'a' + i % 26, LENGTH);
    if (perigee_entry_write(file, text, (uint64_t)LENGTH - i % 100) < 0)
      _exit(1);
  }
  if (child == 0)
    _exit(0);
  int read_whole = 0, status;
  while (waitpid(child, &status, WNOHANG) == 0) {
    int64_t length = entry("one", got, sizeof got);
    assert_true(length >= LENGTH - 100 || length == PERIGEE_AGAIN);
    for (int64_t i = 1; i < length; i++)
      assert_int_equal(got[i], got[0]);
    read_whole += length > 0;
  }
  assert_int_equal(status, 0);
  assert_true(read_whole > 0);
  perigee_name_release(held);
}

static void names_are_listed_and_what_changes_is_told(void **state) {
  (void)state;
  static char text[PERIGEE_CHANGED_MIN + 1];
  int news = perigee_names_watch(root);
  assert_true(news >= 0);
  assert_int_equal(perigee_names_changed(news, text, sizeof text - 1), 0);
  int held = perigee_name_hold(root, "one");
  touch("other.txt");
  assert_int_equal(perigee_names(root, text, 2), 4);
  memset(text, 0, sizeof text);
  assert_int_equal(perigee_names(root, text, sizeof text - 1), 4);
  assert_string_equal(text, "one\n");
  perigee_entry_write(held, "x", 1);
  assert_true(perigee_names_changed(news, text, sizeof text - 1) >= 4);
  assert_memory_equal(text, "one\n", 4);
  perigee_name_release(held);
  assert_true(perigee_names_changed(news, text, sizeof text - 1) >= 4);
  assert_int_equal(perigee_names(root, text, sizeof text - 1), 0);
  assert_int_equal(perigee_names_changed(news, text, 4), PERIGEE_INVALID);
  perigee_names_unwatch(news);
  assert_int_equal(perigee_names(path("nowhere"), text, 4), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_names_watch(path("nowhere")), PERIGEE_NOT_FOUND);
  assert_int_equal(mkdir(path("going"), 0700), 0);
  news = perigee_names_watch(path("going"));
  assert_int_equal(rmdir(path("going")), 0);
  assert_int_equal(perigee_names_changed(news, text, sizeof text - 1),
                   PERIGEE_CLOSED);
  perigee_names_unwatch(news);
}

static void scopes_are_folders_without_a_dot(void **state) {
  (void)state;
  char text[64] = {0};
  assert_int_equal(perigee_scopes(NULL, text, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_scopes(path("nowhere"), text, 4), PERIGEE_NOT_FOUND);
  assert_int_equal(mkdir(path("host"), 0700), 0);
  assert_int_equal(perigee_scopes(path("host"), text, sizeof text), 0);
  assert_int_equal(mkdir(path("host/a"), 0700), 0);
  assert_int_equal(mkdir(path("host/.b"), 0700), 0);
  assert_int_equal(symlink("a", path("host/c")), 0);
  close(open(path("host/d"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  assert_int_equal(perigee_scopes(path("host"), text, 1), 2);
  assert_int_equal(perigee_scopes(path("host"), text, sizeof text), 2);
  assert_memory_equal(text, "a\n", 2);
}

/* ---- Names that are yielded ---------------------------------------------- */

static int64_t told_of(const char *name) {
  char text[64];
  return perigee_entry_read(root, name, text, sizeof text);
}

static void a_yielded_name_is_its_holders_until_one_takes_it(void **state) {
  (void)state;
  int old = perigee_name_hold(root, "one");
  touch("one.sock");
  assert_int_equal(perigee_entry_write(old, "old", 3), PERIGEE_OK);
  assert_int_equal(perigee_name_yield(old), PERIGEE_OK);
  assert_int_equal(told_of("one"), 3);
  int new = perigee_name_hold(root, "one");
  assert_true(new >= 0);
  assert_false(exists("one.sock"));
  assert_int_equal(perigee_name_hold(root, "one"), PERIGEE_NAME_TAKEN);
  touch("one.sock");
  assert_int_equal(perigee_entry_write(new, "later", 5), PERIGEE_OK);
  assert_int_equal(perigee_entry_write(old, "o", 1), PERIGEE_OK);
  assert_int_equal(told_of("one"), 5);
  perigee_name_release(old);
  assert_true(exists("one.sock") && exists("one.lock"));
  assert_int_equal(told_of("one"), 5);
  perigee_name_release(new);
  assert_false(exists("one.sock") || exists("one.lock"));
}

static void a_yielded_name_that_nobody_takes_is_removed(void **state) {
  (void)state;
  int held = perigee_name_hold(root, "one");
  touch("one.sock");
  assert_int_equal(perigee_name_yield(held), PERIGEE_OK);
  assert_int_equal(perigee_name_yield(held), PERIGEE_OK);
  perigee_name_release(held);
  assert_false(exists("one.sock") || exists("one.lock"));
  assert_int_equal(perigee_name_yield(held), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_name_yield(-1), PERIGEE_NOT_FOUND);
}

/* Takes the name, and looks whether it has it after the old holder's end. */
static int takes_it(int gone) {
  char byte;
  while (perigee_name_hold(root, "one") < 0)
    sched_yield();
  touch("one.sock");
  while (read(gone, &byte, 1) > 0)
    continue;
  return exists("one.sock") && exists("one.lock") ? 0 : 1;
}

static void its_old_holder_may_end_while_one_takes_it(void **state) {
  (void)state;
  for (int i = 0; i < ROUNDS; i++) {
    int ends[2], held = perigee_name_hold(root, "one");
    assert_true(held >= 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(perigee_name_yield(held), PERIGEE_OK);
    pid_t child = fork();
    if (child == 0) {
      close(held);
      close(ends[1]);
      _exit(takes_it(ends[0]));
    }
    if (i % 2)
      sched_yield();
    perigee_name_release(held);
    close(ends[1]);
    assert_int_equal(ended(child), 0);
    close(ends[0]);
  }
}

int main(int argc, char **argv) {
  if (argc == 3)
    return hold_and_exit(argv[2]);
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      test(folders_are_made_private),
      test(other_folders_are_denied),
      test(folders_of_others_are_denied),
      test(a_folder_that_cannot_be_made_tells_why),
      test(a_look_tells_whose_a_folder_is),
      test(wrong_arguments_are_invalid),
      test(one_holder_at_a_time),
      test(links_are_not_followed),
      test(what_is_not_held_is_not_closed),
      test(dead_holders_leftovers_are_taken),
      test(what_dead_owners_left_is_swept),
      test(exit_leaves_nothing),
      test(a_forked_child_holds_no_name),
      test(a_forked_child_keeps_its_own_files_to_the_end),
      test(a_program_without_standard_descriptors_gets_some),
      test(a_release_keeps_the_stats_of_a_dead_holder),
      test(never_two_owners),
      test(a_holder_tells_of_itself_while_it_lives),
      test(what_the_dead_have_told_is_gone),
      test(a_holder_of_an_older_build_is_seen_by_its_socket),
      test(what_is_no_entry_is_refused),
      test(what_is_told_is_told_as_a_whole),
      test(names_are_listed_and_what_changes_is_told),
      test(scopes_are_folders_without_a_dot),
      test(a_yielded_name_is_its_holders_until_one_takes_it),
      test(a_yielded_name_that_nobody_takes_is_removed),
      test(its_old_holder_may_end_while_one_takes_it),
  };
  return cmocka_run_group_tests_name("name", tests, NULL, NULL);
}
