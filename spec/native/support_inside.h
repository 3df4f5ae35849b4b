/* SPDX-License-Identifier: Apache-2.0
 *
 * support_inside.h - what tests read and change inside the core. It is separate
 * from support.h because cmocka and the core both define fail().
 */
#ifndef SUPPORT_INSIDE_H
#define SUPPORT_INSIDE_H

#include "perigee.h"

/* Bytes of the session's arena in use; 0 when the session is idle, as what is
 * kept for staging in turn does not count. */
uint64_t lent_bytes(const struct perigee_session *session);
/* Of staging in turn: bytes that the session has for it; blocks from the oldest
 * that is in use on; is the youngest where short ones are? a limit for all
 * sessions together. */
uint32_t stretch_bytes(const struct perigee_session *session);
uint64_t lendable(const struct perigee_session *session); /* beside these */
/* Bytes after which a line of a ring or a block is used again, by this
 * processor's cache. */
uint64_t dropped_bytes(const struct perigee_session *session);
uint32_t turns_live(const struct perigee_session *session);
bool turns_is_short(const struct perigee_session *session);
/* Does it hold the two cores for such that share no cache? */
bool is_far(const struct perigee_session *session);
/* It does, until that is tried next. */
void be_far(struct perigee_session *session);
/* The same, as its one-sided writes tell. */
bool writes_are_far(const struct perigee_session *session);
/* Are its long records written past the caches? They are from now on. */
bool streams_records(const struct perigee_session *session);
void stream_records(struct perigee_session *session);
/* Its last long record was just before, whatever the session's clock says. */
void hurry_records(struct perigee_session *session);
/* Its requests' ring hears of a long record that is about to come. */
void hear_record(struct perigee_session *session, uint64_t length);
/* The session never tries whether its peer's payloads better go another way. */
void learn_no_ways(struct perigee_session *session);
/* It says that of the ways of payloads, two bits for each length. */
void say_ways(struct perigee_session *session, uint32_t word);
/* Bytes that are free in the ring of requests to the peer. */
uint64_t ring_left(const struct perigee_session *session);
/* Says that so much of the head of the peer's operation was taken. */
void lie_of_taking(struct perigee_session *liar, int operation,
                   uint32_t generation, uint64_t bytes);
/* Says of the youngest staging block in turn that so many bytes are staged, and
 * that the payload lies there. */
void lie_of_window(struct perigee_session *liar, uint64_t fed, uint64_t base);
/* How many bytes of its payload that block's head says are staged; how many of
 * the head of the peer's operation the session says it has taken. */
uint64_t window_fed(const struct perigee_session *session);
uint64_t bytes_taken(const struct perigee_session *session, int operation,
                     uint32_t generation);
/* The ns of the longest call of methods without a row of their own. */
uint64_t longest_call(const struct perigee_engine *engine);
/* Takes a pooled block for the session's peer; NULL: it may have no more. */
uint8_t *take_block(struct perigee_session *session, uint64_t length);
void limit_staging(struct perigee_engine *engine, uint64_t most);
/* Bytes of its arena that rest, as the peer has read them (shm_arena.c). */
uint64_t resting_bytes(const struct perigee_session *session);
/* Has the session's lane lend a block; returns whether it did. */
bool lends(const struct perigee_session *session, uint64_t length);
/* Bytes that the session's lane keeps for later, though nobody has them. */
uint64_t kept_bytes(const struct perigee_session *session);
/* The name of an operation's state in the state table. */
const char *state_of(struct perigee_engine *engine, int operation);
/* Whether a call or message from the peer is in this state. */
bool serves_in(struct perigee_engine *engine, const char *state);
/* Ages free operations: their generations go up by `uses`. */
void operations_age(struct perigee_engine *engine, uint32_t uses);
/* Starts the timers of new operations now; the next poll looks at the clock. */
void timers_begin(struct perigee_engine *engine);
/* The next poll looks at the clock and the sockets. */
void look_at_clock(struct perigee_engine *engine);
/* One line about the first operation that is in use. */
const char *what_is_left(struct perigee_engine *engine);
/* The id of the session that a pending connect is setting up. */
uint32_t session_of(struct perigee_engine *engine, int operation);
/* The listener that accepts only moved sessions; NULL if there is none yet. */
struct perigee_listener *moved_to(struct perigee_engine *engine, bool tcp);
/* Makes a listener deaf: connections to it are no longer accepted. */
void deafen(struct perigee_listener *listener);
/* The hello timeout of connections that come from now on. */
void set_hello_timeout(struct perigee_engine *engine, int64_t timeout);
bool on_same_host(const struct perigee_session *session);
/* Whether looking up this address finds one of the family (AF_INET). */
bool looked_up(struct perigee_engine *engine, const char *address, int family);

/* Of the table of operations: the number of entries in use so far, and the
 * last generation of one of them. */
uint32_t table_touched(const struct perigee_engine *engine);
uint32_t generation_at(const struct perigee_engine *engine, uint32_t index);
/* Acts as if `count` sessions had ended. heap_waits() tells whether the heap
 * is still to be trimmed. */
void sessions_ended(struct perigee_engine *engine, int count);
bool heap_waits(const struct perigee_engine *engine);
/* Shared memory: tells the peer that a segment of our arena is there or
 * gone, whether true or not; returns whether that was sent. segments_said()
 * counts the segments that the peer was told of. */
bool say_segment(struct perigee_session *, uint32_t segment, uint32_t there,
                 int fd);
uint32_t segments_said(const struct perigee_session *session);
/* The number of the peer's segments that it told us of. */
uint32_t segments_heard(const struct perigee_session *session);
/* Sends a record that refers to bytes of our arena at that offset, once so many
 * segments were told of; refer_unheard: to a segment that never is. */
void refer(struct perigee_session *session, bool reply, uint16_t said,
           uint64_t offset, uint64_t length);
void refer_unheard(struct perigee_session *session, bool reply);
/* Sends the lane an unknown word with a descriptor; returns whether it went. */
bool say_to_lane(struct perigee_session *session, int fd);
/* Sends WAKE frames until the session's socket is full; returns how many. */
int fill_socket(struct perigee_session *session);
/* Limits the number of segments that all peers together may have. */
void limit_segments(struct perigee_engine *engine, uint64_t most);
/* How many of the peer's segments are there now. */
uint32_t segments_shown(const struct perigee_session *session);
/* The peer's inbox, as the session has it mapped, and its length. */
const uint8_t *peer_inbox_of(const struct perigee_session *session,
                             uint64_t *length);
/* Its inbox: the rings in which the peer writes, and their length. */
const uint8_t *inbox_of(const struct perigee_session *session,
                        uint64_t *length);
/* The size of a segment. */
uint64_t segment_bytes(const struct perigee_session *session);
/* The session notes no more which pages of the peer's first segments are there,
 * only how many. */
void forget_bits(struct perigee_session *session, uint64_t segments);

#endif
