/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_payload.c - brings payloads from one process to the other: marks, and the
 * receiver's side. The owner's is in shm_stage.c.
 *
 * The receiver always pulls. It pulls from a loan (a block of the owner's
 * arena, mapped here), from private memory of the owner (process_vm_readv, if a
 * probe during the handshake succeeded), from several places there, whose list
 * it reads in the same way, or from a staging block, which the owner fills while
 * the receiver empties it, so that both cores copy at the same time. way_of
 * (shm_stage.c) chooses.
 *
 *   staging block: u64 bytes staged so far; at 64: u64, of a window, where the
 *   payload lies in its owner's process; at 4096: an area that the payload
 *   passes through, from its begin to its end and again from its begin. It is as
 *   long as the source's stride says: slots of 32 KiB, or the payload's length.
 *   Between sides one of which lacks the feature "staging" the stride says
 *   nothing, and it has SHM_SLOTS slots, or the payload's length if that is less
 *   ack (receiver's outbox, by the owner's operation): bytes taken, with the
 *   operation's generation in the upper 24 bits, so that an old ack is ignored
 *
 * An owner who computes stages nothing. If it said where the payload lies, the
 * receiver then pulls a piece from there, tells the owner so, as of staged
 * bytes, and looks again.
 *
 * Pulled bytes count only if the operation is still marked live afterwards; the
 * core calls live before it delivers them. So a timeout gives memory back
 * at once, even if the peer was stopped in the middle of a copy.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/budget.h"
#include "shm.h"

enum { COPIED = 16 << 10, VECTORS = 64, HALF = 256 << 10, BOUNCE = 2 * HALF };
/* What is pulled at once of what a window lacks. */
enum { STARVED = 128 << 10 };

/* Clearing a mark: nothing that is written to the operation's memory afterwards
 * may become visible before the cleared mark, hence the fence. It pairs with
 * the reader's acquire fence between its copy and its load (shm_live). */
void shm_mark(struct lane *lane, uint16_t operation, uint32_t generation) {
  atomic_store_explicit(&lane->own->marks[operation], generation,
                        memory_order_release);
  if (generation == 0)
    atomic_thread_fence(memory_order_release);
}

/* Only a peer that lies, or one whose memory was swapped out, has no such page.
 * A mark that is wrongly taken for live harms nobody but the peer. */
bool shm_live(struct lane *lane, uint16_t operation, uint32_t generation) {
  const _Atomic uint32_t *mark = &lane->peer->marks[operation];
  atomic_thread_fence(memory_order_acquire);
  return !there_word(lane, mark) ||
         atomic_load_explicit(mark, memory_order_acquire) == generation;
}

/* ---- The process of the peer --------------------------------------------- */

/* A pid is valid only while its process lives, so bytes that were read count
 * only if that process still runs afterwards. A signal that comes meanwhile has
 * poll fail, which tells nothing of that process. */
static bool owner_is_alive(const struct lane_options *o) {
  struct pollfd p = {.fd = o->peer_pidfd, .events = POLLIN};
  int n;
  do
    n = poll(&p, 1, 0);
  while (n < 0 && errno == EINTR);
  return n == 0;
}

/* Reads random bytes of ours from the process's memory. Only the peer was told
 * them, so no other process has them. A pid that belongs to another process by
 * now, or never was the peer's, is therefore not read from again. */
bool shm_probe(const struct lane_options *o, uint64_t address) {
  uint64_t seen[2] = {0, 0};
  struct iovec to = {seen, sizeof seen};
  struct iovec from = {(void *)(uintptr_t)address, sizeof seen};
  bool asked = o->probe[0] | o->probe[1];
  return asked && o->peer_pidfd >= 0 && owner_is_alive(o) &&
         process_vm_readv(o->peer_pid, &to, 1, &from, 1, 0) == sizeof seen &&
         owner_is_alive(o) && memcmp(seen, o->probe, sizeof seen) == 0;
}

/* What a fetch keeps between its steps. A bounce block is for memory that no CPU
 * can write or that others can see. One half is filled while memory that copies
 * asynchronously empties the other. */
struct pulled {
  uint8_t *block;  /* of bounces; NULL: none */
  uint64_t filled; /* bytes of the payload put in it; f->done have left it */
  uint64_t place;  /* number of the place of a list that comes next */
  uint64_t base;   /* of a window, where the payload lies, as its head says */
  int64_t begun;   /* as ways_begin says */
  bool counted;    /* in lane->under_way */
};

_Static_assert(sizeof(struct pulled) <= FETCH_OWN, "there is room for it");

static struct pulled *pulled_of(struct fetch *f) {
  return (struct pulled *)(void *)f->own;
}

/* ---- From a source ------------------------------------------------------- */

/* Each of these moves bytes from the source's position `at` on. */

static __attribute__((noinline)) int64_t fetch_put_copied(struct lane *lane,
                                                          struct payload *into,
                                                          const uint8_t *from,
                                                          uint64_t n) {
  uint8_t bytes[COPIED];
  int64_t got = arena_copy(lane, from, n, bytes, sizeof bytes);
  return got < 0 ? got : payload_put(into, bytes, (uint64_t)got);
}

/* Bytes of the peer's arena. If there are many, they may go past the caches. */
static int64_t fetch_put_there(struct lane *lane, struct payload *into,
                               const uint8_t *from, uint64_t n) {
  struct payload bytes;
  if (arena_there(lane, from, n) != THERE)
    return fetch_put_copied(lane, into, from, n);
  if (into->total < bulk_vast)
    return payload_put(into, from, n);
  payload_bytes(&bytes, from, n);
  return payload_move(into, &bytes, n);
}

static int64_t fetch_loan(struct lane *lane, struct fetch *f, uint64_t at,
                          struct payload *into) {
  if (f->source.count != 1)
    return PERIGEE_PROTOCOL;
  const uint8_t *from = arena_peer(lane, f->source.address, f->total);
  if (!from)
    return PERIGEE_PROTOCOL;
  return fetch_put_there(lane, into, from + at,
                         least(f->total - at, *lane->options.piece));
}

static void fetch_ack(struct lane *lane, const struct fetch *f,
                      uint64_t bytes) {
  atomic_store_explicit(&lane->own->acks[f->operation][f->part],
                        shm_ack_tag(f->generation) | bytes,
                        memory_order_release);
}

/* ---- Private memory of the peer ------------------------------------------- */

/* A step reads so many places of a list at once. */
enum { PLACES = 32 };

/* The places of a list travel as they are in the owner's memory, as 64-bit
 * words in this order. The receiver does not use the area. */
_Static_assert(offsetof(struct extent, base) == 0 &&
                   offsetof(struct extent, block) == 8 &&
                   offsetof(struct extent, count) == 16 &&
                   offsetof(struct extent, stride) == 24 &&
                   offsetof(struct extent, begin) == 32 &&
                   sizeof(struct extent) == 48,
               "the form of places is that of the wire");

/* ns for which a process may be dying, of which nobody can read any more. */
static const int64_t DYING = 1000000000;

/* A process has no memory by its pid any more once its main thread has ended: while
 * it dies, and as long as other threads of it live. */
static int64_t pull_gone(struct lane *lane) {
  int64_t now = *lane->options.now;
  if (!owner_is_alive(&lane->options))
    return PERIGEE_PEER_LOST;
  if (lane->gone_at == 0)
    lane->gone_at = now;
  if (now - lane->gone_at > DYING)
    return arena_unread(lane);
  lane->options.soon(lane->options.session);
  return 0;
}

/* Reads from the peer's memory; 0: not now. Addresses are the peer's claim: this
 * side treats them as numbers, and the kernel checks them. The bytes are the
 * peer's only if it lives afterwards. */
static int64_t pull_read(struct lane *lane, const struct iovec *to, int n,
                         const struct iovec *from, int m) {
  ssize_t got = process_vm_readv(lane->options.peer_pid, to, (unsigned)n, from,
                                 (unsigned)m, 0);
  if (got <= 0)
    return got < 0 && errno == ESRCH ? pull_gone(lane) : PERIGEE_PROTOCOL;
  return got;
}

/* Is it blocks that go on with byte `begin`? */
static bool place_is_sound(const struct extent *place, uint64_t begin) {
  uint64_t total = shape_total(place->block, place->count);
  return place->begin == begin && total > 0 && total != UINT64_MAX &&
         place->count <= PAYLOAD_MAX && place->stride <= PAYLOAD_MAX;
}

static uint64_t place_end(const struct extent *place) {
  return place->begin + place->block * place->count;
}

/* Reads the places of a list from the one with byte `at` on. Returns how many
 * are sound; 0: none can be read now. The owner may change them meanwhile, so
 * these copies are used. Their number, the source's stride, is the owner's claim
 * as well: no more of them are read than the payload has bytes, as none is
 * empty. */
static int64_t places_read(struct lane *lane, struct fetch *f, uint64_t at,
                           struct extent *list) {
  uint64_t first = pulled_of(f)->place, n = 0;
  uint64_t most = least(f->source.stride - first, PLACES);
  uint64_t from = f->source.address + first * sizeof *list;
  struct iovec here = {list, most * sizeof *list};
  struct iovec there = {(void *)(uintptr_t)from, here.iov_len};
  int64_t got =
      most > 0 ? pull_read(lane, &here, 1, &there, 1) : PERIGEE_PROTOCOL;
  if (got <= 0)
    return got;
  if (got != (int64_t)here.iov_len || list[0].begin > at ||
      !place_is_sound(&list[0], list[0].begin) || at >= place_end(&list[0]))
    return PERIGEE_PROTOCOL;
  while (++n < most && place_is_sound(&list[n], place_end(&list[n - 1])))
    ;
  return (int64_t)n;
}

/* Gives the places in which the payload lies from byte `at` on, some of them or
 * all. Returns how many, or 0: none can be read now. */
static int64_t places_of(struct lane *lane, struct fetch *f, uint64_t at,
                         struct extent *list) {
  const struct source *s = &f->source;
  if (s->kind == SOURCE_PLACES)
    return places_read(lane, f, at, list);
  list[0] = (struct extent){.base = (uint8_t *)(uintptr_t)s->address,
                            .block = s->block,
                            .count = s->count,
                            .stride = s->stride};
  if (s->kind == SOURCE_STAGED)
    list[0] = (struct extent){.base = (uint8_t *)(uintptr_t)pulled_of(f)->base,
                              .block = f->total,
                              .count = 1};
  return 1;
}

/* The next step begins with byte `at`. */
static void places_pass(struct fetch *f, uint64_t at, const struct extent *list,
                        int64_t count) {
  for (int64_t i = 0; i < count && at >= place_end(&list[i]); i++)
    pulled_of(f)->place++;
}

/* Makes vectors of places from byte `done` on: at most `limit` bytes, and `most`
 * vectors. */
static int pull_remote_vectors(const struct extent *list, int64_t count,
                               uint64_t done, uint64_t limit, int most,
                               struct iovec *v, uint64_t *bytes) {
  const struct extent *place = list;
  int n = 0;
  for (*bytes = 0; n < most && *bytes < limit; n++) {
    if (done == place_end(place) && ++place == list + count)
      break;
    uint64_t at = done - place->begin, within = at % place->block;
    uint64_t run = least(place->block - within, limit - *bytes);
    uint64_t from = (uint64_t)(uintptr_t)place->base + within +
                    at / place->block * place->stride;
    v[n] = (struct iovec){(void *)(uintptr_t)from, run};
    done += run;
    *bytes += run;
  }
  return n;
}

static int pull_local_vectors(struct payload *into, uint64_t limit,
                              struct iovec *v, uint64_t *bytes) {
  struct payload walk = *into;
  int n = 0;
  uint64_t run;
  for (*bytes = 0; n < VECTORS && *bytes < limit; n++) {
    void *at = payload_run(&walk, &run);
    if (run == 0)
      break;
    if (run > limit - *bytes)
      run = limit - *bytes;
    v[n] = (struct iovec){at, run};
    walk.done += run;
    *bytes += run;
  }
  return n;
}

/* Bytes that take as long to copy as the system needs for a place of the peer's,
 * and for how many places it counts to ask the system. */
enum { PLACE_WORK = 4096, PULL_PLACES = 3 };

_Static_assert(PIECE_LEAST / PLACE_WORK > 0, "a pull has a place");

/* Places may be short, and there is no end of them: a pull has no more than would
 * take as long as a piece of a copy, and counts for that long. */
static int pull_most(const struct lane *lane) {
  return (int)least(VECTORS, *lane->options.piece / PLACE_WORK);
}

static void pull_spend(struct lane *lane, int places, uint64_t bytes) {
  uint64_t work = (uint64_t)(places + PULL_PLACES) * PLACE_WORK;
  if (work > bytes)
    lane->options.spend(lane->options.session, work - bytes);
}

static int64_t pull_private(struct lane *lane, struct fetch *f, uint64_t at,
                            struct payload *into, uint64_t limit) {
  struct iovec to[VECTORS], from[VECTORS];
  struct extent list[PLACES];
  uint64_t bytes, room;
  int64_t count = places_of(lane, f, at, list);
  if (count <= 0)
    return count;
  int n = pull_remote_vectors(list, count, at, limit, pull_most(lane), from,
                              &bytes);
  int m = pull_local_vectors(into, bytes, to, &room);
  int64_t got = pull_read(lane, to, m, from, n);
  if (got <= 0)
    return got;
  pull_spend(lane, n, (uint64_t)got);
  if (!owner_is_alive(&lane->options))
    return PERIGEE_PEER_LOST;
  into->done += (uint64_t)got;
  places_pass(f, at + (uint64_t)got, list, count);
  return got;
}

/* Returns 0 if the source has none. */
static uint64_t fetch_area(const struct lane *lane, const struct fetch *f) {
  uint64_t area = f->source.stride, most = least(f->total, SHM_STAGE);
  if (!lane->options.sized)
    return most;
  return area == f->total || (area < f->total && area % SHM_SLOT == 0) ? area
                                                                       : 0;
}

/* The head of the block of a staged payload, whose page is there; NULL: *status
 * says why. */
static const struct shm_stage_head *fetch_head(struct lane *lane,
                                               const struct fetch *f,
                                               uint64_t area, int64_t *status) {
  const uint8_t *block =
      arena_peer(lane, f->source.address, SHM_STAGE_HEAD + area);
  *status = PERIGEE_PROTOCOL;
  if (!block || f->source.address % 64 || area == 0)
    return NULL;
  if (arena_there(lane, block, sizeof(struct shm_stage_head)) == THERE)
    return (const struct shm_stage_head *)(const void *)block;
  *status = arena_want(lane, block);
  return NULL;
}

/* May this side pull from the peer what it finds no bytes of? */
static bool fetch_may_pull(const struct lane *lane, const struct fetch *f,
                           uint64_t area) {
  return area < f->total && lane->pulls && lane->options.sized &&
         lane->options.windows;
}

/* Nothing is staged behind byte `at`. The owner always stages some right behind
 * the record, so before the first byte that is waited for. */
static int64_t fetch_starved(struct lane *lane, struct fetch *f, uint64_t at,
                             const struct shm_stage_head *head,
                             struct payload *into) {
  struct pulled *p = pulled_of(f);
  p->base = atomic_load_explicit(&head->base, memory_order_relaxed);
  if (at == 0 || !p->base)
    return 0;
  int64_t got = pull_private(lane, f, at, into, least(f->total - at, STARVED));
  if (got > 0)
    fetch_ack(lane, f, at + (uint64_t)got);
  return got;
}

static int64_t fetch_staged(struct lane *lane, struct fetch *f, uint64_t at,
                            struct payload *into) {
  int64_t status;
  uint64_t area = fetch_area(lane, f);
  const struct shm_stage_head *head = fetch_head(lane, f, area, &status);
  if (!head)
    return status;
  bool may_pull = fetch_may_pull(lane, f, area);
  uint64_t staged = atomic_load_explicit(&head->fed, memory_order_acquire);
  if (staged > f->total || (staged < at && !may_pull) ||
      (staged > at && staged - at > area))
    return PERIGEE_PROTOCOL;
  if (staged <= at)
    return may_pull ? fetch_starved(lane, f, at, head, into) : 0;
  const uint8_t *area_bytes = (const uint8_t *)head + SHM_STAGE_HEAD;
  uint64_t n = least(SHM_SLOT - at % SHM_SLOT, staged - at);
  int64_t moved = fetch_put_there(lane, into, area_bytes + at % area, n);
  if (moved > 0)
    fetch_ack(lane, f, at + (uint64_t)moved);
  return moved;
}

static int64_t fetch_private(struct lane *lane, struct fetch *f, uint64_t at,
                             struct payload *into) {
  if (!lane->pulls)
    return PERIGEE_PROTOCOL;
  return pull_private(lane, f, at, into,
                      least(f->total - at, *lane->options.piece));
}

static int64_t fetch_from(struct lane *lane, struct fetch *f, uint64_t at,
                          struct payload *into) {
  switch (f->source.kind) {
  case SOURCE_LOAN:
    return fetch_loan(lane, f, at, into);
  case SOURCE_STAGED:
    return fetch_staged(lane, f, at, into);
  case SOURCE_PRIVATE:
  case SOURCE_PLACES:
    return fetch_private(lane, f, at, into);
  default:
    return PERIGEE_PROTOCOL;
  }
}

/* ---- The fetch ----------------------------------------------------------- */

static uint8_t *bounce_take(struct lane *lane) {
  uint8_t *bounce = lane->spare ? lane->spare : malloc(BOUNCE);
  lane->spare = NULL;
  return bounce;
}

/* Returns whether all earlier bytes have left the half that is filled now. */
static bool bounce_has_room(struct fetch *f) {
  uint64_t filled = pulled_of(f)->filled;
  return filled < f->total && filled / HALF * HALF + HALF - f->done <= BOUNCE;
}

static int64_t bounce_fill(struct lane *lane, struct fetch *f) {
  struct pulled *b = pulled_of(f);
  struct payload half;
  uint64_t at = b->filled % BOUNCE;
  payload_bytes(&half, b->block + at, HALF - at % HALF);
  int64_t got = fetch_from(lane, f, b->filled, &half);
  if (got <= 0)
    return got;
  b->filled += (uint64_t)got;
  return f->careful && !shm_live(lane, f->operation, f->generation)
             ? PERIGEE_CANCELLED
             : got;
}

static int64_t shm_fetch_bounced(struct lane *lane, struct fetch *f) {
  struct pulled *b = pulled_of(f);
  if (!b->block && !(b->block = bounce_take(lane)))
    return PERIGEE_NO_MEMORY;
  if (bounce_has_room(f)) {
    int64_t got = bounce_fill(lane, f);
    if (got < 0 || b->filled == f->done)
      return got;
  }
  uint64_t at = f->done % BOUNCE;
  uint64_t n = least(b->filled - f->done, BOUNCE - at);
  return payload_put(f->into, b->block + at, n);
}

int64_t shm_fetch(struct lane *lane, struct fetch *f) {
  bool straight = f->into->memory->direct && !f->careful;
  if (!pulled_of(f)->counted) {
    pulled_of(f)->counted = true;
    lane->under_way++;
  }
  if (straight && f->done == 0 && pulled_of(f)->begun == 0)
    pulled_of(f)->begun = ways_begin(lane, f);
  int64_t moved = straight ? fetch_from(lane, f, f->done, f->into)
                           : shm_fetch_bounced(lane, f);
  if (moved > 0)
    f->done += (uint64_t)moved;
  if (moved > 0 && f->done == f->total && pulled_of(f)->begun != 0)
    ways_learn(lane, f, pulled_of(f)->begun);
  /* The owner has used the memory of its list again, or unmapped its bytes. */
  if (moved == PERIGEE_PROTOCOL && !shm_live(lane, f->operation, f->generation))
    return PERIGEE_CANCELLED;
  return moved;
}

bool shm_fetch_end(struct lane *lane, struct fetch *f) {
  if (!payload_quiet(f->into))
    return false;
  struct pulled *b = pulled_of(f);
  if (b->counted)
    lane->under_way--;
  b->counted = false;
  if (!lane->spare) {
    lane->spare = b->block;
  } else {
    free(b->block);
  }
  b->block = NULL;
  return true;
}
