/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_fetch.c - payloads at their receiver. A fragment goes to its landing,
 * directly or through a bounce block; to the unexpected queue, if it came
 * before its landing was known; or nowhere. Each operation of the peer has a
 * queue of its own, so a look-up passes over no other operation's fragments.
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
enum { RANGES_ROOM = 8 };

/* ---- Which bytes have been received -------------------------------------- */

void ranges_close(struct ranges *c) {
  free(c->ahead);
  *c = (struct ranges){0};
}

static bool ranges_grow(struct ranges *c) {
  uint32_t room = c->room ? 2 * c->room : RANGES_ROOM;
  struct stretch *more =
      room <= TCP_AHEAD ? realloc(c->ahead, room * sizeof *more) : NULL;
  if (!more)
    return false;
  c->ahead = more;
  c->room = room;
  return true;
}

static void ranges_drop(struct ranges *c, uint32_t i) {
  c->count--;
  memmove(&c->ahead[i], &c->ahead[i + 1], (c->count - i) * sizeof *c->ahead);
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
  memmove(&c->ahead[i + 1], &c->ahead[i], (c->count - i) * sizeof *c->ahead);
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
  uint32_t i = 0;
  if (at < first) {
    c->first = at;
    return end < first ? ranges_put(c, 0, end, first) : PERIGEE_OK;
  }
  while (c->ahead[i].end < end)
    i++;
  return ranges_remove_ahead(c, i, at, end);
}

int ranges_add(struct ranges *c, uint64_t at, uint64_t length) {
  uint64_t end = at + length;
  uint32_t i = c->count; /* from the end, as most come in order */
  while (i > 0 && c->ahead[i - 1].at >= at)
    i--;
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

/* The same, made if needed; NULL without memory. */
static struct tcp_peer *tcp_peer_new(struct lane *lane, uint16_t operation) {
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

static struct fetch *tcp_fetch_of(struct lane *lane, const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  if (!peer)
    return NULL;
  for (struct node *n = peer->fetches.next; n != &peer->fetches; n = n->next) {
    struct fetch *f =
        CONTAINER(CONTAINER(n, struct tcp_fetch, node), struct fetch, own);
    if (fragment_is_of(h, f))
      return f;
  }
  return NULL;
}

/* Is the fragment within its payload, and new? Its bytes count as received from
 * then on. False: the peer violates the protocol, or there is no memory. */
static bool tcp_fetch_takes(struct lane *lane, struct fetch *f,
                            const struct tcp_head *h) {
  bool inside = h->at <= f->total && h->length <= f->total - h->at;
  int status = inside ? ranges_add(&tcp_own(f)->received, h->at, h->length)
                      : PERIGEE_PROTOCOL;
  if (status == PERIGEE_NO_MEMORY)
    tcp_break(lane, status, "no memory for what came before its turn");
  else if (status < 0)
    tcp_break(lane, status,
              "the peer broke the protocol: bytes of a payload that it did not "
              "announce, or that it had sent before");
  return status == PERIGEE_OK;
}

/* Takes that back, as the fragment's stream was lost. */
static void tcp_fetch_back(struct lane *lane, struct fetch *f,
                           const struct tcp_head *h) {
  if (ranges_remove(&tcp_own(f)->received, h->at, h->length) < 0)
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what comes again");
  if (!f->into->memory->direct)
    payload_seek(f->into, h->at);
}

/* Not all of the payload can be had. */
static void tcp_fetch_fails(struct fetch *f, int status) {
  if (tcp_own(f)->status == 0)
    tcp_own(f)->status = status;
}

static void tcp_fetch_got(struct fetch *f, uint32_t length, bool good) {
  if (good)
    f->done += length;
  else
    tcp_fetch_fails(f, PERIGEE_CANCELLED); /* its owner gave it up */
}

/* May bytes from `at` on be put there now, as far as order goes? Memory that
 * copies asynchronously is filled in order only. Nothing goes behind a fragment
 * whose word is still to come: if its stream is lost, it begins anew. */
static bool fragment_is_next(const struct lane *lane, const struct fetch *f,
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

static void unexpected_free(struct lane *lane, struct unexpected *e) {
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

static bool tcp_unexpected_full(const struct lane *lane,
                                const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  return lane->unexpected_count >= TCP_UNEXPECTED ||
         (peer && peer->unexpected_count >= TCP_UNEXPECTED_EACH);
}

/* apart: it lacks bytes before it, which may come again. */
static struct unexpected *
tcp_unexpected_add(struct lane *lane, const struct tcp_head *head, bool apart) {
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

/* Returns how many bytes of the fetch are in the unexpected queue, or on their
 * way there; with `first`, only those that came by stream 0. */
static uint64_t tcp_unexpected_bytes(struct lane *lane, const struct fetch *f,
                                     bool first) {
  const struct unexpected *e = unexpected_first(lane, f->operation);
  uint64_t sum = 0;
  for (; e; e = unexpected_behind(lane, e))
    if (fragment_is_of(&e->head, f) && (e->first || !first))
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
      unexpected_free(lane, e);
  }
}

/* Removes the fragments of one generation of a peer's operation, but those that
 * are being copied. */
static void tcp_unexpected_drop(struct lane *lane, uint16_t operation,
                                uint32_t generation) {
  unexpected_leave(lane, operation, generation, NULL);
}

/* Removes all fragments of a fetch. */
static void tcp_unexpected_forget(struct lane *lane, const struct fetch *f) {
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
         fragment_is_next(lane, f, e->head.at);
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
  unexpected_free(lane, e);
}

/* Moves queued fragments of the fetch into its landing, as far as possible. */
static void tcp_unexpected_take(struct lane *lane, struct fetch *f) {
  struct unexpected *e = unexpected_first(lane, f->operation), *next;
  for (; e; e = next) {
    next = unexpected_behind(lane, e);
    if (fragment_is_of(&e->head, f) && unexpected_is_ripe(lane, e, f))
      unexpected_deliver(lane, e, f);
    if (lane->status < 0)
      return;
  }
}

/* ---- Where a fragment goes ----------------------------------------------- */

/* The copy in progress belongs to the payload itself. */
static bool fragment_in_turn(const struct lane *lane, const struct fetch *f,
                             const struct tcp_head *h) {
  return f->into->memory->direct ||
         (fragment_is_next(lane, f, h->at) && !payload_busy(f->into));
}

/* Does the fragment wait for bytes that neither a stream nor the queue can
 * bring? A peer that sends in order does not cause that. */
static bool fragment_is_stuck(struct stream *s) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  struct fetch *f = s->sink == SINK_WAITING ? tcp_fetch_of(lane, h) : NULL;
  return f && !fragment_in_turn(lane, f, h) && !payload_busy(f->into) &&
         tcp_own(f)->status == 0 &&
         tcp_live(lane, h->operation, h->generation) &&
         tcp_unexpected_bytes(lane, f, false) == 0;
}

static bool fragments_are_stuck(const struct lane *lane) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->fd >= 0 &&
        !fragment_is_stuck(lane->streams[i]))
      return false;
  return true;
}

/* The bytes that the fragment lacks may come again by stream 0, which so may
 * not stop for it. No window bounds what is queued then, but the peer's share
 * does, and the number for one operation: beyond that the operation ends. */
static bool fragment_out_of_turn(struct stream *s, struct fetch *f) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  if (payload_busy(f->into) && h->at == f->into->done)
    return false;
  bool full = tcp_unexpected_full(lane, h);
  s->unexpected = full ? NULL : tcp_unexpected_add(lane, h, true);
  if (!s->unexpected)
    tcp_fetch_fails(f, PERIGEE_NO_MEMORY);
  tcp_sink(s, s->unexpected ? SINK_UNEXPECTED : SINK_DROP, h->length);
  return true;
}

static bool fragment_has_to_wait(struct stream *s, struct fetch *f) {
  if (s->lane->options.heals)
    return s->number == 0 && fragment_out_of_turn(s, f);
  return fragments_are_stuck(s->lane) && tcp_protocol_error(s, "a fragment");
}

static bool fragment_lands(struct stream *s, struct fetch *f) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  if (!fragment_in_turn(lane, f, h))
    return fragment_has_to_wait(s, f);
  /* Others can see the landing: is the end known (stream_look_ahead)? */
  bool asks = f->careful && s->number > 0, all = !asks || tcp_said_all(lane);
  if (asks && !tcp_live(lane, f->operation, f->generation)) {
    tcp_sink(s, SINK_DROP, h->length);
    return true;
  }
  if (!all)
    return false;
  if (lane->status < 0 || !tcp_fetch_takes(lane, f, h))
    return false;
  s->fetch = f;
  s->walk = *f->into;
  s->walk.done = h->at;
  s->bounced = s->put = 0;
  tcp_sink(s, SINK_FETCH, h->length);
  return true;
}

/* Puts the fragment into the unexpected queue, if it may go there. If others
 * can see the landing, the fragments of stream 0 have to go in order, unless
 * some may come again; fragments that no window bounds wait until there is room.
 * Other streams may have brought later bytes already. */
static bool fragment_is_unexpected(struct stream *s, struct fetch *f) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  if (f && lane->options.heals && !f->into->memory->direct &&
      !fragment_in_turn(lane, f, h))
    return fragment_out_of_turn(s, f);
  if (f && !lane->options.heals && h->at != tcp_own(f)->unexpected_bytes)
    return tcp_protocol_error(s, "a fragment");
  if (tcp_unexpected_full(lane, h))
    return f && lane->options.heals
               ? false
               : tcp_protocol_error(s, "more fragments before their time");
  if (!(h->which & PART_EAGER) &&
      (lane->unexpected_late >= TCP_WINDOW ||
       (lane->options.share &&
        !share_may(lane->options.share, SHARE_POOLED, h->length))))
    return false;
  s->unexpected = tcp_unexpected_add(lane, h, false);
  if (!s->unexpected)
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what comes too early");
  else
    s->unexpected->first = s->number == 0;
  if (f)
    tcp_own(f)->unexpected_bytes += h->length;
  tcp_sink(s, SINK_UNEXPECTED, h->length);
  return s->unexpected != NULL;
}

/* Returns false if the stream has to wait. */
bool tcp_place(struct stream *s) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  struct fetch *f = tcp_fetch_of(lane, h);
  s->fetch = NULL;
  if (f && !(f->careful && s->number == 0))
    return fragment_lands(s, f);
  if ((!f && !(h->which & PART_EAGER)) ||
      !tcp_live(lane, h->operation, h->generation)) {
    tcp_sink(s, SINK_DROP, h->length);
    return true;
  }
  if (!f && s->patience > 0 && !lane->armed)
    return false;
  return fragment_is_unexpected(s, f);
}

void tcp_trailed(struct stream *s) {
  bool good = s->trailer == TCP_GOOD;
  if (s->fetch)
    tcp_fetch_got(s->fetch, s->head.length, good);
  if (s->unexpected)
    s->unexpected->good = good;
  else if (s->head.which & PART_EAGER)
    tcp_eager_done(s->lane, s->head.length);
  s->fetch = NULL;
  s->unexpected = NULL;
  tcp_sink(s, SINK_HEAD, 0);
  tcp_came(s);
}

/* Takes back what has come of a fragment. */
static void fragment_take_back(struct stream *s) {
  struct lane *lane = s->lane;
  if (s->sink == SINK_HEAD)
    return;
  if (s->fetch)
    tcp_fetch_back(lane, s->fetch, &s->head);
  if (s->unexpected)
    unexpected_free(lane, s->unexpected);
  if (s->head.which & PART_EAGER)
    lane->eager_got -= s->head.length;
}

void tcp_forget_fragment(struct stream *s) {
  fragment_take_back(s);
  s->fetch = NULL;
  s->unexpected = NULL;
  tcp_sink(s, SINK_HEAD, 0);
  s->in_first = s->in_end = 0;
}

/* ---- Memory that no CPU can write ---------------------------------------- */

/* Copies bytes into the bounce block, from where memory that no CPU can write
 * takes them. Returns how many bytes of `at` it took. */
uint64_t tcp_bounced(struct stream *s, const uint8_t *at, uint64_t n) {
  struct payload *into = s->fetch->into;
  if (!s->bounce && !(s->bounce = malloc(TCP_BOUNCE))) {
    tcp_break(s->lane, PERIGEE_NO_MEMORY, "no memory for a bounce block");
    return 0;
  }
  if (s->put == s->bounced && s->put == TCP_BOUNCE)
    s->put = s->bounced = 0;
  if (n > TCP_BOUNCE - s->bounced)
    n = TCP_BOUNCE - s->bounced;
  memcpy(s->bounce + s->bounced, at, n);
  s->bounced += (uint32_t)n;
  tcp_count(s, n);
  if (s->bounced < TCP_BOUNCE && s->rest > 0)
    return n;
  int64_t put = payload_put(into, s->bounce + s->put, s->bounced - s->put);
  if (put > 0)
    s->put += (uint32_t)put;
  return n;
}

/* Has everything that went through the bounce block reached the landing? */
bool tcp_settled(struct stream *s) {
  if (s->put == s->bounced || !s->fetch || s->fetch->into->memory->direct)
    return true;
  int64_t put =
      payload_put(s->fetch->into, s->bounce + s->put, s->bounced - s->put);
  if (put < 0)
    tcp_own(s->fetch)->status = (int)put;
  if (put != 0)
    s->put = put < 0 ? s->bounced : s->put + (uint32_t)put;
  return s->put == s->bounced;
}

/* ---- The fetch ----------------------------------------------------------- */

static int fetch_claim(struct lane *lane, struct fetch *f) {
  const struct source *s = &f->source;
  struct tcp_head claim = {.type = TCP_CLAIM,
                           .which = f->part,
                           .operation = f->operation,
                           .generation = f->generation};
  if (s->kind != SOURCE_PUSHED || s->count != 1 || s->block != f->total ||
      s->address > f->total || f->part > PART_MASK)
    return PERIGEE_PROTOCOL;
  struct tcp_peer *peer = tcp_peer_new(lane, f->operation);
  if (!peer)
    return PERIGEE_NO_MEMORY;
  tcp_own(f)->begun = true;
  tcp_own(f)->unexpected_bytes = tcp_unexpected_bytes(lane, f, true);
  list_append(&peer->fetches, &tcp_own(f)->node);
  if (s->address == f->total || !tcp_put(lane->streams[0], &claim, NULL))
    return PERIGEE_OK;
  tcp_send(lane->streams[0], TCP_TURN);
  return PERIGEE_OK;
}

/* Reads from all streams. The fetches of one poll share what the poll may read;
 * a stream that had nothing more is not read again in that poll. */
static void fetch_pump(struct lane *lane) {
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = tcp_in_turn(lane, i);
    if (!s || s->dry || (lane->armed && !s->readable))
      continue;
    uint64_t n = tcp_receive(s, lane->may_read);
    if (i == 0)
      lane->may_read -= n < lane->may_read ? n : lane->may_read;
  }
}

/* May queued bytes be put where others see them? Not if the operation's end lies
 * unread in stream 0; but if that waits for the room that they take. */
static bool fetch_may_land(struct lane *lane, const struct fetch *f) {
  return !f->careful ||
         ((tcp_said_all(lane) || lane->streams[0]->sink == SINK_WAITING) &&
          tcp_live(lane, f->operation, f->generation));
}

int64_t tcp_fetch(struct lane *lane, struct fetch *f) {
  int status = lane->cut ? PERIGEE_PEER_LOST : PERIGEE_OK;
  if (status == PERIGEE_OK && !tcp_own(f)->begun)
    status = fetch_claim(lane, f);
  if (status < 0)
    return status;
  fetch_pump(lane);
  if (lane->unexpected_count > 0 && fetch_may_land(lane, f))
    tcp_unexpected_take(lane, f);
  struct tcp_fetch *own = tcp_own(f);
  if (own->status < 0)
    return own->status;
  int64_t moved = (int64_t)(own->came - own->told);
  own->told = own->came;
  return moved;
}

bool tcp_fetch_end(struct lane *lane, struct fetch *f) {
  list_remove(&tcp_own(f)->node);
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->fetch != f)
      continue;
    s->fetch = NULL;
    s->put = s->bounced;
    if (s->sink == SINK_FETCH)
      s->sink = SINK_DROP;
  }
  tcp_unexpected_forget(lane, f);
  ranges_close(&tcp_own(f)->received);
  return payload_quiet(f->into);
}
