/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_fetch.c - payloads at their receiver, and the stash of what came before
 * its landing was known.
 */
#include <stdlib.h>

#include "transport/tcp.h"

enum { SOURCE_PUSHED = 1 };

/* ---- The stash ----------------------------------------------------------- */

static void stash_free(struct lane *lane, struct stashed *e) {
  lane->stash_count--;
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

struct stashed *tcp_stash(struct lane *lane, const struct tcp_head *head) {
  struct stashed *e = malloc(sizeof *e + head->length);
  if (!e)
    return NULL;
  *e = (struct stashed){.head = *head};
  list_append(&lane->stash, &e->node);
  lane->stash_count++;
  if (!(head->which & PART_EAGER))
    lane->stash_late += head->length;
  return e;
}

static bool is_of(const struct tcp_head *h, uint16_t operation,
                  uint32_t generation) {
  return h->operation == operation && h->generation == generation;
}

static bool is_of_fetch(const struct tcp_head *h, const struct fetch *f) {
  return is_of(h, f->operation, f->generation) &&
         (h->which & PART_MASK) == f->part;
}

uint64_t tcp_stashed(struct lane *lane, const struct fetch *f, bool first) {
  const struct node *n;
  uint64_t sum = 0;
  for (n = lane->stash.next; n != &lane->stash; n = n->next) {
    const struct stashed *e = CONTAINER(n, struct stashed, node);
    if (is_of_fetch(&e->head, f) && (e->first || !first))
      sum += e->head.length;
  }
  return sum;
}

/* One on its way into its landing stays until the fetch ends: memory that copies
 * on its own time reads from it. */
void tcp_stash_drop(struct lane *lane, int operation, uint32_t generation) {
  struct node *next;
  for (struct node *n = lane->stash.next; n != &lane->stash; n = next) {
    struct stashed *e = CONTAINER(n, struct stashed, node);
    next = n->next;
    if (operation < 0 ||
        (!e->walking && is_of(&e->head, (uint16_t)operation, generation)))
      stash_free(lane, e);
  }
}

/* Is it all there, and its turn? */
static bool ripe(const struct lane *lane, const struct stashed *e,
                 const struct fetch *f) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->stashed == e)
      return false;
  return f->into->memory->direct || e->walking || e->head.at == f->into->done;
}

static bool fits(const struct stashed *e, const struct fetch *f) {
  return e->head.at <= f->total && e->head.length <= f->total - e->head.at &&
         f->bounced <= f->total && e->head.length <= f->total - f->bounced;
}

/* Moves an entry on; it is gone when all of it is where it belongs. The zeros
 * in one that was given up belong nowhere. */
static void unstash(struct lane *lane, struct stashed *e, struct fetch *f) {
  struct payload *into = f->into;
  if (!e->walking && !fits(e, f)) {
    tcp_break(lane, PERIGEE_PROTOCOL, "the peer sent more than it announced");
    return;
  }
  if (into->memory->direct) {
    e->walk = *into;
    e->walk.done = e->head.at;
    into = &e->walk;
  }
  if (!e->walking)
    f->bounced += e->head.length;
  e->walking = true;
  int64_t n =
      e->good ? payload_put(into, e->bytes + e->put, e->got - e->put) : e->got;
  if (n < 0)
    f->job.status = (int)n;
  e->put += n > 0 ? (uint32_t)n : 0;
  if (n >= 0 && e->put < e->got)
    return;
  tcp_fetch_got(f, e->head.length, e->good);
  stash_free(lane, e);
}

static void unstash_all(struct lane *lane, struct fetch *f) {
  struct node *next;
  for (struct node *n = lane->stash.next; n != &lane->stash; n = next) {
    struct stashed *e = CONTAINER(n, struct stashed, node);
    next = n->next;
    if (is_of_fetch(&e->head, f) && ripe(lane, e, f))
      unstash(lane, e, f);
    if (lane->status < 0)
      return;
  }
}

/* ---- Fetching ------------------------------------------------------------ */

struct fetch *tcp_fetch_of(struct lane *lane, const struct tcp_head *h) {
  for (struct node *n = lane->fetches.next; n != &lane->fetches; n = n->next) {
    struct fetch *f = CONTAINER(n, struct fetch, node);
    if (is_of_fetch(h, f))
      return f;
  }
  return NULL;
}

void tcp_fetch_got(struct fetch *f, uint32_t length, bool good) {
  if (good)
    f->done += length;
  else if (f->job.status == 0)
    f->job.status = PERIGEE_CANCELLED; /* its owner has given it up */
  if (f->done > f->total)
    f->job.status = PERIGEE_PROTOCOL; /* some of it came twice at once */
}

static int begin(struct lane *lane, struct fetch *f) {
  const struct source *s = &f->source;
  struct tcp_head claim = {.type = TCP_CLAIM,
                           .which = f->part,
                           .operation = f->operation,
                           .generation = f->generation};
  if (s->kind != SOURCE_PUSHED || s->count != 1 || s->block != f->total ||
      s->address > f->total || f->part > PART_MASK)
    return PERIGEE_PROTOCOL;
  f->asked = 1;
  f->stashed = tcp_stashed(lane, f, true);
  list_append(&lane->fetches, &f->node);
  if (s->address == f->total || !tcp_put(lane->streams[0], &claim, NULL))
    return PERIGEE_OK;
  tcp_send(lane->streams[0], TCP_TURN);
  return PERIGEE_OK;
}

/* All fetches of a poll share what it may read; and where there was nothing
 * more, none asks again in that poll. */
static void pump(struct lane *lane) {
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->dry || (lane->armed && !s->readable))
      continue;
    uint64_t n = tcp_receive(s, lane->may_read);
    if (i == 0)
      lane->may_read -= n < lane->may_read ? n : lane->may_read;
  }
}

int64_t tcp_fetch(struct lane *lane, struct fetch *f) {
  int status = lane->cut ? PERIGEE_PEER_LOST : PERIGEE_OK;
  if (status == PERIGEE_OK && !f->asked)
    status = begin(lane, f);
  if (status < 0)
    return status;
  pump(lane);
  if (!list_empty(&lane->stash) &&
      (!f->careful || tcp_live(lane, f->operation, f->generation)))
    unstash_all(lane, f);
  if (f->job.status < 0)
    return f->job.status;
  int64_t moved = (int64_t)(f->bounced - f->put);
  f->put = f->bounced;
  return moved;
}

bool tcp_fetch_end(struct lane *lane, struct fetch *f) {
  list_remove(&f->node);
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->fetch != f)
      continue;
#ifndef PERIGEE_PLANTED_BUG
    s->fetch = NULL;
    s->put = s->bounced;
    if (s->sink == SINK_FETCH)
      s->sink = SINK_DROP;
#endif
  }
  struct node *next;
  for (struct node *n = lane->stash.next; n != &lane->stash; n = next) {
    struct stashed *e = CONTAINER(n, struct stashed, node);
    next = n->next;
    if (is_of_fetch(&e->head, f))
      stash_free(lane, e);
  }
  return payload_quiet(f->into);
}
