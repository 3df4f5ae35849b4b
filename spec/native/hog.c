/* SPDX-License-Identifier: Apache-2.0 */
#include "hog.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SESSIONS_MOST = 64, EVENTS = 64 };

struct life {
  struct perigee_engine *engine;
  struct perigee_session *session[SESSIONS_MOST];
  struct perigee_region *region;
  int sessions, pending; /* connects that have not ended */
};

/* ---- In the child ------------------------------------------------------- */

static void turn(struct life *l) {
  struct perigee_event e[EVENTS];
  int n = perigee_poll(l->engine, e, EVENTS);
  for (int i = 0; i < n; i++)
    if (e[i].kind == PERIGEE_EVENT_CONNECTED) {
      l->pending--;
      if (e[i].status == PERIGEE_OK && l->sessions < SESSIONS_MOST)
        l->session[l->sessions++] = perigee_session(l->engine, e[i].session);
    }
}

static void turns(struct life *l, int64_t time) {
  for (int64_t end = clock_now() + time; clock_now() < end;)
    turn(l);
}

/* Sends what was submitted, and does little more. */
static void some_turns(struct life *l) {
  for (int i = 0; i < 4; i++)
    turn(l);
}

static void dial(struct life *l, const char *address, const char *transport,
                 int count) {
  for (int i = 0; i < count; i++) {
    l->pending += perigee_connect(l->engine, address, transport, -1) >= 0;
    while (l->pending > 8)
      turn(l);
  }
  while (l->pending > 0)
    turn(l);
}

static void send_all(struct life *l) {
  struct perigee_slice s = {{l->region}, 0, 8, 1, 8};
  for (int i = 0; i < 1024; i++)
    for (int k = 0; k < l->sessions; k++)
      perigee_send(l->session[k], &s, -1);
  turns(l, 500 * MS);
}

/* Typed: the one value is the slice's place. */
static void announce_all(struct life *l) {
  static const uint8_t nothing[] = {0};
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .method = METHOD_ECHO,
                              .head = nothing,
                              .length = 0,
                              .slice = all_of(l->region, HOG_SLICE),
                              .timeout = -1};
  for (int k = 0; k < l->sessions; k++)
    perigee_call(l->session[k], &m);
  some_turns(l);
}

static void ask_all(struct life *l) {
  static const uint8_t head[64];
  struct perigee_message m = {.method = METHOD_FILL,
                              .head = head,
                              .length = sizeof head,
                              .capacity = HOG_REPLY,
                              .timeout = -1};
  for (int i = 0; i < 1024; i++)
    for (int k = 0; k < l->sessions; k++)
      perigee_call(l->session[k], &m);
  some_turns(l);
}

_Noreturn static void run(enum hog_kind kind, const char *transport, int hear,
                          int say) {
  static const int count[] = {16, 30, 16, 46, 1024};
  char address[80] = "";
  struct perigee_options o;
  struct life l = {0};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  perigee_options_init(&o, sizeof o);
  o.secret = "";
  o.pull = 0; /* it stages, and stops: nobody reads what it does not show */
  if (kind == HOG_OUTBOXES)
    o.pool = UINT64_C(1) << 40;
  if (read(hear, address, sizeof address) <= 0 ||
      perigee_engine_open(&o, &l.engine) != 0 ||
      perigee_region_alloc(l.engine, NULL, HOG_SLICE, 0, NULL, &l.region) != 0)
    _exit(1);
  dial(&l, address, transport, count[kind]);
  if (kind == HOG_SENDS)
    send_all(&l);
  else if (kind == HOG_SLICES)
    announce_all(&l);
  else if (kind == HOG_REPLIES)
    ask_all(&l);
  if (write(say, "", 1) != 1)
    _exit(1);
  for (;;)
    pause();
}

/* ---- In the parent ------------------------------------------------------ */

void hog_fork(struct hog *h, enum hog_kind kind, const char *transport) {
  int to[2], from[2];
  assert_int_equal(pipe2(to, O_CLOEXEC), 0);
  assert_int_equal(pipe2(from, O_CLOEXEC | O_NONBLOCK), 0);
  h->pid = fork();
  if (h->pid == 0)
    run(kind, transport, to[0], from[1]);
  close(to[0]);
  close(from[1]);
  h->say = to[1];
  h->hear = from[0];
}

void hog_begin(struct hog *h, const char *address) {
  ssize_t length = (ssize_t)strlen(address) + 1;
  assert_int_equal(write(h->say, address, (size_t)length), length);
}

bool hog_is_done(struct hog *h) {
  char byte;
  return read(h->hear, &byte, 1) == 1;
}

void hog_end(struct hog *h) {
  kill(h->pid, SIGKILL);
  waitpid(h->pid, NULL, 0);
  close(h->say);
  close(h->hear);
}
