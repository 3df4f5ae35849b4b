/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h - faults on purpose: what a lane brings is dropped, delayed,
 * delivered twice, cut short or overtaken, and the lane cut, by a script with
 * a seed. Any transport can be wrapped; an engine that was not asked for
 * faults has none of this, and pays nothing.
 *
 * The script is a text, words apart by blanks or commas, each at most once:
 *
 *   seed=N       where the dice begin (0 to 2^63); without it random, and told
 *                by explain()
 *   drop=P       a record never arrives; a payload under way stops for good
 *   delay=TIME   each record, payload and one-sided transfer is held back for
 *                0 to TIME ("5ms", "200us", "1s"; at most 60 s) before its
 *                first byte comes, as by a long wire: what is under way side by
 *                side waits side by side, and records keep their order. Each
 *                step of the session's frames waits behind the one before
 *   duplicate=P  a record arrives once more, later
 *   truncate=P   a record arrives without its end; a payload or a copy ends in
 *                "protocol"
 *   reorder=P    a record is overtaken by those behind it; a copy moves a
 *                splinter of what it was asked for
 *   cut=P        at a record or a step: the lane is broken for good; nothing
 *                passes any more, and this side's session ends in "peer_lost"
 *
 * P is a probability, 0 to 1. Faults are injected into what comes to the side that asks
 * for them: the peer's records, and the payloads and copies that this side
 * moves. Both sides ask for both directions.
 *
 * What still holds, whatever the script: every operation with a timeout ends
 * once, within it; its memory is the caller's from then on; calls and messages
 * are delivered at most once (their records have numbers, and the core drops
 * those that it has seen, or that are older). What does not: an operation
 * without a timeout whose record was dropped waits until its session ends, and
 * so does memory that a request lent; requests that were overtaken are
 * delivered out of order; a duplicated immediate, which has no number, is
 * received twice; after a record was cut short the session ends in
 * "protocol"; what is held back when the peer closes is lost.
 *
 * A wrapped table, and each of its groups, is the transport's own but for the
 * functions that inject faults. Its lane is the transport's own too, and its head points to what is
 * kept here; so a function that transports do not know of today needs nothing
 * here. What is delivered was copied to a block of its own length, so that a
 * sanitizer sees who reads past it.
 */
#ifndef FAULT_H
#define FAULT_H

#include "transport/transport.h"

struct script {
  uint64_t seed;
  bool seeded;
  double drop, duplicate, truncate, reorder, cut;
  int64_t delay; /* ns, at most */
};
enum { SCRIPT_TEXT = 160 };

/* PERIGEE_OK, or PERIGEE_INVALID and a sentence. */
int script_parse(const char *text, struct script *script, char reason[REASON]);
/* As script_parse reads it; without what is not asked for. */
void script_text(const struct script *script, char text[SCRIPT_TEXT]);

/* What an engine was asked for. It outlives the lanes. */
struct faults;
int faults_open(const struct script *script, int64_t (*clock)(void *),
                void *context, struct faults **faults);
void faults_close(struct faults *faults);
/* A new lane, before it is joined: from here on it has faults, and this is its
 * table. NULL: no memory. */
const struct perigee_transport *faults_join(struct faults *faults,
                                            struct lane *lane);
/* When the next of what is held back is to go on: nobody would wake a sleeper
 * for it. Negative: nothing is. */
int64_t faults_due(const struct faults *faults, int64_t now);

#endif
