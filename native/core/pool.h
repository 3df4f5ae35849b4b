/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - private blocks for payloads that arrive without a named place.
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
uint8_t *scratch_copy(struct perigee_engine *, const uint8_t *, uint64_t);
struct part *part_take(struct perigee_engine *engine);
void part_give(struct perigee_engine *engine, struct part *part);

#endif
