/* SPDX-License-Identifier: Apache-2.0
 *
 * peers_test.c - the process at the other end of a Unix socket: it may have
 * ended, another process may have its pid by now, or it may have given its
 * socket away. No memory is read but the peer's.
 *
 * The liar is this process. It lets a child connect its socket, so that the
 * kernel names the child as the peer, and then speaks for it.
 */
#include "old_kernel.h"
#include "raw_peer.h"
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, RING = 65536, ARENA = 8 << 20 };
enum { OUTBOX = sizeof(struct outbox) };

/* ---- Processes ------------------------------------------------------------- */

static void wait_for(pid_t pid) {
  assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void end(pid_t pid) {
  kill(pid, SIGKILL);
  wait_for(pid);
}

/* A child that sleeps until it is killed; -1: no child with that pid is
 * possible. */
static pid_t child_of_pid(pid_t wanted) {
  struct clone_args args = {.exit_signal = SIGCHLD,
                            .set_tid = (uint64_t)(uintptr_t)&wanted,
                            .set_tid_size = wanted > 0};
  pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
  if (pid != 0)
    return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close_range(3, UINT_MAX, 0); /* no socket stays open for its sake */
  for (;;)
    pause();
}

/* An innocent process that has the pid of one that has ended. */
static pid_t innocent(pid_t of) {
  pid_t pid = child_of_pid(of);
  if (pid < 0)
    print_message("# no pid can be chosen here\n");
  return pid;
}

/* ---- Memory that nobody has touched ---------------------------------------- */

static uint8_t *untouched(void) {
  uint8_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(page, MAP_FAILED);
  return page;
}

/* Whether the innocent's memory was read: reading makes a page present. */
static bool touched(pid_t pid, const uint8_t *page) {
  char path[64];
  uint64_t entry = 0;
  snprintf(path, sizeof path, "/proc/%d/pagemap", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  off_t at = (off_t)((uintptr_t)page / PAGE * sizeof entry);
  assert_int_equal(pread(fd, &entry, sizeof entry, at), sizeof entry);
  close(fd);
  return entry >> 63;
}

/* ---- The liar ---------------------------------------------------------------*/

static int memory(uint64_t length, int seals) {
  int fd = memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

/* Acts as any peer, except for the address of the token it was asked to
 * hold. */
static void says_hello_and_offers(int fd, const void *address) {
  struct frame offer = {.type = FRAME_OFFER};
  uint64_t words[3] = {RING, ARENA, (uint64_t)(uintptr_t)address};
  int size = F_SEAL_SHRINK | F_SEAL_GROW;
  int fds[2] = {memory(2 * RING, size),
                memory(OUTBOX, size | F_SEAL_FUTURE_WRITE)};
  offer.offer.length = sizeof words;
  offer.offer.fd_count = 2;
  memcpy(offer.offer.bytes, words, sizeof words);
  say_hello(fd);
  say_frame(fd, &offer, fds, 2);
  close(fds[0]);
  close(fds[1]);
}

/* Whether the listener says that it will pull; -1: it hung up first. */
static int pulls(struct pair *p, int fd) {
  static struct wire wire;
  struct frame f;
  int64_t end = clock_now() + PATIENCE;
  int got, said = -1;
  wire.length = 0;
  do {
    quiet(p, 1);
    got = wire_read(fd, &wire);
    while (said < 0 && wire_next(&wire, &f) > 0)
      if (f.type == FRAME_READY)
        said = f.pull != 0;
    assert_true(clock_now() < end);
  } while (said < 0 && (got > 0 || got == PERIGEE_AGAIN));
  wire_close(&wire);
  return said;
}

/* A child connects this socket, and may send; then it lives on, or ends. */
static pid_t by_child(const struct pair *p, int fd, bool lives,
                      const void *says) {
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  memcpy(un.sun_path, p->path, sizeof p->path);
  int told[2];
  char word = 0;
  assert_int_equal(pipe(told), 0);
  pid_t pid = fork();
  if (pid == 0) {
    word = connect(fd, (struct sockaddr *)&un, sizeof un) == 0;
    if (says)
      says_hello_and_offers(fd, says);
    if (write(told[1], &word, 1) != 1 || !lives)
      _exit(0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
      pause();
  }
  assert_int_equal(read(told[0], &word, 1), 1);
  assert_int_equal(word, 1);
  close(told[0]);
  close(told[1]);
  if (!lives)
    wait_for(pid);
  return pid;
}

static pid_t connected_by_child(const struct pair *p, int fd, bool lives) {
  return by_child(p, fd, lives, NULL);
}

static pid_t connected_and_said_by_child(const struct pair *p, int fd,
                                         const void *address) {
  return by_child(p, fd, false, address);
}

static int socket_of_liar(void) {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void refused_as(struct pair *p, int status) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REFUSED);
  if (e.status != status)
    fail_msg("%s", (const char *)e.pointer);
}

/* Without an innocent process there is nothing to see. */
static void part(struct pair *p, int fd, uint8_t *page, pid_t other) {
  close(fd);
  munmap(page, PAGE);
  quiet(p, 1);
  close_to_raw_peers(p);
  if (other < 0)
    skip();
}

/* ---- Recycled pids ----------------------------------------------------------*/

static void who_ended_before_it_was_accepted_is_nobody(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  if (!old_kernel)
    perigee_tell_refused(p.engine[1], 0);
  uint8_t *page = untouched();
  int fd = socket_of_liar();
  pid_t other = innocent(connected_by_child(&p, fd, false));
  if (other > 0) {
    says_hello_and_offers(fd, page);
    if (old_kernel)
      assert_int_not_equal(pulls(&p, fd), 1);
    else
      refused_as(&p, PERIGEE_PEER_LOST);
    assert_false(touched(other, page));
    end(other);
  }
  part(&p, fd, page, other);
}

/* All frames were sent under the pid that now belongs to an innocent
 * process. */
static void what_was_said_by_a_pid_before_vouches_for_nobody(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  uint8_t *page = untouched();
  int fd = socket_of_liar();
  pid_t first = connected_and_said_by_child(&p, fd, page);
  pid_t other = innocent(first);
  if (other > 0) {
    assert_int_not_equal(pulls(&p, fd), 1);
    assert_false(touched(other, page));
    end(other);
  }
  part(&p, fd, page, other);
}

/* All that it will ever send is there when the listener looks. */
static void a_pid_that_is_anothers_by_now_is_not_read(void **state) {
  (void)state;
  struct pair p;
  open_for_raw_peers(&p);
  uint8_t *page = untouched();
  int fd = socket_of_liar();
  pid_t first = connected_by_child(&p, fd, true);
  while (perigee_counters(p.engine[1], NULL)->sessions < 2)
    quiet(&p, 1);
  end(first);
  pid_t other = innocent(first);
  if (other > 0) {
    says_hello_and_offers(fd, page);
    assert_int_not_equal(pulls(&p, fd), 1);
    until_refused(&p, 1);
    assert_false(touched(other, page));
    end(other);
  }
  part(&p, fd, page, other);
}

/* Its memory is as it was when it connected, and the token is newer: no
 * address in that memory holds it. */
static void who_speaks_for_another_cannot_have_it_read(void **state) {
  (void)state;
  static const uint64_t known[2] = {UINT64_C(0x0123456789abcdef), 42};
  static const uint64_t none[2];
  const void *names[] = {known, none, NULL, (const void *)state};
  struct pair p;
  open_for_raw_peers(&p);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int fd = socket_of_liar();
    pid_t other = connected_by_child(&p, fd, true);
    says_hello_and_offers(fd, names[i]);
    assert_int_equal(pulls(&p, fd), 0);
    close(fd);
    end(other);
  }
  close_to_raw_peers(&p);
}

/* Shows that the check above would notice. */
static void who_speaks_for_itself_is_pulled_from(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session_info info;
  open_for_raw_peers(&p);
  for (int side = 0; side < 2; side++) {
    perigee_session_describe(p.session[side], &info, sizeof info);
    assert_true(info.pull);
  }
  close_to_raw_peers(&p);
}

/* ---- Without a main thread ----------------------------------------------------*/

/* Is the main thread of this process, whose pid that is, over? */
static bool main_is_over(pid_t pid) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
  FILE *f = fopen(path, "re");
  bool read = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
  if (f)
    fclose(f);
  return read && state == 'Z';
}

/* Waits for an event of that kind, in a process that has nothing else to do. */
static struct perigee_event alone_until(struct perigee_engine *engine,
                                        int kind) {
  struct perigee_event e;
  int64_t end = clock_now() + PATIENCE;
  while (perigee_poll(engine, &e, 1) < 1 || e.kind != kind)
    if (clock_now() > end)
      _exit(100 + kind);
  return e;
}

static _Atomic bool connected;

/* Calls with what is in its private memory once the main thread is over. Ends the
 * process with 0 if the call is refused because of that. */
static void *call_alone(void *address) {
  static uint8_t bytes[MIB];
  struct perigee_message m = {
      .head = bytes, .length = sizeof bytes, .timeout = -1};
  struct perigee_options o;
  struct perigee_engine *engine;
  variant_options(&variant_default, &o);
  if (perigee_engine_open(&o, &engine) < 0 ||
      perigee_connect(engine, address, "shm", PATIENCE) < 0)
    _exit(1);
  struct perigee_event e = alone_until(engine, PERIGEE_EVENT_CONNECTED);
  connected = true;
  while (!main_is_over(getpid()))
    usleep(1000);
  if (e.status < 0 || perigee_call(perigee_session(engine, e.session), &m) < 0)
    _exit(2);
  e = alone_until(engine, PERIGEE_EVENT_REPLY);
  bool told = e.pointer && memmem(e.pointer, e.length, "main thread", 11);
  _exit(e.status != PERIGEE_NO_MEMORY ? -e.status : told ? 0 : 99);
}

static void lives_without_a_main_thread(char *address) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, call_alone, address) != 0)
    _exit(4);
  while (!connected)
    usleep(1000);
  pthread_exit(NULL);
}

/* It is not taken for dead: its session goes on. */
static void who_has_no_main_thread_is_told_that_none_reads_it(void **state) {
  (void)state;
  struct pair p;
  struct perigee_session_info info;
  int status;
  open_for_raw_peers(&p);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0)
    lives_without_a_main_thread(p.address);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  struct perigee_session *s = perigee_session(p.engine[1], e.session);
  perigee_session_describe(s, &info, sizeof info);
  assert_true(info.pull);
  while (waitpid(pid, &status, WNOHANG) == 0)
    quiet(&p, 1);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail_msg("the process ended with %x, not 0", (unsigned)status);
  until(&p, 1, PERIGEE_EVENT_LOST);
  perigee_session_free(s);
  quiet(&p, 1);
  close_to_raw_peers(&p);
}

/* ---- Other users -------------------------------------------------------------*/

static const char abstract[] = "perigee-peers-test";

/* Connects as another user; returns the type of the first frame received. */
static int heard_by_nobody(void) {
  static struct wire wire;
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  struct frame f = {.type = 0};
  int fd = socket_of_liar();
  int length = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "%s-%d",
                        abstract, getppid());
  socklen_t size =
      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
  if (setresuid(65534, 65534, 65534) != 0 ||
      connect(fd, (struct sockaddr *)&un, size) != 0)
    return 255;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  poll(&p, 1, (int)(PATIENCE / MS));
  wire_read(fd, &wire);
  return wire_next(&wire, &f) > 0 ? f.type : 0;
}

static void other_users_hear_nothing_of_this_process(void **state) {
  (void)state;
  struct pair p;
  struct perigee_listener *listener;
  char address[80];
  int status = 0;
  if (geteuid() != 0)
    skip();
  open_for_raw_peers(&p);
  snprintf(address, sizeof address, "unix:@%s-%d", abstract, getpid());
  assert_int_equal(perigee_listen(p.engine[1], address, &listener), 0);
  pid_t pid = fork();
  if (pid == 0)
    _exit(heard_by_nobody());
  until_refused(&p, 1);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(WEXITSTATUS(status), FRAME_REFUSE);
  perigee_listener_close(listener);
  close_to_raw_peers(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      ON_BOTH(who_ended_before_it_was_accepted_is_nobody),
      ON_BOTH(what_was_said_by_a_pid_before_vouches_for_nobody),
      ON_BOTH(a_pid_that_is_anothers_by_now_is_not_read),
      ON_BOTH(who_speaks_for_another_cannot_have_it_read),
      ON_BOTH(who_speaks_for_itself_is_pulled_from),
      cmocka_unit_test(who_has_no_main_thread_is_told_that_none_reads_it),
      cmocka_unit_test(other_users_hear_nothing_of_this_process),
  };
  return cmocka_run_group_tests_name("peers", tests, NULL, NULL);
}
