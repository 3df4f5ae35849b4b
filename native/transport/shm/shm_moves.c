/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_moves.c - rings that move: one through which many long records pass goes
 * on in a block of its writer's arena, and comes back when it is quiet.
 *
 * A line which the other core's cache holds closely is written more slowly than
 * one that this cache has dropped. A session that sends records of 2 to 16 KiB
 * meets its own lines again after a few of them, if its ring is as short as
 * most sessions need. In a ring of "moved" bytes they take 0.6 to 0.9 of the
 * time, and shorter ones take more (bench/history/tried.md, "Large raw calls").
 *
 * The block belongs to the writer: it is of the writer's arena, whose pages count
 * as its own and which the reader cannot write. The reader takes part once it
 * has seen that all of these pages are there (shm_there.c), so it pays for none.
 * The writer has a block for each of its two rings at most, within its share
 * (SHARE_STAGED).
 *
 *   writer    event                                        becomes
 *   home      "moved" bytes pass within SHM_WINDOW, with
 *             long records among them; share, arena and
 *             system have room                             asked: "open"
 *   asked     the reader says "ready"                      ready
 *   asked     the reader has not said "ready" by the
 *             second look                                  over
 *   ready     no long record since the look before the
 *             last                                         over
 *   ready     a long record comes, room to say so          away: the ring moves
 *   away      no lap with a long record in STAYS looks,
 *             the reader has told that it followed, room
 *             to say so, and none is lent                  back: the ring moves,
 *                                                          "back" wakes the reader
 *   away      a record comes before that in lent room      back: the same
 *   back      the reader tells that it is behind the move,
 *             the program writes to no room there          over
 *   over      "shut" could be told                         home: the block is given
 *
 *   reader    event                                        becomes
 *   none      "open", all pages are there                  open: "ready"
 *   open      "shut", and the ring is not in the block     none
 *   open      "back"                                       open: each poll
 *             releases, until the writer was told that the ring is behind the
 *             move
 *
 * Frames carry the number of the writer's request, so that a late "ready" of a
 * request that is over is none of the next one.
 */
#include <string.h>

#include "memory/backing.h"
#include "shm.h"

/* The most bytes of a ring that has moved. Cores with 2 MiB of cache take the same
 * time with 256 KiB to 2 MiB, and more with 4 MiB. */
enum { MOVED_MOST = 2 << 20 };

static uint64_t moved(const struct lane *lane) {
  return least(lane->dropped, MOVED_MOST);
}

/* A pool with less is left to loans, as blocks would lie in their way. */
static bool moves_fit(const struct lane *lane) {
  return lane->options.pool >= 8 * moved(lane);
}

static bool moves_say(struct lane *lane, struct shm_moves_word w) {
  const char *why = "";
  return lane->options.hand(lane->options.session, &w, sizeof w, -1, &why) == 0;
}

/* ---- The writer ---------------------------------------------------------- */

/* A ring that is away hears of one long record in each lap of its block, or of
 * none if shorter ones are between them, and so stays for longer than it takes to
 * leave. */
enum { STAYS = 3 };

static bool move_is_quiet(const struct lane *lane, const struct shm_move *m) {
  return *lane->options.look - m->used > (m->state == MOVE_AWAY ? STAYS : 1);
}

/* Did enough pass within the time? Each call tells of what passed since the one
 * before, but of no more than the ring has. */
static bool move_pays(struct lane *lane, struct shm_move *m,
                      const struct ring_out *ring) {
  uint64_t head = ring->head - ring->left_out;
  uint64_t passed = least(head - m->seen, ring->size);
  m->seen = head;
  return flow_add(&m->passed, *lane->options.now, passed) >= moved(lane);
}

static void move_give(struct lane *lane, struct shm_move *m) {
  arena_unstage(lane, m->block, moved(lane));
  m->state = MOVE_HOME;
}

/* Takes a block whose pages are all there. */
static bool move_take(struct lane *lane, struct shm_move *m) {
  int64_t block = moves_fit(lane) ? arena_stage(lane, moved(lane)) : -1;
  if (block < 0)
    return false;
  m->block = (uint64_t)block;
  if (backing_populate(lane->arena + block, moved(lane)))
    return true;
  move_give(lane, m);
  return false;
}

static void move_ask(struct lane *lane, struct shm_move *m) {
  m->passed.bytes = 0;
  if (!move_take(lane, m))
    return;
  struct shm_moves_word open = {.kind = MOVES_OPEN,
                                .ring = (uint32_t)(m - lane->moves),
                                .number = ++m->number,
                                .address = arena_address(lane, m->block),
                                .size = moved(lane)};
  if (moves_say(lane, open))
    m->state = MOVE_ASKED;
  else
    move_give(lane, m);
}

/* A long record keeps no block that is to go back, or that the reader cannot say
 * to be ready. */
void moves_long(struct lane *lane, struct ring_out *ring) {
  struct shm_move *m = &lane->moves[ring - lane->out];
  bool may = lane->options.moves && lane->peer_ring < moved(lane);
  if (!may || m->state == MOVE_BACK)
    return;
  if (m->state != MOVE_ASKED)
    m->used = *lane->options.look;
  if (m->state == MOVE_HOME && move_pays(lane, m, ring))
    move_ask(lane, m);
  else if (m->state == MOVE_READY &&
           ring_move(ring, lane->arena + m->block, moved(lane))) {
    m->left = ring->head;
    m->state = MOVE_AWAY;
  }
}

static bool move_say(struct lane *lane, const struct shm_move *m,
                     enum shm_moves_kind kind) {
  return moves_say(lane,
                   (struct shm_moves_word){.kind = kind,
                                           .ring = (uint32_t)(m - lane->moves),
                                           .number = m->number});
}

/* Not before the reader has told that it followed (ring.h). */
static bool move_home(struct lane *lane, struct shm_move *m) {
  struct ring_out *ring = &lane->out[m - lane->moves];
  uint64_t at = (uint64_t)(m - lane->moves) * lane->peer_ring;
  if (!ring_is_behind(ring, m->left) ||
      !ring_move(ring, lane->peer_inbox + at, lane->peer_ring))
    return false;
  m->left = ring->head;
  m->state = MOVE_BACK;
  m->said = move_say(lane, m, MOVES_BACK);
  return true;
}

/* This one goes home, and has no room to lend once it is away again: others call
 * while this session's program fills loans. */
bool moves_leave_room(struct ring_out *ring, void *context) {
  struct lane *lane = context;
  struct shm_move *m = &lane->moves[ring - lane->out];
  m->disturbed = true;
  return move_home(lane, m);
}

/* What goes past the caches is copied there from elsewhere: room took 1.2 to 1.3
 * times as long. The reader has followed, so the ring can leave at any time. */
uint8_t *moves_lend(struct lane *lane, enum ring i, uint64_t length) {
  struct shm_move *m = &lane->moves[i];
  struct ring_out *ring = &lane->out[i];
  bool far = lane->records.far || lane->told_far;
  bool may = m->state == MOVE_AWAY && !m->lent && !m->disturbed && !far &&
             ring_is_behind(ring, m->left);
  uint8_t *room = may ? ring_lend(ring, length) : NULL;
  m->lent |= room != NULL;
  return room;
}

void moves_unlend(struct lane *lane, enum ring i) {
  ring_unlend(&lane->out[i]);
  lane->moves[i].lent = false;
}

static void move_trim(struct lane *lane, struct shm_move *m) {
  if (m->state == MOVE_AWAY) {
    move_home(lane, m);
    return;
  }
  if (m->state == MOVE_BACK &&
      !ring_is_behind(&lane->out[m - lane->moves], m->left)) {
    m->said = m->said || move_say(lane, m, MOVES_BACK);
    return;
  }
  if (!m->lent && move_say(lane, m, MOVES_SHUT))
    move_give(lane, m);
}

void moves_trim(struct lane *lane) {
  for (int i = 0; i < RINGS; i++) {
    struct shm_move *m = &lane->moves[i];
    if (m->state != MOVE_HOME && move_is_quiet(lane, m))
      move_trim(lane, m);
  }
}

void moves_close(struct lane *lane) {
  for (int i = 0; i < RINGS; i++)
    if (lane->moves[i].state != MOVE_HOME)
      share_back(lane->options.share, SHARE_STAGED, moved(lane));
}

static int move_heard_ready(struct lane *lane, const struct shm_moves_word *w) {
  struct shm_move *m = &lane->moves[w->ring];
  if (m->state == MOVE_ASKED && w->number == m->number)
    m->state = MOVE_READY;
  return PERIGEE_OK;
}

/* ---- The reader ---------------------------------------------------------- */

static bool ring_is_home(const struct lane *lane, uint32_t i) {
  return lane->in[i].bytes == lane->inbox + i * lane->options.ring;
}

static bool moves_open_is_sound(const struct lane *lane,
                                const struct shm_moves_word *w) {
  bool power = w->size > 0 && (w->size & (w->size - 1)) == 0;
  return power && w->size >= SHM_PAGE && w->size <= SHM_RING_MAX &&
         ring_most(w->size) >= lane->in[w->ring].most * RING_UNIT &&
         w->address % SHM_PAGE == 0 && !lane->in[w->ring].other;
}

/* Nobody says "ready" if pages are not there, and so the ring stays. */
static int move_heard_open(struct lane *lane, const struct shm_moves_word *w) {
  struct ring_in *ring = &lane->in[w->ring];
  if (!moves_open_is_sound(lane, w))
    return PERIGEE_PROTOCOL;
  const uint8_t *bytes = arena_peer(lane, w->address, w->size);
  if (!bytes)
    return PERIGEE_PROTOCOL;
  struct shm_moves_word ready = {
      .kind = MOVES_READY, .ring = w->ring, .number = w->number};
  if (arena_there(lane, bytes, w->size) != THERE || !moves_say(lane, ready))
    return PERIGEE_OK;
  arena_views(lane, bytes, w->size, 1);
  ring->other = bytes;
  ring->other_size = w->size;
  return PERIGEE_OK;
}

/* Was the writer told that the ring is home again? It says "shut" only then. */
static bool ring_is_told(const struct lane *lane, uint32_t i) {
  const struct ring_in *ring = &lane->in[i];
  return ring_is_home(lane, i) &&
         atomic_load_explicit(ring->consumed, memory_order_relaxed) >=
             ring->moved;
}

/* The memory is the writer's again. */
static int move_heard_shut(struct lane *lane, const struct shm_moves_word *w) {
  struct ring_in *ring = &lane->in[w->ring];
  if (!ring_is_told(lane, w->ring))
    return PERIGEE_PROTOCOL;
  if (ring->other)
    arena_views(lane, ring->other, ring->other_size, -1);
  ring->other = NULL;
  return PERIGEE_OK;
}

/* The poll that follows finds the move, but no poll of a session that is quiet
 * releases its rings. One calls shm_release each time if the core cannot look at
 * the rings itself. */
static int move_heard_back(struct lane *lane, const struct shm_moves_word *w) {
  if (lane->head.in || lane->hidden)
    lane->hidden |= 1U << w->ring;
  lane->head.in = NULL;
  return PERIGEE_OK;
}

bool moves_told(struct lane *lane) {
  for (uint32_t i = 0; i < RINGS; i++)
    if (ring_is_told(lane, i))
      lane->hidden &= ~(1U << i);
  return !lane->hidden;
}

/* ---- Frames -------------------------------------------------------------- */

int moves_heard(struct lane *lane, const void *bytes) {
  struct shm_moves_word w;
  memcpy(&w, bytes, sizeof w);
  if (!lane->options.moves || w.ring >= RINGS)
    return PERIGEE_PROTOCOL;
  switch (w.kind) {
  case MOVES_OPEN:
    return move_heard_open(lane, &w);
  case MOVES_READY:
    return move_heard_ready(lane, &w);
  case MOVES_BACK:
    return move_heard_back(lane, &w);
  case MOVES_SHUT:
    return move_heard_shut(lane, &w);
  default:
    return PERIGEE_PROTOCOL;
  }
}
