/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup.c - the handshake that opens a session. The two sides exchange HELLO,
 * which tells only versions, nonces and keys; prove who they are; tell their
 * parameters by TERMS; OFFER their half of the transport; join the peer's half
 * and say READY. Over a Unix socket the kernel tells who the peer is (peer.c)
 * before any frame, so both sides say HELLO and TERMS at once. Over TCP the
 * listener is silent until it has received a HELLO, and then proves itself
 * first (proof.c).
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
 *
 * When the peer's READY comes the session is open. REFUSE or BYE ends it. To
 * begin at another address puts the step back to new (session_back).
 *
 * Over TCP all frames after a side's PROOF are sealed (wire.h), and all frames
 * of the table are in the transcript of the session's key (handshake.h). A
 * frame that does not fit is answered by REFUSE, with a status and a reason
 * that both sides show to their users. Over TCP so is anything that is none of
 * these frames. Frames that answer one frame are sent together.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/adopted.h"
#include "migrate.h"
#include "unauth.h"

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

static void step(struct perigee_session *s, enum wireup_event event) {
  machine_step(&wireup_machine, &s->handshake.step, event);
}

/* ---- Sending ------------------------------------------------------------- */

void wireup_own(struct perigee_session *s, struct hello *h) {
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

static void say(struct perigee_session *s, const struct frame *f) {
  proof_word(s, true, f);
  session_send(s, f, NULL, 0);
}

static void say_hello(struct perigee_session *s) {
  struct frame f = {.type = FRAME_HELLO};
  if (s->tcp) {
    proof_say_hello(s);
    return;
  }
  wireup_own(s, &f.hello);
  say(s, &f);
}

/* Only an authenticated peer can make this side look for devices. */
static void say_terms(struct perigee_session *s) {
  struct frame f = {.type = FRAME_TERMS};
  if (s->tcp)
    choice_fabrics(s);
  terms_own(s, &f.terms);
  say(s, &f);
}

static int refuse(struct perigee_session *s, int status, const char *reason) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {.status = status}};
  snprintf(f.refuse.text, sizeof f.refuse.text, "%s", reason);
  session_tell(s, &f, NULL, 0);
  session_end(s, status, reason);
  return PERIGEE_OK;
}

/* Over a Unix socket: identifies the process there. If it is another user's, it
 * only learns that. Otherwise it is told the random bytes that it has to put
 * into its memory, for us to find (shm_probe). */
static void begin_here(struct perigee_session *s) {
  char reason[REASON];
  int status = peer_take(s, reason);
  if (status < 0) {
    refuse(s, status, reason);
    return;
  }
  for (int i = 0; i < 2; i++)
    s->handshake.probe[i] = engine_random(s->engine);
  say_hello(s);
  if (s->state == PERIGEE_SESSION_HELLO)
    say_terms(s);
}

void wireup_begin(struct perigee_session *s) {
  s->handshake.nonce = engine_random(s->engine);
  session_begun(s, s->engine->options.hello_timeout);
  if (!s->tcp)
    begin_here(s);
  else if (s->dialed)
    say_hello(s);
}

/* A peer that waited for its turn all the time is told to try again. */
void wireup_timeout(struct perigee_session *s) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, CROWDED}};
  if (s->admission.waits)
    session_tell(s, &f, NULL, 0);
  session_end(s, PERIGEE_TIMEOUT,
              s->admission.waits
                  ? "its turn did not come in time, as others came"
                  : "the peer did not finish the handshake in time");
}

/* ---- Receiving ----------------------------------------------------------- */

static int send_offer(struct perigee_session *s) {
  struct frame f = {.type = FRAME_OFFER};
  char reason[REASON];
  int status = wireup_open(s, &f.offer, reason);
  if (status < 0)
    return refuse(s, status, reason);
  if (s->tcp && (s->engine->secret->set || session_moved(s)))
    unauth_leave(s); /* from here on the peer's share counts it */
  proof_word(s, true, &f);
  session_send(s, &f, f.offer.fds, f.offer.fd_count);
  for (uint32_t i = 0; i < f.offer.fd_count; i++)
    close(f.offer.fds[i]);
  lanes_offer(s);
  return PERIGEE_OK;
}

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

bool wireup_common(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  s->peer.hello = *h;
  s->peer.version =
      h->version_max < PROTOCOL_MAX ? h->version_max : PROTOCOL_MAX;
  if (!wire_foreign(h))
    return true;
  no_common_version(s, h, reason);
  refuse(s, PERIGEE_VERSION, reason);
  return false;
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

/* Returns a status and the reason if the TERMS do not fit. */
static int check_terms(struct perigee_session *s, const struct terms *t,
                       char reason[REASON]) {
  struct terms own;
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

bool wireup_fits(struct perigee_session *s, const struct terms *t) {
  char reason[REASON];
  s->peer.terms = *t;
  s->peer.features = t->features & s->engine->features;
  int status = check_terms(s, t, reason);
  if (status < 0)
    refuse(s, status, reason);
  else
    step(s, s->alone ? INFORM : FIT);
  return status == PERIGEE_OK;
}

/* In a crowd nothing is computed or kept before the cookie was shown. */
static int send_back(struct perigee_session *s, const struct hello *h) {
  struct frame f = {.type = FRAME_RETRY};
  if (cookie_make(s, h, f.retry.cookie))
    session_send(s, &f, NULL, 0);
  return PERIGEE_OK;
}

/* Both HELLOs are there: agrees on keys. */
static int meet(struct perigee_session *s) {
  struct frame f = {.type = FRAME_HELLO, .hello = s->peer.hello};
  char reason[REASON];
  if (!s->dialed)
    say_hello(s);
  if (s->state == PERIGEE_SESSION_ENDED)
    return PERIGEE_OK;
  proof_word(s, false, &f);
  int status = proof_agree(s, reason);
  if (status < 0)
    return refuse(s, status, reason);
  step(s, MEET);
  if (!s->dialed)
    proof_say(s);
  return PERIGEE_OK;
}

static int met_over_tcp(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  if (!s->dialed && unauth_crowded(s->engine) && !cookie_shown(s, h))
    return send_back(s, h);
  int status = migrate_admits(s, h, reason);
  if (status < 0)
    return refuse(s, status, reason);
  return unauth_wait(s) ? PERIGEE_OK : meet(s);
}

static int heard_retry(struct perigee_session *s, const struct retry *retry) {
  step(s, RETRY);
  memcpy(s->handshake.cookie, retry->cookie, sizeof s->handshake.cookie);
  say_hello(s);
  return PERIGEE_OK;
}

/* The peer is authenticated. The listener decides whether the session moves;
 * the dialer waits for that, if the session may move. */
static int offer_or_move(struct perigee_session *s) {
  if (s->migration.state == MIGRATION_AGREED && (s->dialed || migrate_call(s)))
    return PERIGEE_OK;
  migrate_stays(s);
  if (s->transport)
    return send_offer(s);
  return refuse(s, PERIGEE_NO_MEMORY,
                "too many sessions move to shared memory at once");
}

static int heard_hello(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  if (!wireup_common(s, h))
    return PERIGEE_OK;
  if (s->tcp)
    return met_over_tcp(s, h);
  int status = migrate_admits(s, h, reason);
  if (status < 0)
    return refuse(s, status, reason);
  step(s, VOUCH);
  return PERIGEE_OK;
}

static int heard_proof(struct perigee_session *s, const uint8_t *proof) {
  char reason[REASON];
  int status = proof_heard(s, proof, reason);
  if (status < 0)
    return refuse(s, status, reason);
  step(s, PROVE);
  if (!s->dialed)
    return PERIGEE_OK;
  proof_say(s);
  if (s->state != PERIGEE_SESSION_ENDED)
    say_terms(s);
  return PERIGEE_OK;
}

/* Over TCP the listener sends its TERMS only to a peer that may stay. */
static int heard_terms(struct perigee_session *s, const struct terms *t) {
  bool answers = s->tcp && !s->dialed;
  if (answers)
    choice_fabrics(s);
  if (!wireup_fits(s, t))
    return PERIGEE_OK;
  if (answers)
    say_terms(s);
  if (s->state == PERIGEE_SESSION_ENDED || (!s->tcp && unauth_wait(s)))
    return PERIGEE_OK;
  return offer_or_move(s);
}

bool wireup_joins(struct perigee_session *s, const struct offer *offer) {
  char reason[REASON] = "";
  int status = s->transport->join(s->lane, offer, reason);
  if (status < 0)
    refuse(s, status,
           *reason ? reason
                   : "the peer's half of the transport is not what it said");
  else
    step(s, JOIN);
  return status == PERIGEE_OK;
}

void wireup_ready(struct perigee_session *s) {
  struct frame f = {.type = FRAME_READY};
  f.pull = lane_pulls(s->lane);
  step(s, READY);
  say(s, &f);
}

static int heard_offer(struct perigee_session *s, const struct frame *f) {
  struct offer offer = f->offer;
  offer.vouched = peer_vouches(s);
  if (s->migration.state == MIGRATION_AGREED) { /* it does not move */
    migrate_stays(s);
    if (!s->transport)
      return PERIGEE_PROTOCOL;
    send_offer(s);
    if (!s->lane)
      return PERIGEE_OK;
  }
  for (uint32_t i = 0; i < offer.fd_count; i++)
    if ((offer.fds[i] = wire_take_fd(&s->socket.wire)) < 0) {
      while (i-- > 0)
        adopted_close(offer.fds[i]);
      return PERIGEE_PROTOCOL;
    }
  if (wireup_joins(s, &offer) && lanes_complete(s))
    wireup_ready(s);
  return PERIGEE_OK;
}

/* READY also says that this side has joined all additional lanes. */
static int heard_extra(struct perigee_session *s, const struct extra *extra) {
  int status = lanes_heard(s, extra, peer_vouches(s));
  if (status == PERIGEE_OK && s->state == PERIGEE_SESSION_HELLO &&
      s->handshake.step == WIREUP_JOINED && lanes_complete(s))
    wireup_ready(s);
  return status;
}

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

/* May a frame of this type come now? */
static bool timely(const struct perigee_session *s, int type) {
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

static int untimely(struct perigee_session *s) {
  return s->tcp && s->handshake.step < WIREUP_PROVEN
             ? refuse(s, PERIGEE_PROTOCOL,
                      "this came before it was known who sent it")
             : PERIGEE_PROTOCOL;
}

static int heard_ready(struct perigee_session *s, uint32_t pull) {
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
static int heard_refuse(struct perigee_session *s, const struct refuse *r) {
  char reason[REFUSE_TEXT + 32];
  if (r->status == PERIGEE_AGAIN && dial_again(s))
    return PERIGEE_OK;
  snprintf(reason, sizeof reason, "the peer refused: %s", r->text);
  for (char *c = reason; *c; c++)
    if (*c < ' ' || *c > '~')
      *c = '?';
  session_end(s, status_of_peer(r->status), reason);
  return PERIGEE_OK;
}

/* If the session has ended here, or this side has not received its READY yet,
 * as that comes by another connection, closing this one tells the dialer: its
 * lane does without the stream, and reads no frames. */
static int heard_attach(struct perigee_session *s, const struct attach *a) {
  if (attach_asked(s, a) != PERIGEE_OK)
    session_end(s, PERIGEE_DENIED, "there is no session to be part of");
  return PERIGEE_OK;
}

static int heard(struct perigee_session *s, const struct frame *f) {
  switch (f->type) {
  case FRAME_HELLO:
    return heard_hello(s, &f->hello);
  case FRAME_RETRY:
    return heard_retry(s, &f->retry);
  case FRAME_PROOF:
    return heard_proof(s, f->proof);
  case FRAME_TERMS:
    return heard_terms(s, &f->terms);
  case FRAME_OFFER:
    return heard_offer(s, f);
  case FRAME_MOVE:
    return migrate_called(s, &f->move);
  case FRAME_EXTRA:
    return heard_extra(s, &f->extra);
  case FRAME_READY:
    return heard_ready(s, f->pull);
  case FRAME_ATTACH:
    return heard_attach(s, &f->attach);
  case FRAME_REFUSE:
    return heard_refuse(s, &f->refuse);
  case FRAME_BYE:
    session_end(s, PERIGEE_PEER_LOST, "the peer closed the session");
    return PERIGEE_OK;
  default:
    return PERIGEE_OK;
  }
}

/* A HELLO enters the transcript once it is known that it will be answered. */
int wireup_frame(struct perigee_session *s, const struct frame *f) {
  if (!timely(s, f->type))
    return untimely(s);
  s->socket.wire.corked = s->tcp;
  if (f->type != FRAME_HELLO)
    proof_word(s, false, f);
  int status = heard(s, f);
  session_uncork(s);
  return status;
}

void wireup_turn(struct perigee_session *s) {
  s->engine->progress++;
  s->socket.wire.corked = s->tcp;
  if (s->tcp)
    meet(s);
  else
    offer_or_move(s);
  session_uncork(s);
  if (s->state == PERIGEE_SESSION_HELLO)
    session_frames(s);
}
