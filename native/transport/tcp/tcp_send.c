/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_send.c - sending on a stream.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/stamp.h"
#include "tcp.h"

enum { FIRST_ROOM = 4096, ZEROS = 4096 };

static const uint8_t zeros[ZEROS];

/* ---- The send buffer ----------------------------------------------------- */

static void compact(struct stream *s) {
  struct bytes *b = &s->out;
  memmove(b->at, b->at + b->first, b->end - b->first);
  s->body_at -= b->first < s->body_at ? b->first : s->body_at;
  b->end -= b->first;
  b->first = 0;
}

static uint8_t *room(struct stream *s, uint64_t length) {
  struct bytes *b = &s->out;
  if (b->end + length > b->room && b->first > 0)
    compact(s);
  if (b->end + length > b->room) {
    uint64_t wanted = b->room ? 2 * (uint64_t)b->room : FIRST_ROOM;
    while (wanted < b->end + length)
      wanted *= 2;
    uint8_t *more = wanted <= TCP_OUT_MOST ? realloc(b->at, wanted) : NULL;
    if (!more)
      return NULL;
    b->at = more;
    b->room = (uint32_t)wanted;
  }
  return b->at + b->end;
}

/* As room(); without memory, the lane is broken. */
static uint8_t *room_or_end(struct stream *s, uint64_t length) {
  if (s->lane->status < 0 || s->fd < 0)
    return NULL;
  s->lane->options.activate(s->lane->options.session); /* a poll will send it */
  uint8_t *at = room(s, length);
  if (!at && s->out.end + length > TCP_OUT_MOST)
    tcp_break(s->lane, PERIGEE_PEER_LOST,
              "the peer does not take what it is sent");
  else if (!at)
    tcp_break(s->lane, PERIGEE_NO_MEMORY, "no memory for what is to be sent");
  return at;
}

bool tcp_put(struct stream *s, const struct tcp_head *head, const void *body) {
  uint8_t *at = room_or_end(s, (uint64_t)TCP_HEAD + head->length);
  if (!at)
    return false;
  memcpy(at, head, TCP_HEAD);
  if (head->length > 0)
    memcpy(at + TCP_HEAD, body, head->length);
  s->out.end += TCP_HEAD + head->length;
  return true;
}

bool tcp_put_fragment(struct stream *s, const struct tcp_head *head,
                      const struct payload *from, struct exposure *exposure) {
  const uint64_t good = TCP_GOOD;
  uint8_t *at = room_or_end(s, TCP_HEAD + TCP_TRAILER);
  if (!at)
    return false;
  memcpy(at, head, TCP_HEAD);
  memcpy(at + TCP_HEAD, &good, TCP_TRAILER);
  s->body_at = s->out.end + TCP_HEAD;
  s->out.end += TCP_HEAD + TCP_TRAILER;
  s->left = head->length;
  s->body = *from;
  s->exposure = exposure;
  return true;
}

/* The fragment goes on as zeros, with the trailer GIVEN_UP. */
void tcp_disown(struct lane *lane, const struct exposure *exposure) {
  const uint64_t given_up = TCP_GIVEN_UP;
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->left == 0 || s->exposure != exposure)
      continue;
    s->exposure = NULL;
    memcpy(s->out.at + s->body_at, &given_up, TCP_TRAILER);
  }
}

bool tcp_idle(const struct stream *s) {
  return s->left == 0 && s->out.first == s->out.end &&
         !(s->sealed && sealed_waiting(s));
}

/* ---- Sending ------------------------------------------------------------- */

static int add(struct iovec *v, int n, const uint8_t *at, uint64_t length) {
  if (length > 0)
    v[n++] = (struct iovec){(void *)(uintptr_t)at, length};
  return n;
}

/* Makes vectors of at most limit bytes of the body; returns their number. */
static int body_vectors(const struct stream *s, uint64_t limit, struct iovec *v,
                        uint64_t *bytes) {
  struct payload walk = s->body;
  int n = 0;
  uint64_t most = s->left < limit ? s->left : limit, run;
  for (*bytes = 0; n < TCP_RUNS && *bytes < most; n++) {
    const uint8_t *at = s->exposure ? payload_run(&walk, &run) : zeros;
    if (!s->exposure)
      run = ZEROS;
    if (run > most - *bytes)
      run = most - *bytes;
    v[n] = (struct iovec){(void *)(uintptr_t)at, run};
    walk.done += run;
    *bytes += run;
  }
  return n;
}

static int vectors(const struct stream *s, uint64_t limit, struct iovec *v) {
  const struct bytes *b = &s->out;
  uint64_t body = 0;
  if (s->left == 0)
    return add(v, 0, b->at + b->first, b->end - b->first);
  int n = add(v, 0, b->at + b->first, s->body_at - b->first);
  n += body_vectors(s, limit, v + n, &body);
  if (body == s->left)
    n = add(v, n, b->at + s->body_at, b->end - s->body_at);
  return n;
}

static uint64_t past_bytes(struct stream *s, uint64_t sent, uint32_t end) {
  uint64_t n = end - s->out.first;
  if (n > sent)
    n = sent;
  s->out.first += (uint32_t)n;
  return sent - n;
}

static void empty(struct bytes *b) {
  b->first = b->end = 0;
  if (b->room <= TCP_KEEP)
    return;
  free(b->at);
  *b = (struct bytes){0};
}

static void past(struct stream *s, uint64_t sent) {
  s->bytes_sent += sent;
  if (s->left > 0) {
    sent = past_bytes(s, sent, s->body_at);
    uint64_t n = sent < s->left ? sent : s->left;
    s->body.done += n;
    s->left -= n;
    sent -= n;
    if (s->left == 0)
      s->exposure = NULL;
  }
  past_bytes(s, sent, s->out.end);
  if (s->out.first == s->out.end && s->left == 0)
    empty(&s->out);
}

static int64_t send_some(struct stream *s, uint64_t limit) {
  struct iovec v[TCP_RUNS + 2];
  int n = vectors(s, limit, v);
  if (s->sealed)
    return n > 0 ? sealed_write(s, v, n) : sealed_flush(s);
  if (n == 1) /* send() costs less than sendmsg() */
    return send(s->fd, v->iov_base, v->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
  struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
  return sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

uint64_t tcp_send(struct stream *s, uint64_t limit) {
  uint64_t done = 0;
  bool payload = s->left > 0;
  uint64_t piece = payload ? tcp_piece(s->lane, limit) : limit;
  while (done < limit && s->fd >= 0 && s->lane->status == 0 && !tcp_idle(s)) {
    int64_t sent = send_some(s, limit - done < piece ? limit - done : piece);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      /* What the peer sent before it went is still to be received. */
      s->ended = true;
      break;
    }
    s->full = sent < 0;
    if (sent <= 0)
      break;
    STAMP(STAMP_WROTE);
    past(s, (uint64_t)sent);
    done += (uint64_t)sent;
    if (payload && tcp_overdue(s->lane, (uint64_t)sent)) {
      s->lane->may_send[0] = s->lane->may_send[1] = 0;
      break;
    }
  }
  uint64_t *may = &s->lane->may_send[s->number > 0];
  if (payload)
    *may -= done < *may ? done : *may;
  return done;
}
