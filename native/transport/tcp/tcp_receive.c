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
 * Fragments are the matter of tcp_fetch.c, which reads on from here while it
 * waits for more.
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

bool tcp_protocol_error(struct stream *s, const char *what) {
  tcp_break(s->lane, PERIGEE_PROTOCOL,
            "the peer broke the protocol: %s that no Perigee of this version "
            "sends",
            what);
  return false;
}

void tcp_sink(struct stream *s, enum sink sink, uint64_t rest) {
  s->sink = (uint8_t)sink;
  s->rest = rest;
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

static bool credit_tell_peer(struct lane *lane, uint8_t which, uint64_t at,
                             uint64_t *told, uint64_t share) {
  struct tcp_head head = {.type = TCP_CREDIT, .which = which, .at = at};
  if (at - *told < share || lane->cut || lane->stream_count == 0)
    return false;
  *told = at;
  return tcp_put(lane->streams[0], &head, NULL);
}

bool tcp_release(struct lane *lane) {
  bool told = false;
  for (int i = 0; i < RINGS; i++) {
    struct inbox *in = &lane->in[i];
    in->released = in->taken;
    told |= credit_tell_peer(lane, (uint8_t)i, in->released, &in->told,
                             lane->options.ring / 4);
  }
  return told;
}

void tcp_eager_done(struct lane *lane, uint64_t bytes) {
  lane->eager_done += bytes;
  credit_tell_peer(lane, WHICH_EAGER, lane->eager_done, &lane->eager_told,
                   TCP_WINDOW / 4);
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
  tcp_sink(s, SINK_WAITING, h->length);
  return true;
}

static bool head_record(struct stream *s) {
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

void tcp_count(struct stream *s, uint64_t n) {
  s->rest -= n;
  if (s->fetch)
    tcp_own(s->fetch)->came += n;
}

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
    memcpy(s->place, at, n);
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
    memcpy(s->unexpected->bytes + s->unexpected->got, at, n);
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
  if (tcp_unread(s) == 0 || !tcp_settled(s))
    return false;
  uint64_t n = tcp_unread(s) < s->rest ? tcp_unread(s) : s->rest;
  n = body_sunk(s, s->in + s->in_first, n);
  s->in_first += (uint32_t)n;
  return n > 0;
}

/* ---- Reading ------------------------------------------------------------- */

/* Makes vectors that read at most limit bytes straight into their landing. */
static int straight_vectors(const struct stream *s, uint64_t limit,
                            struct iovec *v) {
  struct payload walk = s->walk;
  uint64_t left = s->rest < limit ? s->rest : limit, run;
  int n = 0;
  if (s->sink == SINK_RECORD && left >= TCP_SHORT) {
    v[0] = (struct iovec){s->place, left};
    return 1;
  }
  if (s->sink != SINK_FETCH || !s->fetch->into->memory->direct)
    return 0;
  left = tcp_piece(s->lane, left);
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

/* Reads the rest of a body and a little of what follows, or all there is. */
static int64_t stream_fill(struct stream *s, uint64_t limit, bool *all) {
  struct iovec v[TCP_RUNS + 1];
  int n = tcp_unread(s) == 0 ? straight_vectors(s, limit, v) : 0;
  uint64_t direct = 0;
  for (int i = 0; i < n; i++)
    direct += v[i].iov_len;
  if (tcp_unread(s) > 0)
    memmove(s->in, s->in + s->in_first, tcp_unread(s));
  s->in_end = tcp_unread(s);
  s->in_first = 0;
  bool small = n > 0 || (s->number > 0 && s->sink == SINK_HEAD);
  uint64_t room =
      (small && s->number > 0 ? TCP_READ_SMALL : TCP_READ_LARGE) - s->in_end;
  v[n] = (struct iovec){s->in + s->in_end, room};
  int64_t got = stream_recv(s, v, n + 1);
  if (got <= 0)
    return got;
  uint64_t first = (uint64_t)got < direct ? (uint64_t)got : direct;
  if (first > 0)
    straight_done(s, first);
  s->in_end += (uint32_t)((uint64_t)got - first);
  *all = !s->sealed && (uint64_t)got < direct + room;
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
bool tcp_said_all(struct lane *lane) {
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
  bool all = false;
  if (!stream_look_ahead(s))
    return 0;
  s->heads = HEADS_LEAST + (uint32_t)(limit / HEAD_COSTS);
  while (s->lane->status == 0 && s->fd >= 0) {
    while (stream_step(s))
      ;
    if (s->lane->status < 0 || s->fd < 0 || tcp_waits(s) || done >= limit ||
        all)
      break;
    int64_t got = stream_fill(s, limit - done, &all);
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
