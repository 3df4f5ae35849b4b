/* SPDX-License-Identifier: Apache-2.0 */
#include "worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- In the child ------------------------------------------------------- */

struct server {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *mapped, *asked;
};

static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

static void reply_loan(struct server *s, int served) {
  struct perigee_loan loan;
  struct perigee_message none = {.status = PERIGEE_NO_MEMORY};
  if (perigee_reply_begin(s->engine, served, WORKER_SIZE, &loan) == PERIGEE_OK)
    perigee_reply_commit(s->engine, served, WORKER_SIZE);
  else
    perigee_reply(s->engine, served, &none);
}

static void reply(struct server *s, const struct perigee_event *e) {
  uint64_t length =
      e->method == WORKER_SHORT_REPLY ? WORKER_SHORT : WORKER_SIZE;
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all_of(s->mapped, length)};
  if (e->method == WORKER_LOAN) {
    reply_loan(s, e->operation);
    return;
  }
  if (e->method == WORKER_ECHO)
    r = (struct perigee_message){.head = e->pointer, .length = e->length};
  perigee_reply(s->engine, e->operation, &r);
}

static void send_and_receive(struct server *s) {
  struct perigee_slice all = all_of(s->mapped, WORKER_SIZE);
  perigee_send(s->session, &all, -1);
  perigee_recv(s->session, &all, -1);
}

static void serve(struct server *s, const struct perigee_event *e) {
  struct perigee_slice none = {0};
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(s->engine, e->landed);
  if (e->kind == PERIGEE_EVENT_ACCEPTED) {
    s->session = perigee_session(s->engine, e->session);
    send_and_receive(s);
  } else if (e->kind == PERIGEE_EVENT_LANDING) {
    perigee_land(s->engine, e->operation, &none);
  } else if (e->kind == PERIGEE_EVENT_REQUEST) {
    reply(s, e);
  } else if (e->kind == PERIGEE_EVENT_LOST) {
    _exit(0);
  }
}

_Noreturn static void run(const char *address, const struct variant *v) {
  struct perigee_options o;
  struct perigee_listener *listener;
  struct perigee_event e;
  struct server s = {0};
  void *memory = malloc(WORKER_SIZE);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  variant_options(v, &o);
  if (perigee_engine_open(&o, &s.engine) != 0 ||
      perigee_region_alloc(s.engine, "mapped", WORKER_SIZE, 3, v->memory,
                           &s.mapped) != 0 ||
      perigee_region_register(s.engine, "asked", memory, WORKER_SIZE, 3, NULL,
                              &s.asked) != 0)
    _exit(1);
  fill_byte(s.mapped, 0x11);
  memset(memory, 0x11, WORKER_SIZE);
  if (perigee_listen(s.engine, address, &listener) != 0)
    _exit(1);
  for (;;)
    if (perigee_poll(s.engine, &e, 1) == 1)
      serve(&s, &e);
    else
      perigee_wait(&s.engine, 1, 100 * MS);
}

/* ---- In the parent ------------------------------------------------------ */

struct perigee_event worker_await(struct worker *w, int operation) {
  struct perigee_event e;
  int64_t end = clock_now() + 10000 * MS;
  assert_true(operation >= 0);
  while (clock_now() < end)
    if (perigee_poll(w->engine, &e, 1) == 1 && e.operation == operation &&
        e.kind != PERIGEE_EVENT_REQUEST)
      return e;
  fail_msg("operation %d does not end", operation);
  return e;
}

struct perigee_remote *worker_region(struct worker *w, const char *name) {
  struct perigee_event e =
      worker_await(w, perigee_lookup(w->session, name, -1));
  assert_int_equal(e.status, PERIGEE_OK);
  return (struct perigee_remote *)(uintptr_t)e.pointer;
}

void worker_start(struct worker *w, const struct variant *v) {
  static int number;
  struct perigee_options o;
  snprintf(w->address, sizeof w->address, "unix:/tmp/perigee-worker-%d-%d",
           getpid(), number++);
  unlink(w->address + strlen("unix:")); /* left by one that was killed */
  w->pid = fork();
  if (w->pid == 0)
    run(w->address, v);
  for (int i = 0; i < 5000 && access(w->address + 5, F_OK) != 0; i++)
    usleep(1000);
  variant_options(v, &o);
  assert_int_equal(perigee_engine_open(&o, &w->engine), 0);
  struct perigee_event e;
  int status = PERIGEE_NOT_FOUND; /* bound, and not yet listening */
  for (int i = 0; i < 5000 && status != PERIGEE_OK; i++) {
    usleep(i ? 1000 : 0);
    e = worker_await(w,
                     perigee_connect(w->engine, w->address, v->transport, -1));
    status = e.status;
  }
  assert_int_equal(status, PERIGEE_OK);
  w->session = perigee_session(w->engine, e.session);
}

void worker_end(struct worker *w) {
  kill(w->pid, SIGKILL);
  waitpid(w->pid, NULL, 0);
  unlink(w->address + 5);
  perigee_engine_close(w->engine);
}
