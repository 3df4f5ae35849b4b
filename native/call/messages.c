/* SPDX-License-Identifier: Apache-2.0
 *
 * messages.c - what the peer sends without a call: messages, which wait for
 * receives and match them in order, and immediates, which wait in a queue of the
 * session; and the operations that receive them. serve.c takes messages in and
 * brings their bytes (serve_fetch).
 *
 *   a receive is   event                                    becomes
 *   posted         the next message is for it               landing
 *   landing        the message has come whole               ended
 *   landing        its sender gave the message up           posted, in its place
 *   posted         a later receive has had the next         ended: cancelled
 *   any            its time is over, it is cancelled        ended, once nothing
 *                                                           is copied there
 */
#include <stdlib.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
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

static uint64_t immediate_take(struct perigee_session *s) {
  uint64_t immediate = s->messages.immediates[s->messages.imm_first];
  s->messages.imm_first =
      (s->messages.imm_first + 1) & (s->messages.imm_room - 1);
  s->messages.imm_count--;
  return immediate;
}

static void immediates_match(struct perigee_session *s) {
  while (s->messages.imm_count > 0 && !list_empty(&s->messages.recv_imms)) {
    struct node *n = s->messages.recv_imms.next;
    struct operation *op = CONTAINER(n, struct operation, queue);
    op->value = immediate_take(s);
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
  s->counters->messages++;
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

/* Ends a receive that its message has reached. */
static void recv_reached(struct operation *recv, uint64_t length, int status) {
  struct session_messages *m = &recv->session->messages;
  if (recv->number > m->reached)
    m->reached = recv->number;
  recv->arriving = 0;
  recv->length = length;
  operation_finish(recv, status);
}

/* It would get a message that is younger than that of a later receive. */
static void recv_overtaken(struct operation *recv) {
  static const char text[] =
      "its sender gave the message up, and a later receive has had the next";
  recv->pointer = (const uint8_t *)text;
  recv->length = sizeof text - 1;
  operation_finish(recv, PERIGEE_CANCELLED);
}

/* Is the message of a later receive on its way? */
static bool recv_is_early(const struct session_messages *m,
                          const struct operation *recv) {
  const struct node *last = m->landings.previous;
  return last != &m->landings &&
         CONTAINER(last, const struct operation, queue)->number > recv->number;
}

/* Returns the receive that the next message is for, or NULL: there is none, or
 * it has to wait. One that has lost its message waits while a later one's is on
 * its way: once that has come, the next would be too young for it. */
static struct operation *recv_next(struct session_messages *m) {
  while (!list_empty(&m->recvs)) {
    struct operation *recv = CONTAINER(m->recvs.next, struct operation, queue);
    if (recv->arriving > 0) /* a lost message is still copied there */
      return NULL;
    if (recv->number > m->reached)
      return recv_is_early(m, recv) ? NULL : recv;
    recv_overtaken(recv);
  }
  return NULL;
}

/* Puts a receive back that has lost its message, before those behind it. */
static void recv_again(struct operation *recv) {
  struct node *recvs = &recv->session->messages.recvs, *at = recvs->next;
  while (at != recvs &&
         CONTAINER(at, struct operation, queue)->number < recv->number)
    at = at->next;
  operation_unqueue(recv);
  list_append(at, &recv->queue);
}

static void message_pair(struct operation *recv, struct operation *send) {
  operation_unqueue(recv);
  operation_unqueue(send);
  list_append(&recv->session->messages.landings, &recv->queue);
  int status = PERIGEE_TOO_LARGE;
  if (recv->place.total >= send->rest.length) {
    send->receiver = recv;
    recv->arriving = send->index + 1u;
    status = serve_fetch(send, &recv->place);
  }
  if (status == PERIGEE_OK)
    return;
  send->receiver = NULL;
  recv_reached(recv, send->rest.length, status);
  reply_status(send, status);
}

/* It will never come whole: its receive waits on, in its order, and is for
 * another message once nothing of this one is copied there any more. */
void message_lost(struct operation *served) {
  struct operation *recv = served->receiver;
  if (!operation_has_ended(recv))
    recv_again(recv);
}

void message_give_up(struct operation *op, int status) {
  op->status = status;
  message_lost(op);
  operation_unqueue(op);
  serve_give_up(op);
}

/* Ends messages on their way whose sender has given them up, from the last one
 * on: what has come after them may be for their receives. */
static void landings_prune(struct perigee_session *s) {
  struct session_messages *m = &s->messages;
  while (!list_empty(&m->landings)) {
    struct operation *recv =
        CONTAINER(m->landings.previous, struct operation, queue);
    struct operation *send = operation_find(s->engine, (int)recv->arriving - 1);
    if (served_wanted(send))
      return;
    message_give_up(send, PERIGEE_CANCELLED);
  }
}

/* A message that ends meanwhile calls it again, and leaves the rest to it. */
static void message_match(struct perigee_session *s) {
  struct session_messages *m = &s->messages;
  struct operation *recv;
  if (m->matching)
    return;
  m->matching = true;
  while ((recv = recv_next(m)) && !list_empty(&m->sends)) {
    struct operation *send = CONTAINER(m->sends.next, struct operation, queue);
    if (served_wanted(send))
      message_pair(recv, send);
    else
      serve_lost(send);
  }
  m->matching = false;
}

/* A receive's message is over, so those behind it may go on. */
void message_next(struct perigee_session *s) {
  if (s->state == PERIGEE_SESSION_OPEN)
    message_match(s);
}

void message_arrived(struct operation *served) {
  struct perigee_session *s = served->session;
  landings_prune(s);
  served->length = served->rest.length;
  list_append(&s->messages.sends, &served->queue);
  message_match(s);
}

void message_released(struct operation *served) {
  struct operation *recv = served->receiver;
  struct perigee_session *s = recv->session;
  served->receiver = NULL;
  recv->arriving = 0;
  if (recv->quiet_wait)
    operation_settle(recv);
  message_next(s);
}

void message_done(struct operation *served) {
  struct operation *recv = served->receiver;
  served->receiver = NULL;
  recv->session->counters->messages++;
  recv->session->counters->bytes_received += served->rest.length;
  recv_reached(recv, served->rest.length, PERIGEE_OK);
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
  struct operation *op = operation_take(s, &recv_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  if ((status = message_payload(op, slice, true, &into)) < 0) {
    operation_free(op);
    return status;
  }
  op->place = into;
  op->arriving = 0;
  op->number = ++s->messages.posted;
  operation_ref_slice(op, slice);
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

int perigee_take_imm(struct perigee_session *s, uint64_t *immediate) {
  ENTER(s->engine);
  if (s->messages.imm_count == 0)
    return PERIGEE_AGAIN;
  *immediate = immediate_take(s);
  return PERIGEE_OK;
}
