/* SPDX-License-Identifier: Apache-2.0
 *
 * thread_test.c - an engine's own thread (option progress), seen from outside:
 * whom it wakes. eventfd_write is the test's, which counts.
 */
#include "support.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STRANGERS = 8 };

static atomic_int wakes;

int eventfd_write(int fd, eventfd_t value) {
  wakes++;
  return write(fd, &value, sizeof value) == sizeof value ? 0 : -1;
}

static struct perigee_engine *engine_with_thread(void) {
  struct perigee_engine *engine;
  struct perigee_options o;
  perigee_options(&o);
  o.secret = "sixteen letters of secret";
  o.progress = 1;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

/* Longer than the thread waits before it takes over, and goes to sleep. */
static void let_it_sleep(void) {
  const struct timespec t = {0, 50 * MS};
  nanosleep(&t, NULL);
}

/* Who is no peer comes, and is sent away. */
static void stranger(int port) {
  struct sockaddr_in in = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char byte;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(send(fd, "\n\n\n\n\n\n\n\n", 8, MSG_NOSIGNAL), 8);
  while (recv(fd, &byte, 1, 0) > 0)
    ;
  close(fd);
}

/* It would do nothing for a moment then, as the program seemed to be there. */
static void it_does_not_wake_itself(void **state) {
  (void)state;
  struct perigee_engine *engine = engine_with_thread();
  struct perigee_listener *listener;
  assert_int_equal(perigee_listen(engine, "tcp://127.0.0.1:0", &listener), 0);
  int port = atoi(strrchr(perigee_listener_address(listener), ':') + 1);
  let_it_sleep();
  int before = wakes;
  for (int i = 0; i < STRANGERS; i++) {
    stranger(port);
    let_it_sleep();
  }
  assert_int_equal(perigee_counters(engine, NULL)->refused, STRANGERS);
  assert_int_equal(wakes, before);
  perigee_engine_close(engine);
  assert_true(wakes > before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_does_not_wake_itself),
  };
  return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}
