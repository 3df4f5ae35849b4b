/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup_steps.c - the steps of the handshake, and which frames may come in each.
 *
 *   step      event    becomes
 *   new       vouch    proven    Unix: HELLO came
 *   new       retry    retried   TCP, dialer: RETRY came; HELLO again, with the
 *                                cookie. Once, as a peer that sends RETRY
 *                                without end is no listener
 *   new       meet     met       TCP: HELLO came. The listener answers by HELLO
 *   retried   meet     met       and PROOF; in a crowd first by RETRY
 *   met       prove    proven    PROOF came; the dialer sends PROOF and TERMS
 *   proven    fit      known     TERMS came; OFFER, over TCP the listener's
 *                                TERMS before it; or MOVE (migrate.h)
 *   new       inform   known     without a socket: HELLO and TERMS came in
 *                                another way (endpoint.c)
 *   known     join     joined    OFFER came
 *   joined    ready    ready     EXTRA came for each additional lane
 *                                (lane_offers.c); READY
 */
#include "wireup.h"

const struct machine wireup_machine = {
    .name = "wireup",
    .taken = MACHINE_STEPS,
    .states = {"new", "retried", "met", "proven", "known", "joined", "ready"},
    .events = {"vouch", "retry", "meet", "prove", "fit", "inform", "join",
               "ready"},
    .next = {
        [WIREUP_NEW] = {[VOUCH] = TO(WIREUP_PROVEN),
                        [RETRY] = TO(WIREUP_RETRIED),
                        [MEET] = TO(WIREUP_MET),
                        [INFORM] = TO(WIREUP_KNOWN)},
        [WIREUP_RETRIED] = {[MEET] = TO(WIREUP_MET)},
        [WIREUP_MET] = {[PROVE] = TO(WIREUP_PROVEN)},
        [WIREUP_PROVEN] = {[FIT] = TO(WIREUP_KNOWN)},
        [WIREUP_KNOWN] = {[JOIN] = TO(WIREUP_JOINED)},
        [WIREUP_JOINED] = {[READY] = TO(WIREUP_READY)},
    }};

/* May MOVE come? The dialer learns by it whether the session moves. */
static bool may_be_sent_on(const struct perigee_session *s) {
  return s->dialed && s->migration.state == MIGRATION_AGREED;
}

/* The frames that may come in each step. */
#define ON(type) (UINT32_C(1) << FRAME_##type)
enum {
  ENDS = ON(REFUSE) | ON(BYE),
  JOINED = ENDS | ON(EXTRA) | ON(WAKE) | ON(PING) | ON(READY)
};
static const uint32_t receives[] = {
    [WIREUP_NEW] = ENDS | ON(HELLO) | ON(RETRY) | ON(ATTACH),
    [WIREUP_RETRIED] = ENDS | ON(HELLO),
    [WIREUP_MET] = ENDS | ON(PROOF),
    [WIREUP_PROVEN] = ENDS | ON(TERMS),
    [WIREUP_KNOWN] = ENDS | ON(OFFER) | ON(MOVE),
    [WIREUP_JOINED] = JOINED,
    [WIREUP_READY] = JOINED,
};

bool wireup_timely(const struct perigee_session *s, int type) {
  if (!(receives[s->handshake.step] >> type & 1))
    return false;
  switch (type) {
  case FRAME_RETRY:
    return s->tcp && s->dialed;
  case FRAME_ATTACH:
    return s->tcp && !s->dialed;
  case FRAME_OFFER:
    return s->lane || may_be_sent_on(s);
  case FRAME_MOVE:
    return may_be_sent_on(s);
  case FRAME_READY:
    return lanes_complete(s);
  default:
    return true;
  }
}
