/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_lane_test.c - a lane over sockets whose other side is played by hand
 * (hand.c) and lies once the session is open. Each lie ends the session, with a
 * fitting status, and touches no other memory.
 */
#include "engine/polling.h"
#include "session/sessions.h"
#include "support.h"
#include "played.h"
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Landings ------------------------------------------------------------------ */

static void zeros_of_a_write_that_was_given_up_land_nowhere(void **state) {
  struct played *s = *state;
  uint8_t before[SIZE];
  memset(before, BEFORE, SIZE);
  played_tell_write(s, SIZE);
  played_tell_piece(s, 0, SIZE, TCP_GIVEN_UP);
  played_goes_on(s);
  assert_memory_equal(perigee_region_pointer(s->region), before, SIZE);
}

static void a_write_lands(void **state) {
  struct played *s = *state;
  static const uint8_t zeros[SIZE];
  played_tell_write(s, SIZE);
  played_tell_piece(s, 0, SIZE / 2, TCP_GOOD);
  played_tell_piece(s, SIZE / 2, SIZE / 2, TCP_GOOD);
  played_goes_on(s);
  assert_memory_equal(perigee_region_pointer(s->region), zeros, SIZE);
}

/* Counts of so many blocks mean lists, for programs of this side. */
static void a_read_of_a_peer_is_never_of_a_list(void **state) {
  struct played *s = *state;
  played_tell_empty_read(s, PERIGEE_LIST + 2);
  played_goes_on(s);
  assert_null(strstr(perigee_detail(s->engine), "list"));
  assert_int_equal(s->region->users, 0);
}

static void a_write_comes_in_order_or_not_at_all(void **state) {
  struct played *s = *state;
  played_tell_write(s, SIZE);
  played_look(s, 8);
  played_tell_piece(s, SIZE / 2, SIZE / 2, TCP_GOOD);
  played_lost_by(s, PERIGEE_PROTOCOL);
}

/* It would hold up its stream for ever, and with it the session's end. */
static void what_waits_for_what_cannot_come_is_a_lie(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  played_post_opaque(s, &region);
  played_tell_message(s, SIZE);
  played_look(s, 8);
  played_tell_piece(s, SIZE / 2, SIZE / 2, TCP_GOOD);
  played_lost_by(s, PERIGEE_PROTOCOL);
}

/* So would one behind others that came too early, and wait for the same bytes. */
static void what_waits_behind_what_waits_is_a_lie_as_well(void **state) {
  enum { EACH = SIZE / 4 };
  struct played *s = *state;
  struct perigee_region *region;
  played_post_opaque(s, &region);
  played_tell_piece(s, 2 * EACH, EACH, TCP_GOOD);
  played_look(s, 4096); /* longer than it waits for its landing */
  played_tell_message(s, SIZE);
  played_look(s, 8);
  played_tell_piece(s, 3 * EACH, EACH, TCP_GOOD);
  played_lost_by(s, PERIGEE_PROTOCOL);
}

/* What came too early is next, once what came later has its landing. */
static void what_came_too_early_is_brought_when_it_is_next(void **state) {
  enum { EACH = SIZE / 4 };
  struct played *s = *state;
  struct perigee_region *region;
  played_post_opaque(s, &region);
  played_tell_piece(s, 0, EACH, TCP_GOOD);
  played_look(s, 4096); /* longer than it waits for its landing */
  played_tell_message(s, SIZE);
  for (uint64_t at = EACH; at < SIZE; at += EACH)
    played_tell_piece(s, at, EACH, TCP_GOOD);
  played_look(s, 4096);
  played_goes_on(s);
  assert_int_equal(s->done.status, PERIGEE_OK);
  assert_int_equal(s->done.length, SIZE);
}

/* A session's first write. Its first fragment was sent on the session's
 * socket, since there was no other stream yet. This fragment was once lost. */
static void later_bytes_may_come_first_by_another_stream(void **state) {
  struct played *s = *state;
  static const uint8_t zeros[SIZE];
  struct tcp_head h = played_piece(SIZE / 2, SIZE / 2);
  uint64_t good = TCP_GOOD;
  int fd = played_stream(s, 1, 0);
  played_tell_on(fd, &h, sizeof h);
  played_tell_on(fd, zeros, SIZE / 2);
  played_tell_on(fd, &good, sizeof good);
  played_look(s, 4096); /* longer than it waits for its landing */
  played_tell_write(s, SIZE);
  played_look(s, 8);
  played_tell_piece(s, 0, SIZE / 2, TCP_GOOD);
  played_goes_on(s);
  assert_memory_equal(perigee_region_pointer(s->region), zeros, SIZE);
  close(fd);
}

static void the_same_by_two_streams_is_found_out(void **state) {
  struct played *s = *state;
  struct tcp_head h = played_piece(0, SIZE);
  int fds[] = {played_stream(s, 1, 0), played_stream(s, 2, 0)};
  played_tell_write(s, SIZE);
  played_look(s, 8);
  for (int i = 0; i < 2; i++)
    played_tell_on(fds[i], &h, sizeof h);
  played_lost_by(s, PERIGEE_PROTOCOL);
  assert_int_equal(s->region->users, 0);
  close(fds[0]);
  close(fds[1]);
}

/* Otherwise the other half would hold old bytes, which the program would
 * take for the peer's: in a pooled block, those of another session. */
static void half_of_a_payload_twice_is_not_all_of_it(void **state) {
  struct played *s = *state;
  struct perigee_slice all = {{s->region}, 0, SIZE, 1, SIZE};
  assert_true(perigee_recv(s->hand.session, &all, -1) >= 0);
  played_tell_message(s, SIZE);
  played_look(s, 8);
  played_tell_piece(s, 0, SIZE / 2, TCP_GOOD);
  played_tell_piece(s, 0, SIZE / 2, TCP_GOOD);
  played_lost_by(s, PERIGEE_PROTOCOL);
  assert_int_equal(s->done.status, PERIGEE_PROTOCOL);
}

/* The frames come in any order, each only once. */
static void bytes_are_counted_once(void **state) {
  enum { PIECES = 97, EACH = 3 };
  struct ranges c = {0};
  (void)state;
  for (int step = 1; step < PIECES; step++) {
    for (int i = 0; i < PIECES; i++) {
      uint64_t at = (uint64_t)(i * step % PIECES) * EACH;
      assert_int_equal(ranges_add(&c, at, EACH), 0);
      for (uint64_t back = 0; back < EACH && back <= at; back++)
        assert_int_equal(ranges_add(&c, at - back, EACH), PERIGEE_PROTOCOL);
    }
    assert_int_equal(c.first, PIECES * EACH);
    assert_int_equal(c.count, 0);
    ranges_close(&c);
  }
}

/* ---- Bytes that come out of order ------------------------------------------------- */

struct single {
  struct tcp_head head;
  uint8_t byte;
  uint64_t word;
} __attribute__((packed));

/* Tells single bytes of a message, from its end on, each two before the last. */
static void tell_singles(struct played *s, uint32_t from, uint32_t count) {
  static struct single singles[SIZE / 2];
  for (uint32_t i = 0; i < count; i++)
    singles[i] = (struct single){
        .head = played_piece(SIZE - 1 - 2 * (from + i), 1), .word = TCP_GOOD};
  hand_lane(&s->hand, singles, count * (uint32_t)sizeof *singles);
}

/* A message comes so; the receive has this number. */
static int singles_come(struct played *s, uint32_t count) {
  enum { AT_ONCE_MOST = 256 };
  struct perigee_slice all = {{s->region}, 0, SIZE, 1, SIZE};
  int op = perigee_recv(s->hand.session, &all, -1);
  assert_true(op >= 0);
  played_tell_message(s, SIZE);
  for (uint32_t n = 0; n < count; n += AT_ONCE_MOST) {
    tell_singles(s, n, count - n < AT_ONCE_MOST ? count - n : AT_ONCE_MOST);
    played_look(s, 256);
  }
  return op;
}

static uint32_t ranges_of_message(const struct played *s) {
  const struct tcp_head h = played_piece(0, 1);
  return tcp_own(tcp_fetch_of(s->hand.session->lane, &h))->received.count;
}

/* The list of them is moved by each of those that come then. */
static void bytes_out_of_order_count_as_work(void **state) {
  enum { MANY = SIZE / 2 - 512, MORE = 500, A_POLL = 200 };
  struct played *s = *state;
  singles_come(s, MANY);
  assert_int_equal(ranges_of_message(s), MANY);
  tell_singles(s, MANY, MORE);
  played_look(s, 1);
  if (ranges_of_message(s) > MANY + A_POLL)
    fail_msg("one poll took %u of them", ranges_of_message(s) - MANY);
  played_look(s, 256);
  assert_int_equal(ranges_of_message(s), MANY + MORE);
  played_goes_on(s);
}

static void what_they_take_counts_for_the_peers_share(void **state) {
  enum { MANY = 1000 };
  struct played *s = *state;
  const struct share *share = s->hand.session->account.share;
  uint64_t before = share->used[SHARE_POOLED];
  int op = singles_come(s, MANY);
  assert_true(share->used[SHARE_POOLED] - before >=
              MANY * sizeof(struct stretch));
  perigee_cancel(s->engine, op);
  played_look(s, 64);
  assert_true(share->used[SHARE_POOLED] - before <
              MANY * sizeof(struct stretch));
  played_goes_on(s);
}

/* The message cannot be received, but the session is not to blame. */
static void beyond_its_share_the_message_is_not_received(void **state) {
  static const uint64_t ALL = UINT64_C(1) << 40;
  struct played *s = *state;
  struct share *share = s->hand.session->account.share;
  singles_come(s, 8);
  share_add(share, SHARE_POOLED, ALL);
  tell_singles(s, 8, 100);
  played_look(s, 64);
  share_give(share, SHARE_POOLED, ALL);
  played_goes_on(s);
  const struct tcp_head h = played_piece(0, 1);
  assert_null(tcp_fetch_of(s->hand.session->lane, &h));
}

/* Else each fragment would be compared with all of them. */
static void two_payloads_of_one_operation_do_not_come_at_once(void **state) {
  enum { TIMES = 8 };
  struct played *s = *state;
  struct perigee_slice all = {{s->region}, 0, SIZE, 1, SIZE};
  for (int i = 0; i < TIMES; i++)
    assert_true(perigee_recv(s->hand.session, &all, -1) >= 0);
  for (int i = 0; i < TIMES; i++)
    played_tell_message(s, SIZE);
  played_goes_on(s);
  const struct node *head = &s->hand.session->lane->peers[1]->fetches;
  assert_ptr_not_equal(head->next, head);
  assert_ptr_equal(head->next->next, head);
}

/* One edge tells of both. */
static void the_end_of_a_stream_is_seen_behind_its_last_bytes(void **state) {
  struct played *s = *state;
  struct tcp_head word = {.type = TCP_WORD};
  int fd = played_stream(s, 1, 0);
  played_look(s, 8);
  played_tell_on(fd, &word, sizeof word);
  close(fd);
  played_lost_by(s, PERIGEE_PEER_LOST);
}

/* ---- Ends ----------------------------------------------------------------------- */

static int call_out(struct played *s) {
  static const uint8_t bytes[1024];
  struct perigee_message m = {
      .head = bytes, .length = sizeof bytes, .timeout = -1};
  int op = perigee_call(s->hand.session, &m);
  assert_true(op >= 0);
  return op;
}

/* The bytes that the engine sends about a cancelled operation. */
static size_t told_by_cancel(struct played *s, int op) {
  played_look(s, 8);
  hand_drop(&s->hand);
  perigee_cancel(s->engine, op);
  played_look(s, 8);
  return hand_drop(&s->hand);
}

/* A stopped peer on this host is not dead. Without this rule it would be
 * sent frames without end, about calls that time out while they wait for
 * room in its ring. */
static void the_peer_is_told_of_ends_of_what_it_was_sent(void **state) {
  struct played *s = *state;
  const struct perigee_counters *c = perigee_counters(s->engine, NULL);
  int first = call_out(s), last = first;
  while (c->stalls == 0) {
    last = call_out(s);
    c = perigee_counters(s->engine, NULL);
  }
  assert_int_equal(told_by_cancel(s, first), sizeof(struct tcp_head));
  assert_int_equal(told_by_cancel(s, last), 0);
}

/* ---- Memory --------------------------------------------------------------------- */

static void crumbs_do_not_fill_the_unexpected_queue(void **state) {
  struct played *s = *state;
  uint32_t told = 0;
  for (; told <= TCP_UNEXPECTED && s->lost.kind == 0; told++) {
    played_tell_piece(s, 0, 1, TCP_GOOD);
    if (told % 256 == 0)
      assert_int_equal(perigee_arm(s->engine, NULL) < 0, 0);
    if (told % 64 == 63)
      for (int i = 0; i < 64 * TCP_PATIENCE && s->lost.kind == 0; i += 16)
        played_look(s, 16);
  }
  played_lost_by(s, PERIGEE_PROTOCOL);
}

static void more_than_the_window_is_a_lie(void **state) {
  struct played *s = *state;
  uint64_t told = 0;
  for (; told <= TCP_WINDOW && s->lost.kind == 0; told += SIZE) {
    played_tell_piece(s, 0, SIZE, TCP_GOOD);
    played_look(s, TCP_PATIENCE + 4);
  }
  played_lost_by(s, PERIGEE_PROTOCOL);
}

/* Many at once take some polls, between which others have their turn. */
static void heads_that_mean_nothing_count_as_work(void **state) {
  enum { HEADS = 4096, A_POLL = 1536 };
  static struct tcp_head heads[HEADS];
  struct played *s = *state;
  const struct stream *to = s->hand.session->lane->streams[0];
  for (int i = 0; i < HEADS; i++)
    heads[i] = (struct tcp_head){.type = i % 2 ? TCP_WORD : TCP_ENDED};
  uint64_t before = to->bytes_received;
  hand_lane(&s->hand, heads, sizeof heads);
  for (int polls = 1; polls <= 2; polls++) {
    played_look(s, 1);
    assert_true(to->bytes_received - before <=
                (uint64_t)polls * A_POLL * TCP_HEAD);
  }
  played_goes_on(s);
  assert_int_equal(to->bytes_received - before, sizeof heads);
}

static void a_peer_that_reads_nothing_is_given_up(void **state) {
  struct played *s = *state;
  struct frame f = {.type = FRAME_LOOKUP, .lookup = {.name = "region"}};
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  struct tcp_head h = {.type = TCP_BYTES, .length = wire_encode(&f, bytes)};
  for (int i = 0; i < 1 << 17 && s->lost.kind == 0; i++) {
    played_tell_word(s, h);
    hand_lane(&s->hand, bytes, h.length);
    if (i % 64 == 63)
      played_look(s, 8);
  }
  assert_int_equal(s->lost.kind, PERIGEE_EVENT_LOST);
}

/* ---- Words ----------------------------------------------------------------------- */

static void credit_for_what_was_never_sent_is_a_lie(void **state) {
  struct played *s = *state;
  played_tell_word(s, (struct tcp_head){.type = TCP_CREDIT, .at = 1 << 20});
  played_lost_by(s, PERIGEE_PROTOCOL);
}

static void words_of_operations_that_are_none_mean_nothing(void **state) {
  struct played *s = *state;
  played_tell_word(s, (struct tcp_head){.type = TCP_ENDED,
                                        .operation = 65535,
                                        .generation = 7});
  played_tell_word(s, (struct tcp_head){.type = TCP_CLAIM,
                                        .operation = 16383,
                                        .generation = 7});
  played_goes_on(s);
  played_tell_word(s, (struct tcp_head){.type = TCP_CLAIM, .operation = 65535});
  played_lost_by(s, PERIGEE_PROTOCOL);
}

static void a_stream_is_attached_once_and_to_the_living(void **state) {
  struct played *s = *state;
  int fds[] = {played_stream(s, 1, 0), played_stream(s, 1, PERIGEE_PROTOCOL),
               played_stream(s, 0, PERIGEE_PROTOCOL),
               played_stream(s, TCP_STREAMS, PERIGEE_PROTOCOL)};
  played_goes_on(s);
  perigee_session_close(s->hand.session);
  close(played_stream(s, 2, PERIGEE_PROTOCOL));
  for (int i = 0; i < 4; i++)
    close(fds[i]);
}

/* A listener without room refuses the socket with a plain frame, since it
 * does not know which session the socket is for. */
static void a_stream_that_finds_no_place_is_done_without(void **state) {
  struct played *s = *state;
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, CROWDED}};
  uint8_t bytes[FRAME_HEAD + FRAME_BODY], byte;
  uint32_t length = wire_encode(&f, bytes);
  int fd = played_silent_stream(s, 1, 0);
  played_tell_on(fd, bytes, length);
  played_goes_on(s);
  while (recv(fd, &byte, 1, 0) == 1)
    ;
  assert_int_equal(recv(fd, &byte, 1, 0), 0); /* it was closed there */
  played_tell_write(s, SIZE);
  played_tell_piece(s, 0, SIZE, TCP_GOOD);
  played_goes_on(s);
  assert_int_equal(*(uint8_t *)perigee_region_pointer(s->region), 0);
  close(fd);
}

/* ---- Time ------------------------------------------------------------------------ */

enum { PEERS = 20 };

static int64_t passed;

/* Time passes only when the engine looks at the clock. */
static int64_t looked_at(void *context) {
  (void)context;
  return passed += MS;
}

static struct perigee_engine *engine_of_time(int64_t dead_after) {
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.secret = "sixteen letters of secret";
  o.clock = looked_at;
  o.hello_timeout = 1000000 * MS;
  o.dead_after = dead_after;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

/* As an engine's thread finds it after its process was stopped in its sleep. */
static void
what_came_while_nobody_looked_shows_that_the_peer_lives(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_of_time(3000 * MS);
  const struct tcp_head word = {.type = TCP_WORD};
  struct hand hand;
  hand_come(&hand, engine, true);
  assert_true(hand_open(&hand, engine->secret));
  engine_arm(engine);
  for (int i = 0; i < 16; i++)
    engine_progress(engine);
  hand_lane(&hand, &word, sizeof word);
  passed += 10000 * MS;
  engine_progress(engine);
  assert_int_equal(hand.session->state, PERIGEE_SESSION_OPEN);
  passed += 10000 * MS;
  engine_progress(engine);
  assert_int_equal(hand.session->state, PERIGEE_SESSION_ENDED);
  hand_close(&hand);
  perigee_engine_close(engine);
}

/* The end is found by the look at a silent peer, whose time is over. */
static void an_end_that_came_while_nobody_looked_is_the_end(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_of_time(3000 * MS);
  struct hand hand;
  hand_come(&hand, engine, true);
  assert_true(hand_open(&hand, engine->secret));
  engine_arm(engine);
  for (int i = 0; i < 16; i++)
    engine_progress(engine);
  assert_int_equal(shutdown(hand.fd, SHUT_WR), 0);
  passed += 10000 * MS;
  engine_progress(engine); /* returns, although the timer's limit is over */
  assert_int_equal(hand.session->state, PERIGEE_SESSION_ENDED);
  assert_int_equal(hand.session->ended.status, PERIGEE_PEER_LOST);
  hand_close(&hand);
  perigee_engine_close(engine);
}

/* Each of these would take 50 ms by itself. */
static void those_who_read_nothing_hold_up_a_close_together(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_of_time(1000000 * MS);
  struct hand hands[PEERS];
  for (int i = 0; i < PEERS; i++) {
    hand_come(&hands[i], engine, true);
    assert_true(hand_open(&hands[i], engine->secret));
  }
  int64_t before = passed;
  perigee_engine_close(engine);
  assert_true(passed - before >= 50 * MS);
  assert_true(passed - before < 100 * MS);
  for (int i = 0; i < PEERS; i++) {
    assert_true(hand_drop(&hands[i]) > 0);
    hand_close(&hands[i]);
  }
}

/* Bytes of keepalives that all get in so much time. */
static size_t kept_alive(struct perigee_engine *engine, struct hand *hands,
                         int count, int64_t time) {
  size_t bytes = 0;
  for (int64_t end = passed + time; passed < end;) {
    passed += MS;
    engine_arm(engine);
    engine_progress(engine);
    for (int i = 0; i < count; i++)
      bytes += hand_drop(&hands[i]);
  }
  return bytes;
}

/* Sessions of one peer, the process of this number. */
static void open_short(struct hand *hands, int count, int peer,
                       struct perigee_engine *engine) {
  for (int i = 0; i < count; i++) {
    hand_come(&hands[i], engine, true);
    hands[i].dead_after = 1;
    hands[i].session->process.pid = peer;
    assert_true(hand_open(&hands[i], engine->secret));
  }
}

/* One gets the keepalives that it asks for, but many of its kind do not get as
 * many each. */
static void keepalives_cost_no_more_than_is_left_for_them(void **state) {
  (void)state;
  enum { MANY = 200, TIME = 2000 };
  static struct hand hands[MANY];
  struct perigee_engine *engine = engine_of_time(1000000 * MS);
  open_short(hands, 1, 1, engine);
  hand_drop(&hands[0]);
  size_t one = kept_alive(engine, hands, 1, TIME * MS);
  assert_true(one / sizeof(struct tcp_head) >= TIME / 10);
  open_short(hands + 1, MANY - 1, 1, engine);
  for (int i = 0; i < MANY; i++)
    hand_drop(&hands[i]);
  size_t all = kept_alive(engine, hands, MANY, TIME * MS);
  assert_true(all > 10 * one);
  assert_true(all < MANY / 3 * one);
  for (int i = 0; i < MANY; i++)
    hand_close(&hands[i]);
  perigee_engine_close(engine);
}

/* A peer that got fewer would take this side for dead. */
static void sessions_of_others_take_no_keepalives_away(void **state) {
  (void)state;
  enum { MANY = 200, TIME = 2000 };
  static struct hand hands[MANY];
  struct perigee_engine *engine = engine_of_time(1000000 * MS);
  open_short(hands, 1, 1, engine);
  open_short(hands + 1, MANY - 1, 2, engine);
  hand_drop(&hands[0]);
  size_t one = kept_alive(engine, hands, 1, TIME * MS);
  assert_true(one / sizeof(struct tcp_head) >= TIME / 10);
  for (int i = 0; i < MANY; i++)
    hand_close(&hands[i]);
  perigee_engine_close(engine);
}

/* Its peer cannot replace it, and is itself less patient. */
static void
a_stream_that_cannot_be_replaced_has_this_sides_patience(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_of_time(60000 * MS);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  unsigned most = 0;
  socklen_t length = sizeof most;
  struct hand hand;
  open_short(&hand, 1, 1, engine);
  assert_int_equal(attach_give(hand.session, 1, fd, NULL, 0), 0);
  assert_int_equal(
      getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, &length), 0);
  assert_int_equal(most, 2 * 60000);
  hand_close(&hand);
  perigee_engine_close(engine);
}

/* ---- Congestion control ---------------------------------------------------------- */

enum { CONTROL = 16 };

static void control_of(int fd, char name[CONTROL]) {
  socklen_t length = CONTROL;
  memset(name, 0, CONTROL);
  assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length),
                   0);
}

/* The system's default may be the same; then this finds nothing. */
static void sockets_within_a_host_do_not_pace(void **state) {
  static struct variant over = {"tcp, streams", "tcp", "host", 1, "streams"};
  struct pair p;
  char name[CONTROL];
  (void)state;
  pair_open(&p, &over);
  for (int side = 0; side < 2; side++) {
    const struct lane *lane = p.session[side]->lane;
    for (uint32_t i = 0; i < lane->stream_count; i++) {
      control_of(lane->streams[i]->fd, name);
      assert_string_equal(name, "reno");
    }
  }
  pair_close(&p);
}

static void sockets_to_other_hosts_do_as_the_system_does(void **state) {
  (void)state;
  struct lane lane = {.options.here = false};
  struct stream s = {.lane = &lane, .fd = socket(AF_INET, SOCK_STREAM, 0)};
  char before[CONTROL], after[CONTROL];
  control_of(s.fd, before);
  tcp_socket_options(&s);
  control_of(s.fd, after);
  assert_string_equal(before, after);
  close(s.fd);
}

/* ---- A socket that is full ------------------------------------------------------- */

/* A head is more than the kernel puts into one of its own buffers. */
enum { CALLS = 4, HEAD = 200 * KIB };

static void socket_hold_little(const struct perigee_session *s, int option) {
  const int bytes = 8 << 10;
  setsockopt(s->lane->streams[0]->fd, SOL_SOCKET, option, &bytes, sizeof bytes);
}

/* Sends a call, as the only one between two polls. */
static void call_alone(struct pair *p, uint8_t byte) {
  static uint8_t heads[CALLS][HEAD];
  struct perigee_message m = {
      .head = heads[byte], .length = HEAD, .timeout = -1};
  memset(heads[byte], byte, HEAD);
  assert_true(perigee_call(p->session[0], &m) >= 0);
  poll_side(p, 0);
}

static void request_is_whole(struct pair *p, uint8_t byte) {
  static uint8_t head[HEAD];
  struct perigee_message nothing = {.timeout = -1};
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  memset(head, byte, HEAD);
  assert_int_equal(e.length, HEAD);
  assert_memory_equal(e.pointer, head, HEAD);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &nothing), 0);
}

static void records_that_the_socket_takes_in_parts_arrive_whole(void **state) {
  static struct variant over = {"tcp", "tcp", "host", 1, NULL};
  struct pair p;
  struct perigee_options o;
  (void)state;
  variant_options(&over, &o);
  o.ring = MIB;
  o.eager = HEAD;
  pair_open_with(&p, &over, &o);
  const struct stream *s = p.session[0]->lane->streams[0];
  socket_hold_little(p.session[0], SO_SNDBUF);
  socket_hold_little(p.session[1], SO_RCVBUF);
  p.still[1] = true;
  for (int i = 0; i < CALLS; i++)
    call_alone(&p, i);
  assert_true(s->out.end > s->out.first); /* the socket is full */
  p.still[1] = false;
  for (int i = 0; i < CALLS; i++) {
    request_is_whole(&p, i);
    assert_int_equal(until(&p, 0, PERIGEE_EVENT_REPLY).status, PERIGEE_OK);
  }
  pair_close(&p);
}

/* ---- A write that is given up --------------------------------------------------- */

enum { VAST = 32 * MIB, OLD = 0x5a, NEW = 0xa5 };

static const struct stream *attached(struct pair *p) {
  struct stream *const *s = &p->session[0]->lane->streams[1];
  while (!tcp_usable(*s))
    quiet(p, 1);
  return *s;
}

/* The socket has taken a part of a fragment, and could now take more. */
static void is_half_sent(struct pair *p, const struct stream *s) {
  quiet(p, 8);
  for (int i = 0; i < 64 && !(s->left > 0 && s->full); i++)
    poll_side(p, 0);
  assert_true(s->left > 0);
  poll_side(p, 1);
}

/* What was sent before may land, and nothing else. */
static void a_write_that_is_given_up_half_sent_leaves_no_zeros(void **state) {
  static struct variant over = {"tcp by streams", "tcp", "host", 1, "streams"};
  struct pair p;
  struct perigee_options o;
  (void)state;
  variant_options(&over, &o);
  o.streams = 1;
  pair_open_with(&p, &over, &o);
  struct perigee_region *to = region_of(&p, 1, "vast", VAST, 3),
                        *from = region_of(&p, 0, NULL, VAST, 0);
  fill_byte(to, OLD);
  fill_byte(from, NEW);
  struct perigee_slice remote = {
      {.remote = look_up(&p, "vast")}, 0, VAST, 1, VAST};
  struct perigee_transfer t = {.local = all_of(from, VAST), .remote = remote};
  const struct stream *s = attached(&p);
  int op = perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
  is_half_sent(&p, s);
  perigee_cancel(p.engine[0], op);
  p.still[1] = true;
  ended(&p, 0, op, PERIGEE_CANCELLED);
  poll_side(&p, 0);
  p.still[1] = false;
  for (int i = 0; i < 8; i++)
    poll_side(&p, 1);
  settle(&p);
  const uint8_t *now = perigee_region_pointer(to);
  for (uint64_t i = 0; i < VAST; i++)
    if (now[i] != OLD && now[i] != NEW)
      fail_msg("byte %llu is neither the old one nor one that was sent",
               (unsigned long long)i);
  pair_close(&p);
}

#define SCENE(test)                                                            \
  cmocka_unit_test_setup_teardown(test, played_open, played_close)

int main(void) {
  const struct CMUnitTest tests[] = {
      SCENE(a_write_lands),
      SCENE(zeros_of_a_write_that_was_given_up_land_nowhere),
      SCENE(a_read_of_a_peer_is_never_of_a_list),
      SCENE(a_write_comes_in_order_or_not_at_all),
      SCENE(what_waits_for_what_cannot_come_is_a_lie),
      SCENE(what_waits_behind_what_waits_is_a_lie_as_well),
      SCENE(what_came_too_early_is_brought_when_it_is_next),
      SCENE(later_bytes_may_come_first_by_another_stream),
      SCENE(the_same_by_two_streams_is_found_out),
      SCENE(half_of_a_payload_twice_is_not_all_of_it),
      cmocka_unit_test(bytes_are_counted_once),
      SCENE(bytes_out_of_order_count_as_work),
      SCENE(what_they_take_counts_for_the_peers_share),
      SCENE(beyond_its_share_the_message_is_not_received),
      SCENE(two_payloads_of_one_operation_do_not_come_at_once),
      SCENE(the_end_of_a_stream_is_seen_behind_its_last_bytes),
      SCENE(the_peer_is_told_of_ends_of_what_it_was_sent),
      SCENE(crumbs_do_not_fill_the_unexpected_queue),
      SCENE(more_than_the_window_is_a_lie),
      SCENE(heads_that_mean_nothing_count_as_work),
      SCENE(a_peer_that_reads_nothing_is_given_up),
      SCENE(credit_for_what_was_never_sent_is_a_lie),
      SCENE(words_of_operations_that_are_none_mean_nothing),
      SCENE(a_stream_is_attached_once_and_to_the_living),
      SCENE(a_stream_that_finds_no_place_is_done_without),
      cmocka_unit_test(what_came_while_nobody_looked_shows_that_the_peer_lives),
      cmocka_unit_test(keepalives_cost_no_more_than_is_left_for_them),
      cmocka_unit_test(sessions_of_others_take_no_keepalives_away),
      cmocka_unit_test(
          a_stream_that_cannot_be_replaced_has_this_sides_patience),
      cmocka_unit_test(an_end_that_came_while_nobody_looked_is_the_end),
      cmocka_unit_test(records_that_the_socket_takes_in_parts_arrive_whole),
      cmocka_unit_test(a_write_that_is_given_up_half_sent_leaves_no_zeros),
      cmocka_unit_test(sockets_within_a_host_do_not_pace),
      cmocka_unit_test(sockets_to_other_hosts_do_as_the_system_does),
      cmocka_unit_test(those_who_read_nothing_hold_up_a_close_together),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
