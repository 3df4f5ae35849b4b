/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_end.c - how the operations of a simulated world may end, and what
 * must be true then.
 */
#include <stdlib.h>
#include <string.h>

#include "simulation.h"

struct link *link_of(struct side *side, uint32_t id) {
  for (int i = 0; i < LINKS; i++)
    if (side->links[i].session && side->links[i].id == id)
      return &side->links[i];
  return NULL;
}

/* ---- Letting go ---------------------------------------------------------- */

/* The owner of memory may still write after the writer gave up, if word of
 * that takes time or the memory copies on its own. */
static void give_target(struct side *side, struct own *own, struct spot *spot,
                        bool fine) {
  struct side *peer = &side->world->sides[!side->index];
  if (own->kind == OWN_READ)
    spot_give(side, spot);
  else if (fine || (strcmp(side->world->memory, "host") == 0 &&
                    strcmp(side->world->transport, "tcp") != 0))
    spot_give(peer, spot);
  else
    spot_retire(spot);
}

static void let_go(struct side *side, struct own *own, bool fine) {
  spot_give(side, &own->into);
  for (int i = 0; i < ITEMS; i++) {
    spot_give(side, &own->from[i]);
    if (own->to[i].ground)
      give_target(side, own, &own->to[i], fine);
  }
  if (own->prepared && own->link->session)
    perigee_prepared_free(own->prepared);
  if (own->head)
    memset(own->head, 0xdd, side->world->messages[own->number].head);
  free(own->head);
  side->world->messages[own->number].ended = true;
  *own = (struct own){0};
}

void own_forget(struct side *side, struct own *own) {
  let_go(side, own, false);
}

/* Operations of the session have no event any more, and their memory is
 * ours. What the program was asked gets no answer, except for calls in
 * service. */
void link_free(struct side *side, struct link *l) {
  tell(side, "frees session %u", l->id);
  perigee_session_free(l->session);
  l->session = NULL;
  serve_forget(side, l);
  for (int i = 0; i < OWN; i++)
    if (side->own[i].kind && side->own[i].link == l)
      own_forget(side, &side->own[i]);
  *l = (struct link){0};
}

/* ---- Statuses ------------------------------------------------------------ */

static bool ended_session(const struct link *l) {
  struct perigee_session_info info;
  if (!l || !l->session)
    return true;
  perigee_session_describe(l->session, &info, sizeof info);
  return info.state == PERIGEE_SESSION_ENDED;
}

/* Whether this operation may end with this status now. */
static bool fits(const struct side *side, const struct own *own, int status) {
  const struct world *w = side->world;
  const struct message *m = &w->messages[own->number];
  /* Whose hello was not heard to the end may be told anything. */
  if (own->kind == OWN_CONNECT && w->wires)
    return true;
  bool one_sided = own->kind >= OWN_READ && own->kind <= OWN_WRITE_IMM;
  switch (status) {
  case PERIGEE_OK:
    return true;
  case PERIGEE_TIMEOUT:
    return w->now >= own->due || own->kind == OWN_CONNECT;
  case PERIGEE_CANCELLED: /* a message, with its receive, or the reverse */
    return own->cancelled || own->kind == OWN_SEND || own->kind == OWN_RECV;
  case PERIGEE_PEER_LOST:
    return ended_session(own->link) || w->closings || w->weather.cut > 0 ||
           w->weather.truncate > 0;
  case PERIGEE_CLOSED:
    return own->link && own->link->closed;
  case PERIGEE_PROTOCOL: /* typed values have no place in a batch */
    return w->weather.truncate > 0 ||
           (own->batched && m->replied && m->reply_typed);
  case PERIGEE_STALE:
    return one_sided;
  case PERIGEE_TOO_LARGE:
    return (own->landing && !own->asks) || own->kind == OWN_SEND ||
           own->kind == OWN_RECV;
  case PERIGEE_NOT_FOUND:
    return own->name && strcmp(own->name, "fixed") != 0;
  case PERIGEE_DENIED:
    return own->name && strcmp(own->name, "mine") == 0;
  case PERIGEE_AGAIN:
    return own->operation == -2;
  default:
    return own->kind == OWN_CALL && m->replied && m->reply_status == status;
  }
}

/* ---- Landings of replies -------------------------------------------------- */

void own_asked(struct side *side, const struct perigee_event *e) {
  struct own *own = own_of(side, e->operation);
  HOLDS(side, own && own->kind == OWN_CALL && own->asks == ASKS);
  struct message *m = &side->world->messages[own->number];
  bool typed = e->flags & PERIGEE_TYPED;
  HOLDS(side, m->replied && m->reply_status == PERIGEE_OK);
  HOLDS(side, typed == m->reply_typed && e->status == PERIGEE_OK);
  HOLDS(side, typed == ((e->flags & PERIGEE_SLICE) != 0));
  HOLDS(side, e->slice == (typed ? m->reply_slice : m->reply_head));
  HOLDS(side, e->length == (typed ? m->reply_head : 0));
  if (typed)
    typed_expect(side, e->pointer, e->length, own->number + MESSAGES);
  own->asks = WAS_ASKED;
  own->coming = e->slice;
  own->at = side->world->now + (int64_t)below(side->world, 30000000);
}

/* Other places are refused, and change nothing. */
static void land_badly(struct side *side, const struct own *own) {
  struct perigee_slice none = {{side->mine.region}, 0, 0, 1, 0};
  struct perigee_slice list = perigee_list(&none, 1);
  struct perigee_slice outside = {{side->mine.region}, UINT32_MAX, 8, 1, 8};
  HOLDS(side, perigee_land_reply(side->engine, own->operation, &outside) < 0);
  if (own->coming == 0)
    return;
  HOLDS(side, perigee_land_reply(side->engine, own->operation, &none) < 0);
  HOLDS(side, perigee_land_reply(side->engine, own->operation, &list) < 0);
}

/* A call that has ended says how; REPLY is on its way. */
static void land(struct side *side, struct own *own) {
  struct world *w = side->world;
  struct perigee_slice slice = {0};
  bool named =
      happens(w, 0.8) && spot_take(side, &side->mine, own->coming, &own->into);
  if (named)
    slice = spot_slice(&own->into);
  if (happens(w, 0.1))
    land_badly(side, own);
  int status =
      perigee_land_reply(side->engine, own->operation, named ? &slice : NULL);
  tell(side, "lands the reply to %d: %d", own->operation, status);
  slices_forget();
  own->asks = HAS_LANDED;
  own->ends_in = status;
  if (named && status == PERIGEE_OK) {
    own->landing = true;
    own->room = spot_length(&own->into);
  }
  if (happens(w, 0.1))
    HOLDS(side, perigee_land_reply(side->engine, own->operation, NULL) < 0);
}

void land_due(struct side *side) {
  for (int i = 0; i < OWN; i++) {
    struct own *own = &side->own[i];
    if (own->kind == OWN_CALL && own->asks == WAS_ASKED &&
        own->at <= side->world->now)
      land(side, own);
  }
}

/* Whoever wants to be asked is, if there is something to land. */
static void asked_expect(struct side *side, const struct own *own,
                         const struct perigee_event *e) {
  bool lands = e->flags & PERIGEE_SLICE || !(e->flags & PERIGEE_TYPED);
  if (own->asks)
    HOLDS(side, own->asks == (lands ? HAS_LANDED : ASKS));
}

/* ---- Ends of each kind ---------------------------------------------------- */

/* A text, and perhaps data behind it; nothing is written to the reply's
 * destination. */
static void failure_expect(struct side *side, const struct message *m,
                           const struct perigee_event *e, uint64_t pattern) {
  HOLDS(side, e->flags == 0 && e->length == m->reply_head);
  HOLDS(side, e->slice == m->reply_slice);
  if (!m->reply_typed) {
    pattern_expect(side, e->pointer, pattern, e->length);
    return;
  }
  for (uint64_t i = 0; i < e->length; i++)
    HOLDS(side, e->pointer[i] == 'x');
  HOLDS(side, e->pointer[e->length] == 0);
  typed_expect(side, e->pointer + e->length + 1, e->slice, pattern);
}

static void call_ended(struct side *side, struct own *own,
                       const struct perigee_event *e) {
  struct message *m = &side->world->messages[own->number];
  uint64_t pattern = own->number + MESSAGES;
  HOLDS(side, m->replied && e->status == m->reply_status);
  if (e->status != PERIGEE_OK) {
    failure_expect(side, m, e, pattern);
    return;
  }
  HOLDS(side, m->reply_typed == ((e->flags & PERIGEE_TYPED) != 0));
  asked_expect(side, own, e);
  if (m->reply_typed) {
    HOLDS(side, e->length == m->reply_head);
    typed_expect(side, e->pointer, e->length, pattern);
    HOLDS(side, e->slice == m->reply_slice);
  } else if (own->landing) {
    HOLDS(side, e->slice == m->reply_head && e->slice <= own->room);
  } else {
    HOLDS(side, e->length == m->reply_head);
    pattern_expect(side, e->pointer, pattern, e->length);
  }
  if (e->flags & PERIGEE_POOLED) {
    HOLDS(side, e->flags & PERIGEE_SLICE && !own->landing);
    pattern_expect(side, e->landed, pattern, e->slice);
  } else if (own->landing && e->slice > 0) {
    spot_expect(side, &own->into, pattern, e->slice);
  }
}

static void receive_ended(struct side *side, struct own *own,
                          const struct perigee_event *e) {
  struct world *w = side->world;
  uint64_t number = spot_word(side, &own->into);
  if (number == 0 || number > w->numbers || e->length > own->room)
    wrong(side, "operation %d received %llu bytes that begin with %llx",
          e->operation, (unsigned long long)e->length,
          (unsigned long long)number);
  struct message *m = &w->messages[number];
  HOLDS(side, m->from != side->index && m->slice == e->length);
  HOLDS(side, m->seen++ == 0);
  spot_expect(side, &own->into, number, e->length);
}

static void immediate_ended(struct side *side, const struct perigee_event *e) {
  struct world *w = side->world;
  HOLDS(side, e->immediate > 0 && e->immediate <= w->numbers);
  struct message *m = &w->messages[e->immediate];
  HOLDS(side, m->from != side->index);
  HOLDS(side, ++m->seen == 1 || w->weather.duplicate > 0);
}

static void transfer_ended(struct side *side, struct own *own) {
  struct side *peer = &side->world->sides[!side->index];
  for (uint32_t i = 0; i < own->count; i++) {
    struct spot *to = &own->to[i];
    if (own->kind == OWN_READ)
      spot_expect_from(side, to, &own->there[i], FIXED + (uint64_t)peer->index);
    else if (to->life == to->ground->life)
      spot_expect(peer, to, own->number + i, spot_length(to));
  }
}

static void look_up_ended(struct side *side, struct own *own,
                          const struct perigee_event *e) {
  struct perigee_remote *remote =
      (struct perigee_remote *)(uintptr_t)e->pointer;
  HOLDS(side, strcmp(own->name, "none") != 0 && strcmp(own->name, "mine") != 0);
  if (strcmp(own->name, "fixed") == 0) {
    own->link->fixed = remote;
  } else {
    own->link->open = remote;
    own->link->open_life = side->world->sides[!side->index].open.life;
  }
}

static void connect_ended(struct side *side, const struct perigee_event *e) {
  struct perigee_session *session = perigee_session(side->engine, e->session);
  int i = 0;
  HOLDS(side, session);
  while (side->links[i].session)
    HOLDS(side, ++i < LINKS);
  side->links[i] =
      (struct link){.session = session, .id = e->session, .up = true};
  look_up_regions(side, &side->links[i]);
}

static void fine(struct side *side, struct own *own,
                 const struct perigee_event *e) {
  switch (own->kind) {
  case OWN_CALL:
    call_ended(side, own, e);
    break;
  case OWN_SEND: /* by now the other side has it */
    break;
  case OWN_RECV:
    receive_ended(side, own, e);
    break;
  case OWN_RECV_IMM:
    immediate_ended(side, e);
    break;
  case OWN_LOOKUP:
    look_up_ended(side, own, e);
    break;
  case OWN_CONNECT:
    break;
  default:
    transfer_ended(side, own);
  }
}

/* Returns the event of a batch of one as that of its call. If it has a status, REPLY
 * has told of that, or the call was refused, or the whole batch was stopped. */
static struct perigee_event batch_single(struct side *side,
                                         const struct own *own,
                                         const struct perigee_event *done) {
  struct perigee_event e = *done;
  HOLDS(side, e.kind == PERIGEE_EVENT_DONE);
  e.kind = PERIGEE_EVENT_REPLY;
  bool stopped =
      own->cancelled || own->link->closed || ended_session(own->link);
  if (e.status != PERIGEE_OK) {
    HOLDS(side, own->failed == e.status || own->refused || stopped ||
                    e.operation < 0);
    return e;
  }
  HOLDS(side, own->answer.status == PERIGEE_OK);
  HOLDS(side, own->answer.length == e.length);
  e.slice = e.length;
  e.length = 0;
  return e;
}

/* Its call has failed; the batch's event follows, or the session is freed before
 * that. */
static void batch_failed(struct side *side, struct own *own,
                         const struct perigee_event *e) {
  const struct message *m = &side->world->messages[own->number];
  HOLDS(side, e->capacity == 0 && e->status < 0);
  HOLDS(side, own->answer.status == e->status && own->answer.length == 0);
  HOLDS(side, own->failed == PERIGEE_OK);
  own->failed = e->status;
  if (m->replied && m->reply_status == e->status)
    failure_expect(side, m, e, own->number + MESSAGES);
  else
    HOLDS(side, fits(side, own, e->status));
}

void own_ended(struct side *side, const struct perigee_event *e) {
  struct perigee_event single;
  static const int kinds[OWN_KINDS] = {[OWN_CALL] = PERIGEE_EVENT_REPLY,
                                       [OWN_CONNECT] = PERIGEE_EVENT_CONNECTED};
  struct own *own = own_of(side, e->operation);
  if (!own)
    wrong(side, "operation %d ends (%s), which is not under way", e->operation,
          perigee_status_name(e->status));
  if (own->batched && e->kind == PERIGEE_EVENT_REPLY) {
    batch_failed(side, own, e);
    return;
  }
  if (own->batched) {
    single = batch_single(side, own, e);
    e = &single;
  }
  int kind = kinds[own->kind] ? kinds[own->kind] : PERIGEE_EVENT_DONE;
  HOLDS(side, e->kind == kind || e->operation < 0);
  bool answered = own->kind == OWN_CALL &&
                  side->world->messages[own->number].replied &&
                  e->status == side->world->messages[own->number].reply_status;
  if (!answered && !fits(side, own, e->status))
    wrong(side, "operation %d of kind %d ends in %s: %s", e->operation,
          own->kind, perigee_status_name(e->status),
          perigee_detail(side->engine));
  HOLDS(side, own->ends_in == PERIGEE_OK || own->ends_in == e->status);
  side->world->ended[own->kind]++;
  side->world->fine[own->kind] += e->status == PERIGEE_OK;
  if (e->status == PERIGEE_OK || (answered && own->failed == PERIGEE_OK))
    fine(side, own, e);
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(side->engine, e->landed);
  bool connected = own->kind == OWN_CONNECT && e->status == PERIGEE_OK;
  let_go(side, own, e->status == PERIGEE_OK);
  if (connected)
    connect_ended(side, e);
}
