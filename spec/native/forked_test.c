/* SPDX-License-Identifier: Apache-2.0
 *
 * forked_test.c - a child process with its parent's engines: every function
 * fails with "forked" or does nothing, closing frees only the child's own
 * things, and the parent notices nothing, whatever was under way.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/lock.h"
#include "host/forked.h"
#include "scenes.h"

/* Runs in the child, where cmocka cannot report. */
static void must(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "in the child: %s\n", what);
  _exit(1);
}
#define FORKED(call) must((call) == PERIGEE_FORKED, #call)

static void engines_refuse(struct scene *s) {
  struct perigee_engine *e = s->p.engine[0];
  struct perigee_event event;
  struct perigee_region *region;
  struct perigee_listener *listener;
  uint8_t bytes[64];
  FORKED(perigee_poll(e, &event, 1));
  FORKED(perigee_await(e, 0, &event, MS));
  FORKED(perigee_wait(&e, 1, MS));
  FORKED(perigee_arm(e, NULL));
  FORKED(perigee_region_alloc(e, NULL, 64, 0, NULL, &region));
  FORKED(perigee_region_register(e, NULL, bytes, 64, 0, NULL, &region));
  FORKED(perigee_region_read(s->mine, 0, bytes, 64));
  FORKED(perigee_region_write(s->mine, 0, bytes, 64));
  FORKED(perigee_region_close(s->mine, false));
  FORKED(perigee_region_close(s->mine, true));
  FORKED(perigee_listen(e, "unix:/tmp/perigee-forked", &listener));
  FORKED(perigee_connect(e, s->p.address, NULL, -1));
}

static void sessions_refuse(struct scene *s) {
  struct perigee_session *session = s->p.session[0];
  struct perigee_message m = {.timeout = -1};
  struct perigee_loan loan;
  struct perigee_slice all = all_of(s->mine, 64);
  struct perigee_transfer t = {.local = all, .remote = all};
  struct perigee_prepared *prepared;
  FORKED(perigee_call(session, &m));
  FORKED(perigee_call_batch(session, &m, 0, NULL));
  FORKED(perigee_call_begin(session, 64, &loan));
  FORKED(perigee_call_commit(session, &m, 0));
  perigee_call_abort(session);
  FORKED(perigee_send(session, &all, -1));
  FORKED(perigee_recv(session, &all, -1));
  FORKED(perigee_recv_imm(session, -1));
  FORKED(perigee_lookup(session, "theirs", -1));
  FORKED(perigee_transfer(session, PERIGEE_OP_READ, &t, 1, 0, -1));
  FORKED(perigee_prepare(session, PERIGEE_OP_READ, &t, 1, 0, &prepared));
}

static void serving_refuses(struct scene *s) {
  struct perigee_engine *e = s->p.engine[1];
  struct perigee_message m = {.head = "child", .length = 5};
  struct perigee_loan loan;
  struct perigee_slice none = {0};
  int served = s->served >= 0 ? s->served : 0;
  FORKED(perigee_reply(e, served, &m));
  FORKED(perigee_land(e, served, &none));
  FORKED(perigee_land_reply(e, served, &none));
  FORKED(perigee_reply_begin(e, served, 64, &loan));
  FORKED(perigee_reply_commit(e, served, 0));
  perigee_reply_abort(e, served);
  must(perigee_served_cancelled(e, served), "a call is not cancelled");
  perigee_served_remaining(e, served);
  perigee_cancel(s->p.engine[0], s->operation);
}

static void all_is_closed(struct scene *s) {
  struct perigee_session_info info;
  perigee_session_describe(s->p.session[0], &info, sizeof info);
  perigee_session_close(s->p.session[0]);
  perigee_session_close(s->p.session[1]);
  perigee_session_free(s->p.session[1]);
  perigee_engine_close(s->p.engine[0]);
  perigee_listener_close(s->p.listener);
  perigee_engine_close(s->p.engine[1]);
}

/* The child may do everything with an engine of its own. */
static void a_new_engine_works(struct scene *s) {
  struct pair p;
  (void)s;
  pair_open(&p, (void *)(uintptr_t)&variant_default);
  pair_close(&p);
}

static void in_child(struct scene *s, void (*what)(struct scene *)) {
  int status;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(10);
    what(s);
    _exit(0);
  }
  waitpid(child, &status, 0);
  if (status != 0)
    fail_msg("the child ended with %d, signal %d", WEXITSTATUS(status),
             WTERMSIG(status));
}

static void over_scenes(void **state, void (*what)(struct scene *)) {
  for (const struct scene_kind *k = scene_kinds; k->name; k++) {
    struct scene s;
    print_message("# %s\n", k->name);
    scene_open(&s, *state, -1);
    k->build(&s);
    in_child(&s, what);
    if (s.operation >= 0 && strncmp(k->name, "receiving", 9) == 0)
      perigee_cancel(s.p.engine[0], s.operation); /* no message will come */
    if (strcmp(k->name, "sent") == 0)
      perigee_cancel(s.p.engine[0], s.operation);
    scene_wind_up(&s);
    assert_int_equal(s.ends, 1);
    assert_true(s.status == PERIGEE_OK || s.status == PERIGEE_CANCELLED);
    assert_int_equal(access(s.p.path, F_OK), 0);
    scene_close(&s);
  }
}

static void engines_are_their_process_own(void **state) {
  over_scenes(state, engines_refuse);
}

static void sessions_are_their_process_own(void **state) {
  over_scenes(state, sessions_refuse);
}

static void calls_are_their_process_own(void **state) {
  over_scenes(state, serving_refuses);
}

static void closing_in_a_child_harms_nobody(void **state) {
  over_scenes(state, all_is_closed);
}

static void children_have_engines_of_their_own(void **state) {
  over_scenes(state, a_new_engine_works);
}

/* The parent sleeps on the epoll instance that the child has closed. */
static void the_parent_still_wakes(void **state) {
  struct scene s;
  struct perigee_session *more[2];
  scene_open(&s, *state, -1);
  in_child(&s, all_is_closed);
  pair_dial(&s.p, more);
  perigee_session_free(more[0]);
  int64_t start = clock_now();
  while (s.p.kept[1] == 0 && clock_now() - start < 20000 * MS) {
    assert_true(perigee_wait(&s.p.engine[1], 1, 10000 * MS) >= 0);
    poll_side(&s.p, 1);
    poll_side(&s.p, 0);
  }
  until(&s.p, 1, PERIGEE_EVENT_LOST);
  assert_true(clock_now() - start < 5000 * MS);
  scene_wind_up(&s);
  scene_close(&s);
}

/* Where the parent has the peer's memory, the child may have its own. */
static struct perigee_remote *their_memory;

static void its_memory_stays(struct scene *s) {
  (void)s;
  uint8_t *own =
      mmap(perigee_remote_pointer(their_memory), 4096, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  must(own == perigee_remote_pointer(their_memory), "there is no hole");
  perigee_remote_close(their_memory);
  must(mincore(own, 4096, &(unsigned char){0}) == 0, "its memory is unmapped");
}

static void a_handle_that_is_closed_unmaps_nothing_of_a_child(void **state) {
  struct scene s;
  scene_open(&s, *state, -1);
  their_memory = look_up(&s.p, "theirs");
  assert_non_null(perigee_remote_pointer(their_memory));
  in_child(&s, its_memory_stays);
  scene_wind_up(&s);
  scene_close(&s);
}

/* If the child kept sockets, peers would not notice the parent's death. */
static int at_first;

static void nothing_is_left(struct scene *s) {
  all_is_closed(s);
  must(descriptors() == at_first, "a descriptor is left");
}

static void sockets_are_given_back(void **state) {
  struct scene s;
  at_first = descriptors();
  scene_open(&s, *state, -1);
  quiet(&s.p, 200); /* the session gets more sockets */
  in_child(&s, nothing_is_left);
  scene_wind_up(&s);
  scene_close(&s);
}

/* ---- What a child closes (host/forked.h) ----------------------------------- */

static void a_child_closes_what_it_was_told_to(void **state) {
  (void)state;
  int fds[] = {dup(STDIN_FILENO), -1, dup(STDIN_FILENO)}, status;
  int kept = dup(STDIN_FILENO), closed = fds[0];
  struct forked forked = {0}, forgotten = {0};
  forked_closes(&forgotten, &kept, 1);
  forked_closes(&forked, fds, 2);
  forked_closes(&forked, fds, 3);
  forked_forget(&forgotten);
  forked_close(&fds[2]);
  assert_int_equal(fds[2], -1);
  forked_close(&fds[2]);
  pid_t child = fork();
  if (child == 0) {
    must(fds[0] == -1 && fcntl(closed, F_GETFD) < 0, "it is not closed");
    must(fcntl(kept, F_GETFD) >= 0, "what was forgotten is closed");
    forked_forget(&forked);
    _exit(0);
  }
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  assert_int_equal(fds[0], closed);
  assert_true(fcntl(closed, F_GETFD) >= 0);
  forked_close(&fds[0]);
  forked_forget(&forked);
  close(kept);
}

static atomic_bool engine_is_held;

/* As the thread of an engine that shares memory of a GPU while another one
 * forks. */
static void *shares_with_the_lock(void *context) {
  const struct perigee_engine *engine = context;
  struct forked forked = {0};
  int fd = dup(STDIN_FILENO);
  forked_watch(); /* after the engine's own */
  lock_wait(engine->lock);
  atomic_store(&engine_is_held, true);
  usleep(200000); /* by then the fork waits for the lock */
  forked_closes(&forked, &fd, 1);
  forked_close(&fd);
  forked_forget(&forked);
  pthread_mutex_unlock(&engine->lock->mutex);
  return NULL;
}

static void forks_meanwhile(void) {
  struct perigee_engine *engine;
  struct perigee_options o;
  pthread_t thread;
  int status;
  perigee_options_init(&o, sizeof o);
  o.progress = 1;
  must(perigee_engine_open(&o, &engine) == 0, "no engine");
  must(pthread_create(&thread, NULL, shares_with_the_lock, engine) == 0,
       "no thread");
  while (!atomic_load(&engine_is_held))
    usleep(1000);
  pid_t child = fork();
  if (child == 0)
    _exit(0);
  waitpid(child, &status, 0);
  pthread_join(thread, NULL);
  perigee_engine_close(engine);
}

/* In a child, which a signal ends if the two wait for each other. It is the first
 * test, so that nothing here was called before there is an engine. */
static void a_fork_waits_for_a_thread_that_shares_memory(void **state) {
  (void)state;
  int status;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    forks_meanwhile();
    _exit(0);
  }
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    fail_msg("a fork and a thread that shares memory wait for each other");
  assert_int_equal(status, 0);
}

static const struct variant sockets = {"tcp, sealed, streams", "tcp", "host", 0,
                                       "sealed streams"};

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_fork_waits_for_a_thread_that_shares_memory),
      OVER(variant_default, engines_are_their_process_own),
      OVER(variant_default, sessions_are_their_process_own),
      OVER(variant_default, calls_are_their_process_own),
      OVER(variant_default, closing_in_a_child_harms_nobody),
      OVER(variant_default, children_have_engines_of_their_own),
      OVER(variant_default, the_parent_still_wakes),
      OVER(variant_default, a_handle_that_is_closed_unmaps_nothing_of_a_child),
      OVER(variant_default, sockets_are_given_back),
      OVER(sockets, sockets_are_given_back),
      cmocka_unit_test(a_child_closes_what_it_was_told_to),
  };
  return cmocka_run_group_tests_name("forked", tests, NULL, NULL);
}
