/* SPDX-License-Identifier: Apache-2.0
 *
 * handing_test.c - memory that is handed to the peer during a session: memory
 * that cannot be sent now costs nothing while it waits, and a side that has
 * none is told why. The relevant system calls are counted. Tests that use up
 * the whole process's descriptors run in a child.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "support.h"
#include "support_inside.h"

enum { LENGTH = 64 * KIB, LONG = 5 * MIB, POLLS = 1000, FEW = 64 };

/* ---- What is asked of the system ------------------------------------------- */

static int files, sends, refused;

int memfd_create(const char *name, unsigned flags) {
  files++;
  return (int)syscall(SYS_memfd_create, name, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  sends++;
  if (refused > 0) {
    refused--;
    errno = ENOBUFS;
    return -1;
  }
  return syscall(SYS_sendmsg, fd, message, flags);
}

/* ---- A socket that is full --------------------------------------------------- */

static int64_t skew;

static int64_t clock_ahead(void *context) {
  (void)context;
  return clock_now() + skew;
}

/* Counts without those that only report what was sent. */
static bool next(struct pair *p, int side, struct perigee_event *e) {
  bool any;
  while ((any = taken(p, side, e)) && e->kind == PERIGEE_EVENT_SENT)
    ;
  return any;
}

static int call_for(struct pair *p, uint64_t capacity) {
  struct perigee_message m = {
      .head = "x", .length = 1, .capacity = capacity, .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  assert_true(op >= 0);
  return op;
}

/* The dialer asks for a long reply and does not read its socket. */
static int stalls(struct pair *p, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  skew = 0;
  o.clock = clock_ahead;
  pair_open_with(p, state, &o);
  p->still[0] = true;
  fill_socket(p->session[1]);
  int op = call_for(p, LENGTH);
  for (int i = 0; i < 100; i++)
    poll_side(p, 1);
  assert_true(serves_in(p->engine[1], "stalled"));
  return op;
}

static void is_served(struct pair *p, int op) {
  struct perigee_loan loan;
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e.operation, LENGTH, &loan), 0);
  memset(loan.pointer, 7, LENGTH);
  perigee_reply_commit(p->engine[1], e.operation, LENGTH);
  struct perigee_event reply = ended(p, 0, op, PERIGEE_OK);
  assert_int_equal(reply.length, LENGTH);
  assert_int_equal(reply.pointer[LENGTH - 1], 7);
  until(p, 1, PERIGEE_EVENT_SENT);
}

static int files_of_arenas(void) {
  char path[64], name[64];
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n > 0 ? n : 0] = 0;
    count += strncmp(name, "/memfd:perigee-arena", 20) == 0;
  }
  return count;
}

static void a_child_closes_the_file_that_nobody_was_told_of(void **state) {
  struct pair p;
  int op = stalls(&p, *state), status;
  assert_int_equal(files_of_arenas(), 1);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    perigee_session_close(p.session[1]);
    _exit(files_of_arenas());
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  p.still[0] = false;
  is_served(&p, op);
  pair_close(&p);
}

static void what_a_full_socket_holds_up_costs_a_poll_nothing(void **state) {
  struct pair p;
  int op = stalls(&p, *state), made = files, sent = sends;
  for (int i = 0; i < POLLS; i++)
    poll_side(&p, 1);
  assert_int_equal(files, made);
  assert_int_equal(sends, sent);
  p.still[0] = false;
  is_served(&p, op);
  assert_int_equal(files, made);
  pair_close(&p);
}

/* Nothing else tells the engine: the dialer has only read. */
static void who_sleeps_wakes_when_the_socket_has_room(void **state) {
  struct pair p;
  int op = stalls(&p, *state);
  while (perigee_arm(p.engine[1], NULL) == 1)
    poll_side(&p, 1);
  p.still[0] = false;
  look_at_clock(p.engine[0]);
  poll_side(&p, 0);
  struct pollfd fd = {.fd = perigee_fd(p.engine[1]), .events = POLLIN};
  assert_int_equal(poll(&fd, 1, 10000), 1);
  is_served(&p, op);
  pair_close(&p);
}

static void who_never_reads_its_socket_loses_the_session(void **state) {
  struct perigee_event e;
  struct pair p;
  stalls(&p, *state);
  skew = 3600 * 1000 * MS;
  look_at_clock(p.engine[1]);
  while (!taken(&p, 1, &e))
    poll_side(&p, 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  pair_drop(&p);
}

/* If this engine was not polled meanwhile, the peer may have read in time,
 * and the session is kept. */
static void who_was_away_while_the_peer_read_keeps_it(void **state) {
  struct pair p;
  int op = stalls(&p, *state);
  p.still[0] = false;
  look_at_clock(p.engine[0]);
  poll_side(&p, 0);
  skew = 10 * 1000 * MS;
  look_at_clock(p.engine[1]);
  is_served(&p, op);
  pair_close(&p);
}

/* Nor is a full socket given up at once because the clock was not read for
 * as long as the limit. */
static void who_comes_back_to_a_full_socket_waits_as_long(void **state) {
  struct perigee_loan loan;
  struct perigee_options o;
  struct perigee_event e;
  struct pair p;
  variant_options(*state, &o);
  skew = 0;
  o.clock = clock_ahead;
  pair_open_with(&p, *state, &o);
  p.still[0] = true;
  fill_socket(p.session[1]);
  skew = 10 * 1000 * MS;
  assert_int_equal(perigee_call_begin(p.session[1], LENGTH, &loan),
                   PERIGEE_NO_MEMORY);
  look_at_clock(p.engine[1]);
  for (int i = 0; i < 100; i++) {
    poll_side(&p, 1);
    assert_false(taken(&p, 1, &e));
  }
  p.still[0] = false;
  while (perigee_call_begin(p.session[1], LENGTH, &loan) < 0)
    quiet(&p, 1);
  perigee_call_abort(p.session[1]);
  pair_close(&p);
}

/* The peer sends nothing here; it only reads. */
static void who_sleeps_wakes_to_look_up_when_the_socket_has_room(void **state) {
  struct pair p;
  pair_open(&p, *state);
  fill_socket(p.session[0]);
  int op = perigee_lookup(p.session[0], "nothing", -1);
  while (perigee_arm(p.engine[0], NULL) == 1)
    poll_side(&p, 0);
  look_at_clock(p.engine[1]);
  poll_side(&p, 1);
  struct pollfd fd = {.fd = perigee_fd(p.engine[0]), .events = POLLIN};
  assert_int_equal(poll(&fd, 1, 10000), 1);
  finish(&p, op, PERIGEE_NOT_FOUND);
  pair_close(&p);
}

/* ---- A system without memory for a frame ------------------------------------- */

static void a_wake_up_that_there_is_no_memory_for_is_sent_later(void **state) {
  struct pair p;
  pair_open(&p, *state);
  while (perigee_arm(p.engine[1], NULL) == 1)
    poll_side(&p, 1);
  p.still[1] = true;
  refused = 2;
  int op = call_for(&p, LENGTH);
  for (int i = 0; i < POLLS && refused > 0; i++)
    poll_side(&p, 0);
  poll_side(&p, 0);
  assert_int_equal(refused, 0);
  struct pollfd fd = {.fd = perigee_fd(p.engine[1]), .events = POLLIN};
  assert_int_equal(poll(&fd, 1, 10000), 1);
  p.still[1] = false;
  is_served(&p, op);
  pair_close(&p);
}

static void a_look_up_that_there_is_no_memory_for_ends_so(void **state) {
  struct pair p;
  pair_open(&p, *state);
  refused = 1;
  int op = perigee_lookup(p.session[0], "nothing", -1);
  assert_true(op >= 0);
  ended(&p, 0, op, PERIGEE_NO_MEMORY);
  assert_int_equal(refused, 0);
  op = perigee_lookup(p.session[0], "nothing", -1);
  ended(&p, 0, op, PERIGEE_NOT_FOUND);
  pair_close(&p);
}

static void the_reason_is_told_where_there_is_no_block(void **state) {
  struct perigee_loan loan;
  struct pair p;
  pair_open(&p, *state);
  p.still[1] = true;
  fill_socket(p.session[0]);
  assert_int_equal(perigee_call_begin(p.session[0], LENGTH, &loan),
                   PERIGEE_NO_MEMORY);
  assert_non_null(strstr(perigee_detail(p.engine[0]), "does not take"));
  assert_null(strstr(perigee_detail(p.engine[0]), "pool"));
  assert_true(perigee_call_begin(p.session[0], UINT64_C(1) << 39, &loan) < 0);
  assert_non_null(strstr(perigee_detail(p.engine[0]), "pool"));
  pair_drop(&p);
}

/* ---- Descriptors that are not there ------------------------------------------ */

static void in_a_child(void (*test)(void *), void *state) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    test(state);
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void must(bool fine, const char *what) {
  if (fine)
    return;
  fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

static void limit_descriptors(rlim_t most) {
  struct rlimit r;
  getrlimit(RLIMIT_NOFILE, &r);
  r.rlim_cur = most;
  setrlimit(RLIMIT_NOFILE, &r);
}

static void echoes(struct pair *p, uint64_t length) {
  struct perigee_message m = {.timeout = -1, .capacity = length};
  struct perigee_event e;
  struct perigee_loan loan;
  must(perigee_call_begin(p->session[0], length, &loan) == 0, "it is lent");
  memset(loan.pointer, 3, length);
  int op = perigee_call_commit(p->session[0], &m, length);
  do {
    poll_side(p, 0);
    poll_side(p, 1);
  } while (!next(p, 1, &e));
  must(e.kind == PERIGEE_EVENT_REQUEST, "it is a request");
  must(e.length == length && e.pointer[length - 1] == 3, "it is whole");
  must(perigee_reply_begin(p->engine[1], e.operation, length, &loan) == 0,
       "so is the reply");
  memset(loan.pointer, 4, length);
  perigee_reply_commit(p->engine[1], e.operation, length);
  do {
    poll_side(p, 0);
    poll_side(p, 1);
  } while (!next(p, 0, &e));
  must(e.operation == op && e.status == PERIGEE_OK, "it ends well");
  must(e.pointer[length - 1] == 4, "with the reply");
}

/* The program has used all descriptors, on both sides. */
static void none_left(void *state) {
  static struct pair p;
  pair_open(&p, state);
  limit_descriptors(FEW);
  while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
    ;
  must(errno == EMFILE, "there is none left");
  for (int i = 0; i < 3; i++)
    echoes(&p, 16 * MIB); /* a segment each, and more */
  must(open("/dev/null", O_RDONLY) < 0, "there still is none");
}

static void sessions_go_on_in_a_process_without_descriptors(void **state) {
  in_a_child(none_left, *state);
}

/* This user has so many descriptors in flight that no more may be sent. */
static void under_way(int pair[2]) {
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC), fds[2 * FEW];
  char control[CMSG_SPACE(sizeof fds)] = {0};
  struct iovec v = {(void *)(uintptr_t) "x", 1};
  struct msghdr m = {.msg_iov = &v,
                     .msg_iovlen = 1,
                     .msg_control = control,
                     .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                        .cmsg_type = SCM_RIGHTS,
                        .cmsg_len = CMSG_LEN(sizeof fds)};
  for (int i = 0; i < 2 * FEW; i++)
    fds[i] = null;
  memcpy(CMSG_DATA(c), fds, sizeof fds);
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 &&
           sendmsg(pair[0], &m, 0) == 1,
       "they are on their way");
  close(null);
}

static void on_their_way(struct pair *p, void *state, int ways[2]) {
  if (geteuid() == 0)
    must(setresuid(65534, 65534, 65534) == 0, "it is nobody");
  prctl(PR_SET_DUMPABLE, 1); /* readable again, as before */
  pair_open(p, state);
  echoes(p, MIB);
  limit_descriptors(FEW);
  under_way(ways);
}

static void all_on_their_way(void *state) {
  static struct pair p;
  struct perigee_loan loan;
  int ways[2];
  on_their_way(&p, state, ways);
  for (int i = 0; i < 3; i++)
    echoes(&p, MIB); /* both have a segment for these already */
  must(perigee_call_begin(p.session[0], 32 * MIB, &loan) == PERIGEE_NO_MEMORY,
       "no more is lent");
  must(strstr(perigee_detail(p.engine[0]), "descriptors") != NULL,
       "for want of descriptors");
  close(ways[0]);
  close(ways[1]);
  for (int64_t end = clock_now() + 10000 * MS;
       perigee_call_begin(p.session[0], 32 * MIB, &loan) < 0;) {
    must(clock_now() < end, "it is lent once they may go again");
    look_at_clock(p.engine[0]);
    poll_side(&p, 0);
  }
  perigee_call_abort(p.session[0]);
  echoes(&p, 32 * MIB);
}

static void what_cannot_be_handed_over_is_lent_of_what_is_there(void **state) {
  in_a_child(all_on_their_way, *state);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, what_a_full_socket_holds_up_costs_a_poll_nothing),
      OVER(variant_default, a_child_closes_the_file_that_nobody_was_told_of),
      OVER(variant_default, who_sleeps_wakes_when_the_socket_has_room),
      OVER(variant_default, who_never_reads_its_socket_loses_the_session),
      OVER(variant_default, who_was_away_while_the_peer_read_keeps_it),
      OVER(variant_default, who_comes_back_to_a_full_socket_waits_as_long),
      OVER(variant_default,
           who_sleeps_wakes_to_look_up_when_the_socket_has_room),
      OVER(variant_default,
           a_wake_up_that_there_is_no_memory_for_is_sent_later),
      OVER(variant_default, a_look_up_that_there_is_no_memory_for_ends_so),
      OVER(variant_default, the_reason_is_told_where_there_is_no_block),
      OVER(variant_default, sessions_go_on_in_a_process_without_descriptors),
      OVER(variant_default,
           what_cannot_be_handed_over_is_lent_of_what_is_there),
  };
  return cmocka_run_group_tests_name("handing", tests, NULL, NULL);
}
