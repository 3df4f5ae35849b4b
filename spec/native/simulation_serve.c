/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_serve.c - answering the calls of the other side of a simulated
 * world: at once or late, in every form that an answer can have.
 */
#include <stdlib.h>
#include <string.h>

#include "simulation.h"

static struct answer *answer_of(struct side *side, int served) {
  for (int i = 0; i < ANSWERS; i++)
    if (side->answers[i].state != NOTHING && side->answers[i].served == served)
      return &side->answers[i];
  return NULL;
}

static void let_go(struct side *side, struct answer *a) {
  spot_give(side, &a->into);
  spot_give(side, &a->from);
  free(a->head);
  *a = (struct answer){0};
}

void serve_forget(struct side *side, const struct link *l) {
  for (int i = 0; i < ANSWERS; i++) {
    struct answer *a = &side->answers[i];
    if (a->state != NOTHING && a->link == l && a->state == ASKED)
      a->link = NULL; /* it outlives its session */
    else if (a->state != NOTHING && a->link == l)
      let_go(side, a);
  }
}

static struct message *message_of(struct side *side, const struct answer *a) {
  return &side->world->messages[a->number];
}

/* ---- Arriving ------------------------------------------------------------ */

static int64_t some_time(struct world *w) {
  static const int64_t most[] = {1, 100000, 5000000, 100000000};
  return w->now + (int64_t)below(w, (uint64_t)most[below(w, 4)]);
}

static struct answer *arrived(struct side *side, const struct perigee_event *e,
                              int state) {
  struct world *w = side->world;
  struct link *l = link_of(side, e->session);
  struct answer *a = side->answers;
  HOLDS(side, l && answer_of(side, e->operation) == NULL);
  while (a->state != NOTHING)
    HOLDS(side, ++a < side->answers + ANSWERS);
  HOLDS(side, e->code > 0 && e->code <= w->numbers);
  struct message *m = &w->messages[e->code];
  HOLDS(side, m->from != side->index);
  HOLDS(side, m->seen++ == 0); /* at most once */
  HOLDS(side, w->weather.reorder > 0 || e->code > l->last_call);
  l->last_call = e->code;
  *a = (struct answer){.served = e->operation, .link = l, .number = e->code};
  a->state = state;
  return a;
}

/* A request's head and slice must be what was sent. */
static void expect_request(struct side *side, const struct answer *a,
                           const struct perigee_event *e) {
  const struct message *m = message_of(side, a);
  HOLDS(side, e->length == m->head && e->slice == m->slice);
  HOLDS(side, m->typed == ((e->flags & PERIGEE_TYPED) != 0));
  if (m->typed)
    typed_expect(side, e->pointer, e->length, a->number);
  else
    pattern_expect(side, e->pointer, a->number, e->length);
}

static void asked(struct side *side, const struct perigee_event *e) {
  struct answer *a = answer_of(side, e->operation);
  if (a)
    HOLDS(side, a->state == COMING && e->flags & PERIGEE_SLICE);
  else
    a = arrived(side, e, ASKED);
  expect_request(side, a, e);
  if (e->flags & PERIGEE_POOLED) {
    pattern_expect(side, e->landed, a->number, e->slice);
    perigee_pool_free(side->engine, e->landed);
  } else if (a->state == COMING) {
    spot_expect(side, &a->into, a->number, e->slice);
    spot_give(side, &a->into);
  }
  a->state = ASKED;
  a->at = some_time(side->world);
}

void serve_event(struct side *side, const struct perigee_event *e) {
  struct answer *a;
  switch (e->kind) {
  case PERIGEE_EVENT_REQUEST:
    asked(side, e);
    return;
  case PERIGEE_EVENT_LANDING:
    a = arrived(side, e, LANDING_ASKED);
    expect_request(side, a, e);
    HOLDS(side, e->flags & PERIGEE_SLICE);
    a->at = some_time(side->world);
    return;
  case PERIGEE_EVENT_ABANDONED:
    a = answer_of(side, e->operation);
    HOLDS(side, a && (a->state == LANDING_ASKED || a->state == COMING));
    let_go(side, a);
    return;
  default: /* SENT */
    a = answer_of(side, e->operation);
    HOLDS(side, a && a->state == REPLIED);
    let_go(side, a);
  }
}

/* ---- Landing ------------------------------------------------------------- */

static void land_too_short(struct side *side, struct answer *a) {
  struct perigee_slice none = {{side->mine.region}, 0, 0, 1, 0};
  struct perigee_slice list = perigee_list(&none, 1);
  bool listed = a->into.shape.listed;
  HOLDS(side,
        perigee_land(side->engine, a->served, listed ? &list : &none) < 0);
}

static void land(struct side *side, struct answer *a) {
  struct world *w = side->world;
  uint64_t length = message_of(side, a)->slice;
  struct perigee_slice slice = {0};
  bool named =
      happens(w, 0.8) && spot_take(side, &side->mine, length, &a->into);
  if (named)
    slice = spot_slice(&a->into);
  if (named && length > 0 && happens(w, 0.1))
    land_too_short(side, a);
  tell(side, "lands %d", a->served);
  int status = perigee_land(side->engine, a->served, named ? &slice : NULL);
  slices_forget();
  /* The session may have ended: ABANDONED comes. */
  HOLDS(side, status == PERIGEE_OK || status == PERIGEE_PEER_LOST ||
                  status == PERIGEE_INVALID);
  a->state = COMING;
}

/* ---- Answering ----------------------------------------------------------- */

/* What the caller will get, if it gets anything. */
static void plan(struct side *side, struct answer *a, int status, bool typed,
                 uint64_t head, uint64_t slice) {
  struct message *m = message_of(side, a);
  m->replied = true;
  m->reply_status = status;
  m->reply_typed = typed;
  m->reply_head = head;
  m->reply_slice = slice;
}

static void over(struct side *side, struct answer *a, int status) {
  tell(side, "answers %d (%llu): %d", a->served, (unsigned long long)a->number,
       status);
  if (status == 1) {
    a->state = REPLIED;
    return;
  }
  if (status < 0) { /* why stands in what the caller is told, if it is there */
    HOLDS(side, status == PERIGEE_PEER_LOST || status == PERIGEE_CANCELLED);
    message_of(side, a)->replied = false;
  }
  let_go(side, a);
}

static uint64_t some_length(struct world *w) {
  return below(w, 8) == 0 ? below(w, 40000) : below(w, 900);
}

static void reply_by_loan(struct side *side, struct answer *a) {
  struct world *w = side->world;
  struct perigee_loan loan;
  uint64_t capacity = some_length(w);
  int status = perigee_reply_begin(side->engine, a->served, capacity, &loan);
  if (status < 0) { /* it is still to be answered: later */
    HOLDS(side, status == PERIGEE_INVALID || status == PERIGEE_NO_MEMORY ||
                    status == PERIGEE_PEER_LOST);
    return;
  }
  HOLDS(side, loan.length >= capacity);
  if (happens(w, 0.2)) {
    perigee_reply_abort(side->engine, a->served);
    return;
  }
  uint64_t length = below(w, capacity + 1);
  pattern_write(loan.pointer, a->number + MESSAGES, length);
  plan(side, a, PERIGEE_OK, false, length, 0);
  over(side, a, perigee_reply_commit(side->engine, a->served, length));
}

/* A text, a zero, and typed data. */
static void fail_typed(struct side *side, struct answer *a,
                       struct perigee_message *m) {
  struct world *w = side->world;
  uint64_t text = some_length(w), more = below(w, 900);
  uint8_t *values = typed_make(a->number + MESSAGES, &more);
  uint8_t *head = a->head = malloc(text + 1 + more);
  memset(head, 'x', text);
  head[text] = 0;
  memcpy(head + text + 1, values, more);
  free(values);
  m->flags = PERIGEE_TYPED;
  m->head = head;
  m->length = text + 1 + more;
  plan(side, a, m->status, true, text, more);
}

static void fill_reply(struct side *side, struct answer *a,
                       struct perigee_message *m) {
  struct world *w = side->world;
  uint64_t pattern = a->number + MESSAGES, length = some_length(w), slice = 0;
  bool fails = m->status != PERIGEE_OK, typed = !fails && happens(w, 0.5);
  if (typed) {
    m->flags = PERIGEE_TYPED;
    m->head = a->head = typed_make(pattern, &length);
  } else {
    m->head = a->head = malloc(length + 1);
    pattern_write(a->head, pattern, length);
  }
  if (!fails && happens(w, 0.5) &&
      spot_take(side, &side->mine, typed ? some_length(w) : length, &a->from)) {
    spot_write(side, &a->from, pattern);
    m->slice = spot_slice(&a->from);
    slice = spot_length(&a->from);
  }
  if (!typed && a->from.ground)
    length = slice, slice = 0;
  m->length = length;
  plan(side, a, m->status, typed, length, slice);
}

static void reply(struct side *side, struct answer *a) {
  struct world *w = side->world;
  bool refuses = a->state == LANDING_ASKED || happens(w, 0.1);
  struct perigee_message m = {.status = refuses ? PERIGEE_REMOTE : PERIGEE_OK};
  if (refuses && happens(w, 0.5))
    fail_typed(side, a, &m);
  else
    fill_reply(side, a, &m);
  int status = perigee_reply(side->engine, a->served, &m);
  slices_forget();
  if (status == PERIGEE_INVALID && a->state == LANDING_ASKED) {
    message_of(side, a)->replied = false; /* ABANDONED is on its way */
    free(a->head);
    a->head = NULL;
    a->at = INT64_MAX;
    return;
  }
  over(side, a, status);
}

void serve_due(struct side *side) {
  struct world *w = side->world;
  for (int i = 0; i < ANSWERS; i++) {
    struct answer *a = &side->answers[i];
    bool due = a->state != NOTHING && a->at <= w->now;
    if (!due)
      continue;
    if (a->state == LANDING_ASKED && happens(w, 0.9))
      land(side, a);
    else if (a->state == ASKED && happens(w, 0.2))
      reply_by_loan(side, a);
    else if (a->state == ASKED || a->state == LANDING_ASKED)
      reply(side, a);
  }
}
