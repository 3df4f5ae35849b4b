/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - private blocks for what arrives and nobody named a place for.
 */
#ifndef POOL_H
#define POOL_H

#include "engine.h"

/* Registered at once, where it has to be; operations that are handed out first;
 * free bytes of the pool that stay. */
enum { POOL_CHUNK = 4 << 20, OPERATIONS_LOW = 1024, POOL_LOW = 1 << 20 };

uint8_t *pool_take(struct perigee_session *session, uint64_t length);
void pool_give(struct perigee_engine *engine, uint8_t *block);
/* Gives free blocks back to the system, while more than keep bytes are warm; at
 * most so many, and so many bytes and one block more. True: more are. */
bool pool_shrink(struct perigee_engine *engine, uint64_t keep, int most,
                 uint64_t bytes);
/* Copies into memory that stays until the next poll, or NULL. */
uint8_t *scratch_copy(struct perigee_engine *, const uint8_t *, uint64_t);
struct part *part_take(struct perigee_engine *engine);
void part_give(struct perigee_engine *engine, struct part *part);

#endif
