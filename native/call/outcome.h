/* SPDX-License-Identifier: Apache-2.0
 *
 * outcome.h - the replies to own operations, for call.c.
 */
#ifndef OUTCOME_H
#define OUTCOME_H

#include "calls.h"

/* Returns the time at which the operation times out; negative: never. */
int64_t outcome_due(const struct operation *op);
/* Checks that a reply has only parts that its operation can take. */
bool outcome_fits(const struct operation *op, const struct record *r);
/* Bring the head, or the slice, of a reply to its place: 1, 0 (in progress),
 * OFFERED (the place is not known: the program is to be asked, or outcome_land
 * called, once the head is there) or a status. */
enum { OUTCOME_OFFERED = 2 };
int outcome_head(struct operation *op, const struct record *r);
int outcome_slice(struct operation *op, const struct record *r);
/* Begins to bring what was offered to its place; NULL: a pooled block. Steps bring
 * the rest. After a failure it can be called again. */
int outcome_land(struct operation *op, const struct payload *into);
/* Brings more of both: 1 once all of it is there, else the same. */
int outcome_step(struct operation *op);

#endif
