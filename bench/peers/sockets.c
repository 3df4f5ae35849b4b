/* SPDX-License-Identifier: Apache-2.0
 *
 * Bare sockets, without a library. A message is 8 bytes with its length and the
 * payload, which the server sends back when it has all of it, from the memory
 * into which it was received.
 *
 * Version: the kernel's.
 * Mode: words: unix or tcp (TCP_NODELAY); busy.
 * Copies: the kernel, in at the sender and out at the receiver.
 * Sleeping: both, in recv; with `busy` neither (MSG_DONTWAIT again and again).
 * Setting: unix(7), tcp(7); socket buffers as the system has them.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "peer.h"

struct line {
  int fd, flags; /* of recv: MSG_DONTWAIT if it is busy */
  uint64_t lengths[UNDER];
  uint8_t *replies[UNDER];
  struct iovec out[UNDER][2]; /* what is still to be sent, in this order */
  int order[UNDER], first, waiting;
  struct peer_client *client;
};

/* The client's, one for each server. */
struct lines {
  struct line *all;
  int count;
};

static const char *version(void) {
  return "Linux sockets";
}

/* ---- Addresses ---------------------------------------------------------- */

union place {
  struct sockaddr any;
  struct sockaddr_un local;
  struct sockaddr_in tcp;
};

static socklen_t place_of(const struct peer *peer, const char *address,
                          union place *place) {
  memset(place, 0, sizeof *place);
  if (peer_has_word(peer, "tcp")) {
    place->tcp = (struct sockaddr_in){
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(address, NULL, 10)),
        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return sizeof place->tcp;
  }
  place->local.sun_family = AF_UNIX;
  snprintf(place->local.sun_path, sizeof place->local.sun_path, "%s", address);
  return sizeof place->local;
}

static int open_socket(const union place *place) {
  int one = 1, fd = socket(place->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    die("socket");
  if (place->any.sa_family == AF_INET)
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

/* ---- The server --------------------------------------------------------- */

/* Receives all bytes; false at the end of the stream. */
static bool receive(int fd, int flags, void *into, size_t length) {
  for (size_t got = 0; got < length;) {
    ssize_t n = recv(fd, (char *)into + got, length - got, flags);
    if (n > 0)
      got += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
      return false;
  }
  return true;
}

static bool send_all(int fd, const void *from, size_t length) {
  for (size_t sent = 0; sent < length;) {
    ssize_t n =
        send(fd, (const char *)from + sent, length - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR)
      return false;
    sent += n > 0 ? (size_t)n : 0;
  }
  return true;
}

static int accept_one(const struct peer *peer) {
  union place place;
  char path[sizeof place.local.sun_path], port[16];
  snprintf(path, sizeof path, "%.90s/socket", peer->folder);
  bool tcp = peer_has_word(peer, "tcp");
  socklen_t length = place_of(peer, tcp ? "0" : path, &place);
  int listener = open_socket(&place), one = 1;
  if (bind(listener, &place.any, length) || listen(listener, 1) ||
      getsockname(listener, &place.any, &length))
    die("listen");
  if (tcp)
    snprintf(port, sizeof port, "%u", ntohs(place.tcp.sin_port));
  peer_ready(tcp ? port : path);
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0)
    die("accept");
  if (tcp)
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  close(listener);
  return fd;
}

static void serve(const struct peer *peer) {
  int flags = peer_has_word(peer, "busy") ? MSG_DONTWAIT : 0;
  uint8_t *room = memory(peer->size + 8, MAP_PRIVATE);
  int fd = accept_one(peer);
  uint64_t length;
  while (receive(fd, flags, room, 8)) {
    memcpy(&length, room, 8);
    if (length > peer->size || !receive(fd, flags, room + 8, length) ||
        !send_all(fd, room, length + 8))
      break;
  }
}

/* ---- The client --------------------------------------------------------- */

/* Sends what the socket takes now of what waits. */
static void pump(struct line *line) {
  while (line->waiting) {
    struct iovec *out = line->out[line->order[line->first]];
    struct msghdr message = {.msg_iov = out, .msg_iovlen = 2};
    ssize_t n = sendmsg(line->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN)
      return;
    if (n < 0)
      peer_fails("failed", "send: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
      size_t part = (size_t)n < out[i].iov_len ? (size_t)n : out[i].iov_len;
      out[i].iov_base = (char *)out[i].iov_base + part;
      out[i].iov_len -= part;
      n -= (ssize_t)part;
    }
    if (out[1].iov_len)
      continue;
    line->first = (line->first + 1) % UNDER;
    line->waiting--;
  }
}

static void submit(void *context, int slot, size_t length) {
  struct lines *lines = context;
  struct line *line = &lines->all[slot % lines->count];
  line->lengths[slot] = length;
  line->out[slot][0] = (struct iovec){&line->lengths[slot], 8};
  line->out[slot][1] = (struct iovec){line->client->buffers[slot], length};
  line->order[(line->first + line->waiting++) % UNDER] = slot;
  pump(line);
}

/* Waits until there is something to read from that line, and meanwhile sends on
 * what others wait to send. */
static void wait_to_read(struct lines *lines, const struct line *from) {
  for (;;) {
    struct pollfd ready[UNDER];
    bool waiting = false;
    for (int i = 0; i < lines->count; i++) {
      struct line *line = &lines->all[i];
      waiting |= line->waiting != 0;
      ready[i] = (struct pollfd){
          line->fd,
          (short)((line->waiting ? POLLOUT : 0) | (line == from ? POLLIN : 0)),
          0};
    }
    if (!waiting)
      return;
    if (poll(ready, (nfds_t)lines->count, -1) < 0 && errno != EINTR)
      die("poll");
    if (ready[from - lines->all].revents & ~POLLOUT)
      return;
    for (int i = 0; i < lines->count; i++)
      if (ready[i].revents & POLLOUT)
        pump(&lines->all[i]);
  }
}

static void take(struct lines *lines, struct line *line, void *into,
                 size_t length) {
  for (size_t got = 0; got < length;) {
    wait_to_read(lines, line);
    ssize_t n = recv(line->fd, (char *)into + got, length - got, line->flags);
    if (n > 0)
      got += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
      peer_fails("failed", "the server has gone");
  }
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct lines *lines = context;
  int slot = peer_oldest(lines->all->client);
  struct line *line = &lines->all[slot % lines->count];
  take(lines, line, length, 8);
  if (*length <= line->lengths[slot])
    take(lines, line, line->replies[slot], *length);
  *reply = line->replies[slot];
  return slot;
}

static void open_line(struct line *line, const struct peer *peer,
                      const char *address, struct peer_client *client) {
  union place place;
  socklen_t length = place_of(peer, address, &place);
  line->client = client;
  line->flags = peer_has_word(peer, "busy") ? MSG_DONTWAIT : 0;
  line->fd = open_socket(&place);
  if (connect(line->fd, &place.any, length))
    peer_fails("failed", "connect: %s", strerror(errno));
  peer_rooms(peer, line->replies);
}

static void call(const struct peer *peer) {
  static struct peer_client client;
  static struct lines lines;
  lines.count = peer->servers;
  lines.all = memory((size_t)lines.count * sizeof *lines.all, MAP_PRIVATE);
  for (int i = 0; i < lines.count; i++)
    open_line(&lines.all[i], peer, peer->addresses[i], &client);
  client.context = &lines;
  client.submit = submit;
  client.collect = collect;
  peer_rooms(peer, client.buffers);
  peer_bursts(peer, &client);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
