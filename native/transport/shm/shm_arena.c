/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_arena.c - the blocks that a side lends: an arena of address space in
 * segments, each of which is a memfd that the peer maps read-only.
 *
 * The seal that keeps the peer from writing also keeps this side from punching
 * holes, and a file that could shrink would kill a peer that reads it. So
 * memory goes back to the system by whole segments, whose files both sides
 * close.
 *
 *   segment   event                                         becomes
 *   none      a block in it is to be lent                   made
 *   made      the peer is told                              there
 *   made      the peer still cannot be told at next look    none: unmapped
 *   there     no block in it was live since the look
 *             before the last                               none: told, unmapped
 *
 * Telling the peer is tried again when it may succeed, if the session cannot do
 * it now (socket.c). At most one segment is made and not there; it waits with
 * its file, while blocks are taken from segments that are there.
 *
 * Resting. A block that the peer has read is in its core's own cache, and lines
 * that another core has so are written more slowly, three times so by some
 * processors (shm_stage.c; bench/history/tried.md, "Blocks that rest"). So blocks
 * rest when they come back, until so many bytes have come back after them as
 * rests_most says, and calls one after the other get blocks in turn. A block that
 * rests is taken if there is no other. Resting begins only once so many bytes came
 * back within a quarter of a second: until then the block that came back last is
 * used again, as its pages are there. Blocks rest no longer than their segments
 * would be kept without them.
 *
 *   block    event                                               becomes
 *   lent     it comes back; it is short, as much else comes back resting
 *   lent     given back otherwise                                free
 *   resting  longest of all, and the bytes behind it suffice;
 *            there is no other block; nothing came back since
 *            the look before the last                            free
 *
 * The number of mappings of a process is limited. Each segment takes mappings
 * of its owner and of the peer; both count for the peer's share
 * (SHARE_SEGMENTS).
 *
 * The frame about a segment goes by the session's socket, before any record
 * with a block in it. A block's address contains the number of segments told
 * before. A side that has heard of fewer reads its socket first (knows). The
 * peer maps zeros in place of a segment that is gone, so an owner that removes
 * a segment too early makes the peer read zeros, and not fault.
 *
 * Nothing is read in place before it was looked at (shm_there.c), so no other
 * file may come to where an operation reads in place:
 *
 *   the peer's segment       is read      by the frame "there" it
 *   gone                     by a call    is mapped
 *   gone, and was in view    by a call    is mapped once nobody reads it
 *   there                    in place     ends the session: no owner says so
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/adopted.h"
#include "host/sized.h"
#include "memory/backing.h"
#include "shm.h"

/* In a block's address, above its offset: the number of frames sent before
 * it. */
enum { WORDS_SHIFT = 48 };
static const uint64_t OFFSETS = (UINT64_C(1) << WORDS_SHIFT) - 1;
static const uint64_t LEAST = 4 << 20; /* bytes of a segment */

/* The most bytes of the block that is used next and of those that rest: cores with
 * 2 MiB of cache were not found to need more (MOVED_MOST, shm_moves.c). */
enum { RESTS_MOST = 2 << 20 };

/* ns for which the reason for a lack of memory is told. */
static const int64_t RECENT = 1000000000;

#define MANY_SEGMENTS                                                          \
  "this peer has more mappings already than are left for it "                  \
  "(vm.max_map_count)"

/* The frame about a segment; it comes with a descriptor if the segment is
 * there. */
struct shm_word {
  uint32_t segment, there;
};

/* Returns the size of a segment of an arena of that length. */
static uint64_t segment_size(uint64_t length) {
  uint64_t size = LEAST;
  while (size * SHM_SEGMENTS < length)
    size *= 2;
  return size;
}

/* Rounds up to whole segments. */
static uint64_t arena_space(uint64_t length) {
  uint64_t size = segment_size(length);
  return (length + size - 1) / size * size;
}

/* Notes why there is no memory. */
static int arena_note_trouble(struct lane *lane, int status, const char *why) {
  lane->why = why;
  lane->why_at = *lane->options.now;
  return status;
}

const char *arena_trouble(const struct lane *lane) {
  bool late = lane->why && *lane->options.now - lane->why_at < RECENT;
  return late ? lane->why : "";
}

/* ---- The owner's side ---------------------------------------------------- */

/* Twice the cache of one core, as the lines of two are to be dropped; with less
 * than DROPPED_LEAST nothing was measured. A processor that does not tell its cache
 * is taken for one with 1 MiB. A power of two, as rings are. */
enum { DROPPED_LEAST = 1 << 20, DROPPED_UNTOLD = 2 << 20 };

static uint64_t caches_drop(void) {
  long own = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (own <= 0)
    return DROPPED_UNTOLD;
  return own <= DROPPED_LEAST / 2 ? DROPPED_LEAST
                                  : blocks_whole(2 * (uint64_t)own);
}

int arena_open(struct lane *lane, uint64_t length) {
  lane->dropped = caches_drop();
  lane->untold = -1;
  lane->arena_length = arena_space(length);
  lane->segment = segment_size(length);
  lane->segments = calloc(SHM_SEGMENTS, sizeof *lane->segments);
  lane->arena = guarded_reserve(lane->arena_length);
  if (!lane->segments || !lane->arena)
    return PERIGEE_NO_MEMORY;
  return blocks_open(&lane->blocks, length, lane->options.pool);
}

void arena_close(struct lane *lane) {
  if (lane->untold >= 0)
    close(lane->untold);
  share_back(lane->options.share, SHARE_SEGMENTS, lane->made);
  distance_end(lane);
  guarded_unmap(lane->arena, lane->arena_length);
  blocks_close(&lane->blocks);
  free(lane->segments);
}

static bool segment_form(int fd, uint64_t length, void *at) {
  return sized(fd, length) &&
         mmap(at, length, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) != MAP_FAILED &&
         madvise(at, length, MADV_DONTFORK) == 0 &&
         fcntl(fd, F_ADD_SEALS, SHM_ARENA_SEALS | F_SEAL_SEAL) == 0;
}

/* Unmaps a segment; if that fails, it only stays in memory. */
static void segment_unmap(struct lane *lane, uint32_t i) {
  (void)mmap(lane->arena + i * lane->segment, lane->segment, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static int arena_try_later(struct lane *lane, int status, const char *why) {
  lane->options.later(lane->options.session, why);
  return arena_note_trouble(lane, status, why);
}

static bool segment_may_be_made(struct lane *lane) {
  return share_take(lane->options.share, SHARE_SEGMENTS, 1);
}

/* Unmaps a segment and stops counting it. */
static void segment_unmake(struct lane *lane, uint32_t i) {
  segment_unmap(lane, i);
  lane->made--;
  share_back(lane->options.share, SHARE_SEGMENTS, 1);
}

static int segment_make(struct lane *lane, uint32_t i) {
  const char *why = "";
  if (!sized_may(lane->segment))
    return arena_note_trouble(lane, PERIGEE_NO_MEMORY, SIZED_NOT);
  int fd = lane->options.file(lane->options.session, &why);
  if (fd < 0)
    return arena_note_trouble(lane, fd, why);
  if (!segment_may_be_made(lane)) {
    close(fd);
    return arena_try_later(lane, PERIGEE_AGAIN, MANY_SEGMENTS);
  }
  lane->made++;
  if (!segment_form(fd, lane->segment, lane->arena + i * lane->segment)) {
    close(fd);
    segment_unmake(lane, i);
    return arena_try_later(lane, PERIGEE_NO_MEMORY, SHM_NO_MAPPINGS);
  }
  lane->untold = fd;
  lane->telling = i;
  lane->options.keeps(lane->options.session);
  return PERIGEE_OK;
}

static int segment_say(struct lane *lane, uint32_t i, int fd) {
  struct shm_word word = {i, fd >= 0};
  const char *why = "";
  int status =
      lane->options.hand(lane->options.session, &word, sizeof word, fd, &why);
  return status < 0 ? arena_note_trouble(lane, status, why) : status;
}

/* Tells the peer of the segment that was made. */
static int segment_tell_peer(struct lane *lane) {
  int status = segment_say(lane, lane->telling, lane->untold);
  if (status < 0)
    return status;
  lane->untold = -1;
  lane->segments[lane->telling].there = true;
  lane->said++;
  return PERIGEE_OK;
}

static int segment_bring(struct lane *lane, uint32_t i) {
  int status = lane->untold >= 0 ? segment_tell_peer(lane) : PERIGEE_OK;
  if (status < 0 || lane->segments[i].there)
    return status;
  status = segment_make(lane, i);
  return status < 0 ? status : segment_tell_peer(lane);
}

static void segments_leave(struct lane *lane, uint64_t first, uint64_t end) {
  for (uint64_t i = first; i < end; i++) {
    lane->segments[i].live--;
    lane->segments[i].used = *lane->options.look;
  }
}

static int segments_enter(struct lane *lane, uint64_t first, uint64_t end) {
  for (uint64_t i = first; i < end; i++) {
    struct shm_segment *s = &lane->segments[i];
    int status = s->there ? PERIGEE_OK : segment_bring(lane, (uint32_t)i);
    if (status < 0) {
      segments_leave(lane, first, i);
      return status;
    }
    s->live++;
  }
  return PERIGEE_OK;
}

static uint64_t segments_end(const struct lane *lane, uint64_t offset) {
  return (offset + blocks_size(&lane->blocks, offset) - 1) / lane->segment + 1;
}

/* Makes the segment of a block that was taken, or passes on the status of
 * taking it. The block does not count as kept memory if the segment cannot be
 * made. */
static int64_t block_backed(struct lane *lane, int64_t taken) {
  uint64_t offset = (uint64_t)taken;
  if (taken < 0)
    return taken;
  int status =
      segments_enter(lane, offset / lane->segment, segments_end(lane, offset));
  if (status == PERIGEE_OK)
    return taken;
  blocks_give(&lane->blocks, offset);
  blocks_cool(&lane->blocks, offset, offset + 1);
  return status;
}

/* Has the block that has rested longest be taken again. */
static void rests_give_one(struct lane *lane) {
  struct shm_rests *r = &lane->rests;
  uint64_t offset = r->blocks[r->first % SHM_RESTS];
  r->first++;
  r->count--;
  r->bytes -= blocks_size(&lane->blocks, offset);
  blocks_give(&lane->blocks, offset);
}

/* The same of all that rest; false: there is none. */
static bool rests_give(struct lane *lane) {
  bool any = lane->rests.count > 0;
  while (lane->rests.count > 0)
    rests_give_one(lane);
  return any;
}

/* What a live block notes while it rests. */
static const struct blocks_note RESTING = {.owner = 1};

static uint64_t rests_most(const struct lane *lane) {
  return least(lane->dropped, RESTS_MOST);
}

static void block_rest(struct lane *lane, uint64_t offset, uint64_t size) {
  struct shm_rests *r = &lane->rests;
  while (r->count == SHM_RESTS || r->bytes + 2 * size > rests_most(lane))
    rests_give_one(lane);
  r->blocks[(r->first + r->count++) % SHM_RESTS] = offset;
  r->bytes += size;
  r->since = *lane->options.look;
  blocks_note(&lane->blocks, offset, RESTING);
}

int64_t arena_take(struct lane *lane, uint64_t length) {
  int64_t taken = blocks_take(&lane->blocks, length);
  if (taken == PERIGEE_AGAIN && rests_give(lane))
    taken = blocks_take(&lane->blocks, length);
  lane->why = NULL;
  if (taken < 0)
    return taken;
  taken = block_backed(lane, taken);
  if (taken >= 0)
    return taken;
  rests_give(lane);
  int64_t other = block_backed(lane, blocks_take_warm(&lane->blocks, length));
  return other < 0 ? taken : other;
}

/* Nobody has the block any more. Returns its size, or 0 if that was so. */
static uint64_t block_leave(struct lane *lane, uint64_t offset) {
  if (blocks_noted(&lane->blocks, offset).owner == RESTING.owner)
    return 0;
  uint64_t size = blocks_size(&lane->blocks, offset);
  if (size > 0)
    segments_leave(lane, offset / lane->segment, segments_end(lane, offset));
  return size;
}

void arena_give(struct lane *lane, uint64_t address) {
  uint64_t offset = address & OFFSETS;
  if (block_leave(lane, offset) > 0)
    blocks_give(&lane->blocks, offset);
}

void arena_give_read(struct lane *lane, uint64_t address, bool seen) {
  uint64_t offset = address & OFFSETS, size = block_leave(lane, offset);
  if (size > 0 && seen)
    distance_try_read(lane, lane->arena + offset);
  uint64_t most = rests_most(lane);
  bool rests = size > 0 && 2 * size <= most &&
               flow_add(&lane->rests.back, *lane->options.now, size) > most;
  if (rests)
    block_rest(lane, offset, size);
  else if (size > 0)
    blocks_give(&lane->blocks, offset);
}

int64_t arena_stage(struct lane *lane, uint64_t length) {
  struct share *share = lane->options.share;
  if (share && !share_may(share, SHARE_STAGED, length))
    return -1;
  lane->blocks.limit += length;
  int64_t offset = arena_take(lane, length);
  if (offset < 0)
    lane->blocks.limit -= length;
  else
    share_take(share, SHARE_STAGED, length);
  return offset;
}

void arena_unstage(struct lane *lane, uint64_t offset, uint64_t length) {
  arena_give(lane, offset);
  lane->blocks.limit -= length;
  share_back(lane->options.share, SHARE_STAGED, length);
}

uint64_t arena_address(const struct lane *lane, uint64_t offset) {
  return offset | (uint64_t)lane->said << WORDS_SHIFT;
}

/* Removes a segment. The next look tries again if the peer cannot be told
 * now. */
static bool segment_drop(struct lane *lane, uint32_t i) {
  if (segment_say(lane, i, -1) < 0)
    return false;
  segment_unmake(lane, i);
  blocks_cool(&lane->blocks, i * lane->segment, (i + 1) * lane->segment);
  lane->segments[i].there = false;
  return true;
}

static void segment_forget_untold(struct lane *lane) {
  close(lane->untold);
  lane->untold = -1;
  segment_unmake(lane, lane->telling);
}

enum trim_left arena_trim(struct lane *lane) {
  enum trim_left left = TRIM_NOTHING;
  if (lane->untold >= 0)
    segment_forget_untold(lane);
  if (*lane->options.look - lane->rests.since > 1)
    rests_give(lane);
  for (uint32_t i = 0; i < SHM_SEGMENTS; i++) {
    const struct shm_segment *s = &lane->segments[i];
    if (!s->there)
      continue;
    bool idle = s->live == 0 && *lane->options.look - s->used > 1;
    if (idle && segment_drop(lane, i))
      return TRIM_MORE;
    left = TRIM_SOME;
  }
  return left;
}

uint64_t arena_kept(const struct lane *lane) {
  return lane->blocks.warm + lane->rests.bytes;
}

/* ---- The peer's arena ---------------------------------------------------- */

static const struct shm_arena none = {0};

#define NOT_THERE                                                              \
  "memory that the peer lent is not there, and no descriptor is left to read " \
  "it by (ulimit -n)"

#define UNREAD                                                                 \
  "the main thread of the peer's process has ended, so its memory cannot be "  \
  "read (option pull)"

static void shown_close_file(struct lane *lane, struct shm_shown *s) {
  if (s->file < 0)
    return;
  adopted_close(s->file);
  s->file = -1;
  share_back(lane->options.share, SHARE_DESCRIPTORS, 1);
}

/* Forgets which pages of a segment are there. */
static void shown_forget(struct lane *lane, uint32_t i) {
  struct shm_arena *a = &lane->peer_arena;
  struct shm_shown *s = &a->segments[i];
  uint64_t words = a->segment / SHM_PAGE / 64;
  if (s->known > 0)
    memset(a->known + i * words, 0, words * sizeof *a->known);
  s->known = 0;
  s->waits = false;
  shown_close_file(lane, s);
}

static uint64_t arena_known_bytes(const struct shm_arena *a) {
  return a->length / SHM_PAGE / 8;
}

/* Makes the notes about segments; a side that is lent nothing has none. */
static bool arena_note_segments(struct shm_arena *a) {
  if (a->segments)
    return true;
  void *known = mmap(NULL, arena_known_bytes(a), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (known == MAP_FAILED)
    return false;
  a->known = known;
  a->segments = calloc(SHM_SEGMENTS, sizeof *a->segments);
  for (int i = 0; a->segments && i < SHM_SEGMENTS; i++)
    a->segments[i].file = -1;
  if (!a->segments)
    munmap(known, arena_known_bytes(a));
  return a->segments;
}

/* Half of the descriptors are never used for this, nor is the last one. */
static bool file_may_be_kept(const struct share *s, int fd) {
  const struct shares *all = s ? s->all : NULL;
  if (s && (!share_may(s, SHARE_DESCRIPTORS, 1) ||
            2 * all->engine.used[SHARE_DESCRIPTORS] >=
                all->quota[SHARE_DESCRIPTORS].limit))
    return false;
  int another = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (another >= 0)
    close(another);
  return another >= 0;
}

bool arena_may_keep(struct lane *lane, int fd) {
  return file_may_be_kept(lane->options.share, fd);
}

int arena_unread(struct lane *lane) {
  return arena_note_trouble(lane, PERIGEE_NO_MEMORY, UNREAD);
}

int arena_not_there(struct lane *lane) {
  return arena_note_trouble(lane, PERIGEE_NO_MEMORY, NOT_THERE);
}

/* Keeps the file of a segment, or closes it. */
static void shown_keep_file(struct lane *lane, uint32_t i, int fd) {
  if (!file_may_be_kept(lane->options.share, fd)) {
    adopted_close(fd);
    return;
  }
  lane->peer_arena.segments[i].file = fd;
  if (lane->options.share)
    share_add(lane->options.share, SHARE_DESCRIPTORS, 1);
}

int arena_join(struct lane *lane, uint64_t length) {
  struct shm_arena *a = &lane->peer_arena;
  *a = none;
  a->length = arena_space(length);
  a->segment = segment_size(length);
  a->bytes = mmap(NULL, a->length, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (a->bytes != MAP_FAILED) {
    madvise((void *)a->bytes, a->length, MADV_DONTFORK);
    return PERIGEE_OK;
  }
  *a = none;
  return PERIGEE_NO_MEMORY;
}

void arena_part(struct lane *lane) {
  const struct shm_arena *a = &lane->peer_arena;
  if (a->bytes)
    adopted_unmap((void *)a->bytes, a->length, a->count * a->segment);
  share_back(lane->options.share, SHARE_SEGMENTS, a->count);
  for (uint32_t i = 0; a->segments && i < SHM_SEGMENTS; i++)
    shown_forget(lane, i);
  if (a->segments)
    munmap(a->known, arena_known_bytes(a));
  free(a->segments);
}

void arena_forked(struct lane *lane) {
  const struct shm_arena *a = &lane->peer_arena;
  if (lane->untold >= 0)
    close(lane->untold);
  lane->untold = -1;
  for (uint32_t i = 0; a->segments && i < SHM_SEGMENTS; i++) {
    if (a->segments[i].file >= 0)
      close(a->segments[i].file);
    a->segments[i].file = -1;
  }
}

bool shm_sound(int fd, uint64_t length, int seals) {
  uint64_t is;
  return adopted_memory(fd, seals, &is) && is == length;
}

/* Maps the segment from fd, or zeros if fd is -1. */
static bool shown_map(struct shm_arena *a, uint32_t i, int fd) {
  uint8_t *at = (uint8_t *)(uintptr_t)a->bytes + i * a->segment;
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  return mmap(at, a->segment, PROT_READ, flags | MAP_NORESERVE | MAP_FIXED, fd,
              0) != MAP_FAILED &&
         madvise(at, a->segment, MADV_DONTFORK) == 0;
}

/* Maps zeros in place of a segment, whose memory is let go as that of a session
 * (adopted.h): it may be long, and the peer may have let it go before. Its place
 * stays mapped meanwhile, so that nobody else gets it. The memory is freed here
 * if the system cannot do that (Linux before 5.13). */
static bool shown_hide(struct shm_arena *a, uint32_t i) {
  void *at = (uint8_t *)(uintptr_t)a->bytes + i * a->segment;
  void *old = adopted_take(at, a->segment);
  bool hidden = shown_map(a, i, -1);
  if (old != MAP_FAILED)
    adopted_unmap(old, a->segment, a->segment);
  return hidden;
}

static bool segment_is_shown(const struct shm_arena *a, uint32_t i) {
  return a->shown[i / 64] >> (i % 64) & 1;
}

static void segment_set_shown(struct shm_arena *a, uint32_t i, bool there) {
  a->count += (uint32_t)there - segment_is_shown(a, i);
  a->shown[i / 64] &= ~(UINT64_C(1) << (i % 64));
  a->shown[i / 64] |= (uint64_t)there << (i % 64);
}

static bool segment_word_is_sound(const struct shm_arena *a,
                                  const struct shm_word *w, int fd) {
  return w->there == (fd >= 0) && a->bytes &&
         w->segment < a->length / a->segment &&
         (fd < 0 || shm_sound(fd, a->segment, SHM_ARENA_SEALS));
}

static int segment_heard(struct lane *lane, const struct shm_word *w, int fd) {
  struct shm_arena *a = &lane->peer_arena;
  struct share *share = lane->options.share;
  if (!segment_word_is_sound(a, w, fd))
    return PERIGEE_PROTOCOL;
  bool was = segment_is_shown(a, w->segment);
  if (was && w->there)
    return PERIGEE_PROTOCOL;
  if (!arena_note_segments(a))
    return arena_note_trouble(lane, PERIGEE_NO_MEMORY, SHM_NO_MAPPINGS);
  if (w->there && !share_take(share, SHARE_SEGMENTS, 1))
    return arena_note_trouble(lane, PERIGEE_NO_MEMORY, MANY_SEGMENTS);
  shown_forget(lane, w->segment);
  a->heard = (uint16_t)(a->heard + w->there);
  segment_set_shown(a, w->segment, w->there);
  if (was && !w->there)
    share_back(share, SHARE_SEGMENTS, 1);
  struct shm_shown *s = &a->segments[w->segment];
  s->waits = w->there && s->views > 0;
  bool fine = s->waits || (w->there ? shown_map(a, w->segment, fd)
                                    : !was || shown_hide(a, w->segment));
  if (!fine)
    return arena_note_trouble(lane, PERIGEE_NO_MEMORY, SHM_NO_MAPPINGS);
  if (fd >= 0)
    shown_keep_file(lane, w->segment, fd);
  return PERIGEE_OK;
}

int arena_heard(struct lane *lane, const void *bytes, uint32_t length, int fd) {
  struct shm_word word;
  int status = PERIGEE_PROTOCOL;
  if (length == sizeof word) {
    memcpy(&word, bytes, sizeof word);
    status = segment_heard(lane, &word, fd);
  }
  if (fd >= 0 && status < 0)
    adopted_close(fd);
  return status;
}

/* The numbers are compared in 16 bits: at most half as many frames are in
 * transit. */
bool arena_knows(struct lane *lane, const struct source *source) {
  uint16_t said = (uint16_t)(source->address >> WORDS_SHIFT);
  bool block = source->kind == SOURCE_LOAN || source->kind == SOURCE_STAGED;
  return !block || (int16_t)(lane->peer_arena.heard - said) >= 0;
}

const uint8_t *arena_peer(const struct lane *lane, uint64_t address,
                          uint64_t length) {
  const struct shm_arena *a = &lane->peer_arena;
  uint64_t offset = address & OFFSETS;
  if (offset > a->length || length > a->length - offset)
    return NULL;
  return a->bytes + offset;
}

/* Is the segment mapped? One that waited is once nobody reads what was there. */
static bool segment_is_mapped(struct shm_arena *a, uint32_t i) {
  if (!segment_is_shown(a, i))
    return false;
  struct shm_shown *s = &a->segments[i];
  s->waits =
      s->waits && (s->views > 0 || s->file < 0 || !shown_map(a, i, s->file));
  return !s->waits;
}

/* Are all of its pages known to be there? */
static bool segment_is_whole(const struct shm_arena *a, uint64_t i) {
  return a->segments[i].known == a->segment / SHM_PAGE;
}

/* As arena_there, of bytes in one segment. A place to which another file may
 * come later is not there. */
static enum there segment_there(struct lane *lane, uint64_t from, uint64_t to,
                                uint32_t *looks) {
  struct shm_arena *a = &lane->peer_arena;
  uint32_t i = (uint32_t)(from / a->segment);
  if (!segment_is_mapped(a, i))
    return THERE_NOT;
  if (segment_is_whole(a, i))
    return THERE;
  struct shm_shown *s = &a->segments[i];
  enum there there =
      there_range(a->bytes, a->known, from, to, looks, &s->known);
  if (segment_is_whole(a, i))
    shown_close_file(lane, s);
  return there;
}

void arena_views(struct lane *lane, const uint8_t *bytes, uint64_t length,
                 int by) {
  struct shm_arena *a = &lane->peer_arena;
  uint64_t at = (uint64_t)(bytes - a->bytes);
  for (uint64_t i = at / a->segment; length > 0 && i * a->segment < at + length;
       i++)
    a->segments[i].views += (uint32_t)by;
}

static __attribute__((noinline)) enum there
arena_look(struct lane *lane, uint64_t at, uint64_t end, uint32_t *looks) {
  const struct shm_arena *a = &lane->peer_arena;
  enum there there = THERE;
  for (uint64_t to; at < end && there == THERE; at = to) {
    to = least((at / a->segment + 1) * a->segment, end);
    there = segment_there(lane, at, to, looks);
  }
  return there;
}

/* The bits of pages are read in two segments at most, at the begin and at the end,
 * and in one with a page that is not there. */
static bool segments_seen(const struct shm_arena *a, uint64_t at,
                          uint64_t end) {
  bool seen = true;
  for (uint64_t to; at < end && seen; at = to) {
    to = least((at / a->segment + 1) * a->segment, end);
    seen = segment_is_whole(a, at / a->segment) || there_all(a->known, at, to);
  }
  return seen;
}

bool arena_seen(const struct lane *lane, const uint8_t *bytes,
                uint64_t length) {
  const struct shm_arena *a = &lane->peer_arena;
  uint64_t at = (uint64_t)(bytes - a->bytes), end = at + length;
  return length == 0 || (a->segments && (there_known(a->known, at, end) ||
                                         segments_seen(a, at, end)));
}

/* How long the bits of a loan take to read as often as a request has that done, as
 * bytes to copy. The segments of a usual arena have few. */
static uint64_t seen_work(const struct shm_arena *a, uint64_t length) {
  enum { TIMES = 3, SEGMENTS = 3, FEW = 1024 };
  uint64_t bits = least(length, SEGMENTS * a->segment) / SHM_PAGE / 8;
  return bits < FEW ? 0 : TIMES * bits;
}

enum there arena_there(struct lane *lane, const uint8_t *bytes,
                       uint64_t length) {
  uint64_t at = (uint64_t)(bytes - lane->peer_arena.bytes);
  uint32_t looks = THERE_LOOKS;
  return arena_seen(lane, bytes, length)
             ? THERE
             : arena_look(lane, at, at + length, &looks);
}

int64_t arena_copy(struct lane *lane, const uint8_t *bytes, uint64_t length,
                   void *to, uint64_t room) {
  const struct shm_arena *a = &lane->peer_arena;
  uint64_t at = (uint64_t)(bytes - a->bytes), within = at % a->segment;
  uint64_t n = least(least(length, room), a->segment - within);
  uint32_t i = (uint32_t)(at / a->segment);
  if (!segment_is_shown(a, i)) {
    memset(to, 0, n);
    return (int64_t)n;
  }
  int file = a->segments[i].file;
  ssize_t got = file < 0 ? -1 : pread(file, to, n, (off_t)within);
  return got > 0 ? got : arena_note_trouble(lane, PERIGEE_NO_MEMORY, NOT_THERE);
}

int arena_want(struct lane *lane, const uint8_t *bytes) {
  const struct shm_arena *a = &lane->peer_arena;
  uint64_t at = (uint64_t)(bytes - a->bytes);
  uint32_t i = (uint32_t)(at / a->segment);
  if (segment_is_shown(a, i) && a->segments[i].waits && a->segments[i].file < 0)
    return arena_note_trouble(lane, PERIGEE_NO_MEMORY, NOT_THERE);
  there_want(lane, a->bytes + at / SHM_PAGE * SHM_PAGE, SHM_PAGE);
  return 0;
}

/* The bytes of a loan that is read in place; NULL: it is none, or not sound. */
static const uint8_t *loan_bytes(const struct lane *lane,
                                 const struct source *source) {
  bool loan = source->kind == SOURCE_LOAN && source->count == 1;
  return loan ? arena_peer(lane, source->address, source->block) : NULL;
}

bool arena_looks(struct lane *lane, const struct source *source,
                 uint64_t *work) {
  const uint8_t *bytes = loan_bytes(lane, source);
  uint64_t seen = bytes ? seen_work(&lane->peer_arena, source->block) : 0;
  uint32_t most = (uint32_t)least(*work / THERE_WORK, THERE_LOOKS), left = most;
  if (seen > 0 && *work == 0)
    return false;
  *work = seen;
  if (!bytes || arena_seen(lane, bytes, source->block))
    return true;
  uint64_t at = (uint64_t)(bytes - lane->peer_arena.bytes);
  enum there there = arena_look(lane, at, at + source->block, &left);
  *work += (uint64_t)(most - left) * THERE_WORK;
  return there != THERE_LATER;
}
