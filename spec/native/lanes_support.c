/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_support.c - sessions with a second lane: lanes_support.h tells what tests
 * find here.
 */
#include "lanes_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct variant over_shm = {"shm", "shm", "opaque", 1, NULL},
                     over_staged = {"staged", "shm", "opaque", 0, NULL},
                     over_tcp = {"tcp", "tcp", "opaque", 1, NULL},
                     over_inproc = {"inproc", "inproc", "opaque", 1, NULL};
static const struct perigee_transport *const with_link[] = {
    &perigee_transport_inproc, &perigee_transport_inproc_additional, NULL};

void link_options(const struct variant *v, struct perigee_options *o) {
  variant_options(v, o);
  o->transports = with_link;
}

void link_open(struct pair *p, void *state) {
  struct perigee_options o;
  link_options(state, &o);
  pair_open_with(p, state, &o);
}

/* What explain() tells about the second lane. */
static const char *told(struct pair *p, int side) {
  static char text[1024];
  struct perigee_session_info info;
  perigee_session_describe(p->session[side], &info, sizeof info);
  snprintf(text, sizeof text, "%s", info.lanes);
  return text;
}

void link_says(struct pair *p, int side, const char *what) {
  if (!strstr(told(p, side), what))
    fail_msg("\"%s\" is not in \"%s\"", what, told(p, side));
}

/* That side has taken so many payloads, and moved so many items. */
void link_counts(struct pair *p, int side, int payloads, int items) {
  char text[80];
  snprintf(text, sizeof text, "; %d payloads and %d items, ", payloads, items);
  link_says(p, side, text);
}

static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

struct perigee_message typed_message(const struct perigee_slice *slice,
                                     const struct perigee_slice *into) {
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = *slice,
                              .timeout = -1};
  if (into)
    m.into = *into;
  return m;
}

void places_open(struct pair *p, struct places *s, uint64_t length) {
  s->length = length;
  s->bytes = pattern(length, 5);
  s->from = region_of(p, 0, NULL, length, 0);
  s->to = region_of(p, 1, NULL, length, 0);
  s->back = region_of(p, 0, NULL, length, 0);
  fill(s->from, 0, s->bytes, length);
}

void places_close(struct pair *p, struct places *s) {
  settle(p);
  quiet(p, 2);
  region_end(s->from);
  region_end(s->to);
  region_end(s->back);
  free(s->bytes);
}

/* Begins a call with a slice both ways, up to where its slice lands. */
int places_call(struct pair *p, const struct places *s) {
  struct perigee_slice from = all_of(s->from, s->length);
  struct perigee_slice back = all_of(s->back, s->length);
  struct perigee_message m = typed_message(&from, &back);
  int call = perigee_call(p->session[0], &m);
  assert_true(call >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice place = all_of(s->to, s->length);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  return call;
}

void link_round_trip(struct pair *p, uint64_t length) {
  struct places s;
  places_open(p, &s, length);
  int call = places_call(p, &s);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  same(s.to, 0, s.bytes, length);
  struct perigee_slice reply = all_of(s.to, length);
  struct perigee_message r = typed_message(&reply, NULL);
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  assert_true(sent >= 0);
  ended(p, 0, call, 0);
  same(s.back, 0, s.bytes, length);
  if (sent == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
  places_close(p, &s);
}

void sides_open(struct pair *p, struct sides *s, const char *name) {
  s->bytes = pattern(LARGE, 9);
  s->here = region_of(p, 0, NULL, LARGE, 0);
  s->there = region_of(p, 1, name, LARGE, PERIGEE_READ | PERIGEE_WRITE);
  s->remote = look_up(p, name);
  fill(s->here, 0, s->bytes, LARGE);
}

void sides_close(struct pair *p, struct sides *s) {
  settle(p);
  region_end(s->here);
  region_end(s->there);
  free(s->bytes);
}

struct perigee_transfer sides_item(const struct sides *s, uint64_t offset,
                                   uint64_t length) {
  struct perigee_transfer t = {.local = all_of(s->here, length),
                               .remote = {.remote = s->remote,
                                          .offset = offset,
                                          .length = length,
                                          .count = 1,
                                          .stride = length}};
  t.local.offset = offset;
  return t;
}

void sides_move(struct pair *p, int operation, struct perigee_transfer *t,
                uint32_t count, int status) {
  finish(p, perigee_transfer(p->session[0], operation, t, count, 0, -1),
         status);
}

/* Both sides know of the loss, and the session goes on over the first lane. */
void link_goes_on(struct pair *p) {
  struct sides s;
  int64_t end = clock_now() + 5000 * MS;
  for (int side = 0; side < 2; side++)
    while (!strstr(told(p, side), "the lane link is lost: ")) {
      assert_true(clock_now() < end);
      quiet(p, 1);
    }
  link_round_trip(p, LARGE);
  sides_open(p, &s, "later");
  struct perigee_transfer t = sides_item(&s, 0, LARGE);
  sides_move(p, PERIGEE_OP_WRITE, &t, 1, 0);
  same(s.there, 0, s.bytes, LARGE);
  sides_close(p, &s);
}

void link_open_between(struct pair *p, const struct variant *v,
                       const struct perigee_options *dials,
                       const struct perigee_options *listens) {
  *p = (struct pair){.variant = v};
  assert_int_equal(perigee_engine_open(dials, &p->engine[0]), 0);
  assert_int_equal(perigee_engine_open(listens, &p->engine[1]), 0);
  pair_listen(p);
  pair_dial(p, p->session);
}

/* ---- All that a test needs ------------------------------------------------ */

void link_open_places(struct pair *p, void *state, struct places *s) {
  link_open(p, state);
  places_open(p, s, LARGE);
}

void link_close_places(struct pair *p, struct places *s) {
  places_close(p, s);
  pair_close(p);
}

void link_open_sides(struct pair *p, void *state, struct sides *s) {
  link_open(p, state);
  sides_open(p, s, "kv");
}

void link_close_sides(struct pair *p, struct sides *s) {
  sides_close(p, s);
  pair_close(p);
}
