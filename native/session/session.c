/* SPDX-License-Identifier: Apache-2.0
 *
 * session.c - a session's life. session_poll.c has its part of a poll, wireup.c
 * the handshake, socket.c the socket, endpoint.c sessions that have no socket.
 *
 *   state   event   becomes
 *   none    begin   hello    dialed or accepted; the handshake begins
 *   none    end     ended    nobody listens
 *   hello   open    open     both halves of the transport are in place
 *   hello   back    none     it moves to another socket (migrate.h)
 *   hello   end     ended    refused, too slow, gone
 *   open    end     ended    closed by either side, lost, or protocol error
 *
 * When a session ends, every own operation ends with it, with one status.
 * Memory that it shares stays mapped until the session is freed and the next
 * poll has begun, as events may have given out pointers to it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operation/operations.h"
#include "core/hot.h"
#include "core/lock.h"
#include "migrate.h"
#include "unauth.h"

const struct machine session_machine = {
    .name = "session",
    .taken = MACHINE_STEPS,
    .states = {"none", "hello", "open", "ended"},
    .events = {"begin", "open", "back", "end"},
    .next = {
        [PERIGEE_SESSION_NONE] = {[SESSION_BEGIN] = TO(PERIGEE_SESSION_HELLO),
                                  [SESSION_END] = TO(PERIGEE_SESSION_ENDED)},
        [PERIGEE_SESSION_HELLO] = {[SESSION_OPEN] = TO(PERIGEE_SESSION_OPEN),
                                   [SESSION_BACK] = TO(PERIGEE_SESSION_NONE),
                                   [SESSION_END] = TO(PERIGEE_SESSION_ENDED)},
        [PERIGEE_SESSION_OPEN] = {[SESSION_END] = TO(PERIGEE_SESSION_ENDED)},
    }};

/* ---- Beginning ---------------------------------------------------------- */

static uint32_t new_id(struct perigee_engine *engine) {
  for (uint32_t i = 0; i < engine->id_slots; i++) {
    uint32_t id = ++engine->last_id;
    if (id != 0 && !engine->by_id[id & (engine->id_slots - 1)])
      return id;
  }
  return 0;
}

/* Reads the socket first: if this side was stopped for a while, the answer may
 * have come in time. */
static void wireup_due(struct perigee_session *s) {
  socket_look(s);
  if (s->state == PERIGEE_SESSION_HELLO && !s->timer.next)
    s->engine->wireup->timeout(s);
}

static void expired(struct timer *timer) {
  struct perigee_session *s = CONTAINER(timer, struct perigee_session, timer);
  if (s->alone)
    s->alone->tick(s);
  else if (s->state == PERIGEE_SESSION_NONE)
    dial_tick(s);
  else if (s->state == PERIGEE_SESSION_OPEN && !s->tcp)
    handing_due(s);
  else if (s->state == PERIGEE_SESSION_OPEN)
    liveness_tick(s);
  else if (s->state == PERIGEE_SESSION_HELLO)
    wireup_due(s);
}

static const struct upward upward = {.tell = session_tell,
                                     .await_room = session_await_room,
                                     .send = session_send,
                                     .end = session_end};

struct perigee_session *session_new(struct perigee_engine *engine, int fd) {
  uint32_t id = new_id(engine);
  struct perigee_session *s = id ? calloc(1, sizeof *s) : NULL;
  if (s && !(s->security.keys =
                 vault_take(&engine->vault, sizeof *s->security.keys))) {
    free(s);
    fail(engine, PERIGEE_NO_MEMORY, "%s", VAULT_FULL);
    return NULL;
  }
  if (!s) {
    fail(engine, PERIGEE_NO_MEMORY,
         "all %u sessions are in use (option "
         "sessions)",
         engine->options.sessions);
    return NULL;
  }
  s->engine = engine;
  s->id = id;
  s->socket.fd = fd;
  s->process.pidfd = -1;
  s->up = &upward;
  s->timer.expired = expired;
  s->socket.watcher.ready = session_ready;
  s->socket.watcher.patient = true; /* mostly a wake-up: its record is first */
  s->socket.on_lane.ready = lane_ready;
  s->process.watcher.ready = peer_ended;
  s->target.on_lookup.ready = dial_resolved;
  struct node *lists[] = {&s->operations.all,
                          &s->messages.recvs,
                          &s->messages.recv_imms,
                          &s->messages.sends,
                          &s->replies.waiting,
                          &s->operations.backlog[RING_REQUEST],
                          &s->operations.backlog[RING_REPLY]};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    list_open(lists[i]);
  engine->by_id[id & (engine->id_slots - 1)] = s;
  list_append(&engine->sessions, &s->node);
  engine->counters.sessions++;
  return s;
}

void session_begun(struct perigee_session *s, int64_t timer) {
  machine_step(&session_machine, &s->state, SESSION_BEGIN);
  timers_add(&s->engine->timers, &s->timer, engine_clock(s->engine) + timer);
}

void session_opened(struct perigee_session *s) {
  machine_step(&session_machine, &s->state, SESSION_OPEN);
  unauth_leave(s);
  s->engine->progress++;
  if (!s->alone)
    timers_remove(&s->engine->timers, &s->timer);
  secret_wipe(&s->security.keys->ticket); /* it is valid once */
  hot_enter(s);
  proof_index(s);
  liveness_begin(s);
  struct operation *op = s->operations.connect;
  s->operations.connect = NULL;
  if (op) {
    operation_finish(op, PERIGEE_OK);
  } else {
    list_append(&s->engine->news, &s->news);
    s->engine->notices = true;
  }
  drain_tell(s);
}

/* ---- What a session is -------------------------------------------------- */

struct perigee_session *session_by_id(struct perigee_engine *engine,
                                      uint32_t id) {
  struct perigee_session *s = engine->by_id[id & (engine->id_slots - 1)];
  return s && s->id == id ? s : NULL;
}

struct perigee_session *perigee_session(struct perigee_engine *engine,
                                        uint32_t id) {
  LOOK(engine);
  struct perigee_session *s = session_by_id(engine, id);
  return s && !s->freed ? s : NULL;
}

uint32_t perigee_session_id(const struct perigee_session *session) {
  return session->id;
}

void perigee_session_info(const struct perigee_session *s,
                          struct perigee_session_info *info) {
  LOOK(s->engine);
  const struct perigee_options *o = &s->engine->options;
  struct session_texts *texts = (void *)(uintptr_t)&s->texts;
  texts->security[0] = 0;
  if (s->state == PERIGEE_SESSION_OPEN)
    proof_text(s, texts->security);
  choice_considered(s, texts->considered, sizeof s->texts.considered);
  bool ended = s->state == PERIGEE_SESSION_ENDED;
  snprintf(texts->reason, sizeof s->texts.reason, "%s",
           ended ? s->ended.reason : s->migration.why);
  *info = (struct perigee_session_info){
      .id = s->id,
      .state = s->state,
      .status = s->ended.status,
      .pid = s->process.pid,
      .epoch = s->peer.terms.epoch,
      .version = s->peer.version,
      .ring = o->ring,
      .eager = s->peer.eager,
      .message = s->peer.terms.message,
      .typed = s->peer.terms.typed,
      .features = s->peer.features,
      .transport = s->transport ? s->transport->name : "none",
      .same_host = s->peer.same_host || (!s->tcp && !s->alone),
      .dialed = s->dialed,
      .tcp = s->tcp,
      .authenticated = s->tcp && (session_moved(s) || s->engine->secret->set),
      .encrypted = s->security.sealed,
      .aes = s->security.aes,
      .intact = s->security.intact,
      .dead_after = liveness_wanted(s) ? o->dead_after : 0,
      .carrier = s->texts.carrier,
      .security = texts->security,
      .considered = s->texts.considered,
      .lanes = lanes_told(s),
      .address = s->target.address,
      .peer = s->peer.address,
      .reason = s->texts.reason};
  if (s->lane)
    info->pull = lane_pulls(s->lane);
  struct lane_facts *facts = &s->engine->facts;
  facts->count = facts->used = 0;
  if (s->lane && lane_table(s->lane)->describe)
    lane_table(s->lane)->describe(s->lane, facts);
  facts_line(facts, texts->carrier, sizeof s->texts.carrier);
  info->facts = facts->list;
  info->fact_count = facts->count;
}
