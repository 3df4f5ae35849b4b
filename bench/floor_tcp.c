/* SPDX-License-Identifier: Apache-2.0
 *
 * The floors over TCP: two processes, one socket and TCP_NODELAY, without
 * headers or error handling. --how is one of
 *   spin      an echo; both sides look for bytes without sleeping (default)
 *   copy      the same, and both sides copy what they send before they do, as
 *             writer and handler of an inplace call do
 *   epoll     an echo; both sides sleep in epoll_wait before each message
 *   block     an echo over blocking sockets
 *   write     SIZE bytes one way and one back; both look without sleeping
 *   zerocopy  the same sent with MSG_ZEROCOPY; a round ends when the kernel
 *             has given the buffer back, too
 *   wake      an echo by a server that sleeps, when it has been quiet for 300 us
 *   asleep    the same, and the client sleeps, too, until the answer comes
 *   connect   a connection, one byte each way
 * --at ADDRESS is where the server listens (127.0.0.1), with --netns FILE in
 * that network namespace (/run/netns/NAME, /proc/PID/ns/net). --chunk N sends
 * at most N bytes a call. The server answers when all of a message is there.
 */
#include "floor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { QUIET = 300000 };

/* sleeps: waits in epoll_wait; a client that `looks` polls instead. */
struct how {
  const char *name;
  bool sleeps, looks, blocks, pinned, one_way, connects, quiet, copies;
};

static const struct how hows[] = {
    {.name = "spin"},
    {.name = "copy", .copies = true},
    {.name = "epoll", .sleeps = true},
    {.name = "block", .blocks = true},
    {.name = "write", .one_way = true},
    {.name = "zerocopy", .one_way = true, .pinned = true},
    {.name = "wake", .sleeps = true, .looks = true, .quiet = true},
    {.name = "asleep", .sleeps = true, .quiet = true},
    {.name = "connect", .connects = true}};

/* A connection begins with the length of its messages and of their answers.
 * Messages of 0 bytes ask for one answer; answers of 0 bytes then end the
 * server. */
struct order {
  uint64_t size, back;
};

struct tcp {
  const struct options *options;
  const struct how *how;
  struct sockaddr_storage address;
  socklen_t length;
  _Atomic int *port; /* shared: the port on which the server listens */
  uint8_t *buffer;
  uint8_t *lent; /* sent bytes are copied here first; NULL: not copied */
  size_t chunk;
};

struct end {
  const struct tcp *tcp;
  int socket, ear;
  uint32_t lent, returned; /* sends with MSG_ZEROCOPY */
};

static void set(int socket, int level, int option) {
  int one = 1;
  if (setsockopt(socket, level, option, &one, sizeof one))
    die("setsockopt");
}

static struct end end_of(const struct tcp *tcp, int socket, bool server) {
  struct end end = {.tcp = tcp, .socket = socket, .ear = -1};
  struct epoll_event in = {.events = EPOLLIN};
  set(socket, IPPROTO_TCP, TCP_NODELAY);
  if (tcp->how->pinned)
    set(socket, SOL_SOCKET, SO_ZEROCOPY);
  if (tcp->how->sleeps && (server || !tcp->how->looks)) {
    end.ear = epoll_create1(0);
    epoll_ctl(end.ear, EPOLL_CTL_ADD, socket, &in);
  }
  return end;
}

static void end_close(struct end *end) {
  close(end->socket);
  if (end->ear >= 0)
    close(end->ear);
}

/* Receives all bytes; returns false if the peer has closed. */
static bool receive(struct end *end, uint8_t *to, size_t length) {
  const struct how *how = end->tcp->how;
  struct epoll_event event;
  while (length > 0) {
    if (end->ear >= 0)
      epoll_wait(end->ear, &event, 1, -1);
    ssize_t got = recv(end->socket, to, length, how->blocks ? 0 : MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET))
      return false;
    if (got < 0 && errno != EAGAIN && errno != EINTR)
      die("recv");
    if (got > 0)
      to += got, length -= (size_t)got;
  }
  return true;
}

static void transmit(struct end *end, const uint8_t *from, size_t length) {
  const struct how *how = end->tcp->how;
  bool lends = how->pinned && length > 1;
  int flags = (how->blocks ? 0 : MSG_DONTWAIT) | MSG_NOSIGNAL |
              (lends ? MSG_ZEROCOPY : 0);
  while (length > 0) {
    size_t part = length < end->tcp->chunk ? length : end->tcp->chunk;
    ssize_t sent = send(end->socket, from, part, flags);
    if (sent < 0 && errno == EPIPE)
      return;
    if (sent < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
      die("send");
    if (sent > 0) {
      from += sent, length -= (size_t)sent;
      end->lent += lends;
    } else if (end->ear >= 0) {
      poll(&(struct pollfd){end->socket, POLLOUT, 0}, 1, -1);
    }
  }
}

static void send_out(struct end *end, size_t length) {
  const struct tcp *tcp = end->tcp;
  if (tcp->lent)
    memcpy(tcp->lent, tcp->buffer, length);
  transmit(end, tcp->lent ? tcp->lent : tcp->buffer, length);
}

/* Waits until the kernel has given back all buffers. */
static void reap(struct end *end) {
  union {
    struct cmsghdr header;
    char room[256];
  } control;
  while (end->returned != end->lent) {
    struct msghdr message = {.msg_control = &control,
                             .msg_controllen = sizeof control};
    if (recvmsg(end->socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
      continue;
    const struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    const struct sock_extended_err *told = first ? (void *)CMSG_DATA(first) : 0;
    if (told && told->ee_origin == SO_EE_ORIGIN_ZEROCOPY)
      end->returned += told->ee_data - told->ee_info + 1;
  }
}

/* ---- The server ---------------------------------------------------------- */

static void enter(const char *netns) {
  if (!netns)
    return;
  int space = open(netns, O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET))
    die(netns);
  close(space);
}

/* Answers messages until the client closes; returns false if the server is to
 * end. */
static bool serve_one(struct tcp *tcp, int socket) {
  struct end end = end_of(tcp, socket, true);
  struct order order = {0, 0};
  bool open = receive(&end, (uint8_t *)&order, sizeof order);
  while (open && order.back > 0 && receive(&end, tcp->buffer, order.size)) {
    send_out(&end, order.back);
    open = order.size > 0;
  }
  end_close(&end);
  return order.back > 0;
}

static int listening(struct tcp *tcp) {
  int listener = socket(tcp->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 ||
      bind(listener, (struct sockaddr *)&tcp->address, tcp->length) ||
      listen(listener, 16) ||
      getsockname(listener, (struct sockaddr *)&tcp->address, &tcp->length))
    die("listen");
  return listener;
}

static void serve(void *context) {
  struct tcp *tcp = context;
  enter(tcp->options->netns);
  int listener = listening(tcp);
  /* IPv6 has its port at the same place */
  struct sockaddr_in *bound = (void *)&tcp->address;
  atomic_store(tcp->port, bound->sin_port);
  while (serve_one(tcp, accept4(listener, NULL, NULL, SOCK_CLOEXEC)))
    ;
}

/* ---- The client ---------------------------------------------------------- */

static struct end call(const struct tcp *tcp, uint64_t size, uint64_t back) {
  struct order order = {size, back};
  int fd = socket(tcp->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, (const struct sockaddr *)&tcp->address, tcp->length))
    die("connect");
  struct end end = end_of(tcp, fd, false);
  transmit(&end, (uint8_t *)&order, sizeof order);
  return end;
}

static int64_t round_one(struct end *end, size_t size, uint64_t round) {
  const struct tcp *tcp = end->tcp;
  size_t back = tcp->how->one_way ? 1 : size;
  uint8_t *landing = tcp->lent ? tcp->lent : tcp->buffer;
  if (tcp->how->quiet)
    nanosleep(&(struct timespec){0, QUIET}, NULL);
  stamp(tcp->buffer, size, round);
  int64_t begin = now();
  send_out(end, size);
  bool there = receive(end, landing, back);
  reap(end);
  int64_t ns = now() - begin;
  if (!there || (back == size && check(landing, size, round)))
    wrong_bytes();
  return ns;
}

/* Avoids TIME_WAIT, which would use up all ports in a long run. */
static int64_t connect_one(struct tcp *tcp) {
  struct linger at_once = {1, 0};
  uint8_t byte;
  int64_t begin = now();
  struct end end = call(tcp, 0, 1);
  bool there = receive(&end, &byte, 1);
  int64_t ns = now() - begin;
  if (!there)
    wrong_bytes();
  setsockopt(end.socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  end_close(&end);
  return ns;
}

static void measure(struct tcp *tcp, const char *text,
                    struct samples *samples) {
  size_t size = strtoull(text, NULL, 10);
  uint64_t round = 1;
  struct end end = {.tcp = tcp, .socket = -1, .ear = -1};
  if (!tcp->how->connects)
    end = call(tcp, size, tcp->how->one_way ? 1 : size);
  int64_t begin = now(), span = (int64_t)(tcp->options->seconds * 1e9), ns;
  int64_t first = begin + span / 8, last = begin + span / 8 + span;
  do {
    ns = tcp->how->connects ? connect_one(tcp) : round_one(&end, size, round++);
    if (now() >= first)
      samples->ns[samples->count++] = (double)ns;
  } while (samples->count < 3 || (now() < last && samples->count < SAMPLES));
  end_close(&end);
  report(tcp->options, tcp->how->name, text, samples);
}

static const struct how *how_of(const struct options *options,
                                const char *program) {
  for (size_t i = 0; i < sizeof hows / sizeof *hows; i++)
    if (!strcmp(hows[i].name, options->how ? options->how : "spin"))
      return &hows[i];
  usage(program);
  return NULL;
}

static void resolve(struct tcp *tcp, const char *at) {
  struct addrinfo *found,
      hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
  if (getaddrinfo(at ? at : "127.0.0.1", "0", &hints, &found))
    die("--at");
  tcp->length = found->ai_addrlen;
  memcpy(&tcp->address, found->ai_addr, tcp->length);
  freeaddrinfo(found);
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  struct tcp tcp = {.options = &options, .how = how_of(&options, argv[0])};
  tcp.chunk = options.chunk > 0 ? (size_t)options.chunk : SIZE_MAX;
  resolve(&tcp, options.at);
  pin(options.pins[0]);
  tcp.port = memory(sizeof *tcp.port, MAP_SHARED);
  tcp.buffer = memory(largest(argc, argv), MAP_PRIVATE);
  if (tcp.how->copies)
    tcp.lent = memory(largest(argc, argv), MAP_PRIVATE);
  struct samples samples = samples_new();
  start(&options, serve, &tcp);
  struct sockaddr_in *peer = (void *)&tcp.address;
  while (!(peer->sin_port = (in_port_t)atomic_load(tcp.port)))
    sched_yield();
  for (int i = optind; i < argc; i++)
    measure(&tcp, argv[i], &samples);
  ending();
  struct end last = call(&tcp, 0, 0);
  end_close(&last);
  return wait(NULL) < 0;
}
