/* SPDX-License-Identifier: Apache-2.0
 *
 * lane_list.h - the lanes of a session. The first (number 0, session->lane) is
 * there for as long as the session, carries all records, frames, loans and marks
 * of operations, and whatever else no other lane takes. Numbers 1 and up are
 * additional ones (transport.h, Additional), for payloads and one-sided copies
 * of kinds of memory that the first cannot reach by itself.
 *
 * Negotiation (lane_offers.c). TERMS name a side's additional transports, each
 * with a + before its name, which no older peer looks for. Those that both name,
 * in the order of who dialed, are the numbers 1 and up; none, where one side does
 * not have the feature "lanes", where the first lane is sealed or has MACs (these
 * have not), or has no socket. Each side then says EXTRA once for each number,
 * behind its OFFER and before its READY. So when a session opens both sides know
 * the same of every number, and operations choose from the first on.
 *
 *   state     event                                            becomes
 *   agreed    this side's half is made, and OFFER said         offered
 *   agreed    it cannot be made: LOST said                     lost
 *   offered   the peer's OFFER is joined                       open
 *   offered   it cannot be joined: LOST said; or LOST heard    lost
 *   open      broken here: LOST said; or LOST heard            lost
 *
 * Lost is for good: nothing fails for it but what was under way there, nothing
 * more is begun, and the session goes on.
 *
 * Choice. Of a payload its owner chooses, by the kind of its memory and its
 * length, when the record is made: the source in the record has the lane's number.
 * The receiver follows, whatever memory it wants it in. Of an item of a transfer
 * who asks chooses: the first lane if that reaches it; else a lane whose transport
 * has attached a key of the region (its owner's lane made one: the region's memory
 * is of its kinds), if it reaches the local memory and the item is long enough;
 * else its owner is asked, by the first lane.
 *
 * Ends. An operation ends once, by its own step: part_step() and transfer_step()
 * ask lanes_status(). What was exposed to a peer over a lane that is lost now
 * ends by the peer's answer. Marks: an operation is live as the first lane's marks
 * say, and what was fetched over another counts if that lane's own mark says so,
 * too, which is set for as long as the payload is exposed there (part_live()).
 *
 * Ownership. The session owns the list, the list its lanes. A lane that is lost
 * stays until the session is freed, as operations that end still refer to it; the
 * session's end cuts all.
 *
 * Bytes of the peer that name a lane: a source's number (lanes_bring(), before a
 * record is taken: else PROTOCOL), EXTRA's (lane_offers.c), bits of FOUND (lookup.c).
 *
 * Faults (fault.h) are injected into each lane by its own dice; cut breaks that lane only.
 *
 * Cost. Of a session with one lane: nothing, as session_poll() looks at `attends`
 * where it looked whether there is a socket, and the rest is asked where a payload
 * does not fit into a ring. Of one with more: a call of poll and broken for each
 * lane and poll of the session.
 */
#ifndef LANE_LIST_H
#define LANE_LIST_H

#include "engine.h"

enum { LANES = 4, LANES_TOLD = 3 * REASON };
enum extra_state { EXTRA_AGREED, EXTRA_OFFERED, EXTRA_OPEN, EXTRA_LOST };

struct extra_lane {
  const struct perigee_transport *transport;
  struct lane *lane; /* NULL: there is no half here */
  uint8_t state;
  int status; /* if lost: */
  char why[REASON];
  uint64_t payloads, transfers, bytes; /* that this side took, or moved */
};

struct lane_list {
  uint32_t count; /* of those below that are in use */
  uint32_t heard; /* so many of the peer's halves, in order */
  struct extra_lane extra[LANES - 1];
  char told[LANES_TOLD]; /* of all of them, for people */
};

/* A lane by its number, which is known. */
static inline struct lane *session_lane(const struct perigee_session *s,
                                        uint32_t number) {
  return number == 0 ? s->lane : s->lanes->extra[number - 1].lane;
}

/* Is there a lane of that number, lost or not? */
static inline bool lanes_know(const struct perigee_session *s,
                              uint32_t number) {
  return number == 0 || (s->lanes && number <= s->lanes->count);
}

/* May a source name it? A lane that has jobs alone brings no payloads. */
static inline bool lanes_bring(const struct perigee_session *s,
                               uint32_t number) {
  return number == 0 || (lanes_know(s, number) &&
                         s->lanes->extra[number - 1].transport->payloads);
}

/* PERIGEE_OK, or why nothing goes over that lane any more, with a sentence. */
int lanes_status(const struct perigee_session *, uint32_t number,
                 const char **why);
/* What the lane that was lost last is lost for, or "". */
const char *lanes_trouble(const struct perigee_session *session);
/* Which lane exposes a payload, */
uint32_t lanes_for(const struct perigee_session *, const struct payload *);
/* or moves so much between local memory and a window that the first does not
 * reach: 0: none. */
uint32_t lanes_reach(const struct perigee_session *,
                     const struct perigee_remote *,
                     const struct payload *local);
/* It was used, for a payload that this side takes or an item of a transfer. */
void lanes_count(struct perigee_session *, uint32_t number, bool payload,
                 uint64_t bytes);

/* Their part of a poll; of sleeping and parking (schedule.c). */
void lanes_poll(struct perigee_session *session);
void lanes_arm(struct perigee_session *session);
void lanes_disarm(struct perigee_session *session);
bool lanes_rest(const struct perigee_session *session);
/* Ends the use of one, and tells the peer, unless it was the peer that told. */
void lanes_lose(struct perigee_session *, uint32_t number, int status,
                const char *why, bool tell);

/* Regions. The additional lane that a region may be exported by, or a key be
 * attached by; NULL: it is lost, or not for that kind of memory. Revoked on all;
 * may the peer be inside? */
struct lane *lanes_to_export(const struct perigee_session *, uint32_t number,
                             const struct area *);
struct lane *lanes_to_attach(const struct perigee_session *, uint32_t number);
void lanes_revoke(struct perigee_session *, uint32_t slot);
bool lanes_inside(struct perigee_session *, uint32_t slot);

/* Of any lane that was opened just now: it has faults from the beginning, and their
 * table, if they were asked for. A status: it is closed, and NULL. */
int lane_inject(struct perigee_engine *, struct lane **,
                const struct perigee_transport **, struct offer *);
/* The session has ended; it is freed, or begins anew. */
void lanes_cut(struct perigee_session *session);
void lanes_close(struct perigee_session *session);

#endif
