/* SPDX-License-Identifier: Apache-2.0
 *
 * flood_test.c - thousands of strangers a second, who say nothing, half of a
 * handshake or a wrong one, beside honest peers. Every honest peer connects.
 * PERIGEE_SECONDS=n makes each case last; measurements are printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flood.h"
#include "support.h"

enum { RATE = 4000, MOST = 1 << 20 };

static int64_t times[MOST];

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static int64_t lasts(void) {
  const char *given = getenv("PERIGEE_SECONDS");
  return (given ? atoi(given) : 1) * 1000 * MS;
}

static struct perigee_engine *engine_new(void) {
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options_init(&o, sizeof o);
  o.secret = FLOOD_SECRET;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

static struct perigee_event next(struct perigee_engine *engine) {
  struct perigee_event e;
  while (perigee_poll(engine, &e, 1) == 0)
    perigee_wait(&engine, 1, 100 * MS);
  return e;
}

static struct perigee_session *honest(struct perigee_engine *engine,
                                      const char *address,
                                      const char *transport) {
  assert_true(perigee_connect(engine, address, transport, 10000 * MS) >= 0);
  struct perigee_event e = next(engine);
  assert_int_equal(e.kind, PERIGEE_EVENT_CONNECTED);
  if (e.status != PERIGEE_OK)
    print_message("# %s: %.*s\n", perigee_status_name(e.status), (int)e.length,
                  e.pointer ? (const char *)e.pointer : "");
  return e.status == PERIGEE_OK ? perigee_session(engine, e.session) : NULL;
}

static void summary(const char *what, int count, int failed) {
  qsort(times, (size_t)count, sizeof *times, by_size);
  int64_t median = times[count / 2], late = times[count * 99 / 100];
  print_message("# %s: %d, %d failed, p50 %.1f us, p99 %.1f us, most %.1f us\n",
                what, count, failed, (double)median / 1e3, (double)late / 1e3,
                (double)times[count - 1] / 1e3);
}

/* Honest peers connect for a while; returns how many failed. */
static int connects(const char *address, const char *transport) {
  struct perigee_engine *engine = engine_new();
  int count = 0, failed = 0;
  for (int64_t end = clock_now() + lasts(); clock_now() < end; count++) {
    int64_t start = clock_now();
    struct perigee_session *s = honest(engine, address, transport);
    times[count] = clock_now() - start;
    failed += !s;
    if (s)
      perigee_session_free(s);
    perigee_wait(&engine, 1, 5 * MS);
  }
  perigee_engine_close(engine);
  summary("connects", count, failed);
  return failed;
}

static void calls(const char *address) {
  struct perigee_engine *engine = engine_new();
  char bytes[64] = "";
  struct perigee_message m = {.head = bytes, .length = 64, .timeout = -1};
  struct perigee_event e;
  int count = 0;
  struct perigee_session *s = honest(engine, address, NULL);
  assert_non_null(s);
  for (int64_t end = clock_now() + lasts();
       clock_now() < end && count < MOST;) {
    int64_t start = clock_now();
    assert_true(perigee_call(s, &m) >= 0);
    while (perigee_poll(engine, &e, 1) == 0)
      ;
    assert_int_equal(e.status, PERIGEE_OK);
    times[count++] = clock_now() - start;
  }
  perigee_engine_close(engine);
  summary("calls of 64 B", count, 0);
}

static void nobody_fails(enum crowd crowd, const char *from,
                         const char *transport) {
  struct server server;
  uint64_t refused;
  int64_t spent;
  server_start(&server);
  const char *address = transport ? server.tcp : server.path;
  pid_t pid = flood_start(&server, crowd, from, RATE);
  int failed = connects(address, transport);
  if (getenv("PERIGEE_SECONDS"))
    calls(server.path);
  int came = flood_end(pid);
  server_end(&server, &refused, &spent);
  print_message("# %d came, %d refused, %.1f us each\n", came, (int)refused,
                (double)spent / 1e3 / (refused ? (double)refused : 1));
  assert_int_equal(failed, 0);
}

static void alone(void **state) {
  (void)state;
  struct server server;
  uint64_t refused;
  int64_t spent;
  server_start(&server);
  assert_int_equal(connects(server.tcp, "tcp"), 0);
  assert_int_equal(connects(server.path, NULL), 0);
  if (getenv("PERIGEE_SECONDS"))
    calls(server.path);
  server_end(&server, &refused, &spent);
  assert_int_equal(refused, 0);
}

static void beside_the_silent_of_another_address(void **state) {
  (void)state;
  nobody_fails(CROWD_SILENT, "127.0.0.2", "tcp");
}

static void beside_halves_of_another_address(void **state) {
  (void)state;
  nobody_fails(CROWD_HALF, "127.0.0.2", "tcp");
}

static void beside_wrong_proofs_of_another_address(void **state) {
  (void)state;
  nobody_fails(CROWD_WRONG, "127.0.0.2", "tcp");
}

static void beside_wrong_proofs_of_the_same_address(void **state) {
  (void)state;
  nobody_fails(CROWD_WRONG, "127.0.0.1", "tcp");
}

static void beside_halves_of_the_same_address(void **state) {
  (void)state;
  nobody_fails(CROWD_HALF, "127.0.0.1", "tcp");
}

static void beside_halves_at_a_path(void **state) {
  (void)state;
  nobody_fails(CROWD_HALF, NULL, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(alone),
      cmocka_unit_test(beside_the_silent_of_another_address),
      cmocka_unit_test(beside_halves_of_another_address),
      cmocka_unit_test(beside_wrong_proofs_of_another_address),
      cmocka_unit_test(beside_halves_of_the_same_address),
      cmocka_unit_test(beside_wrong_proofs_of_the_same_address),
      cmocka_unit_test(beside_halves_at_a_path),
  };
  return cmocka_run_group_tests_name("flood", tests, NULL, NULL);
}
