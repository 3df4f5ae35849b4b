/* SPDX-License-Identifier: Apache-2.0
 *
 * watched.c - descriptors that the program watches (perigee_watch): it gets
 * READY as long as one is ready, again at each of its polls.
 *
 *   state   event    becomes
 *   out     watch    armed    epoll watches it for one event (EPOLLONESHOT)
 *   armed   ready    found    epoll reported it and watches it no more; READY
 *                             waits for room in a poll of the program
 *   found   give     told     the program has READY
 *   told    rearm    armed    the program polls again: epoll checks it again,
 *                             and reports at once if it is still ready
 *   all but out
 *           watch    armed    perigee_rewatch; a READY that waits is withdrawn
 *           rest     quiet    the same with events 0: epoll has it, and reports
 *                             nothing of it
 *           drop     out      perigee_unwatch; a READY that waits is withdrawn.
 *                             Or it was found to be closed
 *
 * A descriptor that the program has not handled wakes nobody, as epoll does not
 * watch it in states found, told and quiet (one that was armed may wake once
 * when it is quiet, by its end). So an engine's thread, whose polls neither
 * give nor rearm, keeps sleeping while a descriptor stays readable and the
 * program computes.
 *
 * No wake-up is lost. EPOLL_CTL_MOD checks the descriptor itself, so the rearm
 * reports what came after READY. perigee_wait and perigee_arm poll before they
 * say that there is nothing, and that poll rearms before it looks at epoll.
 * The flag sockets_due makes the next poll look while any descriptor is in
 * state told. A poll that keeps what the program was shown, as the thread's
 * does, leaves that flag set.
 *
 * Epoll forgets a descriptor that is closed without perigee_unwatch, unless a
 * copy of it is open elsewhere; then epoll may report the old file once more.
 * So an entry is not freed before its engine. An event for an entry in state
 * out or quiet is ignored; for one that is in use again it becomes a READY too
 * many, which is allowed.
 */
#include "polling.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "core/lock.h"
#include "core/watch.h"

enum state { OUT, ARMED, FOUND, TOLD, QUIET };
enum event { WATCH, READY, GIVE, REARM, REST, DROP };

const struct machine watched_machine = {
    .name = "watched",
    .taken = MACHINE_STEPS,
    .states = {"out", "armed", "found", "told", "quiet"},
    .events = {"watch", "ready", "give", "rearm", "rest", "drop"},
    .next = {
        [OUT] = {[WATCH] = TO(ARMED)},
        [ARMED] = {[WATCH] = TO(ARMED),
                   [READY] = TO(FOUND),
                   [REST] = TO(QUIET),
                   [DROP] = TO(OUT)},
        [FOUND] = {[WATCH] = TO(ARMED),
                   [GIVE] = TO(TOLD),
                   [REST] = TO(QUIET),
                   [DROP] = TO(OUT)},
        [TOLD] = {[WATCH] = TO(ARMED),
                  [REARM] = TO(ARMED),
                  [REST] = TO(QUIET),
                  [DROP] = TO(OUT)},
        [QUIET] = {[WATCH] = TO(ARMED), [REST] = TO(QUIET), [DROP] = TO(OUT)},
    }};

struct watched {
  struct watcher watcher;
  struct perigee_engine *engine;
  struct watched *next; /* in its bucket */
  struct node node;     /* in `all` or `spare` */
  struct node queue;    /* in `found` or `told` */
  uint64_t token;
  int fd;
  uint8_t state;
  uint8_t events, ready; /* enum perigee_readiness: watched for; reported */
};

/* The descriptors of an engine; made with the first one. */
struct watched_set {
  uint32_t mask, count;
  struct node all, spare;    /* entries in use, and in state out */
  struct node found, told;   /* entries in these states */
  struct watched *buckets[]; /* by descriptor */
};

static void watched_step(struct watched *w, enum event event) {
  machine_step(&watched_machine, &w->state, event);
}

/* ---- Entries ------------------------------------------------------------ */

static struct watched **watched_place(struct watched_set *set, int fd) {
  struct watched **at = &set->buckets[(uint32_t)fd & set->mask];
  while (*at && (*at)->fd != fd)
    at = &(*at)->next;
  return at;
}

static struct watched *watched_find(const struct perigee_engine *engine,
                                    int fd) {
  return engine->watched ? *watched_place(engine->watched, fd) : NULL;
}

static struct watched_set *watched_set_open(uint32_t most) {
  uint32_t buckets = 64;
  while (buckets < most)
    buckets *= 2;
  struct watched_set *set =
      calloc(1, sizeof *set + buckets * sizeof(struct watched *));
  if (!set)
    return NULL;
  struct node *lists[] = {&set->all, &set->spare, &set->found, &set->told};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    list_open(lists[i]);
  set->mask = buckets - 1;
  return set;
}

static void watched_ready(struct watcher *watcher, uint32_t events);

/* Returns a new entry, or NULL without room or memory. */
static struct watched *watched_entry(struct perigee_engine *engine) {
  if (!engine->watched)
    engine->watched = watched_set_open(engine->options.watched);
  struct watched_set *set = engine->watched;
  if (!set || set->count >= engine->options.watched)
    return NULL;
  struct node *n = list_pop(&set->spare);
  struct watched *w =
      n ? CONTAINER(n, struct watched, node) : calloc(1, sizeof *w);
  if (!w)
    return NULL;
  w->engine = engine;
  w->watcher.ready = watched_ready;
  return w;
}

/* Has a wait found its READY, without the program having polled it? */
static bool is_pending_event(const struct watched *w) {
  const struct perigee_engine *engine = w->engine;
  return engine->event_pending &&
         engine->pending_event.kind == PERIGEE_EVENT_READY &&
         engine->pending_event.descriptor == w->fd;
}

/* Takes back a READY that the program has not polled. */
static void watched_withdraw(struct watched *w) {
  struct perigee_engine *engine = w->engine;
  if (is_pending_event(w))
    engine->event_pending = engine->event_awaited = false;
  list_remove(&w->queue);
}

static void watched_drop(struct watched *w) {
  struct watched_set *set = w->engine->watched;
  watched_withdraw(w);
  watched_step(w, DROP);
  list_remove(&w->node);
  *watched_place(set, w->fd) = w->next;
  list_append(&set->spare, &w->node);
  set->count--;
}

/* ---- Closed without perigee_unwatch ------------------------------------- */

/* Adding the same descriptor and file to epoll twice fails with EEXIST.
 * Anything else means that it is closed, or that another file has its
 * number. */
static bool watched_is_open(const struct watched *w) {
  struct perigee_engine *engine = w->engine;
  if (watch_add(engine, w->fd, &engine->fabrics_watcher, EPOLLONESHOT) < 0)
    return errno == EEXIST;
  watch_remove(engine, w->fd);
  return false;
}

static int watched_closed_unseen(struct perigee_engine *engine, int fd) {
#ifdef PERIGEE_DEBUG
  fprintf(stderr,
          "perigee: descriptor %d was closed while it was watched: "
          "perigee_unwatch comes first\n",
          fd);
  abort();
#endif
  return fail(engine, PERIGEE_INVALID,
              "descriptor %d was closed while it was watched: perigee_unwatch "
              "comes first",
              fd);
}

/* Checks some descriptors at each look, in debug builds. */
static void watched_check_some(struct perigee_engine *engine, uint32_t count) {
#ifdef PERIGEE_DEBUG
  struct node *n, *all = &engine->watched->all;
  for (; count > 0 && (n = list_pop(all)); count--) {
    const struct watched *w = CONTAINER(n, struct watched, node);
    list_append(all, n);
    if (!watched_is_open(w))
      watched_closed_unseen(engine, w->fd);
  }
#else
  (void)engine, (void)count;
#endif
}

/* ---- Watching ----------------------------------------------------------- */

static uint32_t watched_events(const struct watched *w) {
  return EPOLLONESHOT | (w->events & PERIGEE_READABLE ? EPOLLIN : 0) |
         (w->events & PERIGEE_WRITABLE ? EPOLLOUT : 0);
}

static int watched_refused(struct perigee_engine *engine, int fd, int error) {
  int status = PERIGEE_SYSTEM;
  const char *why = strerror(error);
  if (error == EBADF) {
    status = PERIGEE_INVALID;
    why = "it is not open";
  } else if (error == EPERM) {
    status = PERIGEE_UNSUPPORTED;
    why = "it is a file or a folder, which are always ready";
  } else if (error == EEXIST || error == EINVAL || error == ELOOP) {
    status = PERIGEE_INVALID;
    why = "it is the engine's own";
  } else if (error == ENOMEM || error == ENOSPC) {
    status = PERIGEE_NO_MEMORY;
  }
  return fail(engine, status, "descriptor %d cannot be watched: %s", fd, why);
}

static int watched_add_entry(struct perigee_engine *engine, int fd,
                             uint8_t events, uint64_t token) {
  struct watched *w = watched_entry(engine);
  struct watched_set *set = engine->watched;
  if (!w)
    return fail(engine, PERIGEE_NO_MEMORY,
                "descriptor %d cannot be watched: %u are (option watched)", fd,
                set ? set->count : 0);
  w->fd = fd;
  w->events = events;
  w->token = token;
  if (watch_add(engine, fd, &w->watcher, watched_events(w)) < 0) {
    list_append(&set->spare, &w->node);
    return watched_refused(engine, fd, errno);
  }
  watched_step(w, WATCH);
  w->next = NULL;
  *watched_place(set, fd) = w;
  list_append(&set->all, &w->node);
  set->count++;
  engine->sockets_due = true; /* the descriptor may be ready already */
  return PERIGEE_OK;
}

static int watched_wrong_events(struct perigee_engine *engine, int fd,
                                int events) {
  return fail(engine, PERIGEE_INVALID,
              "descriptor %d cannot be watched for events %d", fd, events);
}

int perigee_watch(struct perigee_engine *engine, int fd, int events,
                  uint64_t token) {
  LOOK(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (events == 0 || events & ~(PERIGEE_READABLE | PERIGEE_WRITABLE))
    return watched_wrong_events(engine, fd, events);
  struct watched *w = watched_find(engine, fd);
  if (w && watched_is_open(w))
    return fail(engine, PERIGEE_INVALID, "descriptor %d is watched already",
                fd);
  if (w) {
    watched_closed_unseen(engine, fd);
    watched_drop(w);
  }
  return watched_add_entry(engine, fd, (uint8_t)events, token);
}

/* In all states but armed epoll reports nothing of it as it is. */
static int watched_change(struct watched *w) {
  struct perigee_engine *engine = w->engine;
  watched_withdraw(w);
  if ((w->events || w->state == ARMED) &&
      watch_change(engine, w->fd, &w->watcher, watched_events(w)) < 0) {
    int fd = w->fd;
    watched_drop(w);
    return watched_closed_unseen(engine, fd);
  }
  watched_step(w, w->events ? WATCH : REST);
  engine->sockets_due = true; /* the descriptor may be ready already */
  return PERIGEE_OK;
}

int perigee_rewatch(struct perigee_engine *engine, int fd, int events,
                    uint64_t token) {
  LOOK(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (events & ~(PERIGEE_READABLE | PERIGEE_WRITABLE))
    return watched_wrong_events(engine, fd, events);
  struct watched *w = watched_find(engine, fd);
  if (!w)
    return fail(engine, PERIGEE_NOT_FOUND, "descriptor %d is not watched", fd);
  w->events = (uint8_t)events;
  w->token = token;
  return watched_change(w);
}

int perigee_unwatch(struct perigee_engine *engine, int fd) {
  LOOK(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  struct watched *w = watched_find(engine, fd);
  if (!w)
    return fail(engine, PERIGEE_NOT_FOUND, "descriptor %d is not watched", fd);
  bool known = watch_remove(engine, fd);
  watched_drop(w);
  return known ? PERIGEE_OK : watched_closed_unseen(engine, fd);
}

/* ---- Telling ------------------------------------------------------------ */

/* An error or the end counts as readable and writable: both calls report it. */
static uint8_t watched_readiness(const struct watched *w, uint32_t events) {
  uint8_t ready = 0;
  if (events & (EPOLLERR | EPOLLHUP))
    ready = (uint8_t)(w->events | PERIGEE_HANGUP);
  if (events & EPOLLIN)
    ready |= PERIGEE_READABLE;
  if (events & EPOLLOUT)
    ready |= PERIGEE_WRITABLE;
  return ready;
}

static void watched_ready(struct watcher *watcher, uint32_t events) {
  struct watched *w = CONTAINER(watcher, struct watched, watcher);
  if (w->state != ARMED)
    return; /* event of a copy of a descriptor that was closed */
  watched_step(w, READY);
  w->ready = watched_readiness(w, events);
  list_append(&w->engine->watched->found, &w->queue);
  w->engine->notices = true;
  w->engine->progress++;
}

void watched_rearm(struct perigee_engine *engine) {
  struct watched_set *set = engine->watched;
  struct node *n;
  if (!set)
    return;
  watched_check_some(engine, 8);
  if (engine_keeps(engine) && !list_empty(&set->told))
    engine->sockets_due = true;
  while (!engine_keeps(engine) && (n = list_pop(&set->told))) {
    struct watched *w = CONTAINER(n, struct watched, queue);
    watched_step(w, REARM);
    if (watch_change(engine, w->fd, &w->watcher, watched_events(w)) < 0) {
      watched_closed_unseen(engine, w->fd);
      watched_drop(w);
    }
  }
}

static void watched_give_one(struct watched *w) {
  struct perigee_engine *engine = w->engine;
  watched_step(w, GIVE);
  list_append(&engine->watched->told, &w->queue);
  engine->sockets_due = true;
  engine->out[engine->filled++] =
      (struct perigee_event){.kind = PERIGEE_EVENT_READY,
                             .flags = w->ready,
                             .operation = -1,
                             .descriptor = w->fd,
                             .code = w->token};
}

bool watched_give(struct perigee_engine *engine) {
  struct watched_set *set = engine->watched;
  struct node *n;
  if (!set)
    return false;
  while (engine->filled < engine->room && (n = list_pop(&set->found)))
    watched_give_one(CONTAINER(n, struct watched, queue));
  return !list_empty(&set->found);
}

/* ---- Closing ------------------------------------------------------------ */

static void watched_free_entries(struct node *list) {
  for (struct node *n = list->next, *next; n != list; n = next) {
    next = n->next;
    free(CONTAINER(n, struct watched, node));
  }
}

void watched_close(struct perigee_engine *engine) {
  struct watched_set *set = engine->watched;
  if (!set)
    return;
  if (engine_alive(engine))
    watched_check_some(engine, set->count);
  watched_free_entries(&set->all);
  watched_free_entries(&set->spare);
  free(set);
}
