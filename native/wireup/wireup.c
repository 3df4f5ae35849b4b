/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup.c - the handshake that opens a session. The two sides exchange HELLO,
 * which tells only versions, nonces and keys; prove who they are; tell their
 * parameters by TERMS; OFFER their half of the transport; join the peer's half
 * and say READY. Over a Unix socket the kernel tells who the peer is (peer.c)
 * before any frame, so both sides say HELLO and TERMS at once. Over TCP the
 * listener is silent until it has received a HELLO, and then proves itself
 * first (peer.c).
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
 *                                TERMS before it; or MOVE (migrate.c)
 *   new       inform   known     without a socket: HELLO and TERMS came in
 *                                another way (endpoint.c)
 *   known     join     joined    OFFER came
 *   joined    ready    ready     EXTRA came for each additional lane
 *                                (lane_offers.c); READY
 *
 * The session is open when the peer's READY comes. REFUSE or BYE ends it. To
 * begin at another address puts the step back to new (session_back).
 *
 * Over TCP all frames after a side's PROOF are sealed (wire.h), and all frames
 * of the table are in the transcript of the session's key (handshake.h). A
 * frame that does not fit is answered by REFUSE, with a status and a reason
 * that both sides show to their users. Over TCP so is anything that is none of
 * these frames. Frames that answer one frame are sent together.
 *
 * Cookies. A crowded listener wants a cookie from a dialer before this side
 * computes anything for it: a MAC over its address and its HELLO, which a RETRY
 * gave to it a moment ago. Nothing is kept for the dialer but its socket. TCP
 * has proven the address already. The cookie proves that the dialer stays to
 * read an answer and says HELLO once more. A flood of HELLOs from dialers that
 * leave, or never read, costs two hashes each and no elliptic curve (some 100
 * us).
 */
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/least.h"
#include "host/adopted.h"
#include "wireup.h"

/* ---- Steps --------------------------------------------------------------- */

enum wireup_event { VOUCH, RETRY, MEET, PROVE, FIT, INFORM, JOIN, READY };

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

static void wireup_step(struct perigee_session *s, enum wireup_event event) {
  machine_step(&wireup_machine, &s->handshake.step, event);
}

/* May MOVE come? The dialer learns by it whether the session moves. */
static bool wireup_may_be_sent_on(const struct perigee_session *s) {
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

/* May a frame of this type come now? */
static bool wireup_is_timely(const struct perigee_session *s, int type) {
  if (!(receives[s->handshake.step] >> type & 1))
    return false;
  switch (type) {
  case FRAME_RETRY:
    return s->tcp && s->dialed;
  case FRAME_ATTACH:
    return s->tcp && !s->dialed;
  case FRAME_OFFER:
    return s->lane || wireup_may_be_sent_on(s);
  case FRAME_MOVE:
    return wireup_may_be_sent_on(s);
  case FRAME_READY:
    return lanes_complete(s);
  default:
    return true;
  }
}

/* ---- What each side tells of itself -------------------------------------- */

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

/* The peer may be told the same sentence, so it says which side is which. */
static void hello_no_common_version(const struct perigee_session *s,
                                    const struct hello *h,
                                    char reason[REASON]) {
  const char *own = s->dialed ? "dialer" : "listener";
  const char *other = s->dialed ? "listener" : "dialer";
  if (s->alone)
    own = "side here", other = "peer";
  snprintf(reason, REASON,
           "no common protocol version: the %s has %d to %d, the %s %u to %u",
           own, PROTOCOL_MIN, PROTOCOL_MAX, other, h->version_min,
           h->version_max);
}

/* Keep what the peer says, and check it: PERIGEE_OK, or a status and the reason
 * for which the session cannot be. */
static int hello_fits(struct perigee_session *s, const struct hello *h,
                      char reason[REASON]) {
  s->peer.hello = *h;
  s->peer.version =
      h->version_max < PROTOCOL_MAX ? h->version_max : PROTOCOL_MAX;
  if (!wire_foreign(h))
    return PERIGEE_OK;
  hello_no_common_version(s, h, reason);
  return PERIGEE_VERSION;
}

/* The dialer may have named the agent that it expects. The peer's name is in
 * the sealed TERMS: nobody in between can change it, so none can have one
 * worker answer in place of another. */
static int terms_check_name(const struct perigee_session *s,
                            const struct terms *t, char reason[REASON]) {
  if (!*s->target.name || strcmp(s->target.name, t->name) == 0)
    return PERIGEE_OK;
  snprintf(reason, REASON, "%s was dialled, and who answers %s%s",
           s->target.name, *t->name ? "is " : "goes by no name", t->name);
  return PERIGEE_DENIED;
}

/* Sets the agreed lengths of what travels in rings; false: nothing fits. */
static bool terms_limit(struct perigee_session *s, const struct terms *own) {
  const struct terms *t = &s->peer.terms;
  bool grows = s->transport && s->transport->grows;
  uint64_t ring = least(t->ring, own->ring);
  uint64_t most = grows ? UINT64_MAX : ring / 8;
  s->peer.eager = least(most, least(t->eager, own->eager));
  s->peer.heads[0] = least(t->message, s->peer.eager);
  s->peer.heads[1] = least(t->typed, s->peer.eager);
  return t->ring / 4 >= 128 && s->peer.eager <= t->ring / 4;
}

static int terms_fit(struct perigee_session *s, const struct terms *t,
                     char reason[REASON]) {
  struct terms own;
  s->peer.terms = *t;
  s->peer.features = t->features & s->engine->features;
  terms_own(s, &own);
  int status = terms_check_name(s, t, reason);
  if (status < 0)
    return status;
  migrate_met(s, t);
  const struct perigee_transport *both = choice_of(s, &own);
  if (!s->lane) /* that of an endpoint is open, perhaps with faults in it */
    s->transport = both;
  if (!terms_limit(s, &own)) {
    snprintf(reason, REASON, "the rings are too small");
    return PERIGEE_UNSUPPORTED;
  }
  migrate_agree(s, s->dialed ? &own : t, s->dialed ? t : &own);
  if (!both && s->migration.state != MIGRATION_AGREED)
    return choice_none(s, t, reason);
  if (s->tcp && (status = proof_terms(s, reason)) < 0)
    return status;
  if (lanes_agree(s, &own))
    return PERIGEE_OK;
  snprintf(reason, REASON, "no memory for the session's lanes");
  return PERIGEE_NO_MEMORY;
}

/* ---- Cookies ------------------------------------------------------------- */

enum { COOKIE_KEY = 32 };
/* A cookie is valid in the period in which it was made, and in the next. */
static const int64_t PERIOD = INT64_C(10000000000); /* ns */

_Static_assert(crypto_kdf_KEYBYTES == COOKIE_KEY,
               "keys of periods are derived");
_Static_assert(crypto_generichash_BYTES_MIN <= COOKIE, "a cookie is a hash");

static const uint8_t *cookie_key(struct perigee_engine *engine) {
  const struct perigee_options *o = &engine->options;
  uint8_t *key = engine->cookie_key;
  if (key)
    return key;
  key = vault_take(&engine->vault, COOKIE_KEY);
  if (key && o->random(o->context, key, COOKIE_KEY) != 0) {
    vault_give(&engine->vault, key, COOKIE_KEY);
    key = NULL;
  }
  return engine->cookie_key = key;
}

static uint64_t cookie_period(const struct perigee_engine *engine) {
  return (uint64_t)(engine->now / PERIOD);
}

static void cookie_add(crypto_generichash_state *state, const void *bytes,
                       size_t length) {
  crypto_generichash_update(state, bytes, length);
}

/* Hashes the fields; all have a fixed length but the address, which is last. */
static bool cookie_for(struct perigee_session *s, const struct hello *h,
                       uint64_t period, uint8_t cookie[COOKIE]) {
  uint8_t key[COOKIE_KEY];
  crypto_generichash_state state;
  const uint8_t *root = cookie_key(s->engine);
  if (!root)
    return false;
  crypto_kdf_derive_from_key(key, sizeof key, period, "pgcookie", root);
  crypto_generichash_init(&state, key, sizeof key, COOKIE);
  cookie_add(&state, &h->nonce, sizeof h->nonce);
  cookie_add(&state, h->challenge, sizeof h->challenge);
  cookie_add(&state, h->public_key, sizeof h->public_key);
  cookie_add(&state, s->peer.address, strlen(s->peer.address));
  crypto_generichash_final(&state, cookie, COOKIE);
  sodium_memzero(key, sizeof key);
  return true;
}

static bool cookie_make(struct perigee_session *s, const struct hello *h,
                        uint8_t cookie[COOKIE]) {
  return cookie_for(s, h, cookie_period(s->engine), cookie);
}

/* Does the HELLO have the right cookie? */
static bool cookie_shown(struct perigee_session *s, const struct hello *h) {
  uint8_t right[COOKIE];
  uint64_t period = cookie_period(s->engine);
  for (uint64_t back = 0; back < 2; back++)
    if (cookie_for(s, h, period - back, right) &&
        sodium_memcmp(right, h->cookie, COOKIE) == 0)
      return true;
  return false;
}

/* ---- Sending ------------------------------------------------------------- */

/* Sends a frame, and puts it into the transcript; the session may have ended
 * then. */
static void wireup_say(struct perigee_session *s, const struct frame *f) {
  proof_word(s, true, f);
  session_send(s, f, NULL, 0);
}

static void wireup_say_hello(struct perigee_session *s) {
  struct frame f = {.type = FRAME_HELLO};
  if (s->tcp && !proof_begin(s))
    return;
  hello_own(s, &f.hello);
  wireup_say(s, &f);
}

/* Only an authenticated peer can make this side look for devices. */
static void wireup_say_terms(struct perigee_session *s) {
  struct frame f = {.type = FRAME_TERMS};
  if (s->tcp)
    choice_fabrics(s);
  terms_own(s, &f.terms);
  wireup_say(s, &f);
}

/* The session cannot be opened here: one that moved goes back to the address
 * that was dialed first, every other one ends. */
static void wireup_fail(struct perigee_session *s, int status,
                        const char *reason) {
  if (!migrate_returns(s, status))
    session_end(s, status, reason);
}

/* Fails the session, and tells the peer why. Returns PERIGEE_OK. */
static int wireup_refuse(struct perigee_session *s, int status,
                         const char *reason) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {.status = status}};
  snprintf(f.refuse.text, sizeof f.refuse.text, "%s", reason);
  session_tell(s, &f, NULL, 0);
  wireup_fail(s, status, reason);
  return PERIGEE_OK;
}

static void wireup_say_offer(struct perigee_session *s) {
  struct frame f = {.type = FRAME_OFFER};
  char reason[REASON];
  int status = choice_open(s, &f.offer, reason);
  if (status < 0) {
    wireup_refuse(s, status, reason);
    return;
  }
  if (s->tcp && (s->engine->secret->set || session_moved(s)))
    unauth_leave(s); /* from here on the peer's share counts it */
  proof_word(s, true, &f);
  session_send(s, &f, f.offer.fds, f.offer.fd_count);
  for (uint32_t i = 0; i < f.offer.fd_count; i++)
    close(f.offer.fds[i]);
  lanes_offer(s);
}

/* ---- Beginning ----------------------------------------------------------- */

/* Over a Unix socket: identifies the process there. A process of another user
 * only learns that. Otherwise it is told the random bytes that it has to put
 * into its memory, for us to find (shm_probe). */
static void wireup_begin_here(struct perigee_session *s) {
  char reason[REASON];
  int status = peer_take(s, reason);
  if (status < 0) {
    wireup_refuse(s, status, reason);
    return;
  }
  for (int i = 0; i < 2; i++)
    s->handshake.probe[i] = engine_random(s->engine);
  wireup_say_hello(s);
  if (s->state == PERIGEE_SESSION_HELLO)
    wireup_say_terms(s);
}

static void wireup_due(struct timer *timer);

static void wireup_begin(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  s->handshake.nonce = engine_random(engine);
  session_begun(s);
  s->handshake.deadline.expired = wireup_due;
  timers_add(&engine->timers, &s->handshake.deadline,
             time_after(engine_clock(engine), engine->options.hello_timeout));
  if (!s->tcp)
    wireup_begin_here(s);
  else if (s->dialed)
    wireup_say_hello(s);
}

/* A peer that waited for its turn all the time is told to try again. */
static void wireup_time_out(struct perigee_session *s) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, CROWDED}};
  if (s->admission.waits)
    session_tell(s, &f, NULL, 0);
  wireup_fail(s, PERIGEE_TIMEOUT,
              s->admission.waits
                  ? "its turn did not come in time, as others came"
                  : "the peer did not finish the handshake in time");
}

/* Reads the socket first: if this side was stopped for a while, the answer may
 * have come in time. */
static void wireup_due(struct timer *timer) {
  struct perigee_session *s =
      CONTAINER(timer, struct perigee_session, handshake.deadline);
  socket_look(s);
  if (s->state == PERIGEE_SESSION_HELLO && !timer->next)
    wireup_time_out(s);
}

/* ---- Over TCP, until the peer is proven ---------------------------------- */

/* In a crowd nothing is computed or kept before the cookie was shown. */
static int wireup_send_back(struct perigee_session *s, const struct hello *h) {
  struct frame f = {.type = FRAME_RETRY};
  if (cookie_make(s, h, f.retry.cookie))
    session_send(s, &f, NULL, 0);
  return PERIGEE_OK;
}

/* Both HELLOs are there: agrees on keys. */
static int wireup_meet(struct perigee_session *s) {
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

static int wireup_met(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  if (!s->dialed && unauth_crowded(s->engine) && !cookie_shown(s, h))
    return wireup_send_back(s, h);
  int status = migrate_admits(s, h, reason);
  if (status < 0)
    return wireup_refuse(s, status, reason);
  return unauth_wait(s) ? PERIGEE_OK : wireup_meet(s);
}

static int wireup_retry(struct perigee_session *s, const struct retry *retry) {
  wireup_step(s, RETRY);
  memcpy(s->handshake.cookie, retry->cookie, sizeof s->handshake.cookie);
  wireup_say_hello(s);
  return PERIGEE_OK;
}

static int wireup_proof(struct perigee_session *s, const uint8_t *proof) {
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

/* ---- Receiving ----------------------------------------------------------- */

bool wireup_common(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  int status = hello_fits(s, h, reason);
  if (status < 0)
    wireup_refuse(s, status, reason);
  return status == PERIGEE_OK;
}

bool wireup_fits(struct perigee_session *s, const struct terms *t) {
  char reason[REASON];
  int status = terms_fit(s, t, reason);
  if (status < 0)
    wireup_refuse(s, status, reason);
  else
    wireup_step(s, s->alone ? INFORM : FIT);
  return status == PERIGEE_OK;
}

/* The peer is authenticated. The listener decides whether the session moves;
 * the dialer waits for that, if the session may move. */
static int wireup_offer_or_move(struct perigee_session *s) {
  if (s->migration.state == MIGRATION_AGREED && (s->dialed || migrate_call(s)))
    return PERIGEE_OK;
  migrate_stays(s);
  if (s->transport) {
    wireup_say_offer(s);
    return PERIGEE_OK;
  }
  return wireup_refuse(s, PERIGEE_NO_MEMORY,
                       "too many sessions move to shared memory at once");
}

static int wireup_heard_hello(struct perigee_session *s,
                              const struct hello *h) {
  char reason[REASON];
  if (!wireup_common(s, h))
    return PERIGEE_OK;
  if (s->tcp)
    return wireup_met(s, h);
  int status = migrate_admits(s, h, reason);
  if (status < 0)
    return wireup_refuse(s, status, reason);
  wireup_step(s, VOUCH);
  return PERIGEE_OK;
}

/* Over TCP the listener sends its TERMS only to a peer that may stay. */
static int wireup_heard_terms(struct perigee_session *s,
                              const struct terms *t) {
  bool answers = s->tcp && !s->dialed;
  if (answers)
    choice_fabrics(s);
  if (!wireup_fits(s, t))
    return PERIGEE_OK;
  if (answers)
    wireup_say_terms(s);
  if (s->state == PERIGEE_SESSION_ENDED || (!s->tcp && unauth_wait(s)))
    return PERIGEE_OK;
  return wireup_offer_or_move(s);
}

bool wireup_joins(struct perigee_session *s, const struct offer *offer) {
  char reason[REASON] = "";
  int status = s->transport->join(s->lane, offer, reason);
  if (status < 0)
    wireup_refuse(s, status,
                  *reason
                      ? reason
                      : "the peer's half of the transport is not what it said");
  else
    wireup_step(s, JOIN);
  return status == PERIGEE_OK;
}

void wireup_ready(struct perigee_session *s) {
  struct frame f = {.type = FRAME_READY};
  f.pull = lane_pulls(s->lane);
  wireup_step(s, READY);
  wireup_say(s, &f);
}

/* A listener that drains says READY last. So the session is open here before
 * its peer can call, and the peer is told in time (session/drain.c). */
static bool wireup_ready_is_due(const struct perigee_session *s) {
  return lanes_complete(s) && (s->dialed || !s->engine->draining);
}

static int wireup_heard_offer(struct perigee_session *s,
                              const struct frame *f) {
  struct offer offer = f->offer;
  offer.vouched = peer_vouches(s);
  if (s->migration.state == MIGRATION_AGREED) { /* it does not move */
    migrate_stays(s);
    if (!s->transport)
      return PERIGEE_PROTOCOL;
    wireup_say_offer(s);
    if (!s->lane)
      return PERIGEE_OK;
  }
  for (uint32_t i = 0; i < offer.fd_count; i++)
    if ((offer.fds[i] = wire_take_fd(&s->socket.wire)) < 0) {
      while (i-- > 0)
        adopted_close(offer.fds[i]);
      return PERIGEE_PROTOCOL;
    }
  if (wireup_joins(s, &offer) && wireup_ready_is_due(s))
    wireup_ready(s);
  return PERIGEE_OK;
}

/* READY also says that this side has joined all additional lanes. */
static int wireup_heard_extra(struct perigee_session *s,
                              const struct extra *extra) {
  int status = lanes_heard(s, extra, peer_vouches(s));
  if (status == PERIGEE_OK && s->state == PERIGEE_SESSION_HELLO &&
      s->handshake.step == WIREUP_JOINED && wireup_ready_is_due(s))
    wireup_ready(s);
  return status;
}

static int wireup_refuse_untimely(struct perigee_session *s) {
  return s->tcp && s->handshake.step < WIREUP_PROVEN
             ? wireup_refuse(s, PERIGEE_PROTOCOL,
                             "this came before it was known who sent it")
             : PERIGEE_PROTOCOL;
}

static int wireup_heard_ready(struct perigee_session *s, uint32_t pull) {
  if (lane_payloads(s->lane)->set_peer_pulls)
    lane_payloads(s->lane)->set_peer_pulls(s->lane, pull != 0);
  if (s->handshake.step == WIREUP_JOINED)
    wireup_ready(s);
  if (s->state == PERIGEE_SESSION_HELLO && streams_take(s))
    session_opened(s);
  return PERIGEE_OK;
}

/* The text is shown to users and may come from anybody: all but printable
 * characters become '?', so that it cannot move a cursor or end a line. */
static int wireup_heard_refuse(struct perigee_session *s,
                               const struct refuse *r) {
  char reason[REFUSE_TEXT + 32];
  if (r->status == PERIGEE_AGAIN) {
    migrate_stays(s);
    if (session_dial_again(s))
      return PERIGEE_OK;
  }
  snprintf(reason, sizeof reason, "the peer refused: %s", r->text);
  for (char *c = reason; *c; c++)
    if (*c < ' ' || *c > '~')
      *c = '?';
  wireup_fail(s, status_of_peer(r->status), reason);
  return PERIGEE_OK;
}

/* If the session has ended here, or this side has not received its READY yet,
 * as that comes by another connection, closing this one tells the dialer: its
 * lane does without the stream, and reads no frames. */
static int wireup_heard_attach(struct perigee_session *s,
                               const struct attach *a) {
  if (attach_asked(s, a) != PERIGEE_OK)
    session_end(s, PERIGEE_DENIED, "there is no session to be part of");
  return PERIGEE_OK;
}

static int wireup_heard(struct perigee_session *s, const struct frame *f) {
  switch (f->type) {
  case FRAME_HELLO:
    return wireup_heard_hello(s, &f->hello);
  case FRAME_RETRY:
    return wireup_retry(s, &f->retry);
  case FRAME_PROOF:
    return wireup_proof(s, f->proof);
  case FRAME_TERMS:
    return wireup_heard_terms(s, &f->terms);
  case FRAME_OFFER:
    return wireup_heard_offer(s, f);
  case FRAME_MOVE:
    return migrate_called(s, &f->move);
  case FRAME_EXTRA:
    return wireup_heard_extra(s, &f->extra);
  case FRAME_READY:
    return wireup_heard_ready(s, f->pull);
  case FRAME_ATTACH:
    return wireup_heard_attach(s, &f->attach);
  case FRAME_REFUSE:
    return wireup_heard_refuse(s, &f->refuse);
  case FRAME_BYE:
    wireup_fail(s, PERIGEE_PEER_LOST, "the peer closed the session");
    return PERIGEE_OK;
  default:
    return PERIGEE_OK;
  }
}

/* A HELLO enters the transcript once it is known that it will be answered. */
static int wireup_take_frame(struct perigee_session *s, const struct frame *f) {
  if (!wireup_is_timely(s, f->type))
    return wireup_refuse_untimely(s);
  s->socket.wire.corked = s->tcp;
  if (f->type != FRAME_HELLO)
    proof_word(s, false, f);
  int status = wireup_heard(s, f);
  session_uncork(s);
  return status;
}

static void wireup_take_turn(struct perigee_session *s) {
  s->engine->progress++;
  s->socket.wire.corked = s->tcp;
  if (s->tcp)
    wireup_meet(s);
  else
    wireup_offer_or_move(s);
  session_uncork(s);
  if (s->state == PERIGEE_SESSION_HELLO)
    session_frames(s);
}

const struct wireup_class wireup_class = {.begin = wireup_begin,
                                          .frame = wireup_take_frame,
                                          .turn = wireup_take_turn,
                                          .fail = wireup_fail};
