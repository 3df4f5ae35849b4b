/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.c - sends frames on a socket, and reads them off it. frames.c has how
 * they are encoded.
 */
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "host/adopted.h"

/* ---- A socket that takes whole frames ------------------------------------ */

/* ETOOMANYREFS: too many descriptors of this user's processes are in
 * transit. */
static int wire_send_failed(void) {
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
    return wire_send_failed();
  /* A Unix socket takes a message of this size whole or not at all. */
  return (size_t)sent == v.iov_len ? PERIGEE_OK : PERIGEE_PEER_LOST;
}

/* ---- A socket that takes parts of frames --------------------------------- */

static void wire_out_drop(struct wire *w) {
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
      wire_out_drop(w);
  }
  return PERIGEE_OK;
}

/* A frame that may have to wait has room before it is sealed and sent: a part of
 * it, or the chunk behind one that was dropped, is no frame for the peer. */
static bool wire_has_room(const struct wire *w) {
  return WIRE_OUT - (w->out_end - w->out_from) >= WIRE_ROOM;
}

/* Without memory the connection is cut, for the same reason. */
static int wire_out_append(int socket, struct wire *w, const uint8_t *bytes,
                           uint32_t length) {
  if (!w->out && !(w->out = malloc(WIRE_OUT))) {
    shutdown(socket, SHUT_RDWR);
    return PERIGEE_PEER_LOST;
  }
  memmove(w->out, w->out + w->out_from, w->out_end - w->out_from);
  w->out_end -= w->out_from;
  w->out_from = 0;
  memcpy(w->out + w->out_end, bytes, length);
  w->out_end += length;
  return PERIGEE_OK;
}

/* Encodes the frame as it is sent: in the clear, or as a sealed chunk. */
static uint32_t wire_encode_sealed(struct wire *w, const struct frame *f,
                                   uint8_t bytes[WIRE_ROOM]) {
  if (!w->seal_out)
    return wire_encode(f, bytes);
  uint32_t length = wire_encode(f, bytes + SEAL_HEAD);
  return seal_close(w->seal_out, bytes, bytes + SEAL_HEAD, length);
}

int wire_post(int socket, struct wire *w, const struct frame *frame) {
  uint8_t bytes[WIRE_ROOM];
  if (!wire_has_room(w))
    return PERIGEE_AGAIN;
  uint32_t length = wire_encode_sealed(w, frame, bytes);
  ssize_t sent = 0;
  if (!w->out && !w->corked)
    do
      sent = send(socket, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
    return PERIGEE_PEER_LOST;
  uint32_t gone = sent > 0 ? (uint32_t)sent : 0;
  w->sent += length;
  return gone < length ? wire_out_append(socket, w, bytes + gone, length - gone)
                       : PERIGEE_OK;
}

/* ---- Reading ------------------------------------------------------------- */

static void wire_keep_sender(struct wire *w, struct cmsghdr *c) {
  struct ucred sender;
  if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS)
    return;
  memcpy(&sender, CMSG_DATA(c), sizeof sender);
  w->sender = sender.pid;
}

static void wire_keep_fds(struct wire *w, struct msghdr *m, bool *excess) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    wire_keep_sender(w, c);
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
  wire_keep_fds(w, &m, &excess);
  w->length += (uint32_t)got;
  w->received += (uint64_t)got;
  if (excess)
    return PERIGEE_PROTOCOL;
  /* The control buffer holds all that a message can bring, so it was cut
   * because this process may have no more descriptors. */
  return m.msg_flags & MSG_CTRUNC ? PERIGEE_NO_MEMORY : (int)got;
}

/* A chunk holds exactly one frame. */
static int wire_open_chunk(struct wire *w, struct frame *frame) {
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
  int used = w->seal_in ? wire_open_chunk(w, frame)
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
  wire_out_drop(w);
}
