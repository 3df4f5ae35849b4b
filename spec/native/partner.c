/* SPDX-License-Identifier: Apache-2.0
 *
 * partner.c - see partner.h.
 */
#include "partner.h"

#include <stdlib.h>

#include "support_inside.h"

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

void partner_begin(struct partner *w, struct pair *p) {
  w->engine = p->engine[1];
  w->session = p->session[1];
  w->silent = w->later = -1;
  pthread_mutex_init(&w->lock, NULL);
  p->still[1] = true;
  assert_int_equal(pthread_create(&w->thread, NULL, partner_run, w), 0);
}

void partner_end(struct partner *w, struct pair *p) {
  atomic_store(&w->over, true);
  assert_int_equal(pthread_join(w->thread, NULL), 0);
  p->still[1] = false;
  assert_int_equal(w->wrong, 0);
  struct perigee_message r = {0};
  if (w->silent >= 0)
    perigee_reply(w->engine, w->silent, &r);
}

void play_open_with(struct play *t, void *state, uint64_t most) {
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

void play_open(struct play *t, void *state) {
  play_open_with(t, state, 0);
  partner_begin(&t->partner, &t->pair);
}

void play_settle(struct play *t) {
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

void play_drop(struct play *t) {
  partner_end(&t->partner, &t->pair);
  pair_drop(&t->pair);
  free(t->bytes);
}

void play_close(struct play *t) {
  partner_end(&t->partner, &t->pair);
  play_settle(t);
  pair_drop(&t->pair);
  free(t->bytes);
}

struct perigee_message play_message(enum asked method, const uint8_t *bytes,
                                    uint64_t length) {
  return (struct perigee_message){.method = (uint16_t)method,
                                  .head = bytes,
                                  .length = length,
                                  .timeout = 20 * SECOND};
}

void play_echo(struct play *t, enum asked method, uint64_t length) {
  struct perigee_message m = play_message(method, t->bytes, length);
  struct perigee_event e;
  m.flags = t->flags;
  assert_int_equal(perigee_call_wait(t->session, &m, &e), 0);
  assert_int_equal(e.kind, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.length, length);
  if (length)
    assert_memory_equal(e.pointer, t->bytes, length);
}

struct perigee_event play_next(struct play *t) {
  struct perigee_event e = {0};
  int64_t end = clock_now() + 20 * SECOND;
  while (perigee_poll(t->engine, &e, 1) == 0) {
    if (clock_now() > end)
      fail_msg("no event comes");
    perigee_wait(&t->engine, 1, 10 * MS);
  }
  return e;
}

void play_none_waits(struct play *t) {
  struct perigee_event e;
  for (int i = 0; i < 3; i++)
    assert_int_equal(perigee_poll(t->engine, &e, 1), 0);
}

uint64_t play_polls(struct play *t) {
  return perigee_counters(t->engine, NULL)->polls;
}

void partner_back_in_all_lengths(struct partner *w, int count) {
  static const uint32_t lengths[] = {0, 64, 1000, 8 * KIB, 3, 20 * KIB};
  pthread_mutex_lock(&w->lock);
  w->back = count;
  for (int i = 0; i < count; i++)
    w->lengths[i] = lengths[i % 6];
  pthread_mutex_unlock(&w->lock);
}

void partner_back_alike(struct partner *w, int count, uint32_t length) {
  pthread_mutex_lock(&w->lock);
  w->back = count;
  w->replied = 0;
  for (int i = 0; i < count; i++)
    w->lengths[i] = length;
  pthread_mutex_unlock(&w->lock);
}

void play_serve_all(struct play *t, int count) {
  for (int i = 0; i < count; i++) {
    struct perigee_event e = play_next(t);
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
