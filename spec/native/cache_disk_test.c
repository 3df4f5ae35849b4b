/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_disk_test.c - files that cannot be had, and devices that fail. Threads
 * read and write by functions of this file, which do less than they are asked
 * for, or fail, when a test wants that; io_uring is the kernel's.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "filed.h"

/* ---- A device that fails ----------------------------------------------- */

static _Atomic uint64_t piece_most; /* bytes of one read or write; 0: all */
static _Atomic int write_error, read_error;
/* Writes in the order in which they began; those of a block of a table or a map
 * wait while this is set. */
enum { LOG = 4096 };
static struct {
  off_t at;
  uint64_t length;
} writes[LOG];
static _Atomic uint32_t write_count;
static _Atomic bool hold_blocks, holding;

static ssize_t some(long number, int file, const struct iovec *parts, int count,
                    off_t at) {
  uint64_t most = piece_most;
  struct iovec one = parts[0];
  if (most == 0)
    return syscall(number, file, parts, (long)count, (long)at, 0L);
  if (one.iov_len > most)
    one.iov_len = most;
  return syscall(number, file, &one, 1L, (long)at, 0L);
}

ssize_t preadv(int file, const struct iovec *parts, int count, off_t at) {
  errno = read_error;
  return errno ? -1 : some(SYS_preadv, file, parts, count, at);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
  uint32_t number = write_count++ % LOG;
  writes[number].at = at;
  writes[number].length = parts[0].iov_len + (count > 1 ? parts[1].iov_len : 0);
  while (hold_blocks && writes[number].length == BLOCK) {
    holding = true;
    usleep(100);
  }
  errno = write_error;
  return errno ? -1 : some(SYS_pwritev, file, parts, count, at);
}

/* What a file begins with when its space is taken. */
static _Atomic uint64_t begins_with;

int fallocate(int file, int mode, off_t at, off_t length) {
  uint64_t first = 0;
  if (syscall(SYS_pread64, file, &first, sizeof first, 0L) >= 0)
    begins_with = first;
  return (int)syscall(SYS_fallocate, file, (long)mode, at, length);
}

/* Called once, before the next file is locked. */
static void (*before_lock)(const struct filed *);
static const struct filed *locking;

int flock(int file, int how) {
  void (*before)(const struct filed *) = before_lock;
  before_lock = NULL;
  if (before)
    before(locking);
  return (int)syscall(SYS_flock, file, how);
}

static int set_up(void **state) {
  static struct filed k;
  filed_begin(&k, true);
  piece_most = 0;
  write_error = read_error = 0;
  hold_blocks = holding = false;
  *state = &k;
  return 0;
}

static int tear_down(void **state) {
  write_error = read_error = 0;
  hold_blocks = false;
  return filed_tear_down(state);
}

/* ---- Whose file it is -------------------------------------------------- */

static void refused(struct filed *k, int status, const char *why) {
  assert_int_equal(filed_open(k), status);
  if (!strstr(k->reason, why))
    fail_msg("'%s' does not tell '%s'", k->reason, why);
  k->file = NULL;
}

static void make(const struct filed *k, const char *text, mode_t mode) {
  int file = open(k->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_int_equal(write(file, text, strlen(text)), strlen(text));
  assert_int_equal(fchmod(file, mode), 0);
  close(file);
}

static void another_file_stays_as_it_is(void **state) {
  struct filed *k = *state;
  char text[64] = {0};
  make(k, "all that I have written", 0600);
  refused(k, PERIGEE_CACHE_FOREIGN, "something else");
  int file = open(k->path, O_RDONLY);
  assert_int_equal(read(file, text, sizeof text), 23);
  assert_string_equal(text, "all that I have written");
  close(file);
}

/* An image of a disk begins with zeros, mostly. */
static void a_file_that_begins_with_zeros_stays_as_it_is(void **state) {
  struct filed *k = *state;
  static const off_t places[] = {8, 1024, 32768, 10000000};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    char text[8] = {0};
    struct stat s;
    make(k, "", 0600);
    int file = open(k->path, O_RDWR);
    assert_int_equal(pwrite(file, "mine", 4, places[i]), 4);
    refused(k, PERIGEE_CACHE_FOREIGN, "something else");
    assert_int_equal(pread(file, text, sizeof text, places[i]), 4);
    assert_string_equal(text, "mine");
    assert_int_equal(pread(file, text, sizeof text, 0), 8);
    assert_memory_equal(text, "\0\0\0\0\0\0\0", 8);
    assert_int_equal(fstat(file, &s), 0);
    assert_int_equal(s.st_size, places[i] + 4);
    close(file);
  }
}

static void zeros_that_were_written_will_do(void **state) {
  struct filed *k = *state;
  static const char zeros[40000];
  make(k, "", 0600);
  int file = open(k->path, O_WRONLY);
  assert_int_equal(write(file, zeros, sizeof zeros), sizeof zeros);
  close(file);
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "k", 100, 1), 0);
}

/* A process that ends before the head is written leaves that and zeros. */
static void a_file_is_marked_before_its_space_is_taken(void **state) {
  struct filed *k = *state;
  uint64_t magic = 0;
  begins_with = 0;
  filed_open_ready(k);
  filed_close(k);
  int file = open(k->path, O_RDWR);
  assert_int_equal(pread(file, &magic, sizeof magic, 0), sizeof magic);
  assert_int_not_equal(magic, 0);
  assert_int_equal(begins_with, magic);
  assert_int_equal(ftruncate(file, sizeof magic), 0);
  close(file);
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 0);
  assert_int_equal(filed_write(k, "k", 100, 1), 0);
}

static void a_file_that_others_may_write_is_refused(void **state) {
  struct filed *k = *state;
  make(k, "", 0620);
  refused(k, PERIGEE_CACHE_FOREIGN, "other users");
  unlink(k->path);
  assert_int_equal(mkfifo(k->path, 0600), 0);
  refused(k, PERIGEE_CACHE_FOREIGN, "regular");
  unlink(k->path);
  k->options.path = k->folder;
  refused(k, PERIGEE_SYSTEM, "directory");
}

static void an_empty_file_or_zeros_will_do(void **state) {
  struct filed *k = *state;
  struct stat s;
  make(k, "", 0644);
  filed_open_ready(k);
  filed_close(k);
  assert_int_equal(truncate(k->path, 0) + truncate(k->path, 12345), 0);
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "k", 100, 1), 0);
  filed_close(k);
  assert_int_equal(stat(k->path, &s), 0);
  assert_int_equal(s.st_size, FILED_SIZE);
  assert_int_equal(s.st_mode & 0777, 0600);
  assert_true(s.st_blocks * 512 >= FILED_SIZE);
}

static void remove_it(const struct filed *k) {
  assert_int_equal(unlink(k->path), 0);
}

/* As a cache does that may not show what is in it. */
static void a_file_that_its_owner_removes_is_not_taken(void **state) {
  struct filed *k = *state;
  struct stat s;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "k", 100, 1), 0);
  filed_close(k);
  locking = k;
  before_lock = remove_it;
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 0);
  assert_int_equal(stat(k->path, &s), 0);
}

static int taken;

static void take_it(const struct filed *k) {
  taken = open(k->path, O_RDWR | O_CLOEXEC);
  assert_int_equal(syscall(SYS_flock, taken, LOCK_EX | LOCK_NB), 0);
}

static void a_new_file_that_another_locked_first_stays(void **state) {
  struct filed *k = *state;
  struct stat s;
  locking = k;
  before_lock = take_it;
  refused(k, PERIGEE_CACHE_IN_USE, "another cache");
  assert_int_equal(stat(k->path, &s), 0);
  close(taken);
}

static void two_do_not_have_one_file(void **state) {
  struct filed *k = *state;
  struct filed other = *k;
  int ends[2];
  char byte = 0;
  filed_open_ready(k);
  refused(&other, PERIGEE_CACHE_IN_USE, "another cache");
  assert_int_equal(filed_write(k, "k", 100, 1), 0);
  filed_close(k);
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    byte = filed_open(&other) == 0;
    while (write(ends[1], &byte, 1) == 1)
      pause();
    _exit(1);
  }
  assert_int_equal(read(ends[0], &byte, 1), 1);
  assert_int_equal(byte, 1);
  refused(k, PERIGEE_CACHE_IN_USE, "another cache");
  close(ends[0]);
  close(ends[1]);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  filed_open_ready(k);
}

static void wrong_options_are_refused(void **state) {
  struct filed *k = *state;
  k->options.size = FILED_SIZE + 1;
  refused(k, PERIGEE_INVALID, "range");
  k->options.size = 4096;
  refused(k, PERIGEE_INVALID, "range");
  k->options.size = FILED_SIZE;
  k->options.depth = 1001;
  refused(k, PERIGEE_INVALID, "range");
  k->options.depth = 0;
  k->options.path = "/nowhere/at/all";
  refused(k, PERIGEE_SYSTEM, "No such file");
}

static void a_file_of_another_size_is_begun_anew(void **state) {
  struct filed *k = *state;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "k", 100, 1), 0);
  filed_close(k);
  k->options.size = 2 * FILED_SIZE;
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 0);
  filed_close(k);
  k->options.size = FILED_SIZE;
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 0);
}

/* ---- File systems without room ----------------------------------------- */

static void more_than_the_file_system_has_is_refused(void **state) {
  struct filed *k = *state;
  struct stat s;
  k->options.size = UINT64_C(1) << 49;
  refused(k, PERIGEE_CACHE_NO_SPACE, "free");
  assert_int_equal(stat(k->path, &s), -1);
}

/* Runs in a child process with a file system of its own; returns 77 where that
 * is not allowed. */
static int in_small_one(struct filed *k) {
  if (unshare(CLONE_NEWNS) < 0 ||
      mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
      mount("tmpfs", k->folder, "tmpfs", 0, "size=9m") < 0)
    return 77;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "k", 100000, 1), 0);
  filed_close(k);
  k->options.size = 2 * FILED_SIZE;
  refused(k, PERIGEE_CACHE_NO_SPACE, "MiB");
  k->options.size = FILED_SIZE;
  filed_open_ready(k);
  assert_int_equal(filed_read(k, "k"), 1);
  filed_close(k);
  if (mount(NULL, k->folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
    return 77;
  refused(k, PERIGEE_CACHE_READ_ONLY, "Read-only");
  return 0;
}

static void a_small_and_a_read_only_file_system_say_so(void **state) {
  struct filed *k = *state;
  int status;
  for (int by_threads = 0; by_threads < 2; by_threads++) {
    k->options.by_threads = by_threads != 0;
    pid_t child = fork();
    if (child == 0)
      _exit(in_small_one(k));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
      skip();
    assert_int_equal(status, 0);
  }
}

/* ---- Kernels that refuse io_uring -------------------------------------- */

/* As a container's filter does. */
static int refuse_rings(int error) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {.len = 4, .filter = steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) |
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static int without_rings(struct filed *k, int error) {
  struct perigee_cache_file_state s;
  if (refuse_rings(error) < 0)
    return 77;
  filed_open_ready(k);
  perigee_cache_file_state(k->file, &s);
  assert_int_equal(s.ring, 0);
  assert_int_equal(filed_write(k, "k", 100000, 1), 0);
  assert_int_equal(filed_read(k, "k"), 1);
  filed_close(k);
  return 0;
}

static void threads_do_the_same_where_rings_are_refused(void **state) {
  static const int errors[] = {EPERM, ENOSYS, EINVAL, ENOMEM};
  struct filed *k = *state;
  int status;
  k->options.by_threads = 0;
  for (int i = 0; i < 4; i++) {
    pid_t child = fork();
    if (child == 0)
      _exit(without_rings(k, errors[i]));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
      skip();
    assert_int_equal(status, 0);
    unlink(k->path);
  }
}

/* ---- Devices that fail ------------------------------------------------- */

static void what_is_done_in_pieces_is_done_in_the_end(void **state) {
  struct filed *k = *state;
  piece_most = 8192;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "a", 100000, 1), 0);
  assert_int_equal(filed_write(k, "b", 5000, 2), 0);
  assert_int_equal(filed_read(k, "a"), 1);
  filed_close(k);
  filed_open_ready(k);
  assert_int_equal(filed_read(k, "a"), 1);
  assert_int_equal(filed_read(k, "b"), 2);
}

/* Waits until all is done that can be. */
static void idle(struct filed *k) {
  for (int i = 0; i < 100; i++) {
    filed_poll(k, NULL, 0);
    usleep(1000);
  }
}

static void a_value_that_cannot_be_written_is_not_there(void **state) {
  struct filed *k = *state;
  struct perigee_cache_file_state s;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  filed_settle(k);
  write_error = EIO;
  assert_int_equal(filed_write(k, "b", 5000, 2), PERIGEE_CACHE_IO);
  write_error = ENOSPC;
  assert_int_equal(filed_write(k, "c", 5000, 3), PERIGEE_CACHE_NO_SPACE);
  write_error = 0;
  assert_int_equal(filed_entries(k), 1);
  perigee_cache_file_state(k->file, &s);
  assert_int_equal(s.failed, 0);
  assert_int_equal(filed_write(k, "b", 5000, 4), 0);
  assert_int_equal(filed_read(k, "b"), 4);
}

/* Records that cannot be written end it all, and who waits for them is told. */
static void a_table_that_cannot_be_written_ends_writing(void **state) {
  struct filed *k = *state;
  struct perigee_cache_file_state s;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  filed_settle(k);
  write_error = EIO;
  assert_int_equal(perigee_cache_file_forget(k->file, "a", 1, 4), 1);
  assert_int_equal(filed_next(k, 4), PERIGEE_CACHE_IO);
  write_error = 0;
  perigee_cache_file_state(k->file, &s);
  assert_int_equal(s.failed, PERIGEE_CACHE_IO);
  assert_int_equal(s.under_way, 0);
  assert_int_equal(filed_write(k, "b", 5000, 2), PERIGEE_CACHE_IO);
  assert_int_equal(perigee_cache_file_forget(k->file, "b", 1, 5),
                   PERIGEE_CACHE_IO);
  idle(k);
  assert_int_equal(perigee_cache_file_close(k->file), 0);
  k->file = NULL;
}

static void a_read_that_fails_says_so(void **state) {
  struct filed *k = *state;
  struct perigee_cache_place place;
  uint8_t *to = filed_memory(5000);
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  read_error = EIO;
  assert_int_equal(
      perigee_cache_file_read(k->file, "a", 1, to, 5000, 1, &place), 0);
  assert_int_equal(filed_next(k, 1), PERIGEE_CACHE_IO);
  filed_close(k);
  /* Nothing of the directory can be read. */
  filed_open_ready(k);
  assert_int_equal(filed_entries(k), 0);
  filed_close(k);
  read_error = 0;
  filed_open_ready(k);
  assert_true(filed_entries(k) <= 1);
  free(to);
}

static void a_file_that_is_cut_under_us_says_so(void **state) {
  struct filed *k = *state;
  for (int by_threads = 0; by_threads < 2; by_threads++) {
    struct perigee_cache_place place;
    uint8_t *to = filed_memory(1 << 20);
    k->options.by_threads = by_threads != 0;
    filed_open_ready(k);
    filed_forget(k, "a");
    assert_int_equal(filed_write(k, "a", 1 << 20, 1), 0);
    filed_settle(k);
    assert_int_equal(perigee_cache_stat(k->file->store, "a", 1, k->now, &place),
                     0);
    off_t cut = (off_t)(part_offset(k->file, place.slab) + place.offset);
    assert_int_equal(truncate(k->path, cut + 100000), 0);
    assert_int_equal(
        perigee_cache_file_read(k->file, "a", 1, to, 1 << 20, 1, &place), 0);
    assert_int_equal(filed_next(k, 1), PERIGEE_CACHE_IO);
    filed_close(k);
    filed_open_ready(k);
    assert_int_equal(filed_read(k, "a"), 0);
    filed_close(k);
    free(to);
  }
}

/* ---- The order of writes ----------------------------------------------- */

static uint64_t place_offset(struct filed *k, const char *key) {
  struct perigee_cache_place place;
  assert_int_equal(perigee_cache_stat(k->file->store, key,
                                      (uint32_t)strlen(key), k->now, &place),
                   0);
  return part_offset(k->file, slab_index(place.slab)) + place.offset;
}

/* In a full file, a value goes to the place of another one. */
static void a_record_goes_before_its_place_is_written(void **state) {
  struct filed *k = *state;
  char key[16];
  k->options.size = 1 << 20;
  k->options.threads = 1;
  filed_open_ready(k);
  for (uint32_t i = 0; i < 200; i++) {
    snprintf(key, sizeof key, "key %u", i);
    k->now += SECONDS;
    uint32_t before = write_count;
    assert_int_equal(filed_write(k, key, 30000, i + 1), 0);
    filed_settle(k);
    if (i < 100)
      continue;
    uint64_t at = place_offset(k, key);
    /* A block, and then the value. */
    assert_int_equal(writes[before % LOG].length, BLOCK);
    assert_int_equal(writes[(before + 1) % LOG].at, at);
  }
}

static void
a_part_waits_for_its_last_block_before_it_is_used_anew(void **state) {
  struct filed *k = *state;
  struct perigee_cache_file_end end;
  uint8_t *value = filed_memory(70000);
  k->options.size = 1 << 20;
  filed_open_ready(k);
  assert_int_equal(filed_write(k, "a", 5000, 1), 0);
  filed_settle(k);
  hold_blocks = true;
  assert_int_equal(filed_write(k, "b", 5000, 2), 0);
  while (!holding)
    filed_poll(k, NULL, 0);
  uint32_t before = write_count;
  assert_int_equal(perigee_cache_file_forget(k->file, "a", 1, 1), 1);
  assert_int_equal(perigee_cache_file_forget(k->file, "b", 1, 2), 1);
  filed_value(value, 28000, "c", 3);
  assert_int_equal(filed_start(k, "c", value, 28000, 3, 0, 3), 0);
  assert_int_equal(k->file->part_end, 1);
  for (int i = 0; i < 50; i++) {
    assert_int_equal(filed_poll(k, &end, 1), 0);
    usleep(1000);
  }
  assert_int_equal(write_count, before);
  hold_blocks = false;
  for (int i = 0; i < 3;) {
    if (filed_poll(k, &end, 1) == 1) {
      assert_int_equal(end.status, 0);
      i++;
    }
  }
  assert_int_equal(filed_read(k, "c"), 3);
  free(value);
}

/* ---- Sums -------------------------------------------------------------- */

static void sums_can_be_cut(void **state) {
  enum { LENGTH = 3 * PERIGEE_CACHE_SUM_PIECE + 77 };
  uint8_t *bytes = malloc(LENGTH);
  uint64_t whole, sum = 0;
  (void)state;
  filed_value(bytes, LENGTH, "sums", 1);
  whole = perigee_cache_sum(bytes, LENGTH, 0);
  for (uint64_t at = 0; at < LENGTH; at += PERIGEE_CACHE_SUM_PIECE) {
    uint64_t left = LENGTH - at;
    sum = perigee_cache_sum(
        bytes + at,
        left < PERIGEE_CACHE_SUM_PIECE ? left : PERIGEE_CACHE_SUM_PIECE, sum);
  }
  assert_int_equal(sum, whole);
  bytes[2 * PERIGEE_CACHE_SUM_PIECE + 5] ^= 1;
  assert_int_not_equal(perigee_cache_sum(bytes, LENGTH, 0), whole);
  assert_int_equal(perigee_cache_sum(bytes, 0, 0), 0);
  assert_int_equal(perigee_cache_sum(bytes, 0, 5), 5);
  /* XXH3_64bits of "a", of which other programs make the same. */
  assert_int_equal(perigee_cache_sum("a", 1, 0), UINT64_C(0xe6c632b61e964e1f));
  free(bytes);
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(another_file_stays_as_it_is),
      EACH(a_file_that_others_may_write_is_refused),
      EACH(an_empty_file_or_zeros_will_do),
      EACH(a_file_that_begins_with_zeros_stays_as_it_is),
      EACH(zeros_that_were_written_will_do),
      EACH(a_file_is_marked_before_its_space_is_taken),
      EACH(a_file_that_its_owner_removes_is_not_taken),
      EACH(a_new_file_that_another_locked_first_stays),
      EACH(two_do_not_have_one_file),
      EACH(wrong_options_are_refused),
      EACH(a_file_of_another_size_is_begun_anew),
      EACH(more_than_the_file_system_has_is_refused),
      EACH(a_small_and_a_read_only_file_system_say_so),
      EACH(threads_do_the_same_where_rings_are_refused),
      EACH(what_is_done_in_pieces_is_done_in_the_end),
      EACH(a_value_that_cannot_be_written_is_not_there),
      EACH(a_table_that_cannot_be_written_ends_writing),
      EACH(a_read_that_fails_says_so),
      EACH(a_file_that_is_cut_under_us_says_so),
      EACH(a_record_goes_before_its_place_is_written),
      EACH(a_part_waits_for_its_last_block_before_it_is_used_anew),
      cmocka_unit_test(sums_can_be_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
