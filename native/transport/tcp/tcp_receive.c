/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_receive.c - the way in: reading from a stream, and the records that came
 * by stream 0. A head of 24 bytes is copied and checked, then its body goes
 * where `sink` says.
 *
 *   sink      event                      becomes
 *   head      a record, frames           record, bytes
 *   head      credit, ended, claim       head       it is handled
 *   head      a fragment                 waiting    no landing is known yet
 *   waiting   its landing is there       fetch
 *   waiting   nobody wants it any more   drop
 *   waiting   patience is over           unexpected
 *   waiting   others see its landing     unexpected
 *   fetch     the landing was given up   drop
 *   unexpected  nobody wants it any more  drop
 *   record, bytes            all came    head
 *   fetch, drop, unexpected  all came    trailer
 *   trailer   it came                    head
 *
 * A fragment goes to its landing, directly or through a bounce block; to the
 * unexpected queue (tcp_fetch.c), if it came before its landing was known; or
 * nowhere. A fetch reads while it waits for more.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/stamp.h"
#include "tcp.h"

/* A head costs about as much as moving a KiB, even if it means nothing; so that
 * many are handled at once. The others wait (tcp_waits). */
enum { HEAD_COSTS = 1 << 10, HEADS_LEAST = 64 };
enum { WORD = 8 };

/* Ends the lane and returns false. */
static bool tcp_protocol_error(struct stream *s, const char *what) {
  tcp_break(s->lane, PERIGEE_PROTOCOL,
            "the peer broke the protocol: %s that no Perigee of this version "
            "sends",
            what);
  return false;
}

/* Sets where the next `rest` bytes go. */
static void tcp_sink(struct stream *s, enum sink sink, uint64_t rest) {
  s->sink = (uint8_t)sink;
  s->rest = rest;
}

/* Counts n of these bytes as received. */
static void tcp_count(struct stream *s, uint64_t n) {
  s->rest -= n;
  if (s->fetch)
    tcp_own(s->fetch)->came += n;
}

/* ---- Records ------------------------------------------------------------- */

/* Records that were not released, with the bytes lost before a wrap, are at
 * most the ring and a quarter of it (the longest record). So there is room
 * for all that the credits allow, and nothing is overwritten that is still
 * in use. */
static bool inbox_prepare(struct lane *lane, struct inbox *in) {
  if (in->bytes)
    return true;
  in->size = (uint32_t)(lane->options.ring + lane->options.ring / 4 + TCP_UNIT);
  in->bytes = malloc(in->size);
  return in->bytes != NULL;
}

/* Returns where a record that arrives is put; NULL: the peer has no credit. */
static uint8_t *inbox_room(struct lane *lane, enum ring ring, uint32_t length) {
  struct inbox *in = &lane->in[ring];
  uint32_t n = tcp_charge(length);
  if (length < RECORD_HEADER || length > lane->options.ring / 4 ||
      in->charged - in->released + n > lane->options.ring ||
      !inbox_prepare(lane, in))
    return NULL;
  if (in->charged ==
      in->released) /* all are released: begin with the same lines again */
    in->write = in->read = in->wrap = 0;
  if (in->write + n > in->size) {
    in->wrap = in->write;
    in->write = 0;
  }
  return in->bytes + in->write;
}

/* The record's first word, which belongs to the transport, is its length. */
static void inbox_record_there(struct lane *lane, enum ring ring,
                               uint32_t length) {
  struct inbox *in = &lane->in[ring];
  uint64_t word = length;
  tcp_latency_mode(lane, ring, in->bytes + in->write);
  memcpy(in->bytes + in->write, &word, WORD);
  in->write += tcp_charge(length);
  in->charged += tcp_charge(length);
}

int tcp_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
             uint64_t *length) {
  struct inbox *in = &lane->in[ring];
  if (in->taken == in->charged)
    return 0;
  if (in->wrap && in->read == in->wrap)
    in->read = in->wrap = 0;
  *bytes = in->bytes + in->read;
  memcpy(length, *bytes, WORD);
  in->read += tcp_charge(*length);
  in->taken += tcp_charge(*length);
  return 1;
}

/* The next record takes the peer's credit along, from a quarter of a ring on
 * (tcp_publish). Here it is told if there was none for too long. */
bool tcp_release(struct lane *lane) {
  bool told = false;
  for (int i = 0; i < RINGS; i++) {
    struct inbox *in = &lane->in[i];
    in->released = in->taken;
    told |= tcp_tell_credit(lane, (uint8_t)i, in->released, &in->told,
                            lane->options.ring / 2);
  }
  return told;
}

/* ---- Where a fragment goes ----------------------------------------------- */

/* The copy in progress belongs to the payload itself. */
static bool fragment_in_turn(const struct lane *lane, const struct fetch *f,
                             const struct tcp_head *h) {
  return f->into->memory->direct ||
         (tcp_fetch_is_next(lane, f, h->at) && !payload_busy(f->into));
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
         !tcp_unexpected_brings(lane, f);
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

/* Reads stream 0; true: until nothing was left. Then all is known that the peer
 * said before it sent by another stream. */
static bool tcp_said_all(struct lane *lane);

/* A long list of ranges costs as much as many heads. */
static void fragment_takes_heads(struct stream *s, const struct fetch *f) {
  uint32_t costs = tcp_own(f)->received.moved / HEAD_COSTS;
  s->heads -= costs < s->heads ? costs : s->heads;
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
  bool takes = lane->status == 0 && tcp_fetch_takes(lane, f, h);
  if (lane->status < 0)
    return false;
  fragment_takes_heads(s, f);
  if (!takes) {
    tcp_sink(s, SINK_DROP, h->length);
    return true;
  }
  s->fetch = f;
  s->walk = *f->into;
  s->walk.done = h->at;
  s->bounced = s->put = 0;
  tcp_sink(s, SINK_FETCH, h->length);
  return true;
}

/* What has the share, and will give it back, may wait for words that stand behind
 * this fragment: of an end, or to a stream that waits to be told that the end is
 * known (tcp_hold). So the fragment does not wait for ever. */
static bool fragment_tires(struct stream *s, struct fetch *f) {
  enum { TIMES = 10 }; /* as long as a silent socket may be waited for */
  const struct lane_options *o = &s->lane->options;
  int64_t now = *o->now;
  if (s->tires_at == 0)
    s->tires_at = now + TIMES * o->patience;
  if (now < s->tires_at)
    return false;
  tcp_fetch_fails(f, PERIGEE_NO_MEMORY);
  tcp_sink(s, SINK_DROP, s->head.length);
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
  if (!(h->which & PART_EAGER)) {
    if (lane->unexpected_late >= TCP_WINDOW)
      return false;
    if (lane->options.share &&
        !share_may(lane->options.share, SHARE_POOLED, h->length))
      return f && lane->options.heals && fragment_tires(s, f);
  }
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

/* Sets the sink of a fragment whose head came; false: the stream has to wait. */
static bool tcp_place(struct stream *s) {
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

/* The fragment's trailer has arrived. */
static void tcp_trailed(struct stream *s) {
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
    tcp_unexpected_free(lane, s->unexpected);
  if (s->head.which & PART_EAGER)
    lane->eager_got -= s->head.length;
}

void tcp_forget_fragment(struct stream *s) {
  fragment_take_back(s);
  s->fetch = NULL;
  s->unexpected = NULL;
  tcp_sink(s, SINK_HEAD, 0);
  s->in_first = s->in_end = 0;
  s->ahead = (struct ahead){0};
}

/* ---- Memory that no CPU can write ---------------------------------------- */

/* Copies bytes into the bounce block, from where memory that no CPU can write
 * takes them. Returns how many bytes of `at` it took. */
static uint64_t tcp_bounced(struct stream *s, const uint8_t *at, uint64_t n) {
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
static bool tcp_settled(struct stream *s) {
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

/* ---- Heads --------------------------------------------------------------- */

static bool head_fragment(struct stream *s) {
  const struct tcp_head *h = &s->head;
  struct lane *lane = s->lane;
  if (h->length == 0 || h->length > TCP_FRAGMENT_MOST ||
      h->which > (PART_MASK | PART_EAGER))
    return tcp_protocol_error(s, "a fragment");
  if (h->which & PART_EAGER)
    lane->eager_got += h->length;
  if (lane->eager_got - lane->eager_done > TCP_WINDOW)
    return tcp_protocol_error(s, "more than the window");
  s->patience = TCP_PATIENCE;
  s->tires_at = 0;
  if (s->number == 0)
    s->brief = h->length > TCP_COPIED && !s->sealed;
  tcp_sink(s, SINK_WAITING, h->length);
  return true;
}

static bool head_record(struct stream *s) {
  s->brief = false;
  s->place = s->head.which < RINGS
                 ? inbox_room(s->lane, s->head.which, s->head.length)
                 : NULL;
  tcp_sink(s, SINK_RECORD, s->head.length);
  return s->place || tcp_protocol_error(s, "a record");
}

/* The session does without this stream. */
static __attribute__((noinline, cold)) bool
stream_not_wanted(struct stream *s) {
  if (s->lane->options.heals) {
    tcp_doom(s);
    return false;
  }
  tcp_detach(s->lane, s->fd);
  s->fd = -1;
  return false;
}

/* Handles a head about another stream. */
static __attribute__((noinline)) bool head_of_streams(struct stream *s) {
  const struct tcp_head *h = &s->head;
  bool fine = h->type == TCP_ASK     ? tcp_asked(s->lane, h)
              : h->type == TCP_TAKEN ? tcp_taken(s->lane, h)
                                     : tcp_lost(s->lane, h);
  return fine || tcp_protocol_error(s, "a word about a stream");
}

/* A stream for payloads first says a word. If anything else arrives, the
 * listener was crowded: it refused the socket by a frame, as that of any
 * unauthenticated peer, and closed it. (A sealed stream takes that for a chunk
 * without end.) */
static __attribute__((noinline)) bool head_begin_other(struct stream *s) {
  const struct tcp_head *h = &s->head;
  if (s->number > 0 && !s->up && (h->type != TCP_WORD || h->length != 0))
    return stream_not_wanted(s);
  s->up = true;
  if (h->type == TCP_FRAGMENT)
    return head_fragment(s);
  if (h->type == TCP_WORD && h->length == 0)
    return true;
  if (s->number > 0)
    return tcp_protocol_error(s, "something");
  if (h->type == TCP_BYTES) {
    tcp_sink(s, SINK_BYTES, h->length);
    return (h->length > 0 && h->length <= TCP_FRAMES) ||
           tcp_protocol_error(s, "a frame");
  }
  if (h->length != 0)
    return tcp_protocol_error(s, "a body");
  if (h->type == TCP_ENDED) {
    tcp_ended_told(s->lane, h);
    return true;
  }
  if (h->type == TCP_CREDIT)
    return tcp_credited(s->lane, h->which, h->at) ||
           tcp_protocol_error(s, "a credit");
  if (h->type >= TCP_ASK && h->type <= TCP_LOST)
    return head_of_streams(s);
  return (h->type == TCP_CLAIM && tcp_claimed(s->lane, h)) ||
         tcp_protocol_error(s, "a head");
}

/* Most heads are those of records. */
static bool head_begin(struct stream *s) {
  if (s->number > 0 || s->head.type != TCP_RECORD)
    return head_begin_other(s);
  s->up = true;
  return head_record(s);
}

/* ---- Bodies -------------------------------------------------------------- */

static uint64_t body_frames(struct stream *s, const uint8_t *at, uint64_t n) {
  struct lane *lane = s->lane;
  if (lane->frames_first == lane->frames_end)
    lane->frames_first = lane->frames_end = 0;
  if (n > TCP_FRAMES - lane->frames_end)
    n = TCP_FRAMES - lane->frames_end;
  memcpy(lane->frames + lane->frames_end, at, n);
  lane->frames_end += (uint32_t)n;
  return n;
}

/* Returns how many of n bytes for the sink it has taken; 0: it has to wait. */
static uint64_t body_sunk(struct stream *s, const uint8_t *at, uint64_t n) {
  switch (s->sink) {
  case SINK_RECORD:
    copy_any(s->place, at, n);
    s->place += n;
    break;
  case SINK_BYTES:
    n = body_frames(s, at, n);
    break;
  case SINK_FETCH:
    if (!s->fetch->into->memory->direct)
      return tcp_bounced(s, at, n);
    payload_put(&s->walk, at, n);
    break;
  case SINK_UNEXPECTED:
    copy_any(s->unexpected->bytes + s->unexpected->got, at, n);
    s->unexpected->got += (uint32_t)n;
    break;
  case SINK_TRAILER:
    memcpy((uint8_t *)&s->trailer + TCP_TRAILER - s->rest, at, n);
    break;
  default:
    break;
  }
  tcp_count(s, s->sink == SINK_TRAILER ? 0 : n);
  if (s->sink == SINK_TRAILER)
    s->rest -= n;
  return n;
}

/* All bytes of a body have arrived. */
static bool body_complete(struct stream *s) {
  if (s->sink == SINK_RECORD)
    inbox_record_there(s->lane, s->head.which, s->head.length);
  if (s->sink == SINK_TRAILER) {
    if (!tcp_settled(s))
      return false;
    tcp_trailed(s);
  } else if (s->sink == SINK_RECORD || s->sink == SINK_BYTES) {
    tcp_sink(s, SINK_HEAD, 0);
  } else if (s->sink != SINK_HEAD) {
    tcp_sink(s, SINK_TRAILER, TCP_TRAILER);
  }
  return true;
}

static bool step_unread(struct stream *s) {
  uint64_t n = tcp_unread(s) < s->rest ? tcp_unread(s) : s->rest;
  n = body_sunk(s, s->in + s->in_first, n);
  s->in_first += (uint32_t)n;
  return n > 0;
}

static __attribute__((noinline)) bool step_ahead(struct stream *s,
                                                 uint64_t there) {
  uint64_t n = there < s->rest ? there : s->rest;
  n = body_sunk(s, s->ahead.block->at + s->ahead.first, n);
  ahead_took(s, n);
  return n > 0;
}

/* Handles the next head or body bytes; false: more bytes are needed, or it has
 * to wait. */
static bool stream_step(struct stream *s) {
  if (s->sink == SINK_HEAD) {
    if (tcp_unread(s) < TCP_HEAD || s->heads == 0)
      return false;
    s->heads--;
    memcpy(&s->head, s->in + s->in_first, TCP_HEAD);
    s->in_first += TCP_HEAD;
    return head_begin(s);
  }
  if (s->sink == SINK_WAITING)
    return tcp_place(s);
  if (s->rest == 0)
    return body_complete(s);
  uint32_t ahead = ahead_bytes(s);
  if (ahead + tcp_unread(s) == 0 || !tcp_settled(s))
    return false;
  return ahead > 0 ? step_ahead(s, ahead) : step_unread(s);
}

/* ---- Reading ------------------------------------------------------------- */

/* Makes vectors of the next bytes of a fetch's landing. */
static __attribute__((noinline)) int
straight_runs(const struct stream *s, uint64_t left, struct iovec *v) {
  struct payload walk = s->walk;
  uint64_t run;
  int n = 0;
  for (; n < TCP_RUNS && left > 0; n++) {
    void *at = payload_run(&walk, &run);
    if (run > left)
      run = left;
    if (run < TCP_SHORT && run < left)
      break;
    v[n] = (struct iovec){at, run};
    walk.done += run;
    left -= run;
  }
  return n;
}

/* Makes vectors that read at most limit bytes straight into their landing. */
static int straight_vectors(const struct stream *s, uint64_t limit,
                            struct iovec *v) {
  uint64_t left = s->rest < limit ? s->rest : limit;
  if (s->sink == SINK_RECORD && left >= TCP_SHORT) {
    v[0] = (struct iovec){s->place, left};
    return 1;
  }
  if (s->sink != SINK_FETCH || !s->fetch->into->memory->direct)
    return 0;
  return straight_runs(s, tcp_piece(s->lane, left), v);
}

static void straight_done(struct stream *s, uint64_t n) {
  if (s->sink == SINK_RECORD)
    s->place += n;
  else
    s->walk.done += n;
  tcp_count(s, n);
}

static int64_t stream_read_sealed(struct stream *s, const struct iovec *v) {
  int64_t got = sealed_read(s, v->iov_base, v->iov_len);
  if (got < 0 && errno == EBADMSG)
    tcp_break(
        s->lane, PERIGEE_PROTOCOL,
        "what came was not sealed by the peer, or was changed on the way");
  return got;
}

static int64_t stream_recv(struct stream *s, struct iovec *v, int n) {
  if (s->sealed)
    return stream_read_sealed(s, v);
  if (n == 1)
    return recv(s->fd, v->iov_base, v->iov_len, MSG_DONTWAIT);
  struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
  return recvmsg(s->fd, &m, MSG_DONTWAIT);
}

/* Reads into those of three vectors that the first `got` bytes left. */
static int64_t fill_behind(struct stream *s, const struct iovec *v,
                           uint64_t got) {
  struct iovec rest[3] = {0};
  int n = 0;
  for (int i = 0; i < 3; i++) {
    uint64_t past = got < v[i].iov_len ? got : v[i].iov_len;
    got -= past;
    if (past < v[i].iov_len)
      rest[n++] =
          (struct iovec){(uint8_t *)v[i].iov_base + past, v[i].iov_len - past};
  }
  return stream_recv(s, rest, n);
}

/* Reads a record and the payload behind it, each to its place. What is longer
 * than a segment comes in two: the second is there at once, mostly. */
static __attribute__((noinline)) int64_t fill_ahead(struct stream *s,
                                                    struct iovec *v) {
  enum { TRIES = 4 };
  uint64_t least = v[0].iov_len + v[1].iov_len + TCP_TRAILER;
  int64_t got = stream_recv(s, v, 3), more = 0;
  if (got <= 0)
    return got;
  for (int i = 0; i < TRIES && (uint64_t)got < least; i++) {
    if ((uint64_t)got <= v[0].iov_len)
      break;
    if ((more = fill_behind(s, v, (uint64_t)got)) <= 0)
      break;
    got += more;
  }
  s->emptied = (uint64_t)got < v[0].iov_len + v[1].iov_len + v[2].iov_len;
  if (!ahead_came(s, (uint64_t)got, v))
    tcp_break(s->lane, PERIGEE_NO_MEMORY, "no memory for what came");
  return got;
}

/* Reads the rest of a body and some of what follows, or what there is. A short
 * fragment is read together with its record and copied to its landing, which
 * costs less than a call of its own. Of a long one little is read but straight
 * into its landing. The fragment before it tells which to expect, until a record
 * comes without one. */
static int64_t stream_fill(struct stream *s, uint64_t limit) {
  struct iovec v[TCP_RUNS + 1];
  if (s->ahead.length > 0 && ahead_vectors(s, v))
    return fill_ahead(s, v);
  int n = tcp_unread(s) == 0 ? straight_vectors(s, limit, v) : 0;
  uint64_t direct = 0;
  for (int i = 0; i < n; i++)
    direct += v[i].iov_len;
  if (tcp_unread(s) > 0)
    memmove(s->in, s->in + s->in_first, tcp_unread(s));
  s->in_end = tcp_unread(s);
  s->in_first = 0;
  bool small = s->brief && (n > 0 || s->sink == SINK_HEAD);
  uint64_t room = (small ? TCP_READ_SMALL : TCP_READ_LARGE) - s->in_end;
  v[n] = (struct iovec){s->in + s->in_end, room};
  int64_t got = stream_recv(s, v, n + 1);
  if (got <= 0)
    return got;
  uint64_t first = (uint64_t)got < direct ? (uint64_t)got : direct;
  if (first > 0)
    straight_done(s, first);
  s->in_end += (uint32_t)((uint64_t)got - first);
  s->emptied = !s->sealed && (uint64_t)got < direct + room;
  return got;
}

static void stream_hung_up(struct stream *s, int64_t got) {
  s->ended = true;
  if (s->number > 0 && (!s->up || s->lane->options.heals)) {
    stream_not_wanted(s);
    return;
  }
  tcp_break(s->lane, PERIGEE_PEER_LOST, "%s%s",
            s->number > 0 ? "a connection for payloads: " : "",
            got == 0 ? "the peer died or cut the connection" : strerror(errno));
}

/* Twice, as a read that found less than there was room for is the last one. */
static bool tcp_said_all(struct lane *lane) {
  struct stream *s = lane->streams[0];
  s->dry = false;
  for (int i = 0; i < 2 && !s->dry; i++)
    tcp_receive(s, TCP_TURN);
  return s->dry;
}

/* If others can see the landing, nothing may be written there once the
 * operation has ended, and ENDED may be unread in stream 0: so that is read
 * first. False: some of it is left, and nothing may be written yet. */
static bool stream_look_ahead(struct stream *s) {
  const struct fetch *f = s->fetch;
  if (s->number == 0 || s->sink != SINK_FETCH || !f->careful)
    return true;
  bool all = tcp_said_all(s->lane);
  if (s->sink == SINK_FETCH && !tcp_live(s->lane, f->operation, f->generation))
    s->sink = SINK_DROP;
  return all || s->sink != SINK_FETCH;
}

uint64_t tcp_receive(struct stream *s, uint64_t limit) {
  uint64_t done = 0;
  if (limit > 0)
    s->emptied = false;
  if (!stream_look_ahead(s))
    return 0;
  s->heads = HEADS_LEAST + (uint32_t)(limit / HEAD_COSTS);
  while (s->lane->status == 0 && s->fd >= 0) {
    while (stream_step(s))
      ;
    if (s->lane->status < 0 || s->fd < 0 || tcp_waits(s) || done >= limit ||
        s->emptied)
      break;
    int64_t got = stream_fill(s, limit - done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      s->readable = false;
      s->dry = true;
      break;
    }
    if (got <= 0) {
      stream_hung_up(s, got);
      break;
    }
    STAMP(STAMP_READ);
    s->readable = true; /* the edge may also have told of the end */
    if (!s->sealed)
      s->bytes_received += (uint64_t)got;
    done += (uint64_t)got;
    if (tcp_overdue(s->lane, (uint64_t)got)) {
      s->lane->may_read = 0;
      break;
    }
  }
  if (s->number > 0)
    s->lane->may_read -= done < s->lane->may_read ? done : s->lane->may_read;
  return done;
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
  if (tcp_peer_fetches(lane, peer, f->part))
    return PERIGEE_PROTOCOL;
  tcp_own(f)->begun = true;
  tcp_own(f)->received.share = lane->options.share;
  tcp_own(f)->unexpected_bytes = tcp_unexpected_bytes(lane, f);
  list_append(&peer->fetches, &tcp_own(f)->node);
  if (s->address == f->total || !tcp_put(lane->streams[0], &claim, NULL))
    return PERIGEE_OK;
  tcp_send(lane->streams[0], TCP_TURN);
  return PERIGEE_OK;
}

/* Payloads of that length come by stream 0 (feed_stream); the other streams are
 * read if there was an edge. */
static bool fetch_may_come_by(const struct fetch *f, const struct stream *s) {
  return s->number == 0 || s->readable || f->total > TCP_MEDIUM;
}

/* Is all of the body there that stream 0 brings? Behind a read that emptied it,
 * another one in the same poll would most likely find nothing. */
static bool stream_is_spent(const struct stream *s) {
  uint64_t body = s->sink == SINK_HEAD ? 0 : s->rest + TCP_TRAILER;
  uint64_t there = s->ahead.end - s->ahead.first + tcp_unread(s);
  return s->number == 0 && s->emptied && there >= body;
}

/* Reads from the streams. The fetches of one poll share what the poll may read;
 * a stream that had nothing more is not read again in that poll. */
static void fetch_pump(struct lane *lane, const struct fetch *f) {
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = tcp_in_turn(lane, i);
    if (!s || s->dry || (lane->armed && !s->readable) ||
        !fetch_may_come_by(f, s))
      continue;
    uint64_t n = tcp_receive(s, stream_is_spent(s) ? 0 : lane->may_read);
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
  fetch_pump(lane, f);
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
