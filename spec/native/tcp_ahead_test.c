/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_ahead_test.c - how often a socket is read for a payload, and payloads that
 * are read in place, where a read put them (tcp_ahead.c).
 */
#include "session/sessions.h"
#include "support.h"
#include "transport/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- How often the socket is read ------------------------------------------------ */

/* These replace the system calls, also for the core. */
static uint32_t reads;
static bool in_pieces; /* a read gives 2 KiB at most */

ssize_t recv(int fd, void *to, size_t room, int flags) {
  reads++;
  return syscall(SYS_recvfrom, fd, to, room, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
  struct iovec piece = {m->msg_iov[0].iov_base,
                        least(m->msg_iov[0].iov_len, 2 * KIB)};
  struct msghdr first = {.msg_iov = &piece, .msg_iovlen = 1};
  reads++;
  return syscall(SYS_recvmsg, fd, in_pieces ? &first : m, flags);
}

static bool gives_up; /* the word behind the next payload says so */

ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
  uint64_t word = TCP_GIVEN_UP;
  struct iovec v[3];
  struct msghdr other = {.msg_iov = v, .msg_iovlen = 3};
  if (!gives_up || m->msg_iovlen != 3)
    return syscall(SYS_sendmsg, fd, m, flags);
  gives_up = false;
  memcpy(v, m->msg_iov, sizeof v);
  assert_int_equal(v[2].iov_len, sizeof word);
  v[2].iov_base = &word;
  return syscall(SYS_sendmsg, fd, &other, flags);
}

/* Sends a call of that length, and waits until the kernel has all of it. */
static void call_arrives(struct pair *p, const void *head, uint64_t length) {
  const struct stream *from = p->session[0]->lane->streams[0];
  int to = p->session[1]->lane->streams[0]->fd, there = 0;
  uint64_t before = from->bytes_sent;
  struct perigee_message m = {.head = head, .length = length, .timeout = -1};
  assert_true(perigee_call(p->session[0], &m) >= 0);
  poll_side(p, 0);
  while (from->bytes_sent - before > (uint64_t)there)
    assert_int_equal(ioctl(to, FIONREAD, &there), 0);
  assert_true((uint64_t)there > length);
}

/* Returns how many reads it took to have the second of two such calls, which the
 * kernel has whole. On a slow machine a poll before it may look at no socket: at
 * that of an idle session only now and then. */
static uint32_t reads_of_call(struct pair *p, uint64_t length) {
  struct perigee_message nothing = {.timeout = -1};
  struct perigee_event e;
  uint32_t made = 0;
  for (int i = 0; i < 2; i++) {
    uint8_t *head = pattern(length, (uint8_t)i);
    call_arrives(p, head, length);
    reads = 0;
    do
      poll_side(p, 1);
    while (!taken(p, 1, &e));
    made = reads;
    assert_int_equal(e.length, length);
    assert_memory_equal(e.pointer, head, length);
    free(head);
    assert_int_equal(perigee_reply(p->engine[1], e.operation, &nothing), 0);
    assert_int_equal(until(p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_OK);
    quiet(p, 16);
  }
  return made;
}

static void a_payload_comes_by_no_more_reads_than_it_needs(void **state) {
  static struct variant over = {"tcp", "tcp", "host", 1, NULL};
  struct pair p;
  (void)state;
  pair_open(&p, &over);
  quiet(&p, 256); /* its other streams are there */
  assert_int_equal(reads_of_call(&p, 64), 1);
  assert_int_equal(reads_of_call(&p, 12 * KIB), 1);
  assert_int_equal(reads_of_call(&p, TCP_COPIED), 1);
  assert_int_equal(reads_of_call(&p, TCP_COPIED + 1), 1);
  assert_int_equal(reads_of_call(&p, TCP_AHEAD_MOST), 1);
  assert_int_equal(reads_of_call(&p, TCP_COPIED), 1);
  assert_int_equal(reads_of_call(&p, 64), 1);
  pair_close(&p);
}

/* ---- Payloads that are read in place ------------------------------------------- */

static void tcp_pair(struct pair *p) {
  static struct variant over = {"tcp", "tcp", "host", 1, NULL};
  pair_open(p, &over);
  quiet(p, 256); /* its other streams are there */
}

/* Returns the block that has the request, or NULL. */
static const struct ahead_block *request_block(const struct pair *p,
                                               const struct perigee_event *e) {
  const struct lane *lane = p->session[1]->lane;
  for (int i = 0; i < TCP_AHEADS; i++)
    if (lane->aheads[i].at && e->pointer == lane->aheads[i].at)
      return &lane->aheads[i];
  return NULL;
}

/* Sends a call of that length. True: it is read where the socket's read put it.
 * The reply refers to the same bytes. */
static bool is_read_in_place(struct pair *p, uint64_t length, uint8_t seed) {
  uint8_t *head = pattern(length, seed);
  call_arrives(p, head, length);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  const struct ahead_block *block = request_block(p, &e);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, head, length);
  assert_true(!block || (block->lent && (uintptr_t)e.pointer % 4096 == 0));
  struct perigee_message same = {
      .head = e.pointer, .length = length, .timeout = -1};
  int sent = perigee_reply(p->engine[1], e.operation, &same);
  assert_true(sent >= 0);
  e = until(p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.status, PERIGEE_OK);
  assert_memory_equal(e.pointer, head, length);
  if (sent > 0)
    until(p, 1, PERIGEE_EVENT_SENT);
  quiet(p, 16);
  free(head);
  return block;
}

static void what_is_like_the_call_before_is_read_in_place(void **state) {
  struct pair p;
  (void)state;
  tcp_pair(&p);
  assert_false(is_read_in_place(&p, 16 * KIB, 1));
  for (uint8_t i = 2; i < 32; i++)
    assert_true(is_read_in_place(&p, 16 * KIB, i) || i % 8 == 0);
  assert_false(is_read_in_place(&p, 16 * KIB + 1, 32));
  assert_true(is_read_in_place(&p, 16 * KIB + 1, 33));
  pair_close(&p);
}

/* Each would be copied one time more. It is tried anew after a while. */
static void what_comes_in_pieces_is_not_expected_for_a_while(void **state) {
  enum { EACH = 16 * KIB, PIECES = 12, WHILE = 200, MOST = 300 };
  struct pair p;
  int calls = 0;
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, EACH, 1);
  assert_true(is_read_in_place(&p, EACH, 2));
  in_pieces = true;
  for (int i = 0; i < PIECES; i++)
    assert_false(is_read_in_place(&p, EACH, (uint8_t)i));
  in_pieces = false;
  while (!is_read_in_place(&p, EACH, (uint8_t)calls) && calls < MOST)
    calls++;
  assert_in_range(calls, WHILE, MOST - 1);
  pair_close(&p);
}

static void what_comes_in_place_of_what_was_expected_is_whole(void **state) {
  static const uint32_t sizes[] = {16 * KIB, 64,           16 * KIB - 1, 5000,
                                   40 * KIB, 16 * KIB + 9, 64 * KIB,     9000};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  struct pair p;
  (void)state;
  tcp_pair(&p);
  for (int i = 0; i < SIZES * SIZES; i++) {
    uint32_t first = sizes[i / SIZES], then = sizes[i % SIZES];
    is_read_in_place(&p, first, (uint8_t)i);
    is_read_in_place(&p, first, (uint8_t)(i + 1));
    is_read_in_place(&p, then, (uint8_t)(i + 2));
  }
  pair_close(&p);
}

/* Several lie in the socket, so one read brings what is not expected, too. */
static void calls_that_come_together_are_whole(void **state) {
  enum { TOGETHER = 12, EACH = 9000 };
  struct pair p;
  uint8_t *heads[TOGETHER];
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, EACH, 1);
  is_read_in_place(&p, EACH, 2);
  for (int i = 0; i < TOGETHER; i++)
    call_arrives(&p, heads[i] = pattern(EACH, (uint8_t)(3 + i)), EACH);
  for (int i = 0; i < TOGETHER; i++) {
    struct perigee_message nothing = {.timeout = -1};
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.length, EACH);
    assert_memory_equal(e.pointer, heads[i], EACH);
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &nothing), 0);
    free(heads[i]);
  }
  for (int i = 0; i < TOGETHER; i++)
    assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_OK);
  pair_close(&p);
}

static void what_was_given_up_on_the_way_is_not_read_in_place(void **state) {
  struct pair p;
  struct perigee_event e;
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, 16 * KIB, 1);
  assert_true(is_read_in_place(&p, 16 * KIB, 2));
  uint8_t *head = pattern(16 * KIB, 3);
  gives_up = true;
  call_arrives(&p, head, 16 * KIB);
  assert_false(gives_up);
  for (int i = 0; i < 64; i++)
    poll_side(&p, 1);
  assert_false(taken(&p, 1, &e));
  free(head);
  pair_drop(&p);
}

/* A request may wait for a block while the payload of another one comes, which is
 * as long. */
static void nobody_is_shown_what_belongs_to_another(void **state) {
  enum { EACH = 16 * KIB };
  const struct source source = {
      .kind = SOURCE_PUSHED, .address = EACH, .block = EACH, .count = 1};
  struct pair p;
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, EACH, 1);
  assert_true(is_read_in_place(&p, EACH, 2));
  uint8_t *head = pattern(EACH, 3);
  call_arrives(&p, head, EACH);
  struct lane *lane = p.session[1]->lane;
  const struct tcp_head *h = &lane->streams[0]->head;
  while (lane->streams[0]->sink != SINK_WAITING)
    lane_table(lane)->poll(lane);
  assert_null(
      ahead_view(lane, &source, (uint16_t)(h->operation + 1), h->generation));
  assert_null(ahead_view(lane, &source, h->operation, h->generation + 1));
  const uint8_t *at = ahead_view(lane, &source, h->operation, h->generation);
  assert_memory_equal(at, head, EACH);
  ahead_unview(lane, at, EACH);
  free(head);
  pair_drop(&p);
}

/* Calls that are not answered keep their blocks; the next ones are copied. */
static void once_all_blocks_are_lent_payloads_are_copied(void **state) {
  enum { EACH = 16 * KIB, CALLS = TCP_AHEADS + 4 };
  struct perigee_event e[CALLS];
  uint8_t *heads[CALLS];
  struct pair p;
  int lent = 0;
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, EACH, 1);
  for (int i = 0; i < CALLS; i++) {
    call_arrives(&p, heads[i] = pattern(EACH, (uint8_t)(2 + i)), EACH);
    e[i] = until(&p, 1, PERIGEE_EVENT_REQUEST);
    lent += request_block(&p, &e[i]) != NULL;
  }
  assert_in_range(lent, TCP_AHEADS - 2, TCP_AHEADS);
  for (int i = 0; i < CALLS; i++) {
    struct perigee_message nothing = {.timeout = -1};
    assert_memory_equal(e[i].pointer, heads[i], EACH);
    assert_int_equal(perigee_reply(p.engine[1], e[i].operation, &nothing), 0);
    assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_OK);
    free(heads[i]);
  }
  quiet(&p, 16);
  for (int i = 0; i < TCP_AHEADS; i++)
    assert_false(p.session[1]->lane->aheads[i].lent);
  pair_close(&p);
}

static void a_request_that_a_wait_found_outlives_its_session(void **state) {
  enum { EACH = 16 * KIB };
  const int64_t second = 1000000000;
  struct pair p;
  struct perigee_event e;
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, EACH, 1);
  is_read_in_place(&p, EACH, 2);
  uint8_t *head = pattern(EACH, 3);
  call_arrives(&p, head, EACH);
  perigee_wait(&p.engine[1], 1, second);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  int op = perigee_connect(p.engine[1], "unix:/nowhere/at-all", NULL, second);
  assert_int_equal(perigee_join(p.engine[1], op, &e), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_poll(p.engine[1], &e, 1), 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, head, EACH);
  free(head);
  pair_drop(&p);
}

static void blocks_that_no_read_fills_go_back(void **state) {
  struct pair p;
  (void)state;
  tcp_pair(&p);
  is_read_in_place(&p, 16 * KIB, 1);
  is_read_in_place(&p, 16 * KIB, 2);
  struct lane *lane = p.session[1]->lane;
  assert_true(ahead_kept(lane) > 0);
  ahead_trim(lane);
  ahead_trim(lane);
  assert_int_equal(ahead_kept(lane), 0);
  is_read_in_place(&p, 16 * KIB, 3);
  pair_close(&p);
}

/* What came in place of a long payload made the buffer longer. */
static struct stream *with_a_long_buffer(struct pair *p) {
  enum { TOGETHER = 8, EACH = 9000 };
  struct perigee_message nothing = {.timeout = -1};
  uint8_t *head = pattern(EACH, 3);
  struct stream *s = p->session[1]->lane->streams[0];
  is_read_in_place(p, TCP_AHEAD_MOST, 1);
  assert_true(is_read_in_place(p, TCP_AHEAD_MOST, 2));
  for (int i = 0; i < TOGETHER; i++)
    call_arrives(p, head, EACH);
  for (int i = 0; i < TOGETHER; i++) {
    struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
    assert_memory_equal(e.pointer, head, EACH);
    assert_int_equal(perigee_reply(p->engine[1], e.operation, &nothing), 0);
  }
  for (int i = 0; i < TOGETHER; i++)
    assert_int_equal(until(p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_OK);
  quiet(p, 16);
  free(head);
  assert_true(s->in_room > TCP_READ_LARGE);
  return s;
}

static void a_buffer_that_became_longer_shrinks_again(void **state) {
  struct pair p;
  (void)state;
  tcp_pair(&p);
  const struct stream *s = with_a_long_buffer(&p);
  struct lane *lane = p.session[1]->lane;
  while (ahead_trim(lane))
    ;
  assert_int_equal(s->in_room, TCP_READ_LARGE);
  assert_int_equal(ahead_kept(lane), 0);
  is_read_in_place(&p, TCP_AHEAD_MOST, 1);
  pair_close(&p);
}

static void a_buffer_shrinks_around_what_is_not_whole_yet(void **state) {
  const struct tcp_head word = {.type = TCP_WORD};
  const uint8_t *bytes = (const uint8_t *)&word;
  enum { HALF = TCP_HEAD / 2 };
  struct pair p;
  (void)state;
  tcp_pair(&p);
  const struct stream *s = with_a_long_buffer(&p);
  struct lane *lane = p.session[1]->lane;
  int fd = p.session[0]->lane->streams[0]->fd;
  assert_int_equal(send(fd, bytes, HALF, 0), HALF);
  while (tcp_unread(s) < HALF)
    poll_side(&p, 1);
  while (ahead_trim(lane))
    ;
  assert_int_equal(s->in_room, TCP_READ_LARGE);
  assert_int_equal(ahead_kept(lane), 0);
  assert_int_equal(send(fd, bytes + HALF, HALF, 0), HALF);
  is_read_in_place(&p, 16 * KIB, 1);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_payload_comes_by_no_more_reads_than_it_needs),
      cmocka_unit_test(what_is_like_the_call_before_is_read_in_place),
      cmocka_unit_test(what_comes_in_pieces_is_not_expected_for_a_while),
      cmocka_unit_test(what_comes_in_place_of_what_was_expected_is_whole),
      cmocka_unit_test(calls_that_come_together_are_whole),
      cmocka_unit_test(what_was_given_up_on_the_way_is_not_read_in_place),
      cmocka_unit_test(nobody_is_shown_what_belongs_to_another),
      cmocka_unit_test(once_all_blocks_are_lent_payloads_are_copied),
      cmocka_unit_test(a_request_that_a_wait_found_outlives_its_session),
      cmocka_unit_test(blocks_that_no_read_fills_go_back),
      cmocka_unit_test(a_buffer_that_became_longer_shrinks_again),
      cmocka_unit_test(a_buffer_shrinks_around_what_is_not_whole_yet),
  };
  return cmocka_run_group_tests_name("tcp_ahead", tests, NULL, NULL);
}
