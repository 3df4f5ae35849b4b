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
 *   armed, found, told
 *           drop     out      perigee_unwatch; a READY that waits is withdrawn.
 *                             Or it was found to be closed
 *
 * A descriptor that the program has not handled wakes nobody, as epoll does not
 * watch it in states found and told. So an engine's thread, whose polls neither
 * give nor rearm, keeps sleeping while a descriptor stays readable and the
 * program computes.
 *
 * No wake-up is lost. EPOLL_CTL_MOD checks the descriptor itself, so the rearm
 * reports what came after READY. perigee_wait and perigee_arm poll before they
 * say that there is nothing, and that poll rearms before it looks at epoll.
 * While any descriptor is in state told, sockets_due makes the next poll look;
 * a poll that keeps what the program was shown, as the thread's does, leaves
 * that flag set.
 *
 * Epoll forgets a descriptor that is closed without perigee_unwatch, unless a
 * copy of it is open elsewhere; then epoll may report the old file once more.
 * So an entry is not freed before its engine. An event for an entry in state
 * out is ignored; for one that is in use again it becomes a READY too many,
 * which is allowed.
 */
#include "watched.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "core/lock.h"
#include "core/watch.h"

enum state { OUT, ARMED, FOUND, TOLD };
enum event { WATCH, READY, GIVE, REARM, DROP };

const struct machine watched_machine = {
    .name = "watched",
    .taken = MACHINE_STEPS,
    .states = {"out", "armed", "found", "told"},
    .events = {"watch", "ready", "give", "rearm", "drop"},
    .next = {
        [OUT] = {[WATCH] = TO(ARMED)},
        [ARMED] = {[READY] = TO(FOUND), [DROP] = TO(OUT)},
        [FOUND] = {[GIVE] = TO(TOLD), [DROP] = TO(OUT)},
        [TOLD] = {[REARM] = TO(ARMED), [DROP] = TO(OUT)},
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

static void step(struct watched *w, enum event event) {
  machine_step(&watched_machine, &w->state, event);
}

/* ---- Entries ------------------------------------------------------------ */

static struct watched **place_of(struct watched_set *set, int fd) {
  struct watched **at = &set->buckets[(uint32_t)fd & set->mask];
  while (*at && (*at)->fd != fd)
    at = &(*at)->next;
  return at;
}

static struct watched *find(const struct perigee_engine *engine, int fd) {
  return engine->watched ? *place_of(engine->watched, fd) : NULL;
}

static struct watched_set *set_open(uint32_t most) {
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

static void ready(struct watcher *watcher, uint32_t events);

/* Returns a new entry, or NULL without room or memory. */
static struct watched *entry_of(struct perigee_engine *engine) {
  if (!engine->watched)
    engine->watched = set_open(engine->options.watched);
  struct watched_set *set = engine->watched;
  if (!set || set->count >= engine->options.watched)
    return NULL;
  struct node *n = list_pop(&set->spare);
  struct watched *w =
      n ? CONTAINER(n, struct watched, node) : calloc(1, sizeof *w);
  if (!w)
    return NULL;
  w->engine = engine;
  w->watcher.ready = ready;
  return w;
}

/* Has a wait found its READY, without the program having polled it? */
static bool is_pending_event(const struct watched *w) {
  const struct perigee_engine *engine = w->engine;
  return engine->event_pending &&
         engine->pending_event.kind == PERIGEE_EVENT_READY &&
         engine->pending_event.descriptor == w->fd;
}

static void drop(struct watched *w) {
  struct perigee_engine *engine = w->engine;
  struct watched_set *set = engine->watched;
  if (is_pending_event(w))
    engine->event_pending = engine->event_awaited = false;
  step(w, DROP);
  list_remove(&w->queue);
  list_remove(&w->node);
  *place_of(set, w->fd) = w->next;
  list_append(&set->spare, &w->node);
  set->count--;
}

/* ---- Closed without perigee_unwatch ------------------------------------- */

/* Adding the same descriptor and file to epoll twice fails with EEXIST.
 * Anything else means that it is closed, or that another file has its
 * number. */
static bool is_open(const struct watched *w) {
  struct perigee_engine *engine = w->engine;
  if (watch_add(engine, w->fd, &engine->fabrics_watcher, EPOLLONESHOT) < 0)
    return errno == EEXIST;
  watch_remove(engine, w->fd);
  return false;
}

static int closed_unseen(struct perigee_engine *engine, int fd) {
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
static void check_some(struct perigee_engine *engine, uint32_t count) {
#ifdef PERIGEE_DEBUG
  struct node *n, *all = &engine->watched->all;
  for (; count > 0 && (n = list_pop(all)); count--) {
    const struct watched *w = CONTAINER(n, struct watched, node);
    list_append(all, n);
    if (!is_open(w))
      closed_unseen(engine, w->fd);
  }
#else
  (void)engine, (void)count;
#endif
}

/* ---- Watching ----------------------------------------------------------- */

static uint32_t events_of(const struct watched *w) {
  return EPOLLONESHOT | (w->events & PERIGEE_READABLE ? EPOLLIN : 0) |
         (w->events & PERIGEE_WRITABLE ? EPOLLOUT : 0);
}

static int refused(struct perigee_engine *engine, int fd, int error) {
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

static int add(struct perigee_engine *engine, int fd, uint8_t events,
               uint64_t token) {
  struct watched *w = entry_of(engine);
  struct watched_set *set = engine->watched;
  if (!w)
    return fail(engine, PERIGEE_NO_MEMORY,
                "descriptor %d cannot be watched: %u are (option watched)", fd,
                set ? set->count : 0);
  w->fd = fd;
  w->events = events;
  w->token = token;
  if (watch_add(engine, fd, &w->watcher, events_of(w)) < 0) {
    list_append(&set->spare, &w->node);
    return refused(engine, fd, errno);
  }
  step(w, WATCH);
  w->next = NULL;
  *place_of(set, fd) = w;
  list_append(&set->all, &w->node);
  set->count++;
  engine->sockets_due = true; /* the descriptor may be ready already */
  return PERIGEE_OK;
}

int perigee_watch(struct perigee_engine *engine, int fd, int events,
                  uint64_t token) {
  LOOK(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (events == 0 || events & ~(PERIGEE_READABLE | PERIGEE_WRITABLE))
    return fail(engine, PERIGEE_INVALID,
                "descriptor %d cannot be watched for events %d", fd, events);
  struct watched *w = find(engine, fd);
  if (w && is_open(w))
    return fail(engine, PERIGEE_INVALID, "descriptor %d is watched already",
                fd);
  if (w) {
    closed_unseen(engine, fd);
    drop(w);
  }
  return add(engine, fd, (uint8_t)events, token);
}

int perigee_unwatch(struct perigee_engine *engine, int fd) {
  LOOK(engine);
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  struct watched *w = find(engine, fd);
  if (!w)
    return fail(engine, PERIGEE_NOT_FOUND, "descriptor %d is not watched", fd);
  bool known = watch_remove(engine, fd);
  drop(w);
  return known ? PERIGEE_OK : closed_unseen(engine, fd);
}

/* ---- Telling ------------------------------------------------------------ */

/* An error or the end counts as readable and writable: both calls report it. */
static uint8_t readiness(const struct watched *w, uint32_t events) {
  uint8_t ready = 0;
  if (events & (EPOLLERR | EPOLLHUP))
    ready = (uint8_t)(w->events | PERIGEE_HANGUP);
  if (events & EPOLLIN)
    ready |= PERIGEE_READABLE;
  if (events & EPOLLOUT)
    ready |= PERIGEE_WRITABLE;
  return ready;
}

static void ready(struct watcher *watcher, uint32_t events) {
  struct watched *w = CONTAINER(watcher, struct watched, watcher);
  if (w->state != ARMED)
    return; /* event of a copy of a descriptor that was closed */
  step(w, READY);
  w->ready = readiness(w, events);
  list_append(&w->engine->watched->found, &w->queue);
  w->engine->notices = true;
  w->engine->progress++;
}

void watched_rearm(struct perigee_engine *engine) {
  struct watched_set *set = engine->watched;
  struct node *n;
  if (!set)
    return;
  check_some(engine, 8);
  if (engine->keep && !list_empty(&set->told))
    engine->sockets_due = true;
  while (!engine->keep && (n = list_pop(&set->told))) {
    struct watched *w = CONTAINER(n, struct watched, queue);
    step(w, REARM);
    if (watch_change(engine, w->fd, &w->watcher, events_of(w)) < 0) {
      closed_unseen(engine, w->fd);
      drop(w);
    }
  }
}

static void give(struct watched *w) {
  struct perigee_engine *engine = w->engine;
  step(w, GIVE);
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
    give(CONTAINER(n, struct watched, queue));
  return !list_empty(&set->found);
}

/* ---- Closing ------------------------------------------------------------ */

static void free_entries(struct node *list) {
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
    check_some(engine, set->count);
  free_entries(&set->all);
  free_entries(&set->spare);
  free(set);
}
