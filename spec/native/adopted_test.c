/* SPDX-License-Identifier: Apache-2.0
 *
 * adopted_test.c - unwanted descriptors from peers, in large numbers, and
 * sockets that linger: closing the last descriptor of one waits until all is
 * sent, though no one will read it. An engine that gets such descriptors keeps
 * serving other peers.
 */
#include "door.h"
#include "raw_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/adopted.h"
#include "support_inside.h"

enum { LINGERS = 30, FLOOD = 200, MESSAGES = 40, PAGE = 4096 };

/* ---- Sockets that linger ---------------------------------------------------- */

/* A socket that has sent what its other end never reads. */
static int lingering(void) {
  static const uint8_t bytes[64 << 10];
  const struct linger long_time = {.l_onoff = 1, .l_linger = LINGERS};
  struct sockaddr_in in = loopback(0);
  socklen_t length = sizeof in;
  int door = socket(AF_INET, SOCK_STREAM, 0);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(door, (struct sockaddr *)&in, length) != 0 || listen(door, 1) != 0 ||
      getsockname(door, (struct sockaddr *)&in, &length) != 0 ||
      connect(fd, (struct sockaddr *)&in, length) != 0 ||
      accept(door, NULL, NULL) < 0)
    _exit(1);
  while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
    ;
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time);
  return fd;
}

static void passes(int to, const char *bytes, size_t length, int fd) {
  say(to, bytes, length, &fd, 1);
  close(fd);
}

/* What a child does at a Unix socket, on which it has sent everything. */
typedef void attack(int to);

static pid_t attacked_by(attack *says, const struct sockaddr_un *at,
                         socklen_t length) {
  int told[2];
  char word;
  assert_int_equal(pipe(told), 0);
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int to = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(to, (const struct sockaddr *)at, length) != 0)
      _exit(1);
    says(to);
    if (write(told[1], "x", 1) != 1)
      _exit(1);
    for (;;)
      pause();
  }
  close(told[1]);
  assert_int_equal(read(told[0], &word, 1), 1);
  close(told[0]);
  return pid;
}

static void part(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

/* A listener under attack keeps serving its honest peer. */
static void goes_on_beside(attack *says) {
  struct pair p;
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  open_for_raw_peers(&p);
  memcpy(un.sun_path, p.path, sizeof p.path);
  pid_t pid = attacked_by(says, &un, sizeof un);
  int64_t begin = clock_now();
  int before = descriptors();
  until_refused(&p, 1);
  friend_served(&p);
  assert_true(clock_now() - begin < LINGERS * 1000 * MS / 2);
  assert_true(descriptors() <= before);
  part(pid);
  close_to_raw_peers(&p);
}

static void unasked(int to) {
  passes(to, "what is this?", 13, lingering());
}

static void part_of_a_frame(int to) {
  passes(to, "x", 1, lingering());
  shutdown(to, SHUT_WR);
}

/* The first frame ends the session; the others stay unread. */
static void behind_the_end(int to) {
  unasked(to);
  for (int i = 0; i < 8; i++)
    unasked(to);
}

static void many_at_once(int to) {
  int fds[16];
  for (int i = 0; i < 16; i++)
    fds[i] = lingering();
  say(to, "what is this?", 13, fds, 16);
  for (int i = 0; i < 16; i++)
    close(fds[i]);
}

static void offered(int to) {
  struct frame offer = {.type = FRAME_OFFER};
  int fds[2] = {lingering(), lingering()};
  uint64_t words[3] = {65536, 8 << 20, 0};
  offer.offer.length = sizeof words;
  offer.offer.fd_count = 2;
  memcpy(offer.offer.bytes, words, sizeof words);
  say_hello(to);
  say_frame(to, &offer, fds, 2);
  close(fds[0]);
  close(fds[1]);
}

static void who_gets_sockets_that_linger_does_not_wait(void **state) {
  static attack *const attacks[] = {unasked, part_of_a_frame, behind_the_end,
                                    many_at_once, offered};
  (void)state;
  for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++)
    goes_on_beside(attacks[i]);
}

/* A peer sends one in a frame for a lane that takes none. */
static void a_word_for_nobody_holds_up_nobody(void **state) {
  struct perigee_event e;
  struct pair p;
  pair_open(&p, *state);
  int fd = lingering();
  int64_t begin = clock_now();
  assert_true(say_to_lane(p.session[0], fd));
  close(fd);
  do {
    look_at_clock(p.engine[1]);
    poll_side(&p, 1);
  } while (!taken(&p, 1, &e));
  assert_int_equal(e.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  assert_true(clock_now() - begin < LINGERS * 1000 * MS / 2);
  pair_drop(&p);
}

/* ---- In bulk ----------------------------------------------------------------- */

static void floods(int to) {
  int fds[FLOOD];
  char control[CMSG_SPACE(sizeof fds)] = {0};
  struct iovec v = {(void *)(uintptr_t) "what?", 5};
  struct msghdr m = {.msg_iov = &v,
                     .msg_iovlen = 1,
                     .msg_control = control,
                     .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                        .cmsg_type = SCM_RIGHTS,
                        .cmsg_len = CMSG_LEN(sizeof fds)};
  int null = open("/dev/null", O_RDONLY);
  for (int i = 0; i < FLOOD; i++)
    fds[i] = null;
  memcpy(CMSG_DATA(c), fds, sizeof fds);
  for (int i = 0; i < MESSAGES; i++)
    sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void descriptors_in_bulk_are_not_kept(void **state) {
  (void)state;
  goes_on_beside(floods);
}

/* Each stranger has begun a frame, and sent as many descriptors as allowed. */
static void the_last_descriptors_are_no_strangers(void **state) {
  (void)state;
  enum { CAME = HELLOS, LEFT = 50, EACH = 4 };
  struct pair p;
  struct rlimit all, few;
  struct perigee_session *late[2];
  int came[CAME], null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int nulls[EACH] = {null, null, null, null};
  const struct frame f = good_hello();
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  uint32_t length = wire_encode(&f, bytes);
  open_for_raw_peers(&p);
  getrlimit(RLIMIT_NOFILE, &all);
  few = (struct rlimit){(rlim_t)descriptors() + CAME + LEFT, all.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int i = 0; i < CAME; i++) {
    came[i] = visit(&p);
    say(came[i], bytes, length / 2, nulls, EACH);
    quiet(&p, 300); /* the engine reads it */
  }
  pair_dial(&p, late);
  for (int i = 0; i < CAME; i++)
    close(came[i]);
  setrlimit(RLIMIT_NOFILE, &all);
  close(null);
  quiet(&p, 200);
  pair_drop(&p);
}

/* ---- What is memory ------------------------------------------------------------ */

static void only_sealed_memory_is_that(void **state) {
  (void)state;
  uint64_t length = 0;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW, pipes[2];
  int memory = memfd_create("spec", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(memory, PAGE), 0);
  assert_false(adopted_memory(memory, seals, &length));
  assert_int_equal(fcntl(memory, F_ADD_SEALS, seals), 0);
  assert_true(adopted_memory(memory, seals, &length));
  assert_int_equal(length, PAGE);
  assert_int_equal(pipe(pipes), 0);
  int others[] = {open("/dev/shm", O_RDONLY | O_DIRECTORY), /* tmpfs, too */
                  open("/dev/null", O_RDONLY), open("/dev/shm", O_PATH),
                  pipes[0], socket(AF_UNIX, SOCK_STREAM, 0)};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    assert_false(adopted_memory(others[i], seals, &length));
    close(others[i]);
  }
  close(pipes[1]);
  close(memory);
}

static const struct variant inproc = {"inproc", "inproc", "host", 1, NULL};

/* ---- Long files ------------------------------------------------------------- */

enum { LONG_FILE = 384 << 20 };

static int64_t own_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A file in memory of which nobody else has a descriptor. */
static int file_of(uint64_t length) {
  int fd = memfd_create("long", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  assert_int_equal(fallocate(fd, 0, 0, (off_t)length), 0);
  return fd;
}

static int long_file(void) {
  return file_of(LONG_FILE);
}

static int64_t time_of_closing(int fd, bool adopted) {
  int64_t before = own_time();
  if (adopted)
    adopted_close(fd);
  else
    close(fd);
  return own_time() - before;
}

static int64_t time_of_unmapping(bool adopted) {
  int fd = long_file();
  void *at = mmap(NULL, LONG_FILE, PROT_READ, MAP_SHARED, fd, 0);
  assert_ptr_not_equal(at, MAP_FAILED);
  close(fd);
  int64_t before = own_time();
  if (adopted)
    adopted_unmap(at, LONG_FILE, LONG_FILE);
  else
    munmap(at, LONG_FILE);
  return own_time() - before;
}

static bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

/* Another thread frees it, in its own time. */
static void the_last_of_a_long_file_is_let_go_aside(void **state) {
  (void)state;
  int fd = long_file();
  int64_t plain = time_of_closing(long_file(), false);
  assert_true(time_of_closing(fd, true) < plain / 4);
  for (int64_t end = clock_now() + INT64_C(20000000000); is_open(fd);)
    assert_true(clock_now() < end);
  plain = time_of_unmapping(false);
  assert_true(time_of_unmapping(true) < plain / 4);
}

/* Hears what the peer says of its first segment, until so many are there;
 * returns how long this thread took. */
static int64_t time_of_hearing(struct pair *p, uint32_t there, int fd) {
  assert_true(say_segment(p->session[0], 0, fd >= 0, fd));
  if (fd >= 0)
    close(fd);
  int64_t before = own_time();
  do {
    look_at_clock(p->engine[1]);
    poll_side(p, 1);
  } while (segments_shown(p->session[1]) != there);
  return own_time() - before;
}

/* The peer lets go of a long segment, and then says so. */
static void a_long_segment_that_goes_is_let_go_aside(void **state) {
  enum { ALL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE };
  struct perigee_options o;
  struct pair p;
  variant_options(*state, &o);
  o.pool = UINT64_C(48) << 30;
  o.mapped = UINT64_C(1) << 40;
  pair_open_with(&p, *state, &o);
  uint64_t length = segment_bytes(p.session[0]);
  assert_true(length >= LONG_FILE);
  int64_t plain = time_of_closing(file_of(length), false);
  int fd = file_of(length);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL), 0);
  time_of_hearing(&p, 1, fd);
  assert_true(time_of_hearing(&p, 0, -1) < plain / 4);
  pair_close(&p);
}

/* Private memory, in small pages, all of which are there. */
static uint8_t *long_memory(void) {
  uint8_t *at = mmap(NULL, LONG_FILE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(at, MAP_FAILED);
  madvise(at, LONG_FILE, MADV_NOHUGEPAGE);
  memset(at, 7, LONG_FILE);
  return at;
}

static int64_t time_of_emptying(uint8_t *at, bool adopted) {
  int64_t before = own_time();
  if (adopted)
    adopted_empty(at, LONG_FILE);
  else
    madvise(at, LONG_FILE, MADV_DONTNEED);
  int64_t took = own_time() - before;
  for (size_t i = 0; i < LONG_FILE; i += LONG_FILE / 16)
    assert_int_equal(at[i], 0);
  munmap(at, LONG_FILE);
  return took;
}

static void long_memory_is_emptied_aside(void **state) {
  (void)state;
  int64_t plain = time_of_emptying(long_memory(), false);
  assert_true(time_of_emptying(long_memory(), true) < plain / 4);
}

/* A child process would keep it to its own end. */
static void a_child_has_none_of_what_is_let_go(void **state) {
  (void)state;
  uint8_t *at = long_memory();
  int how;
  adopted_unmap(at, LONG_FILE, LONG_FILE);
  pid_t child = fork();
  if (child == 0)
    _exit(msync(at + LONG_FILE - PAGE, PAGE, MS_ASYNC) == 0);
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_int_equal(how, 0);
}

/* Regions that peers may map, and others. */
static void a_long_region_is_let_go_aside(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int access = 0; access <= PERIGEE_READ; access += PERIGEE_READ) {
    int64_t plain = time_of_emptying(long_memory(), false);
    struct perigee_region *region =
        region_of(&p, 0, access ? "long" : NULL, LONG_FILE, access);
    uint8_t *at = perigee_region_pointer(region);
    madvise(at, LONG_FILE, MADV_NOHUGEPAGE);
    memset(at, 7, LONG_FILE);
    int64_t before = own_time();
    assert_int_equal(perigee_region_close(region, false), PERIGEE_OK);
    assert_true(own_time() - before < plain / 4);
  }
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(who_gets_sockets_that_linger_does_not_wait),
      OVER(inproc, a_word_for_nobody_holds_up_nobody),
      cmocka_unit_test(descriptors_in_bulk_are_not_kept),
      cmocka_unit_test(the_last_descriptors_are_no_strangers),
      cmocka_unit_test(only_sealed_memory_is_that),
      cmocka_unit_test(the_last_of_a_long_file_is_let_go_aside),
      OVER(variant_default, a_long_segment_that_goes_is_let_go_aside),
      cmocka_unit_test(long_memory_is_emptied_aside),
      cmocka_unit_test(a_child_has_none_of_what_is_let_go),
      OVER(inproc, a_long_region_is_let_go_aside),
  };
  return cmocka_run_group_tests_name("adopted", tests, NULL, NULL);
}
