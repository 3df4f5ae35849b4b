/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.h - what transfer.c and prepared.c share.
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "operations.h"

/* Up to this a transfer is copied while it is submitted. */
enum { AT_ONCE = 64 << 10 };

struct perigee_prepared {
  struct perigee_prepared *next;
  struct perigee_session *session;
  uint8_t operation;
  uint32_t count;
  uint64_t immediate;
  uint64_t total;
  int posted;                   /* operation number, or -1 */
  struct payload remote, local; /* of a single item within reach */
  uint64_t local_slot, local_generation;
  bool simple;
  struct perigee_transfer list[];
};

/* Checks both sides of an item: its payloads, or a status. */
int transfer_check(struct perigee_session *s, int operation,
                   const struct perigee_transfer *item, struct payload *remote,
                   struct payload *local);
int transfer_check_all(struct perigee_session *s, int operation,
                       const struct perigee_transfer *list, uint32_t count);
/* Can we copy without the peer? And all of it before copy returns? */
bool transfer_reaches(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      const struct payload *local);
bool transfer_immediate(const struct perigee_session *s);
int64_t transfer_copy(struct perigee_session *s,
                      const struct perigee_transfer *item,
                      struct payload *remote, struct payload *local,
                      uint64_t limit, int operation);
/* Of a transfer that has ended: its bytes, if they arrived, are the list's. */
void transfer_count(struct perigee_session *s, int operation,
                    const struct perigee_transfer *list, uint32_t count);
int transfer_start(struct perigee_session *s, int operation,
                   const struct perigee_transfer *list, uint32_t count,
                   uint64_t immediate, int64_t timeout,
                   struct perigee_prepared *prepared);

#endif
