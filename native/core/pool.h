/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - private blocks for payloads that arrive without a named place, and
 * giving memory back to the system.
 */
#ifndef POOL_H
#define POOL_H

#include "engine.h"

/* POOL_CHUNK: bytes that are registered with a device at once.
 * OPERATIONS_LOW: operation numbers that are handed out first. POOL_LOW:
 * free bytes that stay. */
enum { POOL_CHUNK = 4 << 20, OPERATIONS_LOW = 1024, POOL_LOW = 1 << 20 };

uint8_t *pool_take(struct perigee_session *session, uint64_t length);
void pool_give(struct perigee_engine *engine, uint8_t *block);
/* Copies into memory that stays until the next poll; NULL without room. */
uint8_t *scratch_copy(const struct operation *, const uint8_t *, uint64_t);
struct part *part_take(struct perigee_engine *engine);
void part_give(struct perigee_engine *engine, struct part *part);

/* ---- Giving memory that is not used any more back to the system ---------- */

__attribute__((cold)) void
trim_begin(struct perigee_engine *engine);       /* there may be some */
void trim_ended(struct perigee_engine *engine);  /* a session has ended */
void trim_sleeps(struct perigee_engine *engine); /* it is about to sleep */
/* keeps: the session's lane keeps memory for later. forget: the lane is freed,
 * or replaced by another. */
void trim_keeps(struct perigee_session *session);
void trim_forget(struct perigee_session *session);

#endif
