/* SPDX-License-Identifier: Apache-2.0
 *
 * drain.c - a side that drains takes no more calls of its peer. It says so by
 * TAKEN, with the number of requests that it has read in this session so far.
 * It answers these as ever. Requests behind them are refused unread, so their
 * caller may make those calls elsewhere, whatever they do: it ends them, and
 * all that it would begin, in DRAINING. It says QUIET once it has no call under
 * way any more. Then the session can be closed, and no call is lost by that.
 *
 *   state    event   becomes
 *   none     taken   said     of a session: TAKEN was said, or heard
 *   said     quiet   quiet    QUIET was heard, or said
 *
 * Each side of a session has this state as the one that drains (ours) and as
 * the peer of one that does (theirs); the two are independent.
 *
 * The number makes the end certain also for a peer that does not poll, and
 * reads TAKEN only after the session was closed: requests are numbered as they
 * are put into the ring, and lanes deliver each once and in order. Lanes with
 * faults do not, so an engine with faults has not the feature (engine.c).
 *
 * A peer that lies gains nothing. More requests than were sent, a second word,
 * or a word that does not fit the state ends its session (PROTOCOL). Fewer than
 * were read doubles only calls of its own service. The side that drains waits
 * as long as its program likes if the peer never says QUIET.
 *
 * Method 0 describes what there is (perigee.h): it is served all the same.
 */
#include "call/calls.h"
#include "core/lock.h"
#include "net/wire.h"
#include "sessions.h"

enum { NONE, SAID, QUIET };
enum { EVENT_TAKEN, EVENT_QUIET };

const struct machine drain_machine = {
    .name = "drain",
    .taken = MACHINE_STEPS,
    .states = {"none", "said", "quiet"},
    .events = {"taken", "quiet"},
    .next = {[NONE] = {[EVENT_TAKEN] = TO(SAID)},
             [SAID] = {[EVENT_QUIET] = TO(QUIET)}}};

static bool drain_say(struct perigee_session *s, uint32_t word,
                      uint64_t taken) {
  struct frame f = {.type = FRAME_DRAIN, .drain = {word, 0, taken}};
  return s->up->send(s, &f, NULL, 0);
}

/* ---- The side that drains ------------------------------------------------ */

/* Says so to the peer, if it understands that and does not know it yet. */
void drain_tell(struct perigee_session *s) {
  if (!s->engine->draining || s->drain.ours != NONE ||
      s->state != PERIGEE_SESSION_OPEN || !(s->peer.features & FEATURE_DRAIN))
    return;
  machine_step(&drain_machine, &s->drain.ours, EVENT_TAKEN);
  drain_say(s, DRAIN_WORD_TAKEN, s->drain.read);
}

void perigee_drain(struct perigee_engine *engine) {
  struct node *n, *next, *head = &engine->sessions;
  ENTER(engine);
  if (!engine_alive(engine))
    return;
  engine->draining = true;
  for (n = head->next; n != head; n = next) {
    next = n->next;
    drain_tell(CONTAINER(n, struct perigee_session, node));
  }
}

void perigee_resume(struct perigee_engine *engine) {
  ENTER(engine);
  engine->draining = false;
}

/* A peer may call from this side's READY on, before the session is open here
 * and it can be told. */
static bool drain_is_awaited(const struct perigee_session *s) {
  bool may_call =
      s->state == PERIGEE_SESSION_OPEN ||
      (s->state == PERIGEE_SESSION_HELLO && s->handshake.step == WIREUP_READY);
  return s->engine->draining && may_call && !s->socket.hangup &&
         (s->peer.features & FEATURE_DRAIN) && s->drain.ours != QUIET;
}

uint32_t perigee_drain_waits(const struct perigee_engine *engine) {
  LOOK(engine);
  uint32_t count = 0;
  const struct node *n, *head = &engine->sessions;
  for (n = head->next; n != head; n = n->next)
    count += drain_is_awaited(CONTAINER(n, struct perigee_session, node));
  return count;
}

/* ---- Its peer ------------------------------------------------------------ */

/* Is it a call that the peer has not answered? */
static bool drain_call_pending(const struct operation *op) {
  return op->kind == OP_CALL && call_pending(op);
}

/* Ends the calls that the peer has not taken. */
static void drain_end_calls(struct perigee_session *s, uint64_t taken) {
  struct node *n, *next, *head = &s->operations.all;
  for (n = head->next; n != head; n = next) {
    next = n->next;
    struct operation *op = CONTAINER(n, struct operation, all);
    if (drain_call_pending(op) && op->message.method != 0 &&
        call_beyond(op, taken))
      call_stop(op, PERIGEE_DRAINING);
  }
}

/* Is a call under way? A poll looks at no operation. */
static bool drain_has_calls(const struct perigee_session *s) {
  return s->drain.calls > 0;
}

int perigee_session_drained(const struct perigee_session *s) {
  LOOK(s->engine);
  if (s->drain.ours == NONE)
    return 0;
  return s->drain.ours == QUIET && !drain_has_calls(s) ? 1 : PERIGEE_AGAIN;
}

bool drain_owes(const struct perigee_session *s) {
  return s->drain.theirs == SAID;
}

void drain_turn(struct perigee_session *s) {
  if (s->state != PERIGEE_SESSION_OPEN || !drain_owes(s) || drain_has_calls(s))
    return;
  machine_step(&drain_machine, &s->drain.theirs, EVENT_QUIET);
  drain_say(s, DRAIN_WORD_QUIET, 0);
}

/* ---- What is heard ------------------------------------------------------- */

static int drain_heard_taken(struct perigee_session *s, uint64_t taken) {
  if (s->drain.theirs != NONE || taken > s->drain.sent)
    return PERIGEE_PROTOCOL;
  machine_step(&drain_machine, &s->drain.theirs, EVENT_TAKEN);
  s->attends = true; /* polls look when it is quiet */
  drain_end_calls(s, taken);
  return PERIGEE_OK;
}

static int drain_heard_quiet(struct perigee_session *s) {
  if (s->drain.ours != SAID)
    return PERIGEE_PROTOCOL;
  machine_step(&drain_machine, &s->drain.ours, EVENT_QUIET);
  return PERIGEE_OK;
}

int drain_heard(struct perigee_session *s, const struct drain *word) {
  if (!(s->peer.features & FEATURE_DRAIN))
    return PERIGEE_PROTOCOL;
  s->engine->progress++;
  return word->word == DRAIN_WORD_TAKEN ? drain_heard_taken(s, word->taken)
                                        : drain_heard_quiet(s);
}
