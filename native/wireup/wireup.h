/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup.h - the handshake that opens a session: interface between the files of
 * this folder, and for the engine, which gives wireup_class to its sessions.
 */
#ifndef WIREUP_H
#define WIREUP_H

#include "session/sessions.h"

/* ---- wireup_steps.c ------------------------------------------------------ */
enum wireup_event { VOUCH, RETRY, MEET, PROVE, FIT, INFORM, JOIN, READY };

extern const struct machine wireup_machine;

static inline void wireup_step(struct perigee_session *s,
                               enum wireup_event event) {
  machine_step(&wireup_machine, &s->handshake.step, event);
}

/* May a frame of this type come now? */
bool wireup_timely(const struct perigee_session *session, int type);

/* ---- wireup.c ------------------------------------------------------------ */
extern const struct wireup_class wireup_class;
/* Steps of the handshake, for sessions that get the peer's HELLO and OFFER in
 * another way. common, fits and joins check the peer's HELLO, TERMS and OFFER;
 * false: the session has ended. ready opens the session. */
bool wireup_common(struct perigee_session *, const struct hello *);
bool wireup_fits(struct perigee_session *session, const struct terms *terms);
bool wireup_joins(struct perigee_session *session, const struct offer *offer);
void wireup_ready(struct perigee_session *session);

/* ---- wireup_say.c -------------------------------------------------------- */
/* Each sends a frame, and puts it into the transcript; the session may have
 * ended then. */
void wireup_say(struct perigee_session *session, const struct frame *frame);
void wireup_say_hello(struct perigee_session *session);
void wireup_say_terms(struct perigee_session *session);
/* Opens this side's half of the transport, or refuses. */
void wireup_say_offer(struct perigee_session *session);
/* Ends the session, and tells the peer why. Returns PERIGEE_OK. */
int wireup_refuse(struct perigee_session *session, int status,
                  const char *reason);

/* ---- wireup_tcp.c -------------------------------------------------------- */
/* HELLO came, and is kept: goes on when it is the peer's turn, by meet, which
 * agrees on keys. retry and proof handle the frames of these names. */
int wireup_met(struct perigee_session *session, const struct hello *hello);
int wireup_meet(struct perigee_session *session);
int wireup_retry(struct perigee_session *session, const struct retry *retry);
int wireup_proof(struct perigee_session *session, const uint8_t *proof);

/* ---- terms.c ------------------------------------------------------------- */
/* Fill in what this side says. */
void hello_own(struct perigee_session *session, struct hello *hello);
void terms_own(struct perigee_session *session, struct terms *terms);
/* Keep what the peer says, and check it: PERIGEE_OK, or a status and the reason
 * for which the session cannot be. */
int hello_fits(struct perigee_session *, const struct hello *,
               char reason[REASON]);
int terms_fit(struct perigee_session *, const struct terms *,
              char reason[REASON]);

/* ---- cookie.c ------------------------------------------------------------ */
/* make computes the cookie for a peer's HELLO; shown tells whether that HELLO
 * has the right one. */
bool cookie_make(struct perigee_session *, const struct hello *,
                 uint8_t cookie[COOKIE]);
bool cookie_shown(struct perigee_session *, const struct hello *);

#endif
