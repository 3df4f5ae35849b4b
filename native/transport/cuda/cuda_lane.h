/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_lane.h - what the files of the lane "cuda" share: links between two
 * processes, for memory of their GPUs. It is an additional lane (core/lanes.h).
 * words.c has what the two halves tell each other, memories.c the memory that
 * they know of, copies.c one-sided copies, fetch.c the payloads of messages,
 * lists.c those that are lists, link.c the lane itself. distant.c has the lane of
 * a session without descriptors, and says how it differs from what follows.
 *
 * Nothing here calls CUDA. A kind of memory is used through its tables
 * (memory.h): keys of its memory by `sharing`, copies by `copies`.
 *
 * Memory. The owner of memory tells the peer's half of it once, in the word
 * MEMORY: a number, and a key with a descriptor. The peer's half opens the key
 * when it first needs it, once for each device that it copies with, and keeps
 * it until the word GONE, or the lane's end. The driver keeps the memory for as
 * long as anybody has it open, whatever its owner does, so an owner's half waits
 * for nobody. The program may have made the memory, and use it afterwards: then
 * a descriptor of its key tells the kind of memory who has it open still, and its
 * region waits for that. A key with two descriptors goes only to halves that take
 * it (lane_options.pairs).
 *
 *   exported  event                                       becomes
 *   free      a region is exported, or a payload exposed  told: MEMORY
 *   told      OPENED                                      opened
 *   told      REFUSED                                     refused
 *   any       the memory goes                             free: GONE
 *   any       it goes, but the peer's socket is full      as it was; it goes
 *                                                         again in a later poll
 *
 *   imported  event                                       becomes
 *   unknown   MEMORY                                      known, or refused if
 *                                                         the peer's share is used
 *   known     it is opened for a device                   known, OPENED is told
 *   known     GONE, no copy is under way                  unknown
 *   known     GONE, copies are under way                  going: it has no
 *                                                         number any more
 *   going     its last copy has ended                     unknown
 *
 * A payload is exposed only in memory that the peer has opened. Until then the
 * first lane carries such payloads, through host memory; a process that has no
 * GPU of its own never opens any. ASK has the peer try again.
 *
 * Board. Memory of each half that the peer reads: the generation of each region
 * that is exported, 0 when it was revoked, the mark of each operation whose
 * payload is exposed, and the lists of such payloads. It is made when one of these
 * is first needed.
 *
 * Host memory of the peer that the first lane has mapped is copied to and from,
 * too: by slots, or once the driver has registered it. A read takes what the first
 * lane finds there (transport_copies.there), since a slot or the driver would
 * make pages of what is not; the owner does the others. The owner waits for no
 * copy in a region that it closes, so a read succeeds only if the region is
 * granted behind its copies.
 *
 * So all this needs a Unix socket, which passes descriptors: of boards, and of
 * memory.
 *
 * Ordering. Revoking stores 0 (release), and a copier loads the generation
 * (acquire) before each copy. A copy that it had begun before may still end
 * after that: in memory that the driver keeps, and that nobody else sees, so
 * the owner's half need not wait.
 */
#ifndef CUDA_LANE_H
#define CUDA_LANE_H

#include <stdatomic.h>

#include "base/blocks.h"
#include "host/forked.h"
#include "transport/transport.h"

enum {
  LINK_REGIONS = 4096,
  LINK_MEMORIES = 1024,        /* told to the peer at a time */
  LINK_OPENINGS = 8,           /* devices that one memory is opened for */
  LINK_GATHERED = 512,         /* copies of one batch, */
  LINK_PIECES = 4096,          /* and their pieces */
  LINK_BLOCKS = 2048,          /* asked for at a time */
  LINK_TICKETS = 128,          /* copies and batches under way */
  LINK_FLIGHT = 4 * COPY_LONG, /* their bytes, but for the last one's */
  LINK_LISTS = 1 << 20         /* bytes for lists, behind a board */
};

/* The name of the lane, and of the kind of memory that it is for. */
extern const char link_kind[];

struct board {
  _Atomic uint32_t over; /* the lane was cut: nothing is granted any more */
  uint32_t zero;
  _Atomic uint64_t regions[LINK_REGIONS];
  _Atomic uint32_t marks[]; /* by operation of its owner */
};

/* What the halves tell each other. BOARD has the number of marks as its id, and as
 * its length the bytes for lists that follow. OPENED has as its access whether
 * this half takes lists. CLOSED is said by distant halves alone. */
enum link_word { BOARD = 1, MEMORY, GONE, OPENED, REFUSED, ASK, CLOSED };
enum { TAKES_LISTS = 1 };
struct word {
  uint32_t word, id;
  uint64_t serial; /* of the memory with this id; ids are used again */
  uint64_t length;
  int32_t access;
  uint32_t key_length;
  uint8_t key[MEMORY_KEY];
};
_Static_assert(sizeof(struct word) <= LANE_FRAME_MAX, "a word fits in a frame");

/* Memory of ours that the peer was told of. */
enum exported_state {
  EXPORTED_FREE,
  EXPORTED_TOLD,
  EXPORTED_OPENED,
  EXPORTED_REFUSED,
  EXPORTED_REVOKED, /* distant: GONE is to be said, */
  EXPORTED_GONE     /* or was, and the peer has not closed it yet */
};
struct exported {
  const struct area *area;
  uint64_t serial;
  uint32_t slot;    /* distant: of its region */
  uint32_t exposed; /* how often a payload of it was to be exposed */
  uint8_t state;
  bool lists; /* the peer takes them */
};

/* Memory of the peer. */
enum imported_state {
  IMPORTED_KNOWN,
  IMPORTED_REFUSED,
  IMPORTED_GOING,
  IMPORTED_OWES /* distant: it is closed, and CLOSED is to be said */
};
struct opening {
  const struct memory_context *by; /* NULL: free */
  uint8_t *pointer;                /* NULL: it failed */
  void *handle;
};
struct imported {
  struct memory_key key;
  struct forked forked; /* of its descriptors */
  uint64_t serial, length;
  uint32_t id;
  int access;
  int device; /* that it is of, as contexts_opened() tells */
  uint8_t state;
  uint8_t counted; /* in the peer's share of descriptors */
  uint32_t busy;   /* copies under way */
  uint64_t mapped;
  struct opening openings[LINK_OPENINGS];
};

struct ticket {
  const struct memory_context *by;
  struct job *job;
  struct imported *imported;
  uint64_t number, bytes;
};

/* Copies of one job that are asked for together. */
struct batch {
  const struct memory_context *by;
  struct job *job; /* NULL: there is no batch */
  struct imported *imported;
  uint64_t bytes, pieces;
  const uint8_t *low, *high; /* between which it writes */
  uint32_t count;
  struct memory_copy copies[LINK_GATHERED];
};

struct listing;

struct lane {
  struct lane_head head;
  struct lane_options options;
  struct board *own;
  const struct board *peer;
  void *own_handle;
  int own_file, peer_file;
  uint64_t own_length, peer_length;
  uint32_t peer_operations;
  struct exported *exported;  /* LINK_MEMORIES, or NULL */
  struct imported **imported; /* LINK_MEMORIES by number, or NULL */
  uint64_t serial;
  struct batch *batch;
  struct ticket tickets[LINK_TICKETS];
  uint32_t ticket_count;
  uint64_t flying;     /* bytes of copies under way */
  uint64_t opened;     /* memories of the peer, ever */
  int64_t early_from;  /* when memory may be opened again before it is used */
  struct blocks lists; /* in use, of our own */
  uint64_t peer_lists; /* bytes behind the peer's board */
  uint8_t *spare;      /* block of a fetch that has ended, or NULL */
  struct listing *spare_list; /* likewise */
  bool distant;               /* the session takes no descriptors */
  uint32_t owed;              /* distant: words that are to be said yet */
  bool refused;               /* the kind took no copy when it was last asked */
  bool over, forked;
  char why[REASON]; /* what failed last */
};

/* Is it memory of the kind? */
bool link_is_for(const struct memory_context *memory);

/* What a window of the lane has of its own. Numbers are used again, with another
 * serial. */
struct reach {
  uint32_t id, serial;
};
_Static_assert(sizeof(struct reach) <= WINDOW_OWN, "there is room for it");

/* link.c */
int link_begin(const struct lane_options *options, struct lane **out,
               struct offer *offer, char reason[REASON]);
int link_join(struct lane *lane, const struct offer *offer,
              char reason[REASON]);
void link_cut(struct lane *lane);
void link_close(struct lane *lane);
void link_forked(struct lane *lane);
bool link_rests(struct lane *lane);
const char *link_trouble(const struct lane *lane);
int link_attach(struct lane *lane, struct window *window,
                const struct region_key *key);

/* distant.c */
/* The lane has closed memory that its owner has said to go: tells the owner, now
 * or later, and frees it. */
void distant_closed(struct lane *lane, struct imported *imported);
extern const struct perigee_transport transport_cuda_distant;

/* words.c */
/* Makes this half's board and tells the peer of it. PERIGEE_OK, AGAIN, or a
 * status. */
int link_board(struct lane *lane);
/* Tells the peer, maybe with a descriptor (else -1). AGAIN: its socket is
 * full. */
int link_say(struct lane *lane, uint32_t word, uint32_t id, uint64_t serial);
int link_hand(struct lane *lane, const struct word *word, int fd);
/* Takes the board of the peer, with marks for so many operations, and so many
 * bytes for lists. The descriptor is the caller's unless it returns OK. */
int board_adopt(struct lane *lane, uint32_t operations, uint64_t lists, int fd);
/* Where the lists of this half are, once it has a board. */
uint8_t *board_lists(const struct lane *lane);
/* Copies some of those that the peer has. False: they are not there. */
bool board_read_lists(const struct lane *lane, uint64_t at, uint64_t bytes,
                      void *to);
void board_leave(struct lane *lane);
void board_drop(struct lane *lane);

/* memories.c */
/* Tells the peer of the memory of an area, if it is not told yet. */
int exported_tell(struct lane *lane, struct area *area, uint32_t *id);
/* Has the peer opened it? Otherwise it is asked to, now and then. */
bool exported_is_open(struct lane *lane, uint32_t id);
/* False: the peer does not know yet. */
bool exported_forget(struct lane *lane, const struct area *area);
int exported_heard(struct lane *lane, const struct word *word);
/* Returns the number under which the peer knows the area, or else a free one, or
 * LINK_MEMORIES. There are exported ones. */
uint32_t exported_place(const struct lane *lane, const struct area *area);
/* Returns the peer's memory of that number, or NULL. */
struct imported *imported_of(struct lane *lane, uint32_t id);
/* Returns the memory in which the window lies, or NULL. */
struct imported *imported_for(struct lane *lane, const struct window *window);
/* With descriptors, which are the lane's. */
int imported_learn(struct lane *lane, const struct word *word, const int *fds,
                   uint32_t fd_count);
int imported_heard(struct lane *lane, const struct word *word);
/* Returns a context of this process that is for the memory's device, else any
 * one; NULL: it has none. */
const struct memory_context *imported_home(const struct lane *lane,
                                           struct imported *imported);
/* Returns the memory as it is opened for copies with local memory of the kind,
 * and opens it at first. NULL: it cannot be, and lane->why tells why. */
const struct opening *imported_open(struct lane *lane,
                                    struct imported *imported,
                                    const struct memory_context *local);
/* Returns an opening that there is, or NULL. */
const struct opening *imported_opened(const struct imported *imported);
/* A copy begins, or has ended. */
void imported_use(struct imported *imported);
void imported_unuse(struct lane *lane, struct imported *imported);
void imported_close_all(struct lane *lane);

/* copies.c */
/* Asks for copies between memory of the peer and local memory, behind what was
 * asked for: of those bytes that follow the payloads' positions, which it
 * moves. 1: all of them; 0: not all, now; or a status. */
int link_copies(struct lane *lane, struct job *job, struct imported *imported,
                const struct opening *opening, struct payload *remote,
                struct payload *local, bool write);
/* Starts what was gathered. */
void link_flush(struct lane *lane);
void link_look(struct lane *lane);
/* True once no copy of the job is under way; none is begun any more. */
bool link_quiesce(struct lane *lane, struct job *job);
/* Ends all jobs, once their copies have ended. */
void link_drain(struct lane *lane);
extern const struct transport_jobs link_jobs;

/* What sources name: the number of a memory and an offset in it, as an address; or
 * a list of such places, by its offset and, as the stride, their number. */
enum source_kind { SOURCE_KIND = 1, SOURCE_LIST };

/* lists.c */
/* As transport_payloads, for a payload with extents. */
int list_expose(struct lane *lane, struct exposure *e,
                const struct payload *payload);
void list_conceal(struct lane *lane, struct exposure *e);
/* Takes the list that a source of so many bytes names. It is the caller's, also
 * if it is bad (PROTOCOL), until listing_give. */
int listing_take(struct lane *lane, const struct source *source, uint64_t total,
                 struct listing **out);
void listing_give(struct lane *lane, struct listing *listing);
uint32_t listing_count(const struct listing *listing);
/* Returns a place by its number, as a source whose address is the offset, and the
 * number of its memory. */
struct source listing_place(const struct listing *listing, uint32_t i,
                            uint64_t *id);
/* Returns the place with byte `at`, which never decreases, and the byte that it
 * begins with. */
struct source listing_at(struct listing *listing, uint64_t at, uint64_t *id,
                         uint64_t *begin);

/* fetch.c */
extern const struct transport_payloads link_payloads;

#endif
