/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation.h - two engines of one thread over a clock that is made up, dice
 * that a seed decides, and lanes with faults. Each side begins operations of
 * every kind at random and answers the other's, late, early or by refusing.
 *
 * What has to hold, whatever the seed (simulate() fails on the first that does
 * not): each operation ends once, within its timeout, in a status that fits;
 * what arrives is what was sent, once; not a byte is written outside of the
 * place that was named for it, nor there once the operation has ended; all
 * ends within a bound; and at the end nothing is left.
 *
 * simulation.c runs a world, simulation_ground.c has its memory,
 * simulation_begin.c begins operations, simulation_end.c checks how they end,
 * simulation_serve.c answers the peer, simulation_wire.c is what lies between
 * sides that talk over TCP.
 */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <stdbool.h>
#include <stdint.h>

#include "perigee.h"

enum { LINKS = 8, LIVE = 3, OWN = 48, ANSWERS = 160, ITEMS = 3 };
enum { MESSAGES = 8192 };
enum { CELLS = 22, CELL_LITTLE = 8 << 10, CELL_LARGE = 48 << 10 };
enum { LITTLE = 18, EDGE = 64 }; /* cells that are little; around a spot */
enum { FIXED = 0x7fff0000 };     /* the pattern of regions to be read */

/* ---- Memory (simulation_ground.c) ---------------------------------------- */

/* A region that is all one byte but where somebody was given a spot. */
struct ground {
  const char *name;
  struct perigee_region *region;
  uint8_t *foreign; /* the memory, where it was not made by the engine */
  uint64_t life;    /* how many there were of it */
  enum { FREE_CELL, USED_CELL, RETIRED_CELL } cells[CELLS];
  bool closing;
  int64_t closed_at;
};

/* Part of a ground that is somebody's, in some shape. */
struct spot {
  struct ground *ground; /* NULL: none */
  uint64_t life;
  int cell;
  uint64_t offset, block, count, stride;
};

struct world;
struct side;
struct variant;

void ground_make(struct side *side, struct ground *ground, const char *name,
                 int access, uint64_t pattern);
void ground_end(struct side *side, struct ground *ground);
/* A spot of about length bytes, clean; false: there is none free. */
bool spot_take(struct side *side, struct ground *ground, uint64_t length,
               struct spot *spot);
uint64_t spot_length(const struct spot *spot);
struct perigee_slice spot_slice(const struct spot *spot);
/* Writes, or expects, the pattern's first bytes. */
void spot_write(struct side *side, const struct spot *spot, uint64_t pattern);
void spot_expect(struct side *side, const struct spot *spot, uint64_t pattern,
                 uint64_t length);
/* The spot is nobody's again, and what it was is wiped out; its surroundings
 * must be untouched. */
void spot_give(struct side *side, struct spot *spot);
/* The same, where the peer may still be writing there: nobody is given it. */
void spot_retire(struct spot *spot);
/* The first bytes in it as a number. */
uint64_t spot_word(struct side *side, const struct spot *spot);

void pattern_write(uint8_t *to, uint64_t pattern, uint64_t length);
void pattern_expect(struct side *side, const uint8_t *from, uint64_t pattern,
                    uint64_t length);
/* What a transfer read of a ground that is all one pattern. */
void spot_expect_from(struct side *side, const struct spot *spot,
                      const struct perigee_slice *from, uint64_t pattern);
/* Typed data of about length bytes that holds the pattern: to be freed. */
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

/* An own operation under way. */
struct own {
  enum own_kind kind;
  int operation;
  struct link *link;
  int64_t timeout, due; /* due: not to end by its timeout before it */
  int64_t counted;      /* when the engine has begun to count at the latest */
  uint32_t polls, late; /* of its side: since it began, since it was due */
  bool cancelled, dropped;
  uint64_t number; /* of the message */
  uint8_t *head;   /* ours until the end */
  uint64_t room;   /* of the landing */
  bool landing;
  const char *name; /* of a lookup */
  struct spot into, from[ITEMS], to[ITEMS];
  struct perigee_transfer items[ITEMS];
  uint32_t count;
  struct perigee_prepared *prepared;
};

/* A call of the peer that is being answered. */
struct answer {
  enum { NOTHING, LANDING_ASKED, COMING, ASKED, REPLIED } state;
  int served;
  struct link *link;
  int64_t at; /* when to do the next thing */
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
  uint64_t last_call; /* the number that came last, in order */
};

/* What is known of a message by both: calls, sends, immediates. */
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
  struct ground mine, open, fixed;
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
  struct weather weather; /* the worse of both sides */
  bool sealed;
  struct wires *wires; /* between them, or NULL */
  bool told;           /* say what happens */
  bool winding_up, closings;
  uint64_t numbers, events, ended[OWN_KINDS], fine[OWN_KINDS];
  struct message messages[MESSAGES];
};

uint64_t dice(struct world *w);
uint64_t below(struct world *w, uint64_t n);
bool happens(struct world *w, double chance);
/* Says what is wrong, and how to see it again, and exits. */
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

/* Runs a world; its trace: the same for the same seed, where it is exact: how
 * TCP cuts up its streams is up to the kernel. */
uint64_t simulate(uint64_t seed, bool told);
bool world_is_exact(uint64_t seed);

#endif
