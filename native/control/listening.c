/* SPDX-License-Identifier: Apache-2.0 */
#include "control/listening.h"
#include "perigee.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* SENT, CAME: bytes that the kernel keeps of what a connection was sent, or
 * sends; it takes twice that. Requests and answers are small, and what somebody
 * does not read counts for this process. SILENT: seconds for which the kernel
 * keeps a connection to itself that has sent nothing, so that a crowd of them
 * stands before nobody who asks. */
enum { BACKLOG = 4096, SENT = 65536, CAME = 32768, SILENT = 5 };

static int listening_fail(const char *what, char *why, uint64_t capacity) {
  snprintf(why, capacity, "%s", what);
  return PERIGEE_SYSTEM;
}

/* Does the kernel answer newcomers although its queue of half-open connections
 * is full? They are lost otherwise, also those that ask. */
static bool has_cookies(void) {
  char set = '0';
  int file = open("/proc/sys/net/ipv4/tcp_syncookies", O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  bool known = read(file, &set, 1) == 1;
  close(file);
  return known && set != '0';
}

/* Connections that the kernel keeps to itself fill its queue of half-open
 * ones. */
static void keep_silent(int listening) {
  int silent = SILENT;
  if (has_cookies())
    setsockopt(listening, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silent,
               sizeof silent);
}

static int bound(const struct addrinfo *to) {
  int on = 1, off = 0, sent = SENT, came = CAME;
  int made =
      socket(to->ai_family, to->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0)
    return -1;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  /* A server that listens at all addresses of a host leaves none of them, and
   * no client's token, to another user's program. */
  if (to->ai_family == AF_INET6)
    setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  setsockopt(made, SOL_SOCKET, SO_SNDBUF, &sent, sizeof sent);
  setsockopt(made, SOL_SOCKET, SO_RCVBUF, &came, sizeof came);
  keep_silent(made);
  if (bind(made, to->ai_addr, to->ai_addrlen) == 0 &&
      listen(made, BACKLOG) == 0)
    return made;
  int error = errno;
  close(made);
  errno = error;
  return -1;
}

union address {
  struct sockaddr any;
  struct sockaddr_in four;
  struct sockaddr_in6 six;
};

static union address address_of(int descriptor) {
  union address at = {.six = {0}};
  socklen_t length = sizeof at;
  getsockname(descriptor, &at.any, &length);
  return at;
}

static uint16_t port_of(int descriptor) {
  union address at = address_of(descriptor);
  return ntohs(at.any.sa_family == AF_INET6 ? at.six.sin6_port
                                            : at.four.sin_port);
}

void listening_address(int descriptor, char text[64]) {
  union address at = address_of(descriptor);
  text[0] = 0;
  if (at.any.sa_family == AF_INET6)
    inet_ntop(AF_INET6, &at.six.sin6_addr, text, 64);
  else
    inet_ntop(AF_INET, &at.four.sin_addr, text, 64);
}

bool address_is_loopback(struct in_addr four) {
  return ntohl(four.s_addr) >> 24 == 127;
}

bool address_is_loopback6(const struct in6_addr *six) {
  struct in_addr four;
  memcpy(&four, six->s6_addr + 12, sizeof four);
  return IN6_IS_ADDR_LOOPBACK(six) ||
         (IN6_IS_ADDR_V4MAPPED(six) && address_is_loopback(four));
}

bool listening_is_local(int descriptor) {
  union address at = address_of(descriptor);
  return at.any.sa_family == AF_INET6 ? address_is_loopback6(&at.six.sin6_addr)
                                      : address_is_loopback(at.four.sin_addr);
}

int listening_open(const char *host, uint16_t *port, char *why,
                   uint64_t capacity) {
  char service[8];
  struct addrinfo hints = {.ai_family = AF_UNSPEC,
                           .ai_socktype = SOCK_STREAM,
                           .ai_flags = AI_PASSIVE};
  struct addrinfo *found = NULL;
  snprintf(service, sizeof service, "%u", *port);
  int code = getaddrinfo(host, service, &hints, &found);
  if (code != 0)
    return listening_fail(gai_strerror(code), why, capacity);
  int made = bound(found);
  freeaddrinfo(found);
  if (made < 0)
    return listening_fail(strerror(errno), why, capacity);
  *port = port_of(made);
  return made;
}
