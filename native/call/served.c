/* SPDX-License-Identifier: Apache-2.0
 *
 * served.c - the states of the peer's operations (calls, which the program
 * answers; one-sided access and messages, which the core answers), what is
 * asked about one (does its caller still wait, does the ring wait for it, how
 * much time is left), and its end, which gives back what it owns and tells the
 * program. serve.c takes requests in, reply.c answers them.
 *
 *   state      event     becomes
 *   free       arrive    arrived    a record, decoded
 *   arrived    stall     stalled    no block is free for it or for its reply
 *   stalled    pulled    arrived    a block is free, or never will be
 *   arrived    pull      heading    the head has to be pulled, or is long and
 *                                   typed and is scanned in portions
 *   heading    pulled    arrived    it is complete and sound, or never will be
 *   arrived    serve     serving    REQUEST is given, or the core serves it
 *   arrived    ask       landing    LANDING is given
 *   landing    land      fetching   a place was named
 *   arrived    land      fetching   as above, by the core (WRITE, SEND)
 *   fetching   pulled    serving    all bytes have come, or never will
 *   serving    answer    free       the reply is in the ring, whole
 *   serving    wait      waiting    no room in the ring
 *   serving    refer     replied    the reply refers to this side's memory
 *   waiting    answer    told       it is in the ring now
 *   waiting    refer     replied
 *   replied    released  told       the caller's mark is gone
 *   told       given     free       SENT was polled
 *   landing    serve     serving    refused: only the answer is left
 *   heading, arrived, stalled, landing, fetching
 *              lost      gone       ABANDONED, if asked
 *   gone       given     free
 *   waiting, replied     lost       told       SENT with a status
 *   serving    lost      serving    the program still has to answer
 *
 * A reply is always sent, even to a call that has ended, as it releases the
 * request's loan.
 *
 * The program may take long to decode a request that is HELD. The ring behind
 * it is not read until the program has started it (perigee_started), as while a
 * request arrives.
 */
#include "core/lock.h"
#include "core/pool.h"
#include "operation/loan.h"
#include "served.h"

const struct machine served_machine = {
    .name = "served",
    .taken = MACHINE_STEPS,
    .states = {"free", "arrived", "stalled", "heading", "landing", "fetching",
               "serving", "waiting", "replied", "told", "gone"},
    .events = {"arrive", "stall", "pull", "pulled", "serve", "ask", "land",
               "answer", "wait", "refer", "released", "given", "lost"},
    .next = {
        [FREE] = {[ARRIVE] = TO(ARRIVED)},
        [ARRIVED] = {[STALL] = TO(STALLED),
                     [PULL] = TO(HEADING),
                     [SERVE] = TO(SERVING),
                     [ASK] = TO(LANDING),
                     [LAND] = TO(FETCHING),
                     [LOST] = TO(GONE)},
        [STALLED] = {[PULLED] = TO(ARRIVED), [LOST] = TO(GONE)},
        [HEADING] = {[PULLED] = TO(ARRIVED), [LOST] = TO(GONE)},
        [LANDING] =
            {[LAND] = TO(FETCHING), [SERVE] = TO(SERVING), [LOST] = TO(GONE)},
        [FETCHING] = {[PULLED] = TO(SERVING), [LOST] = TO(GONE)},
        [SERVING] = {[ANSWER] = TO(FREE),
                     [WAIT] = TO(WAITING),
                     [REFER] = TO(REPLIED),
                     [LOST] = TO(SERVING)},
        [WAITING] =
            {[ANSWER] = TO(TOLD), [REFER] = TO(REPLIED), [LOST] = TO(TOLD)},
        [REPLIED] = {[RELEASED] = TO(TOLD), [LOST] = TO(TOLD)},
        [TOLD] = {[GIVEN] = TO(FREE)},
        [GONE] = {[GIVEN] = TO(FREE)},
    }};

bool served_wanted(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  return lane && served_open(op) &&
         lane_payloads(lane)->live(lane, op->peer_operation,
                                   op->peer_generation);
}

/* Stops reading the request ring, so that requests reach the program in the
 * order in which they were submitted. */
void served_hold_back(struct operation *op) {
  op->session->inbox.arriving = op;
}

void served_let_on(struct operation *op) {
  if (op->session && op->session->inbox.arriving == op)
    op->session->inbox.arriving = NULL;
}

/* ---- Its end ------------------------------------------------------------ */

/* Ends the reply's payloads, also those that the caller did not want. */
static void served_unmark(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->marked && lane) {
    lane_payloads(lane)->mark(lane, op->index, 0);
    if (lane_payloads(lane)->pushes)
      lane_payloads(lane)->ended(lane, op->index, op->generation);
  }
  op->marked = false;
}

void served_unlend(struct operation *op) {
  if (op->head_lent && op->session && op->session->lane)
    lane_table(op->session->lane)
        ->loans->unloan(op->session->lane, &op->head_loan);
  op->head_lent = false;
}

/* With a polling thread: returns whether the program has replied and not polled
 * since. It may then still read the block of the request's head. */
static bool served_may_be_read(const struct operation *op) {
  const struct lock *lock = op->engine->lock;
  return lock && !lock->waiting && !lock->polling && op->bulky && !op->unseen;
}

/* With a progress thread: the program has seen the request, and may still read
 * it. */
static bool served_is_shown(const struct operation *op) {
  const struct lock *lock = op->engine->lock;
  bool over =
      !lock || lock->waiting || lock->polling || engine_is_aside(op->engine);
  return !over && op->kind == OP_SERVED;
}

/* Frees all but the operation itself; returns false while a copy is under
 * way. */
static bool served_settle(struct operation *op) {
  served_unmark(op);
  bool copying = !parts_end(op);
  if (UNLIKELY(copying != op->quiet_wait))
    op->quiet_wait = copying;
  if (UNLIKELY(copying)) {
    list_remove(&op->queue);
    operation_move(op);
    return false;
  }
  if (UNLIKELY(op->head_lent) && !served_is_shown(op) &&
      !served_may_be_read(op))
    served_unlend(op);
  if (UNLIKELY(op->reserved > 0))
    room_give(op);
  operation_unref(op);
  return true;
}

/* Frees the operation, and the block of its head unless the program may still
 * read it. */
static void served_gone(struct operation *op) {
  served_let_on(op);
  if (UNLIKELY(op->head_lent) && !served_is_shown(op))
    served_unlend(op);
  operation_free(op);
}

/* Does SENT follow? One byte after the other: GCC makes one word of an
 * expression of them, and a load of more than the bytes that were just written
 * waits until these, and all stores before them, are in the cache: the
 * reply's, too, whose line the peer has (a quarter of a busy server's time). */
static bool served_sends(const struct operation *op) {
  if (op->state != TOLD)
    return false;
  if (op->record != RECORD_REQUEST)
    return false;
  return !op->unseen;
}

void served_tell(struct operation *op) {
  if (!served_settle(op))
    return;
  if (served_sends(op) || op->landed) {
    op->flags = 0;
    op->pointer = NULL;
    op->length = 0;
    operation_event(op,
                    op->landed ? PERIGEE_EVENT_ABANDONED : PERIGEE_EVENT_SENT);
  } else if (op->state == FREE) {
    served_gone(op);
  } else {
    served_advance(op, GIVEN);
    served_gone(op);
  }
}

bool served_keeps(struct operation *op) {
  if (!served_is_shown(op) || (!op->block && !op->head_lent && !op->viewed))
    return false;
  list_append(&op->engine->late, &op->queue);
  return true;
}

void served_late(struct perigee_engine *engine) {
  struct node *n;
  while ((n = list_pop(&engine->late))) {
    struct operation *op = CONTAINER(n, struct operation, queue);
    served_unlend(op);
    operation_unview(op);
    pool_give(engine, op->block);
    op->block = NULL;
    operation_spare(op);
  }
}

bool served_survives(const struct operation *op) {
  return op->state == SERVING && op->event == PERIGEE_EVENT_NONE;
}

void served_given(struct operation *op) {
  served_advance(op, GIVEN);
  served_gone(op);
}

struct operation *served_find(struct perigee_engine *engine, int index,
                              int *status) {
  struct operation *op = operation_find(engine, index);
  if (!engine_alive(engine)) {
    *status = PERIGEE_FORKED;
    return NULL;
  }
  if (!op || op->kind != OP_SERVED || op->record != RECORD_REQUEST ||
      (op->state != SERVING && op->state != LANDING)) {
    *status =
        fail(engine, PERIGEE_INVALID, "no call %d is being served", index);
    return NULL;
  }
  if (served_open(op))
    return op;
  *status = fail(engine, PERIGEE_PEER_LOST, "the caller is gone");
  /* Calls in service outlive their session. */
  if (op->state == SERVING) {
    served_advance(op, ANSWER);
    served_tell(op);
  }
  return NULL;
}

/* ---- For the program ---------------------------------------------------- */

void perigee_started(struct perigee_engine *engine, int served) {
  ENTER(engine);
  struct operation *op = operation_find(engine, served);
  if (op && op->kind == OP_SERVED && op->state == SERVING)
    served_let_on(op);
}

bool perigee_served_cancelled(const struct perigee_engine *engine, int served) {
  LOOK(engine);
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  return !op || op->kind != OP_SERVED || !engine_alive(engine) ||
         !served_wanted(op);
}

int64_t perigee_served_remaining(const struct perigee_engine *engine,
                                 int served) {
  LOOK(engine);
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  if (!op || op->kind != OP_SERVED)
    return 0;
  if (op->deadline < 0)
    return -1;
  int64_t left = op->deadline - perigee_now(engine);
  return left < 0 ? 0 : left;
}
