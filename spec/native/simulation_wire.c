/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_wire.c - the network between the two sides of a simulated world
 * that talk over TCP: a relay that accepts the dialer's connections, dials the
 * listener for each, and passes bytes on in pieces of any size, late, until the
 * connection is cut. On an encrypted connection it also flips bits, after the
 * hello.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "simulation.h"

enum { WIRES = 64, ROOM = 128 << 10, PAST_HELLO = 8192 };

/* One direction of a connection: the bytes under way. */
struct way {
  uint8_t bytes[ROOM];
  uint32_t first, end;
  uint64_t passed;
  int64_t due;
  bool ended, told; /* no more comes; and the other end was told */
};

struct wires {
  int listener;
  struct sockaddr_in to;
  double cut, turn_over;
  uint64_t delay;
  struct wire_pair {
    int fd[2]; /* of the dialer, of the listener; 0: free */
    struct way way[2];
  } pairs[WIRES];
};

static void end(struct wire_pair *p) {
  close(p->fd[0]);
  close(p->fd[1]);
  p->fd[0] = p->fd[1] = 0;
}

static struct sockaddr_in address_of(uint16_t port) {
  return (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = port,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

void wires_open(struct world *w) {
  struct wires *wires = calloc(1, sizeof *wires);
  unsigned port = 0;
  const char *colon = strrchr(w->address, ':');
  port = colon ? (unsigned)strtoul(colon + 1, NULL, 10) : 0;
  wires->to = address_of(htons((uint16_t)port));
  wires->cut = below(w, 2) ? 0.0005 : 0;
  wires->turn_over = w->sealed && below(w, 2) ? 0.0005 : 0;
  wires->delay = below(w, 2) ? below(w, 1000000) : 0;
  wires->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in own = address_of(0);
  socklen_t length = sizeof own;
  HOLDS(&w->sides[0],
        bind(wires->listener, (struct sockaddr *)&own, length) == 0 &&
            listen(wires->listener, WIRES) == 0 &&
            getsockname(wires->listener, (struct sockaddr *)&own, &length) ==
                0);
  snprintf(w->address, sizeof w->address, "tcp://127.0.0.1:%u",
           (unsigned)ntohs(own.sin_port));
  if (wires->cut > 0 || wires->turn_over > 0)
    w->weather.cut = 1;
  if (wires->turn_over > 0)
    w->weather.truncate = 1;
  w->wires = wires;
}

void wires_close(struct world *w) {
  if (!w->wires)
    return;
  for (int i = 0; i < WIRES; i++)
    if (w->wires->pairs[i].fd[0])
      end(&w->wires->pairs[i]);
  close(w->wires->listener);
  free(w->wires);
  w->wires = NULL;
}

static void take(struct wires *wires) {
  int fd = accept4(wires->listener, NULL, NULL, SOCK_NONBLOCK);
  struct wire_pair *p = wires->pairs;
  while (p < wires->pairs + WIRES && p->fd[0])
    p++;
  if (fd < 0)
    return;
  int on = socket(AF_INET, SOCK_STREAM, 0);
  if (p == wires->pairs + WIRES ||
      connect(on, (struct sockaddr *)&wires->to, sizeof wires->to) != 0) {
    close(on);
    close(fd);
    return;
  }
  *p = (struct wire_pair){.fd = {fd, on}};
}

/* Reads what has come, as far as there is room; it may be the last. */
static void bring_in(struct world *w, struct wire_pair *p, int from) {
  struct way *way = &p->way[from];
  if (way->first == way->end)
    way->first = way->end = 0;
  if (way->ended || way->end == ROOM)
    return;
  ssize_t n =
      recv(p->fd[from], way->bytes + way->end, ROOM - way->end, MSG_DONTWAIT);
  if (n > 0) {
    way->end += (uint32_t)n;
    if (way->passed > PAST_HELLO && happens(w, w->wires->turn_over))
      way->bytes[way->end - 1 - below(w, (uint64_t)n)] ^=
          (uint8_t)(1 << below(w, 8));
    if (way->due <= w->now)
      way->due = w->now + (int64_t)below(w, w->wires->delay + 1);
  } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
    way->ended = true;
  }
}

/* Passes on a piece of it. */
static void hand_on(struct world *w, struct wire_pair *p, int from) {
  struct way *way = &p->way[from];
  uint32_t there = way->end - way->first;
  if (there > 0 && w->now >= way->due) {
    uint64_t piece = happens(w, 0.3) ? 1 + below(w, there) : there;
    ssize_t n = send(p->fd[!from], way->bytes + way->first, piece,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      way->first += (uint32_t)n;
      way->passed += (uint64_t)n;
    } else if (n < 0 && errno != EAGAIN) {
      way->first = way->end;
      way->ended = true;
    }
  }
  if (way->ended && !way->told && way->first == way->end)
    way->told = shutdown(p->fd[!from], SHUT_WR) == 0 || errno == ENOTCONN;
}

void wires_turn(struct world *w) {
  if (!w->wires)
    return;
  take(w->wires);
  for (int i = 0; i < WIRES; i++) {
    struct wire_pair *p = &w->wires->pairs[i];
    if (!p->fd[0])
      continue;
    for (int from = 0; from < 2; from++) {
      bring_in(w, p, from);
      hand_on(w, p, from);
    }
    if ((p->way[0].told && p->way[1].told) || happens(w, w->wires->cut))
      end(p);
  }
}
