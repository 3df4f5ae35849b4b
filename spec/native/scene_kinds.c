/* SPDX-License-Identifier: Apache-2.0
 *
 * scene_kinds.c - how an operation gets into each of its states.
 */
#include <string.h>

#include "scenes.h"
#include "support_inside.h"

enum { PULLED = 3 * MIB, STAGED = 5 * MIB, LONG_HEAD = MIB };

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

/* ---- Getting there ------------------------------------------------------ */

static void reach(struct scene *s, const char *state) {
  for (int i = 0; i < 100000; i++) {
    if (strcmp(state_of(s->p.engine[0], s->operation), state) == 0)
      return;
    poll_side(&s->p, i % 2);
  }
  fail_msg("never %s, but %s", state, state_of(s->p.engine[0], s->operation));
}

static void reach_served(struct scene *s, int side, const char *state) {
  for (int i = 0; i < 100000 && !serves_in(s->p.engine[side], state); i++)
    poll_side(&s->p, i % 2);
  assert_true(serves_in(s->p.engine[side], state));
}

/* A device works on its own: an operation may succeed before it is stopped,
 * whatever the two sides do. */
static bool by_device(struct scene *s) {
  s->settled = strcmp(s->p.variant->transport, "verbs") == 0;
  return s->settled;
}

static void call(struct scene *s, struct perigee_message *m) {
  m->timeout = s->timeout;
  s->operation = perigee_call(s->p.session[0], m);
  assert_true(s->operation >= 0);
}

static void request(struct scene *s, struct perigee_message *m) {
  call(s, m);
  s->served = until(&s->p, 1, PERIGEE_EVENT_REQUEST).operation;
}

/* Side 1 does not read; its ring is full. */
static void fill_ring(struct scene *s) {
  struct perigee_message m = {.head = s->bytes, .length = 4000, .timeout = -1};
  const struct perigee_counters *c =
      perigee_counters(s->p.engine[0], s->p.session[0]);
  s->p.still[1] = true;
  while (c->stalls == 0)
    assert_true(perigee_call(s->p.session[0], &m) >= 0);
}

static void queued(struct scene *s) {
  struct perigee_message m = {.head = s->bytes, .length = 4000};
  fill_ring(s);
  call(s, &m);
  reach(s, "queued");
}

static void queued_bulk(struct scene *s) {
  struct perigee_message m = {.slice = all_of(s->mine, STAGED)};
  fill_ring(s);
  call(s, &m);
  reach(s, "queued");
}

static void unread(struct scene *s) {
  struct perigee_message m = {.head = s->bytes, .length = 10};
  s->p.still[1] = true;
  call(s, &m);
  reach(s, "sent");
}

static void served(struct scene *s) {
  struct perigee_message m = {.head = s->bytes, .length = 10};
  request(s, &m);
}

static void heading(struct scene *s) {
  struct perigee_message m = {.slice = all_of(s->mine, PULLED)};
  call(s, &m);
  reach_served(s, 1, "heading");
}

static void heading_staged(struct scene *s) {
  struct perigee_message m = {.slice = all_of(s->mine, STAGED)};
  call(s, &m);
  reach_served(s, 1, "heading");
}

static void fetching(struct scene *s, uint64_t length) {
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .into = all_of(s->mine, ROOM)};
  request(s, &m);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .slice = all_of(s->theirs, length)};
  assert_int_equal(perigee_reply(s->p.engine[1], s->served, &r), 1);
  s->served = -1;
  by_device(s);
  reach(s, "fetching");
}

static void fetching_pulled(struct scene *s) {
  fetching(s, PULLED);
}

static void fetching_staged(struct scene *s) {
  fetching(s, STAGED);
}

static void fetching_pooled(struct scene *s) {
  struct perigee_message m = {.flags = PERIGEE_TYPED};
  request(s, &m);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .slice = all_of(s->theirs, PULLED)};
  assert_int_equal(perigee_reply(s->p.engine[1], s->served, &r), 1);
  s->served = -1;
  by_device(s);
  reach(s, "fetching");
}

/* Side 1 replies with a slice, and side 0 is asked where it lands. long_head: the
 * head has to be pulled first. */
static void asked_for(struct scene *s, uint64_t length, bool long_head) {
  static uint8_t head[LONG_HEAD];
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_ASKS};
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .slice = all_of(s->theirs, length)};
  request(s, &m);
  if (long_head) { /* one string */
    uint32_t tag = LONG_HEAD - 5 + 0x20;
    head[0] = 0xff;
    memcpy(head + 1, &tag, sizeof tag);
    r.head = head;
    r.length = LONG_HEAD;
  }
  assert_true(perigee_reply(s->p.engine[1], s->served, &r) >= 0);
  s->served = -1;
}

static void asked(struct scene *s) {
  asked_for(s, STAGED, false);
  reach(s, "asked"); /* and the event waits */
}

static void asked_and_told(struct scene *s) {
  asked_for(s, PULLED, false);
  until(&s->p, 0, PERIGEE_EVENT_REPLY_LANDING);
}

static void asked_short(struct scene *s) {
  asked_for(s, 100, false);
  until(&s->p, 0, PERIGEE_EVENT_REPLY_LANDING);
}

static void asked_raw(struct scene *s) {
  struct perigee_message m = {.flags = PERIGEE_ASKS};
  struct perigee_message r = {.slice = all_of(s->theirs, PULLED)};
  request(s, &m);
  assert_int_equal(perigee_reply(s->p.engine[1], s->served, &r), 1);
  s->served = -1;
  until(&s->p, 0, PERIGEE_EVENT_REPLY_LANDING);
}

static void asked_later(struct scene *s) {
  asked_for(s, PULLED, true);
  reach(s, "fetching");
}

static void asked_fetching(struct scene *s) {
  struct perigee_slice place = all_of(s->mine, ROOM);
  asked_and_told(s);
  assert_int_equal(perigee_land_reply(s->p.engine[0], s->operation, &place), 0);
  by_device(s);
  reach(s, "fetching");
}

static void lent(struct scene *s) {
  struct perigee_message m = {.timeout = s->timeout};
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(s->p.session[0], MIB, &loan), 0);
  s->operation = perigee_call_commit(s->p.session[0], &m, MIB);
  s->served = until(&s->p, 1, PERIGEE_EVENT_REQUEST).operation;
}

static void lent_unread(struct scene *s) {
  struct perigee_message m = {.timeout = s->timeout};
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(s->p.session[0], MIB, &loan), 0);
  s->operation = perigee_call_commit(s->p.session[0], &m, MIB);
  for (int i = 0; i < 10; i++) /* it may be on its way */
    poll_side(&s->p, 1);
  s->p.still[1] = true;
}

static void lent_queued(struct scene *s) {
  struct perigee_message m = {.timeout = s->timeout};
  struct perigee_loan loan;
  fill_ring(s);
  assert_int_equal(perigee_call_begin(s->p.session[0], MIB, &loan), 0);
  s->operation = perigee_call_commit(s->p.session[0], &m, MIB);
  reach(s, "queued");
}

static void landing(struct scene *s) {
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s->mine, PULLED)};
  call(s, &m);
  s->served = until(&s->p, 1, PERIGEE_EVENT_LANDING).operation;
}

static void landing_fetching(struct scene *s) {
  struct perigee_slice place = all_of(s->theirs, ROOM);
  landing(s);
  assert_int_equal(perigee_land(s->p.engine[1], s->served, &place), 0);
  s->served = -1;
  reach_served(s, 1, "fetching");
}

static void replied(struct scene *s) {
  struct perigee_message r = {.head = "yes", .length = 3};
  served(s);
  perigee_reply(s->p.engine[1], s->served, &r);
  s->served = -1;
  s->settled = true;
}

static void replied_in_place(struct scene *s) {
  struct perigee_loan loan;
  served(s);
  assert_int_equal(perigee_reply_begin(s->p.engine[1], s->served, MIB, &loan),
                   0);
  assert_int_equal(perigee_reply_commit(s->p.engine[1], s->served, MIB), 1);
  s->served = -1;
  s->settled = true;
}

/* ---- Other operations --------------------------------------------------- */

static void transfer(struct scene *s, int operation, bool little) {
  static struct perigee_transfer t;
  uint64_t length = little ? 8 : ROOM;
  struct perigee_remote *remote = look_up(&s->p, little ? "plain" : "theirs");
  t = (struct perigee_transfer){
      .local = all_of(little ? s->plain[0] : s->mine, length),
      .remote = {{.remote = remote}, 0, length, 1, length}};
  if (little)
    fill_ring(s);
  s->operation =
      perigee_transfer(s->p.session[0], operation, &t, 1, 5, s->timeout);
  assert_true(s->operation >= 0 && s->operation != PERIGEE_INLINE);
}

static void reading(struct scene *s) {
  transfer(s, PERIGEE_OP_READ, false);
  by_device(s);
  reach(s, "moving");
}

static void writing(struct scene *s) {
  transfer(s, PERIGEE_OP_WRITE, false);
  if (!by_device(s))
    poll_side(&s->p, 0);
  reach(s, "moving");
}

static void immediate_queued(struct scene *s) {
  transfer(s, PERIGEE_OP_WRITE_IMM, true);
  /* Data that the owner takes waits in the same ring. */
  bool asked = strcmp(s->p.variant->transport, "tcp") == 0;
  reach(s, asked ? "moving" : "queued");
}

static void sent(struct scene *s) {
  struct perigee_slice all = all_of(s->mine, PULLED);
  s->operation = perigee_send(s->p.session[0], &all, s->timeout);
  for (int i = 0; i < 20; i++)
    poll_side(&s->p, 1);
}

static void sent_fetching(struct scene *s) {
  struct perigee_slice into = all_of(s->theirs, ROOM);
  sent(s);
  assert_true(perigee_recv(s->p.session[1], &into, 1000 * MS) >= 0);
  reach_served(s, 1, "fetching");
}

static void receiving(struct scene *s) {
  struct perigee_slice into = all_of(s->mine, ROOM);
  s->operation = perigee_recv(s->p.session[0], &into, s->timeout);
}

static void receiving_arrives(struct scene *s) {
  struct perigee_slice from = all_of(s->theirs, PULLED);
  receiving(s);
  assert_true(perigee_send(s->p.session[1], &from, 1000 * MS) >= 0);
  by_device(s);
  reach_served(s, 0, "fetching");
}

static void receiving_immediate(struct scene *s) {
  s->operation = perigee_recv_imm(s->p.session[0], s->timeout);
}

static void looking_up(struct scene *s) {
  s->p.still[1] = true;
  s->operation = perigee_lookup(s->p.session[0], "theirs", s->timeout);
}

static void connecting(struct scene *s) {
  s->p.still[1] = true;
  s->operation =
      perigee_connect(s->p.engine[0], s->p.address, NULL, s->timeout);
}

const struct scene_kind scene_kinds[] = {
    {"queued", queued, false},
    {"queued with bulk", queued_bulk, false},
    {"unread", unread, false},
    {"served", served, false},
    {"heading", heading, false},
    {"heading, staged", heading_staged, false},
    {"fetching", fetching_pulled, false},
    {"fetching, staged", fetching_staged, false},
    {"fetching, pooled", fetching_pooled, false},
    {"asked", asked, false},
    {"asked, told", asked_and_told, false},
    {"asked, short", asked_short, false},
    {"asked, raw", asked_raw, false},
    {"asked later", asked_later, false},
    {"asked, fetching", asked_fetching, false},
    {"lent", lent, false},
    {"lent, unread", lent_unread, false},
    {"lent, queued", lent_queued, false},
    {"landing", landing, false},
    {"landing, fetching", landing_fetching, false},
    {"replied", replied, false},
    {"replied in place", replied_in_place, false},
    {"reading", reading, false},
    {"writing", writing, false},
    {"immediate queued", immediate_queued, false},
    {"sent", sent, false},
    {"sent, fetching", sent_fetching, false},
    {"receiving", receiving, false},
    {"receiving, arrives", receiving_arrives, false},
    {"receiving an immediate", receiving_immediate, false},
    {"looking up", looking_up, false},
    {"connecting", connecting, true},
    {NULL, NULL, false},
};
