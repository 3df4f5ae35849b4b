/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_send.c - the way out: a stream's send buffer and its socket, the records
 * that stream 0 carries, the peer's credits for them, and what the peer is told
 * of operations that have ended.
 *
 * The first record that is published after a poll is sent at once; further ones
 * wait for the next poll and are sent together. None is sent at once if there
 * was more than one between the last two polls. So a window of calls costs one
 * send for each poll, and a single call waits for nothing. Such a record is sent
 * from where it was written, in front of which its head is put. A record that
 * is followed by a payload is sent together with it.
 *
 * Zero-copy sends (MSG_ZEROCOPY) are not used. Over loopback and veth the
 * kernel copies all the same (bench/zerocopy.lua); nothing was run over a real
 * NIC, where they could pay.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/stamp.h"
#include "tcp.h"

enum { OUT_ROOM = 4096, ZEROS = 4096 };
static const uint8_t zeros[ZEROS];

void tcp_break(struct lane *lane, int status, const char *format, ...) {
  va_list list;
  if (lane->status < 0)
    return;
  lane->status = status;
  lane->head.ending = true;
  va_start(list, format);
  vsnprintf(lane->reason, sizeof lane->reason, format, list);
  va_end(list);
  lane->options.activate(lane->options.session); /* a poll has to see it */
}

/* ---- The send buffer ----------------------------------------------------- */

static void out_compact(struct stream *s) {
  struct bytes *b = &s->out;
  memmove(b->at, b->at + b->first, b->end - b->first);
  s->body_at -= b->first < s->body_at ? b->first : s->body_at;
  b->end -= b->first;
  b->first = 0;
}

static uint8_t *out_room(struct stream *s, uint64_t length) {
  struct bytes *b = &s->out;
  if (b->end + length > b->room && b->first > 0)
    out_compact(s);
  if (b->end + length > b->room) {
    uint64_t wanted = b->room ? 2 * (uint64_t)b->room : OUT_ROOM;
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
static uint8_t *out_room_or_break(struct stream *s, uint64_t length) {
  if (s->lane->status < 0 || s->fd < 0)
    return NULL;
  s->lane->options.activate(s->lane->options.session); /* a poll will send it */
  uint8_t *at = out_room(s, length);
  if (!at && s->out.end + length > TCP_OUT_MOST)
    tcp_break(s->lane, PERIGEE_PEER_LOST,
              "the peer does not take what it is sent");
  else if (!at)
    tcp_break(s->lane, PERIGEE_NO_MEMORY, "no memory for what is to be sent");
  return at;
}

bool tcp_put(struct stream *s, const struct tcp_head *head, const void *body) {
  uint8_t *at = out_room_or_break(s, (uint64_t)TCP_HEAD + head->length);
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
  uint8_t *at = out_room_or_break(s, TCP_HEAD + TCP_TRAILER);
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
  return (s->left == 0 && s->out.first == s->out.end &&
          !(s->sealed && sealed_waiting(s))) ||
         s->held;
}

/* ---- Sending ------------------------------------------------------------- */

static int send_add_vector(struct iovec *v, int n, const uint8_t *at,
                           uint64_t length) {
  if (length > 0)
    v[n++] = (struct iovec){(void *)(uintptr_t)at, length};
  return n;
}

/* Makes vectors of at most limit bytes of the body; returns their number. */
static int send_body_vectors(const struct stream *s, uint64_t limit,
                             struct iovec *v, uint64_t *bytes) {
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

static int send_vectors(const struct stream *s, uint64_t limit,
                        struct iovec *v) {
  const struct bytes *b = &s->out;
  uint64_t body = 0;
  if (s->left == 0)
    return send_add_vector(v, 0, b->at + b->first, b->end - b->first);
  int n = send_add_vector(v, 0, b->at + b->first, s->body_at - b->first);
  n += send_body_vectors(s, limit, v + n, &body);
  if (body == s->left)
    n = send_add_vector(v, n, b->at + s->body_at, b->end - s->body_at);
  return n;
}

static uint64_t out_past_bytes(struct stream *s, uint64_t sent, uint32_t end) {
  uint64_t n = end - s->out.first;
  if (n > sent)
    n = sent;
  s->out.first += (uint32_t)n;
  return sent - n;
}

static void out_empty(struct bytes *b) {
  b->first = b->end = 0;
  if (b->room <= TCP_KEEP)
    return;
  free(b->at);
  *b = (struct bytes){0};
}

static void out_past(struct stream *s, uint64_t sent) {
  s->bytes_sent += sent;
  if (s->left > 0) {
    sent = out_past_bytes(s, sent, s->body_at);
    uint64_t n = sent < s->left ? sent : s->left;
    s->body.done += n;
    s->left -= n;
    sent -= n;
    if (s->left == 0)
      s->exposure = NULL;
  }
  out_past_bytes(s, sent, s->out.end);
  if (s->out.first == s->out.end && s->left == 0)
    out_empty(&s->out);
}

static int64_t stream_send(struct stream *s, uint64_t limit) {
  struct iovec v[TCP_RUNS + 2];
  int n = send_vectors(s, limit, v);
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
    int64_t sent = stream_send(s, limit - done < piece ? limit - done : piece);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      /* Bytes that the peer sent before it went are still to be received. */
      s->ended = true;
      break;
    }
    s->full = sent < 0;
    if (sent <= 0)
      break;
    STAMP(STAMP_WROTE);
    out_past(s, (uint64_t)sent);
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

/* ---- Records ------------------------------------------------------------- */

/* In front of a draft is room for its head, and for what waits to be sent. */
enum { DRAFT_FRONT = 128 };

static uint64_t draft_size(const struct lane *lane) {
  return lane->options.ring / 4;
}

static uint8_t *draft_open(const struct lane *lane) {
  uint8_t *p =
      mmap(NULL, DRAFT_FRONT + draft_size(lane), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p + DRAFT_FRONT;
}

void tcp_drafts_close(struct lane *lane) {
  for (int i = 0; i < RINGS; i++)
    if (lane->out[i].draft)
      munmap(lane->out[i].draft - DRAFT_FRONT, DRAFT_FRONT + draft_size(lane));
}

/* Bounds what waits to be sent, however long the peer's rings are. */
static bool outbox_is_full(const struct lane *lane) {
  const struct bytes *out = &lane->streams[0]->out;
  return out->end - out->first > TCP_WAITING;
}

static bool outbox_has_room(const struct lane *lane, enum ring ring,
                            uint64_t length) {
  const struct outbox_ring *out = &lane->out[ring];
  return lane->stream_count > 0 && !lane->cut && !outbox_is_full(lane) &&
         length <= lane->options.ring / 4 &&
         lane->peer_ring - (out->sent - out->consumed) >= tcp_charge(length);
}

uint8_t *tcp_reserve(struct lane *lane, enum ring ring, uint64_t length) {
  struct outbox_ring *out = &lane->out[ring];
  if (!outbox_has_room(lane, ring, length)) {
    lane->pushing = false; /* that was for a record that comes later */
    return NULL;
  }
  if (!out->draft)
    out->draft = draft_open(lane);
  return out->draft;
}

/* Credit that goes with a record costs no send of its own. */
static void outbox_tell_credit(struct lane *lane) {
  for (int i = 0; i < RINGS; i++) {
    struct inbox *in = &lane->in[i];
    tcp_tell_credit(lane, (uint8_t)i, in->released, &in->told,
                    lane->options.ring / 4);
  }
}

/* Can a record be sent from its draft? */
static bool outbox_is_straight(const struct stream *s) {
  return s->left == 0 && !s->sealed && s->fd >= 0 &&
         s->out.end - s->out.first <= DRAFT_FRONT - TCP_HEAD;
}

/* Keeps bytes that the socket did not take. The next try tells why. */
static __attribute__((noinline)) void
out_keep(struct stream *s, const uint8_t *bytes, uint64_t length) {
  uint8_t *at = out_room_or_break(s, length);
  if (!at)
    return;
  memcpy(at, bytes, length);
  s->out.end += (uint32_t)length;
  tcp_send(s, TCP_TURN);
}

/* Sends a record from its draft, behind what waits. Bytes that the socket does
 * not take wait in its place. */
static void outbox_send_draft(struct stream *s, const struct tcp_head *head,
                              uint8_t *draft) {
  uint32_t waits = s->out.end - s->out.first;
  uint64_t length = waits + TCP_HEAD + head->length;
  s->lane->options.activate(s->lane->options.session);
  uint8_t *at = draft - TCP_HEAD - waits;
  memcpy(draft - TCP_HEAD, head, TCP_HEAD);
  if (waits > 0)
    memcpy(at, s->out.at + s->out.first, waits);
  out_empty(&s->out);
  int64_t sent = send(s->fd, at, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  STAMP(STAMP_WROTE);
  uint64_t done = sent < 0 ? 0 : (uint64_t)sent;
  s->bytes_sent += done;
  s->full = done < length;
  if (s->full)
    out_keep(s, at + done, length - done);
}

void tcp_publish(struct lane *lane, enum ring ring, uint64_t length) {
  struct outbox_ring *out = &lane->out[ring];
  struct stream *s = lane->streams[0];
  struct tcp_head head = {
      .length = (uint32_t)length, .type = TCP_RECORD, .which = (uint8_t)ring};
  outbox_tell_credit(lane);
  if (lane->cut || lane->status < 0)
    return;
  bool at_once = lane->published == 0 && !lane->corked && !lane->pushing;
  bool straight = at_once && outbox_is_straight(s);
  if (!straight && !tcp_put(s, &head, out->draft))
    return;
  lane->published++;
  out->sent += tcp_charge(length);
  tcp_latency_mode(lane, ring, out->draft);
  lane->flush_deferred = lane->pushing;
  lane->pushing = false;
  if (straight)
    outbox_send_draft(s, &head, out->draft);
  else if (at_once)
    tcp_send(s, TCP_TURN);
}

bool tcp_credited(struct lane *lane, uint8_t which, uint64_t at) {
  if (which > WHICH_EAGER)
    return false;
  bool eager = which == WHICH_EAGER;
  uint64_t sent = eager ? lane->eager_sent : lane->out[which].sent;
  uint64_t *known = eager ? &lane->eager_granted : &lane->out[which].consumed;
  if (at > sent || at < *known)
    return false;
  *known = at;
  return true;
}

/* ---- Ends of operations -------------------------------------------------- */

enum { FIRST_GENERATIONS = 64, GENERATIONS_APART = 1 << 30 };

uint32_t *generation_place(struct generations *g, uint32_t number) {
  uint32_t count = g->count ? g->count : FIRST_GENERATIONS;
  while (count <= number)
    count *= 2;
  if (count == g->count)
    return &g->at[number];
  uint32_t *more = realloc(g->at, count * sizeof *more);
  if (!more)
    return NULL;
  memset(more + g->count, 0, (count - g->count) * sizeof *more);
  g->at = more;
  g->count = count;
  return &g->at[number];
}

void tcp_ended(struct lane *lane, uint16_t operation, uint32_t generation) {
  struct tcp_head head = {
      .type = TCP_ENDED, .operation = operation, .generation = generation};
  if (lane->cut || lane->status < 0 || !lane->streams[0])
    return;
  uint32_t *told = generation_place(&lane->told, operation);
  if (!told) {
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what has ended");
    return;
  }
  *told = generation;
  lane->flush_deferred |=
      tcp_idle(lane->streams[0]); /* the next call may follow */
  tcp_put(lane->streams[0], &head, NULL);
}

/* Generations wrap around, and the peer compares with the last that it was told
 * of, so a distant one is told first. */
void tcp_mark(struct lane *lane, uint16_t operation, uint32_t generation) {
  uint32_t told = generation_of(&lane->told, operation);
  if (told != 0 && generation != 0 && generation - told > GENERATIONS_APART)
    tcp_ended(lane, operation, generation - 1);
}

/* ---- Credit for the peer ------------------------------------------------- */

bool tcp_tell_credit(struct lane *lane, uint8_t which, uint64_t at,
                     uint64_t *told, uint64_t share) {
  struct tcp_head head = {.type = TCP_CREDIT, .which = which, .at = at};
  if (at - *told < share || lane->cut || lane->stream_count == 0)
    return false;
  *told = at;
  return tcp_put(lane->streams[0], &head, NULL);
}

/* In front of a record, the head would hide from the peer where the payload
 * behind it begins (tcp_ahead.c). So credit goes behind the next payload, and by
 * itself only from half the window on. */
static void tcp_tell_window(struct lane *lane, uint64_t share) {
  tcp_tell_credit(lane, WHICH_EAGER, lane->eager_done, &lane->eager_told,
                  share);
}

void tcp_eager_done(struct lane *lane, uint64_t bytes) {
  lane->eager_done += bytes;
  tcp_tell_window(lane, TCP_WINDOW / 2);
}

void tcp_tell_behind(struct lane *lane) {
  tcp_tell_window(lane, TCP_WINDOW / 4);
}
