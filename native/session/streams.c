/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - sessions whose frames go through their lane, because they have no
 * socket (endpoint.c) or because the lane has taken the socket over.
 *
 *   state   event   becomes
 *   socket  take    lane    the lane takes the session's socket over, or there
 *                           never was one: frames go through the lane
 *   lane    attach  whole   the dialer over TCP has dialed the further sockets
 *                           that the lane wants (attach.c); the listener dials
 *                           none, and is whole at once
 *
 * A session whose lane wants no socket stays in the first state. To begin at
 * another address, as when the lane could not take the socket, puts the state
 * back to it (session_back).
 */
#include <sys/socket.h>

#include "core/fabrics.h"
#include "sessions.h"

const struct machine streams_machine = {
    .name = "streams",
    .taken = MACHINE_STEPS,
    .states = {"socket", "lane", "whole"},
    .events = {"take", "attach"},
    .next = {
        [STREAMS_SOCKET] = {[STREAMS_TAKE] = TO(STREAMS_LANE)},
        [STREAMS_LANE] = {[STREAMS_ATTACH] = TO(STREAMS_WHOLE)},
    }};

static const int64_t DRAIN = 50 * 1000000; /* ns */
/* A limit, as the clock of a simulation may stand still. */
enum { DRAIN_TURNS = 1 << 20 };

/* Called when both sides are ready. If the lane takes the socket over, all
 * further bytes on it belong to the lane. */
bool streams_take(struct perigee_session *s) {
  const struct perigee_transport *t = lane_table(s->lane);
  int fd = s->socket.fd;
  if (s->tcp)
    proof_end(s);
  if (!t->sockets || s->alone)
    return true;
  session_uncork(s);
  if (wire_waits(&s->socket.wire)) {
    session_end(s, PERIGEE_PEER_LOST, "the peer does not take what it is told");
    return false;
  }
  s->streams.address_length = sizeof s->streams.address;
  getpeername(fd, &s->streams.address.any, &s->streams.address_length);
  s->socket.fd = -1;
  machine_step(&streams_machine, &s->streams.state, STREAMS_TAKE);
  if (!s->dialed || !s->tcp)
    machine_step(&streams_machine, &s->streams.state, STREAMS_ATTACH);
  int status = t->sockets->take(s->lane, fd, s->socket.wire.bytes,
                                s->socket.wire.length);
  handshake_further(s->security.keys->session);
  s->socket.wire.length = 0;
  if (status < 0)
    session_end(s, status,
                status == PERIGEE_NO_MEMORY && s->security.intact
                    ? VAULT_FULL
                    : "the session's socket could not be taken over");
  return status == PERIGEE_OK;
}

/* ---- Frames through the lane --------------------------------------------- */

void session_hear(struct perigee_session *s) {
  const struct transport_frames *frames = lane_table(s->lane)->frames;
  struct wire *w = &s->socket.wire;
  uint32_t got;
  while (s->state != PERIGEE_SESSION_ENDED &&
         (got = frames->hear(s->lane, w->bytes + w->length,
                             (uint32_t)sizeof w->bytes - w->length))) {
    w->length += got;
    s->engine->progress++;
    session_frames(s);
  }
}

int session_say(struct perigee_session *s, const struct frame *f) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  return lane_table(s->lane)->frames->say(s->lane, bytes,
                                          wire_encode(f, bytes));
}

/* ---- Draining ------------------------------------------------------------ */

static bool said(const struct perigee_session *s) {
  return s->state != PERIGEE_SESSION_OPEN ||
         s->streams.state == STREAMS_SOCKET ||
         lane_table(s->lane)->frames->drained(s->lane);
}

static bool all_said(struct perigee_engine *engine) {
  struct node *n, *head = &engine->sessions;
  bool all = true;
  for (n = head->next; n != head; n = n->next)
    all &= said(CONTAINER(n, struct perigee_session, node));
  return all;
}

static void drain(struct perigee_engine *engine,
                  const struct perigee_session *only) {
  int64_t end = engine_clock(engine) + DRAIN;
  for (int i = 0; i < DRAIN_TURNS && !(only ? said(only) : all_said(engine)) &&
                  engine_clock(engine) < end;
       i++)
    fabrics_turn(engine);
}

void session_drain(struct perigee_session *s) {
  drain(s->engine, s);
}

void sessions_drain(struct perigee_engine *engine) {
  drain(engine, NULL);
}
