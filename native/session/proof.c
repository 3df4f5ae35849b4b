/* SPDX-License-Identifier: Apache-2.0
 *
 * proof.c - authentication over TCP, where everybody can connect. Each side
 * proves that it has the secret (handshake.h). The listener proves it first, so
 * a listener that only pretends gets nothing to try secrets on. A dialer does
 * get that; this is why a secret that a person may have chosen is stretched
 * (stretch.h).
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "sessions.h"

static struct handshake *handshake_of(const struct perigee_session *s) {
  return &s->security.keys->handshake;
}

static const struct secret *secret_of(const struct perigee_session *s) {
  return session_moved(s) ? &s->security.keys->ticket : s->engine->secret;
}

/* ---- The transcript ------------------------------------------------------ */

static bool is_word(int type) {
  return type == FRAME_HELLO || type == FRAME_PROOF || type == FRAME_TERMS ||
         type == FRAME_OFFER || type == FRAME_READY;
}

void proof_word(struct perigee_session *s, bool ours, const struct frame *f) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  if (!s->tcp || !is_word(f->type))
    return;
  uint32_t length = wire_encode(f, bytes);
  if (f->type == FRAME_HELLO)
    handshake_hello(handshake_of(s), ours == s->dialed, bytes, length);
  else
    handshake_word(handshake_of(s), ours == s->dialed, bytes, length);
}

/* Seals the frames of one side from here on, by a cipher that every machine
 * has, as it is not known yet whether the peer has AES. */
static int seal_words(struct perigee_session *s, bool by_dialer,
                      struct seal **seal) {
  uint8_t key[HANDSHAKE_KEY];
  *seal = vault_take(&s->engine->vault, sizeof **seal);
  if (!*seal)
    return PERIGEE_NO_MEMORY;
  handshake_seal_words(handshake_of(s), by_dialer, key);
  seal_begin(*seal, key, false);
  explicit_bzero(key, sizeof key);
  return PERIGEE_OK;
}

static void unseal(struct perigee_session *s) {
  struct seal **seals[] = {&s->socket.wire.seal_in, &s->socket.wire.seal_out};
  for (int i = 0; i < 2; i++) {
    vault_give(&s->engine->vault, *seals[i], sizeof(struct seal));
    *seals[i] = NULL;
  }
}

/* ---- Proving ------------------------------------------------------------- */

/* Also called after a RETRY; the keys are the same then. */
bool proof_begin(struct perigee_session *s) {
  const struct perigee_options *o = &s->engine->options;
  if (s->handshake.step != WIREUP_RETRIED &&
      handshake_begin(handshake_of(s), s->dialed, o->random, o->context,
                      s->security.challenge, s->security.public_key) < 0) {
    session_end(s, PERIGEE_SYSTEM, "there is no randomness to be had");
    return false;
  }
  return true;
}

void proof_say(struct perigee_session *s) {
  struct frame f = {.type = FRAME_PROOF};
  handshake_prove(handshake_of(s), f.proof);
  proof_word(s, true, &f);
  session_send(s, &f, NULL, 0);
  if (seal_words(s, s->dialed, &s->socket.wire.seal_out) < 0)
    session_end(s, PERIGEE_NO_MEMORY, VAULT_FULL);
}

/* Can others read what this session sends? Loopback never leaves the host. */
static bool leaves_host(const struct perigee_session *s) {
  union socket_address at = {0};
  socklen_t length = sizeof at;
  return getpeername(s->socket.fd, &at.any, &length) == 0 &&
         at.any.sa_family != AF_UNIX && !address_loopback(&at);
}

void proof_flags(struct perigee_session *s, struct terms *t) {
  int32_t wish = s->engine->options.encrypt;
  s->security.beyond = leaves_host(s);
  if (wish == PERIGEE_ENCRYPT_AUTH)
    t->flags |= TERMS_AUTH | TERMS_STRICT;
  if (wish == PERIGEE_ENCRYPT_ALL)
    t->flags |= TERMS_ENCRYPT | TERMS_STRICT;
  if (wish == PERIGEE_ENCRYPT_DEFAULT && s->security.beyond)
    t->flags |= TERMS_ENCRYPT;
  if (seal_has_aes())
    t->flags |= TERMS_AES;
  s->security.own_flags = t->flags;
}

/* ---- Receiving ----------------------------------------------------------- */

int proof_agree(struct perigee_session *s, char reason[REASON]) {
  if (s->peer.hello.nonce == s->handshake.nonce) {
    snprintf(reason, REASON, "what this side said came back to it");
    return PERIGEE_DENIED;
  }
  int status =
      handshake_agree(handshake_of(s), secret_of(s), s->peer.hello.public_key);
  if (status < 0)
    snprintf(reason, REASON, "the peer's public key is none");
  return status;
}

static const char how[] = "give it the same one, by option secret or the "
                          "environment's PERIGEE_SECRET";

/* The text goes to a peer that is not authenticated, so it tells only that the
 * peer does not have the same secret. */
static void proof_wrong(const struct perigee_session *s,
                        const uint8_t proof[HANDSHAKE_MAC],
                        char reason[REASON]) {
  bool ours = s->engine->secret->set;
  bool theirs = !handshake_bare(handshake_of(s), proof);
  if (!session_moved(s) && ours != theirs)
    snprintf(reason, REASON, "who %s has a secret and who %s has none: %s",
             s->dialed == ours ? "dials" : "listens",
             s->dialed == ours ? "listens" : "dials", how);
  else
    snprintf(reason, REASON, "%s",
             "the secret, or the scope, is another, or what was said was "
             "changed on the way");
}

int proof_heard(struct perigee_session *s, const uint8_t proof[HANDSHAKE_MAC],
                char reason[REASON]) {
  if (!handshake_proven(handshake_of(s), proof)) {
    proof_wrong(s, proof, reason);
    return PERIGEE_DENIED;
  }
  int status = seal_words(s, !s->dialed, &s->socket.wire.seal_in);
  if (status < 0)
    snprintf(reason, REASON, "%s", VAULT_FULL);
  return status;
}

/* The stronger wish of the two sides wins. A side that did not ask for
 * encryption by name does without if the lane cannot do it. */
int proof_terms(struct perigee_session *s, char reason[REASON]) {
  uint32_t flags = s->security.own_flags | s->peer.terms.flags;
  bool can = !s->transport || s->transport->sockets;
  s->security.sealed = can && (flags & TERMS_ENCRYPT);
  s->security.intact = can && (flags & (TERMS_ENCRYPT | TERMS_AUTH));
  s->security.aes = s->security.own_flags & s->peer.terms.flags & TERMS_AES;
  if (can || !(flags & TERMS_STRICT))
    return PERIGEE_OK;
  snprintf(reason, REASON,
           "encryption, or MACs, are wanted, and %s cannot do "
           "that",
           s->transport->name);
  return PERIGEE_UNSUPPORTED;
}

/* ---- After the handshake ------------------------------------------------- */

/* If the lane does not take over the socket, it has keys of its own or none,
 * and the session's frames stay sealed. */
void proof_end(struct perigee_session *s) {
  handshake_end(handshake_of(s), s->security.keys->session);
  if (s->transport->sockets)
    unseal(s);
  else
    explicit_bzero(s->security.keys->session, HANDSHAKE_KEY);
}

void proof_forget(struct perigee_session *s) {
  unseal(s);
  handshake_forget(handshake_of(s));
  explicit_bzero(s->security.keys->session, HANDSHAKE_KEY);
}

static struct perigee_session **by_nonce(struct perigee_engine *engine,
                                         uint64_t nonce) {
  return &engine->by_nonce[nonce & (engine->id_slots - 1)];
}

void proof_index(struct perigee_session *s) {
  struct perigee_session **chain = by_nonce(s->engine, s->handshake.nonce);
  if (!s->tcp || s->dialed ||
      s->streams.state == STREAMS_SOCKET) /* otherwise the key is wiped */
    return;
  s->security.next_nonce = *chain;
  *chain = s;
}

void proof_unindex(struct perigee_session *s) {
  struct perigee_session **at = by_nonce(s->engine, s->handshake.nonce);
  while (*at && *at != s)
    at = &(*at)->security.next_nonce;
  if (*at)
    *at = s->security.next_nonce;
}

struct perigee_session *proof_find(struct perigee_engine *engine,
                                   const struct attach *a) {
  struct perigee_session *s = *by_nonce(engine, a->session);
  while (s && s->handshake.nonce != a->session)
    s = s->security.next_nonce;
  return s && handshake_attached(s->security.keys->session, a->index, a->mac)
             ? s
             : NULL;
}

/* ---- Messages for the user ----------------------------------------------- */

static const char *protection_of(const struct perigee_session *s) {
  static const char *const texts[2][2] = {
      {"not encrypted: each chunk has a MAC by ChaCha20-Poly1305",
       "not encrypted: each chunk has a MAC by AES-256-GCM"},
      {"sealed with ChaCha20-Poly1305", "sealed with AES-256-GCM"}};
  return s->security.intact ? texts[s->security.sealed][s->security.aes]
                            : "not encrypted: who stands between can change it";
}

/* Tells which side asked for it. */
static const char *why_protected(const struct perigee_session *s) {
  uint32_t what = s->security.sealed ? TERMS_ENCRYPT : TERMS_AUTH;
  bool ours = s->security.own_flags & what;
  bool asked =
      (ours ? s->security.own_flags : s->peer.terms.flags) & TERMS_STRICT;
  if (!s->security.intact)
    return "";
  if (!asked)
    return " (by default, beyond loopback)";
  return ours ? " (asked for here)" : " (asked for by the peer)";
}

/* Tells how the peer over TCP was identified. Tickets were given at a path. */
static const char *who_it_is(const struct perigee_session *s) {
  if (session_moved(s))
    return "the same user, as the kernel told at the path that was dialed";
  return s->engine->secret->set ? "both sides proved the secret"
                                : "not authenticated (there is no secret)";
}

void proof_text(const struct perigee_session *s, char text[REASON]) {
  if (s->alone)
    snprintf(text, REASON,
             "the peer is who had the endpoint's information, "
             "not encrypted");
  else if (!s->tcp)
    snprintf(text, REASON,
             "the same user, as the kernel tells; encryption is off for shared "
             "memory and all else on one host");
  else
    snprintf(text, REASON, "%s, %s%s%s", who_it_is(s), protection_of(s),
             why_protected(s),
             s->engine->vault.refused
                 ? ", keys in memory that could not be locked"
                 : "");
}
