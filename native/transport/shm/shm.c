/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.c - the shared-memory transport: its table, set-up, records, loans and
 * sleeping. shm.h has the layout and lists the files.
 *
 * Wake-ups. The side that goes to sleep stores `armed`, fences, and polls once
 * more before it sleeps; the other side publishes, fences, and loads `armed`.
 * As both fences are in the single total order, either the sleeper's last poll
 * sees what was published or the publisher sees `armed`
 * (spec/model/wakeup.pml).
 */
#include "shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "host/adopted.h"
#include "host/sized.h"
#include "memory/backing.h"

/* The content of an offer; its descriptors are inbox and outbox. `probed` is an
 * address in this process, at which the bytes are that the peer's TERMS asked
 * for. */
struct shm_offer {
  uint64_t ring, arena, probed;
};

enum { RING_MIN = 4096 };

/* ---- Set-up -------------------------------------------------------------- */

/* Maps a file that was found to be sound; NULL: errno says why not. No child
 * process sees the mapping. */
static void *shm_map_sound(int fd, uint64_t length, int protection) {
  void *p = mmap(NULL, length, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED)
    return NULL;
  /* A child must neither see nor keep what belongs to this session. */
  madvise(p, length, MADV_DONTFORK);
  return p;
}

static int shm_make_file(const char *name, uint64_t length, void **mapped,
                         int seals, char reason[REASON]) {
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    snprintf(reason, REASON, "no memory for the session: %s",
             system_text(errno));
    return system_status(errno);
  }
  if (!sized(fd, length)) {
    snprintf(reason, REASON, "%s", SIZED_NOT);
    goto fail;
  }
  *mapped = guarded_map(length, fd);
  if (!*mapped)
    goto fail;
  if (fcntl(fd, F_ADD_SEALS, seals) == 0)
    return fd;
  guarded_unmap(*mapped, length);
fail:
  close(fd);
  *mapped = NULL;
  return PERIGEE_NO_MEMORY;
}

/* Maps a peer's memfd, if it has the length and the seals that it should
 * have. */
static int shm_adopt_file(int fd, uint64_t length, int seals, int protection,
                          void **mapped) {
  if (!shm_sound(fd, length, seals))
    return PERIGEE_PROTOCOL;
  *mapped = shm_map_sound(fd, length, protection);
  return *mapped ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static int shm_adopt_both(struct lane *lane, const int fds[2]) {
  void *inbox = NULL, *outbox = NULL;
  int status = shm_adopt_file(fds[0], RINGS * lane->peer_ring, SHM_SIZE_SEALS,
                              PROT_READ | PROT_WRITE, &inbox);
  if (status == PERIGEE_OK)
    status = shm_adopt_file(fds[1], sizeof *lane->peer, SHM_ARENA_SEALS,
                            PROT_READ, &outbox);
  lane->peer_inbox = inbox;
  lane->peer = outbox;
  if (status == PERIGEE_OK && !rings_join(lane, fds[0]))
    status = PERIGEE_PROTOCOL;
  return status;
}

static void rings_wire_in(struct lane *lane) {
  const uint64_t ring = lane->options.ring;
  _Atomic uint64_t *consumed[] = {[RING_REQUEST] = &lane->own->consumed_request,
                                  [RING_REPLY] = &lane->own->consumed_reply};
  for (int i = 0; i < RINGS; i++)
    ring_open(&lane->in[i], lane->inbox + (uint64_t)i * ring, ring,
              lane->options.key, consumed[i]);
  lane->head.in = lane->in;
  lane->head.out = lane->out;
}

/* As ring_out.longs. */
static void rings_long(struct ring_out *ring, uint64_t length, void *context) {
  distance_try_ring(context, ring, length);
  moves_long(context, ring);
}

static void rings_wire_out(struct lane *lane) {
  const uint64_t ring = lane->peer_ring;
  const _Atomic uint64_t *consumed[] = {
      [RING_REQUEST] = &lane->peer->consumed_request,
      [RING_REPLY] = &lane->peer->consumed_reply};
  for (int i = 0; i < RINGS; i++) {
    ring_begin(&lane->out[i], lane->peer_inbox + (uint64_t)i * ring, ring,
               lane->options.key, consumed[i]);
    lane->out[i].longs = rings_long;
    lane->out[i].leave = moves_leave_room;
    lane->out[i].context = lane;
  }
  lane->head.armed = &lane->peer->armed;
}

static void shm_close(struct lane *lane) {
  if (!lane)
    return;
  rings_close(lane);
  if (lane->inbox)
    guarded_unmap(lane->inbox, RINGS * lane->options.ring);
  if (lane->peer_inbox)
    munmap(lane->peer_inbox, RINGS * lane->peer_ring);
  if (lane->own)
    guarded_unmap(lane->own, sizeof *lane->own);
  if (lane->peer)
    munmap((void *)(uintptr_t)lane->peer, sizeof *lane->peer);
  arena_part(lane);
  share_back(lane->options.share, SHARE_MAPPED, lane->mapped);
  share_back(lane->options.share, SHARE_STAGED, lane->turns.size);
  moves_close(lane);
  arena_close(lane);
  free(lane->spare);
  free(lane);
}

static int shm_open_lane(const struct lane_options *options, struct lane **out,
                         struct offer *offer, char reason[REASON]) {
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane)
    return PERIGEE_NO_MEMORY;
  lane_by(lane, &transport_shm);
  list_open(&lane->sights);
  lane->options = *options;
  /* The address space is twice the limit, so that blocks of all sizes fit. */
  uint64_t arena = 2 * options->pool;
  int status = arena_open(lane, arena);
  if (status < 0)
    goto fail;
  status = offer->fds[0] =
      shm_make_file("perigee-inbox", RINGS * options->ring,
                    (void **)&lane->inbox, SHM_SIZE_SEALS, reason);
  if (status < 0)
    goto fail;
  status = offer->fds[1] =
      shm_make_file("perigee-outbox", sizeof *lane->own, (void **)&lane->own,
                    SHM_ARENA_SEALS | F_SEAL_SEAL, reason);
  if (status < 0) {
    close(offer->fds[0]);
    goto fail;
  }
  offer->fd_count = 2;
  struct shm_offer said = {options->ring, arena,
                           (uint64_t)(uintptr_t)lane->options.probed};
  memcpy(offer->bytes, &said, sizeof said);
  offer->length = sizeof said;
  rings_wire_in(lane);
  *out = lane;
  return PERIGEE_OK;
fail:
  shm_close(lane);
  return status;
}

static bool shm_offer_plausible(const struct shm_offer *said) {
  return said->ring >= RING_MIN && said->ring <= SHM_RING_MAX &&
         (said->ring & (said->ring - 1)) == 0 && said->arena > 0 &&
         said->arena <= 4 * PAYLOAD_MAX;
}

/* Counts the address space for a file, because a sparse file costs its maker
 * nothing and this side address space. */
static bool shm_may_map(struct lane *lane, uint64_t bytes,
                        char reason[REASON]) {
  if (!share_take(lane->options.share, SHARE_MAPPED, bytes)) {
    snprintf(reason, REASON,
             "%llu bytes of address space are more than is left for this peer "
             "(option mapped)",
             (unsigned long long)bytes);
    return false;
  }
  lane->mapped = bytes;
  return true;
}

static int shm_join(struct lane *lane, const struct offer *offer,
                    char reason[REASON]) {
  struct shm_offer said;
  int status = PERIGEE_PROTOCOL;
  if (offer->length != sizeof said || offer->fd_count != 2)
    goto done;
  memcpy(&said, offer->bytes, sizeof said);
  if (!shm_offer_plausible(&said))
    goto done;
  lane->peer_ring = said.ring;
  if (!shm_may_map(lane, RINGS * said.ring + sizeof *lane->peer + said.arena,
                   reason)) {
    status = PERIGEE_NO_MEMORY;
    goto done;
  }
  status = shm_adopt_both(lane, offer->fds);
  if (status == PERIGEE_OK)
    status = arena_join(lane, said.arena);
  if (status == PERIGEE_NO_MEMORY)
    snprintf(reason, REASON, "%s", SHM_NO_MAPPINGS);
  if (status < 0)
    goto done;
  rings_wire_out(lane);
  status = rings_fill(lane, reason);
  if (status < 0)
    goto done;
  lane->pulls = lane->options.pull && offer->vouched &&
                shm_probe(&lane->options, said.probed);
  status = PERIGEE_OK;
done:
  for (uint32_t i = 0; i < offer->fd_count; i++)
    adopted_close(offer->fds[i]);
  return status;
}

static bool shm_pulls(const struct lane *lane) {
  return lane->pulls;
}

static void shm_set_peer_pulls(struct lane *lane, bool pulls) {
  lane->peer_pulls = pulls;
}

/* ---- Records ------------------------------------------------------------- */

static uint8_t *shm_reserve(struct lane *lane, enum ring ring,
                            uint64_t length) {
  bool reached = lane->awaited == 0 || rings_reach(lane);
  return reached ? ring_reserve(&lane->out[ring], length) : NULL;
}

static void shm_publish(struct lane *lane, enum ring ring, uint64_t length) {
  ring_publish(&lane->out[ring], length);
}

static int shm_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
                    uint64_t *length) {
  return ring_peek(&lane->in[ring], bytes, length);
}

static bool shm_release(struct lane *lane) {
  bool requests = ring_release(&lane->in[RING_REQUEST]);
  bool told = ring_release(&lane->in[RING_REPLY]) || requests;
  if (lane->hidden && moves_told(lane))
    lane->head.in = lane->in;
  return told;
}

/* ---- Loans --------------------------------------------------------------- */

static int shm_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
                    struct source *source) {
  int64_t offset = arena_take(lane, length ? length : 1);
  if (offset < 0 && turns_end(lane, true))
    offset = arena_take(lane, length ? length : 1);
  if (offset < 0)
    return (int)offset;
  *pointer = lane->arena + offset;
  *source = (struct source){.kind = SOURCE_LOAN,
                            .address = arena_address(lane, (uint64_t)offset),
                            .block = length,
                            .count = 1,
                            .stride = length};
  return PERIGEE_OK;
}

static void shm_unloan(struct lane *lane, const struct source *source,
                       bool seen) {
  arena_give_read(lane, source->address, seen);
}

static bool shm_loaned(struct lane *lane, const uint8_t *pointer,
                       uint64_t length, struct source *source) {
  const uint8_t *arena = lane->arena;
  if (pointer < arena || pointer >= arena + lane->arena_length)
    return false;
  *source = (struct source){
      .kind = SOURCE_LOAN,
      .address = arena_address(lane, (uint64_t)(pointer - arena)),
      .block = length,
      .count = 1,
      .stride = length};
  return true;
}

/* Returns where a loan can be read in place; NULL: it cannot. */
static const uint8_t *loan_place(struct lane *lane,
                                 const struct source *source) {
  if (source->kind != SOURCE_LOAN || source->count != 1)
    return NULL;
  const uint8_t *bytes = arena_peer(lane, source->address, source->block);
  return bytes && arena_seen(lane, bytes, source->block) ? bytes : NULL;
}

static const uint8_t *shm_view(struct lane *lane, const struct source *source,
                               uint16_t operation, uint32_t generation) {
  (void)operation, (void)generation; /* a block is in one source at a time */
  const uint8_t *bytes = loan_place(lane, source);
  if (bytes)
    arena_views(lane, bytes, source->block, 1);
  return bytes;
}

static void shm_unview(struct lane *lane, const uint8_t *bytes,
                       uint64_t length) {
  arena_views(lane, bytes, length, -1);
}

static bool shm_lacks(struct lane *lane, const struct source *source) {
  return source->kind == SOURCE_LOAN && !loan_place(lane, source);
}

static enum trim_left shm_trim(struct lane *lane) {
  turns_end(lane, false);
  moves_trim(lane);
  return arena_trim(lane);
}

/* ---- Sleeping ------------------------------------------------------------ */

static void shm_arm(struct lane *lane) {
  if (++lane->sleeps == 0)
    lane->sleeps = 1;
  atomic_store_explicit(&lane->own->armed, lane->sleeps, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
}

static void shm_disarm(struct lane *lane) {
  atomic_store_explicit(&lane->own->armed, 0, memory_order_relaxed);
}

static bool shm_wanted(struct lane *lane) {
  atomic_thread_fence(memory_order_seq_cst);
  uint32_t armed =
      atomic_load_explicit(&lane->peer->armed, memory_order_relaxed);
  if (armed == 0 || armed == lane->kicked)
    return false;
  lane->kicked = armed;
  return true;
}

static void shm_unwoken(struct lane *lane) {
  lane->kicked = 0;
}

static bool shm_rests(struct lane *lane) {
  (void)lane;
  return true;
}

static int shm_heard(struct lane *lane, const void *bytes, uint32_t length,
                     int fd) {
  return fd < 0 && length == sizeof(struct shm_moves_word)
             ? moves_heard(lane, bytes)
             : arena_heard(lane, bytes, length, fd);
}

static void shm_forked(struct lane *lane) {
  arena_forked(lane);
  shm_regions_forked(lane);
}

/* Looks at pages of the peer, and what is put in the place of own ones, go by
 * SHM_PAGE. */
static const char *shm_unfit(void) {
  return getpagesize() == SHM_PAGE ? NULL
                                   : "shared memory needs pages of 4096 bytes";
}

/* ---- The table ----------------------------------------------------------- */

static const struct transport_records shm_records_table = {
    .reserve = shm_reserve,
    .publish = shm_publish,
    .peek = shm_peek,
    .release = shm_release,
    .lend = moves_lend,
    .unlend = moves_unlend,
};

static const struct transport_payloads shm_payloads_table = {
    .mark = shm_mark,
    .live = shm_live,
    .expose = shm_expose,
    .feed = shm_feed,
    .conceal = shm_conceal,
    .stages = shm_stages,
    .fetch = shm_fetch,
    .fetch_end = shm_fetch_end,
    .pulls = shm_pulls,
    .set_peer_pulls = shm_set_peer_pulls,
};

static const struct transport_loans shm_loans_table = {
    .loan = shm_loan,
    .unloan = shm_unloan,
    .loaned = shm_loaned,
    .view = shm_view,
    .unview = shm_unview,
    .knows = arena_knows,
    .looks = arena_looks,
    .lacks = shm_lacks,
};

static const struct transport_kept shm_kept_table = {
    .trim = shm_trim,
    .bytes = arena_kept,
};

static const struct transport_access shm_access_table = {
    .export = shm_export,
    .revoke = shm_revoke,
    .inside = shm_inside,
    .attach = shm_attach,
    .detach = shm_detach,
};

static const struct transport_copies shm_copies_table = {
    .immediate = true,
    .copy = shm_copy,
    .there = shm_there,
};

static const struct transport_sleep shm_sleep_table = {
    .arm = shm_arm,
    .disarm = shm_disarm,
    .wanted = shm_wanted,
    .unwoken = shm_unwoken,
};

const struct perigee_transport transport_shm = {
    .name = "shm",
    .socket = SOCKET_UNIX,
    .grows = true,
    .unfit = shm_unfit,
    .records = &shm_records_table,
    .payloads = &shm_payloads_table,
    .loans = &shm_loans_table,
    .kept = &shm_kept_table,
    .access = &shm_access_table,
    .copies = &shm_copies_table,
    .sleep = &shm_sleep_table,
    .open = shm_open_lane,
    .join = shm_join,
    .close = shm_close,
    .heard = shm_heard,
    .retain = rings_retain,
    .cut = shm_cut,
    .forked = shm_forked,
    .rests = shm_rests,
    .trouble = arena_trouble,
};
