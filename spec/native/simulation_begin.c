/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_begin.c - operations that a side of a simulated world begins.
 */
#include <stdlib.h>
#include <string.h>

#include "simulation.h"

enum { FIXED_BYTES = LITTLE * CELL_LITTLE };

/* ---- Dice ---------------------------------------------------------------- */

/* Most are short, some are sent as bulk, few are long. */
static uint64_t some_length(struct world *w) {
  switch (below(w, 12)) {
  case 0:
    return 0;
  case 1:
    return 40000;
  case 2:
  case 3:
    return below(w, 7000);
  default:
    return below(w, 700);
  }
}

static int64_t some_timeout(struct world *w) {
  static const uint64_t most[] = {1000000, 20000000, 1000000000, 4000000000,
                                  4000000000};
  return (int64_t)below(w, most[below(w, 5)]);
}

static struct link *some_link(struct side *side) {
  struct link *l = &side->links[below(side->world, LIVE)];
  return l->up && !l->closed && !l->lost ? l : NULL;
}

/* ---- What is under way --------------------------------------------------- */

struct own *own_of(struct side *side, int operation) {
  for (int i = 0; i < OWN; i++)
    if (side->own[i].kind && side->own[i].operation == operation)
      return &side->own[i];
  return NULL;
}

static struct own *own_new(struct side *side, enum own_kind kind,
                           struct link *link) {
  int i = 0;
  while (i < OWN && side->own[i].kind)
    i++;
  if (i == OWN || side->world->numbers + 2 * ITEMS >= MESSAGES)
    return NULL;
  side->own[i] = (struct own){.kind = kind, .link = link, .operation = -1};
  return &side->own[i];
}

static uint64_t new_number(struct side *side, struct own *own) {
  own->number = ++side->world->numbers;
  side->world->messages[own->number].from = (uint8_t)side->index;
  return own->number;
}

/* What submitting may return: under way, done, or the reason why not. */
static void submitted(struct side *side, struct own *own, int operation,
                      int64_t timeout) {
  slices_forget();
  tell(side, "begins %d: %d (%llu)", own->kind, operation,
       (unsigned long long)own->number);
  if (operation >= 0 && operation != PERIGEE_INLINE) {
    HOLDS(side, own_of(side, operation) == NULL);
    own->operation = operation;
    own->timeout = timeout;
    own->due = side->world->now + timeout;
    return;
  }
  struct perigee_event e = {.kind = PERIGEE_EVENT_DONE,
                            .status =
                                operation == PERIGEE_INLINE ? 0 : operation};
  HOLDS(side, operation != PERIGEE_INVALID && operation != PERIGEE_NO_MEMORY);
  own->operation = e.operation = -2;
  own->cancelled = operation < 0;
  own_ended(side, &e);
}

/* ---- Calls --------------------------------------------------------------- */

static void may_ask(struct side *side, struct own *own,
                    struct perigee_message *m) {
  if (!happens(side->world, 0.5))
    return;
  own->asks = ASKS;
  m->flags |= PERIGEE_ASKS;
}

/* Some raw calls whose reply has a place are batches of one. */
static int call_submit(struct side *side, struct own *own,
                       const struct perigee_message *m) {
  struct perigee_session *session = own->link->session;
  own->batched =
      own->landing && !(m->flags & PERIGEE_TYPED) && happens(side->world, 0.5);
  if (!own->batched)
    return perigee_call(session, m);
  own->answer.status = NOT_ANSWERED;
  int operation = perigee_call_batch(session, m, 1, &own->answer);
  own->refused = own->answer.status != NOT_ANSWERED;
  return operation;
}

static void call(struct side *side, struct link *l) {
  struct world *w = side->world;
  struct own *own = own_new(side, OWN_CALL, l);
  if (!own)
    return;
  struct message *known = &w->messages[new_number(side, own)];
  struct perigee_message m = {.code = own->number, .timeout = some_timeout(w)};
  known->typed = happens(w, 0.5);
  known->head = some_length(w);
  if (known->typed) {
    m.flags = PERIGEE_TYPED;
    m.head = own->head = typed_make(own->number, &known->head);
    if (happens(w, 0.6) &&
        spot_take(side, &side->mine, some_length(w), &own->from[0])) {
      spot_write(side, &own->from[0], own->number);
      known->slice = spot_length(&own->from[0]);
      m.slice = spot_slice(&own->from[0]);
    }
  } else if (happens(w, 0.3) &&
             spot_take(side, &side->mine, known->head, &own->from[0])) {
    spot_write(side, &own->from[0], own->number);
    known->head = spot_length(&own->from[0]);
    m.slice = spot_slice(&own->from[0]);
  } else {
    m.head = own->head = malloc(known->head + 1);
    pattern_write(own->head, own->number, known->head);
  }
  m.length = known->head;
  if (happens(w, 0.5) &&
      spot_take(side, &side->mine, some_length(w), &own->into)) {
    own->landing = true;
    own->room = spot_length(&own->into);
    m.into = spot_slice(&own->into);
  } else {
    may_ask(side, own, &m);
  }
  submitted(side, own, call_submit(side, own, &m), m.timeout);
}

static void call_by_loan(struct side *side, struct link *l) {
  struct world *w = side->world;
  struct perigee_loan loan;
  uint64_t capacity = some_length(w);
  if (perigee_call_begin(l->session, capacity, &loan) != PERIGEE_OK)
    return;
  struct own *own = happens(w, 0.8) ? own_new(side, OWN_CALL, l) : NULL;
  HOLDS(side, loan.length >= capacity);
  memset(loan.pointer, 0x5a, capacity);
  if (!own) {
    perigee_call_abort(l->session);
    return;
  }
  struct message *known = &w->messages[new_number(side, own)];
  struct perigee_message m = {.code = own->number, .timeout = some_timeout(w)};
  known->lent = true;
  may_ask(side, own, &m);
  known->head = below(w, capacity + 1);
  pattern_write(loan.pointer, own->number, known->head);
  submitted(side, own, perigee_call_commit(l->session, &m, known->head),
            m.timeout);
}

/* ---- Messages ------------------------------------------------------------ */

static void send(struct side *side, struct link *l) {
  struct world *w = side->world;
  struct own *own = own_new(side, OWN_SEND, l);
  if (!own)
    return;
  struct message *known = &w->messages[new_number(side, own)];
  int64_t timeout = some_timeout(w);
  if (!spot_take(side, &side->mine, 8 + some_length(w), &own->from[0])) {
    own_forget(side, own);
    return;
  }
  spot_write(side, &own->from[0], own->number);
  known->slice = spot_length(&own->from[0]);
  struct perigee_slice slice = spot_slice(&own->from[0]);
  submitted(side, own, perigee_send(l->session, &slice, timeout), timeout);
}

static void receive(struct side *side, struct link *l) {
  struct world *w = side->world;
  struct own *own = own_new(side, OWN_RECV, l);
  if (!own)
    return;
  int64_t timeout = some_timeout(w);
  uint64_t room = happens(w, 0.8) ? 40008 : 8 + some_length(w);
  if (!spot_take(side, &side->mine, room, &own->into)) {
    own_forget(side, own);
    return;
  }
  own->room = spot_length(&own->into);
  struct perigee_slice slice = spot_slice(&own->into);
  submitted(side, own, perigee_recv(l->session, &slice, timeout), timeout);
}

static void receive_immediate(struct side *side, struct link *l) {
  struct own *own = own_new(side, OWN_RECV_IMM, l);
  int64_t timeout = some_timeout(side->world);
  if (own)
    submitted(side, own, perigee_recv_imm(l->session, timeout), timeout);
}

/* ---- Transfers ----------------------------------------------------------- */

static bool read_item(struct side *side, struct link *l, struct own *own,
                      int i) {
  struct world *w = side->world;
  uint64_t length = some_length(w) + 1;
  if (!spot_take(side, &side->mine, length, &own->to[i]))
    return false;
  shape_lay(w, &own->there[i], FIXED_BYTES, length);
  own->items[i] = (struct perigee_transfer){
      .local = spot_slice(&own->to[i]),
      .remote = shape_remote(&own->there[i], l->fixed)};
  return true;
}

static bool write_item(struct side *side, struct link *l, struct own *own,
                       int i) {
  struct side *peer = &side->world->sides[!side->index];
  if (peer->open.life != l->open_life)
    return false;
  if (!spot_take(side, &side->mine, some_length(side->world) + 1,
                 &own->from[i]))
    return false;
  if (!spot_take(peer, &peer->open, spot_length(&own->from[i]), &own->to[i])) {
    spot_give(side, &own->from[i]);
    return false;
  }
  spot_write(side, &own->from[i], own->number + (uint64_t)i);
  own->items[i] = (struct perigee_transfer){
      .local = spot_slice(&own->from[i]),
      .remote = shape_remote(&own->to[i].shape, l->open)};
  return true;
}

static int operation_of(enum own_kind kind) {
  return kind - OWN_READ + PERIGEE_OP_READ;
}

static void transfer(struct side *side, struct link *l, enum own_kind kind) {
  struct world *w = side->world;
  bool read = kind == OWN_READ;
  struct own *own = (read ? l->fixed : l->open) ? own_new(side, kind, l) : NULL;
  if (!own)
    return;
  new_number(side, own);
  uint32_t wanted = 1 + (uint32_t)below(w, ITEMS);
  w->numbers += wanted; /* each item has a pattern of its own */
  while (own->count < wanted &&
         (read ? read_item(side, l, own, (int)own->count)
               : write_item(side, l, own, (int)own->count)))
    own->count++;
  if (own->count == 0) {
    own_forget(side, own);
    return;
  }
  int operation = operation_of(kind), status;
  int64_t timeout = some_timeout(w);
  if (happens(w, 0.2)) {
    status = perigee_prepare(l->session, operation, own->items, own->count,
                             own->number, &own->prepared);
    if (status == PERIGEE_OK)
      status = perigee_post(own->prepared, timeout);
  } else {
    status = perigee_transfer(l->session, operation, own->items, own->count,
                              own->number, timeout);
  }
  submitted(side, own, status, timeout);
}

/* ---- Posts of some blocks ------------------------------------------------ */

enum { BLOCKS = PLACES / 8 }; /* of a slice; a side has at most 8 slices */

/* Both sides have as many slices of the same blocks, or one has twice as many of
 * blocks half as long. At least one is a list. */
static void some_combs(struct world *w, struct comb *local,
                       struct comb *remote) {
  uint32_t slices = 1 + (uint32_t)below(w, 4),
           most = 1 + (uint32_t)below(w, BLOCKS);
  uint64_t block = 1 + below(w, happens(w, 0.2) ? 900 : 150);
  *local = *remote = (struct comb){slices, most, block, slices > 1};
  struct comb *halved = happens(w, 0.5) ? local : remote;
  if (happens(w, 0.4)) {
    *halved = (struct comb){2 * slices, most, block, true};
    (halved == local ? remote : local)->block = 2 * block;
  }
  if (!local->listed)
    local->listed = !remote->listed || happens(w, 0.5);
  if (!remote->listed)
    remote->listed = happens(w, 0.5);
}

/* Chooses `count` of the numbers below `most`, each once. */
static void some_numbers(struct world *w, uint32_t *numbers, uint32_t count,
                         uint32_t most) {
  uint32_t all[BLOCKS] = {0};
  for (uint32_t i = 0; i < most; i++)
    all[i] = i;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t at = i + (uint32_t)below(w, most - i), chosen = all[at];
    all[at] = all[i];
    numbers[i] = chosen;
  }
}

static bool read_combs(struct side *side, struct link *l, struct own *own,
                       const struct comb *local, const struct comb *remote) {
  struct world *w = side->world;
  if (!spot_take_comb(side, &side->mine, local, &own->to[0]))
    return false;
  shape_comb(w, &own->there[0], FIXED_BYTES / 2, remote, false);
  shape_shift(&own->there[0], below(w, FIXED_BYTES / 2));
  own->items[0] = (struct perigee_transfer){
      .local = spot_slice(&own->to[0]),
      .remote = shape_remote(&own->there[0], l->fixed)};
  return true;
}

static bool write_combs(struct side *side, struct link *l, struct own *own,
                        const struct comb *local, const struct comb *remote) {
  struct side *peer = &side->world->sides[!side->index];
  if (peer->open.life != l->open_life ||
      !spot_take_comb(side, &side->mine, local, &own->from[0]))
    return false;
  if (!spot_take_comb(peer, &peer->open, remote, &own->to[0])) {
    spot_give(side, &own->from[0]);
    return false;
  }
  own->items[0] = (struct perigee_transfer){
      .local = spot_slice(&own->from[0]),
      .remote = shape_remote(&own->to[0].shape, l->open)};
  return true;
}

/* From here on the spots are the blocks of these numbers alone. What is only
 * read may be named twice. */
static int post_blocks(struct side *side, struct own *own,
                       const struct comb *local, const struct comb *remote,
                       int64_t timeout) {
  struct world *w = side->world;
  uint32_t most = local->most, count = 1 + (uint32_t)below(w, most);
  uint32_t here[BLOCKS] = {0}, there[BLOCKS] = {0};
  bool read = own->kind == OWN_READ;
  bool by_number =
      local->slices == remote->slices && local->block == remote->block;
  some_numbers(w, here, count, most);
  some_numbers(w, there, count, most);
  if (read && happens(w, 0.3))
    there[below(w, count)] = there[0];
  shape_pick(read ? &own->to[0].shape : &own->from[0].shape, here, count,
             by_number);
  shape_pick(read ? &own->there[0] : &own->to[0].shape, there, count,
             by_number);
  if (!read)
    spot_write(side, &own->from[0], own->number);
  int status = perigee_post_blocks(own->prepared, here, there, count, timeout);
  memset(here, 0xee, sizeof here);
  memset(there, 0xee, sizeof there);
  return status;
}

static void transfer_blocks(struct side *side, struct link *l,
                            enum own_kind kind) {
  struct comb local, remote;
  bool read = kind == OWN_READ;
  struct own *own = (read ? l->fixed : l->open) ? own_new(side, kind, l) : NULL;
  if (!own)
    return;
  new_number(side, own);
  some_combs(side->world, &local, &remote);
  if (!(read ? read_combs : write_combs)(side, l, own, &local, &remote)) {
    own_forget(side, own);
    return;
  }
  own->count = 1;
  int64_t timeout = some_timeout(side->world);
  int status = perigee_prepare(l->session, operation_of(kind), own->items, 1,
                               own->number, &own->prepared);
  slices_forget();
  if (status == PERIGEE_OK)
    status = post_blocks(side, own, &local, &remote, timeout);
  submitted(side, own, status, timeout);
}

static void transfer_somehow(struct side *side, struct link *l,
                             enum own_kind kind) {
  if (happens(side->world, 0.2))
    transfer_blocks(side, l, kind);
  else
    transfer(side, l, kind);
}

/* ---- Sessions ------------------------------------------------------------ */

static void look_up(struct side *side, struct link *l, const char *name) {
  struct own *own = own_new(side, OWN_LOOKUP, l);
  int64_t timeout = 2500000000;
  if (!own)
    return;
  own->name = name;
  submitted(side, own, perigee_lookup(l->session, name, timeout), timeout);
}

void look_up_regions(struct side *side, struct link *l) {
  look_up(side, l, "fixed");
  look_up(side, l, "open");
}

static void look_up_some(struct side *side, struct link *l) {
  static const char *const names[] = {"fixed", "open", "open", "mine", "none"};
  look_up(side, l, names[below(side->world, 5)]);
}

static int links_of(const struct side *side) {
  int n = 0;
  for (int i = 0; i < LINKS; i++)
    n += side->links[i].session != NULL;
  return n;
}

int begin_connect(struct side *side) {
  struct world *w = side->world;
  int here = links_of(side), there = links_of(&w->sides[!side->index]);
  for (int i = 0; i < OWN; i++) /* those under way need a place, too */
    here += side->own[i].kind == OWN_CONNECT;
  struct own *own =
      here < LIVE && there < LIVE ? own_new(side, OWN_CONNECT, NULL) : NULL;
  if (!own)
    return -1;
  int64_t timeout = 3000000000;
  int operation =
      perigee_connect(side->engine, w->address, w->transport, timeout);
  submitted(side, own, operation, timeout);
  return operation;
}

static void cancel_some(struct side *side) {
  struct own *own = &side->own[below(side->world, OWN)];
  if (!own->kind || own->kind == OWN_CONNECT || own->operation < 0)
    return;
  tell(side, "cancels %d", own->operation);
  own->cancelled = true;
  perigee_cancel(side->engine, own->operation);
}

static void close_some(struct side *side, struct link *l) {
  tell(side, "closes session %u", l->id);
  l->closed = side->world->closings = true;
  perigee_session_close(l->session);
  if (happens(side->world, 0.2))
    link_free(side, l);
}

/* Makes a new region with the old one's name; writes to the old one are
 * stale. */
static void close_region(struct side *side) {
  side->open.closing = true;
  side->open.closed_at = side->world->now;
}

void begin_something(struct side *side) {
  struct world *w = side->world;
  struct link *l = some_link(side);
  uint64_t what = below(w, 1000);
  if (what < 60)
    cancel_some(side);
  else if (what < 64)
    close_region(side);
  else if (!l)
    return;
  else if (what < 300)
    call(side, l);
  else if (what < 420)
    call_by_loan(side, l);
  else if (what < 520)
    send(side, l);
  else if (what < 620)
    receive(side, l);
  else if (what < 680)
    receive_immediate(side, l);
  else if (what < 780)
    transfer_somehow(side, l, OWN_READ);
  else if (what < 900)
    transfer_somehow(side, l, OWN_WRITE);
  else if (what < 960)
    transfer_somehow(side, l, OWN_WRITE_IMM);
  else if (what < 995)
    look_up_some(side, l);
  else if (what < 997)
    close_some(side, l);
}
