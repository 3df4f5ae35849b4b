/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "engine.h"

/* The most events that one look takes; if there are as many, the next poll
 * looks again. All that they cause (a session that begins or ends: up to 0.1 ms
 * each) happens in one poll, while other sessions' calls wait. */
enum { READY = 8 };

static int control(struct perigee_engine *engine, int how, int fd,
                   struct watcher *watcher, uint32_t events) {
  struct epoll_event e = {.events = events, .data.ptr = watcher};
  return epoll_ctl(engine->epoll, how, fd, &e);
}

int watch_add(struct perigee_engine *engine, int fd, struct watcher *watcher,
              uint32_t events) {
  return control(engine, EPOLL_CTL_ADD, fd, watcher, events);
}

int watch_change(struct perigee_engine *engine, int fd, struct watcher *watcher,
                 uint32_t events) {
  return control(engine, EPOLL_CTL_MOD, fd, watcher, events);
}

bool watch_remove(struct perigee_engine *engine, int fd) {
  return !engine_alive(engine) ||
         epoll_ctl(engine->epoll, EPOLL_CTL_DEL, fd, NULL) == 0;
}

/* Removes the descriptor from epoll before it is closed: while a child process
 * has a copy, epoll would go on to report it. */
void watch_close(struct perigee_engine *engine, int fd) {
  watch_remove(engine, fd);
  close(fd);
}

void watch_poll(struct perigee_engine *engine) {
  struct epoll_event events[READY];
  int n = epoll_wait(engine->epoll, events, READY, 0);
  engine->more_ready = n == READY;
  engine->progress += engine->more_ready; /* keeps a wait from sleeping */
  for (int i = 0; i < n; i++) {
    struct watcher *watcher = events[i].data.ptr;
    watcher->ready(watcher, events[i].events);
  }
}
