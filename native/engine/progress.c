/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - an engine's own thread (options.progress), for programs that
 * compute for long while peers want something of them.
 *
 *   state    what the program does            the thread sleeps until
 *   aside    polls, or did a moment ago       a moment (GRACE) has passed
 *   resting  sleeps in perigee_wait           the program is back
 *   acting   something else: polls are due    not at all
 *   armed    the same, and nothing is due     a socket, a timer, the program
 *   ended    closes the engine                -
 *
 *   aside    -> resting  the program waits
 *   aside    -> acting   a moment passed without a poll
 *   acting   -> acting   something happened
 *   acting   -> armed    nothing did; peers were told to wake us, as by
 *                        perigee_arm, and nothing did since
 *   armed    -> acting   woken by a socket or a timer
 *   any      -> aside    the program has come (and woken us), or wants to
 *   any      -> ended    close
 *
 * Ownership. The thread that holds the lock owns the engine; while `waiting` is
 * set, the program owns it, with or without the lock. The progress thread only
 * tries the lock: the program waits for the thread, for one turn at most, and
 * the thread never waits for the program.
 *
 * A turn of the thread (engine_progress) is a poll that gives no events. Events
 * wait in the engine's lists for the program's next poll. The options
 * operations, serving and pool bound them, as for a program that polls and does
 * not answer. Everything that the program was shown stays where it is until the
 * program polls:
 *
 *   heads in rings     are copied by engines with a thread, so that rings
 *                      can be read on and their room given back meanwhile
 *   scratch            belongs to the program's polls; the thread uses pooled
 *                      blocks
 *   pooled blocks      of calls that were answered are kept (engine->late)
 *   operations given,  are freed by the program's polls; the thread frees only
 *   sessions freed     sessions of which the program never heard
 *   detail             of errors in the thread is kept for the thread
 *   texts of sessions  are copied when they are asked for
 *   counters           are read without the lock: each is whole, and may be a
 *                      moment old
 *
 * A fork waits until no thread is in a turn, so that the child can close what
 * it has inherited. The child has no thread: engine_alive says so, and nothing
 * is locked.
 *
 * The thread serves one-sided access, look-ups and handshakes. It brings
 * messages to posted receives, sends what waits, and keeps keepalives and
 * timeouts going. A descriptor that the program watches wakes it at most once
 * (watched.c).
 *
 * Costs. Every public function begins with one branch, which is all that an
 * engine without a thread pays. With a thread each takes a lock, some 40 ns. A
 * call that waits for the program to name its landing holds up the one-sided
 * access of its session. Both threads use the clock and the plugins that were
 * given to the engine, one thread at a time.
 */
#include "polling.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "call/calls.h"
#include "core/stats_file.h"
#include "host/cut.h"
#include "host/forked.h"

static const int64_t GRACE = 1000000; /* ns */

enum state { ASIDE, RESTING, ACTING, ARMED, OVER };

struct progress {
  struct node node; /* in all */
  struct perigee_engine *engine;
  pthread_t thread;
  bool started;
  struct lock lock; /* of the engine and of the fields below */
  bool ending;
  bool asleep;    /* the thread sleeps for longer than a moment */
  bool promised;  /* the program sleeps by its descriptor */
  bool told;      /* that descriptor has become readable */
  uint64_t polls; /* the program's, when the thread last looked */
  int wake;       /* eventfd: readable if the thread should look */
  int news,
      outer; /* the program's descriptor `outer` has `news` and all others */
};

/* ---- All threads, for forks ---------------------------------------------- */

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct node all = {&all, &all};

static void progress_before_fork(void) {
  pthread_mutex_lock(&all_lock);
  for (struct node *n = all.next; n != &all; n = n->next)
    lock_wait(&CONTAINER(n, struct progress, node)->lock);
}

static void progress_after_fork(void) {
  for (struct node *n = all.next; n != &all; n = n->next)
    pthread_mutex_unlock(&CONTAINER(n, struct progress, node)->lock.mutex);
  pthread_mutex_unlock(&all_lock);
}

/* The child owns none of the engines, nor their locks. */
static void progress_in_child(void) {
  while (list_pop(&all))
    ;
  pthread_mutex_unlock(&all_lock);
}

/* What runs before a fork runs in reverse order: the locks of engines are taken
 * first, then those that are taken under them (stats_file.c guards its file;
 * host/forked.c). */
static void progress_watch_forks(void) {
  cut_watch_forks();
  forked_watch();
  pthread_atfork(progress_before_fork, progress_after_fork, progress_in_child);
}

/* ---- The program's side -------------------------------------------------- */

/* Wakes the thread if it sleeps for longer than it should now. Needs the
 * lock. */
static void progress_wake(struct progress *p) {
  if (!p->asleep)
    return;
  p->asleep = false;
  eventfd_write(p->wake, 1);
}

/* The program has polled: what it was shown is not valid any more. */
static void progress_polled(struct progress *p) {
  eventfd_t count;
  p->promised = false;
  if (p->told)
    eventfd_read(p->news, &count);
  p->told = false;
  stats_polled(p->engine);
  served_late(p->engine);
}

static void progress_entered(struct lock *lock, enum entry entry) {
  struct progress *p = CONTAINER(lock, struct progress, lock);
  if (entry != ENTRY_LOOK && !lock->waiting)
    progress_wake(p);
  if (entry == ENTRY_POLL)
    progress_polled(p);
}

void progress_wait(struct perigee_engine *engine) {
  if (!lock_take(engine, ENTRY_POLL))
    return;
  engine->lock->waiting = true;
  lock_give(engine);
}

void progress_back(struct perigee_engine *engine) {
  if (!engine_alive(engine))
    return;
  lock_wait(engine->lock);
  engine->lock->waiting = false;
  progress_wake(engine->thread);
  lock_give(engine);
}

void progress_promise(struct perigee_engine *engine) {
  engine->thread->promised = true;
}

int progress_fd(const struct perigee_engine *engine) {
  return engine->thread->outer;
}

/* ---- The thread's side --------------------------------------------------- */

static bool progress_has_events(const struct perigee_engine *engine) {
  return !list_empty(&engine->ready) || !list_empty(&engine->news) ||
         !list_empty(&engine->losses) || engine->notices;
}

/* Takes a turn, and another one after peers were asked to wake this side.
 * Returns whether anything happened. */
static bool progress_act(struct progress *p) {
  struct perigee_engine *engine = p->engine;
  bool moved = engine_progress(engine);
  if (!moved) {
    engine_arm(engine);
    moved = engine_progress(engine);
  }
  if (p->promised && progress_has_events(engine)) {
    p->promised = false;
    p->told = eventfd_write(p->news, 1) == 0;
  }
  return moved;
}

/* Returns the next state, and for how long to stay in it. Needs the lock. */
static enum state progress_look(struct progress *p, int64_t *nap) {
  struct perigee_engine *engine = p->engine;
  *nap = GRACE;
  if (p->ending)
    return OVER;
  if (p->lock.waiting) {
    *nap = -1;
    return RESTING;
  }
  if (p->polls != engine->counters->polls) {
    p->polls = engine->counters->polls;
    return ASIDE;
  }
  bool moved = progress_act(p);
  p->polls = engine->counters->polls; /* includes those of this thread */
  if (moved)
    return ACTING;
  *nap = engine_nap(engine, -1);
  if (p->promised)
    stats_sleeps(engine); /* the program does; the thread has looked since */
  else
    stats_tell_present(engine);
  return ARMED;
}

static enum state progress_turn(struct progress *p, int64_t *nap) {
  *nap = GRACE;
  if (atomic_load(&p->lock.wanted) ||
      pthread_mutex_trylock(&p->lock.mutex) != 0)
    return ASIDE;
  p->asleep = false; /* otherwise its own steps would write to `wake` */
  enum state state = progress_look(p, nap);
  p->asleep = state == RESTING || state == ARMED;
  pthread_mutex_unlock(&p->lock.mutex);
  return state;
}

/* Returns true if the program has come. */
static bool progress_sleep(struct progress *p, enum state state, int64_t nap) {
  struct pollfd fds[] = {{.fd = p->wake, .events = POLLIN},
                         {.fd = p->engine->epoll, .events = POLLIN}};
  struct timespec t = {nap / 1000000000, nap % 1000000000};
  eventfd_t count;
  int n = ppoll(fds, state == ARMED ? 2 : 1, nap < 0 ? NULL : &t, NULL);
  return n > 0 && fds[0].revents && eventfd_read(p->wake, &count) == 0;
}

static void *progress_run(void *context) {
  struct progress *p = context;
  enum state state;
  int64_t nap;
  while ((state = progress_turn(p, &nap)) != OVER)
    if (state != ACTING && progress_sleep(p, state, nap) && state != ASIDE)
      progress_sleep(p, ASIDE, GRACE);
  return NULL;
}

/* ---- Opening and closing ------------------------------------------------- */

static bool progress_open_descriptors(struct progress *p) {
  struct epoll_event e = {.events = EPOLLIN};
  p->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  p->news = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  p->outer = epoll_create1(EPOLL_CLOEXEC);
  return p->wake >= 0 && p->news >= 0 && p->outer >= 0 &&
         epoll_ctl(p->outer, EPOLL_CTL_ADD, p->news, &e) == 0 &&
         epoll_ctl(p->outer, EPOLL_CTL_ADD, p->engine->epoll, &e) == 0;
}

/* Blocks all signals in the thread: they are for the program. But SIGBUS comes to
 * the thread that has touched a file that was cut (host/cut.c), and ends the
 * process if it is blocked there. */
static int progress_start(struct progress *p) {
  sigset_t every, before;
  sigfillset(&every);
  sigdelset(&every, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  int error = pthread_create(&p->thread, NULL, progress_run, p);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  p->started = error == 0;
  if (p->started)
    pthread_setname_np(p->thread, "perigee");
  errno = error;
  return p->started ? PERIGEE_OK : PERIGEE_SYSTEM;
}

static void progress_free(struct progress *p) {
  const int fds[] = {p->wake, p->news, p->outer};
  for (int i = 0; i < 3; i++)
    if (fds[i] >= 0)
      close(fds[i]);
  p->engine->thread = NULL;
  p->engine->lock = NULL;
  p->engine->shared = p->engine->copies = false;
  free(p);
}

int progress_open(struct perigee_engine *engine) {
  struct progress *p = calloc(1, sizeof *p);
  if (!p)
    return PERIGEE_NO_MEMORY;
  p->engine = engine;
  p->wake = p->news = p->outer = -1;
  p->polls = UINT64_MAX; /* begins in state aside */
  p->lock.entered = progress_entered;
  int status = lock_open(&p->lock);
  if (status < 0) {
    free(p);
    return status;
  }
  engine->thread = p;
  engine->lock = &p->lock;
  engine->shared = engine->copies = true;
  status = progress_open_descriptors(p) ? PERIGEE_OK : system_status(errno);
  if (status == PERIGEE_OK) {
    pthread_once(&once, progress_watch_forks);
    pthread_mutex_lock(&all_lock);
    list_append(&all, &p->node);
    pthread_mutex_unlock(&all_lock);
    stats_polled(engine);
    status = progress_start(p);
  }
  if (status < 0)
    progress_close(engine);
  return status;
}

static void progress_end(struct progress *p) {
  lock_wait(&p->lock);
  p->ending = true;
  pthread_mutex_unlock(&p->lock.mutex);
  eventfd_write(p->wake, 1);
  if (p->started)
    pthread_join(p->thread, NULL);
  pthread_mutex_lock(&all_lock);
  list_remove(&p->node);
  pthread_mutex_unlock(&all_lock);
  pthread_mutex_destroy(&p->lock.mutex);
}

void progress_close(struct perigee_engine *engine) {
  if (!engine->thread)
    return;
  if (engine_alive(engine))
    progress_end(engine->thread);
  progress_free(engine->thread);
}
