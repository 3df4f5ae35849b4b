/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.h - shared by transfer.c (states, submitting), transfer_move.c,
 * transfer_check.c and prepared.c.
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "calls.h"

/* Transfers up to this size are copied while they are submitted. */
enum { AT_ONCE = 64 << 10 };

struct perigee_prepared {
  struct perigee_prepared *next;
  struct perigee_session *session;
  uint8_t operation;
  uint32_t count;
  uint64_t immediate;
  uint64_t total;
  int posted;                   /* its operation's number, or -1 */
  struct payload remote, local; /* if it is a single item within reach */
  bool simple;
  struct perigee_transfer list[];
};

/* Checks both sides of an item and makes their payloads, or returns a
 * status. */
int transfer_check(struct perigee_session *s, int operation,
                   const struct perigee_transfer *item, struct payload *remote,
                   struct payload *local);
int transfer_check_all(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count);
/* Can this side, or its device, copy without the peer? */
bool transfer_reaches(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      const struct payload *local);
bool transfer_immediate(const struct perigee_session *s);
int64_t transfer_copy(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      struct payload *remote, struct payload *local,
                      uint64_t limit, int operation);
/* Counts the bytes of a transfer that has succeeded. */
void transfer_count(struct perigee_session *s, int operation,
                    const struct perigee_transfer *list, uint32_t count);
/* All data has been moved: sends the immediate, if there is one, and ends. */
void transfer_moved(struct operation *op);
void transfer_step(struct operation *op);
int transfer_start(struct perigee_session *s, int operation,
                   const struct perigee_transfer *list, uint32_t count,
                   uint64_t immediate, int64_t timeout,
                   struct perigee_prepared *prepared);

#endif
