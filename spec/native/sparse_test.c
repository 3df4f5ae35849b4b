/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse_test.c - memory of the peer that is not there: what was lent without
 * being written reads as zeros, and no page is made of it for the peer, also
 * where the peer hands over another file later. Rings that are larger than the
 * writer's own are made by their reader.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"
#include "support_inside.h"

enum { PAGE = 4096, LENGTH = 2 * MIB, FEW = 64 };

/* What a side does otherwise than it should: it makes no page of its rings; seals
 * them as an older build does; or adds a seal against holes just before the other
 * side adds the last one. swaps: the system has swapped everything out but what
 * it was asked for, which comes after so many waits. claims: all pages are there.
 */
static struct {
  bool hollow, older, races, swaps, claims;
  int waits;
  struct {
    const uint8_t *from, *to;
  } in[64];
  int asked;
} liar;

static void bring_in(const uint8_t *from, size_t length) {
  for (int i = 0; i < liar.asked; i++)
    if (from == liar.in[i].from && from + length == liar.in[i].to)
      return;
  assert_true(liar.asked < 64);
  liar.in[liar.asked].from = from;
  liar.in[liar.asked++].to = from + length;
}

static bool is_in(const uint8_t *from, size_t length) {
  if (liar.waits > 0)
    return false;
  for (int i = 0; i < liar.asked; i++)
    if (from >= liar.in[i].from && from + length <= liar.in[i].to)
      return true;
  return false;
}

int madvise(void *at, size_t length, int advice) {
  if (advice == MADV_POPULATE_WRITE && liar.hollow)
    return 0;
  if (advice == MADV_WILLNEED && liar.swaps)
    bring_in(at, length);
  return (int)syscall(SYS_madvise, at, length, advice);
}

static uint64_t looked; /* pages that were asked for */

int mincore(void *at, size_t length, unsigned char *there) {
  looked += length / PAGE;
  if (!liar.swaps && !liar.claims)
    return (int)syscall(SYS_mincore, at, length, there);
  memset(there, liar.claims || is_in(at, length), (length + PAGE - 1) / PAGE);
  return 0;
}

/* Pages of it that the system has made. */
static int pages_of(const void *memory, uint64_t length) {
  static unsigned char there[LENGTH / PAGE];
  int count = 0;
  assert_int_equal(mincore((void *)(uintptr_t)memory, length, there), 0);
  for (uint64_t i = 0; i < length / PAGE; i++)
    count += there[i] & 1;
  return count;
}

static void must(bool fine, const char *what) {
  if (fine)
    return;
  fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

static uint8_t *lend(struct pair *p) {
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p->session[0], LENGTH, &loan), 0);
  return loan.pointer;
}

static struct perigee_event serve(struct pair *p) {
  struct perigee_message m = {.timeout = -1};
  assert_true(perigee_call_commit(p->session[0], &m, LENGTH) >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, LENGTH);
  return e;
}

static void answer(struct pair *p, const struct perigee_event *e) {
  struct perigee_message m = {0};
  assert_int_equal(perigee_reply(p->engine[1], e->operation, &m), 0);
  assert_int_equal(until(p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_OK);
}

static bool all(const uint8_t *bytes, uint64_t length, int byte) {
  return length == 0 || (bytes[0] == byte &&
                         memcmp(bytes, bytes + 1, (size_t)length - 1) == 0);
}

static uint64_t pooled(struct pair *p) {
  return perigee_counters(p->engine[1], NULL)->pooled;
}

static void what_was_not_written_is_zeros_and_gets_no_page(void **state) {
  struct pair p;
  pair_open(&p, *state);
  const uint8_t *lent = lend(&p);
  struct perigee_event e = serve(&p);
  assert_true(all(e.pointer, LENGTH, 0));
  assert_int_equal(pages_of(lent, LENGTH), 0);
  answer(&p, &e);
  pair_close(&p);
}

static void what_was_written_between_holes_comes(void **state) {
  struct pair p;
  pair_open(&p, *state);
  uint8_t *lent = lend(&p);
  memset(lent + 5 * PAGE, 1, PAGE + 1);
  memset(lent + MIB, 2, 100);
  struct perigee_event e = serve(&p);
  assert_true(all(e.pointer, 5 * PAGE, 0));
  assert_true(all(e.pointer + 5 * PAGE, PAGE + 1, 1));
  assert_true(all(e.pointer + MIB, 100, 2));
  assert_true(all(e.pointer + MIB + 100, MIB - 100, 0));
  assert_int_equal(pages_of(lent, LENGTH), 3);
  answer(&p, &e);
  pair_close(&p);
}

/* Also where it was not when the block was lent before. */
static void what_is_there_is_read_in_place(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int written = 0; written < 4; written++) {
    uint8_t *lent = lend(&p);
    if (written)
      memset(lent, written, LENGTH);
    struct perigee_event e = serve(&p);
    assert_true(all(e.pointer, LENGTH, written));
    assert_int_equal(pooled(&p) > 0, written == 0);
    answer(&p, &e);
  }
  pair_close(&p);
}

/* ---- Replies ------------------------------------------------------------- */

static void replies_that_were_not_written_are_zeros(void **state) {
  struct perigee_message m = {.timeout = -1, .capacity = LENGTH};
  struct perigee_loan loan;
  struct pair p;
  pair_open(&p, *state);
  int op = perigee_call(p.session[0], &m);
  int asked = until(&p, 1, PERIGEE_EVENT_REQUEST).operation;
  assert_int_equal(perigee_reply_begin(p.engine[1], asked, LENGTH, &loan), 0);
  loan.pointer[LENGTH - 1] = 3;
  assert_true(perigee_reply_commit(p.engine[1], asked, LENGTH) >= 0);
  struct perigee_event e = ended(&p, 0, op, PERIGEE_OK);
  assert_true(all(e.pointer, LENGTH - 1, 0));
  assert_int_equal(e.pointer[LENGTH - 1], 3);
  assert_int_equal(pages_of(loan.pointer, LENGTH), 1);
  until(&p, 1, PERIGEE_EVENT_SENT);
  pair_close(&p);
}

/* ---- Segments that change ------------------------------------------------- */

/* A file for a segment; `byte` fills so many bytes of it. */
static int segment_file(const struct pair *p, int byte, uint64_t filled) {
  enum { ALL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE };
  uint64_t length = segment_bytes(p->session[0]);
  int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  uint8_t *at = mmap(NULL, length, PROT_WRITE, MAP_SHARED, fd, 0);
  assert_ptr_not_equal(at, MAP_FAILED);
  memset(at, byte, filled);
  munmap(at, length);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL), 0);
  return fd;
}

static int64_t pages_in(int fd) {
  struct stat st;
  assert_int_equal(fstat(fd, &st), 0);
  return st.st_blocks * 512 / PAGE;
}

/* The peer says that its first segment is there, or gone (-1). */
static void tell(struct pair *p, int fd) {
  assert_true(say_segment(p->session[0], 0, fd >= 0, fd));
}

static void tell_of(struct pair *p, uint32_t segment, int fd) {
  assert_true(say_segment(p->session[0], segment, 1, fd));
}

/* A request of what lies at the begin of that segment. */
static void ask(struct pair *p, uint16_t said) {
  refer(p->session[0], false, said, 0, LENGTH);
}

static struct perigee_event asked(struct pair *p) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, LENGTH);
  return e;
}

/* The first request names a segment that nobody has told of; the second, which
 * the same poll reads, has the socket read, where it is told. */
static void what_comes_after_the_look_is_not_read_in_place(void **state) {
  struct perigee_event e[2];
  struct pair p;
  int got = 0;
  pair_open(&p, *state);
  int fd = segment_file(&p, 0, 0);
  ask(&p, 0);
  ask(&p, 1);
  tell(&p, fd);
  while (got < 2)
    got += perigee_poll(p.engine[1], e + got, 2 - got);
  for (int i = 0; i < 2; i++)
    assert_true(all(e[i].pointer, LENGTH, 0));
  assert_int_equal(pages_in(fd), 0);
  close(fd);
  pair_drop(&p);
}

/* Another file comes where a request is still read. It is read by a call, until
 * that request is answered. */
static void what_replaces_memory_in_view_is_not_mapped_there(void **state) {
  struct perigee_message m = {.head = "x", .length = 1};
  struct pair p;
  pair_open(&p, *state);
  int full = segment_file(&p, 1, LENGTH), other = segment_file(&p, 2, PAGE);
  tell(&p, full);
  ask(&p, 1);
  struct perigee_event first = asked(&p);
  assert_true(all(first.pointer, LENGTH, 1));
  tell(&p, -1);
  tell(&p, other);
  ask(&p, 2);
  struct perigee_event second = asked(&p);
  assert_true(all(second.pointer, PAGE, 2));
  assert_true(all(second.pointer + PAGE, LENGTH - PAGE, 0));
  assert_true(all(first.pointer, LENGTH, 0));
  assert_int_equal(pages_in(other), 1);
  assert_true(pooled(&p) > 0);
  perigee_reply(p.engine[1], first.operation, &m);
  perigee_reply(p.engine[1], second.operation, &m);
  quiet(&p, 1);
  refer(p.session[0], false, 2, 0, PAGE);
  struct perigee_event third = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_true(all(third.pointer, PAGE, 2));
  assert_int_equal(pooled(&p), 0);
  close(full);
  close(other);
  pair_drop(&p);
}

static void a_segment_is_not_replaced_while_it_is_there(void **state) {
  struct pair p;
  pair_open(&p, *state);
  int fd = segment_file(&p, 0, 0);
  tell(&p, fd);
  tell(&p, fd);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  close(fd);
  pair_drop(&p);
}

/* ---- Regions --------------------------------------------------------------- */

static void read_all(struct pair *p, struct perigee_remote *remote,
                     struct perigee_region *here) {
  struct perigee_transfer t = {.local = all_of(here, LENGTH)};
  t.remote = (struct perigee_slice){
      .remote = remote, .length = LENGTH, .count = 1, .stride = LENGTH};
  finish(p, perigee_transfer(p->session[0], PERIGEE_OP_READ, &t, 1, 0, -1),
         PERIGEE_OK);
}

/* No page is made by reading; what the owner writes later is found. */
static void regions_that_are_not_written_are_zeros(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *here = region_of(&p, 0, "here", LENGTH, 0);
  struct perigee_region *there =
      region_of(&p, 1, "there", LENGTH, PERIGEE_READ);
  uint8_t *written = perigee_region_pointer(there);
  const uint8_t *got = perigee_region_pointer(here);
  struct perigee_remote *remote = look_up(&p, "there");
  for (int round = 0; round < 2; round++) {
    if (round == 1)
      memset(written + 7 * PAGE, 5, PAGE);
    fill_byte(here, 9);
    read_all(&p, remote, here);
    assert_true(all(got, 7 * PAGE, 0));
    assert_true(all(got + 7 * PAGE, PAGE, 5 * round));
    assert_true(all(got + 8 * PAGE, LENGTH - 8 * PAGE, 0));
    assert_int_equal(pages_of(written, LENGTH), round);
  }
  int before = descriptors();
  memset(written, 6, LENGTH);
  for (int round = 0; round < 2; round++) {
    read_all(&p, remote, here);
    assert_true(all(got, LENGTH, 6));
  }
  assert_int_equal(descriptors(), before - 1); /* its file is not needed now */
  region_end(here);
  region_end(there);
  pair_close(&p);
}

/* A call is made only for pages that were not seen. */
static void regions_that_were_read_need_no_look(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *here = region_of(&p, 0, "here", LENGTH, 0);
  struct perigee_region *there =
      region_of(&p, 1, "there", LENGTH, PERIGEE_READ);
  struct perigee_remote *remote = look_up(&p, "there");
  fill_byte(there, 1);
  read_all(&p, remote, here);
  uint64_t before = looked;
  read_all(&p, remote, here);
  assert_int_equal(looked, before);
  region_end(here);
  region_end(there);
  pair_close(&p);
}

/* ---- In a child ------------------------------------------------------------ */

static void closed_twice(struct pair *p) {
  int fds[FEW];
  perigee_session_close(p->session[1]);
  for (int i = 0; i < FEW; i++)
    must((fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0, "it opens");
  perigee_session_free(p->session[1]);
  perigee_engine_close(p->engine[1]);
  for (int i = 0; i < FEW; i++)
    must(fcntl(fds[i], F_GETFD) >= 0, "what the child opened stays open");
}

/* The file of a segment is kept, as not all of it is there. */
static void a_child_closes_the_files_of_segments_once(void **state) {
  struct pair p;
  int status;
  pair_open(&p, *state);
  lend(&p);
  struct perigee_event e = serve(&p);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    closed_twice(&p);
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  answer(&p, &e);
  pair_close(&p);
}

/* ---- Looking --------------------------------------------------------------- */

/* The peer hands one file over for many segments, and lends all of each at once.
 * What a poll looks at does not grow with that. */
static void looks_of_one_poll_are_limited(void **state) {
  enum { SEGMENTS = 32, A_POLL = 4096 + 512 };
  struct perigee_event e[SEGMENTS];
  struct pair p;
  int got = 0;
  pair_open(&p, *state);
  uint64_t size = segment_bytes(p.session[0]);
  int fd = segment_file(&p, 1, size);
  for (uint32_t i = 0; i < SEGMENTS; i++)
    tell_of(&p, i, fd);
  for (uint64_t i = 0; i < SEGMENTS; i++)
    refer(p.session[0], false, SEGMENTS, i * size, size);
  while (got < SEGMENTS) {
    uint64_t before = looked;
    got += perigee_poll(p.engine[1], e + got, SEGMENTS - got);
    assert_true(looked - before <= A_POLL);
  }
  assert_int_equal(e[SEGMENTS - 1].length, size);
  assert_true(looked >= SEGMENTS * size / PAGE);
  close(fd);
  pair_drop(&p);
}

/* Of a peer with so much to lend that its segments are long. */
static void known_open(struct pair *p, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  *p = (struct pair){.variant = state};
  assert_int_equal(perigee_engine_open(&o, &p->engine[1]), 0);
  o.pool = UINT64_C(32) << 30;
  assert_int_equal(perigee_engine_open(&o, &p->engine[0]), 0);
  pair_listen(p);
  pair_dial(p, p->session);
}

/* Has side 1 know all pages of the first segments but the last one, of a file that
 * has none. */
static void know(struct pair *p, uint32_t segments) {
  uint64_t size = segment_bytes(p->session[0]);
  int fd = segment_file(p, 0, 0);
  for (uint32_t i = 0; i < segments; i++)
    tell_of(p, i, fd);
  liar.claims = true;
  refer(p->session[0], false, (uint16_t)segments, 0, segments * size - PAGE);
  until(p, 1, PERIGEE_EVENT_REQUEST);
  close(fd);
}

/* So many requests of a loan that is known: the most that one poll takes. */
static int taken_by_a_poll(struct pair *p, int requests, uint16_t said,
                           uint64_t at, uint64_t length) {
  static struct perigee_event e[128];
  int most = 0;
  for (int i = 0; i < requests; i++)
    refer(p->session[0], false, said, at, length);
  for (int polls = 0, all = 0, got; all < requests; all += got) {
    if (polls++ == 10000)
      fail_msg("of %d requests of what is known only %d came", requests, all);
    got = perigee_poll(p->engine[1], e, 128);
    most = got > most ? got : most;
  }
  return most;
}

/* A peer that lends all that it has in each request holds nobody up: what is read
 * of notes about pages does not grow with that, and counts as work of the poll. */
static void looks_at_known_pages_are_limited(void **state) {
  enum { SEGMENTS = 16, REQUESTS = 100 };
  struct pair p;
  known_open(&p, *state);
  know(&p, SEGMENTS);
  uint64_t size = segment_bytes(p.session[0]), before = looked;
  forget_bits(p.session[1], SEGMENTS - 1);
  taken_by_a_poll(&p, 1, SEGMENTS, 0, SEGMENTS * size - PAGE);
  if (looked != before)
    fail_msg("pages of segments that are there were looked at again");
  int most = taken_by_a_poll(&p, REQUESTS, SEGMENTS, (SEGMENTS - 1) * size,
                             size - PAGE);
  if (most > REQUESTS / 2)
    fail_msg("one poll took %d requests of loans that are long to look up",
             most);
  pair_drop(&p);
}

/* ---- Without descriptors -------------------------------------------------- */

/* What is written still comes; the rest cannot be read. */
static void none_left(void *state) {
  static struct pair p;
  struct perigee_message m = {.timeout = -1};
  struct rlimit few = {FEW, FEW};
  pair_open(&p, state);
  setrlimit(RLIMIT_NOFILE, &few);
  while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
    ;
  uint8_t *lent = lend(&p);
  must(perigee_call_commit(p.session[0], &m, LENGTH) >= 0, "it is called");
  struct perigee_event e = until(&p, 0, PERIGEE_EVENT_REPLY);
  must(e.status == PERIGEE_NO_MEMORY, "it cannot be read");
  must(pages_of(lent, LENGTH) == 0, "and no page is made");
  memset(lend(&p), 1, LENGTH);
  e = serve(&p);
  must(all(e.pointer, LENGTH, 1), "what is there can be");
}

static void holes_without_a_descriptor_are_refused(void **state) {
  int status;
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    none_left(*state);
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* No descriptor of a segment is kept longer than it is needed. */
static void files_are_closed_once_all_is_there(void **state) {
  struct perigee_message m = {.timeout = -1};
  struct perigee_loan loan;
  enum { ALL = 16 * MIB };
  struct pair p;
  pair_open(&p, *state);
  int before = descriptors();
  for (int i = 0; i < 2; i++) {
    assert_int_equal(perigee_call_begin(p.session[0], ALL - 64, &loan), 0);
    memset(loan.pointer, 1, ALL - 64);
    assert_true(perigee_call_commit(p.session[0], &m, ALL - 64) >= 0);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.length, ALL - 64);
    answer(&p, &e);
  }
  assert_int_equal(descriptors(), before);
  pair_close(&p);
}

/* ---- Rings ---------------------------------------------------------------- */

static int with_lies(int fd, int command, long value) {
  bool adds = command == F_ADD_SEALS, made = !(value & F_SEAL_SEAL);
  if (adds && made && liar.older && !(value & F_SEAL_FUTURE_WRITE))
    value |= F_SEAL_SEAL;
  if (adds && value == F_SEAL_SEAL && liar.races)
    syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  return (int)syscall(SYS_fcntl, fd, command, value);
}

int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  long value = va_arg(list, long);
  va_end(list);
  return with_lies(fd, command, value);
}

int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

static void open_engines(struct pair *p, void *state, uint64_t ring) {
  struct perigee_options o;
  variant_options(state, &o);
  *p = (struct pair){.variant = state};
  assert_int_equal(perigee_engine_open(&o, &p->engine[1]), 0);
  o.ring = ring;
  assert_int_equal(perigee_engine_open(&o, &p->engine[0]), 0);
  pair_listen(p);
}

/* The first side has longer rings. */
static void open_unequal(struct pair *p, void *state, uint64_t ring) {
  open_engines(p, state, ring);
  pair_dial(p, p->session);
}

static int made_pages(const struct pair *p) {
  uint64_t length;
  const uint8_t *inbox = inbox_of(p->session[0], &length);
  return pages_of(inbox, length);
}

/* Requests of the side with small rings fill half of a large one, before anybody
 * reads one: heads that found no room would be overwritten here. */
static void larger_rings_are_used_whole(void **state) {
  enum { RING = MIB, EACH = 7000, CALLS = RING / 2 / EACH, ROUNDS = 5 };
  static uint8_t bytes[EACH];
  struct perigee_message m = {.timeout = -1, .head = bytes, .length = EACH};
  struct pair p;
  open_unequal(&p, *state, RING);
  for (int round = 0; round < ROUNDS; round++) {
    for (int call = 0; call < CALLS; call++) {
      memset(bytes, call, EACH);
      assert_true(perigee_call(p.session[1], &m) >= 0);
    }
    memset(bytes, -1, EACH);
    for (int call = 0; call < CALLS; call++) {
      struct perigee_event e = until(&p, 0, PERIGEE_EVENT_REQUEST);
      assert_true(all(e.pointer, EACH, (uint8_t)call));
      perigee_reply(p.engine[0], e.operation, &(struct perigee_message){0});
      until(&p, 1, PERIGEE_EVENT_REPLY);
    }
  }
  pair_close(&p);
}

/* Calls of the side with shorter rings that nobody answers. */
static void call_until_full(struct pair *p) {
  static uint8_t bytes[7000];
  struct perigee_message m = {
      .timeout = -1, .head = bytes, .length = sizeof bytes};
  for (int i = 0; i < 30; i++)
    assert_true(perigee_call(p->session[1], &m) >= 0);
  poll_side(p, 1);
}

static void longer_rings_that_are_not_there_are_not_written(void **state) {
  struct pair p;
  uint64_t length;
  liar.hollow = true;
  open_unequal(&p, *state, MIB);
  liar.hollow = false;
  int looked_at = made_pages(&p);
  call_until_full(&p);
  assert_int_equal(made_pages(&p), looked_at);
  const uint8_t *inbox = inbox_of(p.session[0], &length);
  assert_int_equal(
      madvise((void *)(uintptr_t)inbox, length, MADV_POPULATE_WRITE), 0);
  poll_side(&p, 1);
  until(&p, 0, PERIGEE_EVENT_REQUEST); /* now they are */
  pair_drop(&p);
}

enum { WAITS = 50 };

/* Nobody wakes a side whose pages come, so it never sleeps for long. */
static void waits_until_pages_are_in(struct pair *p, int side) {
  for (; liar.waits > 0; liar.waits--) {
    int64_t sleep = 0;
    poll_side(p, side);
    perigee_arm(p->engine[side], &sleep);
    if (sleep < 0 || sleep > 20 * MS)
      fail_msg("side %d would sleep for %lld ns, and not look for its pages",
               side, (long long)sleep);
  }
}

static void rings_that_were_swapped_out_are_asked_for(void **state) {
  struct pair p;
  open_unequal(&p, *state, MIB);
  liar.swaps = true;
  liar.waits = WAITS;
  call_until_full(&p);
  waits_until_pages_are_in(&p, 1);
  until(&p, 0, PERIGEE_EVENT_REQUEST);
  pair_drop(&p);
}

/* The word of a staging block is only read where it is mapped. */
static void staged_bytes_that_were_swapped_out_are_asked_for(void **state) {
  struct variant copies = *(const struct variant *)*state;
  struct pair p;
  uint8_t *bytes = pattern(256 << 10, 3);
  struct perigee_message m = {
      .timeout = -1, .head = bytes, .length = 256 << 10};
  copies.pull = 0;
  pair_open(&p, &copies);
  liar.swaps = true;
  liar.waits = WAITS;
  assert_true(perigee_call(p.session[0], &m) >= 0);
  waits_until_pages_are_in(&p, 1);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, m.length);
  assert_memory_equal(e.pointer, bytes, m.length);
  answer(&p, &e);
  pair_close(&p);
  free(bytes);
}

/* Takes the session from the side that wrote. */
static void free_writer(struct pair *p) {
  struct perigee_event e;
  perigee_session_free(p->session[1]);
  for (int i = 0; i < 10; i++)
    perigee_poll(p->engine[1], &e, 1);
  p->session[1] = NULL;
}

/* The peer breaks the protocol, and keeps its rings. */
static void rings_of_who_was_left_lose_their_pages(void **state) {
  struct pair p;
  pair_open(&p, *state);
  call_until_full(&p);
  assert_true(made_pages(&p) > 10);
  assert_true(say_segment(p.session[0], 0, 2, -1));
  look_at_clock(p.engine[1]);
  poll_side(&p, 1);
  free_writer(&p);
  assert_int_equal(made_pages(&p), 0);
  pair_drop(&p);
}

/* What was answered last can still be read. */
static void rings_of_who_leaves_stay_until_the_session_is_over(void **state) {
  struct pair p;
  pair_open(&p, *state);
  call_until_full(&p);
  free_writer(&p);
  until(&p, 0, PERIGEE_EVENT_REQUEST);
  pair_drop(&p);
}

/* Also for who closes the session in the midst of it: the peer then takes the
 * pages of its rings away. */
static void what_was_given_stays_until_the_next_poll(void **state) {
  uint8_t text[1000];
  struct perigee_message m = {
      .head = text, .length = sizeof text, .timeout = -1};
  struct pair p;
  pair_open(&p, *state);
  memset(text, 7, sizeof text);
  assert_true(perigee_call(p.session[0], &m) >= 0);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  assert_true(all(e.pointer, e.length, 7));
  perigee_session_close(p.session[1]);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  until(&p, 0, PERIGEE_EVENT_LOST);
  perigee_session_free(p.session[0]);
  poll_side(&p, 0);
  assert_int_equal(e.length, sizeof text);
  assert_true(all(e.pointer, e.length, 7));
  pair_drop(&p);
}

/* Who closes it has read some of them, and the peer still has them mapped: but for
 * what was given last, their memory goes back. */
static void rings_of_who_closes_keep_few_pages(void **state) {
  enum { FEW = 4 };
  uint64_t length;
  struct pair p;
  pair_open(&p, *state);
  call_until_full(&p);
  const uint8_t *inbox = peer_inbox_of(p.session[1], &length);
  until(&p, 0, PERIGEE_EVENT_REQUEST);
  assert_true(pages_of(inbox, length) > 2 * FEW);
  perigee_session_close(p.session[0]);
  p.still[1] = true;
  until(&p, 0, PERIGEE_EVENT_LOST);
  perigee_session_free(p.session[0]);
  poll_side(&p, 0);
  assert_in_range(pages_of(inbox, length), 0, FEW);
  pair_drop(&p);
}

/* What the dialer is told of a session over shared memory alone. */
static struct perigee_event refused(struct pair *p) {
  int dial = perigee_connect(p->engine[0], p->address, "shm", 20000 * MS);
  assert_true(dial >= 0);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.operation, dial);
  return e;
}

/* The pages that this side has made could not be taken back. */
static void a_seal_that_is_added_at_the_last_moment_is_seen(void **state) {
  struct pair p;
  open_engines(&p, *state, 64 << 10);
  liar.races = true;
  struct perigee_event e = refused(&p);
  liar.races = false;
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  pair_drop(&p);
}

/* They are made here, and count. */
static void longer_rings_of_older_builds_are_used_whole(void **state) {
  liar.older = true;
  larger_rings_are_used_whole(state);
  liar.older = false;
}

static void older_builds_whose_rings_are_too_long_are_refused(void **state) {
  struct pair p;
  open_engines(&p, *state, 16 * MIB);
  liar.older = true;
  struct perigee_event e = refused(&p);
  liar.older = false;
  assert_int_equal(e.status, PERIGEE_NO_MEMORY);
  assert_non_null(strstr((const char *)e.pointer, "older build"));
  pair_drop(&p);
}

/* Whether they pass or fail, nobody lies after them. */
#define LYING(test)                                                            \
  { #test, test, NULL, honest, (void *)(uintptr_t)&variant_default }

static int honest(void **state) {
  (void)state;
  memset(&liar, 0, sizeof liar);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, what_was_not_written_is_zeros_and_gets_no_page),
      OVER(variant_default, what_was_written_between_holes_comes),
      OVER(variant_default, what_is_there_is_read_in_place),
      OVER(variant_default, replies_that_were_not_written_are_zeros),
      OVER(variant_default, what_comes_after_the_look_is_not_read_in_place),
      OVER(variant_default, what_replaces_memory_in_view_is_not_mapped_there),
      OVER(variant_default, a_segment_is_not_replaced_while_it_is_there),
      OVER(variant_default, holes_without_a_descriptor_are_refused),
      OVER(variant_default, files_are_closed_once_all_is_there),
      OVER(variant_default, larger_rings_are_used_whole),
      OVER(variant_default, looks_of_one_poll_are_limited),
      OVER(variant_default, a_child_closes_the_files_of_segments_once),
      OVER(variant_default, regions_that_are_not_written_are_zeros),
      OVER(variant_default, regions_that_were_read_need_no_look),
      LYING(looks_at_known_pages_are_limited),
      LYING(longer_rings_that_are_not_there_are_not_written),
      LYING(rings_that_were_swapped_out_are_asked_for),
      LYING(staged_bytes_that_were_swapped_out_are_asked_for),
      LYING(a_seal_that_is_added_at_the_last_moment_is_seen),
      LYING(longer_rings_of_older_builds_are_used_whole),
      LYING(older_builds_whose_rings_are_too_long_are_refused),
      OVER(variant_default, rings_of_who_was_left_lose_their_pages),
      OVER(variant_default, rings_of_who_leaves_stay_until_the_session_is_over),
      OVER(variant_default, rings_of_who_closes_keep_few_pages),
      OVER(variant_default, what_was_given_stays_until_the_next_poll),
  };
  return cmocka_run_group_tests_name("sparse", tests, NULL, NULL);
}
