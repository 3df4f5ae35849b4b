/* SPDX-License-Identifier: Apache-2.0
 *
 * served.c - the states of the peer's operations (calls, which the program
 * answers; one-sided access and messages, which the core answers), what is
 * asked about one (does its caller still wait, does the ring wait for it, how
 * much time is left), and its end, which gives back what it owns and tells the
 * program; and replies: by a message, by a loan, by a status alone. serve.c takes
 * requests in.
 *
 *   state      event     becomes
 *   free       arrive    arrived    a record, decoded
 *   arrived    stall     stalled    no block is free for it or for its reply
 *   stalled    pulled    arrived    a block is free, or never will be
 *   arrived    pull      heading    the head has to be pulled, or is long and
 *                                   typed and is scanned in portions
 *   heading    pulled    arrived    it is complete and sound, or never will be
 *   arrived    serve     serving    REQUEST is given, or the core serves it
 *   arrived    ask       landing    LANDING is given
 *   landing    land      fetching   a place was named
 *   arrived    land      fetching   as above, by the core (WRITE, SEND)
 *   fetching   pulled    serving    all bytes have come, or never will
 *   serving    answer    free       the reply is in the ring, whole
 *   serving    wait      waiting    no room in the ring
 *   serving    refer     replied    the reply refers to this side's memory
 *   waiting    answer    told       it is in the ring now
 *   waiting    refer     replied
 *   replied    released  told       the caller's mark is gone
 *   told       given     free       SENT was polled
 *   landing    serve     serving    refused: only the answer is left
 *   heading, arrived, stalled, landing, fetching
 *              lost      gone       ABANDONED, if asked
 *   gone       given     free
 *   waiting, replied     lost       told       SENT with a status
 *   serving    lost      serving    the program still has to answer
 *
 * A reply is always sent, even to a call that has ended, as it releases the
 * request's loan. Memory of ours to which a reply refers is kept until the
 * caller's mark is gone.
 *
 * The program may take long to decode a request that is HELD. The ring behind
 * it is not read until the program has started it (perigee_started), as while a
 * request arrives.
 */
#include <string.h>

#include "base/typed.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "core/spans.h"
#include "core/stats_file.h"
#include "operation/loan.h"
#include "operation/operations.h"
#include "served.h"

const struct machine served_machine = {
    .name = "served",
    .taken = MACHINE_STEPS,
    .states = {"free", "arrived", "stalled", "heading", "landing", "fetching",
               "serving", "waiting", "replied", "told", "gone"},
    .events = {"arrive", "stall", "pull", "pulled", "serve", "ask", "land",
               "answer", "wait", "refer", "released", "given", "lost"},
    .next = {
        [FREE] = {[ARRIVE] = TO(ARRIVED)},
        [ARRIVED] = {[STALL] = TO(STALLED),
                     [PULL] = TO(HEADING),
                     [SERVE] = TO(SERVING),
                     [ASK] = TO(LANDING),
                     [LAND] = TO(FETCHING),
                     [LOST] = TO(GONE)},
        [STALLED] = {[PULLED] = TO(ARRIVED), [LOST] = TO(GONE)},
        [HEADING] = {[PULLED] = TO(ARRIVED), [LOST] = TO(GONE)},
        [LANDING] =
            {[LAND] = TO(FETCHING), [SERVE] = TO(SERVING), [LOST] = TO(GONE)},
        [FETCHING] = {[PULLED] = TO(SERVING), [LOST] = TO(GONE)},
        [SERVING] = {[ANSWER] = TO(FREE),
                     [WAIT] = TO(WAITING),
                     [REFER] = TO(REPLIED),
                     [LOST] = TO(SERVING)},
        [WAITING] =
            {[ANSWER] = TO(TOLD), [REFER] = TO(REPLIED), [LOST] = TO(TOLD)},
        [REPLIED] = {[RELEASED] = TO(TOLD), [LOST] = TO(TOLD)},
        [TOLD] = {[GIVEN] = TO(FREE)},
        [GONE] = {[GIVEN] = TO(FREE)},
    }};

bool served_wanted(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  return lane && served_open(op) &&
         lane_payloads(lane)->live(lane, op->peer_operation,
                                   op->peer_generation);
}

/* Stops reading the request ring, so that requests reach the program in the
 * order in which they were submitted. */
void served_hold_back(struct operation *op) {
  op->session->inbox.arriving = op;
}

void served_let_on(struct operation *op) {
  if (op->session && op->session->inbox.arriving == op)
    op->session->inbox.arriving = NULL;
}

/* ---- Its end ------------------------------------------------------------ */

/* Ends the reply's payloads, also those that the caller did not want. */
static void served_unmark(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->marked && lane) {
    lane_payloads(lane)->mark(lane, op->index, 0);
    if (lane_payloads(lane)->pushes)
      lane_payloads(lane)->ended(lane, op->index, op->generation);
  }
  op->marked = false;
}

/* Gives back the blocks of a pulled raw head, and of a reply. */
static void served_unlend(struct operation *op) {
  struct lane *lane = op->session ? op->session->lane : NULL;
  if (op->head_lent && lane)
    lane_table(lane)->loans->unloan(lane, &op->head_loan, !op->bulky);
  if (UNLIKELY(op->request_lent) && lane)
    lane_table(lane)->loans->unloan(lane, &op->request_loan, false);
  op->head_lent = op->request_lent = false;
}

/* With a polling thread: returns whether the program has replied and not polled
 * since. It may then still read the block of the request's head. */
static bool served_may_be_read(const struct operation *op) {
  const struct lock *lock = op->engine->lock;
  return lock && !lock->waiting && !lock->polling &&
         (op->bulky || op->request_lent) && !op->unseen;
}

/* With a progress thread: the program has seen the request, and may still read
 * it. */
static bool served_is_shown(const struct operation *op) {
  const struct lock *lock = op->engine->lock;
  bool over =
      !lock || lock->waiting || lock->polling || engine_is_aside(op->engine);
  return !over && op->kind == OP_SERVED;
}

/* Frees all but the operation itself; returns false while a copy is under
 * way. */
static bool served_settle(struct operation *op) {
  served_unmark(op);
  bool copying = !parts_end(op);
  if (UNLIKELY(copying != op->quiet_wait))
    op->quiet_wait = copying;
  if (UNLIKELY(copying)) {
    list_remove(&op->queue);
    operation_move(op);
    return false;
  }
  if (UNLIKELY(op->head_lent) && !served_is_shown(op) &&
      !served_may_be_read(op))
    served_unlend(op);
  if (UNLIKELY(op->has_more) && op->reserved > 0)
    room_give(op);
  operation_unref(op);
  return true;
}

/* Frees the operation, and the block of its head unless the program may still
 * read it. */
static void served_gone(struct operation *op) {
  served_let_on(op);
  if (UNLIKELY(op->head_lent) && !served_is_shown(op))
    served_unlend(op);
  operation_free(op);
}

/* Does SENT follow? One byte after the other: GCC makes one word of an
 * expression of them, and a load of more than the bytes that were just written
 * waits until these, and all stores before them, are in the cache: the
 * reply's, too, whose line the peer has (a quarter of a busy server's time). */
static bool served_sends(const struct operation *op) {
  if (op->state != TOLD)
    return false;
  if (op->record != RECORD_REQUEST)
    return false;
  return !op->unseen;
}

/* Has it been answered whole, and has nothing to end but the use of its memory? A
 * thread may keep what it showed the program. */
static inline bool served_ends_short(const struct operation *op) {
  return (op->rare | op->rare_served) == 0 && op->state == FREE &&
         !op->marked && !engine_copies(op->engine);
}

/* As served_tell(). */
static inline void served_end_short(struct operation *op) {
  served_let_on(op);
  operation_unqueue(op);
  operation_unref_regions(op);
  operation_uncount(op);
  operation_free_short(op);
}

void served_tell(struct operation *op) {
  if (LIKELY(served_ends_short(op))) {
    served_end_short(op);
    return;
  }
  if (!served_settle(op))
    return;
  if (served_sends(op) || op->landed) {
    op->flags = 0;
    op->pointer = NULL;
    op->length = 0;
    operation_event(op,
                    op->landed ? PERIGEE_EVENT_ABANDONED : PERIGEE_EVENT_SENT);
  } else if (op->state == FREE) {
    served_gone(op);
  } else {
    served_advance(op, GIVEN);
    served_gone(op);
  }
}

bool served_keeps(struct operation *op) {
  if (!served_is_shown(op) || (!op->block && !op->head_lent && !op->viewed))
    return false;
  list_append(&op->engine->late, &op->queue);
  return true;
}

void served_late(struct perigee_engine *engine) {
  struct node *n;
  while ((n = list_pop(&engine->late))) {
    struct operation *op = CONTAINER(n, struct operation, queue);
    served_unlend(op);
    operation_unview(op);
    pool_give(engine, op->block);
    op->block = NULL;
    operation_spare(op);
  }
}

bool served_survives(const struct operation *op) {
  return op->state == SERVING && op->event == PERIGEE_EVENT_NONE;
}

void served_given(struct operation *op) {
  served_advance(op, GIVEN);
  served_gone(op);
}

/* Calls in service outlive their session. */
static __attribute__((noinline)) int
served_has_no_caller(struct operation *op) {
  struct perigee_engine *engine = op->engine;
  served_count_lost(op);
  if (op->state == SERVING) {
    served_advance(op, ANSWER);
    served_tell(op);
  }
  return fail(engine, PERIGEE_PEER_LOST, "the caller is gone");
}

/* A call that the program answers or refuses. One byte after the other, as in
 * served_sends(). */
static bool served_is_open(const struct operation *op) {
  if (op->kind != OP_SERVED)
    return false;
  if (op->record != RECORD_REQUEST)
    return false;
  return op->state == SERVING || op->state == LANDING;
}

/* Returns a call that the program answers or refuses, also one without a
 * caller, or NULL. */
static struct operation *served_look_up(struct perigee_engine *engine,
                                        int index, int *status) {
  struct operation *op = operation_find(engine, index);
  if (!engine_alive(engine)) {
    *status = PERIGEE_FORKED;
    return NULL;
  }
  if (op && served_is_open(op))
    return op;
  *status = fail(engine, PERIGEE_INVALID, "no call %d is being served", index);
  return NULL;
}

struct operation *served_find(struct perigee_engine *engine, int index,
                              int *status) {
  struct operation *op = served_look_up(engine, index, status);
  if (!op || served_open(op))
    return op;
  *status = served_has_no_caller(op);
  return NULL;
}

/* ---- For the program ---------------------------------------------------- */

void perigee_started(struct perigee_engine *engine, int served) {
  ENTER(engine);
  struct operation *op = operation_find(engine, served);
  if (op && op->kind == OP_SERVED && op->state == SERVING)
    served_let_on(op);
}

bool perigee_served_cancelled(const struct perigee_engine *engine, int served) {
  LOOK(engine);
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  return !op || op->kind != OP_SERVED || !engine_alive(engine) ||
         !served_wanted(op);
}

int64_t perigee_served_remaining(const struct perigee_engine *engine,
                                 int served) {
  LOOK(engine);
  struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  if (!op || op->kind != OP_SERVED)
    return 0;
  if (op->deadline < 0)
    return -1;
  int64_t left = op->deadline - perigee_now(engine);
  return left < 0 ? 0 : left;
}

/* ---- Replies ------------------------------------------------------------- */

/* ---- Replying ----------------------------------------------------------- */

static bool reply_refers(const struct outgoing *out) {
  return out->record.flags & (RECORD_HEAD_BULK | RECORD_SLICE_BULK);
}

static void reply_sent(struct operation *op, enum served_event event) {
  served_advance(op, event);
  if (event == REFER && op->has_parts) {
    parts_feed(op);
    operation_move(op);
  } else if (event == REFER) {
    room_keep_reply(op);
  }
}

static int reply_plan(struct operation *op, const struct perigee_message *m,
                      struct outgoing *out) {
  struct record *r = &out->record;
  *r = (struct record){.kind = RECORD_REPLY,
                       .method = op->index,
                       .status = m->status,
                       .operation = op->peer_operation,
                       .generation = op->peer_generation,
                       .remaining = op->generation};
  return outgoing_plan(op, m, out);
}

/* The reply that is sent if the real one cannot be. */
static struct perigee_message reply_refusal(const struct operation *op,
                                            int status) {
  struct perigee_message m = {.status = status};
  if (op->record == RECORD_REQUEST && status == PERIGEE_NO_MEMORY) {
    const char *why = lane_trouble(op->session);
    m.head = *why ? why : "the peer has no room for it now (option pool)";
    m.length = strlen(m.head);
  } else if (op->record == RECORD_REQUEST && status == PERIGEE_PEER_LOST) {
    m.head = lanes_trouble(op->session);
    m.length = strlen(m.head);
  }
  return m;
}

/* The same, with the sentence that fail() has just noted, as far as it fits
 * into an eager record. */
static struct perigee_message reply_refusal_told(const struct operation *op,
                                                 int status) {
  struct perigee_message m = reply_refusal(op, status);
  if (op->record == RECORD_REQUEST && status == PERIGEE_TOO_LARGE) {
    m.head = fail_detail(op->engine);
    m.length = strnlen(m.head, op->session->peer.eager);
  }
  return m;
}

/* Plans the reply, or the refusal. Replies that would have to be exposed are
 * not sent to a caller that has given up; for short ones, looking would cost
 * more than sending. */
static int reply_plan_either(struct operation *op,
                             const struct perigee_message *m,
                             struct outgoing *out) {
  bool large = !op->head_lent &&
               (m->length > op->session->peer.eager || m->slice.region);
  int status = PERIGEE_CANCELLED;
  if (!large || served_wanted(op))
    status = reply_plan(op, m, out);
  if (status >= 0 || status == PERIGEE_AGAIN)
    return status;
  struct perigee_message none = reply_refusal_told(op, status);
  parts_end(op);
  reply_plan(op, &none, out);
  return status;
}

static inline uint64_t reply_bytes(const struct perigee_message *m) {
  return m->length + (m->slice.region ? slice_bytes(&m->slice) : 0);
}

/* Its time counts, perhaps; or the program has not got the call that is answered:
 * it was refused, or no landing of its slice was named. Returns whether the call
 * counts. */
static __attribute__((noinline)) bool
reply_take_time(struct operation *op, int status, uint64_t bytes) {
  const struct perigee_options *o = &op->engine->options;
  if (stats_is_served(op))
    stats_add_served(op, status, bytes);
  else if (span_has(op))
    span_end(op, o->clock(o->context), status, bytes);
  return stats_is_served(op);
}

/* A call is answered, by the program or not: a reply was published, or waits for
 * room; with the status that the caller gets, as far as that is known. */
static inline void reply_count(struct operation *op, int status,
                               uint64_t bytes) {
  if (UNLIKELY(op->engine->now >= op->long_at) &&
      !reply_take_time(op, status, bytes))
    return;
  stats_count_served(op, status, bytes, op->length + op->slice);
  op->long_at = 0;
}

void served_count_lost(struct operation *op) {
  reply_count(op, PERIGEE_PEER_LOST, 0);
}

/* What became of a reply, beside a status. NO_ROOM: it has to wait for room in
 * the ring, or for a block. REFERS: the caller has still to read what it refers
 * to. */
enum { NO_ROOM, WHOLE, REFERS };

/* Publishes a reply that is not short. Its memory is marked live before the
 * caller can see a reference to it. The array of a list may be gone if the reply
 * has waited, so its bytes are those of the plan. */
static __attribute__((noinline)) int
reply_publish_planned(struct operation *op, const struct perigee_message *m) {
  struct outgoing out;
  int status = reply_plan_either(op, m, &out);
  struct lane *lane = op->session->lane;
  if (status == PERIGEE_AGAIN)
    return NO_ROOM;
  if (reply_refers(&out)) {
    op->marked = true;
    lane_payloads(lane)->mark(lane, op->index, op->generation);
  }
  if (!outgoing_publish(op->session, RING_REPLY, &out))
    return NO_ROOM;
  bool refers = reply_refers(&out);
  reply_sent(op, refers ? REFER : ANSWER);
  if (UNLIKELY(status < 0))
    reply_count(op, status, 0);
  else
    reply_count(op, m->status,
                out.record.head_length + out.record.slice_length);
  return refers ? REFERS : status < 0 ? status : WHOLE;
}

static inline __attribute__((always_inline)) struct record
reply_record(const struct operation *op, uint8_t flags, uint64_t length) {
  return (struct record){.kind = RECORD_REPLY,
                         .flags = flags,
                         .method = op->index,
                         .operation = op->peer_operation,
                         .generation = op->peer_generation,
                         .remaining = op->generation,
                         .head_length = length};
}

static inline bool reply_was_published(struct operation *op, uint64_t length) {
  served_advance_from(op, SERVING, ANSWER);
  reply_count(op, PERIGEE_OK, length);
  return true;
}

static __attribute__((noinline)) bool reply_publish_bytes(struct operation *op,
                                                          uint8_t flags,
                                                          const uint8_t *bytes,
                                                          uint64_t length) {
  struct record r = reply_record(op, flags, length);
  return outgoing_bytes(op->session, RING_REPLY, &r, bytes) &&
         reply_was_published(op, length);
}

/* The same where the bytes are in room of the ring, but another record may have
 * come first. It is no part of the way of others: that would take them 27
 * instructions. */
static __attribute__((noinline)) bool reply_publish_room(struct operation *op,
                                                         const uint8_t *bytes,
                                                         uint64_t length) {
  struct record r = reply_record(op, 0, length);
  return outgoing_lent(op->session, RING_REPLY, &r)
             ? reply_was_published(op, length)
             : reply_publish_bytes(op, 0, bytes, length);
}

static inline bool reply_publish_loan(struct operation *op,
                                      const struct loan *loan,
                                      uint64_t length) {
  return UNLIKELY(loan->in_ring)
             ? reply_publish_room(op, loan->pointer, length)
             : reply_publish_bytes(op, 0, loan->pointer, length);
}

/* Publishes a reply, by a message that may be the program's still. */
static inline __attribute__((always_inline)) int
reply_publish(struct operation *op, const struct perigee_message *m) {
  uint64_t length;
  bool alone = m->status == PERIGEE_OK && !m->code;
  const uint8_t *bytes = alone ? outgoing_short(op, m, &length) : NULL;
  uint8_t flags = m->flags & PERIGEE_TYPED ? RECORD_TYPED : 0;
  if (bytes)
    return reply_publish_bytes(op, flags, bytes, length) ? WHOLE : NO_ROOM;
  return reply_publish_planned(op, m);
}

void reply_never(struct operation *op, int status) {
  span_lost(op, status);
  op->status = status;
  op->reply = reply_refusal(op, status);
  operation_unqueue(op);
  served_let_on(op);
  served_advance(op, PULLED);
  if (op->state != SERVING)
    served_advance(op, SERVE);
  served_advance(op, WAIT);
  backlog_add(op, RING_REPLY);
}

static int reply_over(struct operation *op, int status) {
  served_tell(op); /* ends it, unless a copy of its memory is in progress */
  return status < 0 ? status : 0;
}

/* Returns where the head of a reply that waits is kept: in place of the
 * request's, if the program does not read that any more. */
static uint8_t **reply_place(struct operation *op) {
  bool read = op->block && served_is_shown(op) && !op->slice_block;
  return read ? &op->slice_block : &op->block;
}

/* Keeps a reply that waits. A short head is copied, as it may be in the
 * ring. */
static void reply_keep(struct operation *op, const struct perigee_message *m) {
  op->reply = *m;
  if (m->length == 0 || m->length > op->session->peer.eager || !m->head)
    return;
  uint8_t *copy = pool_take(op->session, m->length);
  if (!copy) {
    op->reply = reply_refusal(op, PERIGEE_NO_MEMORY);
    return;
  }
  copy_any(copy, m->head, m->length);
  uint8_t **place = reply_place(op);
  pool_give(op->engine, *place);
  op->reply.head = *place = copy;
}

/* Bytes that a reply keeps: perhaps the whole block of the request's head. */
static uint64_t reply_kept_bytes(const struct operation *op, uint64_t length) {
  bool block = op->head_lent && op->head_loan.block > length;
  return block ? op->head_loan.block : length;
}

/* Counts a reply that the caller has not read yet. Long ones are counted in
 * bytes: the more there are, the longer the caller's requests wait. */
static int reply_count_unread(struct operation *op, uint64_t length) {
  struct perigee_session *s = op->session;
  op->untaken = true;
  op->left = length > s->peer.eager ? length : 0;
  s->replies.untaken++;
  s->replies.untaken_bytes += op->left;
  s->account.share->parent->unread_replies += op->left;
  operation_expose(op, reply_kept_bytes(op, op->left));
  room_look(s);
  return 1;
}

/* Learns from replies what a peer's requests may cost; short ones cost
 * nothing. */
static void reply_learn_size(struct perigee_session *s, uint64_t length) {
  uint64_t *size = &s->account.share->parent->reply_size;
  if (length > s->peer.eager && length > *size)
    *size = length;
  else
    *size -= (*size + 7) / 8;
}

static inline bool reply_costs(const struct perigee_session *s,
                               uint64_t length) {
  return UNLIKELY(length > s->peer.eager ||
                  s->account.share->parent->reply_size > 0);
}

/* As reply_publish(); a reply without room is kept. */
static inline __attribute__((always_inline)) int
reply_publish_or_wait(struct operation *op, const struct perigee_message *m) {
  struct node *backlog = &op->session->operations.backlog[RING_REPLY];
  int status = list_empty(backlog) ? reply_publish(op, m) : NO_ROOM;
  if (status != NO_ROOM)
    return status;
  reply_keep(op, m);
  reply_count(op, op->reply.status, reply_bytes(&op->reply));
  served_advance(op, WAIT);
  backlog_wait(op, RING_REPLY);
  return NO_ROOM;
}

/* The caller has too many unread replies: it gets a refusal in place of
 * this. */
static int reply_refuse_more(struct operation *op) {
  struct perigee_message none = reply_refusal(op, PERIGEE_NO_MEMORY);
  op->session->account.share->all->refused++;
  int status = reply_publish_or_wait(op, &none);
  if (status == NO_ROOM)
    return reply_count_unread(op, 0);
  reply_over(op, 1);
  return fail(op->engine, PERIGEE_NO_MEMORY,
              "the caller has left too many replies lie (option pool)");
}

/* Returns 1 if SENT will follow, 0 if the operation has ended. */
static inline __attribute__((always_inline)) int
reply_to(struct operation *op, const struct perigee_message *m) {
  struct perigee_session *s = op->session;
  uint64_t length = m->length;
  if (UNLIKELY(op->has_more) && op->reserved > 0)
    room_give(op);
  if (reply_costs(s, length)) {
    reply_learn_size(s, length);
    if (length > s->peer.eager && !share_may(s->account.share, SHARE_EXPOSED,
                                             reply_kept_bytes(op, length)))
      return reply_refuse_more(op);
  }
  int status = reply_publish_or_wait(op, m);
  if (status == NO_ROOM || status == REFERS)
    return reply_count_unread(op, length);
  return reply_over(op, status);
}

int reply_message(struct operation *op, const struct perigee_message *m) {
  return reply_to(op, m);
}

/* Publishes a reply that waited for room. */
bool reply_publish_waiting(struct operation *op) {
  if (reply_publish(op, &op->reply) == NO_ROOM)
    return false;
  if (op->state == TOLD)
    served_tell(op);
  return true;
}

static int reply_check_failure(struct perigee_engine *engine,
                               const struct perigee_message *m) {
  uint64_t text;
  if (!m->head)
    return fail_missing(engine, "head of a message");
  int status = failure_split(m->head, m->length, &text);
  if (status < 0)
    return fail(
        engine, status,
        "a failure that is PERIGEE_TYPED is a text, a zero, and at most "
        "%d bytes of typed values",
        FAILURE_MORE);
  return PERIGEE_OK;
}

static bool reply_affordable(struct perigee_engine *engine,
                             const struct perigee_message *m, int *status) {
  *status = PERIGEE_OK;
  if (!typed_is_due(m))
    return true;
  *status = m->status != PERIGEE_OK
                ? reply_check_failure(engine, m)
                : outgoing_typed(engine, m->head, m->length);
  return *status >= 0;
}

/* The caller gets the status in place of the reply. */
static int reply_refuse(struct operation *op, int status) {
  struct perigee_message none = reply_refusal_told(op, status);
  return reply_message(op, &none) == 1 ? 1 : status;
}

/* Uses the memory of a reply's slice, which it may name for some polls. */
static int reply_keep_slice(struct operation *op,
                            const struct perigee_message *m) {
  if (slice_is_list(&m->slice))
    return spread_keep(op, &m->slice, false);
  operation_ref(op, m->slice.region);
  return PERIGEE_OK;
}

/* A call that is answered by a message has no use for its loan any more. RANGE:
 * more was written than was lent. */
static inline int reply_leave_loan(struct operation *op) {
  struct loan *loan = &op->session->operations.loans[RING_REPLY];
  return UNLIKELY(loan->open) && loan->served == op->index
             ? loan_abort(op->session, RING_REPLY)
             : PERIGEE_OK;
}

static int reply_send(struct perigee_engine *engine, int served,
                      const struct perigee_message *m) {
  int status;
  struct operation *op = served_find(engine, served, &status);
  if (!op)
    return status;
  if (op->state == LANDING) { /* the program refused to name a landing */
    op->landed = false;
    served_let_on(op);
    served_advance(op, SERVE);
  }
  if (UNLIKELY(op->flags & PERIGEE_HELD))
    served_let_on(op);
  if (UNLIKELY((status = reply_leave_loan(op)) < 0))
    return reply_refuse(op, status);
  if (!reply_affordable(engine, m, &status))
    return reply_refuse(op, status);
  if (m->slice.region && (status = reply_keep_slice(op, m)) < 0)
    return reply_refuse(op, status);
  return reply_to(op, m);
}

BESIDE reply_send_locked(struct perigee_engine *engine, int served,
                         const struct perigee_message *m) {
  ENTER(engine);
  return reply_send(engine, served, m);
}

int perigee_reply(struct perigee_engine *engine, int served,
                  const struct perigee_message *m) {
  return SHARED(engine) ? reply_send_locked(engine, served, m)
                        : reply_send(engine, served, m);
}

void reply_status(struct operation *op, int status) {
  struct perigee_message m = reply_refusal_told(op, status);
  served_let_on(op);
  op->unseen = true;
  if (op->state != SERVING)
    served_advance(op, SERVE);
  if (served_open(op)) {
    reply_message(op, &m);
    return;
  }
  served_advance(op, ANSWER);
  served_tell(op);
}

/* A call without a caller stays until perigee_reply: if it were over now, its
 * number could be another call's by then. */
static int reply_lend(struct perigee_engine *engine, int served,
                      uint64_t capacity, struct perigee_loan *loan) {
  int status;
  struct operation *op = served_look_up(engine, served, &status);
  if (!op)
    return status;
  if (UNLIKELY(!served_open(op)))
    return fail(engine, PERIGEE_PEER_LOST, "the caller is gone");
  if (UNLIKELY(op->state == LANDING))
    return fail(engine, PERIGEE_INVALID, "call %d waits for its landing",
                served);
  if (op->roomy && capacity > op->session->peer.eager &&
      capacity <= op->value) {
    status = loan_begin_in(op->session, capacity, &op->room, loan);
    op->roomy = status < 0;
  } else {
    status = loan_begin(op->session, RING_REPLY, capacity, loan);
  }
  if (status == PERIGEE_OK) /* otherwise the open loan may be another call's */
    op->session->operations.loans[RING_REPLY].served = served;
  return status;
}

BESIDE reply_lend_locked(struct perigee_engine *engine, int served,
                         uint64_t capacity, struct perigee_loan *loan) {
  ENTER(engine);
  return reply_lend(engine, served, capacity, loan);
}

int perigee_reply_begin(struct perigee_engine *engine, int served,
                        uint64_t capacity, struct perigee_loan *loan) {
  return SHARED(engine) ? reply_lend_locked(engine, served, capacity, loan)
                        : reply_lend(engine, served, capacity, loan);
}

int perigee_reply_abort(struct perigee_engine *engine, int served) {
  ENTER(engine);
  struct operation *op = operation_find(engine, served);
  if (!op || !op->session || !engine_alive(engine) ||
      op->session->operations.loans[RING_REPLY].served != served)
    return PERIGEE_OK;
  return loan_abort(op->session, RING_REPLY);
}

/* The block of a pulled raw head goes when that of the reply comes, or with it
 * if the program may still read it. */
static void served_lent_another(struct operation *op) {
  bool stays = op->head_lent && !op->request_lent && served_is_shown(op);
  if (stays)
    op->request_loan = op->head_loan;
  else
    served_unlend(op);
  op->request_lent = stays;
}

/* The operation owns the block from here on. A head in the arena is referred to
 * where it is. Without a thread the program has read the request's head by now,
 * if it came to memory of ours. */
static int reply_block(struct operation *op, const struct loan *loan,
                       uint64_t length) {
  struct perigee_message m = {.head = loan->pointer, .length = length};
  served_lent_another(op);
  if (op->viewed && !served_is_shown(op) &&
      lane_table(op->session->lane)->loans->arrived)
    operation_unview(op);
  op->bulky = false;
  op->head_lent = true;
  op->head_loan = loan->source;
  return reply_message(op, &m);
}

/* The bytes are short, and known. */
static int reply_short(struct operation *op, const struct loan *loan,
                       uint64_t length) {
  struct perigee_session *s = op->session;
  if (list_empty(&s->operations.backlog[RING_REPLY]) &&
      reply_publish_loan(op, loan, length)) {
    if (reply_costs(s, length))
      reply_learn_size(s, length);
    return reply_over(op, 1);
  }
  return reply_message(
      op, &(struct perigee_message){.head = loan->pointer, .length = length});
}

static int reply_commit(struct perigee_engine *engine, int served,
                        uint64_t length) {
  int status;
  struct operation *op = served_find(engine, served, &status);
  if (!op)
    return status;
  struct perigee_session *session = op->session;
  struct loan *loan = &session->operations.loans[RING_REPLY];
  if (loan->open && loan->served != served)
    return fail(engine, PERIGEE_INVALID, "no such loan is open");
  if ((status = loan_check(session, RING_REPLY, length)) < 0)
    return status;
  if (UNLIKELY(op->flags & PERIGEE_HELD))
    served_let_on(op);
  status = loan_is_short(loan) ? reply_short(op, loan, length)
                               : reply_block(op, loan, length);
  loan_close(session, RING_REPLY);
  return status;
}

BESIDE reply_commit_locked(struct perigee_engine *engine, int served,
                           uint64_t length) {
  ENTER(engine);
  return reply_commit(engine, served, length);
}

int perigee_reply_commit(struct perigee_engine *engine, int served,
                         uint64_t length) {
  return SHARED(engine) ? reply_commit_locked(engine, served, length)
                        : reply_commit(engine, served, length);
}
