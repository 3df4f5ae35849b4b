/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PUT = 1, GET = 2, SIDE = LOAD_ALL * LOAD_SIZE };

/* What is lent for reading, and what GET gives. */
static uint8_t known[LOAD_SIZE];

/* Each operation has a place of its own, on both sides. */
static struct perigee_slice place(void *region, int i) {
  return (struct perigee_slice){
      {region}, (uint64_t)i * LOAD_SIZE, LOAD_SIZE, 1, LOAD_SIZE};
}

static uint8_t *bytes_at(struct perigee_region *region, int i) {
  return perigee_region_pointer(region) + (uint64_t)i * LOAD_SIZE;
}

static void is_all(const uint8_t *bytes, uint8_t value, const char *what) {
  for (int i = 0; i < LOAD_SIZE; i++)
    if (bytes[i] != value)
      fail_msg("%s: byte %d is %d, not %d", what, i, bytes[i], value);
}

/* ---- Beginning ---------------------------------------------------------- */

static bool is_write(int i) {
  return i < LOAD_WRITES;
}
static bool is_transfer(int i) {
  return i < LOAD_TRANSFERS;
}
static bool is_put(int i) {
  return i >= LOAD_TRANSFERS && i < LOAD_TRANSFERS + LOAD_PUTS;
}

/* The byte that the i-th operation writes this time. */
static uint8_t value_of(const struct load_side *s, int i) {
  return (uint8_t)(s->done[i] * 16 + (uint64_t)i + 1);
}

static int transfer(struct load *l, int side, int i) {
  struct load_side *s = &l->side[side];
  struct perigee_transfer *t = &s->transfers[i];
  t->local = place(s->own, i);
  t->remote =
      place(is_write(i) ? s->peer_target : s->peer_source, is_write(i) ? i : 0);
  memset(bytes_at(s->own, i), is_write(i) ? value_of(s, i) : 0xee, LOAD_SIZE);
  return perigee_transfer(l->p.session[side],
                          is_write(i) ? PERIGEE_OP_WRITE : PERIGEE_OP_READ, t,
                          1, 0, 30000 * MS);
}

static int call(struct load *l, int side, int i) {
  struct load_side *s = &l->side[side];
  struct perigee_message m = {.method = is_put(i) ? PUT : GET,
                              .code = value_of(s, i),
                              .timeout = 30000 * MS};
  if (is_put(i)) {
    m.slice = place(s->own, i);
    memset(bytes_at(s->own, i), value_of(s, i), LOAD_SIZE);
  }
  return perigee_call(l->p.session[side], &m);
}

static void begin(struct load *l, int side, int i) {
  struct load_side *s = &l->side[side];
  int op = is_transfer(i) ? transfer(l, side, i) : call(l, side, i);
  if (op == PERIGEE_AGAIN || (l->losing && op == PERIGEE_PEER_LOST))
    return;
  if (op < 0)
    fail_msg("operation %d cannot begin: %s", i,
             perigee_detail(l->p.engine[side]));
  assert_true(op != PERIGEE_INLINE);
  s->operation[i] = op;
}

/* ---- Ending ------------------------------------------------------------- */

static void serve(struct load *l, int side, const struct perigee_event *e) {
  struct perigee_engine *engine = l->p.engine[side];
  struct perigee_message reply = {.status = PERIGEE_OK};
  if (e->method == PUT) {
    assert_int_equal(e->length, LOAD_SIZE);
    is_all(e->pointer, (uint8_t)e->code, "what was put");
  } else {
    reply.head = known;
    reply.length = LOAD_SIZE;
  }
  perigee_reply(engine, e->operation, &reply);
}

static void check_bytes(struct load *l, int side, int i,
                        const struct perigee_event *e) {
  struct load_side *s = &l->side[side];
  if (is_write(i)) {
    is_all(bytes_at(l->side[!side].target, i), value_of(s, i), "a write");
  } else if (is_transfer(i)) {
    assert_memory_equal(bytes_at(s->own, i), known, LOAD_SIZE);
  } else if (!is_put(i)) {
    assert_int_equal(e->length, LOAD_SIZE);
    assert_memory_equal(e->pointer, known, LOAD_SIZE);
  }
}

static void end(struct load *l, int side, const struct perigee_event *e) {
  struct load_side *s = &l->side[side];
  int i = 0;
  while (i < LOAD_ALL && s->operation[i] != e->operation)
    i++;
  assert_true(i < LOAD_ALL);
  if (e->status == PERIGEE_OK)
    check_bytes(l, side, i, e);
  else if (!l->losing || e->status != PERIGEE_PEER_LOST)
    fail_msg("operation %d of side %d ended in %s: %s", i, side,
             perigee_status_name(e->status), perigee_detail(l->p.engine[side]));
  s->operation[i] = -1;
  s->done[i] += e->status == PERIGEE_OK;
}

static void take(struct load *l, int side) {
  struct perigee_engine *engine = l->p.engine[side];
  struct perigee_event e;
  if (perigee_poll(engine, &e, 1) == 0)
    return;
  switch (e.kind) {
  case PERIGEE_EVENT_REQUEST:
    serve(l, side, &e);
    break;
  case PERIGEE_EVENT_LOST:
    if (!l->losing)
      fail_msg("side %d lost its session: %s", side, perigee_detail(engine));
    l->side[side].lost++;
    break;
  case PERIGEE_EVENT_REPLY:
  case PERIGEE_EVENT_DONE:
    end(l, side, &e);
    break;
  default: /* SENT: nothing is kept for it */
    break;
  }
}

/* ---- Running ------------------------------------------------------------ */

static uint64_t under_way(struct load *l) {
  return operations(&l->p, 0) + operations(&l->p, 1);
}

static void turn(struct load *l) {
  for (int side = 0; side < 2; side++) {
    for (int i = 0; i < LOAD_ALL && !l->stopping; i++)
      if (l->side[side].operation[i] < 0)
        begin(l, side, i);
    take(l, side);
  }
}

void load_run(struct load *l, int64_t time) {
  l->stopping = false;
  for (int64_t until = clock_now() + time; clock_now() < until;)
    turn(l);
}

void load_stop(struct load *l) {
  l->stopping = true;
  int64_t limit = clock_now() + 20000 * MS;
  while (under_way(l) > 0) {
    turn(l);
    if (clock_now() > limit)
      fail_msg("%d operations do not end", (int)under_way(l));
  }
}

uint64_t load_done(const struct load *l) {
  uint64_t n = 0;
  for (int side = 0; side < 2; side++)
    for (int i = 0; i < LOAD_ALL; i++)
      n += l->side[side].done[i];
  return n;
}

/* ---- Opening ------------------------------------------------------------ */

/* Awaits the operation's end; ignores events that the load left behind. */
static struct perigee_event answer(struct load *l, int side, int operation) {
  struct perigee_event e;
  int64_t limit = clock_now() + 20000 * MS;
  assert_true(operation >= 0);
  for (int i = 0;; i = !i) {
    assert_true(clock_now() < limit);
    if (perigee_poll(l->p.engine[i], &e, 1) == 1 && i == side &&
        e.kind == PERIGEE_EVENT_DONE && e.operation == operation)
      return e;
  }
}

static struct perigee_remote *find(struct load *l, int side, const char *name) {
  int operation = perigee_lookup(l->p.session[side], name, -1);
  struct perigee_event e = answer(l, side, operation);
  assert_int_equal(e.status, PERIGEE_OK);
  return (struct perigee_remote *)(uintptr_t)e.pointer;
}

static void find_all(struct load *l) {
  for (int side = 0; side < 2; side++) {
    l->side[side].peer_target = find(l, side, "target");
    l->side[side].peer_source = find(l, side, "source");
  }
}

void load_open(struct load *l, const struct variant *v) {
  memset(l, 0, sizeof *l);
  for (int i = 0; i < LOAD_SIZE; i++)
    known[i] = (uint8_t)(i * 7 + (i >> 8));
  pair_open(&l->p, (void *)(uintptr_t)v);
  for (int side = 0; side < 2; side++) {
    struct load_side *s = &l->side[side];
    memset(s->operation, 0xff, sizeof s->operation);
    s->own = region_of(&l->p, side, NULL, SIDE, 0);
    s->target = region_of(&l->p, side, "target", SIDE, PERIGEE_WRITE);
    s->source = region_of(&l->p, side, "source", LOAD_SIZE, PERIGEE_READ);
    fill(s->source, 0, known, LOAD_SIZE);
  }
  find_all(l);
}

void load_again(struct load *l) {
  for (int side = 0; side < 2; side++) {
    perigee_session_free(l->p.session[side]);
    l->side[side].lost = 0;
  }
  l->losing = false;
  pair_dial(&l->p, l->p.session);
  find_all(l);
}

void load_close(struct load *l) {
  load_stop(l);
  pair_close(&l->p);
}
