/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.h - descriptors that the engine's epoll watches. Who owns one has a
 * watcher, which is told what epoll says of it: many descriptors may share one.
 * A watcher outlives the poll in which its last descriptor was closed, as epoll
 * may have told of that already.
 */
#ifndef WATCH_H
#define WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct perigee_engine;

struct watcher {
  /* events: of epoll, at least one. */
  void (*ready)(struct watcher *watcher, uint32_t events);
};

/* events: EPOLLIN and the like. 0, or -1 and errno. */
int watch_add(struct perigee_engine *, int fd, struct watcher *,
              uint32_t events);
/* Of one that is watched: other events, or another watcher. */
int watch_change(struct perigee_engine *, int fd, struct watcher *,
                 uint32_t events);
/* False: epoll did not have it. Does nothing in a child process, which shares
 * epoll with its parent. */
bool watch_remove(struct perigee_engine *, int fd);
/* The same, and closes it. */
void watch_close(struct perigee_engine *, int fd);
/* Tells the watchers of what is ready, without waiting. */
void watch_poll(struct perigee_engine *);

#endif
