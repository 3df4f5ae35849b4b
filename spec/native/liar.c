/* SPDX-License-Identifier: Apache-2.0 */
#include "liar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/lanes.h"
#include "transport/shm/shm.h"

static const int64_t MS = 1000000;

/* ---- Chance ------------------------------------------------------------- */

static uint64_t seed;

static uint64_t chance(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed;
}

static uint64_t below(uint64_t limit) {
  return chance() % limit;
}

/* A number at or near some limit, or any. */
static uint64_t edge(void) {
  static const uint64_t edges[] = {0,          1,          8,
                                   63,         64,         4095,
                                   4096,       8192,       16384,
                                   65536,      1u << 20,   3u << 20,
                                   INT32_MAX,  UINT32_MAX, 1ull << 32,
                                   1ull << 40, 1ull << 47, 1ull << 63,
                                   INT64_MAX,  UINT64_MAX, UINT64_MAX - 4095,
                                   1ull << 48};
  uint64_t at = edges[below(sizeof edges / sizeof *edges)];
  switch (below(4)) {
  case 0:
    return at + below(16);
  case 1:
    return at - below(16);
  case 2:
    return chance() >> below(64);
  default:
    return at;
  }
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- Being honest, to begin with ----------------------------------------- */

struct liar {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *bait;
  const struct perigee_remote *exported; /* the victim's, if it was found */
  /* Operations of the victim that were live when we saw them. */
  struct {
    uint16_t operation;
    uint32_t generation;
  } seen[64];
  int seen_count;
};

static void answer(struct liar *l, const struct perigee_event *e) {
  struct perigee_slice none = {0};
  struct perigee_message r = {.head = e->pointer, .length = e->length};
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(l->engine, e->landed);
  if (e->kind == PERIGEE_EVENT_LANDING) {
    perigee_land(l->engine, e->operation, &none);
    return;
  }
  if (below(2))
    r = (struct perigee_message){.flags = PERIGEE_TYPED,
                                 .slice = {{l->bait}, 0, 1 << below(22), 1, 0}};
  if (e->kind == PERIGEE_EVENT_REQUEST && below(8))
    perigee_reply(l->engine, e->operation, &r);
}

/* Remembers whom to lie to: the victim's side of the calls being served. */
static void look(struct liar *l) {
  for (uint32_t i = 0; i < l->engine->table_used; i++) {
    const struct operation *op = &l->engine->table[i];
    if (op->kind != OP_SERVED)
      continue;
    int at = l->seen_count < 64 ? l->seen_count++ : (int)below(64);
    l->seen[at].operation = op->peer_operation;
    l->seen[at].generation = op->peer_generation;
  }
}

static bool behave(struct liar *l, int64_t time) {
  struct perigee_event e;
  int64_t end = now() + time;
  while (now() < end) {
    look(l);
    while (perigee_poll(l->engine, &e, 1) == 1) {
      if (e.kind == PERIGEE_EVENT_CONNECTED && e.status == PERIGEE_OK) {
        l->session = perigee_session(l->engine, e.session);
        perigee_lookup(l->session, "exported", -1);
      }
      if (e.kind == PERIGEE_EVENT_DONE && e.status == PERIGEE_OK)
        l->exported = (const struct perigee_remote *)e.pointer;
      if (e.kind == PERIGEE_EVENT_LOST || e.kind == PERIGEE_EVENT_CONNECTED)
        return l->session != NULL && e.kind != PERIGEE_EVENT_LOST;
      answer(l, &e);
    }
  }
  return l->session && l->session->state == PERIGEE_SESSION_OPEN;
}

/* ---- Lying -------------------------------------------------------------- */

/* Random bytes of an area. */
static void scribble(void *area, uint64_t length) {
  uint8_t *bytes = area;
  uint64_t at = below(length) & ~UINT64_C(7), n = 8 + below(256);
  for (uint64_t i = at; i < at + n && i < length; i++)
    bytes[i] = (uint8_t)chance();
}

static void scribble_all(struct liar *l) {
  struct lane *lane = l->session->lane;
  scribble(lane->peer_inbox, RINGS * lane->peer_ring);
  if (below(2))
    scribble(lane->inbox, RINGS * lane->options.ring);
  if (below(2))
    scribble(lane->own, 8192);
  scribble(lane->own->regions, sizeof lane->own->regions);
  scribble(lane->own->marks, 1024);
  scribble(lane->own->acks, 1024);
  for (uint32_t i = 0; i < SHM_SEGMENTS; i++)
    if (lane->segments[i].there)
      scribble(lane->arena + i * lane->segment, 1 << (12 + below(10)));
  scribble(l->bait->pointer, l->bait->length);
}

static void jump_words(struct liar *l) {
  struct outbox *own = l->session->lane->own;
  uint32_t live = l->engine->table_used + 64;
  switch (below(6)) {
  case 0:
    atomic_store(&own->consumed_request, edge());
    break;
  case 1:
    atomic_store(&own->consumed_reply, edge());
    break;
  case 2:
    atomic_store(&own->marks[below(live)], (uint32_t)edge());
    break;
  case 3: /* believable, but for the number */
    atomic_fetch_add(&own->acks[below(live)][below(2)], edge() >> 24);
    break;
  case 4:
    atomic_store(&own->regions[below(16)], edge());
    atomic_store(&own->inside, below(8));
    break;
  default:
    if (l->session->lane->segments[0].there)
      atomic_store((_Atomic uint64_t *)(void *)(l->session->lane->arena +
                                                4096 * below(512)),
                   edge());
    atomic_store(&own->armed, (uint32_t)edge());
  }
}

/* Puts a list of places into private memory, of which one may be wrong. */
static void lying_places(const struct liar *l) {
  struct extent *list = (struct extent *)(void *)l->bait->pointer;
  uint64_t count = 1 + below(200), wrong = below(2 * count), begin = 0;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t block = 1 + below(1u << 16);
    list[i] = (struct extent){l->bait->pointer,
                              block,
                              1 + below(3),
                              below(2) ? block : below(1u << 16),
                              begin,
                              NULL};
    begin += list[i].block * list[i].count;
    if (i == wrong)
      memcpy((uint8_t *)&list[i] + 8 * below(5), &(uint64_t){edge()}, 8);
  }
}

static struct source lying_source(const struct liar *l) {
  struct source s = {below(6), edge(), edge(), edge(), edge()};
  if (below(2)) { /* plausible all but for one thing */
    s.kind = 1 + below(4);
    s.count = 1 + below(3);
    s.block = 1 + below(4u << 20);
    s.stride = below(2) ? s.block : below(2) ? SHM_SLOT * below(64) : edge();
    if (s.kind == SOURCE_PLACES) {
      lying_places(l);
      s.count = below(8) ? 1 : edge();
      s.stride = below(8) ? 1 + below(200) : edge();
    }
    if (s.kind == SOURCE_PRIVATE || s.kind == SOURCE_PLACES)
      s.address = below(2) ? (uint64_t)(uintptr_t)l->bait->pointer : edge();
    else
      s.address = below(2) ? below(1u << 20) & ~UINT64_C(7) : edge();
  }
  return s;
}

/* The head of a READ or WRITE. */
static void lying_access(const struct liar *l, uint8_t *head) {
  struct access a = {below(4), edge(), edge(), edge(), edge(), edge()};
  if (l->exported && below(4)) {
    a.slot = l->exported->window.slot;
    a.generation = l->exported->window.generation;
  }
  if (below(3) == 0) {
    a.offset = below(5 << 20);
    a.count = 1;
  }
  memcpy(head, &a, sizeof a);
}

static void aim(struct liar *l, struct record *r, bool reply) {
  r->operation = (uint16_t)below(80);
  r->generation = (uint32_t)(below(2) ? below(40) : edge());
  if (reply && l->seen_count > 0 && below(8)) {
    int i = (int)below((uint64_t)l->seen_count);
    r->operation = l->seen[i].operation;
    r->generation = l->seen[i].generation;
  }
}

/* Encodes a record correctly, and then changes some of its bytes. */
static bool lie_record(struct liar *l, bool reply) {
  struct lane *lane = l->session->lane;
  struct record r = {.kind = reply ? RECORD_REPLY : 1 + below(RECORD_KINDS),
                     .flags = (uint8_t)below(RECORD_FLAGS + 1),
                     .codec = (uint8_t)below(3),
                     .method = (uint16_t)edge(),
                     .status = -(int)below(below(2) ? 24 : 65536),
                     .remaining = (uint32_t)edge(),
                     .code = edge(),
                     .capacity = edge(),
                     .head_length = below(4) ? below(100) : below(8000),
                     .head_source = lying_source(l),
                     .slice_length = below(4) ? below(100) : below(4000),
                     .slice_source = lying_source(l)};
  uint8_t *head, *slice, *bytes;
  if (r.kind == RECORD_READ || r.kind == RECORD_WRITE)
    r.head_length = sizeof(struct access);
  aim(l, &r, reply);
  uint64_t size = record_size(&r);
  enum ring ring = below(16) ? (reply ? RING_REPLY : RING_REQUEST) : below(2);
  bytes = lane_records(lane)->reserve(lane, ring, size);
  if (!bytes)
    return false;
  record_encode(&r, bytes);
  head = record_head(&r, bytes);
  slice = record_slice(&r, bytes);
  if (head && r.head_length == sizeof(struct access))
    lying_access(l, head);
  else if (head && below(2))
    scribble(head, r.head_length + 1);
  if (slice && below(4) == 0) {
    uint64_t length = edge();
    memcpy(slice - 8, &length, 8);
  }
  if (below(16) == 0)
    scribble(bytes + 8, 32);
  lane_records(lane)->publish(lane, ring, below(16) ? size : 1 + below(size));
  session_wake(l->session);
  return true;
}

/* ---- Keys ------------------------------------------------------------------ */

/* Memory for an answer to a look-up: its size may be fixed or not, too short
 * or far too long, or it is not memory at all. */
static int lying_descriptor(void) {
  static const int seals[] = {F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK, 0,
                              F_SEAL_SHRINK | F_SEAL_GROW |
                                  F_SEAL_FUTURE_WRITE};
  static const uint64_t lengths[] = {4u << 20, 4096, 0, UINT64_C(1) << 45};
  if (below(4) == 0)
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int fd = memfd_create("bait", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd >= 0 && ftruncate(fd, (off_t)lengths[below(4)]) == 0)
    fcntl(fd, F_ADD_SEALS, seals[below(4)]);
  return fd;
}

/* Sends a correct answer with some changes: the number of descriptors
 * claimed and sent may differ. */
static uint32_t lie_about(struct found *f, int fds[WIRE_FDS]) {
  uint32_t came = 0;
  f->keys = (uint16_t)below(3);
  f->fds = 0;
  for (uint32_t i = 0; i < f->keys; i++) {
    struct region_key *key = &f->key[i].key;
    f->key[i].lane = below(8) ? i : (uint32_t)below(256);
    key->length = below(2) ? 0 : (uint32_t)below(KEY_MAX + 1);
    key->fd_count = i == 0 && below(4) ? 1 : (uint32_t)below(3);
    scribble(key->bytes, KEY_MAX);
    f->fds = (uint16_t)(f->fds + key->fd_count);
  }
  if (below(4) == 0)
    f->length = edge();
  if (below(8) == 0)
    f->slot = (uint32_t)edge();
  if (below(4) == 0)
    f->region = edge();
  for (uint32_t most = below(8) ? f->fds : (uint32_t)below(WIRE_FDS + 1);
       came < most && came < WIRE_FDS; came++)
    if ((fds[came] = lying_descriptor()) < 0)
      break;
  return came;
}

static const struct upward *honest;

/* Replaces the function that answers the victim: look-ups get lies. */
static int tell_lies(struct perigee_session *s, const struct frame *told,
                     const int *fds, uint32_t count) {
  struct frame f = *told;
  int own[WIRE_FDS];
  if (f.type != FRAME_FOUND || f.found.status < 0 || below(4) == 0)
    return honest->tell(s, told, fds, count);
  uint32_t came = lie_about(&f.found, own);
  int status = honest->tell(s, &f, own, came);
  while (came > 0)
    close(own[--came]);
  return status;
}

static void lie_of_keys(struct perigee_session *s) {
  static struct upward lying;
  honest = s->up;
  lying = *honest;
  lying.tell = tell_lies;
  s->up = &lying;
}

static bool lie_once(struct liar *l, enum lie lie) {
  switch (lie) {
  case LIE_SCRIBBLE:
    scribble_all(l);
    return true;
  case LIE_WORDS:
    jump_words(l);
    return true;
  case LIE_KEYS: /* it lies whenever it is asked */
    return false;
  default:
    return lie_record(l, lie == LIE_REPLIES);
  }
}

enum { BAIT = 4 << 20 };
static uint8_t memory[BAIT];

/* ---- A life ------------------------------------------------------------- */

static void open_liar(struct liar *l, const char *address) {
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.pull = (int)below(2);
  if (perigee_engine_open(&o, &l->engine) != PERIGEE_OK)
    _exit(1);
  /* Memory that the victim maps, or reaches by asking us. */
  int status = below(2) ? perigee_region_alloc(l->engine, "bait", BAIT, 3, NULL,
                                               &l->bait)
                        : perigee_region_register(l->engine, "bait", memory,
                                                  BAIT, 3, NULL, &l->bait);
  if (status != PERIGEE_OK)
    _exit(1);
  perigee_connect(l->engine, address, "shm", 1000 * MS);
}

static void live(const char *address, enum lie lie) {
  struct liar l = {0};
  open_liar(&l, address);
  bool met = behave(&l, 1000 * MS);
  if (met && lie == LIE_KEYS)
    lie_of_keys(l.session); /* it is asked at once, and not often */
  if (met && behave(&l, (int64_t)below(10) * MS)) {
    int lies = 1 + (int)below(lie == LIE_KEYS ? 8 : 200);
    for (int i = 0; i < lies && l.session->state == PERIGEE_SESSION_OPEN; i++)
      if (!lie_once(&l, lie) || below(4) == 0)
        behave(&l, (int64_t)below(500000));
    behave(&l, (int64_t)below(20) * MS);
  }
  perigee_engine_close(l.engine);
}

_Noreturn void liar_run(const char *address, enum lie lie, uint64_t from,
                        int64_t nanoseconds) {
  int64_t end = now() + nanoseconds;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  seed = from * 2654435761u + 88172645463325252u;
  while (now() < end)
    live(address, lie);
  _exit(0);
}
