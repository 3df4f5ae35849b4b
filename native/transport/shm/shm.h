/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.h - shared by the files of the shared-memory transport.
 *
 * Each side makes two memfds. Its inbox holds the two rings that it receives,
 * and is mapped read-write by the peer. Its outbox holds words that it
 * publishes, and is mapped read-only by the peer (sealed against writing once
 * its owner has mapped it); so are blocks, in memfds of their own
 * (shm_arena.c). Sizes are sealed.
 *
 *   shm.c          the table, set-up, records, loans, sleeping
 *   shm_moves.c    rings that move to blocks and back
 *   shm_stage.c    payloads at their owner: where each goes; staging blocks
 *   shm_ways.c     which way of a payload is the quicker one
 *   shm_payload.c  payloads at their receiver; marks
 *   shm_regions.c  one-sided access
 *   shm_arena.c    blocks that a side lends, and those of the peer
 *   shm_there.c    pages that are there, and who pays for them
 *   shm_distance.c whether the cores of the two sides are near or far
 *
 * Each of them uses those below it.
 */
#ifndef SHM_H
#define SHM_H

#include <fcntl.h>
#include <stdatomic.h>

#include "base/blocks.h"
#include "base/list.h"
#include "base/ring.h"
#include "transport/transport.h"

enum { SHM_REGIONS = 4096, SHM_OPERATIONS = 65536 };
enum { SHM_SLOT = 32 << 10, SHM_SLOTS = 8, SHM_STAGE_HEAD = 4096 };
enum { SHM_STAGE = SHM_SLOT * SHM_SLOTS };
/* The longest payload of a block in turn. */
enum { SHM_TURN_MOST = 3 << 20 };
/* The begin of a staging block, which its owner writes. */
struct shm_stage_head {
  _Atomic uint64_t fed;               /* bytes staged so far */
  _Alignas(64) _Atomic uint64_t base; /* of a window, where the payload lies in
                                         the owner's process; else 0 */
};
_Static_assert(sizeof(struct shm_stage_head) <= SHM_STAGE_HEAD, "it fits");
enum { SHM_ACK_SHIFT = 40 };
static inline uint64_t shm_ack_tag(uint32_t generation) {
  return (uint64_t)generation << SHM_ACK_SHIFT;
}

/* The words that a side publishes; each that the peer polls has a cache line of
 * its own. Pages that are never used take no memory. */
struct outbox {
  _Alignas(64) _Atomic uint32_t armed; /* a number while asleep, else 0 */
  _Alignas(64) _Atomic uint64_t consumed_request;
  _Alignas(64) _Atomic uint64_t consumed_reply;
  _Alignas(64) _Atomic uint64_t inside; /* copying: peer's slot + 1 */
  _Alignas(64) _Atomic uint32_t over;   /* 1: its session has ended here */
  _Alignas(64) _Atomic uint32_t ways;   /* that it prefers (shm_ways.c) */
  _Alignas(4096) _Atomic uint64_t regions[SHM_REGIONS]; /* generations */
  _Atomic uint32_t marks[SHM_OPERATIONS];   /* generation of live operations */
  _Atomic uint64_t acks[SHM_OPERATIONS][2]; /* by the peer's operation and
                  part: bytes of its staged payload that were taken, tagged */
};

enum { SHM_SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };
enum { SHM_ARENA_SEALS = SHM_SIZE_SEALS | F_SEAL_FUTURE_WRITE };
enum { SHM_SEGMENTS = 256 };
enum { SHM_RING_MAX = 16 << 20 };
#define SHM_NO_MAPPINGS                                                        \
  "the system gives no more mappings (vm.max_map_count), or no memory for "    \
  "them"

/* A segment of this side's arena. */
struct shm_segment {
  uint32_t live; /* blocks in use */
  uint32_t used; /* number of the last look before which it was in use */
  bool there;
};

/* Bytes within a window of a quarter of a second. What is worth memory of its own
 * for as long as much passes begins only then. */
struct shm_flow {
  uint64_t bytes;
  int64_t since; /* when the window began */
};
static const int64_t SHM_WINDOW = 250 * 1000000; /* ns */

/* So many bytes more pass: returns the bytes of the window. */
static inline uint64_t flow_add(struct shm_flow *f, int64_t now,
                                uint64_t bytes) {
  if (now - f->since > SHM_WINDOW)
    *f = (struct shm_flow){.since = now};
  return f->bytes += bytes;
}

/* Staging blocks that are used in turn (shm_stage.c). */
enum { SHM_TURNS = 64 };
struct shm_turn {
  uint64_t total; /* of its payload; 0: it is not in use */
  uint32_t at;    /* where in the stretch the block begins */
  uint32_t generation;
  uint16_t operation; /* of the exposure */
  uint8_t part;
  bool filled; /* all of the payload was staged */
};
/* The distance of the cores, as far as it is known (shm_distance.c). */
struct shm_distance {
  bool far;      /* they share no cache */
  bool late;     /* the line that was tried last was */
  uint32_t wait; /* payloads until the next one is tried */
  int64_t tried; /* of rings: when it was last asked for */
};
/* How payloads of similar length are best brought here (shm_ways.c). */
enum { SHM_LENGTHS = 16 };
enum shm_way { SHM_WAY_NONE, SHM_UNSTAGED, SHM_STAGED, SHM_WAYS };
struct shm_ways {
  enum shm_way best;
  bool pulls;              /* some were pulled: lent ones do not count */
  uint32_t cost[SHM_WAYS]; /* ns a MiB; 0: not known */
  uint32_t tries;          /* of the other way, in a trial; 0: there is none */
  uint32_t left;           /* payloads until a trial begins or is given up */
  uint32_t pause;          /* payloads between two trials */
};
struct shm_turns {
  uint64_t stretch;       /* its offset in the arena */
  uint32_t size;          /* of the stretch; 0: there is none */
  uint32_t next;          /* where the youngest block ends */
  uint32_t first;         /* number of the oldest block; never begins anew */
  uint32_t count;         /* blocks from the oldest on */
  uint32_t used;          /* number of the last look before which one was */
  uint32_t touched;       /* from here on there are no pages yet */
  struct shm_flow wanted; /* bytes that would have been staged */
  struct shm_turn blocks[SHM_TURNS];
};

/* A ring of the peer's, which this side writes (shm_moves.c has the states). */
enum move_state { MOVE_HOME, MOVE_ASKED, MOVE_READY, MOVE_AWAY, MOVE_BACK };
struct shm_move {
  enum move_state state;
  uint32_t
      used; /* number of the look before which a long record was heard of */
  uint64_t number; /* of the last request to move */
  uint64_t block;  /* unless home: its offset in the arena */
  uint64_t left;   /* away, back: the ring's position behind the move */
  bool said;       /* back: the reader was told */
  bool lent;       /* the program may write to room in the block */
  bool disturbed;  /* another record came before one in such room */
  uint64_t seen;   /* the ring's position at the last long record */
  struct shm_flow passed;
};

/* The frame about a ring that its block's owner writes (shm_moves.c). Frames about
 * segments are shorter. */
enum shm_moves_kind { MOVES_OPEN, MOVES_READY, MOVES_BACK, MOVES_SHUT };
struct shm_moves_word {
  uint32_t kind, ring;
  uint64_t number;        /* of the owner's request */
  uint64_t address, size; /* "open": of the block, as in a source */
};

/* A segment of the peer's arena that is mapped. */
struct shm_shown {
  int file;       /* kept until all of it is known to be there; or -1 */
  uint32_t known; /* pages that are */
  uint32_t views; /* operations that read it where it is mapped */
  bool waits;     /* it came while there were some: mapped after them */
};

/* The peer's arena. */
struct shm_arena {
  const uint8_t *bytes;
  uint64_t length, segment;
  uint16_t heard;                    /* number of segments told so far */
  uint64_t shown[SHM_SEGMENTS / 64]; /* bits of segments that are mapped */
  uint32_t count;                    /* number of them */
  struct shm_shown *segments;        /* NULL: none was ever mapped */
  uint64_t *known; /* bits of pages that are there (shm_there.c) */
};

enum source_kind {
  SOURCE_LOAN = 1,    /* address: arena_address in the owner's arena */
  SOURCE_PRIVATE = 2, /* address: in the owner's process */
  SOURCE_STAGED = 3,  /* address: of a staging block */
  SOURCE_PLACES = 4   /* address: of a list of places, in the owner's process;
                         block: bytes, count: 1; stride: number of places */
};

enum { SHM_PAGE = 4096 };
enum { SHM_OUTBOX_PAGES = (sizeof(struct outbox) + SHM_PAGE - 1) / SHM_PAGE };

/* Bytes of a ring in the inbox, in whole pages, in whose place is own memory
 * (rings_retain). From the end they go on at the begin. */
struct shm_retained {
  uint64_t from, to;
};

enum { SHM_RESTS = 128 };

/* Blocks that rest (shm_arena.c). */
struct shm_rests {
  uint64_t blocks[SHM_RESTS]; /* their offsets, in turn */
  uint32_t
      first; /* number of the one that came back first; never begins anew */
  uint32_t count;
  uint64_t bytes;       /* of all of them */
  uint32_t since;       /* number of the look before which the last came back */
  struct shm_flow back; /* bytes that came back */
};

struct lane {
  struct lane_head head;
  struct lane_options options;
  struct outbox *own;        /* read-write */
  const struct outbox *peer; /* read-only */
  uint8_t *inbox, *peer_inbox;
  uint64_t mapped;   /* bytes of the peer's memory, as its share counts */
  uint32_t exported; /* slots below it may have been exported */
  bool punched;      /* holes may be punched in the peer's inbox */
  uint64_t filled;   /* bytes of it, as its share counts (SHARE_FILLED) */
  uint64_t awaited; /* bytes of it that have to be seen before any is written */
  uint64_t peer_known[(SHM_OUTBOX_PAGES + 63) / 64]; /* pages of its outbox */
  uint8_t *arena; /* address space of this side's arena */
  uint64_t arena_length, segment;
  uint64_t dropped; /* after so many bytes the own caches of both cores have
                       dropped a line that both had */
  struct shm_segment *segments;
  uint16_t said; /* number of segments told so far */
  uint32_t made; /* segments mapped here, as the peer's share counts them */
  int untold;    /* file of a segment that the peer could not be told of yet */
  uint32_t telling; /* that segment's number; file -1: there is none */
  /* The reason why there was no memory for blocks lately, and its time; NULL:
   * the pool was used up. */
  const char *why;
  int64_t why_at;
  struct shm_arena peer_arena;
  struct node sights; /* what was seen of regions of the peer */
  struct shm_retained retained[RINGS];
  uint64_t peer_ring;
  struct ring_out out[RINGS];
  struct ring_in in[RINGS];
  struct shm_move moves[RINGS];
  /* Bits of rings: head.in is NULL until the peer was told that they are home. */
  uint32_t hidden;
  struct blocks blocks; /* of this side's arena */
  struct shm_rests rests;
  struct shm_turns turns;
  struct shm_distance distance; /* as payloads tell it */
  struct shm_distance records;  /* as long records do */
  struct shm_distance writes;   /* as one-sided writes do */
  bool told_far;                /* perigee_copy was told that blocks are */
  struct shm_ways ways[SHM_LENGTHS];
  uint32_t under_way; /* payloads that are exposed, and fetches */
  uint32_t sleeps;    /* the last number stored in armed */
  uint32_t kicked;    /* the peer's armed that was answered by a wake-up */
  bool pulls, peer_pulls;
  int64_t gone_at; /* since then the peer's memory cannot be read; 0: it can */
  uint8_t *spare;  /* bounce buffer for the next fetch that needs one */
};

static inline int64_t shm_clock(const struct lane *lane) {
  return lane->options.clock(lane->options.context);
}

/* ---- shm_stage.c -------------------------------------------------------- */
int shm_expose(struct lane *, struct exposure *, struct payload *);
int64_t shm_feed(struct lane *, struct exposure *);
void shm_conceal(struct lane *, struct exposure *);
bool shm_stages(struct lane *, uint64_t bytes);
/* Gives the stretch of blocks in turn back if none is in use; `all`: even if
 * one was since the look before the last. True if it did. */
bool turns_end(struct lane *, bool all);

/* ---- shm_distance.c ----------------------------------------------------- */
/* Does the next payload try it? */
bool distance_due(const struct shm_distance *);
/* The same; if so, others that come soon do not. */
bool distance_begin(struct shm_distance *);
/* So many payloads did not. */
void distance_pass(struct shm_distance *, uint32_t payloads);
/* A line that the peer had came after so many ns. */
void distance_learn(struct shm_distance *, int64_t line);
/* A copy of so many bytes to a block took so many ns. */
void distance_copied(struct shm_distance *, uint64_t bytes, int64_t took);
/* Learns from how long a line takes to come that the peer had: it has the 8 bytes
 * there, which stay as they are. */
void distance_try_line(struct lane *, struct shm_distance *, uint8_t *line);
/* The peer has read what begins there, and nobody reads it any more. */
void distance_try_read(struct lane *, uint8_t *bytes);
/* The lane ends. */
void distance_end(struct lane *);
/* A long record goes into the ring: called as ring_out.longs. */
void distance_try_ring(struct lane *, struct ring_out *, uint64_t length);

/* ---- shm_ways.c --------------------------------------------------------- */
/* Does the peer rather have so many bytes staged? `first`: as long as it has not
 * said. */
bool ways_staged(const struct lane *, uint64_t bytes, bool first);
/* A fetch begins; returns when, or 0 if nothing is learned of it. */
int64_t ways_begin(const struct lane *, const struct fetch *);
/* And all of it came, begun then. */
void ways_learn(struct lane *, const struct fetch *, int64_t begun);

/* ---- shm_moves.c -------------------------------------------------------- */
/* A long record comes: called as ring_out.longs. */
void moves_long(struct lane *, struct ring_out *);
/* Lends room in a ring that is away, or NULL; and ends that. */
uint8_t *moves_lend(struct lane *, enum ring, uint64_t length);
void moves_unlend(struct lane *, enum ring);
/* As ring_out.leave. */
bool moves_leave_room(struct ring_out *, void *context);
void moves_trim(struct lane *);
void moves_close(struct lane *);
/* Was the peer told of all rings in `hidden` that they have come back? */
bool moves_told(struct lane *);
int moves_heard(struct lane *, const void *bytes);

/* ---- shm_payload.c ------------------------------------------------------ */
void shm_mark(struct lane *, uint16_t operation, uint32_t generation);
bool shm_live(struct lane *, uint16_t operation, uint32_t generation);
int64_t shm_fetch(struct lane *, struct fetch *);
bool shm_fetch_end(struct lane *, struct fetch *);
/* May the memory of that process be read, and is it the peer's? */
bool shm_probe(const struct lane_options *options, uint64_t address);

/* ---- shm_regions.c ------------------------------------------------------ */
int shm_export(struct lane *, const struct grant *, struct region_key *);
void shm_revoke(struct lane *, uint32_t slot);
bool shm_inside(struct lane *, uint32_t slot);
void shm_cut(struct lane *);
int shm_attach(struct lane *, struct window *, const struct region_key *);
void shm_detach(struct lane *, struct window *);
void shm_regions_forked(struct lane *);
int64_t shm_copy(struct lane *, const struct window *, struct payload *remote,
                 struct payload *local, uint64_t limit, bool write);
int shm_there(struct lane *, const struct window *,
              const struct payload *remote, bool *whole);

/* ---- shm_there.c -------------------------------------------------------- */
/* Is all of [from, to) known to be there, by the bits of its pages? Says no of
 * what is in more than one word of them. It is not empty. */
static inline bool there_known(const uint64_t *bits, uint64_t from,
                               uint64_t to) {
  uint64_t page = from / SHM_PAGE, pages = (to - 1) / SHM_PAGE - page;
  return page % 64 + pages < 64 &&
         !(~bits[page / 64] >> (page % 64) & (UINT64_MAX >> (63 - pages)));
}
/* Is all of it there? Pages of `base` that are not known to be are looked at,
 * while *looks lasts, and counted in *known. */
enum there { THERE, THERE_NOT, THERE_LATER };
enum { THERE_LOOKS = 4096 }; /* 0.15 ms */
enum { THERE_WORK = 256 };   /* bytes that take as long to copy as a look */
enum there there_range(const uint8_t *base, uint64_t *bits, uint64_t from,
                       uint64_t to, uint32_t *looks, uint32_t *known);
/* As there_known, of any number of pages. */
bool there_all(const uint64_t *bits, uint64_t from, uint64_t to);
/* Has the system bring these bytes, which begin with a page, if they were swapped
 * out; makes no page of a hole. Nobody tells once they are there, so the engine
 * looks again soon. */
void there_want(struct lane *, const uint8_t *bytes, uint64_t length);
/* May this word of the peer's outbox be read? */
bool there_word(struct lane *, const void *word);

/* Rings. */
/* The peer's inbox was mapped from fd; false: it is not sound. */
bool rings_join(struct lane *, int fd);
/* Both sides know each other's rings. Makes the pages of own rings that the peer
 * is not to make, and counts those that this side is to make of the peer's. */
int rings_fill(struct lane *, char reason[REASON]);
/* May the peer's rings be written? Not while `awaited` is more than 0. */
bool rings_reach(struct lane *);
/* As transport.retain. */
void rings_retain(struct lane *);
void rings_close(struct lane *);

/* ---- shm_arena.c -------------------------------------------------------- */
int arena_open(struct lane *, uint64_t length);
void arena_close(struct lane *);
/* Returns the offset of a block that the peer was told of, or a status. */
int64_t arena_take(struct lane *, uint64_t length);
void arena_give(struct lane *, uint64_t address);
/* The same for a block of the lane's own use, which counts for the peer's share of
 * staging and not among those that the lane lends. -1: there is none. */
int64_t arena_stage(struct lane *, uint64_t length);
void arena_unstage(struct lane *, uint64_t offset, uint64_t length);
/* The same; the block may rest. seen: the peer has read it, which tells how far
 * it is. */
void arena_give_read(struct lane *, uint64_t address, bool seen);
/* Returns the address that a source has for an offset. */
uint64_t arena_address(const struct lane *, uint64_t offset);
enum trim_left arena_trim(struct lane *);
uint64_t arena_kept(const struct lane *);
/* For the peer's arena. */
int arena_join(struct lane *, uint64_t length);
void arena_part(struct lane *);
int arena_heard(struct lane *, const void *bytes, uint32_t length, int fd);
/* Returns why there was no memory for blocks lately, or "". */
const char *arena_trouble(const struct lane *);
bool arena_knows(struct lane *, const struct source *);
bool arena_looks(struct lane *, const struct source *, uint64_t *work);
/* Counts an operation that reads bytes where they are mapped: by 1, and by -1
 * once it does not any more. */
void arena_views(struct lane *, const uint8_t *bytes, uint64_t length, int by);
/* Returns bytes of the peer's arena, or NULL if they are not all within it. They
 * may be read if arena_there() is THERE; else arena_copy copies some of them, at
 * most `room` and at least one, or returns a status. */
const uint8_t *arena_peer(const struct lane *, uint64_t address,
                          uint64_t length);
/* Was it found to be there by looks before? */
bool arena_seen(const struct lane *, const uint8_t *bytes, uint64_t length);
enum there arena_there(struct lane *, const uint8_t *bytes, uint64_t length);
int64_t arena_copy(struct lane *, const uint8_t *bytes, uint64_t length,
                   void *to, uint64_t room);
/* Asks the system for the page of these bytes, which was there when they were
 * written; PERIGEE_NO_MEMORY: they cannot be read. */
int arena_want(struct lane *, const uint8_t *bytes);
void arena_forked(struct lane *);
/* Is it a memfd of that length, with at least these seals? */
bool shm_sound(int fd, uint64_t length, int seals);
/* May one more descriptor of the peer's be kept? And what a read of it ends in,
 * where none is. */
bool arena_may_keep(struct lane *, int fd);
int arena_not_there(struct lane *);
/* What a pull ends in, if the process lives and nobody can read its memory. */
int arena_unread(struct lane *);

#endif
