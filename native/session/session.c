/* SPDX-License-Identifier: Apache-2.0
 *
 * session.c - a session's life: how it is dialed, begins, opens and ends.
 * session_poll.c has its part of a poll, wireup.c the handshake, endpoint.c
 * sessions that have no socket. This module uses all that are parts of a
 * session; they use it by struct upward.
 *
 *   state   event   becomes
 *   none    begin   hello    dialed or accepted; the handshake begins
 *   none    end     ended    nobody listens
 *   hello   open    open     both halves of the transport are in place
 *   hello   back    none     it moves to another socket (migrate.c)
 *   hello   end     ended    refused, too slow, gone
 *   open    end     ended    closed by either side, lost, or protocol error
 *
 * Every own operation ends with its session, with one status. Memory that the
 * session shares stays mapped until the session is freed and the next poll has
 * begun, as events may have given out pointers to it.
 *
 * The timeout, or a cancel, of the connect operation ends everything, and at
 * once: not only when its event is given, as a session that dialed on until
 * then would take the operation out of the queue of events.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/versions.h"
#include "call/calls.h"
#include "core/accounts.h"
#include "core/fabrics.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/spans.h"
#include "core/stats_file.h"
#include "host/adopted.h"
#include "host/name.h"
#include "net/address.h"
#include "operation/loan.h"
#include "sessions.h"

enum session_event { SESSION_BEGIN, SESSION_OPEN, SESSION_BACK, SESSION_END };

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

/* ---- Beginning ----------------------------------------------------------- */

static uint32_t session_new_id(struct perigee_engine *engine) {
  for (uint32_t i = 0; i < engine->id_slots; i++) {
    uint32_t id = ++engine->last_id;
    if (id != 0 && !engine->by_id[id & (engine->id_slots - 1)])
      return id;
  }
  return 0;
}

static void session_peer_ended(struct watcher *watcher, uint32_t events);
static void session_fail(struct perigee_session *s, int status,
                         const char *reason);

static const struct upward upward = {.tell = session_tell,
                                     .await_room = session_await_room,
                                     .send = session_send,
                                     .end = session_end,
                                     .fail = session_fail};

struct perigee_session *session_new(struct perigee_engine *engine, int fd) {
  uint32_t id = session_new_id(engine);
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
  s->counters = &s->own_counters;
  s->socket.watcher.ready = session_ready;
  s->socket.watcher.patient = true; /* mostly a wake-up: its record is first */
  s->socket.on_lane.ready = lane_ready;
  s->process.watcher.ready = session_peer_ended;
  s->target.on_lookup.ready = dial_resolved;
  struct node *lists[] = {&s->operations.all,
                          &s->messages.recvs,
                          &s->messages.landings,
                          &s->messages.recv_imms,
                          &s->messages.sends,
                          &s->replies.waiting,
                          &s->operations.backlog[RING_REQUEST],
                          &s->operations.backlog[RING_REPLY]};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    list_open(lists[i]);
  engine->by_id[id & (engine->id_slots - 1)] = s;
  list_append(&engine->sessions, &s->node);
  engine->counters->sessions++;
  return s;
}

void session_begun(struct perigee_session *s) {
  machine_step(&session_machine, &s->state, SESSION_BEGIN);
}

void session_opened(struct perigee_session *s) {
  machine_step(&session_machine, &s->state, SESSION_OPEN);
  unauth_leave(s);
  s->engine->progress++;
  choice_note(s);
  stats_session_begin(s);
  timers_remove(&s->engine->timers, &s->handshake.deadline);
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

/* ---- Connecting ---------------------------------------------------------- */

static void connect_step(struct operation *op) {
  dial_again(op->session);
}

/* The session does not dial on, or open, while the event waits. */
static void connect_stop(struct operation *op, int status) {
  struct perigee_session *s = op->session;
  bool waited = s->operations.connect == op;
  s->operations.connect = NULL;
  operation_finish(op, status);
  if (waited)
    session_end(s, PERIGEE_CLOSED, "nobody waits for it any more");
}

/* Frees a session that failed to connect: the program never got it. */
static void connect_given(struct operation *op) {
  struct perigee_session *failed = op->status < 0 ? op->session : NULL;
  operation_given(op);
  if (failed)
    perigee_session_free(failed);
}

const struct operation_class connect_class = {.name = "connect",
                                              .kind = OP_CONNECT,
                                              .event = PERIGEE_EVENT_CONNECTED,
                                              .step = connect_step,
                                              .late = operation_late,
                                              .stop = connect_stop,
                                              .given = connect_given};

/* Refuses a transport that this side does not have, before dialing. */
static int connect_check_transport(struct perigee_engine *engine,
                                   const char *name) {
  char reason[REASON];
  struct fabric *fabric;
  const struct perigee_transport *t = transport_named(engine, name);
  if (!t)
    return transport_unknown(engine, name);
  int status = fabric_of(engine, t, &fabric, reason);
  return status < 0 ? fail(engine, status, "%s", reason) : PERIGEE_OK;
}

static int connect_read_address(struct perigee_engine *engine, const char *text,
                                struct address *address) {
  char reason[ADDRESS_REASON];
  int status = address_parse(text, address, reason);
  if (status < 0)
    return fail(engine, status, "%s", reason);
  if (address->tcp && address->port == 0)
    return fail(engine, PERIGEE_INVALID,
                "\"%.200s\": port 0 is for listeners, which tell by their "
                "address which one they got",
                text);
  return PERIGEE_OK;
}

int perigee_go_by(struct perigee_engine *engine, const char *name) {
  ENTER(engine);
  if (name && strlen(name) > PERIGEE_NAME_MAX)
    return fail(engine, PERIGEE_INVALID, "a name has %d bytes at most",
                PERIGEE_NAME_MAX);
  memset(engine->name, 0, sizeof engine->name);
  snprintf(engine->name, sizeof engine->name, "%s", name ? name : "");
  return PERIGEE_OK;
}

int perigee_connect(struct perigee_engine *engine, const char *text,
                    const char *transport, int64_t timeout) {
  return perigee_connect_to(engine, text, NULL, transport, timeout);
}

int perigee_connect_to(struct perigee_engine *engine, const char *text,
                       const char *expected, const char *transport,
                       int64_t timeout) {
  ENTER(engine);
  struct address address;
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (!text)
    return fail_missing(engine, "address to dial");
  int status = connect_read_address(engine, text, &address);
  bool any = !transport || strcmp(transport, "auto") == 0;
  if (status == PERIGEE_OK && !any)
    status = connect_check_transport(engine, transport);
  if (status == PERIGEE_OK && expected && strlen(expected) > PERIGEE_NAME_MAX)
    status = fail(engine, PERIGEE_INVALID, "a name has %d bytes at most",
                  PERIGEE_NAME_MAX);
  if (status < 0)
    return status;
  struct perigee_session *s = session_new(engine, -1);
  if (!s)
    return PERIGEE_NO_MEMORY;
  s->dialed = true;
  snprintf(s->target.name, sizeof s->target.name, "%s",
           expected ? expected : "");
  snprintf(s->target.address, sizeof s->target.address, "%s", text);
  snprintf(s->target.transport, sizeof s->target.transport, "%s",
           any ? "" : transport);
  s->operations.connect = operation_take(s, &connect_class);
  if (!s->operations.connect) {
    perigee_session_free(s);
    return PERIGEE_NO_MEMORY;
  }
  int index = s->operations.connect->index;
  operation_start(s->operations.connect, timeout);
  dial_to(s, &address); /* the connect operation's event tells the result */
  return index;
}

/* ---- What a session is --------------------------------------------------- */

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

void session_named(struct perigee_session *s, const char *name,
                   uint64_t length) {
  char text[TERMS_NAME];
  if (length > PERIGEE_NAME_MAX)
    return;
  snprintf(text, sizeof text, "%.*s", (int)length, name);
  if (strlen(text) == length && name_is_valid(text))
    memcpy(s->peer.name, text, sizeof text);
  stats_session_tell(s);
}

static void session_describe(const struct perigee_session *s,
                             struct perigee_session_info *info) {
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
      .reason = s->texts.reason,
      .name = *s->peer.terms.name ? s->peer.terms.name : s->peer.name};
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

int perigee_session_describe(const struct perigee_session *session,
                             struct perigee_session_info *info, uint64_t size) {
  struct perigee_session_info known;
  LOOK(session->engine);
  if (!version_size_is_right("perigee_session_info", size))
    return PERIGEE_INVALID;
  session_describe(session, &known);
  version_give(info, size, &known, sizeof known);
  return PERIGEE_OK;
}

/* ---- Starting over ------------------------------------------------------- */

/* Flushes the frames that were posted, then closes the socket. */
static void session_close_socket(struct perigee_session *s) {
  if (s->socket.fd >= 0)
    wire_flush(s->socket.fd, &s->socket.wire);
  if (s->socket.fd >= 0 && !s->tcp)
    adopted_drain(s->socket.fd);
  if (s->socket.fd >= 0)
    watch_close(s->engine, s->socket.fd);
  s->socket.fd = -1;
}

/* Removes its timers but that of its dial (dial_end). */
static void session_disarm(struct perigee_session *s) {
  struct timers *timers = &s->engine->timers;
  timers_remove(timers, &s->handshake.deadline);
  timers_remove(timers, &s->socket.handing);
  timers_remove(timers, &s->alive.timer);
  timers_remove(timers, &s->alone_timer);
}

/* Puts the session back to what session_new made, but keeps the dialed address
 * and the connect operation. Works also if there never was a socket. */
void session_back(struct perigee_session *s) {
  dial_end(s);
  session_disarm(s);
  session_close_socket(s);
  wire_close(&s->socket.wire);
  proof_forget(s);
  trim_forget(s);
  lanes_close(s);
  if (s->lane)
    lane_table(s->lane)->close(s->lane);
  fabrics_reap(s->engine);
  s->lane = NULL;
  s->attends = s->alone != NULL;
  accounts_leave(s);
  s->transport = NULL;
  s->peer.address[0] = 0;
  s->handshake.step = WIREUP_NEW;
  s->streams.state = STREAMS_SOCKET;
  s->socket.hangup = s->socket.waits = false;
  s->security.intact = s->security.sealed = s->security.aes = false;
  memset(s->handshake.cookie, 0, sizeof s->handshake.cookie);
  s->engine->progress++;
  if (s->state == PERIGEE_SESSION_NONE)
    return;
  machine_step(&session_machine, &s->state, SESSION_BACK);
}

bool session_dial_again(struct perigee_session *s) {
  struct address to;
  char reason[ADDRESS_REASON];
  if (!s->operations.connect || session_moved(s) ||
      address_parse(s->target.address, &to, reason) != PERIGEE_OK)
    return false;
  struct dial *d = dial_new(&to);
  if (!d)
    return false;
  session_back(s);
  dial_later(s, d);
  return true;
}

/* ---- Ending -------------------------------------------------------------- */

static void session_stop_operations(struct perigee_session *s, int status) {
  struct node seen, *n;
  list_open(&seen);
  /* Stopping one operation may free others, so each is looked up again. */
  while ((n = list_pop(&s->operations.all))) {
    list_append(&seen, n);
    struct operation *op = CONTAINER(n, struct operation, all);
    op->class->stop(op, status);
  }
  while ((n = list_pop(&seen)))
    list_append(&s->operations.all, n);
}

void session_end(struct perigee_session *s, int status, const char *reason) {
  if (s->state == PERIGEE_SESSION_ENDED)
    return;
  struct perigee_engine *engine = s->engine;
  bool open = s->state == PERIGEE_SESSION_OPEN;
  if (s->state == PERIGEE_SESSION_HELLO && !s->dialed &&
      s->migration.state != MIGRATION_SENT_ON && status != PERIGEE_CLOSED)
    refusals_add(engine, s->peer.address, s->target.address, status, reason);
  unauth_leave(s);
  dial_end(s);
  session_disarm(s);
  secret_wipe(&s->security.keys->ticket);
  machine_step(&session_machine, &s->state, SESSION_END);
  engine->progress++;
  s->ended.status = status;
  if (reason != s->ended.reason)
    snprintf(s->ended.reason, sizeof s->ended.reason, "%s", reason);
  fail(engine, status, "%s", s->ended.reason);
  stats_session_tell(s);
  session_close_socket(s);
  peer_unwatch(s); /* keeps the pidfd, as the lane may still need it */
  proof_forget(s);
  hot_leave(s);
  proof_unindex(s);
  s->operations.connect = NULL;
  attach_end(s);
  if (s->lane && lane_table(s->lane)->cut)
    lane_table(s->lane)->cut(s->lane);
  lanes_cut(s);
  list_remove(&s->regions.granted); /* its lanes grant nothing any more */
  session_stop_operations(s, status);
  if (open && !s->freed && !s->news.next) {
    list_append(&engine->losses, &s->news);
    engine->notices = true;
  }
  if (!open && !s->dialed) { /* the program never heard of it */
    s->ended.unannounced = true;
    perigee_session_free(s);
  }
}

static void session_fail(struct perigee_session *s, int status,
                         const char *reason) {
  if (s->state == PERIGEE_SESSION_OPEN)
    session_end(s, status, reason);
  else if (s->state != PERIGEE_SESSION_ENDED)
    s->engine->wireup->fail(s, status, reason);
}

/* The peer's process has ended: receives first what it has sent. */
static void session_peer_ended(struct watcher *watcher, uint32_t events) {
  struct perigee_session *s =
      CONTAINER(watcher, struct perigee_session, process.watcher);
  (void)events;
  s->engine->progress++;
  peer_unwatch(s);
  if (s->state == PERIGEE_SESSION_ENDED || s->state == PERIGEE_SESSION_NONE)
    return;
  if (s->tcp && s->state == PERIGEE_SESSION_OPEN) {
    liveness_peer_exited(s);
    return;
  }
  if (s->streams.state == STREAMS_SOCKET)
    socket_look(s);
  if (s->state != PERIGEE_SESSION_ENDED && !s->socket.hangup)
    session_hang_up(s);
  hot_activate(s);
}

/* A child made by fork has copies of the session's descriptors, which would
 * keep the peer from noticing that the parent died, but none of its memory. */
void session_close_in_child(struct perigee_session *s) {
  if (s->socket.fd >= 0)
    close(s->socket.fd);
  if (s->process.pidfd >= 0)
    close(s->process.pidfd);
  s->socket.fd = s->process.pidfd = -1;
  attach_end(s);
  if (s->lane && s->transport->forked)
    s->transport->forked(s->lane);
  lanes_forked(s);
  dial_end(s);
  wire_close(&s->socket.wire);
}

void session_say_bye(struct perigee_session *s) {
  struct frame bye = {.type = FRAME_BYE};
  if (s->state == PERIGEE_SESSION_OPEN)
    session_tell(s, &bye, NULL, 0);
}

void perigee_session_close(struct perigee_session *s) {
  ENTER(s->engine);
  if (!engine_alive(s->engine)) {
    session_close_in_child(s);
    return;
  }
  if (s->state == PERIGEE_SESSION_ENDED)
    return;
  if (s->lane && lane_table(s->lane)->retain)
    lane_table(s->lane)->retain(s->lane);
  session_say_bye(s);
  if (s->streams.state != STREAMS_SOCKET)
    session_drain(s);
  session_end(s, PERIGEE_CLOSED, "the session was closed here");
}

/* ---- What is left of it -------------------------------------------------- */

/* Calls in service outlive their session: the program still answers them. */
static void session_drop_operation(struct operation *op) {
  if (op->kind == OP_SERVED && op->state != 0 && served_survives(op)) {
    operation_uncount(op);
    list_remove(&op->all);
    op->session = NULL;
    return;
  }
  if (op->quiet_wait && op->class->untold)
    op->class->untold(op);
  parts_end(op); /* callers make sure that no copy is under way */
  if (op->kind == OP_SERVED)
    served_count_lost(op);
  else
    span_lost(op, PERIGEE_PEER_LOST);
  operation_free(op);
}

static void session_drop_untold(struct operation *op) {
  op->engine->counters->dropped++;
  session_drop_operation(op);
}

/* An operation that waits for a copy has no event any more. Only these steps
 * end it. */
static void session_wait_untold(struct operation *op) {
  operation_unqueue(op);
  if (op->class->untold)
    op->class->untold(op);
}

/* Steps a freed session; returns false while a copy is under way for it. No
 * event follows a free. So operations that wait for a copy step here and not in
 * poll_step_moving, and those that have an event are dropped. */
static bool session_settle(struct perigee_session *s) {
  struct node seen, *n;
  bool quiet = true;
  list_open(&seen);
  /* A step may free other operations, so each is looked up anew. */
  while ((n = list_pop(&s->operations.all))) {
    struct operation *op = CONTAINER(n, struct operation, all);
    list_append(&seen, n);
    if (op->quiet_wait)
      op->class->step(op);
  }
  while ((n = list_pop(&seen))) {
    struct operation *op = CONTAINER(n, struct operation, all);
    list_append(&s->operations.all, n);
    if (op->quiet_wait)
      session_wait_untold(op);
    else if (op->event != PERIGEE_EVENT_NONE)
      session_drop_untold(op);
    quiet = quiet && !op->quiet_wait;
  }
  return quiet;
}

bool session_reap(struct perigee_session *s) {
  bool quiet = session_settle(s);
  if (quiet)
    session_destroy(s);
  return quiet;
}

/* Has a wait found an event of it, which no poll has given yet? */
static bool session_has_found(const struct perigee_session *s) {
  const struct perigee_engine *engine = s->engine;
  return engine->event_pending && engine->pending_event.session == s->id;
}

/* Gives back the blocks that a program which gets the event owns. */
static void session_give_found(struct perigee_engine *engine,
                               const struct perigee_event *e) {
  if (e->flags & PERIGEE_POOLED)
    pool_give(engine, e->landed);
  if (e->kind == PERIGEE_EVENT_REPLY && e->flags & PERIGEE_HELD)
    pool_give(engine, (uint8_t *)(uintptr_t)e->pointer);
}

/* No event follows a free, but a call in service is still to be answered. */
static void session_drop_found(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  const struct perigee_event *e = &engine->pending_event;
  if (!session_has_found(s) || e->kind == PERIGEE_EVENT_REQUEST)
    return;
  engine->counters->dropped++;
  session_give_found(engine, e);
  engine_end_found(engine);
}

/* An operation that has ended goes with the poll after the one that gave its
 * last event (poll_end_given). */
int perigee_session_settled(const struct perigee_session *s) {
  LOOK(s->engine);
  const struct node *n;
  if (s->state != PERIGEE_SESSION_ENDED || s->news.next || session_has_found(s))
    return 0;
  for (n = s->operations.all.next; n != &s->operations.all; n = n->next)
    if (!served_survives(CONTAINER(n, struct operation, all)))
      return 0;
  return 1;
}

void perigee_session_free(struct perigee_session *s) {
  ENTER(s->engine);
  if (s->freed)
    return;
  if (!engine_alive(s->engine)) {
    session_close_in_child(s);
    return;
  }
  s->freed = true;
  perigee_session_close(s);
  session_drop_found(s);
  session_settle(s);
  list_remove(&s->news);
  list_remove(&s->node);
  list_append(&s->engine->dead, &s->node);
}

static void session_free_prepared(struct perigee_session *s) {
  while (s->operations.prepared)
    perigee_prepared_free(s->operations.prepared);
}

void session_destroy(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  struct node *n;
  while ((n = list_pop(&s->operations.all)))
    session_drop_operation(CONTAINER(n, struct operation, all));
  list_remove(&s->node);
  list_remove(&s->news);
  list_remove(&s->replies.lender);
  trim_forget(s);
  session_free_prepared(s);
  remotes_free(s);
  loans_end(s);
  lanes_close(s);
  if (s->lane) {
    ((struct lane_head *)s->lane)->forsaken =
        s->socket.hangup || s->ended.status != PERIGEE_CLOSED;
    lane_table(s->lane)->close(s->lane);
  }
  fabrics_reap(engine);
  immediates_free(s);
  accounts_leave(s);
  peer_forget(s);
  wire_close(&s->socket.wire);
  engine->by_id[s->id & (engine->id_slots - 1)] = NULL;
  engine->counters->sessions--;
  s->counters->kept = 0;
  stats_session_end(s);
  free(s->inbox.seen);
  proof_forget(s);
  vault_give(&engine->vault, s->security.keys, sizeof *s->security.keys);
  free(s);
  trim_ended(engine);
}
