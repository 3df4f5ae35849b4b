/* SPDX-License-Identifier: Apache-2.0
 *
 * here.c - is an address one of this host's? The kernel is asked for its route:
 * a connection with an address that leads back to this host was made on this
 * host, whatever the peer says. So every local address counts, also a second
 * one of a device; addresses of other hosts do not.
 */
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"

struct question {
  struct nlmsghdr head;
  struct rtmsg route;
  uint8_t attributes[RTA_SPACE(sizeof(struct in6_addr)) +
                     RTA_SPACE(sizeof(uint32_t))];
};

static void add(struct question *q, uint16_t type, const void *value,
                uint32_t length) {
  struct rtattr *a = (void *)((uint8_t *)q + q->head.nlmsg_len);
  *a = (struct rtattr){.rta_type = type,
                       .rta_len = (uint16_t)RTA_LENGTH(length)};
  memcpy(RTA_DATA(a), value, length);
  q->head.nlmsg_len += (uint32_t)RTA_SPACE(length);
}

static void ask(struct question *q, const union socket_address *at) {
  bool four = at->any.sa_family == AF_INET;
  *q = (struct question){.head = {.nlmsg_len = NLMSG_LENGTH(sizeof q->route),
                                  .nlmsg_type = RTM_GETROUTE,
                                  .nlmsg_flags = NLM_F_REQUEST},
                         .route = {.rtm_family = (uint8_t)at->any.sa_family,
                                   .rtm_dst_len = four ? 32 : 128}};
  if (four)
    add(q, RTA_DST, &at->in.sin_addr, sizeof at->in.sin_addr);
  else
    add(q, RTA_DST, &at->in6.sin6_addr, sizeof at->in6.sin6_addr);
  if (!four && at->in6.sin6_scope_id)
    add(q, RTA_OIF, &at->in6.sin6_scope_id, sizeof at->in6.sin6_scope_id);
}

/* Accepts the answer from the kernel only. */
static bool leads_back(int fd) {
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
  ask(&q, &at);
  bool back = fd >= 0 && send(fd, &q, q.head.nlmsg_len, MSG_DONTWAIT) >= 0 &&
              leads_back(fd);
  if (fd >= 0)
    close(fd);
  return back;
}
