/* SPDX-License-Identifier: Apache-2.0
 *
 * session_end.c - how a session ends or starts over, and what remains of it
 * then. session.c has the table of its states.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call/calls.h"
#include "operation/loan.h"
#include "core/accounts.h"
#include "core/trim.h"
#include "core/fabrics.h"
#include "core/hot.h"
#include "core/lane_list.h"
#include "core/lock.h"
#include "host/adopted.h"
#include "migrate.h"
#include "unauth.h"

/* Flushes the frames that were posted, then closes the socket. */
static void close_socket(struct perigee_session *s) {
  if (s->socket.fd >= 0)
    wire_flush(s->socket.fd, &s->socket.wire);
  if (s->socket.fd >= 0 && !s->tcp)
    adopted_drain(s->socket.fd);
  if (s->socket.fd >= 0)
    watch_close(s->engine, s->socket.fd);
  s->socket.fd = -1;
}

/* Puts the session back to what session_new made, but keeps the dialed address
 * and the connect operation. Works also if there never was a socket. */
void session_back(struct perigee_session *s) {
  dial_end(s);
  timers_remove(&s->engine->timers, &s->timer);
  close_socket(s);
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
  migrate_stays(s);
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

/* ---- Ending ------------------------------------------------------------- */

static void stop_all(struct perigee_session *s, int status) {
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
  if (migrate_returns(s, status))
    return;
  struct perigee_engine *engine = s->engine;
  bool open = s->state == PERIGEE_SESSION_OPEN;
  if (s->state == PERIGEE_SESSION_HELLO && !s->dialed &&
      s->migration.state != MIGRATION_SENT_ON && status != PERIGEE_CLOSED)
    refusals_add(engine, s->peer.address, s->target.address, status, reason);
  unauth_leave(s);
  dial_end(s);
  timers_remove(&engine->timers, &s->timer);
  secret_wipe(&s->security.keys->ticket);
  machine_step(&session_machine, &s->state, SESSION_END);
  engine->progress++;
  s->ended.status = status;
  if (reason != s->ended.reason)
    snprintf(s->ended.reason, sizeof s->ended.reason, "%s", reason);
  fail(engine, status, "%s", s->ended.reason);
  close_socket(s);
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
  stop_all(s, status);
  if (open && !s->freed && !s->news.next) {
    list_append(&engine->losses, &s->news);
    engine->notices = true;
  }
  if (!open && !s->dialed) { /* the program never heard of it */
    s->ended.unannounced = true;
    perigee_session_free(s);
  }
}

/* After a fork, the child has copies of the session's descriptors, which would
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

/* Calls in service outlive their session: the program still answers them. */
static void drop(struct operation *op) {
  if (op->kind == OP_SERVED && op->state != 0 && served_survives(op)) {
    operation_uncount(op);
    list_remove(&op->all);
    op->session = NULL;
    return;
  }
  parts_end(op); /* callers make sure that no copy is under way */
  operation_free(op);
}

static void drop_untold(struct operation *op) {
  op->engine->counters.dropped++;
  drop(op);
}

/* What waits for a copy has no event any more; only these steps end it. */
static void wait_untold(struct operation *op) {
  operation_unqueue(op);
  if (op->class->untold)
    op->class->untold(op);
}

/* Steps a freed session; returns false while a copy is under way for it. No
 * event follows a free, so operations that wait for a copy step here and not in
 * step_moving, and those that have an event are dropped. */
static bool settle(struct perigee_session *s) {
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
      wait_untold(op);
    else if (op->event != PERIGEE_EVENT_NONE)
      drop_untold(op);
    quiet = quiet && !op->quiet_wait;
  }
  return quiet;
}

bool session_reap(struct perigee_session *s) {
  bool quiet = settle(s);
  if (quiet)
    session_destroy(s);
  return quiet;
}

/* What is left of an operation that has ended goes with the poll after the one
 * that gave its last event (end_given). */
int perigee_session_settled(const struct perigee_session *s) {
  LOOK(s->engine);
  const struct node *n;
  if (s->state != PERIGEE_SESSION_ENDED || s->news.next)
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
  settle(s);
  list_remove(&s->news);
  list_remove(&s->node);
  list_append(&s->engine->dead, &s->node);
}

static void free_prepared(struct perigee_session *s) {
  while (s->operations.prepared)
    perigee_prepared_free(s->operations.prepared);
}

void counters_add(struct perigee_counters *to,
                  const struct perigee_counters *from) {
  const uint64_t *f = (const uint64_t *)from;
  uint64_t *t = (uint64_t *)to;
  for (size_t i = 0; i < sizeof *to / sizeof *t; i++)
    t[i] += f[i];
}

void session_destroy(struct perigee_session *s) {
  struct perigee_engine *engine = s->engine;
  struct node *n;
  while ((n = list_pop(&s->operations.all)))
    drop(CONTAINER(n, struct operation, all));
  list_remove(&s->node);
  list_remove(&s->news);
  list_remove(&s->replies.lender);
  trim_forget(s);
  free_prepared(s);
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
  engine->counters.sessions--;
  s->counters.kept = 0;
  counters_add(&engine->counters, &s->counters);
  free(s->inbox.seen);
  proof_forget(s);
  vault_give(&engine->vault, s->security.keys, sizeof *s->security.keys);
  free(s);
  trim_ended(engine);
}
