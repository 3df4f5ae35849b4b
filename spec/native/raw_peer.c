/* SPDX-License-Identifier: Apache-2.0 */
#include "session/sessions.h"
#include "raw_peer.h"
#include "support_inside.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int visit(struct pair *p) {
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  memcpy(un.sun_path, p->path, sizeof p->path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof un), 0);
  return fd;
}

void say(int fd, const void *bytes, size_t length, const int *fds,
         uint32_t count) {
  char control[CMSG_SPACE(sizeof(int) * 32)] = {0};
  struct iovec v = {(void *)(uintptr_t)bytes, length};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  if (count) {
    struct cmsghdr *c = (struct cmsghdr *)(void *)control;
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS,
                          .cmsg_len = CMSG_LEN(sizeof(int) * count)};
    memcpy(CMSG_DATA(c), fds, sizeof(int) * count);
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(sizeof(int) * count);
  }
  sendmsg(fd, &m, MSG_NOSIGNAL);
}

void say_frame(int fd, const struct frame *f, const int *fds, uint32_t count) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  say(fd, bytes, wire_encode(f, bytes), fds, count);
}

struct frame good_hello(void) {
  struct frame f = {.type = FRAME_HELLO};
  f.hello = (struct hello){.magic = HELLO_MAGIC,
                           .version_min = PROTOCOL_MIN,
                           .version_max = PROTOCOL_MAX,
                           .nonce = 2};
  return f;
}

struct frame good_terms(void) {
  struct frame f = {.type = FRAME_TERMS};
  f.terms = (struct terms){.epoch = 1,
                           .ring = 65536,
                           .eager = 8192,
                           .message = PAYLOAD_MAX,
                           .typed = 1 << 20,
                           .operations = 16384,
                           .transports = 1,
                           .transport = {"shm"}};
  return f;
}

void say_hello(int fd) {
  struct frame hello = good_hello(), terms = good_terms();
  say_frame(fd, &hello, NULL, 0);
  say_frame(fd, &terms, NULL, 0);
}

void friend_served(struct pair *p) {
  struct perigee_message m = {.head = "hi", .length = 2, .timeout = -1};
  int op = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &m), 0);
  ended(p, 0, op, 0);
}

/* Whether the other side has closed the connection. */
static bool cut(int fd) {
  uint8_t bytes[4096];
  ssize_t n;
  while ((n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
    ;
  return n == 0;
}

void until_cut(struct pair *p, int fd) {
  int64_t end = clock_now() + 2 * PATIENCE;
  while (!cut(fd)) {
    quiet(p, 1);
    if (clock_now() > end)
      fail_msg("it is still heard");
  }
  close(fd);
}

void open_for_raw_peers(struct pair *p) {
  struct perigee_options o;
  variant_options(&variant_default, &o);
  o.hello_timeout = PATIENCE;
  o.hellos = HELLOS;
  pair_open_with(p, (void *)(uintptr_t)&variant_default, &o);
}

void hurry(struct pair *p, bool on) {
  set_hello_timeout(p->engine[1], on ? 100 * MS : PATIENCE);
}

void until_refused(struct pair *p, uint64_t count) {
  int64_t end = clock_now() + 2 * PATIENCE;
  while (perigee_counters(p->engine[1], NULL)->refused < count &&
         clock_now() < end)
    quiet(p, 1);
  assert_true(perigee_counters(p->engine[1], NULL)->refused >= count);
}

void close_to_raw_peers(struct pair *p) {
  friend_served(p);
  /* Serving it may have accepted more of those that wait to be accepted. */
  int64_t end = clock_now() + AT_ONCE;
  while (perigee_counters(p->engine[1], NULL)->sessions > 1 &&
         clock_now() < end)
    quiet(p, 1);
  assert_int_equal(perigee_counters(p->engine[1], NULL)->sessions, 1);
  pair_close(p);
}
