/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_marks.c - which operations have ended: ours, told to the peer, and the
 * peer's, told by it.
 */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

enum { FIRST_GENERATIONS = 64, GENERATIONS_APART = 1 << 30 };

uint32_t *generation_place(struct generations *g, uint32_t number) {
  uint32_t count = g->count ? g->count : FIRST_GENERATIONS;
  while (count <= number)
    count *= 2;
  if (count == g->count)
    return &g->at[number];
  uint32_t *more = realloc(g->at, count * sizeof *more);
  if (!more)
    return NULL;
  memset(more + g->count, 0, (count - g->count) * sizeof *more);
  g->at = more;
  g->count = count;
  return &g->at[number];
}

void tcp_ended(struct lane *lane, uint16_t operation, uint32_t generation) {
  struct tcp_head head = {
      .type = TCP_ENDED, .operation = operation, .generation = generation};
  if (lane->cut || lane->status < 0 || !lane->streams[0])
    return;
  uint32_t *told = generation_place(&lane->told, operation);
  if (!told) {
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what has ended");
    return;
  }
  *told = generation;
  lane->flush_deferred |=
      tcp_idle(lane->streams[0]); /* the next call may follow */
  tcp_put(lane->streams[0], &head, NULL);
}

/* Generations wrap around, and the peer compares with the last that it was told
 * of, so a distant one is told first. */
void tcp_mark(struct lane *lane, uint16_t operation, uint32_t generation) {
  uint32_t told = generation_of(&lane->told, operation);
  if (told != 0 && generation != 0 && generation - told > GENERATIONS_APART)
    tcp_ended(lane, operation, generation - 1);
}

/* The peer chooses the numbers, and so how far the array grows: it is
 * counted. */
static uint32_t *ended_place(struct lane *lane, uint32_t number) {
  uint32_t before = lane->ended.count;
  uint32_t *place = generation_place(&lane->ended, number);
  uint64_t more = (lane->ended.count - before) * sizeof *place;
  return more == 0 || tcp_count_memory(lane, more) ? place : NULL;
}

void tcp_ended_told(struct lane *lane, const struct tcp_head *h) {
  uint32_t *last = ended_place(lane, h->operation);
  if (!last)
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what has ended");
  else /* ends are told in order */
    *last = h->generation;
  tcp_unexpected_drop(lane, h->operation, h->generation);
}

bool tcp_live(struct lane *lane, uint16_t operation, uint32_t generation) {
  uint32_t last = generation_of(&lane->ended, operation);
  return last == 0 || (int32_t)(generation - last) > 0;
}
