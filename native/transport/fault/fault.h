/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h - fault injection: records and payloads are dropped, delayed,
 * duplicated, truncated or reordered, and lanes are cut, by a script with a
 * seed. Any transport can be wrapped. An engine without faults uses none of
 * this and pays nothing.
 *
 * The script is a text of words, separated by blanks or commas, each at most
 * once:
 *
 *   seed=N       seed of the random numbers (0 to 2^63). Without it the seed is
 *                random; explain() tells it
 *   drop=P       a record never arrives; a payload in progress stops for good
 *   delay=TIME   each record, payload and one-sided transfer is delayed for 0 to
 *                TIME ("5ms", "200us", "1s"; at most 60 s) before its first byte
 *                arrives, as by a long wire: transfers in progress at the same
 *                time are delayed at the same time, and records keep their order.
 *                Each step of the session's frames waits for the one before
 *   duplicate=P  a record arrives once more, later
 *   truncate=P   a record arrives without its end; a payload or a copy ends in
 *                "protocol"
 *   reorder=P    a record is overtaken by those behind it; a copy moves only a
 *                small part of what it was asked for
 *   cut=P        at a record or a step: the lane is broken for good; nothing
 *                passes any more, and this side's session ends in "peer_lost"
 *
 * P is a probability, 0 to 1. Faults are injected into what arrives at the side
 * that asks for them: the peer's records, and the payloads and copies that this
 * side moves. For faults in both directions, both sides have to ask.
 *
 * Guaranteed, whatever the script: every operation with a timeout ends once,
 * within its timeout; its memory is the caller's from then on; calls and
 * messages are delivered at most once (their records are numbered, and the core
 * drops records that it has seen, or older ones). Not guaranteed: an operation
 * without a timeout whose record was dropped waits until its session ends, and
 * so does memory that a request lent; requests that were overtaken are
 * delivered out of order; a duplicated immediate, which has no number, is
 * received twice; after a truncated record the session ends in "protocol";
 * records that are delayed when the peer closes are lost.
 *
 * A wrapped table, and each of its groups, is a copy of the transport's in
 * which the functions that inject faults are replaced. The lane is the
 * transport's own; its head points to the state kept here. So functions that
 * transports may get in future need nothing here. A record is delivered from a
 * block of exactly its length, so that a sanitizer finds reads beyond it.
 */
#ifndef FAULT_H
#define FAULT_H

#include "transport/transport.h"

struct script {
  uint64_t seed;
  bool seeded;
  double drop, duplicate, truncate, reorder, cut;
  int64_t delay; /* ns, the longest delay */
};
enum { SCRIPT_TEXT = 160 };

/* PERIGEE_OK, or PERIGEE_INVALID and a sentence. */
int script_parse(const char *text, struct script *script, char reason[REASON]);
/* Writes the script as script_parse reads it, without faults of probability
 * 0. */
void script_text(const struct script *script, char text[SCRIPT_TEXT]);

/* The faults of an engine. They outlive its lanes. */
struct faults;
int faults_open(const struct script *script, int64_t (*clock)(void *),
                void *context, struct faults **faults);
void faults_close(struct faults *faults);
/* Gives faults to a new lane, before it is joined, and returns the table to use
 * from then on. NULL without memory. */
const struct perigee_transport *faults_join(struct faults *faults,
                                            struct lane *lane);
/* Returns the time at which the next delayed record or step may go on, as
 * nothing else would wake a sleeping engine for it. Negative: nothing is
 * delayed. */
int64_t faults_due(const struct faults *faults, int64_t now);

#endif
