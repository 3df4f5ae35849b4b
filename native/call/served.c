/* SPDX-License-Identifier: Apache-2.0
 *
 * served.c - the states of the peer's operations (calls, which the program
 * answers; one-sided access and messages, which the core answers), and what is
 * asked about one: does its caller still wait, does the ring wait for it, how
 * much time is left.
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
 * The program may take long to decode a request that is HELD. Until the program
 * has started it (perigee_started), the ring behind it is not read, as while a
 * request arrives.
 */
#include "core/lock.h"
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
  return lane && open_lane(op) &&
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
