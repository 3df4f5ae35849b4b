/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host/adopted.h"

struct frame_head {
  uint32_t length;
  uint16_t type, zero;
};
_Static_assert(sizeof(struct frame_head) == FRAME_HEAD, "as documented");
_Static_assert(offsetof(struct hello, nonce) == HELLO_VERSIONS,
               "a hello begins as all do");
_Static_assert(sizeof(struct terms) <= FRAME_BODY, "terms fit in a frame");
_Static_assert(sizeof(struct offer) - sizeof(int) * (OFFER_FDS + 2) <=
                   FRAME_BODY,
               "an offer fits in a frame");

/* Lengths of the bodies; those of OFFER, FOUND and EXTRA vary. */
static const uint32_t body_length[FRAME_TYPES] = {
    [FRAME_HELLO] = sizeof(struct hello),
    [FRAME_READY] = sizeof(uint32_t),
    [FRAME_REFUSE] = sizeof(struct refuse),
    [FRAME_LOOKUP] = sizeof(struct lookup),
    [FRAME_LANE] = sizeof(((struct frame *)0)->lane),
    [FRAME_PROOF] = HANDSHAKE_MAC,
    [FRAME_ATTACH] = sizeof(struct attach),
    [FRAME_MOVE] = sizeof(struct move),
    [FRAME_TERMS] = sizeof(struct terms),
    [FRAME_RETRY] = sizeof(struct retry),
};

static bool ends(const char *text, uint32_t room) {
  return memchr(text, 0, room) != NULL;
}

static bool terms_sound(const struct terms *t) {
  if (t->zero != 0 || !ends(t->name, TERMS_NAME))
    return false;
  if (t->transports > TRANSPORTS_MAX)
    return false;
  for (uint32_t i = 0; i < t->transports; i++)
    if (!ends(t->transport[i], TRANSPORT_NAME))
      return false;
  return true;
}

static bool sound(const struct frame *f) {
  switch (f->type) {
  case FRAME_REFUSE:
    return f->refuse.status < 0 && ends(f->refuse.text, REFUSE_TEXT);
  case FRAME_LOOKUP:
    return ends(f->lookup.name, REGION_NAME + 1);
  case FRAME_ATTACH:
    return f->attach.zero == 0;
  case FRAME_MOVE:
    return f->move.zero == 0 && f->move.port <= 65535;
  case FRAME_LANE:
    return f->lane.length <= LANE_FRAME_MAX && f->lane.fds <= 1;
  case FRAME_TERMS:
    return terms_sound(&f->terms);
  default:
    return true;
  }
}

bool wire_foreign(const struct hello *h) {
  return h->version_min > PROTOCOL_MAX || h->version_max < PROTOCOL_MIN;
}

/* The HELLO of another version may have any length and any meaning. */
static bool decode_hello(const uint8_t *body, uint32_t length,
                         struct hello *h) {
  *h = (struct hello){.magic = 0};
  if (length < HELLO_VERSIONS)
    return false;
  memcpy(h, body, HELLO_VERSIONS);
  if (h->magic != HELLO_MAGIC)
    return false;
  if (wire_foreign(h))
    return true;
  if (length != sizeof *h)
    return false;
  memcpy(h, body, length);
  return true;
}

static bool decode_offer(const uint8_t *body, uint32_t length,
                         struct offer *offer) {
  uint32_t prefix[2];
  if (length < sizeof prefix || length - sizeof prefix > OFFER_MAX)
    return false;
  memcpy(prefix, body, sizeof prefix);
  offer->fd_count = prefix[0];
  offer->length = length - (uint32_t)sizeof prefix;
  memcpy(offer->bytes, body + sizeof prefix, offer->length);
  return offer->fd_count <= OFFER_FDS && prefix[1] == 0;
}

/* As it travels, before the bytes. */
struct extra_head {
  uint8_t lane, word;
  uint16_t fds;
  int32_t status;
};

static bool decode_extra(const uint8_t *body, uint32_t length,
                         struct extra *extra) {
  struct extra_head head;
  if (length < sizeof head || length - sizeof head > OFFER_MAX)
    return false;
  memcpy(&head, body, sizeof head);
  bool offer = head.word == EXTRA_WORD_OFFER;
  bool lost = head.word == EXTRA_WORD_LOST;
  extra->lane = head.lane;
  extra->word = head.word;
  extra->status = head.status;
  extra->offer.fd_count = head.fds;
  extra->offer.length = length - (uint32_t)sizeof head;
  memcpy(extra->offer.bytes, body + sizeof head, extra->offer.length);
  return head.lane > 0 && head.word > 0 && head.word < EXTRA_WORDS &&
         head.fds <= (offer ? OFFER_FDS : 0) && lost == (head.status < 0) &&
         head.status <= 0;
}

static uint32_t encode_extra(const struct extra *extra, uint8_t *body) {
  struct extra_head head = {extra->lane, extra->word,
                            (uint16_t)extra->offer.fd_count, extra->status};
  memcpy(body, &head, sizeof head);
  memcpy(body + sizeof head, extra->offer.bytes, extra->offer.length);
  return (uint32_t)sizeof head + extra->offer.length;
}

static bool decode_body(const uint8_t *body, uint32_t length, struct frame *f) {
  if (f->type == FRAME_OFFER)
    return decode_offer(body, length, &f->offer);
  if (f->type == FRAME_FOUND)
    return found_decode(body, length, &f->found);
  if (f->type == FRAME_EXTRA)
    return decode_extra(body, length, &f->extra);
  if (f->type == FRAME_HELLO)
    return decode_hello(body, length, &f->hello);
  if (length != body_length[f->type])
    return false;
  memcpy(&f->hello, body, length);
  return sound(f);
}

int wire_frame(const uint8_t *bytes, uint32_t length, struct frame *f) {
  struct frame_head head;
  if (length < FRAME_HEAD)
    return 0;
  memcpy(&head, bytes, sizeof head);
  if (head.length > FRAME_BODY || head.zero != 0 || head.type == 0 ||
      head.type >= FRAME_TYPES)
    return PERIGEE_PROTOCOL;
  if (length - FRAME_HEAD < head.length)
    return 0;
  f->type = head.type;
  if (!decode_body(bytes + FRAME_HEAD, head.length, f))
    return PERIGEE_PROTOCOL;
  return (int)(FRAME_HEAD + head.length);
}

uint32_t wire_encode(const struct frame *f, uint8_t *bytes) {
  struct frame_head head = {.type = f->type};
  if (f->type == FRAME_OFFER) {
    uint32_t prefix[2] = {f->offer.fd_count, 0};
    head.length = 8 + f->offer.length;
    memcpy(bytes + FRAME_HEAD, prefix, 8);
    memcpy(bytes + FRAME_HEAD + 8, f->offer.bytes, f->offer.length);
  } else if (f->type == FRAME_FOUND) {
    head.length = found_encode(&f->found, bytes + FRAME_HEAD);
  } else if (f->type == FRAME_EXTRA) {
    head.length = encode_extra(&f->extra, bytes + FRAME_HEAD);
  } else {
    head.length = body_length[f->type];
    memcpy(bytes + FRAME_HEAD, &f->hello, head.length);
  }
  memcpy(bytes, &head, sizeof head);
  return FRAME_HEAD + head.length;
}

uint32_t wire_fds(const struct frame *f) {
  if (f->type == FRAME_OFFER)
    return f->offer.fd_count;
  if (f->type == FRAME_EXTRA)
    return f->extra.offer.fd_count;
  if (f->type == FRAME_LANE)
    return f->lane.fds;
  return f->type == FRAME_FOUND ? f->found.fds : 0;
}

/* ---- The socket -------------------------------------------------------- */

/* ETOOMANYREFS: too many descriptors of this user's processes are in
 * transit. */
static int send_failed(void) {
  switch (errno) {
  case EAGAIN:
    return PERIGEE_AGAIN;
  case ETOOMANYREFS:
  case ENOBUFS:
  case ENOMEM:
    return PERIGEE_NO_MEMORY;
  default:
    return PERIGEE_PEER_LOST;
  }
}

int wire_send(int socket, const struct frame *frame, const int *fds,
              uint32_t fd_count) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int) * WIRE_FDS)];
  } control = {0};
  struct iovec v = {bytes, wire_encode(frame, bytes)};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  if (fd_count) {
    m.msg_control = &control;
    m.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * fd_count);
  }
  ssize_t sent;
  do
    sent = sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent < 0)
    return send_failed();
  /* A Unix socket takes a message of this size whole or not at all. */
  return (size_t)sent == v.iov_len ? PERIGEE_OK : PERIGEE_PEER_LOST;
}

/* ---- A socket that takes parts of frames --------------------------------- */

static void out_drop(struct wire *w) {
  free(w->out);
  w->out = NULL;
  w->out_from = w->out_end = 0;
}

int wire_flush(int socket, struct wire *w) {
  w->corked = false;
  while (w->out) {
    ssize_t sent = send(socket, w->out + w->out_from, w->out_end - w->out_from,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0)
      return errno == EAGAIN || errno == EWOULDBLOCK ? PERIGEE_OK
                                                     : PERIGEE_PEER_LOST;
    w->out_from += (uint32_t)sent;
    if (w->out_from == w->out_end)
      out_drop(w);
  }
  return PERIGEE_OK;
}

static int out_append(struct wire *w, const uint8_t *bytes, uint32_t length) {
  if (!w->out && !(w->out = malloc(WIRE_OUT)))
    return PERIGEE_AGAIN;
  if (length > WIRE_OUT - (w->out_end - w->out_from))
    return PERIGEE_AGAIN;
  memmove(w->out, w->out + w->out_from, w->out_end - w->out_from);
  w->out_end -= w->out_from;
  w->out_from = 0;
  memcpy(w->out + w->out_end, bytes, length);
  w->out_end += length;
  return PERIGEE_OK;
}

/* Encodes the frame as it is sent: in the clear, or as a sealed chunk. */
static uint32_t encode(struct wire *w, const struct frame *f,
                       uint8_t bytes[WIRE_ROOM]) {
  if (!w->seal_out)
    return wire_encode(f, bytes);
  uint32_t length = wire_encode(f, bytes + SEAL_HEAD);
  return seal_close(w->seal_out, bytes, bytes + SEAL_HEAD, length);
}

int wire_post(int socket, struct wire *w, const struct frame *frame) {
  uint8_t bytes[WIRE_ROOM];
  uint32_t length = encode(w, frame, bytes);
  ssize_t sent = 0;
  if (!w->out && !w->corked)
    do
      sent = send(socket, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
    return PERIGEE_PEER_LOST;
  uint32_t gone = sent > 0 ? (uint32_t)sent : 0;
  w->sent += length;
  return gone < length ? out_append(w, bytes + gone, length - gone)
                       : PERIGEE_OK;
}

static void keep_sender(struct wire *w, struct cmsghdr *c) {
  struct ucred sender;
  if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS)
    return;
  memcpy(&sender, CMSG_DATA(c), sizeof sender);
  w->sender = sender.pid;
}

static void keep_fds(struct wire *w, struct msghdr *m, bool *excess) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    keep_sender(w, c);
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (w->fd_count < WIRE_FDS) {
        w->fds[w->fd_count++] = fd;
      } else {
        adopted_close(fd);
        *excess = true;
      }
    }
  }
}

int wire_read(int socket, struct wire *w) {
  union adopted_control control;
  struct iovec v = {w->bytes + w->length, sizeof w->bytes - w->length};
  struct msghdr m = {.msg_iov = &v,
                     .msg_iovlen = 1,
                     .msg_control = &control,
                     .msg_controllen = sizeof control};
  ssize_t got;
  do
    got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? PERIGEE_AGAIN
                                                   : PERIGEE_PEER_LOST;
  w->sender = 0;
  bool excess = false;
  keep_fds(w, &m, &excess);
  w->length += (uint32_t)got;
  w->received += (uint64_t)got;
  if (excess)
    return PERIGEE_PROTOCOL;
  /* The control buffer holds all that a message can bring, so it was cut
   * because this process may have no more descriptors. */
  return m.msg_flags & MSG_CTRUNC ? PERIGEE_NO_MEMORY : (int)got;
}

/* A chunk holds exactly one frame. */
static int open_chunk(struct wire *w, struct frame *frame) {
  if (w->length < SEAL_HEAD)
    return 0;
  int length = seal_chunk(w->bytes);
  if (length < 0 || length > WIRE_ROOM)
    return PERIGEE_PROTOCOL;
  if ((uint32_t)length > w->length)
    return 0;
  uint8_t *plain = w->bytes + SEAL_HEAD;
  int got = seal_open(w->seal_in, plain, w->bytes, (uint32_t)length);
  if (got <= 0 || wire_frame(plain, (uint32_t)got, frame) != got)
    return PERIGEE_PROTOCOL;
  return length;
}

int wire_next(struct wire *w, struct frame *frame) {
  int used = w->seal_in ? open_chunk(w, frame)
                        : wire_frame(w->bytes, w->length, frame);
  if (used <= 0)
    return used;
  w->length -= (uint32_t)used;
  memmove(w->bytes, w->bytes + used, w->length);
  return 1;
}

int wire_take_fd(struct wire *w) {
  if (w->fd_count == 0)
    return -1;
  int fd = w->fds[0];
  w->fd_count--;
  memmove(w->fds, w->fds + 1, sizeof(int) * w->fd_count);
  return fd;
}

void wire_close(struct wire *w) {
  int fd;
  while ((fd = wire_take_fd(w)) >= 0)
    adopted_close(fd);
  w->length = 0;
  w->corked = false;
  out_drop(w);
}
