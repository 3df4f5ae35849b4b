/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation.h - two engines of one thread with a simulated clock, random
 * choices that a seed determines, and lanes with injected faults. Each side
 * begins random operations of every kind, and answers the other's late, early
 * or by refusing.
 *
 * For every seed these properties must hold; simulate() fails at the first that
 * does not. Each operation ends once, within its timeout, with a fitting
 * status. Messages arrive once, as they were sent. No byte is written outside
 * of the named destination, or after the operation has ended. All operations
 * end within a bound, and nothing is left at the end.
 *
 * simulation.c runs a world, simulation_ground.c holds its memory,
 * simulation_shape.c shapes it into slices and lists of slices,
 * simulation_begin.c begins operations, simulation_end.c names landings of replies
 * that ask for them, and checks how operations end, simulation_serve.c answers
 * the peer, simulation_wire.c is the network between
 * sides that talk over TCP.
 */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

#include "perigee.h"

enum { LINKS = 8, LIVE = 3, OWN = 48, ANSWERS = 160, ITEMS = 3 };
enum { MESSAGES = 8192, NOT_ANSWERED = 1 };
enum { CELLS = 22, CELL_LITTLE = 8 << 10, CELL_LARGE = 48 << 10 };
enum {
  LITTLE = 18,
  EDGE = 64
};                           /* number of small cells; guard bytes of a spot */
enum { FIXED = 0x7fff0000 }; /* the pattern of regions that are only read */

/* ---- Memory (simulation_ground.c) ---------------------------------------- */

/* A region filled with one byte value, except for spots that are taken. */
struct ground {
  const char *name;
  struct perigee_region *region;
  uint8_t *foreign; /* its memory, if the engine did not allocate it */
  uint64_t life;    /* how often it was made */
  enum { FREE_CELL, USED_CELL, RETIRED_CELL } cells[CELLS];
  bool closing;
  int64_t closed_at;
};

struct world;
struct side;
struct variant;

/* ---- Shapes (simulation_shape.c) ----------------------------------------- */

enum { PLACES = 40 };

/* A slice without its region. */
struct place {
  uint64_t offset, block, count, stride;
  bool also; /* it is in the second region */
};

/* Bytes that fill places in order. */
struct shape {
  bool listed; /* it is told by a list, else by one slice */
  uint32_t count;
  struct place places[PLACES];
};

/* A shape whose slices have the same number of blocks of one length. */
struct comb {
  uint32_t slices, most; /* most: blocks of a slice */
  uint64_t block;
  bool listed;
};

/* Bytes of a shape that lie in one piece. */
struct run {
  uint64_t offset, length, begin; /* begin: the shape's byte */
  bool also;
};
struct walk {
  const struct shape *shape;
  uint32_t place;
  uint64_t block, done;
};

/* Makes a shape of that length from offset 0 on, whose places do not overlap.
 * two: there are two regions. */
void shape_make(struct world *w, struct shape *shape, uint64_t room,
                uint64_t length, bool two);
void shape_comb(struct world *w, struct shape *shape, uint64_t room,
                const struct comb *comb, bool two);
/* The same of memory that is only read: places may overlap. */
void shape_lay(struct world *w, struct shape *shape, uint64_t room,
               uint64_t length);
/* Leaves these blocks of each slice of a comb: number by number, or slice by
 * slice. */
void shape_pick(struct shape *shape, const uint32_t *numbers, uint32_t count,
                bool by_number);
void shape_shift(struct shape *shape, uint64_t offset);
uint64_t shape_length(const struct shape *shape);
/* Returns where the last byte of all ends. */
uint64_t shape_end(const struct shape *shape);
bool shape_uses_two(const struct shape *shape);
/* Names the next run that is not empty; false: there is none. */
bool walk_next(struct walk *walk, struct run *run);
/* Tells of a shape by a slice or a list. The list's slices stay until
 * slices_forget, which overwrites them: the core has read them by then. */
struct perigee_slice shape_slice(const struct shape *shape,
                                 struct perigee_region *region,
                                 struct perigee_region *also);
struct perigee_slice shape_remote(const struct shape *shape,
                                  struct perigee_remote *remote);
void slices_forget(void);

/* ---- Spots (simulation_ground.c) ------------------------------------------ */

/* A part of a ground, or of two, that an operation uses, in some shape. */
struct spot {
  struct ground *ground, *also; /* NULL: none */
  uint64_t life;
  int cell;
  uint64_t end; /* where it ends in its cell */
  struct shape shape;
};

void ground_make(struct side *side, struct ground *ground, const char *name,
                 int access, uint64_t pattern);
void ground_end(struct side *side, struct ground *ground);
/* Takes a clean spot of about length bytes; false if none is free. */
bool spot_take(struct side *side, struct ground *ground, uint64_t length,
               struct spot *spot);
/* The same for a comb. */
bool spot_take_comb(struct side *side, struct ground *ground,
                    const struct comb *comb, struct spot *spot);
uint64_t spot_length(const struct spot *spot);
struct perigee_slice spot_slice(const struct spot *spot);
/* Writes, or checks, the first bytes of the pattern. */
void spot_write(struct side *side, const struct spot *spot, uint64_t pattern);
void spot_expect(struct side *side, const struct spot *spot, uint64_t pattern,
                 uint64_t length);
/* Returns a spot and wipes it; the bytes around it must be untouched. */
void spot_give(struct side *side, struct spot *spot);
/* The same while the peer may still write there: the spot is not reused. */
void spot_retire(struct spot *spot);
/* The first bytes of the spot as a number. */
uint64_t spot_word(struct side *side, const struct spot *spot);

void pattern_write(uint8_t *to, uint64_t pattern, uint64_t length);
void pattern_expect(struct side *side, const uint8_t *from, uint64_t pattern,
                    uint64_t length);
/* Checks what a transfer read from a ground that holds one pattern. */
void spot_expect_from(struct side *side, const struct spot *spot,
                      const struct shape *from, uint64_t pattern);
/* Typed data of about length bytes that holds the pattern; the caller frees
 * it. */
uint8_t *typed_make(uint64_t pattern, uint64_t *length);
void typed_expect(struct side *side, const uint8_t *from, uint64_t length,
                  uint64_t pattern);

/* ---- Who does what -------------------------------------------------------- */

enum own_kind {
  OWN_NONE,
  OWN_CALL,
  OWN_SEND,
  OWN_RECV,
  OWN_RECV_IMM,
  OWN_READ,
  OWN_WRITE,
  OWN_WRITE_IMM,
  OWN_LOOKUP,
  OWN_CONNECT,
  OWN_KINDS
};

/* An operation that this side has begun. */
struct own {
  enum own_kind kind;
  int operation;
  struct link *link;
  int64_t timeout, due; /* due: no timeout may end it earlier */
  int64_t counted;      /* the latest time when its timeout began to count */
  uint32_t polls, late; /* polls of its side: since its begin, since due */
  bool cancelled, dropped;
  uint64_t number; /* of its message */
  uint8_t *head;   /* must stay as it is until the end */
  uint64_t room;   /* length of the landing */
  bool landing;
  /* Of a call: it asks for a landing; it was asked for one, and names it at that
   * time; that was too late, as it ends in this status. */
  enum { ASKS_NOTHING, ASKS, WAS_ASKED, HAS_LANDED } asks;
  int64_t at;
  uint64_t coming; /* bytes to land */
  int ends_in;
  bool batched; /* a call that is a batch of its own, with this answer */
  struct perigee_answer answer;
  int failed;       /* as REPLY has told of that */
  bool refused;     /* it was answered at once */
  const char *name; /* of a lookup */
  struct spot into, from[ITEMS], to[ITEMS];
  struct shape there[ITEMS]; /* what is read of the peer's */
  struct perigee_transfer items[ITEMS];
  uint32_t count;
  struct perigee_prepared *prepared;
};

/* A call from the peer that is being answered. */
struct answer {
  enum { NOTHING, LANDING_ASKED, COMING, ASKED, REPLIED } state;
  int served;
  struct link *link;
  int64_t at; /* the time of its next step */
  uint64_t number;
  uint8_t *head;
  struct spot into, from;
};

/* What a side knows of a session. */
struct link {
  struct perigee_session *session; /* NULL: free */
  uint32_t id;
  bool up, closed, lost;
  struct perigee_remote *open, *fixed;
  uint64_t open_life;
  uint64_t last_call; /* number of the last call; numbers must increase */
};

/* What both sides know of a message (call, send, immediate). */
struct message {
  uint64_t head, slice; /* lengths */
  bool typed, lent, ended;
  uint8_t from, seen;
  bool replied, reply_typed;
  int reply_status;
  uint64_t reply_head, reply_slice;
};

struct side {
  struct world *world;
  int index;
  struct perigee_engine *engine;
  struct perigee_listener *listener;
  struct ground mine, more, open, fixed;
  struct link links[LINKS];
  struct own own[OWN];
  struct answer answers[ANSWERS];
  int64_t still_until;
  bool faulty;
  char faults[160];
};

struct weather {
  double drop, duplicate, truncate, reorder, cut;
};

struct world {
  uint64_t seed, dice, random, trace;
  int64_t now;
  uint64_t looks; /* at the clock, in this turn */
  const struct variant *variant;
  const char *transport, *memory;
  char address[80];
  struct side sides[2];
  struct weather weather; /* the worse of the two sides' */
  bool sealed;
  struct wires *wires; /* the network between the sides, or NULL */
  bool told;           /* print what happens */
  bool winding_up, closings;
  uint64_t numbers, events, ended[OWN_KINDS], fine[OWN_KINDS];
  struct message messages[MESSAGES];
};

uint64_t dice(struct world *w);
uint64_t below(struct world *w, uint64_t n);
bool happens(struct world *w, double chance);
/* Prints what is wrong and how to run it again, and exits. */
_Noreturn void wrong(const struct side *side, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tell(const struct side *side, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define HOLDS(side, expression)                                                \
  do {                                                                         \
    if (!(expression))                                                         \
      wrong(side, "%s:%d: %s", __FILE__, __LINE__, #expression);               \
  } while (0)

/* simulation_begin.c */
void begin_something(struct side *side);
int begin_connect(struct side *side);
void look_up_regions(struct side *side, struct link *link);
struct own *own_of(struct side *side, int operation);

/* simulation_end.c */
void own_ended(struct side *side, const struct perigee_event *event);
void own_forget(struct side *side, struct own *own);
void own_asked(struct side *side, const struct perigee_event *event);
void land_due(struct side *side);
struct link *link_of(struct side *side, uint32_t id);
void link_free(struct side *side, struct link *link);

/* simulation_serve.c */
void serve_event(struct side *side, const struct perigee_event *event);
void serve_due(struct side *side);
void serve_forget(struct side *side, const struct link *link);

/* simulation_wire.c */
void wires_open(struct world *world);
void wires_turn(struct world *world);
void wires_close(struct world *world);

/* Runs a world and returns the hash of its trace. The trace is the same for
 * the same seed if the world is exact; over TCP the kernel decides where
 * streams are cut. */
uint64_t simulate(uint64_t seed, bool told);
bool world_is_exact(uint64_t seed);

#endif
