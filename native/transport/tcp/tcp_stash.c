/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_stash.c - fragments that came before their landing was known, by the
 * operation of the peer's that they are of: no look for one passes others'.
 */
#include <stdlib.h>

#include "tcp.h"

enum { FIRST_PEERS = 64 };

/* ---- Operations of the peer ----------------------------------------------- */

struct tcp_peer *tcp_peer(const struct lane *lane, uint16_t operation) {
  return operation < lane->peer_count ? lane->peers[operation] : NULL;
}

static bool room_for(struct lane *lane, uint16_t operation) {
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
  if (peer || !room_for(lane, operation))
    return peer;
  peer = tcp_count_memory(lane, sizeof *peer) ? calloc(1, sizeof *peer) : NULL;
  if (!peer)
    return NULL;
  list_open(&peer->fetches);
  list_open(&peer->stash);
  lane->peers[operation] = peer;
  return peer;
}

bool tcp_count_memory(struct lane *lane, uint64_t bytes) {
  if (!share_take(lane->options.share, SHARE_POOLED, bytes))
    return false;
  lane->counted += bytes;
  return true;
}

/* ---- In and out ----------------------------------------------------------- */

static uint64_t stash_bytes(const struct tcp_head *h) {
  return sizeof(struct stashed) + h->length;
}

static void stash_free(struct lane *lane, struct stashed *e) {
  tcp_peer(lane, e->head.operation)->stashed--;
  lane->stash_count--;
  share_back(lane->options.share, SHARE_POOLED, stash_bytes(&e->head));
  if (!(e->head.which & PART_EAGER))
    lane->stash_late -= e->head.length;
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->stashed != e)
      continue;
    s->stashed = NULL; /* what is still to come of it is dropped */
    if (s->sink == SINK_STASH)
      s->sink = SINK_DROP;
    e->head.which = 0; /* counted when its trailer comes */
  }
  list_remove(&e->node);
  if (e->head.which & PART_EAGER)
    tcp_eager_done(lane, e->head.length);
  free(e);
}

bool tcp_stash_full(const struct lane *lane, const struct tcp_head *h) {
  const struct tcp_peer *peer = tcp_peer(lane, h->operation);
  return lane->stash_count >= TCP_STASHED ||
         (peer && peer->stashed >= TCP_STASHED_EACH);
}

struct stashed *tcp_stash(struct lane *lane, const struct tcp_head *head) {
  struct tcp_peer *peer = tcp_peer_new(lane, head->operation);
  uint64_t bytes = stash_bytes(head);
  if (!peer || !share_take(lane->options.share, SHARE_POOLED, bytes))
    return NULL;
  struct stashed *e = malloc(bytes);
  if (!e) {
    share_back(lane->options.share, SHARE_POOLED, bytes);
    return NULL;
  }
  *e = (struct stashed){.head = *head};
  list_append(&peer->stash, &e->node);
  peer->stashed++;
  lane->stash_count++;
  if (!(head->which & PART_EAGER))
    lane->stash_late += head->length;
  return e;
}

uint64_t tcp_stashed(struct lane *lane, const struct fetch *f, bool first) {
  const struct tcp_peer *peer = tcp_peer(lane, f->operation);
  uint64_t sum = 0;
  if (!peer || peer->stashed == 0)
    return 0;
  for (const struct node *n = peer->stash.next; n != &peer->stash;
       n = n->next) {
    const struct stashed *e = CONTAINER(n, struct stashed, node);
    if (tcp_is_of(&e->head, f) && (e->first || !first))
      sum += e->head.length;
  }
  return sum;
}

/* With f, drops all its fragments. Otherwise drops those of the generation, but
 * keeps those that are still being copied into their landing: memory that copies
 * on its own time reads from them until the fetch ends. */
static void leave(struct lane *lane, uint16_t operation, uint32_t generation,
                  const struct fetch *f) {
  struct tcp_peer *peer = tcp_peer(lane, operation);
  struct node *next;
  if (!peer || peer->stashed == 0)
    return;
  for (struct node *n = peer->stash.next; n != &peer->stash; n = next) {
    struct stashed *e = CONTAINER(n, struct stashed, node);
    next = n->next;
    if (f ? tcp_is_of(&e->head, f)
          : !e->walking && e->head.generation == generation)
      stash_free(lane, e);
  }
}

void tcp_stash_drop(struct lane *lane, uint16_t operation,
                    uint32_t generation) {
  leave(lane, operation, generation, NULL);
}

void tcp_stash_forget(struct lane *lane, const struct fetch *f) {
  leave(lane, f->operation, f->generation, f);
}

static void peer_free(struct lane *lane, struct tcp_peer *peer) {
  struct node *next;
  for (struct node *n = peer->stash.next; n != &peer->stash; n = next) {
    next = n->next;
    struct stashed *e = CONTAINER(n, struct stashed, node);
    share_back(lane->options.share, SHARE_POOLED, stash_bytes(&e->head));
    free(e);
  }
  free(peer);
}

void tcp_peers_close(struct lane *lane) {
  for (uint32_t i = 0; i < lane->peer_count; i++)
    if (lane->peers[i])
      peer_free(lane, lane->peers[i]);
  free(lane->peers);
  share_back(lane->options.share, SHARE_POOLED, lane->counted);
}

/* ---- To where they belong -------------------------------------------------- */

/* Is it all there, and its turn? */
static bool ripe(const struct lane *lane, const struct stashed *e,
                 const struct fetch *f) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->stashed == e)
      return false;
  return f->into->memory->direct || e->walking || e->head.at == f->into->done;
}

/* Moves an entry on; it is gone when all of it is where it belongs. The zeros
 * in one that was given up belong nowhere. */
static void unstash(struct lane *lane, struct stashed *e, struct fetch *f) {
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
  stash_free(lane, e);
}

void tcp_unstash(struct lane *lane, struct fetch *f) {
  struct tcp_peer *peer = tcp_peer(lane, f->operation);
  struct node *next;
  if (!peer || peer->stashed == 0)
    return;
  for (struct node *n = peer->stash.next; n != &peer->stash; n = next) {
    struct stashed *e = CONTAINER(n, struct stashed, node);
    next = n->next;
    if (tcp_is_of(&e->head, f) && ripe(lane, e, f))
      unstash(lane, e, f);
    if (lane->status < 0)
      return;
  }
}
