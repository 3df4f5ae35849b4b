/* SPDX-License-Identifier: Apache-2.0
 *
 * terms.c - what each side tells of itself before a session can be: HELLO and
 * TERMS. Fills in this side's, and checks whether the peer's fit.
 */
#include <stdio.h>
#include <string.h>

#include "session/migrate.h"
#include "wireup.h"

/* ---- This side's --------------------------------------------------------- */

void hello_own(struct perigee_session *s, struct hello *h) {
  *h = (struct hello){.magic = HELLO_MAGIC,
                      .version_min = PROTOCOL_MIN,
                      .version_max = PROTOCOL_MAX,
                      .nonce = s->handshake.nonce};
  memcpy(h->challenge, s->security.challenge, sizeof h->challenge);
  memcpy(h->public_key, s->security.public_key, sizeof h->public_key);
  memcpy(h->cookie, s->handshake.cookie, sizeof h->cookie);
  migrate_hello(s, h);
}

void terms_own(struct perigee_session *s, struct terms *t) {
  const struct perigee_options *o = &s->engine->options;
  *t = (struct terms){.epoch = s->engine->epoch,
                      .features = s->engine->features,
                      .ring = o->ring,
                      .eager = o->eager,
                      .message = o->message,
                      .typed = o->typed,
                      .operations = o->operations,
                      .dead_after = liveness_told(s->engine)};
  if (s->tcp)
    proof_flags(s, t);
  memcpy(t->probe, s->handshake.probe, sizeof t->probe);
  memcpy(t->name, s->engine->name, sizeof t->name);
  choice_list(s, t);
  migrate_terms(s, t);
}

/* ---- The peer's ---------------------------------------------------------- */

/* The peer may be told the same sentence, so it says which side is which. */
static void no_common_version(const struct perigee_session *s,
                              const struct hello *h, char reason[REASON]) {
  const char *own = s->dialed ? "dialer" : "listener";
  const char *other = s->dialed ? "listener" : "dialer";
  if (s->alone)
    own = "side here", other = "peer";
  snprintf(reason, REASON,
           "no common protocol version: the %s has %d to %d, the %s %u to %u",
           own, PROTOCOL_MIN, PROTOCOL_MAX, other, h->version_min,
           h->version_max);
}

int hello_fits(struct perigee_session *s, const struct hello *h,
               char reason[REASON]) {
  s->peer.hello = *h;
  s->peer.version =
      h->version_max < PROTOCOL_MAX ? h->version_max : PROTOCOL_MAX;
  if (!wire_foreign(h))
    return PERIGEE_OK;
  no_common_version(s, h, reason);
  return PERIGEE_VERSION;
}

/* The dialer may have named the agent that it expects. The peer's name is in
 * the sealed TERMS: nobody in between can change it, so none can have one
 * worker answer in place of another. */
static int check_name(const struct perigee_session *s, const struct terms *t,
                      char reason[REASON]) {
  if (!*s->target.name || strcmp(s->target.name, t->name) == 0)
    return PERIGEE_OK;
  snprintf(reason, REASON, "%s was dialled, and who answers %s%s",
           s->target.name, *t->name ? "is " : "goes by no name", t->name);
  return PERIGEE_DENIED;
}

int terms_fit(struct perigee_session *s, const struct terms *t,
              char reason[REASON]) {
  struct terms own;
  s->peer.terms = *t;
  s->peer.features = t->features & s->engine->features;
  terms_own(s, &own);
  s->peer.eager = t->eager < own.eager ? t->eager : own.eager;
  if (t->ring / 4 < 128 || s->peer.eager > t->ring / 4 - 128) {
    snprintf(reason, REASON, "the rings are too small");
    return PERIGEE_UNSUPPORTED;
  }
  int status = check_name(s, t, reason);
  if (status < 0)
    return status;
  migrate_met(s, t);
  s->transport = choice_of(s, &own);
  migrate_agree(s, s->dialed ? &own : t, s->dialed ? t : &own);
  if (!s->transport && s->migration.state != MIGRATION_AGREED)
    return choice_none(s, t, reason);
  if (s->tcp && (status = proof_terms(s, reason)) < 0)
    return status;
  if (lanes_agree(s, &own))
    return PERIGEE_OK;
  snprintf(reason, REASON, "no memory for the session's lanes");
  return PERIGEE_NO_MEMORY;
}
