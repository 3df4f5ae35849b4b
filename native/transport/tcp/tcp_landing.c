/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_landing.c - where a fragment goes: to its landing, directly or through a
 * bounce block; to the unexpected queue; or nowhere.
 */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

/* Memory that copies asynchronously is filled in order only. Nothing goes behind
 * a fragment whose word is still to come: if its stream is lost, it begins
 * anew. */
bool tcp_is_next(const struct lane *lane, const struct fetch *f, uint64_t at) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->fetch == f)
      return false;
  return at == f->into->done;
}

/* The copy in progress belongs to the payload itself. */
static bool in_turn(const struct lane *lane, const struct fetch *f,
                    const struct tcp_head *h) {
  return f->into->memory->direct ||
         (tcp_is_next(lane, f, h->at) && !payload_busy(f->into));
}

/* Does the fragment wait for bytes that neither a stream nor the queue can
 * bring? A peer that sends in order does not cause that. */
static bool is_stuck(struct stream *s) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  struct fetch *f = s->sink == SINK_WAITING ? tcp_fetch_of(lane, h) : NULL;
  return f && !in_turn(lane, f, h) && !payload_busy(f->into) &&
         tcp_own(f)->status == 0 &&
         tcp_live(lane, h->operation, h->generation) &&
         tcp_unexpected_bytes(lane, f, false) == 0;
}

static bool all_stuck(const struct lane *lane) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->fd >= 0 &&
        !is_stuck(lane->streams[i]))
      return false;
  return true;
}

/* What the fragment lacks may come again by stream 0, which so may not stop for
 * it. No window bounds what is queued then, but the peer's share does, and the
 * number for one operation: beyond that the operation ends. */
static bool out_of_turn(struct stream *s, struct fetch *f) {
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

static bool has_to_wait(struct stream *s, struct fetch *f) {
  if (s->lane->options.heals)
    return s->number == 0 && out_of_turn(s, f);
  return all_stuck(s->lane) && tcp_protocol_error(s, "a fragment");
}

static bool lands(struct stream *s, struct fetch *f) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  if (!in_turn(lane, f, h))
    return has_to_wait(s, f);
  /* Others can see the landing: is the operation's end known (look_ahead)? */
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
static bool is_unexpected(struct stream *s, struct fetch *f) {
  struct lane *lane = s->lane;
  const struct tcp_head *h = &s->head;
  if (f && lane->options.heals && !f->into->memory->direct &&
      !in_turn(lane, f, h))
    return out_of_turn(s, f);
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
    return lands(s, f);
  if ((!f && !(h->which & PART_EAGER)) ||
      !tcp_live(lane, h->operation, h->generation)) {
    tcp_sink(s, SINK_DROP, h->length);
    return true;
  }
  if (!f && s->patience > 0 && !lane->armed)
    return false;
  return is_unexpected(s, f);
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
