/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_test.c - sessions with a second lane, which carries payloads and
 * one-sided copies of opaque memory beside shared memory, TCP or the in-process
 * transport: what goes over it, which side chooses, and what happens to a
 * session whose second lane breaks, is missing, or is lied about.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/lane_list.h"
#include "net/features.h"
#include "transport/transport.h"

#include "support.h"

static const struct variant over_shm = {"shm", "shm", "opaque", 1, NULL},
                            over_staged = {"staged", "shm", "opaque", 0, NULL},
                            over_tcp = {"tcp", "tcp", "opaque", 1, NULL},
                            over_inproc = {"inproc", "inproc", "opaque", 1,
                                           NULL},
                            over_sealed = {"sealed", "tcp", "opaque", 1,
                                           "sealed"};
static const struct perigee_transport *const with_link[] = {
    &perigee_transport_inproc, &perigee_transport_inproc_additional, NULL};
static const struct perigee_transport *const without[] = {
    &perigee_transport_inproc, NULL};

enum { LEAST = 4096, LARGE = 300001 };

static void options_with(const struct variant *v, struct perigee_options *o) {
  variant_options(v, o);
  o->transports = with_link;
}

static void open_pair(struct pair *p, void *state) {
  struct perigee_options o;
  options_with(state, &o);
  pair_open_with(p, state, &o);
}

/* What explain() tells about the second lane. */
static const char *told(struct pair *p, int side) {
  static char text[1024];
  struct perigee_session_info info;
  perigee_session_info(p->session[side], &info);
  snprintf(text, sizeof text, "%s", info.lanes);
  return text;
}

static void says(struct pair *p, int side, const char *what) {
  if (!strstr(told(p, side), what))
    fail_msg("\"%s\" is not in \"%s\"", what, told(p, side));
}

/* That side has taken so many payloads, and moved so many items. */
static void counts(struct pair *p, int side, int payloads, int items) {
  char text[80];
  snprintf(text, sizeof text, "; %d payloads and %d items, ", payloads, items);
  says(p, side, text);
}

static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

static struct perigee_message asking(const struct perigee_slice *slice,
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

struct places {
  struct perigee_region *from, *to, *back;
  uint8_t *bytes;
  uint64_t length;
};

static void places_open(struct pair *p, struct places *s, uint64_t length) {
  s->length = length;
  s->bytes = pattern(length, 5);
  s->from = region_of(p, 0, NULL, length, 0);
  s->to = region_of(p, 1, NULL, length, 0);
  s->back = region_of(p, 0, NULL, length, 0);
  fill(s->from, 0, s->bytes, length);
}

static void places_close(struct pair *p, struct places *s) {
  settle(p);
  quiet(p, 2);
  region_end(s->from);
  region_end(s->to);
  region_end(s->back);
  free(s->bytes);
}

/* Begins a call with a slice both ways, up to where its slice lands. */
static int begin(struct pair *p, const struct places *s) {
  struct perigee_slice from = all_of(s->from, s->length);
  struct perigee_slice back = all_of(s->back, s->length);
  struct perigee_message m = asking(&from, &back);
  int call = perigee_call(p->session[0], &m);
  assert_true(call >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice place = all_of(s->to, s->length);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  return call;
}

static void round_trip(struct pair *p, uint64_t length) {
  struct places s;
  places_open(p, &s, length);
  int call = begin(p, &s);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  same(s.to, 0, s.bytes, length);
  struct perigee_slice reply = all_of(s.to, length);
  struct perigee_message r = asking(&reply, NULL);
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  assert_true(sent >= 0);
  ended(p, 0, call, 0);
  same(s.back, 0, s.bytes, length);
  if (sent == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
  places_close(p, &s);
}

static void payloads_go_over_it_both_ways(void **state) {
  struct pair p;
  open_pair(&p, *state);
  round_trip(&p, LARGE);
  counts(&p, 0, 1, 0);
  counts(&p, 1, 1, 0);
  says(&p, 0,
       "link: payloads and one-sided copies of opaque memory, from 4096 "
       "bytes on;");
  pair_close(&p);
}

static void short_payloads_and_those_of_the_host_take_the_first(void **state) {
  struct pair p;
  open_pair(&p, *state);
  round_trip(&p, LEAST - 1);
  counts(&p, 1, 0, 0);
  round_trip(&p, LEAST);
  counts(&p, 1, 1, 0);
  const struct variant host = {"host", p.variant->transport, "host", 1,
                               p.variant->how};
  p.variant = &host;
  round_trip(&p, LARGE);
  counts(&p, 1, 1, 0);
  pair_close(&p);
}

static void messages_go_over_it(void **state) {
  struct pair p;
  struct places s;
  open_pair(&p, *state);
  places_open(&p, &s, LARGE);
  struct perigee_slice from = all_of(s.from, LARGE), to = all_of(s.to, LARGE);
  int recv = perigee_recv(p.session[1], &to, -1);
  int send = perigee_send(p.session[0], &from, -1);
  ended(&p, 0, send, 0);
  assert_int_equal(ended(&p, 1, recv, 0).length, LARGE);
  same(s.to, 0, s.bytes, LARGE);
  counts(&p, 1, 1, 0);
  places_close(&p, &s);
  pair_close(&p);
}

/* ---- One-sided ----------------------------------------------------------- */

struct sides {
  struct perigee_region *here, *there;
  struct perigee_remote *remote;
  uint8_t *bytes;
};

static void sides_open(struct pair *p, struct sides *s, const char *name) {
  s->bytes = pattern(LARGE, 9);
  s->here = region_of(p, 0, NULL, LARGE, 0);
  s->there = region_of(p, 1, name, LARGE, PERIGEE_READ | PERIGEE_WRITE);
  s->remote = look_up(p, name);
  fill(s->here, 0, s->bytes, LARGE);
}

static void sides_close(struct pair *p, struct sides *s) {
  settle(p);
  region_end(s->here);
  region_end(s->there);
  free(s->bytes);
}

static struct perigee_transfer item(const struct sides *s, uint64_t offset,
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

static void move(struct pair *p, int operation, struct perigee_transfer *t,
                 uint32_t count, int status) {
  finish(p, perigee_transfer(p->session[0], operation, t, count, 0, -1),
         status);
}

static void transfers_go_over_it_both_ways(void **state) {
  struct pair p;
  struct sides s;
  open_pair(&p, *state);
  sides_open(&p, &s, "kv");
  struct perigee_transfer t = item(&s, 0, LARGE);
  move(&p, PERIGEE_OP_WRITE, &t, 1, 0);
  same(s.there, 0, s.bytes, LARGE);
  fill_byte(s.here, 0);
  move(&p, PERIGEE_OP_READ, &t, 1, 0);
  same(s.here, 0, s.bytes, LARGE);
  counts(&p, 0, 0, 2);
  sides_close(&p, &s);
  pair_close(&p);
}

static void strides_and_offsets_mean_what_they_say(void **state) {
  struct pair p;
  struct sides s;
  open_pair(&p, *state);
  sides_open(&p, &s, "kv");
  fill_byte(s.there, 1);
  struct perigee_transfer t = item(&s, 0, 0);
  t.local = (struct perigee_slice){{s.here}, 100, 1000, 10, 2000};
  t.remote.offset = 7;
  t.remote.length = 2500;
  t.remote.count = 4;
  t.remote.stride = 3000;
  move(&p, PERIGEE_OP_WRITE, &t, 1, 0);
  for (uint64_t i = 0; i < 10000; i += 500)
    same(s.there, 7 + i / 2500 * 3000 + i % 2500,
         s.bytes + 100 + i / 1000 * 2000 + i % 1000, 500);
  counts(&p, 0, 0, 1);
  sides_close(&p, &s);
  pair_close(&p);
}

/* One batch whose items go over the second lane, the first, and by the
 * owner. */
static void a_batch_takes_all_of_them(void **state) {
  struct pair p;
  struct sides s, h;
  open_pair(&p, *state);
  sides_open(&p, &s, "kv");
  const struct variant host = {"host", p.variant->transport, "host", 1, NULL};
  const struct variant *opaque = p.variant;
  p.variant = &host;
  sides_open(&p, &h, "host");
  p.variant = opaque;
  struct perigee_transfer t[] = {item(&s, 0, 100000), item(&h, 0, 100000),
                                 item(&s, 100000, 100),
                                 item(&s, 100100, 100000), item(&h, 200000, 9)};
  move(&p, PERIGEE_OP_WRITE, t, 5, 0);
  same(s.there, 0, s.bytes, 200100);
  same(h.there, 0, h.bytes, 100000);
  same(h.there, 200000, h.bytes + 200000, 9);
  counts(&p, 0, 0, 2);
  sides_close(&p, &s);
  sides_close(&p, &h);
  pair_close(&p);
}

static void a_region_that_was_closed_is_stale(void **state) {
  struct pair p;
  struct sides s;
  open_pair(&p, *state);
  sides_open(&p, &s, "kv");
  struct perigee_transfer t = item(&s, 0, LARGE);
  int op = perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
  assert_int_equal(perigee_region_close(s.there, false), PERIGEE_AGAIN);
  ended(&p, 0, op, 0); /* it waited for this, as a fence does */
  assert_int_equal(perigee_region_close(s.there, false), 0);
  move(&p, PERIGEE_OP_WRITE, &t, 1, PERIGEE_STALE);
  region_end(s.here);
  free(s.bytes);
  pair_close(&p);
}

static void what_is_given_up_leaves_memory_alone(void **state) {
  struct pair p;
  struct sides s;
  open_pair(&p, *state);
  sides_open(&p, &s, "kv");
  struct perigee_transfer t = item(&s, 0, LARGE);
  int op = perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1);
  quiet(&p, 8);
  perigee_cancel(p.engine[0], op);
  ended(&p, 0, op, PERIGEE_CANCELLED);
  fill_byte(s.here, 3);
  quiet(&p, 50);
  all_byte(s.here, 3);
  sides_close(&p, &s);

  struct places c;
  places_open(&p, &c, LARGE);
  fill_byte(c.from, 1);
  int call = begin(&p, &c);
  quiet(&p, 8);
  perigee_cancel(p.engine[0], call);
  ended(&p, 0, call, PERIGEE_CANCELLED);
  fill_byte(c.from, 200);
  until(&p, 1, PERIGEE_EVENT_ABANDONED);
  none_byte(c.to, 200);
  places_close(&p, &c);
  pair_close(&p);
}

/* ---- It breaks ------------------------------------------------------------ */

/* Both sides know of the loss, and the session goes on over the first lane. */
static void goes_on(struct pair *p) {
  struct sides s;
  int64_t end = clock_now() + 5000 * MS;
  for (int side = 0; side < 2; side++)
    while (!strstr(told(p, side), "the lane link is lost: ")) {
      assert_true(clock_now() < end);
      quiet(p, 1);
    }
  round_trip(p, LARGE);
  sides_open(p, &s, "later");
  struct perigee_transfer t = item(&s, 0, LARGE);
  move(p, PERIGEE_OP_WRITE, &t, 1, 0);
  same(s.there, 0, s.bytes, LARGE);
  sides_close(p, &s);
}

static void call_broken(void **state, int dialed) {
  struct pair p;
  struct places s;
  open_pair(&p, *state);
  places_open(&p, &s, LARGE);
  int call = begin(&p, &s);
  quiet(&p, 8);
  perigee_inproc_break(dialed);
  struct perigee_event e = ended(&p, 0, call, PERIGEE_PEER_LOST);
  assert_non_null(strstr((const char *)e.pointer, "the lane link is lost: "));
  until(&p, 1, PERIGEE_EVENT_ABANDONED);
  goes_on(&p);
  places_close(&p, &s);
  pair_close(&p);
}

static void a_call_ends_once_where_its_receivers_half_breaks(void **state) {
  call_broken(state, 0);
}

static void a_call_ends_once_where_its_owners_half_breaks(void **state) {
  call_broken(state, 1);
}

static void a_reply_ends_once_where_it_breaks(void **state) {
  struct pair p;
  struct places s;
  open_pair(&p, *state);
  places_open(&p, &s, LARGE);
  int call = begin(&p, &s);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_slice reply = all_of(s.to, LARGE);
  struct perigee_message r = asking(&reply, NULL);
  assert_int_equal(perigee_reply(p.engine[1], e.operation, &r), 1);
  for (int i = 0; i < 8; i++) {
    poll_side(&p, 0);
    poll_side(&p, 1);
  }
  perigee_inproc_break(1);
  ended(&p, 0, call, PERIGEE_PEER_LOST);
  until(&p, 1, PERIGEE_EVENT_SENT);
  goes_on(&p);
  places_close(&p, &s);
  pair_close(&p);
}

static void a_transfer_ends_once_where_it_breaks(void **state) {
  for (int dialed = 0; dialed < 2; dialed++) {
    struct pair p;
    struct sides s;
    open_pair(&p, *state);
    sides_open(&p, &s, "kv");
    struct perigee_transfer t = item(&s, 0, LARGE);
    int op = perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
    quiet(&p, 8);
    perigee_inproc_break(dialed);
    ended(&p, 0, op, PERIGEE_PEER_LOST);
    fill_byte(s.there, 3);
    quiet(&p, 50);
    all_byte(s.there, 3);
    move(&p, PERIGEE_OP_WRITE, &t, 1, 0); /* its owner does it */
    same(s.there, 0, s.bytes, LARGE);
    goes_on(&p);
    sides_close(&p, &s);
    pair_close(&p);
  }
}

static struct perigee_event any(struct pair *p, int side) {
  struct perigee_event e;
  int64_t end = clock_now() + 5000 * MS;
  while (!taken(p, side, &e)) {
    assert_true(clock_now() < end);
    poll_side(p, 0);
    poll_side(p, 1);
  }
  return e;
}

static void the_sessions_end_ends_what_is_under_way(void **state) {
  for (int closes = 0; closes < 2; closes++) {
    struct pair p;
    struct sides s;
    struct places c;
    open_pair(&p, *state);
    sides_open(&p, &s, "kv");
    places_open(&p, &c, LARGE);
    struct perigee_transfer t = item(&s, 0, LARGE);
    begin(&p, &c);
    perigee_transfer(p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1);
    quiet(&p, 4);
    perigee_session_close(p.session[closes]);
    int kinds = 0; /* each comes when its own copies have ended */
    for (int i = 0; i < 2; i++) {
      struct perigee_event e = any(&p, 0);
      assert_int_equal(e.status, closes ? PERIGEE_PEER_LOST : PERIGEE_CLOSED);
      kinds |= 1 << e.kind;
    }
    assert_int_equal(kinds, 1 << PERIGEE_EVENT_DONE | 1 << PERIGEE_EVENT_REPLY);
    until(&p, 0, PERIGEE_EVENT_LOST);
    until(&p, 1, PERIGEE_EVENT_ABANDONED);
    until(&p, 1, PERIGEE_EVENT_LOST);
    sides_close(&p, &s);
    places_close(&p, &c);
    pair_close(&p);
  }
}

/* ---- A peer without it, and one that lies ---------------------------------- */

static void open_between(struct pair *p, const struct variant *v,
                         const struct perigee_options *dials,
                         const struct perigee_options *listens) {
  *p = (struct pair){.variant = v};
  assert_int_equal(perigee_engine_open(dials, &p->engine[0]), 0);
  assert_int_equal(perigee_engine_open(listens, &p->engine[1]), 0);
  pair_listen(p);
  pair_dial(p, p->session);
}

static void a_peer_without_it_has_the_first_lane_only(void **state) {
  const struct variant *v = *state;
  for (int side = 0; side < 2; side++)
    for (int how = 0; how < 2; how++) {
      struct perigee_options o[2];
      struct pair p;
      options_with(v, &o[0]);
      options_with(v, &o[1]);
      if (how == 0)
        o[side].transports = without;
      else
        o[side].features = "-lanes";
      open_between(&p, v, &o[0], &o[1]);
      says(&p, !side, "link: the peer does not have it");
      round_trip(&p, LARGE);
      pair_close(&p);
    }
}

static void it_is_left_out_where_all_is_sealed(void **state) {
  struct pair p;
  open_pair(&p, *state);
  says(&p, 0, "link: what it carries is neither encrypted nor has MACs");
  round_trip(&p, LARGE);
  pair_close(&p);
}

/* One side cannot open its half, or cannot join. */
static struct perigee_transport failing;

static int fails_to_open(const struct lane_options *options, struct lane **lane,
                         struct offer *offer, char reason[REASON]) {
  (void)options, (void)lane, (void)offer;
  snprintf(reason, REASON, "there is no cable");
  return PERIGEE_UNSUPPORTED;
}

static int fails_to_join(struct lane *lane, const struct offer *offer,
                         char reason[REASON]) {
  perigee_transport_inproc.join(lane, offer, reason); /* its end is told */
  snprintf(reason, REASON, "there is no cable");
  return PERIGEE_UNSUPPORTED;
}

static void where_a_half_fails_the_session_goes_on_without(void **state) {
  const struct variant *v = *state;
  const struct perigee_transport *const list[] = {&perigee_transport_inproc,
                                                  &failing, NULL};
  for (int how = 0; how < 4; how++) {
    struct perigee_options o[2];
    struct pair p;
    failing = perigee_transport_inproc_additional;
    options_with(v, &o[0]);
    options_with(v, &o[1]);
    o[how & 1].transports = list;
    if (how & 2)
      failing.open = fails_to_open;
    else
      failing.join = fails_to_join;
    open_between(&p, v, &o[0], &o[1]);
    says(&p, how & 1, "link: the lane link is lost: there is no cable");
    says(&p, !(how & 1),
         "link: the lane link is lost: the peer: there is no cable");
    round_trip(&p, LARGE);
    pair_close(&p);
  }
}

static struct perigee_transport lying;
static struct transport_payloads lies;

static uint64_t number_told;

static int lie(struct lane *lane, struct exposure *exposure,
               struct payload *payload) {
  int status =
      perigee_transport_inproc.payloads->expose(lane, exposure, payload);
  exposure->source.kind |= number_told << SOURCE_LANE;
  return status;
}

static int open_lying(const struct lane_options *options, struct lane **lane,
                      struct offer *offer, char reason[REASON]) {
  int status = perigee_transport_inproc.open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &lying);
  return status;
}

/* A second lane with jobs alone. */
static struct perigee_transport bare;

static int open_bare(const struct lane_options *options, struct lane **lane,
                     struct offer *offer, char reason[REASON]) {
  int status =
      perigee_transport_inproc_additional.open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &bare);
  return status;
}

static void names_wrong(const struct perigee_transport *second,
                        const struct perigee_transport *other,
                        uint64_t number) {
  const struct perigee_transport *const list[2][3] = {
      {&lying, second, NULL}, {&perigee_transport_inproc, other, NULL}};
  struct perigee_options o[2];
  struct pair p;
  struct places s;
  number_told = number;
  lying = perigee_transport_inproc;
  lies = *perigee_transport_inproc.payloads;
  lies.expose = lie;
  lying.payloads = &lies;
  lying.open = open_lying;
  for (int i = 0; i < 2; i++) {
    options_with(&over_inproc, &o[i]);
    o[i].transports = list[i];
  }
  open_between(&p, &over_inproc, &o[0], &o[1]);
  places_open(&p, &s, LEAST - 1);
  struct perigee_slice from = all_of(s.from, s.length);
  struct perigee_message m = asking(&from, NULL);
  perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  until(&p, 0, PERIGEE_EVENT_LOST);
  places_close(&p, &s);
  pair_close(&p);
}

static void a_source_of_no_lane_ends_the_session(void **state) {
  (void)state;
  const struct perigee_transport *link = &perigee_transport_inproc_additional;
  names_wrong(link, link, 2);
  names_wrong(NULL, link, 2);
}

static void a_source_of_a_lane_without_payloads_ends_the_session(void **state) {
  (void)state;
  bare = perigee_transport_inproc_additional;
  bare.payloads = NULL;
  bare.open = open_bare;
  names_wrong(&bare, &bare, 1);
}

/* Frames that a session of side 0 sends end that of side 1. */
static void says_wrong(void **state, const struct frame *f) {
  struct pair p;
  open_pair(&p, *state);
  assert_true(p.session[0]->up->send(p.session[0], f, NULL, 0));
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  until(&p, 0, PERIGEE_EVENT_LOST);
  pair_close(&p);
}

static void words_of_no_lane_end_the_session(void **state) {
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = 2, .word = EXTRA_WORD_LANE}};
  says_wrong(state, &f);
  f.extra.word = EXTRA_WORD_OFFER;
  says_wrong(state, &f);
  f.extra.lane = 1; /* once is enough */
  says_wrong(state, &f);
  f.extra.lane = 0;
  says_wrong(state, &f);
  f.extra.lane = 2;
  f.extra.word = EXTRA_WORD_LOST;
  f.extra.status = PERIGEE_PEER_LOST;
  says_wrong(state, &f);
  struct frame found = {.type = FRAME_FOUND,
                        .found = {.keys = 1, .key = {{.lane = 2}}}};
  says_wrong(state, &found);
}

static void a_word_that_its_transport_does_not_know_loses_it(void **state) {
  struct pair p;
  open_pair(&p, *state);
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = 1, .word = EXTRA_WORD_LANE}};
  assert_true(p.session[0]->up->send(p.session[0], &f, NULL, 0));
  goes_on(&p);
  says(&p, 0, "lost: the peer: the peer's half said what is no word of it");
  pair_close(&p);
}

static void faults_are_injected_into_it_alone(void **state) {
  struct perigee_options o;
  struct pair p;
  options_with(*state, &o);
  o.faults = "delay=100us seed=3";
  pair_open_with(&p, *state, &o);
  round_trip(&p, LARGE);
  counts(&p, 1, 1, 0);
  perigee_inproc_break(0);
  goes_on(&p);
  pair_close(&p);
}

#define OVER_ALL(test)                                                         \
  OVER(over_shm, test), OVER(over_staged, test), OVER(over_tcp, test),         \
      OVER(over_inproc, test)

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER_ALL(payloads_go_over_it_both_ways),
      OVER_ALL(short_payloads_and_those_of_the_host_take_the_first),
      OVER_ALL(messages_go_over_it),
      OVER_ALL(transfers_go_over_it_both_ways),
      OVER_ALL(strides_and_offsets_mean_what_they_say),
      OVER_ALL(a_batch_takes_all_of_them),
      OVER_ALL(a_region_that_was_closed_is_stale),
      OVER_ALL(what_is_given_up_leaves_memory_alone),
      OVER_ALL(a_call_ends_once_where_its_receivers_half_breaks),
      OVER_ALL(a_call_ends_once_where_its_owners_half_breaks),
      OVER_ALL(a_reply_ends_once_where_it_breaks),
      OVER_ALL(a_transfer_ends_once_where_it_breaks),
      OVER_ALL(the_sessions_end_ends_what_is_under_way),
      OVER_ALL(a_peer_without_it_has_the_first_lane_only),
      OVER_ALL(where_a_half_fails_the_session_goes_on_without),
      OVER(over_sealed, it_is_left_out_where_all_is_sealed),
      cmocka_unit_test(a_source_of_no_lane_ends_the_session),
      cmocka_unit_test(a_source_of_a_lane_without_payloads_ends_the_session),
      OVER_ALL(words_of_no_lane_end_the_session),
      OVER_ALL(a_word_that_its_transport_does_not_know_loses_it),
      OVER_ALL(faults_are_injected_into_it_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
