/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.h - descriptors in the engine's epoll. The owner of a descriptor has a
 * watcher, which is called with what epoll reports; many descriptors may share
 * one. A watcher must outlive the poll in which its last descriptor is closed,
 * as epoll may have reported that one already.
 */
#ifndef WATCH_H
#define WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct perigee_engine;
struct timespec;

struct watcher {
  /* events: those of epoll, at least one. */
  void (*ready)(struct watcher *watcher, uint32_t events);
  /* What epoll reports to it, it reports again until it was handled (it is
   * level-triggered), and that may wait for a poll. */
  bool patient;
};

/* events: EPOLLIN and the like. 0, or -1 and errno. */
int watch_add(struct perigee_engine *, int fd, struct watcher *,
              uint32_t events);
/* Changes the events, or the watcher, of a descriptor that is watched. */
int watch_change(struct perigee_engine *, int fd, struct watcher *,
                 uint32_t events);
/* Returns false if epoll did not have it. Does nothing in a child process,
 * which shares epoll with its parent. */
bool watch_remove(struct perigee_engine *, int fd);
/* The same, and closes it. */
void watch_close(struct perigee_engine *, int fd);
/* Calls the watchers of descriptors that are ready, without waiting. */
void watch_poll(struct perigee_engine *);
/* Sleeps until some are ready, at most for timeout (NULL: no limit), reads the
 * clock, and calls their watchers. A patient one that alone is ready is called
 * by the next watch_poll. Returns how many are ready, or -1 and errno. */
int watch_sleep(struct perigee_engine *, const struct timespec *timeout);
/* The same, but a signal that was noted does not end it (signals.h). */
int watch_sleep_on(struct perigee_engine *, const struct timespec *timeout);
/* The next watch_poll need not look, as a sleep follows it, which does. */
void watch_leave(struct perigee_engine *);
/* The next watch_poll looks, as no sleep has just done so. */
void watch_again(struct perigee_engine *);

#endif
