/* SPDX-License-Identifier: Apache-2.0 */
#include "control/listening.h"
#include "perigee.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 4096 };

static int fail(const char *what, char *why, uint64_t capacity) {
  snprintf(why, capacity, "%s", what);
  return PERIGEE_SYSTEM;
}

static int bound(const struct addrinfo *to) {
  int on = 1;
  int made =
      socket(to->ai_family, to->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0)
    return -1;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(made, to->ai_addr, to->ai_addrlen) == 0 &&
      listen(made, BACKLOG) == 0)
    return made;
  int error = errno;
  close(made);
  errno = error;
  return -1;
}

static uint16_t port_of(int descriptor) {
  union {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
  } at = {.six = {0}};
  socklen_t length = sizeof at;
  if (getsockname(descriptor, &at.any, &length) != 0)
    return 0;
  return ntohs(at.any.sa_family == AF_INET6 ? at.six.sin6_port
                                            : at.four.sin_port);
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
    return fail(gai_strerror(code), why, capacity);
  int made = bound(found);
  freeaddrinfo(found);
  if (made < 0)
    return fail(strerror(errno), why, capacity);
  *port = port_of(made);
  return made;
}
