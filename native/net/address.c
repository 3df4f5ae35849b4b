/* SPDX-License-Identifier: Apache-2.0
 *
 * address.c - parsing addresses, as texts and as the system takes them, and
 * sockets for them; and recognising addresses of this host. For that the kernel
 * is asked for its route: a connection with an address that leads back to this
 * host was made on this host, whatever the peer says. So every local address
 * counts, also a second one of a device; addresses of other hosts do not.
 */
#include "address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "perigee.h"

static const char tcp_prefix[] = "tcp://", unix_prefix[] = "unix:";

static int address_wrong(char reason[ADDRESS_REASON], int status,
                         const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int address_wrong(char reason[ADDRESS_REASON], int status,
                         const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(reason, ADDRESS_REASON, format, list);
  va_end(list);
  return status;
}

/* ---- unix: --------------------------------------------------------------- */

static int address_parse_unix(const char *path, struct address *out,
                              char *reason) {
  size_t length = strlen(path);
  if (length == 0 || strcmp(path, "@") == 0)
    return address_wrong(reason, PERIGEE_INVALID, "the socket path is empty");
  if (length > PERIGEE_ADDRESS_MAX)
    return address_wrong(
        reason, PERIGEE_TOO_LARGE,
        "the socket path \"%.200s\" has %zu bytes, the system allows "
        "%d; use a shorter folder",
        path, length, PERIGEE_ADDRESS_MAX);
  out->at.un.sun_family = AF_UNIX;
  memcpy(out->at.un.sun_path, path, length);
  out->length = sizeof out->at.un;
  if (*path != '@')
    return PERIGEE_OK;
  out->at.un.sun_path[0] = 0;
  out->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
  return PERIGEE_OK;
}

/* ---- tcp:// -------------------------------------------------------------- */

/* Returns the number of an interface, from its name or that number; 0: it is
 * neither. */
static uint32_t address_interface(const char *text) {
  uint32_t number = if_nametoindex(text);
  if (number || !isdigit((unsigned char)*text))
    return number;
  char *end;
  unsigned long long value = strtoull(text, &end, 10);
  return *end || value > UINT32_MAX ? 0 : (uint32_t)value;
}

/* "fe80::1%eth0": behind the sign stands an interface of this host. */
static bool address_numeric_v6(const char *host, struct sockaddr_in6 *in6) {
  char bare[INET6_ADDRSTRLEN];
  const char *scope = strchr(host, '%');
  size_t length = scope ? (size_t)(scope - host) : strlen(host);
  if (length >= sizeof bare)
    return false;
  memcpy(bare, host, length);
  bare[length] = 0;
  in6->sin6_family = AF_INET6;
  if (scope && !(in6->sin6_scope_id = address_interface(scope + 1)))
    return false;
  return inet_pton(AF_INET6, bare, &in6->sin6_addr) == 1;
}

static bool address_is_name(const char *host) {
  for (; *host; host++)
    if (!isalnum((unsigned char)*host) && !strchr("-._", *host))
      return false;
  return true;
}

static bool address_read_port(const char *text, uint16_t *port) {
  uint32_t value = 0;
  const char *p = text;
  for (; isdigit((unsigned char)*p) && p - text < 5; p++)
    value = value * 10 + (uint32_t)(*p - '0');
  *port = (uint16_t)value;
  return p != text && !*p && value <= 65535;
}

/* Finds the host and where its port begins; NULL and the reason if it
 * cannot. */
static const char *address_split(const char *text, const char **host,
                                 size_t *length, bool *brackets, char *reason) {
  const char *rest = text + sizeof tcp_prefix - 1;
  *brackets = *rest == '[';
  *host = rest + *brackets;
  const char *end = *brackets ? strchr(rest, ']') : strrchr(rest, ':');
  const char *colon = *brackets && end ? end + 1 : end;
  if (!end || *colon != ':') {
    address_wrong(reason, 0,
                  "\"%.200s\" has no port: use tcp://HOST:PORT, like "
                  "tcp://10.0.0.1:7471 or tcp://[::1]:7471",
                  text);
    return NULL;
  }
  *length = (size_t)(end - *host);
  if (!*brackets && memchr(*host, ':', *length)) {
    address_wrong(reason, 0,
                  "\"%.200s\": an IPv6 address goes in brackets, like "
                  "tcp://[::1]:7471",
                  text);
    return NULL;
  }
  return colon + 1;
}

static int address_parse_v6(const char *text, struct address *out,
                            char *reason) {
  struct sockaddr_in6 *in6 = &out->at.in6;
  if (!address_numeric_v6(out->host, in6))
    return address_wrong(reason, PERIGEE_INVALID,
                         "\"%.200s\": what is in brackets is no IPv6 address",
                         text);
  if (IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) && !in6->sin6_scope_id)
    return address_wrong(reason, PERIGEE_INVALID,
                         "\"%.200s\": each interface has such addresses: name "
                         "the interface, like [fe80::1%%eth0]",
                         text);
  in6->sin6_port = htons(out->port);
  out->length = sizeof *in6;
  return PERIGEE_OK;
}

static int address_parse_host(const char *text, bool brackets,
                              struct address *out, char *reason) {
  if (brackets)
    return address_parse_v6(text, out, reason);
  if (inet_pton(AF_INET, out->host, &out->at.in.sin_addr) == 1) {
    out->at.in.sin_family = AF_INET;
    out->at.in.sin_port = htons(out->port);
    out->length = sizeof out->at.in;
  } else if (!address_is_name(out->host)) {
    return address_wrong(
        reason, PERIGEE_INVALID,
        "\"%.200s\": the host is no name (letters, digits, - . _); to "
        "listen at all IPv4 or all IPv6 addresses use tcp://0.0.0.0:%u or "
        "tcp://[::]:%u",
        text, out->port, out->port);
  }
  return PERIGEE_OK;
}

static int address_parse_tcp(const char *text, struct address *out,
                             char *reason) {
  const char *host;
  size_t length;
  bool brackets;
  const char *port = address_split(text, &host, &length, &brackets, reason);
  if (!port)
    return PERIGEE_INVALID;
  out->tcp = true;
  if (length == 0)
    return address_wrong(
        reason, PERIGEE_INVALID,
        "\"%.200s\" names no host: use tcp://HOST:PORT; to listen at "
        "all IPv4 or all IPv6 addresses use 0.0.0.0 or [::] as the host",
        text);
  if (length > ADDRESS_HOST)
    return address_wrong(
        reason, PERIGEE_TOO_LARGE,
        "the host's name in \"%.100s...\" has %zu bytes; there are "
        "none over %d",
        text, length, ADDRESS_HOST);
  if (!address_read_port(port, &out->port))
    return address_wrong(
        reason, PERIGEE_INVALID,
        "\"%.200s\": the port has to be a number from 0 to 65535", text);
  memcpy(out->host, host, length);
  return address_parse_host(text, brackets, out, reason);
}

int address_parse(const char *text, struct address *out,
                  char reason[ADDRESS_REASON]) {
  *out = (struct address){0};
  *reason = 0;
  if (strncmp(text, unix_prefix, sizeof unix_prefix - 1) == 0)
    return address_parse_unix(text + sizeof unix_prefix - 1, out, reason);
  if (strncmp(text, tcp_prefix, sizeof tcp_prefix - 1) == 0)
    return address_parse_tcp(text, out, reason);
  return address_wrong(reason, PERIGEE_UNSUPPORTED,
                       "\"%.200s\" is no address that this version knows: use "
                       "unix:PATH or tcp://HOST:PORT",
                       text);
}

/* ---- Addresses of the system --------------------------------------------- */

socklen_t address_length(const union socket_address *at) {
  return at->any.sa_family == AF_INET6 ? sizeof at->in6 : sizeof at->in;
}

/* Writes "%eth0", or the number of an interface that is gone; "" for none. */
static void address_scope(uint32_t number, char text[IF_NAMESIZE + 1]) {
  char name[IF_NAMESIZE];
  if (number == 0)
    *text = 0;
  else if (if_indextoname(number, name))
    snprintf(text, IF_NAMESIZE + 1, "%%%s", name);
  else
    snprintf(text, IF_NAMESIZE + 1, "%%%u", number);
}

void address_text(const union socket_address *at, char text[ADDRESS_TEXT]) {
  char host[INET6_ADDRSTRLEN] = "", scope[IF_NAMESIZE + 1];
  if (at->any.sa_family == AF_INET) {
    inet_ntop(AF_INET, &at->in.sin_addr, host, sizeof host);
    snprintf(text, ADDRESS_TEXT, "tcp://%s:%u", host, ntohs(at->in.sin_port));
    return;
  }
  inet_ntop(AF_INET6, &at->in6.sin6_addr, host, sizeof host);
  address_scope(at->in6.sin6_scope_id, scope);
  snprintf(text, ADDRESS_TEXT, "tcp://[%s%s]:%u", host, scope,
           ntohs(at->in6.sin6_port));
}

bool address_loopback(const union socket_address *at) {
  if (at->any.sa_family == AF_INET)
    return ntohl(at->in.sin_addr.s_addr) >> 24 == 127;
  const struct in6_addr *in6 = &at->in6.sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(in6) ||
         (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
}

void address_plain(union socket_address *at) {
  const struct sockaddr_in6 in6 = at->in6;
  if (in6.sin6_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
    return;
  at->in = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = in6.sin6_port,
                                .sin_addr.s_addr = in6.sin6_addr.s6_addr32[3]};
}

/* ---- Sockets ------------------------------------------------------------- */

int socket_new(int family) {
  return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

void socket_no_delay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* ---- Addresses of this host ---------------------------------------------- */

struct question {
  struct nlmsghdr head;
  struct rtmsg route;
  uint8_t attributes[RTA_SPACE(sizeof(struct in6_addr)) +
                     RTA_SPACE(sizeof(uint32_t))];
};

static void route_add(struct question *q, uint16_t type, const void *value,
                      uint32_t length) {
  struct rtattr *a = (void *)((uint8_t *)q + q->head.nlmsg_len);
  *a = (struct rtattr){.rta_type = type,
                       .rta_len = (uint16_t)RTA_LENGTH(length)};
  memcpy(RTA_DATA(a), value, length);
  q->head.nlmsg_len += (uint32_t)RTA_SPACE(length);
}

static void route_ask(struct question *q, const union socket_address *at) {
  bool four = at->any.sa_family == AF_INET;
  *q = (struct question){.head = {.nlmsg_len = NLMSG_LENGTH(sizeof q->route),
                                  .nlmsg_type = RTM_GETROUTE,
                                  .nlmsg_flags = NLM_F_REQUEST},
                         .route = {.rtm_family = (uint8_t)at->any.sa_family,
                                   .rtm_dst_len = four ? 32 : 128}};
  if (four)
    route_add(q, RTA_DST, &at->in.sin_addr, sizeof at->in.sin_addr);
  else
    route_add(q, RTA_DST, &at->in6.sin6_addr, sizeof at->in6.sin6_addr);
  if (!four && at->in6.sin6_scope_id)
    route_add(q, RTA_OIF, &at->in6.sin6_scope_id, sizeof at->in6.sin6_scope_id);
}

/* Accepts the answer from the kernel only. */
static bool route_leads_back(int fd) {
  struct sockaddr_nl from = {0};
  socklen_t length = sizeof from;
  union {
    struct nlmsghdr head;
    uint8_t room[4096];
  } answer;
  ssize_t got = recvfrom(fd, &answer, sizeof answer, MSG_DONTWAIT,
                         (struct sockaddr *)&from, &length);
  const struct rtmsg *route = NLMSG_DATA(&answer.head);
  return got >= (ssize_t)NLMSG_LENGTH(sizeof *route) && from.nl_pid == 0 &&
         answer.head.nlmsg_type == RTM_NEWROUTE && route->rtm_type == RTN_LOCAL;
}

bool address_here(const union socket_address *address) {
  union socket_address at = *address;
  struct question q;
  address_plain(&at);
  if (at.any.sa_family != AF_INET && at.any.sa_family != AF_INET6)
    return at.any.sa_family == AF_UNIX;
  if (address_loopback(&at))
    return true;
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  route_ask(&q, &at);
  bool back = fd >= 0 && send(fd, &q, q.head.nlmsg_len, MSG_DONTWAIT) >= 0 &&
              route_leads_back(fd);
  if (fd >= 0)
    close(fd);
  return back;
}

/* A connection to all addresses of this host ends at this host. */
static bool address_any(const union socket_address *at) {
  return at->any.sa_family == AF_INET
             ? at->in.sin_addr.s_addr == htonl(INADDR_ANY)
             : at->any.sa_family == AF_INET6 &&
                   IN6_IS_ADDR_UNSPECIFIED(&at->in6.sin6_addr);
}

int perigee_address_leads(const char *text) {
  struct address address;
  char reason[ADDRESS_REASON];
  if (!text)
    return detail_fail(PERIGEE_INVALID, "the address is missing");
  int status = address_parse(text, &address, reason);
  if (status < 0)
    return detail_fail(status, "%s", reason);
  if (address.length == 0)
    return PERIGEE_LEADS_NAME;
  bool here = address_any(&address.at) || address_here(&address.at);
  return here ? PERIGEE_LEADS_HERE : PERIGEE_LEADS_ELSEWHERE;
}
