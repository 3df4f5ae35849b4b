/* SPDX-License-Identifier: Apache-2.0 */
#include "door.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "session/sessions.h"

static const struct variant inproc = {"inproc, host", "inproc", "host", 0,
                                      NULL};

/* hellos: how many strangers it admits at a time; 0: as many as by default. */
static void open_engine(struct pair *p, int side, const char *secret,
                        const char *scope, uint32_t hellos) {
  struct perigee_options o;
  variant_options(&inproc, &o);
  o.hello_timeout = 60000 * MS; /* for slow machines */
  o.secret = secret;
  o.scope = scope;
  o.hellos = hellos ? hellos : o.hellos;
  assert_int_equal(perigee_engine_open(&o, &p->engine[side]), 0);
}

void open_side(struct pair *p, int side, const char *secret,
               const char *scope) {
  open_engine(p, side, secret, scope, 0);
}

void open_port(struct pair *p) {
  assert_int_equal(
      perigee_listen(p->engine[1], "tcp://127.0.0.1:0", &p->listener), 0);
  perigee_tell_refused(p->engine[1], 0);
  snprintf(p->address, sizeof p->address, "%s",
           perigee_listener_address(p->listener));
}

void open_with(struct pair *p, const char *dialer, const char *listener) {
  *p = (struct pair){.variant = &inproc};
  open_side(p, 0, dialer, "cluster");
  open_side(p, 1, listener, "cluster");
  open_port(p);
}

void open_to(struct pair *p, const char *secret, uint32_t hellos) {
  *p = (struct pair){.variant = &inproc};
  open_side(p, 0, secret, "cluster");
  open_engine(p, 1, secret, "cluster", hellos);
  open_port(p);
}

int port_of(const struct pair *p) {
  return atoi(strrchr(p->address, ':') + 1);
}

struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int raw_connect(const struct pair *p) {
  struct sockaddr_in in = loopback(port_of(p));
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
  return fd;
}

void poll_both(struct pair *p) {
  for (int side = 0; side < 2; side++)
    poll_side(p, side);
}

void hear(struct pair *p, int fd, struct heard *h, int most) {
  static struct wire wire;
  int64_t end = clock_now() + 20000 * MS;
  wire.length = 0;
  *h = (struct heard){.count = 0};
  while (!h->cut && h->count < most) {
    poll_both(p);
    int got = wire_read(fd, &wire);
    h->cut = got == 0 || got == PERIGEE_PEER_LOST;
    while (h->count < HEARD && wire_next(&wire, &h->frame[h->count]) > 0)
      h->count++;
    assert_true(clock_now() < end);
  }
}

void is_refusal(const struct frame *f, int status, const char *word) {
  assert_int_equal(f->type, FRAME_REFUSE);
  assert_int_equal(f->refuse.status, status);
  assert_non_null(strstr(f->refuse.text, word));
}

void told(struct pair *p, int status, const char *word) {
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REFUSED);
  const char *text = (const char *)e.pointer;
  assert_int_equal(e.code, 1);
  assert_int_equal(e.operation, -1);
  assert_int_equal(e.length, strlen(text));
  if (e.status != status || !strstr(text, word) || !strstr(text, "tcp://") ||
      !strstr(text, p->address))
    fail_msg("%d: %s", e.status, text);
  assert_null(strstr(text, "horse"));
}

struct frame tcp_hello(void) {
  struct frame f = good_hello();
  memset(f.hello.public_key, 9, HANDSHAKE_KEY);
  return f;
}
