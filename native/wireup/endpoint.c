/* SPDX-License-Identifier: Apache-2.0
 *
 * endpoint.c - sessions without a socket, for programs that have a way of their
 * own to carry a text from each side to the other. The text (wire.h) holds what
 * HELLO, TERMS and OFFER hold elsewhere; all later frames go through the lane.
 *
 * The first message. Each side joins when its program gives it the peer's text,
 * and what is sent to a side before that is lost. So the sides differ: the one
 * with the smaller nonce is the caller and probes; the other is silent until a
 * probe has arrived.
 *
 *   caller                             listener
 *   joins; probes, and again           joins; waits until it is met
 *                         probe  -->   is met: says READY
 *   opens                 <--  READY
 *   says READY            READY  -->   opens
 *
 * A probe carries nothing, so it arrives even at a listener that has joined
 * only half, and may arrive twice. The listener says READY when it has joined
 * fully; the caller can receive it from its first probe on.
 *
 * Liveness. No socket tells that the peer died. Each side sends something at
 * least twice a second, which the peer's device acknowledges without its
 * process. Without acknowledgement the lane breaks, and the session ends. A
 * timer of the session does that, also while the program sleeps in a wait.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "operation/operations.h"
#include "wireup.h"

static const int64_t PROBE_EVERY = 20 * 1000000,
                     KEEPALIVE_EVERY = 500 * 1000000; /* ns */

/* ---- A session's part in polls ------------------------------------------ */

static void endpoint_poll(struct perigee_session *s) {
  if (s->handshake.step < WIREUP_JOINED || s->state == PERIGEE_SESSION_ENDED)
    return;
  if (!s->handshake.active && s->handshake.step == WIREUP_JOINED &&
      lane_table(s->lane)->alone->met(s->lane))
    wireup_ready(s);
  session_hear(s);
  if (s->state == PERIGEE_SESSION_HELLO)
    session_broken(s);
}

static void endpoint_tick(struct timer *timer) {
  struct perigee_session *s =
      CONTAINER(timer, struct perigee_session, alone_timer);
  if (s->handshake.step < WIREUP_JOINED || s->state == PERIGEE_SESSION_ENDED)
    return;
  /* The peer's device acknowledges what is sent once the peer is met. */
  bool open = s->state == PERIGEE_SESSION_OPEN ||
              (s->handshake.step == WIREUP_READY && !s->handshake.active);
  if (open)
    lane_table(s->lane)->alone->keepalive(s->lane);
  else if (s->handshake.active && !lane_table(s->lane)->alone->met(s->lane))
    lane_table(s->lane)->alone->probe(s->lane);
  timers_add(&s->engine->timers, &s->alone_timer,
             s->engine->now + (open ? KEEPALIVE_EVERY : PROBE_EVERY));
}

static const struct alone_class alone_class = {.poll = endpoint_poll};

/* ---- Opening and closing ------------------------------------------------ */

/* Returns NULL and the reason if no transport works without a socket. */
static const struct perigee_transport *
endpoint_find_transport(struct perigee_engine *engine, const char *name) {
  const struct perigee_transport *t =
      name ? transport_named(engine, name) : transport_alone(engine);
  if (t && t->alone)
    return t;
  if (t)
    fail(engine, PERIGEE_UNSUPPORTED,
         "sessions over \"%s\" need a socket: listen and connect", name);
  else if (name)
    transport_unknown(engine, name);
  else
    fail(engine, PERIGEE_UNSUPPORTED,
         "this build has no transport that needs no socket");
  return NULL;
}

/* Makes the future session and this side's half of the transport. */
static int endpoint_prepare(struct perigee_session *s, char info[INFO_TEXT],
                            char reason[REASON]) {
  struct hello hello;
  struct terms terms;
  struct offer offer;
  s->alone = &alone_class;
  s->attends = s->dialed = true;
  machine_step(&streams_machine, &s->streams.state, STREAMS_TAKE);
  s->handshake.nonce = engine_random(s->engine);
  snprintf(s->target.address, sizeof s->target.address, "endpoint");
  snprintf(s->target.transport, sizeof s->target.transport, "%s",
           s->transport->name);
  hello_own(s, &hello);
  terms_own(s, &terms);
  int status = choice_open(s, &offer, reason);
  if (status == PERIGEE_OK)
    info_write(&hello, &terms, &offer, info);
  return status;
}

int perigee_endpoint_open(struct perigee_engine *engine, const char *transport,
                          struct perigee_endpoint **out) {
  ENTER(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  const struct perigee_transport *t =
      endpoint_find_transport(engine, transport);
  if (!t)
    return PERIGEE_UNSUPPORTED;
  struct perigee_endpoint *e = calloc(1, sizeof *e);
  if (!e)
    return PERIGEE_NO_MEMORY;
  e->engine = engine;
  list_append(&engine->endpoints, &e->node);
  e->session = session_new(engine, -1);
  if (!e->session) {
    perigee_endpoint_close(e);
    return PERIGEE_NO_MEMORY;
  }
  char reason[REASON];
  e->session->transport = t;
  int status = endpoint_prepare(e->session, e->info, reason);
  e->nonce = e->session->handshake.nonce;
  if (status < 0) {
    perigee_endpoint_close(e);
    return fail(engine, status, "%s", reason);
  }
  *out = e;
  return PERIGEE_OK;
}

const char *perigee_endpoint_info(const struct perigee_endpoint *endpoint) {
  return endpoint->info;
}

void perigee_endpoint_close(struct perigee_endpoint *e) {
  ENTER(e->engine);
  if (e->session && engine_alive(e->engine))
    perigee_session_free(e->session);
  list_remove(&e->node);
  free(e);
}

/* ---- Connecting --------------------------------------------------------- */

static int endpoint_read_info(const struct perigee_endpoint *e,
                              const char *info, struct hello *hello,
                              struct terms *terms, struct offer *offer) {
  int status = info_read(info, hello, terms, offer);
  if (status == PERIGEE_VERSION)
    return fail(e->engine, status,
                "the endpoint's information is of another version of Perigee");
  if (status < 0)
    return fail(e->engine, status,
                "this is no endpoint's information, or not all of it, or it "
                "was changed on the way");
  if (hello->nonce == e->nonce)
    return fail(e->engine, PERIGEE_PROTOCOL,
                "this is the endpoint's own information: the peer's is wanted");
  return PERIGEE_OK;
}

/* Errors from here on are told by the connect operation's event. */
static void endpoint_join(struct perigee_session *s, const struct hello *hello,
                          const struct terms *terms,
                          const struct offer *offer) {
  s->handshake.active = s->handshake.nonce < hello->nonce;
  session_begun(s);
  s->alone_timer.expired = endpoint_tick;
  timers_add(&s->engine->timers, &s->alone_timer,
             engine_clock(s->engine) + PROBE_EVERY);
  hot_enter(s); /* nothing that arrived before was polled */
  if (!wireup_common(s, hello) || !wireup_fits(s, terms) ||
      !wireup_joins(s, offer))
    return;
  if (s->handshake.active)
    s->transport->alone->probe(s->lane);
}

int perigee_endpoint_connect(struct perigee_endpoint *e, const char *info,
                             int64_t timeout) {
  ENTER(e->engine);
  struct hello hello;
  struct terms terms;
  struct offer offer;
  struct perigee_session *s = e->session;
  if (!engine_alive(e->engine))
    return PERIGEE_FORKED;
  if (!s)
    return fail(e->engine, PERIGEE_INVALID,
                "the endpoint was connected before: each is for one session");
  if (!info)
    return fail_missing(e->engine, "information of the peer's endpoint");
  int status = endpoint_read_info(e, info, &hello, &terms, &offer);
  if (status < 0)
    return status;
  s->operations.connect = operation_take(s, &connect_class);
  if (!s->operations.connect)
    return PERIGEE_NO_MEMORY;
  int index = s->operations.connect->index;
  e->session = NULL; /* from here on the connect operation has it */
  operation_start(s->operations.connect, timeout);
  endpoint_join(s, &hello, &terms, &offer);
  return index;
}
