/* SPDX-License-Identifier: Apache-2.0
 *
 * hello.c - how two strangers become a session. Each checks the other's HELLO,
 * opens its half of the transport and OFFERs it; joins the peer's half and says
 * READY. Over a Unix socket the kernel tells who the peer is (peer.c), and
 * both say HELLO at once. Over TCP who was dialed is silent until it has heard a HELLO, and
 * both prove who they are (proof.c).
 *
 *   step      hears     becomes   and says
 *   strange   HELLO     known     OFFER                    (Unix)
 *   strange   HELLO     met       PROOF                    (TCP, who dialed)
 *   strange   HELLO     met       HELLO                    (TCP, who was dialed)
 *   met       PROOF     known     OFFER                    (who dialed)
 *   met       PROOF     known     PROOF, OFFER             (who was dialed)
 *   known     OFFER     joined    READY
 *   known     MOVE      strange   BYE, and HELLO at another socket (neighbour.h)
 *   joined    READY               the session is open
 *   any       REFUSE, BYE         the session has ended
 *
 * Whatever does not fit is REFUSEd with a status and a reason that both sides
 * show to their users. So is a frame that is none of these over TCP, where
 * nothing else is understood of a stranger.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "neighbour.h"

/* ---- Saying hello ------------------------------------------------------- */

void hello_own(struct perigee_session *s, struct hello *h) {
  const struct perigee_options *o = &s->engine->options;
  *h = (struct hello){.magic = HELLO_MAGIC,
                      .version_min = PROTOCOL_MIN,
                      .version_max = PROTOCOL_MAX,
                      .epoch = s->engine->epoch,
                      .nonce = s->nonce,
                      .ring = o->ring,
                      .eager = o->eager,
                      .message = o->message,
                      .typed = o->typed,
                      .operations = o->operations,
                      .dead_after = liveness_told(s->engine)};
  memcpy(h->probe, s->probe, sizeof h->probe);
  choice_list(s, h);
  neighbour_hello(s, h);
}

static void say_hello(struct perigee_session *s) {
  struct frame f = {.type = FRAME_HELLO};
  hello_own(s, &f.hello);
  if (s->tcp && proof_hello(s, &f) < 0)
    session_end(s, PERIGEE_SYSTEM, "there is no randomness to be had");
  else
    session_send(s, &f, NULL, 0);
}

static int refuse(struct perigee_session *s, int status, const char *reason) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {.status = status}};
  snprintf(f.refuse.text, sizeof f.refuse.text, "%s", reason);
  session_tell(s, &f, NULL, 0);
  session_end(s, status, reason);
  return PERIGEE_OK;
}

/* Over a Unix socket: the process there, and what it is to put into its memory
 * for us to find (shm_probe). Strangers over TCP may be anywhere. */
static int meet_process(struct perigee_session *s, char reason[REASON]) {
  for (int i = 0; i < 2; i++)
    s->probe[i] = engine_random(s->engine);
  return peer_take(s, reason);
}

void hello_begin(struct perigee_session *s) {
  char reason[REASON];
  s->nonce = engine_random(s->engine);
  s->devices = s->tcp && s->dialed && choice_devices(s->engine);
  session_begun(s, s->engine->options.hello_timeout);
  int status = s->tcp ? PERIGEE_OK : meet_process(s, reason);
  if (status < 0)
    refuse(s, status, reason);
  else if (!s->tcp || s->dialed)
    say_hello(s);
}

void hello_timeout(struct perigee_session *s) {
  session_end(s, PERIGEE_TIMEOUT, "the peer did not finish its hello in time");
}

/* ---- Hearing it --------------------------------------------------------- */

static int send_offer(struct perigee_session *s) {
  struct frame f = {.type = FRAME_OFFER};
  char reason[REASON];
  int status = hello_open(s, &f.offer, reason);
  if (status < 0)
    return refuse(s, status, reason);
  session_send(s, &f, f.offer.fds, f.offer.fd_count);
  for (uint32_t i = 0; i < f.offer.fd_count; i++)
    close(f.offer.fds[i]);
  return PERIGEE_OK;
}

/* What does not fit: a status and why. */
static int check_hello(struct perigee_session *s, const struct hello *h,
                       char reason[REASON]) {
  struct hello own;
  hello_own(s, &own);
  if (wire_foreign(h)) {
    snprintf(reason, REASON,
             "no common protocol version: %d to %d here, %u to %u there",
             PROTOCOL_MIN, PROTOCOL_MAX, h->version_min, h->version_max);
    return PERIGEE_VERSION;
  }
  s->version = h->version_max < PROTOCOL_MAX ? h->version_max : PROTOCOL_MAX;
  s->eager = h->eager < own.eager ? h->eager : own.eager;
  if (h->ring / 4 < 128 || s->eager > h->ring / 4 - 128) {
    snprintf(reason, REASON, "the rings are too small");
    return PERIGEE_UNSUPPORTED;
  }
  int status = neighbour_met(s, h, reason);
  if (status < 0)
    return status;
  s->transport = choice_of(s, &own);
  s->moves = neighbour_moves(s, s->dialed ? &own : h, s->dialed ? h : &own);
  return s->transport || s->moves ? PERIGEE_OK : choice_none(s, h, reason);
}

bool hello_fits(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  s->hello = *h;
  int status = check_hello(s, h, reason);
  if (status < 0)
    refuse(s, status, reason);
  return status == PERIGEE_OK;
}

/* The key of the proofs, when both HELLOs are there. */
static int agree(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  int status = proof_agree(s, h, reason);
  if (status == PERIGEE_OK && s->sealed && s->transport &&
      !s->transport->take) {
    snprintf(reason, REASON, "encryption is wanted, and %s cannot do that",
             s->transport->name);
    status = PERIGEE_UNSUPPORTED;
  }
  if (status < 0)
    return refuse(s, status, reason);
  s->step = HELLO_MET;
  if (s->dialed)
    proof_say(s);
  return PERIGEE_OK;
}

static int meet(struct perigee_session *s) {
  if (!s->dialed)
    say_hello(s);
  return s->state == PERIGEE_SESSION_ENDED ? PERIGEE_OK : agree(s, &s->hello);
}

/* Who was dialed says its own only to a peer that may stay. */
static int met_over_tcp(struct perigee_session *s, const struct hello *h) {
  char reason[REASON];
  int status;
  if (!s->dialed && !wire_foreign(h))
    s->devices = choice_devices(s->engine);
  if (!hello_fits(s, h))
    return PERIGEE_OK;
  status = proof_wanted(s, h, reason);
  if (status < 0)
    return refuse(s, status, reason);
  return strangers_wait(s) ? PERIGEE_OK : meet(s);
}

/* The peer is known. Who was dialed says whether the session moves; who dialed
 * waits for that, if it may. */
static int offer_or_move(struct perigee_session *s) {
  if (s->moves && (s->dialed || neighbour_call(s)))
    return PERIGEE_OK;
  s->moves = false;
  if (s->transport)
    return send_offer(s);
  return refuse(s, PERIGEE_NO_MEMORY,
                "too many sessions move to shared memory at once");
}

static int heard_hello(struct perigee_session *s, const struct hello *h) {
  if (s->tcp)
    return met_over_tcp(s, h);
  if (!hello_fits(s, h))
    return PERIGEE_OK;
  s->step = HELLO_KNOWN;
  return strangers_wait(s) ? PERIGEE_OK : offer_or_move(s);
}

void hello_turn(struct perigee_session *s) {
  s->engine->progress++;
  int status = s->tcp ? meet(s) : offer_or_move(s);
  if (status < 0)
    session_end(s, PERIGEE_PROTOCOL, "the peer's hello is none");
  else if (s->state == PERIGEE_SESSION_HELLO)
    session_frames(s);
}

static int heard_proof(struct perigee_session *s, const uint8_t *proof) {
  if (!proof_holds(s, proof))
    return refuse(s, PERIGEE_DENIED,
                  s->engine->secret.set
                      ? "the secret, or the scope, is another"
                      : "the proof does not fit what was said: it was changed "
                        "on the way, or the scope is another");
  s->step = HELLO_KNOWN;
  if (s->engine->secret.set || s->ticket)
    strangers_leave(s);
  return offer_or_move(s);
}

bool hello_joins(struct perigee_session *s, const struct offer *offer) {
  char reason[REASON] = "";
  int status = s->transport->join(s->lane, offer, reason);
  if (status < 0)
    refuse(s, status,
           *reason ? reason
                   : "the peer's half of the transport is not what it said");
  s->joined = status == PERIGEE_OK;
  return s->joined;
}

void hello_ready(struct perigee_session *s) {
  struct frame f = {.type = FRAME_READY};
  f.pull = s->transport->pulls(s->lane);
  s->ready_said = true;
  session_send(s, &f, NULL, 0);
}

static int heard_offer(struct perigee_session *s, const struct frame *f) {
  struct offer offer = f->offer;
  if (s->moves) { /* it does not */
    s->moves = false;
    if (!s->transport)
      return PERIGEE_PROTOCOL;
    send_offer(s);
    if (!s->lane)
      return PERIGEE_OK;
  }
  for (uint32_t i = 0; i < offer.fd_count; i++)
    if ((offer.fds[i] = wire_take_fd(&s->wire)) < 0) {
      while (i-- > 0)
        close(offer.fds[i]);
      return PERIGEE_PROTOCOL;
    }
  if (hello_joins(s, &offer))
    hello_ready(s);
  return PERIGEE_OK;
}

/* Is it a frame that may come now? */
static bool timely(const struct perigee_session *s, int type) {
  switch (type) {
  case FRAME_HELLO:
    return s->step == HELLO_STRANGE && !s->alone;
  case FRAME_PROOF:
    return s->step == HELLO_MET;
  case FRAME_OFFER:
    return s->step == HELLO_KNOWN && (s->lane || (s->moves && s->dialed)) &&
           !s->joined;
  case FRAME_MOVE:
    return s->step == HELLO_KNOWN && s->moves && s->dialed;
  case FRAME_READY:
    return s->joined;
  case FRAME_WAKE:
  case FRAME_PING:
    return s->joined;
  case FRAME_ATTACH:
    return s->tcp && !s->dialed && s->step == HELLO_STRANGE;
  default:
    return type == FRAME_REFUSE || type == FRAME_BYE;
  }
}

static int untimely(struct perigee_session *s) {
  return s->tcp && s->step != HELLO_KNOWN
             ? refuse(s, PERIGEE_PROTOCOL,
                      "this came before it was known who sent it")
             : PERIGEE_PROTOCOL;
}

static int heard_ready(struct perigee_session *s, uint32_t pull) {
  s->transport->set_peer_pulls(s->lane, pull != 0);
  if (!s->ready_said)
    hello_ready(s);
  if (s->state == PERIGEE_SESSION_HELLO && streams_take(s))
    session_opened(s);
  return PERIGEE_OK;
}

/* The text is for people, and may be of anybody: nothing in it moves a cursor
 * or ends a line. */
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

/* Who dialed for a session that has ended here, or that this side has not heard
 * to be ready yet, as the word of it goes by another connection, is told by the
 * end of this one: its lane does without the stream, and reads no frames. */
static int heard_attach(struct perigee_session *s, const struct attach *a) {
  if (attach_asked(s, a) != PERIGEE_OK)
    session_end(s, PERIGEE_DENIED, "there is no session to be part of");
  return PERIGEE_OK;
}

int hello_frame(struct perigee_session *s, const struct frame *f) {
  if (!timely(s, f->type))
    return untimely(s);
  switch (f->type) {
  case FRAME_HELLO:
    return heard_hello(s, &f->hello);
  case FRAME_PROOF:
    return heard_proof(s, f->proof);
  case FRAME_OFFER:
    return heard_offer(s, f);
  case FRAME_MOVE:
    return neighbour_called(s, &f->move);
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
