/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_inproc.c - a transport for specs between two engines of one thread.
 * Records arrive late, payloads in splinters, and copies take several steps.
 * Nothing else in the tree depends on it.
 *
 * A side that is armed receives everything without delay, since nothing would
 * wake it for what comes later.
 *
 * There are two transports: one that sessions begin with, and an additional one
 * for opaque memory (plugin_opaque.c), which copies by jobs between the memory
 * of both sides and can be broken.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "transport/transport.h"

enum { CREDIT = 64 << 10, REGIONS = 4096, OPERATIONS = 65536, SPLINTER = 5000 };

struct late {
  struct late *next;
  uint64_t length;
  int delay;
  _Alignas(64) uint8_t bytes[];
};

struct queue {
  struct late *first, **last, *peeked;
  uint64_t bytes; /* not yet released */
};

/* An item of a job, which is copied through a block of its own. */
struct task {
  struct task *next;
  struct job *job;
  uint32_t slot;
  struct payload from, to;
  struct copies from_copies, to_copies;
  uint64_t wanted, filled, put; /* bytes of this splinter */
  uint64_t done;
  uint8_t block[SPLINTER];
};

struct lane {
  struct lane_head head;
  struct lane *peer;
  struct share *share;
  struct late *reserved[RINGS];
  struct queue in[RINGS];
  struct exposed *loans; /* all loans not yet withdrawn */
  uint64_t regions[REGIONS];
  uint32_t marks[OPERATIONS];
  uint32_t seed, arms, kicked;
  bool armed, joined, alone, met;
  uint8_t *said; /* bytes from the peer, in place of a socket */
  uint64_t said_length, said_taken;
  bool dialed, broken; /* of an additional lane */
  struct area *areas[REGIONS];
  struct task *tasks;
};

/* What a source's address points to. It lives until it is withdrawn and no
 * fetch from it is under way. */
struct exposed {
  struct payload *payload; /* the operation's; a loan's: own; NULL: withdrawn */
  struct payload own;
  struct exposed *next;
  int fetches;
};

static void exposed_free(struct exposed *e) {
  if (!e->payload && e->fetches == 0)
    free(e);
}

static uint32_t chance(struct lane *lane) {
  lane->seed = lane->seed * 1664525 + 1013904223;
  return lane->seed >> 16;
}

static bool later(struct lane *lane) {
  return !lane->armed && chance(lane) % 3 != 0;
}

static uint64_t splinter(struct lane *lane, uint64_t length) {
  uint64_t n = 1 + chance(lane) % SPLINTER;
  return n < length ? n : length;
}

extern const struct perigee_transport perigee_transport_inproc;

static int inproc_open(const struct lane_options *options, struct lane **out,
                       struct offer *offer, char reason[REASON]) {
  (void)reason;
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane)
    return PERIGEE_NO_MEMORY;
  lane_by(lane, &perigee_transport_inproc);
  lane->seed = (uint32_t)options->key;
  lane->alone = options->alone;
  lane->share = options->share;
  for (int i = 0; i < RINGS; i++)
    lane->in[i].last = &lane->in[i].first;
  memcpy(offer->bytes, &lane, sizeof lane);
  offer->length = sizeof lane;
  offer->fd_count = 0;
  *out = lane;
  return PERIGEE_OK;
}

static int inproc_join(struct lane *lane, const struct offer *offer,
                       char reason[REASON]) {
  (void)reason;
  memcpy(&lane->peer, offer->bytes, sizeof lane->peer);
  return PERIGEE_OK;
}

static void drop(struct late **first) {
  while (*first) {
    struct late *late = *first;
    *first = late->next;
    free(late);
  }
}

static void tasks_end(struct lane *lane);
static struct lane *additional[2]; /* the newest: listened, dialed */

static void inproc_close(struct lane *lane) {
  if (lane->peer && lane->peer->peer == lane) {
    tasks_end(lane->peer);
    lane->peer->peer = NULL;
  }
  tasks_end(lane);
  if (additional[lane->dialed] == lane)
    additional[lane->dialed] = NULL;
  for (int i = 0; i < RINGS; i++) {
    drop(&lane->in[i].first);
    drop(&lane->in[i].peeked);
    free(lane->reserved[i]);
  }
  for (struct exposed *e = lane->loans, *next; e; e = next) {
    next = e->next;
    e->payload = NULL;
    exposed_free(e);
  }
  free(lane->said);
  free(lane);
}

/* ---- Without a socket --------------------------------------------------- */

static int inproc_say(struct lane *lane, const uint8_t *bytes,
                      uint32_t length) {
  struct lane *to = lane->peer;
  if (!to)
    return PERIGEE_PEER_LOST;
  to->said = realloc(to->said, to->said_length + length);
  memcpy(to->said + to->said_length, bytes, length);
  to->said_length += length;
  return PERIGEE_OK;
}

static uint32_t inproc_hear(struct lane *lane, uint8_t *bytes, uint32_t room) {
  uint64_t left = lane->said_length - lane->said_taken;
  if (left == 0 || later(lane))
    return 0;
  uint32_t n = (uint32_t)splinter(lane, left < room ? left : room);
  memcpy(bytes, lane->said + lane->said_taken, n);
  lane->said_taken += n;
  return n;
}

static bool inproc_drained(struct lane *lane) {
  return !lane->armed;
}

/* A probe is lost if the peer has not joined. */
static void inproc_probe(struct lane *lane) {
  if (lane->peer->peer == lane)
    lane->peer->met = true;
}

static bool inproc_met(const struct lane *lane) {
  return lane->met;
}

static void inproc_keepalive(struct lane *lane) {
  (void)lane;
}

static int inproc_broken(const struct lane *lane, const char **reason) {
  *reason = "the peer's half is gone";
  return lane->alone && !lane->peer ? PERIGEE_PEER_LOST : PERIGEE_OK;
}

/* ---- Records ------------------------------------------------------------ */

static uint8_t *inproc_reserve(struct lane *lane, enum ring ring,
                               uint64_t length) {
  struct queue *queue = lane->peer ? &lane->peer->in[ring] : NULL;
  if (!queue || queue->bytes + length > CREDIT)
    return NULL;
  free(lane->reserved[ring]);
  struct late *late = aligned_alloc(64, (sizeof *late + length + 63) & ~63ul);
  *late = (struct late){.length = length};
  lane->reserved[ring] = late;
  return late->bytes;
}

static void inproc_publish(struct lane *lane, enum ring ring, uint64_t length) {
  struct late *late = lane->reserved[ring];
  lane->reserved[ring] = NULL;
  if (!lane->peer) {
    free(late);
    return;
  }
  struct queue *queue = &lane->peer->in[ring];
  late->length = length;
  late->delay = (int)(chance(lane) % 4);
  *queue->last = late;
  queue->last = &late->next;
  queue->bytes += length;
}

static int inproc_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
                       uint64_t *length) {
  struct queue *queue = &lane->in[ring];
  struct late *late = queue->first;
  if (!late || (!lane->armed && late->delay-- > 0))
    return 0;
  queue->first = late->next;
  if (!queue->first)
    queue->last = &queue->first;
  late->next = queue->peeked;
  queue->peeked = late;
  *bytes = late->bytes;
  *length = late->length;
  return 1;
}

static bool inproc_release(struct lane *lane) {
  bool any = false;
  for (int i = 0; i < RINGS; i++) {
    for (struct late *l = lane->in[i].peeked; l; l = l->next, any = true)
      lane->in[i].bytes -= l->length;
    drop(&lane->in[i].peeked);
  }
  return any;
}

static void inproc_mark(struct lane *lane, uint16_t op, uint32_t generation) {
  lane->marks[op] = generation;
}

static bool inproc_live(struct lane *lane, uint16_t op, uint32_t generation) {
  return lane->peer && lane->peer->marks[op] == generation;
}

/* ---- Payloads ----------------------------------------------------------- */

static struct source source_of(struct exposed *exposed) {
  uint64_t total = exposed->payload->total;
  return (struct source){1, (uint64_t)(uintptr_t)exposed, total, 1, total};
}

static int inproc_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
                       struct source *source) {
  struct exposed *e = calloc(1, sizeof *e + length);
  if (!e)
    return PERIGEE_NO_MEMORY;
  e->next = lane->loans;
  lane->loans = e;
  *pointer = (uint8_t *)(e + 1);
  e->payload = &e->own;
  payload_bytes(&e->own, *pointer, length);
  *source = source_of(e);
  return PERIGEE_OK;
}

static void inproc_unloan(struct lane *lane, const struct source *source) {
  struct exposed *e = (struct exposed *)(uintptr_t)source->address;
  struct exposed **at = &lane->loans;
  while (*at != e)
    at = &(*at)->next;
  *at = e->next;
  e->payload = NULL;
  exposed_free(e);
}

static bool inproc_loaned(struct lane *lane, const uint8_t *pointer,
                          uint64_t length, struct source *source) {
  (void)lane, (void)pointer, (void)length, (void)source;
  return false;
}

static const uint8_t *inproc_view(struct lane *lane,
                                  const struct source *source) {
  (void)lane, (void)source;
  return NULL;
}

static int inproc_expose(struct lane *lane, struct exposure *exposure,
                         struct payload *payload) {
  (void)lane;
  struct exposed *e = calloc(1, sizeof *e);
  if (!e)
    return PERIGEE_NO_MEMORY;
  e->payload = payload;
  exposure->source = source_of(e);
  exposure->payload = NULL;
  memcpy(exposure->own, &e, sizeof e);
  return PERIGEE_OK;
}

static int64_t inproc_feed(struct lane *lane, struct exposure *exposure) {
  (void)lane, (void)exposure;
  return 0;
}

static void inproc_conceal(struct lane *lane, struct exposure *exposure) {
  (void)lane;
  struct exposed *e;
  memcpy(&e, exposure->own, sizeof e);
  if (e) {
    e->payload = NULL;
    exposed_free(e);
  }
  memset(exposure->own, 0, sizeof exposure->own);
}

/* The state of a fetch at this side. */
struct bounce {
  struct exposed *from;
  uint8_t *block;
  uint64_t wanted, filled, put; /* bytes of this splinter */
};
_Static_assert(sizeof(struct bounce) <= FETCH_OWN, "there is room for it");

static struct bounce *bounce_of(struct fetch *f) {
  return (struct bounce *)(void *)f->own;
}

/* Copies a splinter from the source to the bounce block, and from there to
 * its destination. */
static int64_t inproc_fetch(struct lane *lane, struct fetch *f) {
  if (lane->broken || !inproc_live(lane, f->operation, f->generation))
    return PERIGEE_PEER_LOST;
  struct exposed *e = (struct exposed *)(uintptr_t)f->source.address;
  struct bounce *b = bounce_of(f);
  if (!b->block && !(b->block = malloc(SPLINTER)))
    return PERIGEE_NO_MEMORY;
  if (!b->from) {
    b->from = e;
    e->fetches++;
  }
  if (b->put == b->wanted) {
    if (later(lane))
      return 0;
    b->wanted = splinter(lane, f->total - f->done);
    b->filled = b->put = 0;
  }
  if (b->filled < b->wanted) {
    int64_t got =
        payload_take(e->payload, b->block + b->filled, b->wanted - b->filled);
    if (got <= 0)
      return got;
    b->filled += (uint64_t)got;
  }
  if (b->filled < b->wanted)
    return 0;
  int64_t put = payload_put(f->into, b->block + b->put, b->filled - b->put);
  if (put <= 0)
    return put;
  f->done += (uint64_t)put;
  b->put += (uint64_t)put;
  return put;
}

/* The owner's copy may still be writing to our bounce block. */
static bool inproc_fetch_end(struct lane *lane, struct fetch *f) {
  (void)lane;
  struct bounce *b = bounce_of(f);
  struct exposed *e = b->from;
  if (!payload_quiet(f->into) ||
      (e && e->payload && !payload_quiet(e->payload)))
    return false;
  if (e) {
    e->fetches--;
    exposed_free(e);
  }
  free(b->block);
  *b = (struct bounce){0};
  return true;
}

/* ---- One-sided ---------------------------------------------------------- */

/* The key is the area's file and, as bytes, its length. An additional lane
 * needs neither. */
static int inproc_export(struct lane *lane, const struct grant *grant,
                         struct region_key *key) {
  struct stat st;
  bool mapped = !lane_table(lane)->additional;
  if (mapped && (grant->file < 0 || fstat(grant->file, &st) != 0))
    return PERIGEE_UNSUPPORTED;
  lane->regions[grant->slot] = grant->generation;
  lane->areas[grant->slot] = grant->area;
  key->length = key->fd_count = 0;
  if (!mapped)
    return PERIGEE_OK;
  memcpy(key->bytes, &st.st_size, sizeof st.st_size);
  key->length = sizeof st.st_size;
  key->fds[0] = grant->file;
  key->fd_count = 1;
  return PERIGEE_OK;
}

static int inproc_attach(struct lane *lane, struct window *window,
                         const struct region_key *key) {
  off_t said;
  struct stat st;
  if (lane_table(lane)->additional)
    return key->length + key->fd_count == 0 ? PERIGEE_OK : PERIGEE_PROTOCOL;
  memcpy(&said, key->bytes, sizeof said);
  if (key->length != sizeof said || key->fd_count != 1 ||
      fstat(key->fds[0], &st) != 0 || st.st_size != said ||
      (uint64_t)said < window->length)
    return PERIGEE_PROTOCOL;
  if (!share_take(lane->share, SHARE_MAPPED, (uint64_t)said))
    return PERIGEE_NO_MEMORY;
  int rights = PROT_READ | (window->access & PERIGEE_WRITE ? PROT_WRITE : 0);
  void *p = mmap(NULL, (size_t)said, rights, MAP_SHARED, key->fds[0], 0);
  if (p == MAP_FAILED) {
    share_back(lane->share, SHARE_MAPPED, (uint64_t)said);
    return PERIGEE_NO_MEMORY;
  }
  window->pointer = p;
  memcpy(window->own, &said, sizeof said);
  return PERIGEE_OK;
}

static void inproc_detach(struct lane *lane, struct window *window) {
  off_t mapped;
  if (!window->pointer)
    return;
  memcpy(&mapped, window->own, sizeof mapped);
  munmap(window->pointer, (size_t)mapped);
  share_back(lane->share, SHARE_MAPPED, (uint64_t)mapped);
}

static void inproc_revoke(struct lane *lane, uint32_t slot) {
  lane->regions[slot] = 0;
}

static bool inproc_inside(struct lane *lane, uint32_t slot) {
  const struct task *t = lane->peer ? lane->peer->tasks : NULL;
  while (t && t->slot != slot)
    t = t->next;
  return t != NULL;
}

static int64_t inproc_copy(struct lane *lane, const struct window *window,
                           struct payload *remote, struct payload *local,
                           uint64_t limit, bool write) {
  uint64_t run;
  if (!lane->peer || lane->peer->regions[window->slot] != window->generation)
    return PERIGEE_STALE;
  if (later(lane))
    return 0;
  uint8_t *at = payload_run(remote, &run);
  uint64_t n = splinter(lane, limit < run ? limit : run);
  int64_t moved =
      write ? payload_take(local, at, n) : payload_put(local, at, n);
  if (moved > 0)
    remote->done += (uint64_t)moved;
  return moved;
}

/* ---- An additional lane --------------------------------------------------- */

static bool inproc_reaches(struct lane *lane, const struct window *window,
                           const struct payload *local) {
  (void)lane, (void)window;
  return !local->memory->direct;
}

/* Posts the whole item at once. */
static int inproc_post(struct lane *lane, struct job *job,
                       const struct window *window, struct payload *remote,
                       struct payload *local, bool write) {
  struct lane *peer = lane->peer;
  if (!peer || peer->regions[window->slot] != window->generation)
    return PERIGEE_STALE;
  struct task *t = calloc(1, sizeof *t);
  if (!t)
    return PERIGEE_NO_MEMORY;
  struct payload there = *remote;
  there.memory = peer->areas[window->slot]->memory;
  there.base = peer->areas[window->slot]->base + (uintptr_t)remote->base;
  t->job = job;
  t->slot = window->slot;
  t->from = write ? *local : there;
  t->to = write ? there : *local;
  t->from.copies = &t->from_copies;
  t->to.copies = &t->to_copies;
  t->next = lane->tasks;
  lane->tasks = t;
  job->pending++;
  job->posted += local->total;
  return 1;
}

static void inproc_flush(struct lane *lane) {
  (void)lane;
}

/* Copies a splinter through the block. Returns bytes, 0 while a copy is
 * under way, or a status. */
static int64_t task_step(struct lane *lane, struct task *t) {
  if (t->put == t->wanted) {
    t->wanted = splinter(lane, t->from.total - t->done);
    t->filled = t->put = 0;
  }
  if (t->filled < t->wanted) {
    int64_t got =
        payload_take(&t->from, t->block + t->filled, t->wanted - t->filled);
    if (got <= 0)
      return got;
    t->filled += (uint64_t)got;
  }
  if (t->filled < t->wanted)
    return 0;
  int64_t put = payload_put(&t->to, t->block + t->put, t->filled - t->put);
  if (put <= 0)
    return put;
  t->done += (uint64_t)put;
  t->put += (uint64_t)put;
  return put;
}

static void task_end(struct task **at, int status) {
  struct task *t = *at;
  while (!payload_quiet(&t->from) || !payload_quiet(&t->to))
    ;
  t->job->pending--;
  t->job->done += t->done;
  if (status < 0 && t->job->status == 0)
    t->job->status = status;
  *at = t->next;
  free(t);
}

static void tasks_end(struct lane *lane) {
  while (lane->tasks)
    task_end(&lane->tasks, PERIGEE_PEER_LOST);
}

/* Each turn moves every task one step, unless it is delayed. */
static bool additional_poll(struct lane *lane) {
  bool any = false;
  for (struct task **at = &lane->tasks; *at && !lane->broken;) {
    int64_t n = later(lane) ? 0 : task_step(lane, *at);
    any = any || n > 0;
    if (n < 0 || (*at)->done == (*at)->from.total)
      task_end(at, n < 0 ? (int)n : 0);
    else
      at = &(*at)->next;
  }
  return any;
}

static bool inproc_cease(struct lane *lane, struct job *job) {
  for (struct task **at = &lane->tasks; *at;)
    if ((*at)->job == job)
      task_end(at, PERIGEE_CANCELLED);
    else
      at = &(*at)->next;
  return true;
}

static int additional_broken(const struct lane *lane, const char **reason) {
  *reason =
      lane->broken ? "it was broken on purpose" : "the peer's half is gone";
  return lane->broken || !lane->peer ? PERIGEE_PEER_LOST : PERIGEE_OK;
}

extern const struct perigee_transport perigee_transport_inproc_additional;

static int additional_open(const struct lane_options *options,
                           struct lane **out, struct offer *offer,
                           char reason[REASON]) {
  int status = inproc_open(options, out, offer, reason);
  if (status < 0)
    return status;
  lane_by(*out, &perigee_transport_inproc_additional);
  (*out)->dialed = options->dialed;
  additional[options->dialed] = *out;
  return PERIGEE_OK;
}

/* Breaks that side's newest lane, as if a cable were pulled. */
PERIGEE_API void perigee_inproc_break(int dialed);
void perigee_inproc_break(int dialed) {
  additional[dialed]->broken = true;
}

/* ---- Sleeping ----------------------------------------------------------- */

static void inproc_arm(struct lane *lane) {
  lane->armed = true;
  lane->arms++;
}

static void inproc_disarm(struct lane *lane) {
  lane->armed = false;
}

static bool inproc_wanted(struct lane *lane) {
  if (!lane->peer || !lane->peer->armed || lane->kicked == lane->peer->arms)
    return false;
  lane->kicked = lane->peer->arms;
  return true;
}

static const struct transport_records records = {
    .reserve = inproc_reserve,
    .publish = inproc_publish,
    .peek = inproc_peek,
    .release = inproc_release,
};

static const struct transport_payloads payloads = {
    .mark = inproc_mark,
    .live = inproc_live,
    .expose = inproc_expose,
    .feed = inproc_feed,
    .conceal = inproc_conceal,
    .fetch = inproc_fetch,
    .fetch_end = inproc_fetch_end,
};

static const struct transport_loans loans = {
    .loan = inproc_loan,
    .unloan = inproc_unloan,
    .loaned = inproc_loaned,
    .view = inproc_view,
};

static const struct transport_access rights = {
    .export = inproc_export,
    .revoke = inproc_revoke,
    .inside = inproc_inside,
    .attach = inproc_attach,
    .detach = inproc_detach,
};

static const struct transport_copies copies = {
    .copy = inproc_copy,
};

static const struct transport_sleep sleeping = {
    .arm = inproc_arm,
    .disarm = inproc_disarm,
    .wanted = inproc_wanted,
};

static const struct transport_frames frames = {
    .say = inproc_say,
    .hear = inproc_hear,
    .drained = inproc_drained,
};

static const struct transport_alone alone = {
    .probe = inproc_probe,
    .met = inproc_met,
    .keepalive = inproc_keepalive,
};

PERIGEE_API const struct perigee_transport perigee_transport_inproc = {
    .name = "inproc",
    .records = &records,
    .payloads = &payloads,
    .loans = &loans,
    .access = &rights,
    .copies = &copies,
    .sleep = &sleeping,
    .frames = &frames,
    .alone = &alone,
    .open = inproc_open,
    .join = inproc_join,
    .close = inproc_close,
    .broken = inproc_broken,
};

static const struct transport_jobs jobs = {
    .reaches = inproc_reaches,
    .post = inproc_post,
    .flush = inproc_flush,
    .quiesce = inproc_cease,
};

static const char *const kinds[] = {"opaque", NULL};
static const struct transport_additional beside = {
    .memories = kinds,
    .least = 4096,
};

PERIGEE_API const struct perigee_transport perigee_transport_inproc_additional =
    {
        .name = "link",
        .payloads = &payloads,
        .access = &rights,
        .jobs = &jobs,
        .sleep = &sleeping,
        .additional = &beside,
        .open = additional_open,
        .join = inproc_join,
        .close = inproc_close,
        .cut = tasks_end,
        .poll = additional_poll,
        .broken = additional_broken,
};
