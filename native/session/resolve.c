/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <ares.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

struct resolve {
  ares_channel channel; /* one for each look-up: destroying it cancels it */
  struct perigee_engine *engine;
  struct watcher *watcher;
  struct address address;
  struct addresses found;
  bool done;
  int status; /* a status of c-ares */
};

/* Does nothing in a child process: it shares the epoll instance with its
 * parent, whose look-up goes on. */
static void watch_changed(void *pointer, ares_socket_t fd, int readable,
                          int writable) {
  const struct resolve *r = pointer;
  uint32_t events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  if (!engine_alive(r->engine))
    return;
  if (!events)
    watch_remove(r->engine, fd);
  else if (watch_change(r->engine, fd, r->watcher, events) != 0)
    watch_add(r->engine, fd, r->watcher, events);
}

static void resolve_add(struct resolve *r,
                        const struct ares_addrinfo_node *node) {
  union socket_address *to = &r->found.at[r->found.count];
  size_t room = node->ai_family == AF_INET6  ? sizeof to->in6
                : node->ai_family == AF_INET ? sizeof to->in
                                             : 0;
  if (room == 0 || node->ai_addrlen != room || r->found.count == ADDRESSES_MAX)
    return;
  memcpy(to, node->ai_addr, room);
  if (node->ai_family == AF_INET6)
    to->in6.sin6_port = htons(r->address.port);
  else
    to->in.sin_port = htons(r->address.port);
  r->found.count++;
}

static void resolve_answered(void *pointer, int status, int timeouts,
                             struct ares_addrinfo *result) {
  struct resolve *r = pointer;
  (void)timeouts;
  r->done = true;
  r->status = status;
  if (!result)
    return;
  for (struct ares_addrinfo_node *n = result->nodes; n; n = n->ai_next)
    resolve_add(r, n);
  ares_freeaddrinfo(result);
}

struct resolve *resolve_begin(struct perigee_engine *engine,
                              const struct address *address,
                              struct watcher *watcher) {
  struct resolve *r = calloc(1, sizeof *r);
  struct ares_options options = {.sock_state_cb = watch_changed,
                                 .sock_state_cb_data = r};
  if (!r)
    return NULL;
  r->engine = engine;
  r->watcher = watcher;
  r->address = *address;
  if (ares_init_options(&r->channel, &options, ARES_OPT_SOCK_STATE_CB) !=
      ARES_SUCCESS) {
    free(r);
    return NULL;
  }
  const struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC,
                                            .ai_socktype = SOCK_STREAM};
  ares_getaddrinfo(r->channel, address->host, NULL, &hints, resolve_answered,
                   r);
  return r;
}

static void process(struct resolve *r) {
  ares_socket_t fds[ARES_GETSOCK_MAXNUM];
  /* One bit for each socket to read from, and above those one for each to write
   * to. */
  uint32_t ready = (uint32_t)ares_getsock(r->channel, fds, ARES_GETSOCK_MAXNUM);
  ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
  for (int i = 0; i < ARES_GETSOCK_MAXNUM && !r->done; i++) {
    bool reads = ready >> i & 1, writes = ready >> (i + 16) & 1;
    if (reads || writes)
      ares_process_fd(r->channel, reads ? fds[i] : ARES_SOCKET_BAD,
                      writes ? fds[i] : ARES_SOCKET_BAD);
  }
}

static int nobody(const struct resolve *r, char reason[ADDRESS_REASON]) {
  bool unknown = r->status == ARES_SUCCESS || r->status == ARES_ENOTFOUND ||
                 r->status == ARES_ENODATA || r->status == ARES_EBADNAME;
  if (unknown)
    snprintf(reason, ADDRESS_REASON, "no host is known by the name \"%s\"",
             r->address.host);
  else
    snprintf(reason, ADDRESS_REASON,
             "the name \"%s\" could not be looked up: %s", r->address.host,
             ares_strerror(r->status));
  if (r->status == ARES_ENOMEM)
    return PERIGEE_NO_MEMORY;
  return r->status == ARES_ETIMEOUT ? PERIGEE_TIMEOUT : PERIGEE_NOT_FOUND;
}

int resolve_step(struct resolve *r, struct addresses *found,
                 char reason[ADDRESS_REASON]) {
  if (!r->done)
    process(r);
  if (!r->done)
    return 0;
  *found = r->found;
  return r->found.count > 0 ? 1 : nobody(r, reason);
}

int64_t resolve_due(const struct resolve *r) {
  struct timeval most = {1, 0}, room;
  const struct timeval *due = ares_timeout(r->channel, &most, &room);
  return (int64_t)due->tv_sec * 1000000000 + (int64_t)due->tv_usec * 1000;
}

void resolve_end(struct resolve *r) {
  r->done = true;
  ares_destroy(r->channel);
  free(r);
}
