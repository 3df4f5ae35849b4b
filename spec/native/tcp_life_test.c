/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_life_test.c - streams for payloads that are lost while the session goes on:
 * what of their payloads counts, what is sent again, and what a peer may say of
 * them. The peer is played by hand.
 */
#include "net/wire.h"
#include "played.h"
#include "session/sessions.h"
#include "support.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LONG = 1 << 20, FIRST = 1, NEXT = TCP_STREAMS };
static const uint64_t SHARE = UINT64_C(1) << 40;

static int64_t passed; /* ns, of the engine's clock */

static int64_t clock_of_test(void *context) {
  (void)context;
  return passed += 1000;
}

static int open_scene(void **state) {
  return played_open_with(state, FEATURE_STREAMS, clock_of_test);
}

/* ---- What is said ------------------------------------------------------------ */

static struct tcp_head of_stream(enum tcp_type type, uint16_t life,
                                 uint32_t came) {
  return (struct tcp_head){.type = (uint8_t)type,
                           .which = FIRST,
                           .operation = life,
                           .generation = came};
}

static void tell(struct played *s, enum tcp_type type, uint16_t life,
                 uint32_t came) {
  played_tell_word(s, of_stream(type, life, came));
}

/* What the engine says by one socket, read from its beginning on. */
struct heard {
  int fd;
  uint32_t end;
  uint8_t bytes[4 * LONG];
};

static void hear(struct played *s, struct heard *h) {
  ssize_t n;
  for (int i = 0; i < 64; i++) {
    played_look(s, 4);
    while ((n = recv(h->fd, h->bytes + h->end, sizeof h->bytes - h->end,
                     MSG_DONTWAIT)) > 0)
      h->end += (uint32_t)n;
  }
}

/* Returns the i-th head of a type from there on; false if there is none. */
static bool said(const struct heard *h, enum tcp_type type, int i,
                 struct tcp_head *head, uint32_t *body) {
  for (uint32_t at = 0; at + TCP_HEAD <= h->end;) {
    memcpy(head, h->bytes + at, TCP_HEAD);
    *body = at + TCP_HEAD;
    if (head->type == type && i-- == 0)
      return true;
    at += TCP_HEAD + head->length;
    at += head->type == TCP_FRAGMENT ? TCP_TRAILER : 0;
  }
  return false;
}

/* The engine says once that the stream of this life is lost. */
static void says_lost(struct played *s, uint16_t life, uint32_t came) {
  static struct heard h;
  struct tcp_head head = {0};
  uint32_t body;
  h = (struct heard){.fd = s->hand.fd};
  hear(s, &h);
  assert_true(said(&h, TCP_LOST, 0, &head, &body));
  assert_int_equal(head.which, FIRST);
  assert_int_equal(head.operation, life);
  assert_int_equal(head.generation, came);
  assert_false(said(&h, TCP_LOST, 1, &head, &body));
}

/* Bytes of a piece, all the same, by a stream: all and its word; all but the
 * last ones; or all and half of its word. */
enum { ALL = 0, HALF_WORD = SIZE };
static void tell_bytes(int fd, uint64_t at, uint32_t length, uint8_t byte,
                       uint32_t short_by) {
  static uint8_t bytes[SIZE];
  struct tcp_head h = played_piece(at, length);
  uint64_t good = TCP_GOOD;
  memset(bytes, byte, length);
  played_tell_on(fd, &h, sizeof h);
  played_tell_on(fd, bytes, short_by == HALF_WORD ? length : length - short_by);
  if (short_by == ALL || short_by == HALF_WORD)
    played_tell_on(fd, &good, short_by == ALL ? sizeof good : sizeof good / 2);
}

static int posted(struct played *s, struct perigee_region **region) {
  assert_int_equal(perigee_region_alloc(s->engine, NULL, SIZE, 0, NULL, region),
                   0);
  struct perigee_slice all = {{*region}, 0, SIZE, 1, SIZE};
  int op = perigee_recv(s->hand.session, &all, -1);
  assert_true(op >= 0);
  return op;
}

static void done_with(struct played *s, int op, struct perigee_region *region,
                      uint8_t byte) {
  uint8_t bytes[SIZE], wanted[SIZE];
  played_goes_on(s);
  assert_int_equal(s->done.kind, PERIGEE_EVENT_DONE);
  assert_int_equal(s->done.operation, op);
  assert_int_equal(s->done.status, PERIGEE_OK);
  assert_int_equal(perigee_region_read(region, 0, bytes, SIZE), 0);
  memset(wanted, byte, SIZE);
  assert_memory_equal(bytes, wanted, SIZE);
}

/* ---- At the receiver ----------------------------------------------------------- */

static void half_of_a_piece_does_not_count(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  int op = posted(s, &region), fd = played_stream(s, FIRST, 0);
  played_tell_message(s, SIZE);
  tell_bytes(fd, 0, SIZE, 1, SIZE / 2);
  played_goes_on(s);
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 0);
  assert_int_equal(s->done.kind, 0);
  tell_bytes(s->hand.fd, 0, SIZE, 2, 0);
  done_with(s, op, region, 2);
  close(fd);
}

static void a_piece_without_its_word_does_not_count(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  int op = posted(s, &region), fd = played_stream(s, FIRST, 0);
  played_tell_message(s, SIZE);
  tell_bytes(fd, 0, SIZE, 6, HALF_WORD);
  played_goes_on(s);
  close(fd); /* as a middlebox may do */
  says_lost(s, 0, 0);
  assert_int_equal(s->done.kind, 0);
  tell(s, TCP_LOST, 0, 0);
  tell_bytes(s->hand.fd, 0, SIZE, 7, 0);
  done_with(s, op, region, 7);
}

static void a_piece_that_came_whole_counts(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  int op = posted(s, &region), fd = played_stream(s, FIRST, 0);
  played_tell_message(s, SIZE);
  tell_bytes(fd, SIZE / 4, SIZE / 4, 3, 0);
  tell_bytes(fd, 3 * SIZE / 4, SIZE / 4, 3, 7);
  played_goes_on(s);
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 1);
  tell_bytes(s->hand.fd, SIZE / 2, SIZE / 2, 3, 0);
  tell_bytes(s->hand.fd, 0, SIZE / 4, 3, 0);
  done_with(s, op, region, 3);
  close(fd);
}

static void a_piece_that_came_whole_is_a_lie_if_it_comes_again(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  posted(s, &region);
  int fd = played_stream(s, FIRST, 0);
  played_tell_message(s, SIZE);
  tell_bytes(fd, 0, SIZE / 2, 3, 0);
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 1);
  tell_bytes(s->hand.fd, 0, SIZE / 2, 4, 0);
  played_lost_by(s, PERIGEE_PROTOCOL);
  close(fd);
}

static void
what_comes_again_for_an_operation_that_ended_lands_nowhere(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  int op = posted(s, &region), fd = played_stream(s, FIRST, 0);
  played_tell_message(s, SIZE);
  tell_bytes(fd, 0, SIZE, 1, SIZE / 2);
  played_goes_on(s);
  tell(s, TCP_LOST, 0, 0);
  played_tell_word(
      s, (struct tcp_head){.type = TCP_ENDED, .operation = 1, .generation = 1});
  played_look(s, 8);
  perigee_cancel(s->engine, op);
  played_look(s, 64);
  memset(perigee_region_pointer(region), BEFORE, SIZE);
  tell_bytes(s->hand.fd, 0, SIZE, 2, 0);
  played_goes_on(s);
  const uint8_t *now = perigee_region_pointer(region);
  assert_int_equal(now[0], BEFORE);
  assert_int_equal(now[SIZE - 1], BEFORE);
  close(fd);
}

/* So many heads before it that no poll handles them all. */
static void ends_behind_many_heads(struct played *s) {
  enum { EACH = 600, TIMES = 10 };
  struct tcp_head words[EACH];
  for (int i = 0; i < EACH; i++)
    words[i] = (struct tcp_head){.type = TCP_WORD};
  for (int i = 0; i < TIMES; i++)
    hand_lane(&s->hand, words, sizeof words);
  played_tell_word(
      s, (struct tcp_head){.type = TCP_ENDED, .operation = 1, .generation = 1});
}

/* Others see the region, and its end lies unread when the bytes come: of a piece
 * that has begun to land, or of another. */
static void lands_no_more(struct played *s, bool begun) {
  const uint8_t *now = perigee_region_pointer(s->region);
  int fd = played_stream(s, FIRST, 0);
  played_tell_write(s, SIZE);
  tell_bytes(fd, 0, SIZE / 2, 1, begun ? SIZE / 4 : ALL);
  played_look(s, 64);
  assert_int_equal(now[SIZE / 4 - 1], 1);
  ends_behind_many_heads(s);
  uint8_t late[SIZE / 2];
  memset(late, 2, sizeof late);
  if (begun)
    played_tell_on(fd, late, SIZE / 4);
  else
    tell_bytes(fd, SIZE / 2, SIZE / 2, 2, ALL);
  played_goes_on(s);
  for (uint32_t i = 0; i < SIZE; i++)
    assert_int_not_equal(now[i], 2);
  close(fd);
}

static void a_piece_lands_no_more_once_its_end_was_said(void **state) {
  lands_no_more(*state, true);
}

static void nor_does_one_that_comes_then(void **state) {
  lands_no_more(*state, false);
}

static void nor_does_one_that_came_before_it(void **state) {
  struct played *s = *state;
  const uint8_t *now = perigee_region_pointer(s->region);
  played_tell_write(s, SIZE);
  tell_bytes(s->hand.fd, 0, SIZE / 2, 2, ALL);
  ends_behind_many_heads(s);
  played_goes_on(s);
  assert_int_equal(now[0], BEFORE);
  assert_int_equal(now[SIZE / 2 - 1], BEFORE);
}

/* Memory that no CPU can write is filled in order. What is missing may come
 * behind what came too early, by the same stream. */
static void later_bytes_come_before_those_that_were_lost(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  played_post_opaque(s, &region);
  played_tell_message(s, SIZE);
  tell_bytes(s->hand.fd, SIZE / 2, SIZE / 2, 9, 0);
  played_goes_on(s);
  tell_bytes(s->hand.fd, 0, SIZE / 2, 9, 0);
  done_with(s, s->done.operation, region, 9);
}

static void half_a_piece_for_memory_that_no_cpu_can_write(void **state) {
  struct played *s = *state;
  struct perigee_region *region;
  int fd = played_stream(s, FIRST, 0);
  played_post_opaque(s, &region);
  played_tell_message(s, SIZE);
  tell_bytes(fd, 0, SIZE / 2, 4, 0);
  tell_bytes(fd, SIZE / 2, SIZE / 2, 5, HALF_WORD);
  played_goes_on(s);
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 1);
  tell_bytes(s->hand.fd, SIZE / 2, SIZE / 2, 4, 0);
  done_with(s, s->done.operation, region, 4);
  close(fd);
}

/* The word of the first piece is still to come, as its stream is lost; the second
 * one came by another stream. */
static void comes_behind_a_piece_without_its_word(struct played *s, bool by_0) {
  enum { PART = SIZE / 4 };
  struct perigee_region *region;
  int lost = played_stream(s, FIRST, 0), other = played_stream(s, FIRST + 1, 0);
  played_post_opaque(s, &region);
  played_tell_message(s, SIZE);
  tell_bytes(lost, 0, PART, 8, HALF_WORD);
  played_goes_on(s);
  tell_bytes(by_0 ? s->hand.fd : other, PART, PART, 8, ALL);
  played_goes_on(s);
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 0);
  tell_bytes(s->hand.fd, 0, PART, 8, ALL);
  tell_bytes(other, 2 * PART, 2 * PART, 8, ALL);
  done_with(s, s->done.operation, region, 8);
  close(lost);
  close(other);
}

static void what_comes_behind_it_by_another_stream_waits(void **state) {
  comes_behind_a_piece_without_its_word(*state, false);
}

static void so_does_what_comes_by_the_first(void **state) {
  comes_behind_a_piece_without_its_word(*state, true);
}

/* Otherwise the peer would be told of less and less window. */
static void what_does_not_count_takes_no_window(void **state) {
  struct played *s = *state;
  const uint16_t lives = 2 * TCP_WINDOW / SIZE;
  for (uint16_t life = 0; life < lives; life++) {
    uint32_t number = FIRST + (TCP_STREAMS - 1) * (uint32_t)life;
    int fd = played_stream(s, number, 0);
    tell_bytes(fd, 0, SIZE, 1, 1);
    for (int i = 0; i < TCP_PATIENCE + 8; i++)
      played_look(s, 1);
    tell(s, TCP_LOST, life, 0);
    played_goes_on(s);
    hand_drop(&s->hand);
    close(fd);
  }
}

/* ---- At the sender ----------------------------------------------------------- */

static uint8_t written[LONG];

enum kind { HEAD, OPAQUE, STRIDED };

static void write_all(void) {
  for (uint32_t i = 0; i < LONG; i++)
    written[i] = (uint8_t)(i * 2654435761u >> 24);
}

/* Blocks of 64 bytes that lie apart, or memory that no CPU can read. */
static struct perigee_slice sliced(struct played *s, enum kind kind) {
  enum { BLOCK = 64, BLOCKS = LONG / BLOCK };
  struct perigee_region *region;
  uint64_t apart = kind == STRIDED ? 2 : 1;
  assert_int_equal(perigee_region_alloc(s->engine, NULL, apart * LONG, 0,
                                        kind == OPAQUE ? "opaque" : NULL,
                                        &region),
                   0);
  for (uint64_t i = 0; i < BLOCKS; i++)
    assert_int_equal(perigee_region_write(region, apart * i * BLOCK,
                                          written + i * BLOCK, BLOCK),
                     0);
  return kind == OPAQUE ? (struct perigee_slice){{region}, 0, LONG, 1, LONG}
                        : (struct perigee_slice){
                              {region}, 0, BLOCK, BLOCKS, apart * BLOCK};
}

static int call_out(struct played *s, enum kind kind) {
  struct perigee_message m = {.timeout = -1};
  write_all();
  if (kind == HEAD) {
    m.head = written;
    m.length = LONG;
  } else {
    m.slice = sliced(s, kind);
  }
  int op = perigee_call(s->hand.session, &m);
  assert_true(op >= 0);
  return op;
}

/* A call of a LONG payload, of which a stream has got what it takes. */
static int call_by_stream(struct played *s, enum kind kind, struct heard *by,
                          int *op) {
  int fd = played_stream(s, FIRST, 0), size = 4 * LONG;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  played_look(s, 8);
  *op = call_out(s, kind);
  *by = (struct heard){.fd = fd};
  return fd;
}

static void comes_again(struct played *s, enum kind kind) {
  static struct heard by, again;
  struct tcp_head head;
  uint32_t body, sum = 0;
  int op, fd = call_by_stream(s, kind, &by, &op);
  hear(s, &by);
  assert_true(said(&by, TCP_FRAGMENT, 0, &head, &body));
  uint32_t first = head.length;
  tell(s, TCP_LOST, 0, 1);
  again = (struct heard){.fd = s->hand.fd};
  hear(s, &again);
  for (int i = 0; said(&again, TCP_FRAGMENT, i, &head, &body); i++) {
    assert_int_equal(head.at, first + sum);
    assert_memory_equal(again.bytes + body, written + head.at, head.length);
    sum += head.length;
  }
  assert_int_equal(first + sum, LONG);
  played_goes_on(s);
  perigee_cancel(s->engine, op);
  close(fd);
}

static void what_the_peer_does_not_count_comes_again(void **state) {
  comes_again(*state, HEAD);
}

static void so_do_blocks_that_lie_apart(void **state) {
  comes_again(*state, STRIDED);
}

static void so_does_memory_that_no_cpu_can_read(void **state) {
  comes_again(*state, OPAQUE);
}

static void what_belongs_to_no_operation_any_more_does_not(void **state) {
  static struct heard by, again;
  struct played *s = *state;
  struct tcp_head head;
  uint32_t body;
  int op, fd = call_by_stream(s, HEAD, &by, &op);
  hear(s, &by);
  perigee_cancel(s->engine, op);
  played_look(s, 8);
  tell(s, TCP_LOST, 0, 0);
  again = (struct heard){.fd = s->hand.fd};
  hear(s, &again);
  assert_false(said(&again, TCP_FRAGMENT, 0, &head, &body));
  /* The window is whole again. */
  assert_int_equal(s->hand.session->lane->eager_sent, 0);
  played_goes_on(s);
  close(fd);
}

/* Stream 0 tells the end, and behind it asks about a life that the stream never
 * had: a peer that answers knows of the end. Returns the ASK. */
static struct tcp_head tells_its_end_and_asks(struct played *s) {
  static struct heard h;
  struct tcp_head end = {0}, ask = {0};
  uint32_t end_at, ask_at;
  h = (struct heard){.fd = s->hand.fd};
  hear(s, &h);
  assert_true(said(&h, TCP_ENDED, 0, &end, &end_at));
  assert_true(said(&h, TCP_ASK, 0, &ask, &ask_at));
  assert_true(end_at < ask_at);
  assert_int_equal(ask.which, FIRST);
  assert_int_not_equal(ask.operation, 0);
  return ask;
}

/* The peer may read what comes straight to where others see it. Zeros by another
 * socket could overtake the end. */
static void zeros_come_once_the_peer_knows_the_end(void **state) {
  static struct heard by;
  struct played *s = *state;
  struct tcp_head head, answer;
  uint32_t body;
  uint64_t word;
  int op, fd = call_by_stream(s, HEAD, &by, &op);
  played_look(s, 8);
  perigee_cancel(s->engine, op);
  hear(s, &by);
  assert_true(said(&by, TCP_FRAGMENT, 0, &head, &body));
  if (by.end >= body + head.length)
    fail_msg("zeros were sent before the peer knew of the end");
  assert_memory_equal(by.bytes + body, written + head.at, by.end - body);
  answer = tells_its_end_and_asks(s);
  answer.type = TCP_TAKEN;
  played_tell_word(s, answer);
  hear(s, &by);
  assert_int_equal(by.end, body + head.length + TCP_TRAILER);
  memcpy(&word, by.bytes + body + head.length, sizeof word);
  assert_true(word == TCP_GIVEN_UP);
  played_goes_on(s);
  close(fd);
}

/* A head of stream 0, so that the session lives. */
static void time_passes(struct played *s, int64_t ms) {
  for (int64_t i = 0; i < ms; i += 100) {
    passed += 100 * MS;
    played_tell_word(s, (struct tcp_head){.type = TCP_WORD});
    played_look(s, 4);
  }
}

/* Answers what the engine asks: as much as that has come. */
static bool asked(struct played *s, struct heard *h, uint32_t came,
                  uint64_t bytes, bool unread) {
  struct tcp_head head, answer = of_stream(TCP_TAKEN, 0, came);
  uint32_t body;
  *h = (struct heard){.fd = s->hand.fd};
  hear(s, h);
  if (!said(h, TCP_ASK, 0, &head, &body))
    return false;
  answer.at = bytes;
  answer.unread = unread;
  played_tell_word(s, answer);
  return true;
}

static bool is_lost(const struct heard *h) {
  struct tcp_head head;
  uint32_t body;
  return said(h, TCP_LOST, 0, &head, &body);
}

static void a_stream_on_which_nothing_moves_is_lost(void **state) {
  static struct heard by, h;
  struct played *s = *state;
  int op, fd = call_by_stream(s, HEAD, &by, &op), answers = 0;
  for (int i = 0; i < 40 && !is_lost(&h); i++) {
    time_passes(s, 500);
    answers += asked(s, &h, 0, 0, false);
  }
  assert_true(answers > 1);
  assert_true(is_lost(&h));
  played_goes_on(s);
  perigee_cancel(s->engine, op);
  close(fd);
}

/* This side is away for longer than its patience. The answer lay unread, and the
 * next ones come before anything that this side could send meanwhile. */
static void who_was_away_itself_loses_no_stream(void **state) {
  static struct heard by, h;
  struct played *s = *state;
  int op, fd = call_by_stream(s, HEAD, &by, &op), answers = 0;
  while (answers == 0) {
    time_passes(s, 500);
    answers += asked(s, &h, 0, 0, false);
  }
  passed += 20000 * MS;
  for (answers = 0; answers < 2;) {
    answers += asked(s, &h, 0, 0, false);
    assert_false(is_lost(&h));
    time_passes(s, 100);
  }
  hear(s, (h = (struct heard){.fd = s->hand.fd}, &h));
  assert_false(is_lost(&h));
  played_goes_on(s);
  perigee_cancel(s->engine, op);
  close(fd);
}

enum goes { BYTES, UNREAD, NO_ANSWER };

/* Bytes go on, or lie unread at the peer, or the peer does not answer at all, as
 * one that is stopped. */
static void lives(struct played *s, enum goes goes) {
  static struct heard by, h;
  int op, fd = call_by_stream(s, HEAD, &by, &op);
  for (uint32_t i = 1; i <= 30; i++) {
    time_passes(s, 500);
    if (goes != NO_ANSWER)
      asked(s, &h, 0, goes == BYTES ? i : 0, goes == UNREAD);
    else
      hear(s, (h = (struct heard){.fd = s->hand.fd}, &h));
    assert_false(is_lost(&h));
  }
  played_goes_on(s);
  perigee_cancel(s->engine, op);
  close(fd);
}

static void one_on_which_bytes_move_is_not(void **state) {
  lives(*state, BYTES);
}

static void one_whose_bytes_lie_unread_is_not(void **state) {
  lives(*state, UNREAD);
}

static void one_of_which_nothing_is_said_is_not(void **state) {
  lives(*state, NO_ANSWER);
}

/* A payload of an operation that nobody knows, a head and 100 bytes at a
 * time. */
static void bytes_come(struct played *s, int fd, int64_t ms) {
  struct tcp_head h = {
      .type = TCP_FRAGMENT, .operation = 9, .generation = 9, .length = 100};
  static const uint8_t zeros[108];
  for (int64_t i = 0; i < ms && s->lost.kind == 0; i += 100) {
    passed += 100 * MS;
    played_tell_on(fd, &h, sizeof h);
    played_tell_on(fd, zeros, sizeof zeros);
    played_look(s, 4);
  }
}

static void a_stream_that_brings_something_is_no_sign_of_another(void **state) {
  struct played *s = *state;
  int fd = played_stream(s, FIRST, 0);
  played_goes_on(s);
  bytes_come(s, fd, 2000);
  played_goes_on(s);
  bytes_come(s, fd, 2000);
  played_lost_by(s, PERIGEE_PEER_LOST);
  close(fd);
}

static void it_is_one_to_who_has_no_such_feature(void **state) {
  played_close(state);
  played_open_with(state, 0, clock_of_test);
  struct played *s = *state;
  int fd = played_stream(s, FIRST, 0);
  played_goes_on(s);
  bytes_come(s, fd, 6000);
  played_goes_on(s);
  close(fd);
}

/* ---- A session that waits for room --------------------------------------------- */

static void over(int socket, int fd) {
  assert_true(dup2(socket, fd) >= 0);
  close(socket);
  assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

/* Puts a connection over TCP in the place of the pair of sockets. */
static void over_tcp(struct played *s) {
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM, 0),
      dialed = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(listener, (void *)&at, length), 0);
  assert_int_equal(listen(listener, 1), 0);
  assert_int_equal(getsockname(listener, (void *)&at, &length), 0);
  assert_int_equal(connect(dialed, (void *)&at, length), 0);
  over(accept(listener, NULL, NULL), s->hand.session->lane->streams[0]->fd);
  over(dialed, s->hand.fd);
  close(listener);
}

/* Time passes in which the peer says nothing. A kernel takes up to 0.2 s to
 * acknowledge. */
static void silence(struct played *s) {
  for (int i = 0; i < 80 && s->lost.kind == 0; i++) {
    passed += 100 * MS;
    played_look(s, 4);
    nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
  }
}

/* A piece of a write waits until others of the peer's leave room for it. */
static void fills_up(struct played *s) {
  struct tcp_head h = played_piece(0, SIZE);
  static const uint8_t zeros[SIZE];
  over_tcp(s);
  played_tell_write(s, SIZE);
  played_look(s, 8);
  share_add(s->hand.session->account.share, SHARE_POOLED, SHARE);
  h.which &= (uint8_t)~PART_EAGER;
  hand_lane(&s->hand, &h, sizeof h);
  hand_lane(&s->hand, zeros, SIZE);
  played_look(s, 64);
  assert_int_equal(s->hand.session->lane->streams[0]->sink, SINK_WAITING);
}

static void a_peer_whose_kernel_answers_is_not_lost(void **state) {
  struct played *s = *state;
  fills_up(s);
  silence(s);
  played_goes_on(s);
  share_give(s->hand.session->account.share, SHARE_POOLED, SHARE);
}

/* What has all of the share may end only by what stands behind the bytes. */
static void nor_does_it_wait_for_a_share_for_ever(void **state) {
  struct played *s = *state;
  const struct stream *first;
  uint8_t before[SIZE];
  memset(before, BEFORE, SIZE);
  fills_up(s);
  first = s->hand.session->lane->streams[0];
  for (int i = 0; i < 5 && first->sink == SINK_WAITING; i++)
    silence(s);
  assert_int_equal(s->lost.kind, 0);
  assert_int_not_equal(first->sink, SINK_WAITING);
  share_give(s->hand.session->account.share, SHARE_POOLED, SHARE);
  played_goes_on(s);
  assert_memory_equal(perigee_region_pointer(s->region), before, SIZE);
}

static void one_that_has_left_is(void **state) {
  struct played *s = *state;
  fills_up(s);
  close(s->hand.fd);
  s->hand.fd = -1;
  silence(s);
  assert_int_equal(s->lost.status, PERIGEE_PEER_LOST);
}

/* As when the host died, or a cable was cut. */
static void one_whose_kernel_does_not_answer_is(void **state) {
  struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  struct sock_fprog all = {1, &drop};
  struct played *s = *state;
  fills_up(s);
  assert_int_equal(
      setsockopt(s->hand.fd, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all),
      0);
  silence(s);
  assert_int_equal(s->lost.status, PERIGEE_PEER_LOST);
}

/* ---- Lives ------------------------------------------------------------------------ */

static void the_next_life_has_a_number_of_its_own(void **state) {
  struct played *s = *state;
  int fd = played_stream(s, FIRST, 0);
  played_goes_on(s);
  close(played_stream(s, NEXT, PERIGEE_PROTOCOL)); /* the first one lives */
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 0);
  close(played_stream(s, FIRST, PERIGEE_PROTOCOL));
  close(fd);
  fd = played_stream(s, NEXT, 0);
  played_goes_on(s);
  assert_true(tcp_usable(s->hand.session->lane->streams[FIRST]));
  assert_int_equal(s->hand.session->account.descriptors, 2);
  close(fd);
}

/* Its ATTACH was held back, and comes too late. */
static void a_life_that_never_began_is_over(void **state) {
  struct played *s = *state;
  tell(s, TCP_LOST, 3, 0);
  says_lost(s, 3, 0);
  close(played_stream(s, FIRST + 3 * (TCP_STREAMS - 1), PERIGEE_PROTOCOL));
  close(played_stream(s, FIRST + 4 * (TCP_STREAMS - 1), 0));
  played_goes_on(s);
}

/* The peer's next life ended before this side has read of the end of the first
 * one. */
static void two_lives_may_be_over_at_once(void **state) {
  struct played *s = *state;
  int fd = played_stream(s, FIRST, 0);
  played_goes_on(s);
  close(fd);
  says_lost(s, 0, 0);
  tell(s, TCP_LOST, 0, 0);
  tell(s, TCP_LOST, 1, 0);
  says_lost(s, 1, 0);
  played_goes_on(s);
}

static void lies_about_streams_end_the_session(void **state) {
  const struct {
    struct tcp_head head;
    bool without; /* a stream */
  } lies[] = {{of_stream(TCP_LOST, 0, 1), false},
              {of_stream(TCP_LOST, 1, 0), false},
              {of_stream(TCP_TAKEN, 0, 1), false},
              {{.type = TCP_ASK, .which = 0}, true},
              {{.type = TCP_ASK, .which = TCP_STREAMS}, true},
              {{.type = TCP_LOST, .which = TCP_STREAMS}, true},
              {{.type = TCP_ASK, .which = FIRST, .length = 1}, true},
              {{.type = TCP_TYPES, .which = FIRST}, true}};
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    if (i > 0) {
      played_close(state);
      open_scene(state);
    }
    struct played *s = *state;
    int fd = lies[i].without ? -1 : played_stream(s, FIRST, 0);
    played_goes_on(s);
    played_tell_word(s, lies[i].head);
    played_lost_by(s, PERIGEE_PROTOCOL);
    if (fd >= 0)
      close(fd);
  }
}

/* Its answers are no memory that the peer may have without end. */
static void who_asks_and_never_reads_is_given_up(void **state) {
  struct played *s = *state;
  uint32_t waiting = 0;
  for (int i = 0; i < 1 << 18 && s->lost.kind == 0; i++) {
    tell(s, TCP_ASK, 3, 0);
    if (i % 256 > 0)
      continue;
    played_look(s, 4);
    if (s->lost.kind == 0 && s->hand.session->lane) {
      const struct bytes *out = &s->hand.session->lane->streams[0]->out;
      waiting = out->end - out->first;
    }
  }
  assert_int_equal(s->lost.status, PERIGEE_PEER_LOST);
  assert_in_range(waiting, TCP_WAITING, 3 * TCP_WAITING);
}

static void a_life_is_lost_once(void **state) {
  struct played *s = *state;
  int fd = played_stream(s, FIRST, 0);
  tell(s, TCP_LOST, 0, 0);
  says_lost(s, 0, 0);
  tell(s, TCP_LOST, 0, 0);
  played_lost_by(s, PERIGEE_PROTOCOL);
  close(fd);
}

static void who_has_no_such_feature_says_no_such_word(void **state) {
  played_close(state);
  played_open(state);
  struct played *s = *state;
  int fd = played_stream(s, FIRST, 0);
  tell(s, TCP_ASK, 0, 0);
  played_lost_by(s, PERIGEE_PROTOCOL);
  close(fd);
}

/* ---- Ranges ------------------------------------------------------------------------ */

/* In whatever order pieces come, are taken back and come again. */
static void ranges_are_taken_back(void **state) {
  enum { PIECES = 61, EACH = 5 };
  struct ranges c = {0};
  (void)state;
  for (uint64_t step = 1; step < PIECES; step++) {
    for (uint64_t i = 0; i < PIECES; i++) {
      uint64_t at = i * step % PIECES * EACH,
               back = (i / 2) * step % PIECES * EACH;
      assert_int_equal(ranges_add(&c, at, EACH), 0);
      assert_int_equal(ranges_remove(&c, back, EACH), 0);
      assert_int_equal(ranges_add(&c, back, EACH), 0);
      assert_int_equal(ranges_add(&c, back, EACH), PERIGEE_PROTOCOL);
    }
    assert_int_equal(c.first, PIECES * EACH);
    assert_int_equal(c.count, 0);
    ranges_close(&c);
  }
}

#define LIFE(test)                                                             \
  cmocka_unit_test_setup_teardown(test, open_scene, played_close)

int main(void) {
  const struct CMUnitTest tests[] = {
      LIFE(half_of_a_piece_does_not_count),
      LIFE(a_piece_without_its_word_does_not_count),
      LIFE(a_piece_that_came_whole_counts),
      LIFE(a_piece_that_came_whole_is_a_lie_if_it_comes_again),
      LIFE(what_comes_again_for_an_operation_that_ended_lands_nowhere),
      LIFE(a_piece_lands_no_more_once_its_end_was_said),
      LIFE(nor_does_one_that_comes_then),
      LIFE(nor_does_one_that_came_before_it),
      LIFE(later_bytes_come_before_those_that_were_lost),
      LIFE(half_a_piece_for_memory_that_no_cpu_can_write),
      LIFE(what_comes_behind_it_by_another_stream_waits),
      LIFE(so_does_what_comes_by_the_first),
      LIFE(what_does_not_count_takes_no_window),
      LIFE(what_the_peer_does_not_count_comes_again),
      LIFE(so_do_blocks_that_lie_apart),
      LIFE(so_does_memory_that_no_cpu_can_read),
      LIFE(what_belongs_to_no_operation_any_more_does_not),
      LIFE(zeros_come_once_the_peer_knows_the_end),
      LIFE(a_stream_on_which_nothing_moves_is_lost),
      LIFE(who_was_away_itself_loses_no_stream),
      LIFE(one_on_which_bytes_move_is_not),
      LIFE(one_whose_bytes_lie_unread_is_not),
      LIFE(one_of_which_nothing_is_said_is_not),
      LIFE(a_stream_that_brings_something_is_no_sign_of_another),
      LIFE(it_is_one_to_who_has_no_such_feature),
      LIFE(a_peer_whose_kernel_answers_is_not_lost),
      LIFE(nor_does_it_wait_for_a_share_for_ever),
      LIFE(one_that_has_left_is),
      LIFE(one_whose_kernel_does_not_answer_is),
      LIFE(the_next_life_has_a_number_of_its_own),
      LIFE(a_life_that_never_began_is_over),
      LIFE(two_lives_may_be_over_at_once),
      LIFE(lies_about_streams_end_the_session),
      LIFE(who_asks_and_never_reads_is_given_up),
      LIFE(a_life_is_lost_once),
      LIFE(who_has_no_such_feature_says_no_such_word),
      cmocka_unit_test(ranges_are_taken_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
