/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.h - the lanes of a session, and the sessions that polls look at. The first
 * lane (number 0, session->lane) exists for as long as the session. It carries all
 * records, frames, loans and marks of operations, and every payload that no other
 * lane takes. Numbers 1 and up are additional lanes (transport.h, Additional). They
 * carry payloads and one-sided copies of kinds of memory that the first lane
 * cannot reach by itself.
 *
 * Negotiation (lane_offers.c). The TERMS of each side name its additional
 * transports, each with a + before its name; older peers ignore such names.
 * Transports that both sides name get the numbers 1 and up, in the dialer's
 * order. A session has no additional lanes if one side lacks the feature
 * "lanes", if a side has asked by name that the first lane is sealed or has MACs
 * (additional lanes have neither), or if the session has no socket. A transport
 * that hands descriptors to its peer may have another one in its place in a
 * session over TCP. Each side sends EXTRA once for each number, after its OFFER
 * and before its READY. So when a session opens, both sides know the state of
 * every number, and operations choose lanes from the start.
 *
 *   state     event                                            becomes
 *   agreed    this side has made its half and sent OFFER       offered
 *   agreed    this side cannot make its half and sends LOST    lost
 *   offered   this side has joined the peer's OFFER            open
 *   offered   it cannot join it and sends LOST, or gets LOST   lost
 *   open      it finds the lane broken, or gets LOST           lost
 *
 * A lost lane stays lost. Operations that were under way on it fail, no other
 * begins there, and the session goes on.
 *
 * Choice. The owner of a payload chooses its lane when it makes the record, by
 * the kind of memory and the length; the source in the record names the lane.
 * The receiver uses that lane, whatever memory it receives into. For an item of
 * a transfer the side that asks chooses: the first lane if that reaches the
 * item; else a lane whose transport has attached a key of the region, if that
 * lane reaches the local memory and the item is long enough; else it asks the
 * region's owner over the first lane. A region has a key for each lane of its
 * owner that serves the region's kind of memory. An additional lane also copies
 * between its memory and host memory that the first lane has mapped. It reads
 * only what the first lane finds there: the owner does the rest, since this
 * process would make the pages that are not.
 *
 * Ends. An operation ends once, by its own step: part_step() and
 * transfer_step() ask lanes_status(). A payload that was exposed to the peer
 * over a lane that is now lost ends with the peer's answer. The marks of the
 * first lane tell whether an operation is live. Bytes fetched over another lane
 * count only if that lane's own mark is set as well; it is set while the
 * payload is exposed there (part_live()).
 *
 * Ownership. The session owns the list, and the list owns its lanes. A lost
 * lane is kept until the session is freed, because operations that end still
 * refer to it. The session's end cuts all lanes.
 *
 * The peer names lanes in a source (lanes_bring() checks the number before the
 * record is taken; a wrong one is PROTOCOL), in EXTRA (lane_offers.c), and by bits
 * of FOUND (lookup.c).
 *
 * Faults (fault.h) are injected into each lane by its own dice; the fault `cut`
 * breaks that lane only.
 *
 * Cost. A session with one lane pays nothing: session_poll() tests `attends` in
 * place of the socket, and the rest is asked only for payloads that do not fit
 * into a ring. A session with a lane that has poll or broken pays a call of each
 * for each open lane in each of its polls.
 */
#ifndef LANES_H
#define LANES_H

#include <stdatomic.h>

#include "engine.h"

enum { LANES = 4, LANES_TOLD = 3 * REASON };
enum extra_state { EXTRA_AGREED, EXTRA_OFFERED, EXTRA_OPEN, EXTRA_LOST };

struct extra_lane {
  const struct perigee_transport *transport;
  struct lane *lane; /* NULL: this side has no half */
  uint8_t state;
  int status; /* status and reason, once lost */
  char why[REASON];
  uint64_t payloads, transfers, bytes; /* received or moved by this side */
};

struct lane_list {
  uint32_t count; /* entries of extra in use */
  uint32_t heard; /* how many numbers the peer has sent EXTRA for, in order */
  struct extra_lane extra[LANES - 1];
  char told[LANES_TOLD]; /* text of lanes_told() */
};

/* Returns the lane of a number that lanes_know(). */
static inline struct lane *session_lane(const struct perigee_session *s,
                                        uint32_t number) {
  return number == 0 ? s->lane : s->lanes->extra[number - 1].lane;
}

/* Returns whether there is a lane of that number, lost or not. */
static inline bool lanes_know(const struct perigee_session *s,
                              uint32_t number) {
  return number == 0 || (s->lanes && number <= s->lanes->count);
}

/* May a source name this lane? A lane that has only jobs brings none. */
static inline bool lanes_bring(const struct perigee_session *s,
                               uint32_t number) {
  return number == 0 || (lanes_know(s, number) &&
                         s->lanes->extra[number - 1].transport->payloads);
}

/* Returns PERIGEE_OK, or the status for which that lane is unusable, with a
 * sentence. */
int lanes_status(const struct perigee_session *, uint32_t number,
                 const char **why);
/* Returns why a lane was lost, or "" if none was. */
const char *lanes_trouble(const struct perigee_session *session);
/* Returns the lane that exposes a payload; 0: the first. */
uint32_t lanes_for(const struct perigee_session *, const struct payload *);
/* Returns the lane that moves bytes between local memory and the region of the
 * peer, which the first lane does not reach from there; 0: none. */
uint32_t lanes_reach(const struct perigee_session *,
                     const struct perigee_remote *,
                     const struct payload *local);
/* Returns the window by which a lane reaches the region: its own, or, for memory
 * of the host that is mapped here, that of the first lane. */
const struct window *lanes_window(const struct perigee_remote *,
                                  uint32_t number);
/* Returns what may end on an additional lane without an event (enum soon). */
uint8_t lanes_soon(const struct perigee_session *, uint32_t number);
/* Counts the use of a lane, for a payload that this side takes or for an item
 * of a transfer. */
void lanes_count(struct perigee_session *, uint32_t number, bool payload,
                 uint64_t bytes);

/* The additional lanes' part of a poll, of sleeping and of parking
 * (engine/poll.c). */
void lanes_poll(struct perigee_session *session);
void lanes_arm(struct perigee_session *session);
void lanes_disarm(struct perigee_session *session);
bool lanes_rest(const struct perigee_session *session);
/* Ends the use of a lane. `tell`: also sends LOST to the peer. */
void lanes_lose(struct perigee_session *, uint32_t number, int status,
                const char *why, bool tell);

/* Regions. The first two return the additional lane that may export the region
 * or attach its key, or NULL if it is lost or not for that kind of memory.
 * lanes_revoke() revokes on all lanes; lanes_inside() returns whether the peer
 * may still be inside. */
struct lane *lanes_to_export(const struct perigee_session *, uint32_t number,
                             const struct area *);
struct lane *lanes_to_attach(const struct perigee_session *, uint32_t number);
void lanes_revoke(struct perigee_session *, uint32_t slot);
/* The memory of an area that a lane told a peer of goes. False: one of these
 * peers could not be told, and it is to be called again. */
bool lanes_forget(struct perigee_engine *engine, const struct area *area);
bool lanes_inside(struct perigee_session *, uint32_t slot);

/* Called for every lane that was just opened: puts faults in front of its
 * transport if the engine has any. On failure it returns a status; the lane is
 * closed and *lane is NULL. */
int lane_inject(struct perigee_engine *, struct lane **,
                const struct perigee_transport **, struct offer *);
/* lanes_cut() is for a session that has ended, lanes_close() for one that is
 * freed or starts over, lanes_forked() for a session of the parent process. */
void lanes_cut(struct perigee_session *session);
void lanes_forked(struct perigee_session *session);
void lanes_close(struct perigee_session *session);

/* ---- The lane of an operation -------------------------------------------- */

/* Returns the status of a broken lane and why it broke, or PERIGEE_OK. */
int lane_state(const struct perigee_session *session, const char **reason);
/* Returns why its transport had no memory lately, or "". */
const char *lane_trouble(const struct perigee_session *session);
/* session_open_for() returns whether an operation may begin. If not,
 * session_tell_shut() sets the status and the error's text. */
void session_tell_shut(struct perigee_session *session, int *status);
static inline bool session_open_for(struct perigee_session *s, int *status) {
  if (s->state == PERIGEE_SESSION_OPEN && engine_alive(s->engine) &&
      !((const struct lane_head *)s->lane)->ending)
    return true;
  session_tell_shut(s, status);
  return false;
}
/* Returns PERIGEE_OK, or UNSUPPORTED with a sentence that names the missing
 * feature. */
int session_needs(struct perigee_session *session, uint64_t feature);
/* Wakes the peer, if it sleeps and wants to be woken. */
void session_wake(struct perigee_session *session);
/* Tells the peer's half of a lane: PERIGEE_OK, PERIGEE_AGAIN or
 * PERIGEE_NO_MEMORY. A dead peer is noticed by end of file. */
int lane_tell(struct perigee_session *session, const struct frame *frame);

/* Called after each record, of which there may be many before the next poll. A
 * peer that is seen asleep is woken at once. To see a peer that falls asleep at
 * this moment takes a fence between the record's stores and the load of
 * `armed`, and the fence waits for cache lines that the peer has. So the next
 * poll does that once for all records (session_sure). This side always polls
 * again before it sleeps, because it polls once after arming. A side that is
 * armed already, has a polling thread, or is parked fences at once.
 *
 * So does a side that a sleep has just ended for: its next poll, which
 * looks at the sockets, comes late. By then a caller that polled may have read
 * its reply and fallen asleep, and would be woken for nothing.
 *
 * The poll that will do it for an earlier record of this lane does it for this
 * one, too: nothing of the above changes until then. */
static inline void session_wake_soon(struct perigee_session *s) {
  const struct perigee_engine *engine = s->engine;
  const _Atomic uint32_t *armed = ((const struct lane_head *)s->lane)->armed;
  if (s->polled.unsure &&
      atomic_load_explicit(armed, memory_order_relaxed) == 0)
    return;
  bool polls = armed && !s->polled.parked &&
               !(engine->armed | engine->sockets_due) && !engine->thread;
  if (polls && atomic_load_explicit(armed, memory_order_relaxed) == 0)
    s->polled.unsure = true;
  else
    session_wake(s);
}

/* ---- The sessions that polls look at ------------------------------------- */

void hot_enter(struct perigee_session *session);
void hot_leave(struct perigee_session *session);
/* Parks it. Its lane must be armed, with nothing to poll for. */
void hot_park(struct perigee_session *session);
/* Makes a parked session hot, as there may be something to poll for. */
void hot_activate(struct perigee_session *session);
/* Notes that the session is in use, and makes it hot. */
static inline void hot_use(struct perigee_session *session) {
  session->polled.used = session->engine->now;
  if (session->polled.parked)
    hot_activate(session);
}

#endif
