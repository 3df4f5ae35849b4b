/* SPDX-License-Identifier: Apache-2.0
 *
 * proof.c - over TCP anybody can come. What each side says of itself in HELLO,
 * and how it proves that it has the secret (handshake.h): who dialed first, so
 * that who listens never gives a stranger anything to try secrets on.
 */
#include <stdio.h>

#include "core.h"
#include "seal.h"

/* ---- Saying it ----------------------------------------------------------- */

static uint32_t flags_of(const struct perigee_engine *engine) {
  return (engine->options.encrypt == 1 ? HELLO_ENCRYPT : 0) |
         (engine->secret.set ? HELLO_SECRET : 0) |
         (seal_has_aes() ? HELLO_AES : 0);
}

int proof_hello(struct perigee_session *s, struct frame *f) {
  const struct perigee_options *o = &s->engine->options;
  struct hello *h = &f->hello;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  h->flags |= flags_of(s->engine);
  int status = handshake_begin(&s->handshake, s->dialed, o->random, o->context,
                               h->challenge, h->public_key);
  handshake_said(&s->handshake, bytes, wire_encode(f, bytes));
  return status;
}

void proof_say(struct perigee_session *s) {
  struct frame f = {.type = FRAME_PROOF};
  handshake_prove(&s->handshake, f.proof);
  session_send(s, &f, NULL, 0);
}

/* ---- Hearing it ---------------------------------------------------------- */

static const struct secret *secret_of(const struct perigee_session *s) {
  return s->ticket ? &s->ticket_key : &s->engine->secret;
}

int proof_wanted(const struct perigee_session *s, const struct hello *h,
                 char reason[REASON]) {
  bool ours = s->engine->secret.set, theirs = h->flags & HELLO_SECRET;
  if (s->ticket != h->ticket) {
    snprintf(reason, REASON,
             "this is for one connection that was told of, "
             "and that was another, or it came too late");
    return PERIGEE_DENIED;
  }
  if (s->ticket || ours == theirs)
    return PERIGEE_OK;
  snprintf(reason, REASON,
           "who %s has a secret and who %s has none: give it the same one, by "
           "option secret or the environment's PERIGEE_SECRET",
           s->dialed == ours ? "dials" : "listens",
           s->dialed == ours ? "listens" : "dials");
  return PERIGEE_DENIED;
}

int proof_agree(struct perigee_session *s, const struct hello *h,
                char reason[REASON]) {
  struct frame f = {.type = FRAME_HELLO, .hello = *h};
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  uint32_t flags = flags_of(s->engine);
  s->sealed = (flags | h->flags) & HELLO_ENCRYPT;
  s->aes = flags & h->flags & HELLO_AES;
  int status = handshake_agree(&s->handshake, secret_of(s), bytes,
                               wire_encode(&f, bytes), h->public_key);
  if (status < 0)
    snprintf(reason, REASON, "the peer's public key is none");
  return status;
}

bool proof_holds(struct perigee_session *s,
                 const uint8_t proof[HANDSHAKE_MAC]) {
  if (!handshake_proven(&s->handshake, proof))
    return false;
  if (!s->dialed)
    proof_say(s);
  handshake_end(&s->handshake, s->key);
  return true;
}

static struct perigee_session **by_nonce(struct perigee_engine *engine,
                                         uint64_t nonce) {
  return &engine->by_nonce[nonce & (engine->id_slots - 1)];
}

void proof_owns(struct perigee_session *s) {
  struct perigee_session **chain = by_nonce(s->engine, s->nonce);
  if (!s->tcp || s->dialed)
    return;
  s->next_nonce = *chain;
  *chain = s;
}

void proof_disowns(struct perigee_session *s) {
  struct perigee_session **at = by_nonce(s->engine, s->nonce);
  while (*at && *at != s)
    at = &(*at)->next_nonce;
  if (*at)
    *at = s->next_nonce;
}

struct perigee_session *proof_owner(struct perigee_engine *engine,
                                    const struct attach *a) {
  struct perigee_session *s = *by_nonce(engine, a->session);
  while (s && s->nonce != a->session)
    s = s->next_nonce;
  return s && handshake_attached(s->key, a->index, a->mac) ? s : NULL;
}

/* ---- Telling people ------------------------------------------------------ */

const char *proof_text(const struct perigee_session *s) {
  static const char *const texts[2][3] = {
      {"not authenticated (there is no secret), not encrypted",
       "not authenticated (there is no secret), sealed with ChaCha20-Poly1305",
       "not authenticated (there is no secret), sealed with AES-256-GCM"},
      {"both sides proved the secret, not encrypted",
       "both sides proved the secret, sealed with ChaCha20-Poly1305",
       "both sides proved the secret, sealed with AES-256-GCM"}};
  if (s->alone)
    return "the peer is who had the endpoint's information, not encrypted";
  if (!s->tcp)
    return "the same user, as the kernel tells; encryption is off for shared "
           "memory and all else on one host";
  return texts[s->ticket || s->engine->secret.set]
              [s->sealed + (s->sealed && s->aes)];
}
