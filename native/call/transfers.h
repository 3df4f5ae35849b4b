/* SPDX-License-Identifier: Apache-2.0
 *
 * transfers.h - one-sided transfers: what transfer_submit.c, which takes them from the
 * program, needs of transfer.c, whose operations move their items.
 */
#ifndef TRANSFERS_H
#define TRANSFERS_H

#include "core/lanes.h"
#include "items.h"

/* transfer.c reads `apart` and `moves`, and ends the post: `posted`, `once`. */
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
  bool once;               /* made for one post, with whose end it goes */
  bool apart;              /* its places do not overlap: they are of one list */
  struct moves *moves;     /* of items with lists: theirs is the list then */
  struct numbered *blocks; /* of an only item with lists, or NULL */
  struct perigee_transfer list[];
};

/* ---- Copies by the CPU -------------------------------------------------- */

/* Does the first lane copy short items at once? */
static inline bool transfer_immediate(const struct perigee_session *s) {
  const struct transport_copies *c = lane_table(s->lane)->copies;
  return c && c->immediate;
}

/* Can this side, or its device, copy without the peer? */
static inline bool transfer_reaches(struct perigee_session *s,
                                    const struct perigee_transfer *item,
                                    const struct payload *local) {
  const struct window *window = &item->remote.remote->window;
  const struct perigee_transport *t = lane_table(s->lane);
  if (t->jobs)
    return t->jobs->reaches(s->lane, window, local);
  return window->pointer && local->memory->direct;
}

/* Adds the sentence to a status of a lane. */
int transfer_refused(struct perigee_session *s,
                     const struct perigee_transfer *item, int status);

/* Copies up to `limit` bytes of what remains of an item: their number, or a
 * status. */
static inline int64_t transfer_copy(struct perigee_session *s,
                                    const struct perigee_transfer *item,
                                    struct payload *remote,
                                    struct payload *local, uint64_t limit,
                                    int operation) {
  int64_t n = lane_table(s->lane)->copies->copy(
      s->lane, &item->remote.remote->window, remote, local, limit,
      operation != PERIGEE_OP_READ);
  return n < 0 ? transfer_refused(s, item, (int)n) : n;
}

/* Counts the bytes of a transfer that has succeeded, and returns them. */
static inline uint64_t transfer_count(struct perigee_session *s, int operation,
                                      const struct perigee_transfer *list,
                                      uint32_t count) {
  uint64_t *bytes = operation == PERIGEE_OP_READ ? &s->counters->bytes_received
                                                 : &s->counters->bytes_sent;
  uint64_t moved = 0;
  s->counters->transfers++;
  for (uint32_t i = 0; i < count; i++)
    moved += list[i].local.length * list[i].local.count;
  *bytes += moved;
  return moved;
}

/* Sends an immediate now; false: it has to wait for its turn, or for room. */
bool transfer_immediate_out(struct perigee_session *s, uint64_t immediate);

/* ---- Operations --------------------------------------------------------- */

/* Of items; of a batch of bulk_vast bytes and more; of items with lists. */
extern const struct operation_class transfer_class, transfer_vast,
    transfer_listed;

/* Begins an operation that moves the items from `first` on, and uses the list
 * until its end. prepared: what is posted, or NULL. Returns its number, or a
 * status. */
int transfer_queue(struct perigee_session *s,
                   const struct operation_class *class, int operation,
                   const struct perigee_transfer *list, uint32_t count,
                   uint64_t immediate, int64_t timeout,
                   struct perigee_prepared *prepared, uint32_t first);

/* Frees what is prepared of items with lists. */
void transfer_free_listed(struct perigee_prepared *p);

#endif
