/* SPDX-License-Identifier: Apache-2.0
 *
 * support_inside.h - what tests ask of the core's inside. Apart from
 * support.h, as cmocka and the core both have a fail().
 */
#ifndef SUPPORT_INSIDE_H
#define SUPPORT_INSIDE_H

#include "perigee.h"

/* Bytes of the session's own arena that are in use: 0 when it is idle. */
uint64_t lent_bytes(const struct perigee_session *session);
/* The name of an operation's state in its table. */
const char *state_of(struct perigee_engine *engine, int operation);
/* Is some call or message of the peer in the state? */
bool serves_in(struct perigee_engine *engine, const char *state);
/* As if every free operation had been used so often since. */
void operations_age(struct perigee_engine *engine, uint32_t uses);
/* Timeouts count from now on, and the next poll looks at the clock. */
void timers_begin(struct perigee_engine *engine);
/* The next poll looks at the clock and the sockets. */
void look_at_clock(struct perigee_engine *engine);
/* A line on the first operation that is under way. */
const char *what_is_left(struct perigee_engine *engine);
/* The id of the session that a connect under way makes. */
uint32_t session_of(struct perigee_engine *engine, int operation);
/* The listener that takes in moved sessions only, NULL if there is none yet. */
struct perigee_listener *moved_to(struct perigee_engine *engine, bool tcp);
/* Nobody hears at a listener any more, though it is there. */
void deafen(struct perigee_listener *listener);
/* How long those who come from now on may take for their hello. */
void set_hello_timeout(struct perigee_engine *engine, int64_t timeout);
bool on_same_host(const struct perigee_session *session);
/* Does the look-up of this address find one of the family (AF_INET)? */
bool looked_up(struct perigee_engine *engine, const char *address, int family);

/* Of the table of operations: how many of it are touched, and the generation that
 * one had last. */
uint32_t table_touched(const struct perigee_engine *engine);
uint32_t generation_at(const struct perigee_engine *engine, uint32_t index);
/* As if so many sessions had ended; is malloc still to be asked for memory? */
void sessions_ended(struct perigee_engine *engine, int count);
bool heap_waits(const struct perigee_engine *engine);
/* Of shared memory: has a word of a segment of our arena gone to the peer, true
 * or not; how many were said of segments that are there. */
bool say_segment(struct perigee_session *, uint32_t segment, uint32_t there,
                 int fd);
uint32_t segments_said(const struct perigee_session *session);
/* Of the peer's, how many have we heard of? */
uint32_t segments_heard(const struct perigee_session *session);
/* A record goes that refers to a segment of which nobody will hear. */
void refer_unheard(struct perigee_session *session, bool reply);
/* A word of the lane's that nobody knows, with a descriptor: did it go? */
bool say_to_lane(struct perigee_session *session, int fd);
/* WAKE frames until the session's socket takes no more: how many. */
int fill_socket(struct perigee_session *session);
/* Of segments, of all peers: no more than so many. */
void limit_segments(struct perigee_engine *engine, uint64_t most);
/* Bytes of one. */
uint64_t segment_bytes(const struct perigee_session *session);

#endif
