/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_fetch.c - payloads at their receiver: the peer's operations, what of each
 * payload has come, and the unexpected queue, for fragments that came before
 * their landing was known. Each operation of the peer has a queue of its own, so
 * a look-up passes over no other operation's fragments.
 *
 * Each fetch knows which bytes of its payload have been received. Each stream
 * brings fragments in order, but streams overtake each other, so there may be
 * gaps for a while. A byte that comes twice violates the protocol: another
 * would be missing although the count is right, and old bytes at its place
 * would be taken for the payload's.
 *
 * The lane owns the peer's operations and the queues, until it is closed. A
 * fetch is its operation's, and is in its list until fetch_end.
 */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

enum { FIRST_PEERS = 64 };
/* As many as streams that overtake each other leave, and some more. */
enum { RANGES_ROOM = 32 };

/* ---- Which bytes have been received -------------------------------------- */

/* The memory that is counted in the peer's share. */
static uint64_t ranges_counted(uint32_t room) {
  return room > RANGES_ROOM ? room * sizeof(struct stretch) : 0;
}

void ranges_close(struct ranges *c) {
  share_back(c->share, SHARE_POOLED, ranges_counted(c->room));
  free(c->ahead);
  *c = (struct ranges){0};
}

static bool ranges_grow(struct ranges *c) {
  uint32_t room = c->room ? 2 * c->room : RANGES_ROOM;
  uint64_t counts = ranges_counted(room) - ranges_counted(c->room);
  if (room > TCP_AHEAD || !share_take(c->share, SHARE_POOLED, counts))
    return false;
  struct stretch *more = realloc(c->ahead, room * sizeof *more);
  if (!more) {
    share_back(c->share, SHARE_POOLED, counts);
    return false;
  }
  c->ahead = more;
  c->room = room;
  return true;
}

/* Moves the ranges from ahead[from] on to ahead[to]. */
static void ranges_shift(struct ranges *c, uint32_t from, uint32_t to) {
  c->moved = (c->count - from) * (uint32_t)sizeof *c->ahead;
  memmove(&c->ahead[to], &c->ahead[from], c->moved);
}

static void ranges_drop(struct ranges *c, uint32_t i) {
  ranges_shift(c, i + 1, i);
  c->count--;
}

/* Returns the first range behind a gap that begins there or later. Most bytes
 * come in order, behind all others. */
static uint32_t ranges_from(const struct ranges *c, uint64_t at) {
  uint32_t low = 0, high = c->count;
  if (high > 0 && c->ahead[high - 1].at < at)
    return high;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (c->ahead[middle].at < at)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Adds a range behind a gap, before ahead[i], which begins after it. */
static int ranges_put(struct ranges *c, uint32_t i, uint64_t at, uint64_t end) {
  if (i > 0 && c->ahead[i - 1].end == at) {
    c->ahead[i - 1].end = end;
    if (i < c->count && c->ahead[i].at == end) {
      c->ahead[i - 1].end = c->ahead[i].end;
      ranges_drop(c, i);
    }
    return PERIGEE_OK;
  }
  if (i < c->count && c->ahead[i].at == end) {
    c->ahead[i].at = at;
    return PERIGEE_OK;
  }
  if (c->count == c->room && !ranges_grow(c))
    return PERIGEE_NO_MEMORY;
  ranges_shift(c, i, i + 1);
  c->ahead[i] = (struct stretch){at, end};
  c->count++;
  return PERIGEE_OK;
}

/* Within a range behind a gap, ahead[i]. */
static int ranges_remove_ahead(struct ranges *c, uint32_t i, uint64_t at,
                               uint64_t end) {
  struct stretch *from = &c->ahead[i];
  uint64_t last = from->end;
  if (at > from->at) {
    from->end = at;
    return end < last ? ranges_put(c, i + 1, end, last) : PERIGEE_OK;
  }
  from->at = end;
  if (end == last)
    ranges_drop(c, i);
  return PERIGEE_OK;
}

int ranges_remove(struct ranges *c, uint64_t at, uint64_t length) {
  uint64_t end = at + length, first = c->first;
  if (at < first) {
    c->first = at;
    return end < first ? ranges_put(c, 0, end, first) : PERIGEE_OK;
  }
  return ranges_remove_ahead(c, ranges_from(c, at + 1) - 1, at, end);
}

int ranges_add(struct ranges *c, uint64_t at, uint64_t length) {
  uint64_t end = at + length;
  uint32_t i = ranges_from(c, at);
  c->moved = 0;
  if (at < c->first || (i > 0 && c->ahead[i - 1].end > at) ||
      (i < c->count && c->ahead[i].at < end))
    return PERIGEE_PROTOCOL;
  if (at > c->first)
    return ranges_put(c, i, at, end);
  c->first = end;
  if (c->count > 0 && c->ahead[0].at == end) {
    c->first = c->ahead[0].end;
    ranges_drop(c, 0);
  }
  return PERIGEE_OK;
}

/* ---- Operations of the peer ---------------------------------------------- */

/* Returns an operation of the peer, or NULL if it is not known. */
static struct tcp_peer *tcp_peer(const struct lane *lane, uint16_t operation) {
  return operation < lane->peer_count ? lane->peers[operation] : NULL;
}

/* Counts memory that the peer makes the lane keep until the lane ends; false if
 * that exceeds the peer's share. */
static bool tcp_count_memory(struct lane *lane, uint64_t bytes) {
  if (!share_take(lane->options.share, SHARE_POOLED, bytes))
    return false;
  lane->counted += bytes;
  return true;
}

static bool peers_room_for(struct lane *lane, uint16_t operation) {
  uint32_t count = lane->peer_count ? lane->peer_count : FIRST_PEERS;
  while (count <= operation)
    count *= 2;
  if (count == lane->peer_count)
    return true;
  if (!tcp_count_memory(lane, (count - lane->peer_count) * sizeof *lane->peers))
    return false;
  struct tcp_peer **more = realloc(lane->peers, count * sizeof *more);
  if (!more)
    return false;
  for (uint32_t i = lane->peer_count; i < count; i++)
    more[i] = NULL;
  lane->peers = more;
  lane->peer_count = count;
  return true;
}

struct tcp_peer *tcp_peer_new(struct lane *lane, uint16_t operation) {
  struct tcp_peer *peer = tcp_peer(lane, operation);
  if (peer || !peers_room_for(lane, operation))
    return peer;
  peer = tcp_count_memory(lane, sizeof *peer) ? calloc(1, sizeof *peer) : NULL;
  if (!peer)
    return NULL;
  list_open(&peer->fetches);
  list_open(&peer->unexpected);
  lane->peers[operation] = peer;
  return peer;
}

/* The peer chooses the numbers, and so how far the array grows: it is
 * counted. */
static uint32_t *peer_ended_place(struct lane *lane, uint32_t number) {
  uint32_t before = lane->ended.count;
  uint32_t *place = generation_place(&lane->ended, number);
  uint64_t more = (lane->ended.count - before) * sizeof *place;
  return more == 0 || tcp_count_memory(lane, more) ? place : NULL;
}

bool tcp_live(struct lane *lane, uint16_t operation, uint32_t generation) {
  uint32_t last = generation_of(&lane->ended, operation);
  return last == 0 || (int32_t)(generation - last) > 0;
}

/* ---- Fetches and their fragments ----------------------------------------- */

static bool fragment_is_of(const struct tcp_head *h, const struct fetch *f) {
  return h->operation == f->operation && h->generation == f->generation &&
         (h->which & PART_MASK) == f->part;
}

static struct fetch *fetch_entry(struct node *n) {
  return CONTAINER(CONTAINER(n, struct tcp_fetch, node), struct fetch, own);
}

struct fetch *tcp_fetch_of(struct lane *lane, const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  if (!peer)
    return NULL;
  for (struct node *n = peer->fetches.next; n != &peer->fetches; n = n->next) {
    struct fetch *f = fetch_entry(n);
    if (fragment_is_of(h, f))
      return f;
  }
  return NULL;
}

bool tcp_peer_fetches(struct lane *lane, const struct tcp_peer *peer,
                      uint8_t part) {
  for (struct node *n = peer->fetches.next; n != &peer->fetches; n = n->next) {
    const struct fetch *f = fetch_entry(n);
    if (f->part == part && tcp_live(lane, f->operation, f->generation))
      return true;
  }
  return false;
}

/* What a long list of ranges moves is work of the poll, as payloads are. */
static void fetch_counts_list(struct lane *lane, struct tcp_fetch *own) {
  uint64_t moved = own->received.moved;
  own->came += moved;
  lane->may_read -= moved < lane->may_read ? moved : lane->may_read;
}

bool tcp_fetch_takes(struct lane *lane, struct fetch *f,
                     const struct tcp_head *h) {
  bool inside = h->at <= f->total && h->length <= f->total - h->at;
  int status = inside ? ranges_add(&tcp_own(f)->received, h->at, h->length)
                      : PERIGEE_PROTOCOL;
  fetch_counts_list(lane, tcp_own(f));
  if (status == PERIGEE_NO_MEMORY)
    tcp_fetch_fails(f, status);
  else if (status < 0)
    tcp_break(lane, status,
              "the peer broke the protocol: bytes of a payload that it did not "
              "announce, or that it had sent before");
  return status == PERIGEE_OK;
}

void tcp_fetch_back(struct lane *lane, struct fetch *f,
                    const struct tcp_head *h) {
  if (ranges_remove(&tcp_own(f)->received, h->at, h->length) < 0)
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what comes again");
  if (!f->into->memory->direct)
    payload_seek(f->into, h->at);
}

void tcp_fetch_fails(struct fetch *f, int status) {
  if (tcp_own(f)->status == 0)
    tcp_own(f)->status = status;
}

void tcp_fetch_got(struct fetch *f, uint32_t length, bool good) {
  if (good)
    f->done += length;
  else
    tcp_fetch_fails(f, PERIGEE_CANCELLED); /* its owner gave it up */
}

bool tcp_fetch_is_next(const struct lane *lane, const struct fetch *f,
                       uint64_t at) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->fetch == f)
      return false;
  return at == f->into->done;
}

/* ---- The unexpected queue ------------------------------------------------ */

static struct unexpected *unexpected_entry(struct tcp_peer *peer,
                                           struct node *n) {
  return n == &peer->unexpected ? NULL : CONTAINER(n, struct unexpected, node);
}

/* An operation's fragments in order: the first one, and the one behind another.
 * NULL: there is none. */
static struct unexpected *unexpected_first(const struct lane *lane,
                                           uint16_t operation) {
  struct tcp_peer *peer = tcp_peer(lane, operation);
  return peer ? unexpected_entry(peer, peer->unexpected.next) : NULL;
}

static struct unexpected *unexpected_behind(const struct lane *lane,
                                            const struct unexpected *e) {
  return unexpected_entry(tcp_peer(lane, e->head.operation), e->node.next);
}

static uint64_t unexpected_size(const struct tcp_head *h) {
  return sizeof(struct unexpected) + h->length;
}

static bool unexpected_is_late(const struct unexpected *e) {
  return !(e->head.which & PART_EAGER) && !e->apart;
}

void tcp_unexpected_free(struct lane *lane, struct unexpected *e) {
  tcp_peer(lane, e->head.operation)->unexpected_count--;
  lane->unexpected_count--;
  share_back(lane->options.share, SHARE_POOLED, unexpected_size(&e->head));
  if (unexpected_is_late(e))
    lane->unexpected_late -= e->head.length;
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->unexpected != e)
      continue;
    s->unexpected = NULL; /* the rest of it is dropped as it comes */
    if (s->sink == SINK_UNEXPECTED)
      s->sink = SINK_DROP;
    e->head.which = 0; /* it is counted when its trailer comes */
  }
  list_remove(&e->node);
  if (e->head.which & PART_EAGER)
    tcp_eager_done(lane, e->head.length);
  free(e);
}

bool tcp_unexpected_full(const struct lane *lane, const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  return lane->unexpected_count >= TCP_UNEXPECTED ||
         (peer && peer->unexpected_count >= TCP_UNEXPECTED_EACH);
}

struct unexpected *tcp_unexpected_add(struct lane *lane,
                                      const struct tcp_head *head, bool apart) {
  struct tcp_peer *peer = tcp_peer_new(lane, head->operation);
  uint64_t bytes = unexpected_size(head);
  if (!peer || !share_take(lane->options.share, SHARE_POOLED, bytes))
    return NULL;
  struct unexpected *e = malloc(bytes);
  if (!e) {
    share_back(lane->options.share, SHARE_POOLED, bytes);
    return NULL;
  }
  *e = (struct unexpected){.head = *head, .apart = apart};
  list_append(&peer->unexpected, &e->node);
  peer->unexpected_count++;
  lane->unexpected_count++;
  if (unexpected_is_late(e))
    lane->unexpected_late += head->length;
  return e;
}

uint64_t tcp_unexpected_bytes(struct lane *lane, const struct fetch *f) {
  const struct unexpected *e = unexpected_first(lane, f->operation);
  uint64_t sum = 0;
  for (; e; e = unexpected_behind(lane, e))
    if (fragment_is_of(&e->head, f) && e->first)
      sum += e->head.length;
  return sum;
}

/* With f, drops all its fragments. Otherwise drops those of the generation, but
 * keeps those that are still being copied into their landing: memory that
 * copies on its own time reads from them until the fetch ends. */
static void unexpected_leave(struct lane *lane, uint16_t operation,
                             uint32_t generation, const struct fetch *f) {
  struct unexpected *e = unexpected_first(lane, operation), *next;
  for (; e; e = next) {
    next = unexpected_behind(lane, e);
    if (f ? fragment_is_of(&e->head, f)
          : !e->walking && e->head.generation == generation)
      tcp_unexpected_free(lane, e);
  }
}

/* Removes the fragments of one generation of a peer's operation, but those that
 * are being copied. */
static void tcp_unexpected_drop(struct lane *lane, uint16_t operation,
                                uint32_t generation) {
  unexpected_leave(lane, operation, generation, NULL);
}

void tcp_unexpected_forget(struct lane *lane, const struct fetch *f) {
  unexpected_leave(lane, f->operation, f->generation, f);
}

static void tcp_peer_free(struct lane *lane, struct tcp_peer *peer) {
  struct unexpected *e = unexpected_entry(peer, peer->unexpected.next), *next;
  for (; e; e = next) {
    next = unexpected_behind(lane, e);
    share_back(lane->options.share, SHARE_POOLED, unexpected_size(&e->head));
    free(e);
  }
  free(peer);
}

void tcp_peers_close(struct lane *lane) {
  for (uint32_t i = 0; i < lane->peer_count; i++)
    if (lane->peers[i])
      tcp_peer_free(lane, lane->peers[i]);
  free(lane->peers);
  share_back(lane->options.share, SHARE_POOLED, lane->counted);
}

void tcp_ended_told(struct lane *lane, const struct tcp_head *h) {
  uint32_t *last = peer_ended_place(lane, h->operation);
  if (!last)
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what has ended");
  else /* ends are told in order */
    *last = h->generation;
  tcp_unexpected_drop(lane, h->operation, h->generation);
}

/* ---- From the queue to the landing --------------------------------------- */

/* Is the fragment complete, and next in order? */
static bool unexpected_is_ripe(const struct lane *lane,
                               const struct unexpected *e,
                               const struct fetch *f) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->unexpected == e)
      return false;
  return f->into->memory->direct || e->walking ||
         tcp_fetch_is_next(lane, f, e->head.at);
}

bool tcp_unexpected_brings(const struct lane *lane, const struct fetch *f) {
  const struct unexpected *e = unexpected_first(lane, f->operation);
  while (e && !(fragment_is_of(&e->head, f) && unexpected_is_ripe(lane, e, f)))
    e = unexpected_behind(lane, e);
  return e;
}

/* Moves an entry into its landing and frees it once all of it is there. An
 * entry that was given up is freed at once, as it holds zeros. */
static void unexpected_deliver(struct lane *lane, struct unexpected *e,
                               struct fetch *f) {
  struct payload *into = f->into;
  if (!e->walking && !tcp_fetch_takes(lane, f, &e->head))
    return;
  if (into->memory->direct) {
    e->walk = *into;
    e->walk.done = e->head.at;
    into = &e->walk;
  }
  if (!e->walking)
    tcp_own(f)->came += e->head.length;
  e->walking = true;
  int64_t n =
      e->good ? payload_put(into, e->bytes + e->put, e->got - e->put) : e->got;
  if (n < 0)
    tcp_own(f)->status = (int)n;
  e->put += n > 0 ? (uint32_t)n : 0;
  if (n >= 0 && e->put < e->got)
    return;
  tcp_fetch_got(f, e->head.length, e->good);
  tcp_unexpected_free(lane, e);
}

void tcp_unexpected_take(struct lane *lane, struct fetch *f) {
  struct unexpected *e = unexpected_first(lane, f->operation), *next;
  for (; e; e = next) {
    next = unexpected_behind(lane, e);
    if (fragment_is_of(&e->head, f) && unexpected_is_ripe(lane, e, f))
      unexpected_deliver(lane, e, f);
    if (lane->status < 0)
      return;
  }
}
