/* SPDX-License-Identifier: Apache-2.0
 *
 * items.h - the items of one-sided transfers: their checks and payloads. Of
 * items with lists, moves: one for each remote place.
 */
#ifndef ITEMS_H
#define ITEMS_H

#include <limits.h>

#include "operation/operations.h"

/* What item_check and items_check return of items with lists. */
enum { ITEM_LISTED = INT_MIN };

/* Checks both sides of an item and makes their payloads, or fails. */
int item_check(struct perigee_session *s, int operation,
               const struct perigee_transfer *item, struct payload *remote,
               struct payload *local);
int items_check(struct perigee_session *s, int operation,
                const struct perigee_transfer *list, uint32_t count);
/* Is each side one piece of memory, and are both right and equally long? If not,
 * item_check says what it is. */
static inline bool item_is_piece(const struct perigee_session *s, int operation,
                                 const struct perigee_transfer *item) {
  const struct perigee_slice *there = &item->remote, *here = &item->local;
  const struct perigee_remote *remote = there->remote;
  int right = operation == PERIGEE_OP_READ ? PERIGEE_READ : PERIGEE_WRITE;
  return remote && here->region && there->count == 1 && here->length > 0 &&
         there->length == here->length && remote->session == s &&
         remote->window.access & right &&
         there->offset <= remote->window.length &&
         there->length <= remote->window.length - there->offset &&
         region_has(here->region, here);
}
/* Makes the payloads of such an item, where they stay: a copy of what has just
 * been written in words waits for all of them. */
static inline void item_piece(const struct perigee_transfer *item,
                              struct payload *remote, struct payload *local) {
  const struct perigee_slice *slice = &item->remote;
  uintptr_t base = (uintptr_t)slice->remote->window.pointer; /* may be 0 */
  slice_piece(&item->local, local);
  *remote = (struct payload){.memory = &memory_host,
                             .base = (uint8_t *)(base + slice->offset),
                             .block = slice->length,
                             .count = 1,
                             .stride = slice->length,
                             .total = slice->length};
}
/* As item_check for the remote side alone, which is no list. */
int item_remote(struct perigee_session *s, int operation,
                const struct perigee_slice *slice, struct payload *p);

/* Bytes `begin` to `end` of an item's local payload belong to one remote
 * place. */
struct place_move {
  const struct spread *local; /* of the item */
  uint64_t begin, end;
  uint32_t last; /* the last move behind it that follows in the same item and to
                    the same region */
  uint32_t number; /* of its first slice in a list */
  bool plain;      /* its entry in the list names these local bytes */
};

/* The items of a transfer, told by moves. The list has an entry for each; where
 * its local bytes are no slice, that tells only their number and their first
 * region. */
struct moves {
  uint32_t count;
  struct spread *spreads; /* of the items' local memory */
  struct place_move *move;
  struct extent *remote; /* the remote place of each move */
  struct perigee_transfer *list;
};

int moves_make(struct perigee_session *s, int operation,
               const struct perigee_transfer *list, uint32_t count,
               struct moves **out);
/* The slices of both sides of an item, for posts of some of their blocks. */
enum { LOCAL, REMOTE, SIDES };
struct numbered {
  struct {
    uint32_t count;  /* of the slices */
    uint64_t length; /* of their blocks */
    uint64_t most;   /* as many blocks each of them has at least */
    uint64_t step;   /* the distance from one to the next; 0: there is none */
    const struct perigee_slice *slices;
  } side[SIDES];
  struct perigee_slice slices[];
};

/* Keeps the slices of an item; NULL if there is no memory, or a side has blocks
 * of several lengths. */
struct numbered *blocks_make(const struct perigee_transfer *item);
/* Makes the moves of some of their blocks. */
int moves_of_blocks(struct perigee_session *s, int operation,
                    const struct numbered *b,
                    const uint32_t *const numbers[SIDES], uint32_t n,
                    struct moves **out);
/* The regions' handles, and regions of the peer, are kept from making to
 * freeing; local memory is used while moves are posted. */
void moves_use(struct moves *m);
void moves_unuse(struct moves *m);
bool moves_are_stale(const struct moves *m);
void moves_free(struct moves *m);
/* The operation owns the used memory from here on. */
void moves_leave(struct moves *m, struct operation *op);
/* Makes the payloads of a move; whole: of all moves to its `last`. */
int move_payloads(struct perigee_session *s, int operation,
                  const struct moves *m, uint32_t i, struct payload *remote,
                  struct payload *local);
void move_widen(const struct moves *m, uint32_t i, struct payload *remote,
                struct payload *local);

#endif
