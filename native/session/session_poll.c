/* SPDX-License-Identifier: Apache-2.0
 *
 * session_poll.c - a session's part of a poll: what its lane and its socket
 * have, then the records of its two rings, in turns. Requests beyond the peer's
 * share stay in their ring.
 */
#include <sys/ioctl.h>

#include "base/least.h"
#include "base/stamp.h"
#include "call/calls.h"
#include "core/engine.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "sessions.h"

enum { BULKS = RECORD_HEAD_BULK | RECORD_SLICE_BULK };
enum { RECORDS_A_POLL = 64, SPARE_OPERATIONS = 8 };
/* UNTAKEN: with so many replies that the peer has not read, its requests wait.
 * IMMEDIATES_FREE: immediates that do not count against the peer. */
enum { UNTAKEN = 64, IMMEDIATES_FREE = 1024 };

/* ---- How many requests a poll reads -------------------------------------- */

/* Returns how many requests the table has entries for. A peer that has more than
 * a new one leaves some entries of a table that own operations have nearly
 * filled. */
static uint64_t requests_room(const struct perigee_session *s) {
  const struct perigee_engine *engine = s->engine;
  const struct share *peer = s->account.share->parent;
  uint32_t most = engine->options.operations, spare = SPARE_OPERATIONS;
  if (peer->used[SHARE_OPERATIONS] >
      engine->shares.quota[SHARE_OPERATIONS].least)
    spare += most / 32;
  uint32_t taken = engine->live + spare;
  return taken < most ? most - taken : 0;
}

/* As requests_allowed, for a peer that is near one of its limits. */
static __attribute__((noinline)) uint64_t
requests_allowed_few(const struct perigee_session *s) {
  const struct perigee_options *o = &s->engine->options;
  const struct share *peer = s->account.share->parent;
  uint64_t serving = s->account.share->used[SHARE_OPERATIONS],
           n = least(RECORDS_A_POLL, requests_room(s));
  bool lies = peer->unread_replies / 4 >= o->untaken;
  if (s->engine->withholds || serving >= o->serving ||
      s->replies.untaken >= UNTAKEN || s->replies.untaken_bytes >= o->untaken ||
      (lies && (serving > 0 || s->replies.untaken > 0)) || n == 0)
    return 0;
  if (lies)
    n = 1; /* other sessions of the peer do not stop this one entirely */
  if (n > o->serving - serving)
    n = o->serving - serving;
  while (n > 0 && !share_may(s->account.share, SHARE_OPERATIONS, n))
    n /= 2;
  if (n == 0 && serving == 0 && share_spare(s->account.share, SHARE_OPERATIONS))
    n = 1; /* nor do requests that they have in service */
  if (s->messages.imm_count >= IMMEDIATES_FREE && immediates_room(s) < n)
    n = immediates_room(s); /* each request may be an immediate */
  if (peer->reply_size * n <= o->untaken - s->replies.untaken_bytes)
    return n;
  uint64_t left =
      (o->untaken - s->replies.untaken_bytes) / peer->reply_size + 1;
  return left < n ? left : n;
}

/* Returns how many requests this poll may read. Those of a peer beyond its
 * share wait in its ring. */
static uint64_t requests_allowed(const struct perigee_session *s) {
  const struct perigee_engine *engine = s->engine;
  const struct share *peer = s->account.share->parent;
  uint64_t after = peer->used[SHARE_OPERATIONS] + RECORDS_A_POLL;
  uint64_t more = s->replies.untaken | peer->reply_size |
                  s->messages.imm_count / IMMEDIATES_FREE | engine->withholds;
  bool newcomer = after <= engine->shares.quota[SHARE_OPERATIONS].least &&
                  more == 0 && engine->live < engine->shares.easy;
  return newcomer ? RECORDS_A_POLL : requests_allowed_few(s);
}

void perigee_withhold(struct perigee_engine *engine, bool on) {
  ENTER(engine);
  engine->withholds = on;
  engine->progress++;
}

/* ---- Records whose payloads are announced by frames ---------------------- */

/* Is the memory of a payload mapped here already? Additional lanes map none. */
static bool source_is_mapped(struct perigee_session *s,
                             const struct source *source) {
  const struct transport_loans *l = lane_table(s->lane)->loans;
  return source_lane(source) > 0 || !l->knows || l->knows(s->lane, source);
}

static bool record_is_mapped(struct perigee_session *s,
                             const struct record *r) {
  bool head = r->flags & RECORD_HEAD_BULK, slice = r->flags & RECORD_SLICE_BULK;
  return (!head || source_is_mapped(s, &r->head_source)) &&
         (!slice || source_is_mapped(s, &r->slice_source));
}

/* Are there lanes of the numbers that it names, which bring payloads? */
static bool record_names_lanes(const struct perigee_session *s,
                               const struct record *r) {
  bool head = r->flags & RECORD_HEAD_BULK, slice = r->flags & RECORD_SLICE_BULK;
  return (!head || lanes_bring(s, source_lane(&r->head_source))) &&
         (!slice || lanes_bring(s, source_lane(&r->slice_source)));
}

static uint64_t socket_unread(const struct perigee_session *s) {
  int bytes = 0;
  if (s->socket.fd >= 0 && ioctl(s->socket.fd, FIONREAD, &bytes) < 0)
    bytes = 0;
  return (uint64_t)bytes;
}

/* The frame that announces the record's memory was sent before the record, so
 * it is in the socket by now. The socket is read once a poll, however much the
 * peer sends; until everything is read that was there, the record waits, and
 * with it those behind it in its ring. The payload will read as zeros if the
 * peer has announced nothing. Returns false if the record still has to wait. */
static bool record_frames_are_read(struct perigee_session *s,
                                   struct deferred *u, const struct record *r) {
  if (u->until == 0)
    u->until = s->socket.wire.received + socket_unread(s);
  if (!s->inbox.looked)
    socket_look(s);
  s->inbox.looked = true;
  bool waits = s->socket.wire.received < u->until && !s->socket.hangup &&
               !record_is_mapped(s, r);
  return s->state == PERIGEE_SESSION_OPEN && !waits;
}

/* Looks first at memory that was never read, within what a poll may copy. */
static bool source_is_looked_at(struct perigee_session *s,
                                const struct source *source) {
  const struct transport_loans *l = lane_table(s->lane)->loans;
  uint64_t work = s->engine->budget.left;
  if (source_lane(source) > 0 || !l->looks)
    return true;
  bool over = l->looks(s->lane, source, &work);
  if (work > 0) {
    engine_spend(s->engine, work);
    s->engine->moved = true;
  }
  s->engine->progress += !over;
  return over;
}

/* Only raw heads are viewed. */
static bool record_is_looked_at(struct perigee_session *s,
                                const struct record *r) {
  bool raw = (r->flags & (RECORD_HEAD_BULK | RECORD_TYPED)) == RECORD_HEAD_BULK;
  return !raw || source_is_looked_at(s, &r->head_source);
}

/* Returns 1 if a record with payloads outside of the ring can be served now, 0
 * if it waits, or PERIGEE_PROTOCOL. */
static __attribute__((noinline)) int
record_take_bulks(struct perigee_session *s, enum ring ring, struct deferred *u,
                  const struct record *r) {
  if (!record_names_lanes(s, r))
    return PERIGEE_PROTOCOL;
  if ((record_is_mapped(s, r) || record_frames_are_read(s, u, r)) &&
      record_is_looked_at(s, r))
    return 1;
  s->inbox.deferred[ring] = *u;
  return 0;
}

/* Does a record wait whose bytes must stay in the ring? */
static inline bool records_wait(const struct perigee_session *s) {
  return s->inbox.deferred[RING_REQUEST].bytes ||
         s->inbox.deferred[RING_REPLY].bytes;
}

/* ---- Records ------------------------------------------------------------- */

/* A record that waited is decoded again, as the peer may have changed it. */
static int ring_next_record(struct perigee_session *s, enum ring ring,
                            struct deferred *next) {
  struct deferred *waits = &s->inbox.deferred[ring];
  next->until = 0;
  if (!waits->bytes)
    return lane_peek(s->lane, ring, &next->bytes, &next->length);
  *next = *waits;
  waits->bytes = NULL;
  return 1;
}

/* Handles one record: returns 1, 0 if there is none, or a status. Inlined, so
 * that there is one for each ring. */
static inline __attribute__((always_inline)) int
ring_poll(struct perigee_session *s, enum ring ring) {
  struct deferred next;
  struct record record;
  int status = ring_next_record(s, ring, &next);
  if (status <= 0)
    return status;
  STAMP(STAMP_SEEN);
  s->inbox.taken = true;
  status = record_decode(next.bytes, next.length, &record);
  if (status < 0)
    return status;
  if (UNLIKELY(record.flags & BULKS) &&
      (status = record_take_bulks(s, ring, &next, &record)) <= 0)
    return status;
  s->engine->progress++;
  if (ring == RING_REQUEST)
    status = serve_record(s, &record);
  else if (record.kind == RECORD_REPLY)
    call_reply(s, &record);
  else
    status = PERIGEE_PROTOCOL;
  return status < 0 ? status : 1;
}

/* May another request be read? There must be room for it, the one before must
 * not be arriving still (served_hold_back), and the requests of this poll must
 * not take the program long, as it serves all of them before others have a
 * turn. */
static bool requests_read_on(const struct perigee_session *s,
                             uint64_t allowed) {
  return allowed > 0 && !s->inbox.arriving &&
         !engine_is_asked_enough(s->engine);
}

static int ring_poll_requests(struct perigee_session *s, uint64_t *allowed) {
  if (!requests_read_on(s, *allowed))
    return 0;
  --*allowed;
  return ring_poll(s, RING_REQUEST);
}

static inline bool session_goes_on(const struct perigee_session *s) {
  return engine_room(s->engine) && s->state == PERIGEE_SESSION_OPEN;
}

/* False: ring_poll() would return 0. */
static inline bool ring_waits(const struct perigee_session *s, enum ring ring) {
  return lane_has(s->lane, ring) || s->inbox.deferred[ring].bytes;
}

/* Reads one record of each ring in turn. A ring that was empty is not looked at
 * again in this poll: what arrives meanwhile is found by the next one. So 0
 * says that nothing could be taken when both were looked at: a record may wait
 * (record_take_bulks). Only replies are fetched ahead: a server has mostly caught
 * up with its callers, and is no faster for it. */
static __attribute__((noinline)) int rings_read(struct perigee_session *s,
                                                int replies, int requests) {
  int found = 0, budget = RECORDS_A_POLL;
  s->inbox.looked = false;
  uint64_t allowed = requests ? requests_allowed(s) : 0;
  for (; (replies | requests) && budget > 0; budget--) {
    if (replies) {
      if ((replies = ring_poll(s, RING_REPLY)) < 0)
        return replies;
      found |= replies;
      if (!session_goes_on(s))
        return 1;
    }
    if (requests) {
      if ((requests = ring_poll_requests(s, &allowed)) < 0)
        return requests;
      found |= requests;
      if (!session_goes_on(s))
        return 1;
    }
    replies = replies && ring_waits(s, RING_REPLY);
    if (UNLIKELY(replies != 0))
      lane_ahead(s->lane, RING_REPLY);
    requests = requests && ring_waits(s, RING_REQUEST);
  }
  return found;
}

static inline int rings_poll(struct perigee_session *s) {
  bool replies = ring_waits(s, RING_REPLY),
       requests = ring_waits(s, RING_REQUEST);
  return replies || requests ? rings_read(s, replies, requests) : 0;
}

/* ---- Sessions ------------------------------------------------------------ */

bool session_rests(const struct perigee_session *s) {
  return engine_releases(s->engine) &&
         requests_read_on(s, requests_allowed(s)) && engine_room(s->engine) &&
         !s->socket.hangup && !drain_owes(s) && !records_wait(s) &&
         !s->polled.unsure &&
         list_empty(&s->operations.backlog[RING_REQUEST]) &&
         list_empty(&s->operations.backlog[RING_REPLY]);
}

/* Has everything been handled that the peer sent before it left? It is asked
 * when no record could be taken. A reply that waits is still being looked at,
 * which ends (source_is_looked_at), and so are those behind it. Requests need
 * no answer any more. */
static inline bool session_is_over(const struct perigee_session *s) {
  return s->socket.hangup && !s->inbox.deferred[RING_REPLY].bytes;
}

/* Called after everything was handled that arrived before the lane broke. */
bool session_broken(struct perigee_session *s) {
  const char *reason;
  int status = lane_state(s, &reason);
  if (status < 0)
    session_end(s, status, reason);
  return status < 0;
}

/* Hears the frames of a session whose lane has taken over its socket. */
static void session_hear_lane(struct perigee_session *s) {
  if (s->streams.state == STREAMS_LANE)
    attach_wanted(s);
  session_hear(s);
}

/* Gives back the room of records whose bytes nobody reads any more. */
static inline void session_release(struct perigee_session *s) {
  bool over = engine_releases(s->engine) && !records_wait(s);
  if (!over)
    return;
  s->inbox.taken = false;
  if (lane_release(s->lane))
    session_wake(s);
}

/* Is there more to do, beside rings that can be looked at? */
static inline bool session_has_more(const struct perigee_session *s) {
  return !lane_shows(s->lane) ||
         !list_empty(&s->operations.backlog[RING_REQUEST]) ||
         !list_empty(&s->operations.backlog[RING_REPLY]);
}

/* Does that; false: no record is to be read now. */
static __attribute__((noinline)) bool
session_do_more(struct perigee_session *s) {
  const struct perigee_transport *t = lane_table(s->lane);
  if (t->poll && t->poll(s->lane)) {
    s->engine->progress++;
    liveness_heard(s);
  }
  if (s->streams.state != STREAMS_SOCKET && !s->alone)
    session_hear_lane(s);
  if (s->state != PERIGEE_SESSION_OPEN)
    return false;
  if (!list_empty(&s->operations.backlog[RING_REQUEST]))
    backlog_flush(s, RING_REQUEST);
  if (!list_empty(&s->operations.backlog[RING_REPLY]))
    backlog_flush(s, RING_REPLY);
  return session_goes_on(s);
}

/* After session_wake_soon: wakes the peer if it fell asleep meanwhile. The fence is
 * that of wanted() (shm.c), and so is its partner, in arm(). */
static void session_sure(struct perigee_session *s) {
  const struct lane_head *head = (const struct lane_head *)s->lane;
  s->polled.unsure = false;
  atomic_thread_fence(memory_order_seq_cst);
  if (atomic_load_explicit(head->armed, memory_order_relaxed) != 0)
    session_wake(s);
}

static const char *records_trouble(int status) {
  return status == PERIGEE_NO_MEMORY
             ? "there was no memory for a record of the peer's"
             : "the peer broke the protocol: a record that no Perigee of this "
               "version writes";
}

static inline __attribute__((always_inline)) void
session_look(struct perigee_session *s) {
  if (s->state != PERIGEE_SESSION_OPEN)
    return;
  if (s->inbox.taken || !lane_shows(s->lane))
    session_release(s);
  if (s->polled.unsure)
    session_sure(s);
  if (session_has_more(s) && !session_do_more(s))
    return;
  int status = rings_poll(s);
  if (UNLIKELY(status < 0))
    session_end(s, status, records_trouble(status));
  else if (status == 0 && session_is_over(s))
    session_end(s, PERIGEE_PEER_LOST, s->ended.reason);
  else if (status == 0)
    session_broken(s);
}

/* Polls a session that has no socket, several lanes, or a peer that drains. */
static __attribute__((noinline)) void
session_attend(struct perigee_session *s) {
  if (s->alone)
    s->alone->poll(s);
  else if (s->state == PERIGEE_SESSION_OPEN)
    lanes_poll(s);
  session_look(s);
  if (s->state == PERIGEE_SESSION_OPEN)
    drain_turn(s);
}

void session_poll(struct perigee_session *s) {
  if (s->attends)
    session_attend(s);
  else
    session_look(s);
}
