/* SPDX-License-Identifier: Apache-2.0
 *
 * message.c - messages, receives and immediates at their receiver. Messages
 * match receives in order. An immediate is delivered without a receive: it
 * waits in a queue of the session.
 */
#include <stdlib.h>

#include "core/hot.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "served.h"

enum { IMMEDIATES = 1 << 16, SWEPT_AT_ONCE = 64 };

/* ---- Immediates --------------------------------------------------------- */

static int immediates_grow(struct perigee_session *s) {
  uint32_t room = s->messages.imm_room ? 2 * s->messages.imm_room : 16;
  if (room > IMMEDIATES)
    return PERIGEE_NO_MEMORY;
  uint64_t *values = calloc(room, sizeof *values);
  if (!values)
    return PERIGEE_NO_MEMORY;
  for (uint32_t i = 0; i < s->messages.imm_count; i++)
    values[i] = s->messages.immediates[(s->messages.imm_first + i) &
                                       (s->messages.imm_room - 1)];
  immediates_free(s);
  share_add(s->account.share, SHARE_POOLED, room * sizeof *values);
  s->messages.immediates = values;
  s->messages.imm_room = room;
  s->messages.imm_first = 0;
  return PERIGEE_OK;
}

void immediates_free(struct perigee_session *s) {
  share_back(s->account.share, SHARE_POOLED,
             s->messages.imm_room * sizeof *s->messages.immediates);
  free(s->messages.immediates);
  s->messages.immediates = NULL;
  s->messages.imm_room = 0;
}

/* Returns how many more immediates fit. Growing doubles the queue, and its
 * memory counts against the peer. */
uint64_t immediates_room(const struct perigee_session *s) {
  uint64_t more = s->messages.imm_room * sizeof *s->messages.immediates;
  bool grows = s->messages.imm_room < IMMEDIATES &&
               share_may(s->account.share, SHARE_POOLED, more);
  return (grows ? 2 : 1) * s->messages.imm_room - s->messages.imm_count;
}

static void immediates_match(struct perigee_session *s) {
  while (s->messages.imm_count > 0 && !list_empty(&s->messages.recv_imms)) {
    struct node *n = s->messages.recv_imms.next;
    struct operation *op = CONTAINER(n, struct operation, queue);
    op->value = s->messages.immediates[s->messages.imm_first];
    s->messages.imm_first =
        (s->messages.imm_first + 1) & (s->messages.imm_room - 1);
    s->messages.imm_count--;
    operation_finish(op, PERIGEE_OK);
  }
}

int immediate_arrived(struct perigee_session *s, uint64_t immediate) {
  if (s->messages.imm_count == s->messages.imm_room) {
    int status = immediates_grow(s);
    if (status < 0)
      return status;
  }
  s->messages.immediates[(s->messages.imm_first + s->messages.imm_count++) &
                         (s->messages.imm_room - 1)] = immediate;
  s->counters.messages++;
  hot_use(s);
  immediates_match(s);
  return PERIGEE_OK;
}

/* ---- Messages ----------------------------------------------------------- */

static bool message_waits(const struct operation *op) {
  return op->kind == OP_SERVED && op->record == RECORD_SEND &&
         op->state == ARRIVED && op->session;
}

/* Frees a message for other peers. Its sender is told; if the sender does not
 * read replies either, the session ends. */
static void message_give_way(struct operation *op) {
  struct perigee_session *s = op->session;
  s->engine->shares.refused++;
  operation_unqueue(op);
  reply_status(op, PERIGEE_NO_MEMORY);
  if (op->state == WAITING)
    s->up->end(s, PERIGEE_NO_MEMORY,
               "its messages, which nobody receives, keep others from being "
               "served, and it does not take the answers");
}

/* Many peers together could fill the whole table with messages and leave them
 * there, so peers with many of them give way. */
static bool message_has_to_give_way(const struct operation *op) {
  return shares_short(&op->engine->shares, SHARE_OPERATIONS) &&
         share_is_usual(op->session->account.share->parent, SHARE_OPERATIONS);
}

/* Frees messages that their sender gave up. While new peers find no entry in
 * the table, it also frees messages of peers that have many. Thousands may wait
 * for receives that nobody posts, so each sweep visits a few entries of the
 * table. */
void messages_sweep(struct perigee_engine *engine) {
  uint32_t count = engine->table_used;
  if (count > SWEPT_AT_ONCE)
    count = SWEPT_AT_ONCE;
  for (; count > 0; count--) {
    if (engine->swept >= engine->table_used)
      engine->swept = 0;
    struct operation *op = &engine->table[engine->swept++];
    if (message_waits(op) && !served_wanted(op))
      serve_lost(op);
    else if (message_waits(op) && UNLIKELY(message_has_to_give_way(op)))
      message_give_way(op);
  }
}

static void message_pair(struct operation *recv, struct operation *send) {
  operation_unqueue(recv);
  operation_unqueue(send);
  int status = PERIGEE_TOO_LARGE;
  if (recv->place.total >= send->rest.length) {
    send->receiver = recv;
    recv->arriving = send->index + 1u;
    status = serve_fetch(send, &recv->place);
  }
  if (status == PERIGEE_OK)
    return;
  send->receiver = NULL;
  recv->arriving = 0;
  recv->length = send->rest.length;
  operation_finish(recv, status);
  reply_status(send, status);
}

static void message_match(struct perigee_session *s) {
  while (!list_empty(&s->messages.recvs) && !list_empty(&s->messages.sends)) {
    struct operation *send =
        CONTAINER(s->messages.sends.next, struct operation, queue);
    struct operation *recv =
        CONTAINER(s->messages.recvs.next, struct operation, queue);
    if (recv->arriving > 0) /* a lost message is still copied there */
      return;
    if (served_wanted(send))
      message_pair(recv, send);
    else
      serve_lost(send);
  }
}

void message_arrived(struct operation *served) {
  struct perigee_session *s = served->session;
  served->length = served->rest.length;
  list_append(&s->messages.sends, &served->queue);
  message_match(s);
}

void message_lost(struct operation *served) {
  struct operation *recv = served->receiver;
  if (!recv->quiet_wait && !recv->queue.next)
    list_prepend(&recv->session->messages.recvs, &recv->queue);
}

void message_released(struct operation *served) {
  struct operation *recv = served->receiver;
  struct perigee_session *s = recv->session;
  served->receiver = NULL;
  recv->arriving = 0;
  if (recv->quiet_wait)
    operation_settle(recv);
  if (!operation_has_ended(recv) && s->state == PERIGEE_SESSION_OPEN)
    message_match(s); /* the next message may have arrived already */
}

void message_done(struct operation *served) {
  struct operation *recv = served->receiver;
  served->receiver = NULL;
  recv->arriving = 0;
  recv->length = served->rest.length;
  recv->session->counters.messages++;
  recv->session->counters.bytes_received += recv->length;
  operation_finish(recv, PERIGEE_OK);
}

/* ---- Receives ----------------------------------------------------------- */

/* A receive that ends while its message is landing ends the landing. */
static void recv_recall(struct operation *op) {
  if (op->arriving > 0)
    serve_abort(operation_find(op->engine, (int)op->arriving - 1));
}

static enum still recv_still(struct operation *op) {
  return op->arriving > 0 ? STILL_OTHERS : STILL_NOTHING;
}

static const struct operation_class recv_class = {.name = "receive",
                                                  .kind = OP_RECV,
                                                  .event = PERIGEE_EVENT_DONE,
                                                  .step = operation_settle,
                                                  .late = operation_late,
                                                  .stop = operation_finish,
                                                  .given = operation_given,
                                                  .recall = recv_recall,
                                                  .still = recv_still};

static const struct operation_class recv_imm_class = {
    .name = "receive of an immediate",
    .kind = OP_RECV_IMM,
    .event = PERIGEE_EVENT_DONE,
    .step = operation_settle,
    .late = operation_late,
    .stop = operation_finish,
    .given = operation_given};

int perigee_recv(struct perigee_session *s, const struct perigee_slice *slice,
                 int64_t timeout) {
  ENTER(s->engine);
  int status;
  struct payload into;
  if (!session_open_for(s, &status))
    return status;
  if (!slice)
    return fail_missing(s->engine, "slice to receive into");
  if ((status = slice_payload(s->engine, slice, &into)) < 0)
    return status;
  struct operation *op = operation_take(s, &recv_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  op->place = into;
  op->arriving = 0;
  operation_ref(op, slice->region);
  operation_start(op, timeout);
  list_append(&s->messages.recvs, &op->queue);
  int index = op->index;
  message_match(s);
  return index;
}

int perigee_recv_imm(struct perigee_session *s, int64_t timeout) {
  ENTER(s->engine);
  int status;
  /* Immediates that came before the session's end can still be received. */
  if (!session_open_for(s, &status) && s->messages.imm_count == 0)
    return status;
  struct operation *op = operation_take(s, &recv_imm_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  operation_start(op, timeout);
  list_append(&s->messages.recv_imms, &op->queue);
  int index = op->index;
  immediates_match(s);
  return index;
}
