/* SPDX-License-Identifier: Apache-2.0
 *
 * turns_support.h - calls over shared memory whose payloads are staged in blocks
 * that are used in turn, in a time that is the test's own.
 */
#ifndef TURNS_SUPPORT_H
#define TURNS_SUPPORT_H

#include "support.h"

enum { LENGTH = 64 * KIB, MANY = 100, POOL = 256 * MIB };
enum { LONGEST = 3 * MIB }; /* that is staged in a turn */

/* How long a copy takes, how far calls lie apart, and by how much each reading of
 * the clock takes longer than the one before, as what lies between two readings
 * is measured less the time of one. */
extern struct own_time { int64_t passed, step, more; } own_time;

/* The peer may not read this process's memory. */
extern const struct variant unread;

/* Both sides have that clock, and the features as perigee_options has them. */
void clocked_open(struct pair *p, void *state, const char *features);
void learning_open(struct pair *p, void *state);
/* No side tries whether it rather pulls. */
void timed_open(struct pair *p, void *state);
/* Opens a session on which both sides stage in turn. */
void busy_open(struct pair *p, void *state);
/* Side 0 calls; side 1 answers a request; side 0 has the answer. */
int call(struct pair *p, const uint8_t *bytes, uint64_t length);
void answer(struct pair *p, const struct perigee_event *e, const void *bytes,
            uint64_t length);
struct perigee_event answered(struct pair *p, int op, const uint8_t *bytes,
                              uint64_t length);
void echo(struct pair *p, const uint8_t *bytes, uint64_t length);
/* Makes a call of so many bytes, or of LENGTH; was its payload staged in a
 * turn? */
bool is_staged(struct pair *p, const uint8_t *bytes, uint64_t length);
bool stages(struct pair *p, const uint8_t *bytes);

#endif
