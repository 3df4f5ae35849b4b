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
 * wireup_steps.c has the table of its steps.
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

#include "host/adopted.h"
#include "session/migrate.h"
#include "session/unauth.h"
#include "wireup.h"

/* ---- Beginning ----------------------------------------------------------- */

/* Over a Unix socket: identifies the process there. If it is another user's, it
 * only learns that. Otherwise it is told the random bytes that it has to put
 * into its memory, for us to find (shm_probe). */
static void begin_here(struct perigee_session *s) {
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

static void begin(struct perigee_session *s) {
  s->handshake.nonce = engine_random(s->engine);
  session_begun(s, s->engine->options.hello_timeout);
  if (!s->tcp)
    begin_here(s);
  else if (s->dialed)
    wireup_say_hello(s);
}

/* A peer that waited for its turn all the time is told to try again. */
static void timeout(struct perigee_session *s) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {PERIGEE_AGAIN, CROWDED}};
  if (s->admission.waits)
    session_tell(s, &f, NULL, 0);
  session_end(s, PERIGEE_TIMEOUT,
              s->admission.waits
                  ? "its turn did not come in time, as others came"
                  : "the peer did not finish the handshake in time");
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
static int offer_or_move(struct perigee_session *s) {
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

static int heard_hello(struct perigee_session *s, const struct hello *h) {
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
static int heard_terms(struct perigee_session *s, const struct terms *t) {
  bool answers = s->tcp && !s->dialed;
  if (answers)
    choice_fabrics(s);
  if (!wireup_fits(s, t))
    return PERIGEE_OK;
  if (answers)
    wireup_say_terms(s);
  if (s->state == PERIGEE_SESSION_ENDED || (!s->tcp && unauth_wait(s)))
    return PERIGEE_OK;
  return offer_or_move(s);
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

/* A listener that drains says READY last. So the session is open here before its
 * peer can call, and the peer is told in time (session/drain.c). */
static bool ready_is_due(const struct perigee_session *s) {
  return lanes_complete(s) && (s->dialed || !s->engine->draining);
}

static int heard_offer(struct perigee_session *s, const struct frame *f) {
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
  if (wireup_joins(s, &offer) && ready_is_due(s))
    wireup_ready(s);
  return PERIGEE_OK;
}

/* READY also says that this side has joined all additional lanes. */
static int heard_extra(struct perigee_session *s, const struct extra *extra) {
  int status = lanes_heard(s, extra, peer_vouches(s));
  if (status == PERIGEE_OK && s->state == PERIGEE_SESSION_HELLO &&
      s->handshake.step == WIREUP_JOINED && ready_is_due(s))
    wireup_ready(s);
  return status;
}

static int untimely(struct perigee_session *s) {
  return s->tcp && s->handshake.step < WIREUP_PROVEN
             ? wireup_refuse(s, PERIGEE_PROTOCOL,
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
    return wireup_retry(s, &f->retry);
  case FRAME_PROOF:
    return wireup_proof(s, f->proof);
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
static int take_frame(struct perigee_session *s, const struct frame *f) {
  if (!wireup_timely(s, f->type))
    return untimely(s);
  s->socket.wire.corked = s->tcp;
  if (f->type != FRAME_HELLO)
    proof_word(s, false, f);
  int status = heard(s, f);
  session_uncork(s);
  return status;
}

static void take_turn(struct perigee_session *s) {
  s->engine->progress++;
  s->socket.wire.corked = s->tcp;
  if (s->tcp)
    wireup_meet(s);
  else
    offer_or_move(s);
  session_uncork(s);
  if (s->state == PERIGEE_SESSION_HELLO)
    session_frames(s);
}

const struct wireup_class wireup_class = {
    .begin = begin, .frame = take_frame, .turn = take_turn, .timeout = timeout};
