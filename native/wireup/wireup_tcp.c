/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup_tcp.c - the first part of the handshake over TCP, until the peer has
 * proven who it is: cookies, keys and proofs.
 */
#include <string.h>

#include "session/migrate.h"
#include "session/unauth.h"
#include "wireup.h"

/* In a crowd nothing is computed or kept before the cookie was shown. */
static int send_back(struct perigee_session *s, const struct hello *h) {
  struct frame f = {.type = FRAME_RETRY};
  if (cookie_make(s, h, f.retry.cookie))
    session_send(s, &f, NULL, 0);
  return PERIGEE_OK;
}

/* Both HELLOs are there: agrees on keys. */
int wireup_meet(struct perigee_session *s) {
  struct frame f = {.type = FRAME_HELLO, .hello = s->peer.hello};
  char reason[REASON];
  if (!s->dialed)
    wireup_say_hello(s);
  if (s->state == PERIGEE_SESSION_ENDED)
    return PERIGEE_OK;
  proof_word(s, false, &f);
  int status = proof_agree(s, reason);
  if (status < 0)
    return wireup_refuse(s, status, reason);
  wireup_step(s, MEET);
  if (!s->dialed)
    proof_say(s);
  return PERIGEE_OK;
}

int wireup_met(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  if (!s->dialed && unauth_crowded(s->engine) && !cookie_shown(s, h))
    return send_back(s, h);
  int status = migrate_admits(s, h, reason);
  if (status < 0)
    return wireup_refuse(s, status, reason);
  return unauth_wait(s) ? PERIGEE_OK : wireup_meet(s);
}

int wireup_retry(struct perigee_session *s, const struct retry *retry) {
  wireup_step(s, RETRY);
  memcpy(s->handshake.cookie, retry->cookie, sizeof s->handshake.cookie);
  wireup_say_hello(s);
  return PERIGEE_OK;
}

int wireup_proof(struct perigee_session *s, const uint8_t *proof) {
  char reason[REASON];
  int status = proof_heard(s, proof, reason);
  if (status < 0)
    return wireup_refuse(s, status, reason);
  wireup_step(s, PROVE);
  if (!s->dialed)
    return PERIGEE_OK;
  proof_say(s);
  if (s->state != PERIGEE_SESSION_ENDED)
    wireup_say_terms(s);
  return PERIGEE_OK;
}
