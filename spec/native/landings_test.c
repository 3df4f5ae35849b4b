/* SPDX-License-Identifier: Apache-2.0
 *
 * landings_test.c - typed calls with a slice in each direction: it lands where
 * the receiver says, in a pooled block, or in strides.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"

static const uint64_t sizes[] = {0,     1,     63,    64,          8191,
                                 8192,  8193,  16384, 16385,       65535,
                                 65536, 65537, MIB,   5 * MIB + 3, 8 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

static void all_sent(struct pair *p, int reply) {
  assert_true(reply >= 0);
  if (reply == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
}

struct places {
  struct perigee_region *from, *to, *back;
  uint64_t room;
};

static void places_open(struct pair *p, struct places *s, uint64_t length,
                        const uint8_t *bytes) {
  s->room = length + 16;
  s->from = region_of(p, 0, NULL, s->room, 0);
  s->back = region_of(p, 0, NULL, s->room, 0);
  s->to = region_of(p, 1, NULL, s->room, 0);
  fill(s->from, 0, bytes, length);
}

static void places_close(struct pair *p, struct places *s) {
  settle(p);
  region_end(s->from);
  region_end(s->back);
  region_end(s->to);
}

/* A typed call with a slice both ways: it lands at `there`, the reply in
 * `into`. */
static void landed(struct pair *p, uint64_t length) {
  struct places s;
  uint8_t *bytes = pattern(length, 77);
  places_open(p, &s, length, bytes);
  struct perigee_message m = {.method = 1,
                              .flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.from, length),
                              .into = all_of(s.back, s.room),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  assert_int_equal(e.slice, length);
  assert_memory_equal(e.pointer, seven, sizeof seven);
  struct perigee_slice place = all_of(s.to, s.room), tiny = all_of(s.to, 0);
  if (length > 0)
    assert_int_equal(perigee_land(p->engine[1], e.operation, &tiny),
                     PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  same(s.to, 0, bytes, length);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.to, length)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  same(s.back, 0, bytes, length);
  all_sent(p, sent);
  places_close(p, &s);
  free(bytes);
}

static void slices_land_where_the_receiver_says(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    landed(&p, sizes[i]);
  pair_close(&p);
}

/* Neither side names a place. */
static void pooled(struct pair *p, uint64_t length) {
  struct places s;
  uint8_t *bytes = pattern(length, 41);
  places_open(p, &s, length, bytes);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.from, length),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice none = {0};
  assert_int_equal(perigee_land(p->engine[1], e.operation, &none), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_true(e.flags & PERIGEE_POOLED);
  assert_int_equal(e.slice, length);
  assert_memory_equal(e.landed, bytes, length);
  perigee_pool_free(p->engine[1], e.landed);
  fill(s.to, 0, bytes, length);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.to, length)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_true(e.flags & PERIGEE_POOLED);
  assert_memory_equal(e.landed, bytes, length);
  perigee_pool_free(p->engine[0], e.landed);
  all_sent(p, sent);
  places_close(p, &s);
  free(bytes);
}

static void slices_without_a_place_are_pooled(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < SIZES; i++)
    pooled(&p, sizes[i]);
  pair_close(&p);
}

/* The slice has arrived, and its session is freed before the program is
 * told. */
static void what_is_never_told_stays_nowhere(void **state) {
  struct perigee_slice none = {0};
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *from = region_of(&p, 0, NULL, 64, 0);
  struct perigee_message m = {
      .flags = PERIGEE_TYPED, .slice = all_of(from, 64), .timeout = -1};
  perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LANDING);
  assert_int_equal(perigee_land(p.engine[1], e.operation, &none), 0);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  assert_int_equal(perigee_poll(p.engine[1], NULL, 0), 0);
  assert_int_equal(perigee_counters(p.engine[1], NULL)->pooled, 0);
  pair_drop(&p);
}

/* Blocks with holes on both sides; the holes stay. */
static void strided(struct pair *p, uint64_t block, uint64_t count) {
  struct places s;
  uint64_t total = block * count;
  uint8_t *bytes = pattern(2 * total, 5);
  places_open(p, &s, 2 * total, bytes);
  fill_byte(s.to, 0xaa);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .timeout = -1,
                              .slice = {{s.from}, 0, block, count, 2 * block}};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice place = {{s.to}, 0, block / 2, 2 * count, block};
  assert_int_equal(perigee_land(p->engine[1], e.operation, &place), 0);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  for (uint64_t i = 0; i < 2 * count; i++) {
    uint64_t at = i / 2 * 2 * block + i % 2 * (block / 2);
    same(s.to, i * block, bytes + at, block / 2);
    same(s.to, i * block + block / 2, "\xaa\xaa\xaa\xaa", 4);
  }
  struct perigee_message r = {.status = PERIGEE_REMOTE};
  all_sent(p, perigee_reply(p->engine[1], e.operation, &r));
  ended(p, 0, call, PERIGEE_REMOTE);
  places_close(p, &s);
  free(bytes);
}

static void strided_slices_land_in_strides(void **state) {
  struct pair p;
  pair_open(&p, *state);
  strided(&p, 64, 10);
  strided(&p, 64, 1000);
  strided(&p, 30000, 100);
  pair_close(&p);
}

/* ---- Many at once, with typed heads of every size ----------------------- */

enum { MANY = 24, PREFIX = 5, ROW = 17000 };

struct text {
  uint8_t *bytes;
  uint64_t length;
};

/* A string as string.buffer writes it: its length and a tag in one number of
 * 1, 2 or 5 bytes; then its bytes. */
static struct text typed(int i) {
  uint64_t length = sizes[i % SIZES];
  uint32_t tag = (uint32_t)length + 0x20, rest = tag - 0xe0;
  struct text t = {pattern(PREFIX + length, (uint8_t)i), length + PREFIX};
  if (tag < 0xe0) {
    t.bytes[0] = (uint8_t)tag;
    t.length = length + 1;
  } else if (tag < 0x1fe0) {
    t.bytes[0] = (uint8_t)(0xe0 | rest >> 8);
    t.bytes[1] = (uint8_t)rest;
    t.length = length + 2;
  } else {
    t.bytes[0] = 0xff;
    memcpy(t.bytes + 1, &tag, sizeof tag);
  }
  return t;
}

static void same_typed(const struct perigee_event *e, int i) {
  struct text t = typed(i);
  assert_int_equal(e->length, t.length);
  assert_memory_equal(e->pointer, t.bytes, t.length);
  free(t.bytes);
}

struct many {
  struct pair p;
  struct places s;
  uint8_t *bytes;
  struct text heads[MANY], replies[MANY];
  int calls[MANY], served, ended;
};

static void many_call(struct many *m, int i) {
  uint64_t at = (uint64_t)i * ROW, length = 100 + (uint64_t)i * 370;
  m->heads[i] = typed(i);
  m->replies[i] = typed(i);
  struct perigee_message q = {.method = (uint16_t)i,
                              .flags = PERIGEE_TYPED,
                              .head = m->heads[i].bytes,
                              .length = m->heads[i].length,
                              .slice = {{m->s.from}, at, length, 1, length},
                              .into = {{m->s.back}, at, ROW, 1, ROW},
                              .timeout = -1};
  m->calls[i] = perigee_call(m->p.session[0], &q);
}

static void many_serve(struct many *m) {
  struct perigee_event e;
  if (perigee_poll(m->p.engine[1], &e, 1) == 0 || e.kind == PERIGEE_EVENT_SENT)
    return;
  int i = e.method, status;
  struct perigee_slice place = {{m->s.to}, (uint64_t)i * ROW, ROW, 1, ROW};
  same_typed(&e, i);
  if (e.kind == PERIGEE_EVENT_LANDING) {
    status = perigee_land(m->p.engine[1], e.operation, &place);
  } else {
    assert_int_equal(i, m->served++); /* in the order of the calls */
    place.length = place.stride = e.slice;
    struct perigee_message r = {.flags = PERIGEE_TYPED,
                                .head = m->replies[i].bytes,
                                .length = m->replies[i].length,
                                .slice = place};
    status = perigee_reply(m->p.engine[1], e.operation, &r);
  }
  assert_true(status >= 0);
}

static void many_end(struct many *m) {
  struct perigee_event e;
  int i = 0;
  if (perigee_poll(m->p.engine[0], &e, 1) == 0)
    return;
  while (m->calls[i] != e.operation)
    i++;
  assert_int_equal(e.status, 0);
  same_typed(&e, i);
  same(m->s.back, (uint64_t)i * ROW, m->bytes + (uint64_t)i * ROW, e.slice);
  m->ended++;
}

static void typed_heads_and_slices_stay_together(void **state) {
  struct many m = {.bytes = pattern(MANY * ROW, 11)};
  struct perigee_options options;
  variant_options(*state, &options);
  options.typed = 16 * MIB;
  pair_open_with(&m.p, *state, &options);
  places_open(&m.p, &m.s, MANY * ROW, m.bytes);
  for (int i = 0; i < MANY; i++)
    many_call(&m, i);
  while (m.ended < MANY || operations(&m.p, 1) > 0) {
    many_serve(&m);
    many_end(&m);
  }
  for (int i = 0; i < MANY; i++) {
    free(m.heads[i].bytes);
    free(m.replies[i].bytes);
  }
  places_close(&m.p, &m.s);
  pair_close(&m.p);
  free(m.bytes);
}

/* A record has most beside its slice with a head that is too long for the ring, a
 * trace, and a place for the reply. */
static void the_longest_record_has_room(void **state) {
  static const struct perigee_trace trace = {.id = {7}, .span = {3}};
  enum { HEAD = 9 }; /* of SIZES */
  struct pair p;
  struct places s;
  struct perigee_session_info info;
  pair_open(&p, *state);
  perigee_session_describe(p.session[0], &info, sizeof info);
  uint8_t *bytes = pattern(info.eager, 5);
  places_open(&p, &s, info.eager, bytes);
  struct text head = typed(HEAD);
  assert_true(head.length > info.eager);
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_CARRIED,
                              .head = head.bytes,
                              .length = head.length,
                              .slice = all_of(s.from, info.eager),
                              .into = all_of(s.back, s.room),
                              .trace = &trace,
                              .timeout = -1};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice place = all_of(s.to, s.room);
  assert_int_equal(perigee_land(p.engine[1], e.operation, &place), 0);
  e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  same_typed(&e, HEAD);
  same(s.to, 0, bytes, info.eager);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s.to, info.eager)};
  int sent = perigee_reply(p.engine[1], e.operation, &r);
  ended(&p, 0, call, 0);
  if (sent == 1)
    until(&p, 1, PERIGEE_EVENT_SENT);
  same(s.back, 0, bytes, info.eager);
  free(head.bytes);
  places_close(&p, &s);
  pair_close(&p);
  free(bytes);
}

/* It is refused by a message, and the session goes on. */
static void a_landing_is_not_answered_by_a_loan(void **state) {
  static const uint64_t capacities[] = {4, MIB};
  struct places s;
  struct perigee_loan loan;
  struct pair p;
  pair_open(&p, *state);
  places_open(&p, &s, 4, (const uint8_t *)"abcd");
  for (int i = 0; i < 2; i++) {
    const struct perigee_message m = {.flags = PERIGEE_TYPED,
                                      .head = seven,
                                      .length = sizeof seven,
                                      .slice = all_of(s.from, 4),
                                      .timeout = -1},
                                 no = {.status = PERIGEE_REMOTE};
    int call = perigee_call(p.session[0], &m);
    int served = until(&p, 1, PERIGEE_EVENT_LANDING).operation;
    assert_int_equal(
        perigee_reply_begin(p.engine[1], served, capacities[i], &loan),
        PERIGEE_INVALID);
    assert_int_equal(perigee_reply_commit(p.engine[1], served, 1),
                     PERIGEE_INVALID);
    assert_int_equal(perigee_reply(p.engine[1], served, &no), 0);
    ended(&p, 0, call, PERIGEE_REMOTE);
  }
  places_close(&p, &s);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slices_land_where_the_receiver_says),
      cmocka_unit_test(slices_without_a_place_are_pooled),
      cmocka_unit_test(what_is_never_told_stays_nowhere),
      cmocka_unit_test(strided_slices_land_in_strides),
      cmocka_unit_test(typed_heads_and_slices_stay_together),
      cmocka_unit_test(the_longest_record_has_room),
      cmocka_unit_test(a_landing_is_not_answered_by_a_loan),
  };
  return RUN_MATRIX("landings", tests);
}
