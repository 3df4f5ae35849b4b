/* SPDX-License-Identifier: Apache-2.0
 *
 * join_test.c - perigee_join and perigee_call_wait: the wait for one operation,
 * and what comes meanwhile, which waits for the program's next poll. The peer
 * is an engine in a thread of its own.
 */
#include "support.h"
#include "support_inside.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG = 300 * KIB, MANY = 2000, BACK_MOST = 64, RW = 3 };
static const int64_t SECOND = 1000000000;

/* ---- The peer ------------------------------------------------------------ */

/* What a call asks of the peer, by its method. */
enum asked {
  ECHO = 1,
  BACK,   /* makes `back` calls itself before it answers */
  LATER,  /* the same, and answers once they have ended */
  SILENT, /* no answer */
  LEAVE,  /* closes the session */
  SEND    /* sends a message before it answers */
};

struct partner {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *region; /* of SEND */
  pthread_t thread;
  atomic_bool over;
  pthread_mutex_t lock; /* of the fields below, which both threads use */
  int back;             /* calls that BACK makes, by their lengths */
  uint32_t lengths[BACK_MOST];
  uint8_t *bytes;         /* those of all calls that it makes */
  uint16_t flags;         /* of these calls */
  int silent, later;      /* the call that has no answer, or -1 */
  int replies[BACK_MOST]; /* statuses of what it called, in order */
  int replied, wrong;
};

static void partner_call_back(struct partner *w) {
  for (int i = 0; i < w->back; i++) {
    struct perigee_message m = {.method = (uint16_t)(100 + i),
                                .flags = w->flags,
                                .head = w->bytes,
                                .length = w->lengths[i],
                                .timeout = 20 * SECOND,
                                .code = (uint64_t)i + 1};
    w->wrong += perigee_call(w->session, &m) < 0;
  }
}

static void partner_asked(struct partner *w, const struct perigee_event *e) {
  struct perigee_message r = {.head = e->pointer,
                              .length = e->length,
                              .flags = e->flags & PERIGEE_TYPED};
  if (e->method == BACK || e->method == LATER)
    partner_call_back(w);
  if (e->method == SEND) {
    struct perigee_slice from = all_of(w->region, LONG);
    w->wrong += perigee_send(w->session, &from, 20 * SECOND) < 0;
  }
  if (e->method == SILENT)
    w->silent = e->operation;
  else if (e->method == LATER)
    w->later = e->operation;
  else if (e->method == LEAVE)
    perigee_session_close(w->session);
  else
    w->wrong += perigee_reply(w->engine, e->operation, &r) < 0;
}

static void partner_told(struct partner *w, const struct perigee_event *e) {
  if (e->kind == PERIGEE_EVENT_REQUEST)
    partner_asked(w, e);
  if (e->kind != PERIGEE_EVENT_REPLY)
    return;
  w->wrong += e->code != (uint64_t)w->replied + 1000;
  w->replies[w->replied++ % BACK_MOST] = e->status;
  if (w->later < 0 || w->replied < w->back)
    return;
  struct perigee_message r = {0};
  w->wrong += perigee_reply(w->engine, w->later, &r) < 0;
  w->later = -1;
}

static void *partner_run(void *context) {
  struct partner *w = context;
  struct perigee_event e;
  while (!atomic_load(&w->over)) {
    while (perigee_poll(w->engine, &e, 1) == 1) {
      pthread_mutex_lock(&w->lock);
      partner_told(w, &e);
      pthread_mutex_unlock(&w->lock);
    }
    perigee_wait(&w->engine, 1, 2 * MS);
  }
  return NULL;
}

/* From here on side 1 belongs to its thread. */
static void partner_begin(struct partner *w, struct pair *p) {
  w->engine = p->engine[1];
  w->session = p->session[1];
  w->silent = w->later = -1;
  pthread_mutex_init(&w->lock, NULL);
  p->still[1] = true;
  assert_int_equal(pthread_create(&w->thread, NULL, partner_run, w), 0);
}

static void partner_end(struct partner *w, struct pair *p) {
  atomic_store(&w->over, true);
  assert_int_equal(pthread_join(w->thread, NULL), 0);
  p->still[1] = false;
  assert_int_equal(w->wrong, 0);
  struct perigee_message r = {0};
  if (w->silent >= 0)
    perigee_reply(w->engine, w->silent, &r);
}

/* A pair whose side 1 plays the partner. */
struct play {
  struct pair pair;
  struct partner partner;
  struct perigee_engine *engine;
  struct perigee_session *session;
  uint8_t *bytes;
  uint16_t flags; /* of the calls of echo() */
};

static void play_open_with(struct play *t, void *state, uint64_t most) {
  struct perigee_options o;
  variant_options(state, &o);
  o.spin = 20000; /* so that it sleeps now and then */
  if (most)
    o.serving = (uint32_t)most;
  *t = (struct play){0};
  pair_open_with(&t->pair, state, &o);
  t->engine = t->pair.engine[0];
  t->session = t->pair.session[0];
  t->bytes = t->partner.bytes = pattern(LONG, 9);
}

static void play_open(struct play *t, void *state) {
  play_open_with(t, state, 0);
  partner_begin(&t->partner, &t->pair);
}

/* Side 0 keeps nothing. Nobody looks at what comes to side 1 any more. */
static void play_settle(struct play *t) {
  struct perigee_event e;
  int64_t end = clock_now() + 20 * SECOND;
  do {
    assert_int_equal(perigee_poll(t->engine, &e, 1), 0);
    perigee_poll(t->pair.engine[1], &e, 1);
    assert_true(clock_now() < end);
  } while (operations(&t->pair, 0) > 0);
  assert_int_equal(perigee_poll(t->engine, &e, 1), 0);
  assert_int_equal(perigee_counters(t->engine, NULL)->pooled, 0);
  assert_int_equal(lent_bytes(t->session), 0);
}

/* Closes what may have events left. */
static void play_drop(struct play *t) {
  partner_end(&t->partner, &t->pair);
  pair_drop(&t->pair);
  free(t->bytes);
}

static void play_close(struct play *t) {
  partner_end(&t->partner, &t->pair);
  play_settle(t);
  pair_drop(&t->pair);
  free(t->bytes);
}

static struct perigee_message message(enum asked method, const uint8_t *bytes,
                                      uint64_t length) {
  return (struct perigee_message){.method = (uint16_t)method,
                                  .head = bytes,
                                  .length = length,
                                  .timeout = 20 * SECOND};
}

static void echo(struct play *t, enum asked method, uint64_t length) {
  struct perigee_message m = message(method, t->bytes, length);
  struct perigee_event e;
  m.flags = t->flags;
  assert_int_equal(perigee_call_wait(t->session, &m, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.length, length);
  if (length)
    assert_memory_equal(e.pointer, t->bytes, length);
}

/* The next event, by poll and wait. */
static struct perigee_event next(struct play *t) {
  struct perigee_event e = {0};
  int64_t end = clock_now() + 20 * SECOND;
  while (perigee_poll(t->engine, &e, 1) == 0) {
    if (clock_now() > end)
      fail_msg("no event comes");
    perigee_wait(&t->engine, 1, 10 * MS);
  }
  return e;
}

static void none_waits(struct play *t) {
  struct perigee_event e;
  for (int i = 0; i < 3; i++)
    assert_int_equal(perigee_poll(t->engine, &e, 1), 0);
}

static uint64_t polls(struct play *t) {
  return perigee_counters(t->engine, NULL)->polls;
}

/* ---- One after the other ------------------------------------------------- */

static void calls_of_every_length_are_waited_for(void **state) {
  static const uint64_t lengths[] = {0, 1, 64, 5000, 8 * KIB, 9 * KIB, LONG};
  struct play t;
  play_open(&t, *state);
  for (int i = 0; i < 14; i++) { /* also if they ask for a landing */
    t.flags = i / 7 ? PERIGEE_ASKS : 0;
    echo(&t, ECHO, lengths[i % 7]);
  }
  none_waits(&t);
  play_close(&t);
}

/* Rings are much shorter than all replies, and nobody polls. */
static void a_program_may_never_poll(void **state) {
  struct play t;
  play_open(&t, *state);
  for (int i = 0; i < MANY; i++)
    echo(&t, ECHO, (uint64_t)(i % 3) * 1000);
  assert_true(operations(&t.pair, 0) <= 1);
  none_waits(&t);
  play_close(&t);
}

static void a_failure_has_its_text(void **state) {
  struct play t;
  struct perigee_event e;
  play_open_with(&t, *state, 0);
  perigee_drain(t.pair.engine[1]);
  partner_begin(&t.partner, &t.pair);
  struct perigee_message m = message(ECHO, t.bytes, 10);
  struct perigee_failure f;
  struct perigee_listener *none;
  assert_true(perigee_listen(t.engine, "nowhere", &none) < 0);
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_DRAINING);
  assert_int_equal(perigee_failure_read(&e, &f, sizeof f), 0);
  assert_int_equal(strlen(perigee_detail(t.engine)), f.text_length);
  assert_memory_equal(perigee_detail(t.engine), f.text, f.text_length);
  play_close(&t);
}

static void every_kind_of_operation_is_joined(void **state) {
  struct play t;
  struct perigee_event e;
  play_open_with(&t, *state, 0);
  struct perigee_region *there = region_of(&t.pair, 1, "there", LONG, RW);
  struct perigee_region *here = region_of(&t.pair, 0, NULL, LONG, 0);
  t.partner.region = there;
  fill(there, 0, t.bytes, LONG);
  partner_begin(&t.partner, &t.pair);
  int op = perigee_lookup(t.session, "there", 20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  struct perigee_transfer item = {
      .local = all_of(here, LONG),
      .remote = {{.remote = (struct perigee_remote *)(uintptr_t)e.pointer},
                 0,
                 LONG,
                 1,
                 LONG}};
  op = perigee_transfer(t.session, PERIGEE_OP_READ, &item, 1, 0, 20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  same(here, 0, t.bytes, LONG);
  fill_byte(here, 0);
  struct perigee_slice to = all_of(here, LONG);
  int receive = perigee_recv(t.session, &to, 20 * SECOND);
  echo(&t, SEND, 0);
  assert_int_equal(perigee_join(t.engine, receive, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_DONE);
  assert_int_equal(e.length, LONG);
  same(here, 0, t.bytes, LONG);
  partner_end(&t.partner, &t.pair);
  play_settle(&t);
  region_end(here);
  region_end(there);
  pair_drop(&t.pair);
  free(t.bytes);
}

static void a_connect_is_joined(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  int op = perigee_connect(t.engine, t.pair.address, t.pair.variant->transport,
                           20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  struct perigee_session *second = perigee_session(t.engine, e.session);
  struct perigee_message m = message(ECHO, t.bytes, 64);
  assert_int_equal(perigee_call_wait(second, &m, &e), 0);
  perigee_session_free(second);
  op = perigee_connect(t.engine, "unix:/nowhere/at-all", NULL, SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_NOT_FOUND);
  play_drop(&t);
}

/* ---- What comes meanwhile ------------------------------------------------ */

/* Lengths in the ring, of one block, beyond the eager limit. */
static void call_back_in_all_lengths(struct partner *w, int count) {
  static const uint32_t lengths[] = {0, 64, 1000, 8 * KIB, 3, 20 * KIB};
  pthread_mutex_lock(&w->lock);
  w->back = count;
  for (int i = 0; i < count; i++)
    w->lengths[i] = lengths[i % 6];
  pthread_mutex_unlock(&w->lock);
}

/* The same, of one length. */
static void call_back_alike(struct partner *w, int count, uint32_t length) {
  pthread_mutex_lock(&w->lock);
  w->back = count;
  w->replied = 0;
  for (int i = 0; i < count; i++)
    w->lengths[i] = length;
  pthread_mutex_unlock(&w->lock);
}

/* Takes what was asked, in order, and answers. */
static void serve_all(struct play *t, int count) {
  for (int i = 0; i < count; i++) {
    struct perigee_event e = next(t);
    struct perigee_message r = {.code = (uint64_t)i + 1000};
    assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.method, 100 + i);
    assert_int_equal(e.code, i + 1);
    assert_int_equal(e.length, t->partner.lengths[i]);
    if (e.length)
      assert_memory_equal(e.pointer, t->bytes, e.length);
    assert_int_equal(perigee_reply(t->engine, e.operation, &r), 0);
  }
}

static void partner_has_replies(struct play *t, int count) {
  assert_int_equal(t->partner.replied, count);
  for (int i = 0; i < count; i++)
    assert_int_equal(t->partner.replies[i], PERIGEE_OK);
}

static void requests_wait_for_the_poll(void **state) {
  struct play t;
  play_open(&t, *state);
  call_back_in_all_lengths(&t.partner, 24);
  echo(&t, BACK, 64);
  for (int i = 0; i < 200; i++) /* their bytes stay while rings are reused */
    echo(&t, ECHO, (uint64_t)(i % 5) * 1500);
  serve_all(&t, 24);
  echo(&t, ECHO, 64);
  none_waits(&t);
  play_close(&t);
  partner_has_replies(&t, 24);
}

/* Typed data of replies take the memory in which requests were scanned. */
static void typed_requests_wait_too(void **state) {
  struct play t;
  struct perigee_event e;
  uint8_t asked[] = {0x20 + 4, 'a', 'b', 'c', 'd'};
  uint8_t other[] = {0x20 + 4, 'w', 'x', 'y', 'z'};
  play_open_with(&t, *state, 0);
  uint8_t *plain = t.bytes;
  t.bytes = t.partner.bytes = asked;
  t.partner.flags = PERIGEE_TYPED;
  partner_begin(&t.partner, &t.pair);
  call_back_alike(&t.partner, 3, sizeof asked);
  echo(&t, BACK, 5);
  for (int i = 0; i < 200; i++) {
    struct perigee_message m = message(ECHO, other, sizeof other);
    m.flags = PERIGEE_TYPED;
    assert_int_equal(perigee_call_wait(t.session, &m, &e), 0);
    assert_int_equal(e.flags, PERIGEE_TYPED);
    assert_memory_equal(e.pointer, other, sizeof other);
  }
  serve_all(&t, 3);
  echo(&t, ECHO, 5);
  t.bytes = plain;
  play_close(&t);
  partner_has_replies(&t, 3);
}

/* As many are read as may be in service; the others wait in their ring. */
static void requests_beyond_the_limit_wait_in_their_ring(void **state) {
  struct play t;
  play_open_with(&t, *state, 4);
  partner_begin(&t.partner, &t.pair);
  call_back_alike(&t.partner, 40, 100);
  echo(&t, BACK, 64);
  for (int i = 0; i < 300; i++)
    echo(&t, ECHO, 1000);
  assert_int_equal(perigee_counters(t.engine, t.session)->served, 4);
  serve_all(&t, 40);
  echo(&t, ECHO, 64);
  play_close(&t);
  partner_has_replies(&t, 40);
}

/* The end of another operation is kept, and joined or polled later. */
static void ends_of_others_are_kept(void **state) {
  struct play t;
  struct perigee_event e;
  int ops[3];
  static const uint64_t lengths[] = {500, 8 * KIB, LONG};
  play_open(&t, *state);
  for (int way = 0; way < 2; way++) {
    for (int i = 0; i < 3; i++) {
      struct perigee_message m = message(ECHO, t.bytes, lengths[i]);
      ops[i] = perigee_call(t.session, &m);
      assert_true(ops[i] >= 0);
    }
    for (int i = 0; i < 100; i++)
      echo(&t, ECHO, 2000);
    for (int i = 0; i < 3; i++) {
      int at = way == 0 ? 2 - i : i;
      if (way == 0)
        assert_int_equal(perigee_join(t.engine, ops[at], &e), 0);
      else
        e = next(&t);
      assert_int_equal(e.status, 0);
      if (way == 0)
        assert_int_equal(e.operation, ops[at]);
      assert_true(e.length == lengths[at] || way == 1);
      assert_memory_equal(e.pointer, t.bytes, e.length);
    }
    none_waits(&t);
  }
  play_close(&t);
}

static void a_kept_end_is_polled_in_order(void **state) {
  struct play t;
  int ops[5];
  play_open(&t, *state);
  for (int i = 0; i < 5; i++) {
    struct perigee_message m = message(ECHO, t.bytes + i, 100);
    ops[i] = perigee_call(t.session, &m);
  }
  for (int i = 0; i < 50; i++)
    echo(&t, ECHO, 3000);
  for (int i = 0; i < 5; i++) {
    struct perigee_event e = next(&t);
    assert_int_equal(e.operation, ops[i]);
    assert_memory_equal(e.pointer, t.bytes + i, 100);
  }
  play_close(&t);
}

/* Waits until perigee_wait has found an event, which the program does not
 * poll. */
static void find(struct play *t) {
  int64_t end = clock_now() + 20 * SECOND;
  while (!t->engine->event_pending) {
    perigee_wait(&t->engine, 1, 10 * MS);
    assert_true(clock_now() < end);
  }
}

static void a_found_request_stays(void **state) {
  struct play t;
  play_open(&t, *state);
  static const uint32_t lengths[] = {0, 64, 1000, 8 * KIB, 20 * KIB, LONG};
  for (int i = 0; i < 6; i++) {
    call_back_alike(&t.partner, 1, lengths[i]);
    struct perigee_message m = message(LATER, t.bytes, 1);
    int op = perigee_call(t.session, &m);
    find(&t);
    for (int k = 0; k < 100; k++)
      echo(&t, ECHO, 3000);
    serve_all(&t, 1);
    struct perigee_event e;
    assert_int_equal(perigee_join(t.engine, op, &e), 0);
    echo(&t, ECHO, 1);
    echo(&t, ECHO, 1);
  }
  play_close(&t);
}

/* Takes all that a peer may have of the pool; returns how many blocks. */
static int take_pool(struct play *t, uint8_t **blocks, int most) {
  int count = 0;
  for (uint64_t length = UINT64_C(1) << 30; length > 0; length /= 2)
    while (count < most && (blocks[count] = take_block(t->session, length)))
      count++;
  assert_in_range(count, 1, most - 1);
  return count;
}

/* An operation that nobody could join would go on, and its number be lost. */
static void nothing_begins_if_what_was_found_cannot_be_kept(void **state) {
  static const struct perigee_event zeros;
  uint8_t *blocks[1000];
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  call_back_alike(&t.partner, 1, 64);
  struct perigee_message m = message(LATER, t.bytes, 1);
  int op = perigee_call(t.session, &m), count;
  find(&t);
  const char *address = "unix:/nowhere";
  struct perigee_entry entry = {
      .name = "one", .addresses = &address, .address_count = 1};
  struct perigee_session *session;
  uint64_t before = operations(&t.pair, 0);
  m.method = ECHO;
  memset(&e, 7, sizeof e);
  count = take_pool(&t, blocks, 1000);
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_NO_MEMORY);
  assert_memory_equal(&e, &zeros, sizeof e);
  assert_int_equal(
      perigee_entry_connect(t.engine, &entry, NULL, SECOND, &session),
      PERIGEE_NO_MEMORY);
  assert_int_equal(operations(&t.pair, 0), before);
  while (count > 0)
    perigee_pool_free(t.engine, blocks[--count]);
  echo(&t, ECHO, 3000);
  serve_all(&t, 1);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  play_close(&t);
}

static void a_found_end_stays(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  for (int way = 0; way < 2; way++) {
    struct perigee_message m = message(ECHO, t.bytes, 700);
    int op = perigee_call(t.session, &m);
    find(&t);
    for (int k = 0; k < 100 && way == 1; k++)
      echo(&t, ECHO, 3000);
    if (way == 0)
      assert_int_equal(perigee_join(t.engine, op, &e), 0);
    else
      e = next(&t);
    assert_int_equal(e.operation, op);
    assert_int_equal(e.length, 700);
    assert_memory_equal(e.pointer, t.bytes, 700);
    assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  }
  none_waits(&t);
  play_close(&t);
}

/* Its session is freed while its event waits: no event follows. */
static void a_found_end_goes_with_its_session(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  int op = perigee_connect(t.engine, t.pair.address, t.pair.variant->transport,
                           20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  struct perigee_session *second = perigee_session(t.engine, e.session);
  struct perigee_message m = message(ECHO, t.bytes, 700);
  assert_true(perigee_call(second, &m) >= 0);
  find(&t);
  echo(&t, ECHO, 1);
  perigee_session_free(second);
  uint64_t dropped = perigee_counters(t.engine, NULL)->dropped;
  echo(&t, ECHO, 1);
  assert_int_equal(perigee_counters(t.engine, NULL)->dropped, dropped + 1);
  none_waits(&t);
  play_drop(&t);
}

static void a_ready_descriptor_is_told_of_afterwards(void **state) {
  struct play t;
  int fds[2];
  play_open(&t, *state);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  for (int way = 0; way < 2; way++) {
    assert_int_equal(perigee_watch(t.engine, fds[0], PERIGEE_READABLE, 77), 0);
    if (way == 1)
      find(&t);
    struct perigee_message m = message(SILENT, NULL, 0);
    struct perigee_event e, all[8];
    m.timeout = 20 * MS;
    assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
    find(&t);
    assert_int_equal(perigee_poll(t.engine, all, 8), 1);
    assert_int_equal(all[0].kind, PERIGEE_EVENT_READY);
    assert_int_equal(all[0].code, 77);
    assert_int_equal(perigee_unwatch(t.engine, fds[0]), 0);
    assert_int_equal(perigee_poll(t.engine, all, 8), 0);
  }
  close(fds[0]);
  close(fds[1]);
  play_drop(&t);
}

/* ---- Ends that are no success -------------------------------------------- */

static void a_timeout_ends_it(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  struct perigee_message m = message(SILENT, NULL, 0);
  m.timeout = 20 * MS;
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
  assert_int_equal(e.status, PERIGEE_TIMEOUT);
  echo(&t, ECHO, 64);
  play_close(&t);
}

static void a_cancelled_one_ends(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  struct perigee_message m = message(SILENT, NULL, 0);
  int op = perigee_call(t.session, &m);
  perigee_cancel(t.engine, op);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_CANCELLED);
  play_close(&t);
}

static void a_session_that_ends_ends_it(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  struct perigee_message m = message(SILENT, NULL, 0);
  m.timeout = -1;
  int op = perigee_call(t.session, &m);
  m = message(LEAVE, NULL, 0);
  m.timeout = -1;
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_PEER_LOST);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  assert_true(e.length > 0); /* why */
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_PEER_LOST);
  assert_int_equal(next(&t).kind, PERIGEE_EVENT_LOST);
  assert_true(perigee_call_wait(t.session, &m, &e) < 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_NONE);
  play_drop(&t);
}

static void what_is_not_under_way_is_refused(void **state) {
  struct play t;
  struct perigee_event e;
  play_open(&t, *state);
  assert_int_equal(perigee_join(t.engine, 12345, &e), PERIGEE_INVALID);
  assert_int_equal(perigee_join(t.engine, 70000, &e), PERIGEE_INVALID);
  assert_int_equal(e.kind, PERIGEE_EVENT_NONE);
  assert_non_null(strstr(perigee_detail(t.engine), "70000"));
  struct perigee_message m = message(ECHO, t.bytes, 10);
  int op = perigee_call(t.session, &m);
  assert_int_equal(perigee_join(t.engine, op, &e), 0);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  op = perigee_lookup(t.session, "none", 20 * SECOND);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_NOT_FOUND);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  op = perigee_call(t.session, &m);
  e = next(&t);
  assert_int_equal(e.operation, op);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  call_back_alike(&t.partner, 1, 0);
  echo(&t, BACK, 1);
  e = next(&t);
  assert_int_equal(e.kind, PERIGEE_EVENT_REQUEST);
  struct perigee_event none;
  assert_int_equal(perigee_join(t.engine, e.operation, &none), PERIGEE_INVALID);
  struct perigee_message r = {.code = 1000};
  assert_int_equal(perigee_reply(t.engine, e.operation, &r), 0);
  echo(&t, ECHO, 1);
  play_close(&t);
}

/* The peer may still read the loan that the request was, so the number is in
 * use, but its event is over. */
static void a_call_whose_loan_is_left_is_refused(void **state) {
  struct play t;
  struct perigee_event e;
  struct perigee_loan loan;
  play_open(&t, *state);
  assert_int_equal(perigee_call_begin(t.session, LONG, &loan), 0);
  memset(loan.pointer, 1, LONG);
  struct perigee_message m = {.method = SILENT, .timeout = 20 * MS};
  int op = perigee_call_commit(t.session, &m, LONG);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_TIMEOUT);
  assert_int_equal(perigee_join(t.engine, op, &e), PERIGEE_INVALID);
  play_drop(&t);
}

static void numbers_that_are_none_come_back(void **state) {
  struct play t;
  struct perigee_event e;
  static const struct perigee_event zeros;
  play_open(&t, *state);
  memset(&e, 1, sizeof e);
  assert_int_equal(perigee_join(t.engine, PERIGEE_INLINE, &e), 0);
  assert_memory_equal(&e, &zeros, sizeof e);
  memset(&e, 1, sizeof e);
  assert_int_equal(perigee_join(t.engine, PERIGEE_DENIED, &e), PERIGEE_DENIED);
  assert_memory_equal(&e, &zeros, sizeof e);
  play_close(&t);
}

static void a_child_is_refused(void **state) {
  struct play t;
  int status;
  play_open_with(&t, *state, 0);
  pid_t child = fork();
  if (child == 0) {
    struct perigee_event e;
    _exit(perigee_join(t.engine, 1, &e) == PERIGEE_FORKED ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  pair_close(&t.pair);
  free(t.bytes);
}

/* ---- Sleeping ------------------------------------------------------------ */

/* Each sleep takes a few polls; a wait that does not sleep takes thousands in a
 * moment. */
static void it_sleeps_while_events_are_kept(void **state) {
  struct play t;
  struct perigee_event e;
  int fds[2];
  play_open(&t, *state);
  assert_int_equal(pipe(fds), 0);
  assert_int_equal(write(fds[1], "x", 1), 1);
  assert_int_equal(perigee_watch(t.engine, fds[0], PERIGEE_READABLE, 77), 0);
  call_back_in_all_lengths(&t.partner, 12);
  echo(&t, BACK, 64);
  struct perigee_message m = message(SILENT, NULL, 0);
  m.timeout = 400 * MS;
  uint64_t before = polls(&t);
  uint64_t slept = perigee_counters(t.engine, NULL)->sleeps;
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
  assert_true(polls(&t) - before < 20000);
  assert_true(perigee_counters(t.engine, NULL)->sleeps > slept);
  assert_int_equal(perigee_unwatch(t.engine, fds[0]), 0);
  serve_all(&t, 12);
  echo(&t, ECHO, 64);
  close(fds[0]);
  close(fds[1]);
  play_close(&t);
}

static void arm_tells_of_kept_events(void **state) {
  struct play t;
  play_open(&t, *state);
  call_back_in_all_lengths(&t.partner, 2);
  echo(&t, BACK, 64);
  int64_t timeout;
  assert_int_equal(perigee_arm(t.engine, &timeout), 1);
  echo(&t, ECHO, 64);
  assert_int_equal(perigee_wait(&t.engine, 1, -1), 1);
  serve_all(&t, 2);
  echo(&t, ECHO, 64);
  play_close(&t);
}

/* It is told of afterwards, to whoever sleeps next. */
static void a_signal_does_not_end_it(void **state) {
  struct play t;
  struct perigee_event e;
  play_open_with(&t, *state, 0); /* the peer does nothing */
  assert_int_equal(perigee_signals_begin(), 0);
  raise(SIGINT);
  struct perigee_message m = message(SILENT, NULL, 0);
  m.timeout = 100 * MS;
  uint64_t before = polls(&t);
  assert_int_equal(perigee_call_wait(t.session, &m, &e), PERIGEE_TIMEOUT);
  assert_true(polls(&t) - before < 20000);
  while (perigee_poll(t.engine, &e, 1) > 0)
    ;
  assert_int_equal(perigee_wait(&t.engine, 1, -1), PERIGEE_AGAIN);
  assert_int_equal(perigee_signals_noted(), SIGINT);
  perigee_signals_end();
  pair_drop(&t.pair);
  free(t.bytes);
}

/* ---- Two that wait for each other ---------------------------------------- */

/* Calls and is called in turns. Returns how many calls went wrong. */
static int take_turns(struct perigee_engine *engine,
                      struct perigee_session *session, bool first) {
  uint8_t bytes[64];
  struct perigee_event e;
  int wrong = 0;
  for (int i = 0; i < MANY; i++) {
    struct perigee_message m = message(ECHO, bytes, sizeof bytes);
    memset(bytes, i + first, sizeof bytes);
    if ((i % 2 == 0) == first) {
      wrong += perigee_call_wait(session, &m, &e) != 0 || e.length != 64 ||
               memcmp(e.pointer, bytes, 64) != 0;
      continue;
    }
    while (perigee_poll(engine, &e, 1) == 0 || e.kind == PERIGEE_EVENT_SENT)
      perigee_wait(&engine, 1, 10 * MS);
    struct perigee_message r = {.head = e.pointer, .length = e.length};
    wrong += e.kind != PERIGEE_EVENT_REQUEST ||
             perigee_reply(engine, e.operation, &r) < 0;
  }
  do /* the last reply may wait for room, or its reader just fall asleep */
    perigee_poll(engine, &e, 1);
  while (perigee_counters(engine, NULL)->operations > 0);
  return wrong;
}

static void *other_turns(void *context) {
  struct partner *w = context;
  w->wrong = take_turns(w->engine, w->session, false);
  return NULL;
}

static void two_threads_call_each_other(void **state) {
  struct play t;
  play_open_with(&t, *state, 0);
  struct partner *w = &t.partner;
  w->engine = t.pair.engine[1];
  w->session = t.pair.session[1];
  assert_int_equal(pthread_create(&w->thread, NULL, other_turns, w), 0);
  int wrong = take_turns(t.engine, t.session, true);
  assert_int_equal(pthread_join(w->thread, NULL), 0);
  assert_int_equal(wrong + w->wrong, 0);
  pair_close(&t.pair);
  free(t.bytes);
}

static void *wait_in_vain(void *context) {
  struct partner *w = context;
  struct perigee_message m = {.method = ECHO, .timeout = 200 * MS};
  struct perigee_event e;
  w->wrong = perigee_call_wait(w->session, &m, &e) != PERIGEE_TIMEOUT;
  return NULL;
}

/* Both calls end, and both sides find the other's afterwards. */
static void two_that_only_wait_time_out(void **state) {
  struct play t;
  play_open_with(&t, *state, 0);
  struct partner *w = &t.partner, self = {0};
  w->session = t.pair.session[1];
  self.session = t.session;
  assert_int_equal(pthread_create(&w->thread, NULL, wait_in_vain, w), 0);
  wait_in_vain(&self);
  assert_int_equal(pthread_join(w->thread, NULL), 0);
  assert_int_equal(self.wrong + w->wrong, 0);
  int served[2];
  for (int side = 0; side < 2; side++)
    served[side] = until(&t.pair, side, PERIGEE_EVENT_REQUEST).operation;
  for (int side = 0; side < 2; side++) {
    struct perigee_message r = {0};
    while (!perigee_served_cancelled(t.pair.engine[side], served[side]))
      quiet(&t.pair, 1);
    perigee_reply(t.pair.engine[side], served[side], &r);
  }
  pair_close(&t.pair);
  free(t.bytes);
}

/* Memory that only its owner accesses: both sides read the other's at once. */
struct reader {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *here;
  int wrong;
};

static void *read_on(void *context) {
  struct reader *r = context;
  struct perigee_event e;
  int op = perigee_lookup(r->session, "own", 20 * SECOND);
  r->wrong += perigee_join(r->engine, op, &e) != 0;
  struct perigee_transfer item = {
      .local = {{r->here}, 0, 4096, 1, 4096},
      .remote = {{.remote = (struct perigee_remote *)(uintptr_t)e.pointer},
                 0,
                 4096,
                 1,
                 4096}};
  for (int i = 0; i < 300; i++) {
    op =
        perigee_transfer(r->session, PERIGEE_OP_READ, &item, 1, 0, 20 * SECOND);
    r->wrong += perigee_join(r->engine, op, &e) != 0;
  }
  /* the other may still read */
  struct perigee_message m = {.method = ECHO, .timeout = 50 * MS};
  r->wrong += perigee_call_wait(r->session, &m, &e) != PERIGEE_TIMEOUT;
  return NULL;
}

static void both_serve_each_others_reads(void **state) {
  static uint8_t own[2][4096];
  struct play t;
  struct reader r[2] = {{0}};
  struct perigee_region *shared[2];
  pthread_t thread;
  play_open_with(&t, *state, 0);
  for (int i = 0; i < 2; i++) {
    r[i].engine = t.pair.engine[i];
    r[i].session = t.pair.session[i];
    r[i].here = region_of(&t.pair, i, NULL, 4096, 0);
    assert_int_equal(perigee_region_register(r[i].engine, "own", own[i], 4096,
                                             RW, NULL, &shared[i]),
                     0);
  }
  assert_int_equal(pthread_create(&thread, NULL, read_on, &r[1]), 0);
  read_on(&r[0]);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(r[0].wrong + r[1].wrong, 0);
  pair_drop(&t.pair);
  free(t.bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_of_every_length_are_waited_for),
      cmocka_unit_test(a_program_may_never_poll),
      cmocka_unit_test(a_failure_has_its_text),
      cmocka_unit_test(every_kind_of_operation_is_joined),
      cmocka_unit_test(a_connect_is_joined),
      cmocka_unit_test(requests_wait_for_the_poll),
      cmocka_unit_test(typed_requests_wait_too),
      cmocka_unit_test(requests_beyond_the_limit_wait_in_their_ring),
      cmocka_unit_test(ends_of_others_are_kept),
      cmocka_unit_test(a_kept_end_is_polled_in_order),
      cmocka_unit_test(a_found_request_stays),
      cmocka_unit_test(nothing_begins_if_what_was_found_cannot_be_kept),
      cmocka_unit_test(a_found_end_stays),
      cmocka_unit_test(a_found_end_goes_with_its_session),
      cmocka_unit_test(a_ready_descriptor_is_told_of_afterwards),
      cmocka_unit_test(a_timeout_ends_it),
      cmocka_unit_test(a_cancelled_one_ends),
      cmocka_unit_test(a_session_that_ends_ends_it),
      cmocka_unit_test(what_is_not_under_way_is_refused),
      cmocka_unit_test(a_call_whose_loan_is_left_is_refused),
      cmocka_unit_test(numbers_that_are_none_come_back),
      cmocka_unit_test(a_child_is_refused),
      cmocka_unit_test(it_sleeps_while_events_are_kept),
      cmocka_unit_test(arm_tells_of_kept_events),
      cmocka_unit_test(a_signal_does_not_end_it),
      cmocka_unit_test(two_threads_call_each_other),
      cmocka_unit_test(two_that_only_wait_time_out),
      cmocka_unit_test(both_serve_each_others_reads),
  };
  /* inproc is for one thread */
  setenv("PERIGEE_TEST_TRANSPORTS", "shm,tcp", 0);
  return RUN_MATRIX("join", tests);
}
