/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_ahead.c - payloads that are read in place. Requests and replies that are
 * alike follow each other. So once the session has asked for a payload that came
 * behind its record (ahead_view), the next read of stream 0 expects the same
 * again, and puts the record into `in` and the payload into a block of its own,
 * by one call. If both are as expected, and whole, the session reads the payload
 * there, and nothing is copied. If only the heads are, the bytes are copied from
 * the block to wherever they belong; else they are put in order into `in`.
 *
 *   block     event                                   becomes
 *   free      a read is expected to fill it           free
 *   free      bytes came there                        of the stream (ahead)
 *   ahead     sinks took all of them                  free
 *   ahead     ahead_view                              lent
 *   lent      ahead_unview                            free
 *   free      trim, if no read used it since a look   gone
 *
 * Nothing that the peer says is trusted: heads are handled as always, a block is
 * filled before anybody sees it, and lent blocks count for the peer's share.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "tcp.h"

/* MISSES: after so many wrong guesses in a row nothing is expected for REST
 * payloads. */
enum { AHEAD_PAGE = 4096, AHEAD_MISSES = 4, AHEAD_REST = 256 };

/* ---- Blocks -------------------------------------------------------------- */

static bool ahead_block_make(struct lane *lane, struct ahead_block *b) {
  b->at = aligned_alloc(AHEAD_PAGE, TCP_AHEAD_MOST);
  if (b->at)
    lane->options.keeps(lane->options.session);
  return b->at != NULL;
}

/* Returns a block that is free, or NULL. */
static struct ahead_block *ahead_block_free(struct lane *lane) {
  for (int i = 0; i < TCP_AHEADS; i++) {
    struct ahead_block *b = &lane->aheads[i];
    if (!b->lent)
      return b->at || ahead_block_make(lane, b) ? b : NULL;
  }
  return NULL;
}

static void ahead_block_back(struct lane *lane, struct ahead_block *b) {
  share_back(lane->options.share, SHARE_POOLED, b->counted);
  b->lent = false;
  b->counted = 0;
}

uint64_t ahead_kept(const struct lane *lane) {
  uint64_t kept = 0;
  for (int i = 0; i < TCP_AHEADS; i++)
    kept += lane->aheads[i].at && !lane->aheads[i].lent ? TCP_AHEAD_MOST : 0;
  const struct stream *s = lane->streams[0];
  return s && s->in_room > TCP_READ_LARGE ? kept + s->in_room - TCP_READ_LARGE
                                          : kept;
}

/* Bytes for which `in` was made longer are handled at once, mostly. Returns
 * whether it is longer still. */
static bool ahead_trim_in(struct stream *s) {
  if (!s || s->in_room <= TCP_READ_LARGE)
    return false;
  if (tcp_unread(s) > TCP_READ_LARGE)
    return true;
  memmove(s->in, s->in + s->in_first, tcp_unread(s));
  s->in_end = tcp_unread(s);
  s->in_first = 0;
  uint8_t *less = realloc(s->in, TCP_READ_LARGE);
  if (less)
    s->in = less;
  s->in_room = less ? TCP_READ_LARGE : s->in_room;
  return !less;
}

bool ahead_trim(struct lane *lane) {
  const struct stream *s = lane->streams[0];
  bool some = false;
  for (int i = 0; i < TCP_AHEADS; i++) {
    struct ahead_block *b = &lane->aheads[i];
    bool ahead = s && s->ahead.block == b && s->ahead.first < s->ahead.end;
    bool busy = b->at && (b->lent || b->used || ahead);
    b->used = false;
    some |= busy;
    if (busy)
      continue;
    free(b->at);
    b->at = NULL;
  }
  return ahead_trim_in(lane->streams[0]) || some;
}

void ahead_close(struct lane *lane) {
  for (int i = 0; i < TCP_AHEADS; i++) {
    ahead_block_back(lane, &lane->aheads[i]);
    free(lane->aheads[i].at);
  }
}

/* ---- Reading ------------------------------------------------------------- */

bool ahead_vectors(struct stream *s, struct iovec *v) {
  struct ahead *a = &s->ahead;
  if (tcp_unread(s) > 0 || s->sink != SINK_HEAD || s->sealed)
    return false;
  struct ahead_block *b = ahead_block_free(s->lane);
  if (!b)
    return false;
  bool brief = a->length > TCP_COPIED;
  uint32_t most = brief ? TCP_READ_SMALL : TCP_READ_LARGE - a->prefix;
  v[0] = (struct iovec){s->in, a->prefix};
  v[1] = (struct iovec){b->at, a->length};
  v[2] = (struct iovec){s->in + a->prefix, most};
  a->block = b;
  a->first = a->end = 0;
  s->in_first = s->in_end = 0;
  return true;
}

/* Does a fragment's head end where the bytes in `in` do that came before those
 * in the block? What is before it is whole. */
static bool ahead_fits(const struct stream *s) {
  struct tcp_head h;
  uint64_t at = 0;
  while (at + TCP_HEAD <= s->ahead.prefix) {
    memcpy(&h, s->in + at, TCP_HEAD);
    at += TCP_HEAD;
    if (h.type == TCP_FRAGMENT)
      return at == s->ahead.prefix && h.length >= s->ahead.end;
    at += h.length;
  }
  return false;
}

/* Puts the bytes of the block between those in `in`. */
static __attribute__((noinline)) bool ahead_merge(struct stream *s) {
  struct ahead *a = &s->ahead;
  uint64_t room = (uint64_t)s->in_end + a->end;
  if (room > s->in_room) {
    uint8_t *more = realloc(s->in, TCP_READ_LARGE + TCP_AHEAD_MOST);
    if (!more)
      return false;
    s->in = more;
    s->in_room = TCP_READ_LARGE + TCP_AHEAD_MOST;
  }
  memmove(s->in + a->prefix + a->end, s->in + a->prefix, s->in_end - a->prefix);
  copy_any(s->in + a->prefix, a->block->at, a->end);
  s->in_end += a->end;
  a->first = a->end = 0;
  return true;
}

/* For AHEAD_REST payloads nothing is expected; then all begins anew. */
static void ahead_pause(struct ahead *a) {
  a->length = 0;
  a->missed = AHEAD_REST;
}

/* Payloads that come in pieces, as over a network, are copied one time more. */
static void ahead_wrong(struct ahead *a) {
  if (++a->missed >= AHEAD_MISSES)
    ahead_pause(a);
}

/* Where several messages lie behind each other, a read of all of them that have
 * come costs less. */
static void ahead_bunched(struct ahead *a, uint64_t behind) {
  if (behind >= TCP_READ_SMALL)
    ahead_pause(a);
}

bool ahead_came(struct stream *s, uint64_t got, const struct iovec *v) {
  struct ahead *a = &s->ahead;
  uint64_t first = got < v[0].iov_len ? got : v[0].iov_len;
  got -= first;
  a->end = (uint32_t)(got < v[1].iov_len ? got : v[1].iov_len);
  s->in_end = (uint32_t)(first + got - a->end);
  a->block->used = true;
  if (a->end > 0 && ahead_fits(s)) {
    struct tcp_head h;
    memcpy(&h, s->in + a->prefix - TCP_HEAD, TCP_HEAD);
    if (h.length == a->end)
      ahead_bunched(a, s->in_end - first);
    return true;
  }
  ahead_wrong(a);
  return a->end == 0 || ahead_merge(s);
}

void ahead_took(struct stream *s, uint64_t n) {
  struct ahead *a = &s->ahead;
  a->first += (uint32_t)n;
  if (a->first < a->end)
    return;
  a->first = a->end = 0;
  ahead_wrong(a); /* copied: another way is as short, or shorter */
}

/* ---- Reading in place ---------------------------------------------------- */

/* Is it the whole payload of that source? */
static bool ahead_is_of(const struct tcp_head *h, const struct source *source,
                        uint16_t operation, uint32_t generation) {
  return h->operation == operation && h->generation == generation &&
         h->which == PART_EAGER && h->at == 0 &&
         source->kind == SOURCE_PUSHED && source->count == 1 &&
         source->block == h->length && source->address == h->length;
}

/* The next ones are expected to be alike: as long, and behind as many bytes of
 * heads and record since the begin of the read. What was wrong once is expected
 * again, as now and then another head comes with a record (credit). */
static void ahead_learn(struct stream *s) {
  uint32_t length = s->head.length;
  uint64_t whole = (uint64_t)length + TCP_TRAILER;
  bool again = s->ahead.length == length && s->ahead.missed == 1;
  if (tcp_unread(s) >= whole + TCP_READ_SMALL)
    ahead_pause(&s->ahead);
  if (s->ahead.missed >= AHEAD_MISSES) {
    if (--s->ahead.missed < AHEAD_MISSES)
      s->ahead.missed = 0;
    return;
  }
  if (again || length < TCP_SHORT || length > TCP_AHEAD_MOST || s->sealed ||
      s->in_first < TCP_HEAD || s->in_first > TCP_READ_SMALL)
    return; /* (less than a head: `in` was shrunk meanwhile) */
  s->ahead.prefix = s->in_first;
  s->ahead.length = length;
}

/* Are the payload and the word behind it there? */
static bool ahead_is_whole(const struct stream *s) {
  uint64_t word;
  if (s->ahead.first > 0 || s->ahead.end != s->head.length ||
      tcp_unread(s) < TCP_TRAILER)
    return false;
  memcpy(&word, s->in + s->in_first, TCP_TRAILER);
  return word == TCP_GOOD;
}

/* The fragment has been taken, as one that a sink took. */
static void ahead_past(struct stream *s) {
  struct ahead *a = &s->ahead;
  s->in_first += TCP_TRAILER;
  a->first = a->end = 0;
  if (a->missed < AHEAD_MISSES)
    a->missed = 0;
  s->sink = SINK_HEAD;
  s->rest = 0;
  tcp_eager_done(s->lane, s->head.length);
  tcp_came(s);
}

const uint8_t *ahead_view(struct lane *lane, const struct source *source,
                          uint16_t operation, uint32_t generation) {
  struct stream *s = lane->streams[0];
  if (!s || s->sink != SINK_WAITING ||
      !ahead_is_of(&s->head, source, operation, generation))
    return NULL;
  struct ahead_block *b = s->ahead.block;
  bool whole = ahead_is_whole(s);
  if (!whole ||
      !share_take(lane->options.share, SHARE_POOLED, TCP_AHEAD_MOST)) {
    ahead_learn(s);
    return NULL;
  }
  b->lent = true;
  b->counted = TCP_AHEAD_MOST;
  ahead_past(s);
  return b->at;
}

void ahead_unview(struct lane *lane, const uint8_t *bytes, uint64_t length) {
  (void)length;
  for (int i = 0; i < TCP_AHEADS; i++)
    if (lane->aheads[i].lent && lane->aheads[i].at == bytes)
      ahead_block_back(lane, &lane->aheads[i]);
}
