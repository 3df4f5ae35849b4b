/* SPDX-License-Identifier: Apache-2.0
 *
 * choice_test.c - a program's own transports are chosen by what their tables
 * say that they need: a Unix socket, a TCP connection, devices, sealing. The
 * core knows none of them by name.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/session.h"
#include "core/stats_file.h"
#include "support.h"
#include "transport/transport.h"

/* Each test changes it before the pair is opened. */
static struct perigee_transport own;
enum { MANY = 40 };
static const struct perigee_transport *list[MANY + 1] = {&own};

static void own_begin(const char *name, enum transport_socket socket) {
  own = perigee_transport_inproc;
  own.alone = NULL;
  own.name = name;
  own.socket = (uint8_t)socket;
}

/* A session dialed at that address, for that transport or NULL. A session whose
 * handshake is late would not move, so the timeout is long. */
static void open_at(struct pair *p, const char *address, const char *transport,
                    int encrypt) {
  static struct variant v;
  struct perigee_options o;
  v = (struct variant){"own", transport, "host", 1, NULL};
  *p = (struct pair){.variant = &v};
  perigee_options_init(&o, sizeof o);
  o.transports = list;
  o.hello_timeout = 20000 * MS;
  o.encrypt = encrypt;
  o.secret = encrypt ? "the secret of these tests" : "";
  for (int side = 0; side < 2; side++)
    assert_int_equal(perigee_engine_open(&o, &p->engine[side]), 0);
  assert_int_equal(perigee_listen(p->engine[1], address, &p->listener), 0);
  snprintf(p->address, sizeof p->address, "%s",
           perigee_listener_address(p->listener));
  pair_dial(p, p->session);
}

static const char *path(void) {
  static char address[80];
  snprintf(address, sizeof address, "unix:%s", pair_path_next());
  unlink(address + strlen("unix:"));
  return address;
}

static void carried_by(struct pair *p, const char *transport, const char *why) {
  for (int side = 0; side < 2; side++) {
    struct perigee_session_info info;
    perigee_session_describe(p->session[side], &info, sizeof info);
    assert_string_equal(info.transport, transport);
    if (!strstr(info.reason, why))
      fail_msg("\"%s\" says nothing of \"%s\"", info.reason, why);
  }
}

static void a_call_comes_back(struct pair *p) {
  struct perigee_message m = {.head = "over", .length = 4, .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(perigee_reply(p->engine[1], e.operation, &m), 0);
  assert_int_equal(ended(p, 0, call, 0).length, 4);
}

static void one_that_needs_a_unix_socket_moves_there(void **state) {
  const char *const asked[] = {"near", NULL};
  (void)state;
  own_begin("near", SOCKET_UNIX);
  for (int i = 0; i < 2; i++) {
    struct pair p;
    open_at(&p, "tcp://127.0.0.1:0", asked[i], 0);
    carried_by(&p, "near", "moved from TCP to shared memory");
    a_call_comes_back(&p);
    pair_close(&p);
  }
}

static void one_that_needs_tcp_moves_to_loopback(void **state) {
  struct pair p;
  (void)state;
  own_begin("far", SOCKET_TCP);
  open_at(&p, path(), "far", 0);
  carried_by(&p, "far", "TCP over loopback");
  a_call_comes_back(&p);
  pair_close(&p);
}

static struct transport_sockets own_sockets;
static struct lane *dialer; /* it does not get its socket */

static int open_own(const struct lane_options *options, struct lane **lane,
                    struct offer *offer, char reason[REASON]) {
  int status = transport_tcp.open(options, lane, offer, reason);
  if (status < 0)
    return status;
  lane_by(*lane, &own);
  if (options->dialed)
    dialer = *lane;
  return status;
}

static int take_none(struct lane *lane, int fd, const uint8_t *bytes,
                     uint32_t length) {
  if (lane != dialer)
    return transport_tcp.sockets->take(lane, fd, bytes, length);
  own.open = transport_tcp.open; /* the next one does */
  close(fd);
  return PERIGEE_NO_MEMORY;
}

/* Its listener hears of the session that moved, and of that one's end. */
static void one_that_cannot_take_its_socket_over_returns(void **state) {
  struct pair p;
  (void)state;
  own = transport_tcp;
  own_sockets = *transport_tcp.sockets;
  own_sockets.take = take_none;
  own.name = "far";
  own.open = open_own;
  own.sockets = &own_sockets;
  open_at(&p, path(), "far", 0);
  until(&p, 1, PERIGEE_EVENT_LOST);
  p.session[1] = perigee_session(p.engine[1],
                                 until(&p, 1, PERIGEE_EVENT_ACCEPTED).session);
  carried_by(&p, "far", "");
  a_call_comes_back(&p);
  pair_close(&p);
}

/* Does the listener of a session over TCP offer the program's transport? */
static bool is_offered(int encrypt) {
  struct pair p;
  bool found = false;
  open_at(&p, "tcp://127.0.0.1:0", "tcp", encrypt);
  carried_by(&p, "tcp", "");
  const struct terms *terms = &p.session[0]->peer.terms;
  for (uint32_t i = 0; i < terms->transports; i++)
    found = found || strcmp(terms->transport[i], own.name) == 0;
  pair_close(&p);
  return found;
}

static int no_cable(const struct fabric_options *options,
                    struct fabric **fabric, char reason[REASON]) {
  (void)options, (void)fabric;
  snprintf(reason, REASON, "no cable is plugged in");
  return PERIGEE_UNSUPPORTED;
}

static void one_without_its_devices_is_not_offered_over_tcp(void **state) {
  const struct transport_fabric fabric = {.start = no_cable};
  (void)state;
  own_begin("device", SOCKET_ANY);
  assert_true(is_offered(0));
  own.fabric = &fabric;
  assert_false(is_offered(0));
}

/* The core remembers of so many transports whether they have their devices; a
 * later one is as one without. */
static void one_after_very_many_has_no_devices(void **state) {
  const struct transport_fabric fabric = {.start = no_cable};
  struct perigee_session_info info;
  struct perigee_transport last;
  struct pair p;
  (void)state;
  own_begin("plain", SOCKET_ANY);
  last = own;
  last.name = "last";
  last.fabric = &fabric;
  for (int i = 0; i < MANY; i++)
    list[i] = i < MANY - 1 ? &own : &last;
  open_at(&p, "tcp://127.0.0.1:0", NULL, 0);
  carried_by(&p, "plain", "");
  perigee_session_describe(p.session[0], &info, sizeof info);
  assert_non_null(strstr(info.considered, "last: no device here"));
  pair_close(&p);
  memset(list + 1, 0, sizeof list - sizeof *list);
}

/* A fabric whose device goes while a session uses it: its descriptor reports
 * that, and goes on. */
static int device = -1;
static bool gone;

static int device_start(const struct fabric_options *options,
                        struct fabric **fabric, char reason[REASON]) {
  (void)options, (void)reason;
  *fabric = (struct fabric *)&device;
  return PERIGEE_OK;
}

static void device_rests(struct fabric *fabric) {
  (void)fabric;
}

static bool device_turn(struct fabric *fabric) {
  (void)fabric;
  return false;
}

static const char *device_dead(const struct fabric *fabric, bool *used) {
  (void)fabric;
  *used = true;
  return gone ? "it was pulled out" : NULL;
}

static int device_descriptors(struct fabric *fabric, int *fds, int capacity) {
  (void)fabric, (void)capacity;
  fds[0] = device;
  return 1;
}

/* In a child. */
static void device_is_let_go(struct fabric *fabric) {
  (void)fabric;
  close(device);
  device = -1;
}

static const struct transport_fabric devices = {
    .start = device_start,
    .stop = device_rests,
    .turn = device_turn,
    .dead = device_dead,
    .descriptors = device_descriptors,
    .ready = device_rests,
    .arm = device_rests,
    .forked = device_is_let_go,
};

/* Does the engine sleep, once it has handled what there is? */
static bool comes_to_rest(struct perigee_engine *engine) {
  struct pollfd fd = {.fd = perigee_fd(engine), .events = POLLIN};
  struct perigee_event events[8];
  for (int i = 0; i < 1000; i++) {
    perigee_poll(engine, events, 8);
    if (poll(&fd, 1, 0) == 0)
      return true;
  }
  return false;
}

static void a_forked_child_lets_go_of_a_device(void **state) {
  struct pair p;
  int status;
  (void)state;
  own_begin("device", SOCKET_ANY);
  own.fabric = &devices;
  device = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  gone = false;
  open_at(&p, path(), "device", 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    perigee_engine_close(p.engine[0]);
    _exit(device != -1);
  }
  waitpid(child, &status, 0);
  if (status != 0)
    fail_msg("the child keeps the device, or ended with status %x", status);
  assert_int_equal(fcntl(device, F_GETFD), FD_CLOEXEC);
  pair_close(&p);
  close(device);
}

static void a_device_that_is_gone_ends_no_sleep(void **state) {
  struct pair p;
  (void)state;
  own_begin("device", SOCKET_ANY);
  own.fabric = &devices;
  device = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  open_at(&p, path(), "device", 0);
  carried_by(&p, "device", "");
  assert_true(comes_to_rest(p.engine[0]));
  gone = true;
  assert_int_equal(eventfd_write(device, 1), 0);
  for (int side = 0; side < 2; side++)
    if (!comes_to_rest(p.engine[side]))
      fail_msg("a device that is gone keeps side %d awake", side);
  pair_close(&p);
  close(device);
  gone = false;
}

static void why(const char *transport, uint8_t shm, uint8_t verbs) {
  struct pair p;
  open_at(&p, path(), transport, 0);
  const struct perigee_stats_session *row = &p.engine[0]->stats.at->sessions[0];
  assert_int_equal(row->id, p.session[0]->id);
  assert_int_equal(row->dialed, 1);
  assert_int_equal(row->not_shm, shm);
  assert_int_equal(row->not_verbs, verbs);
  assert_int_equal(p.engine[1]->stats.at->sessions[0].dialed, 0);
  pair_close(&p);
}

static void the_stats_tell_why_it_is_none_that_is_better(void **state) {
  (void)state;
  own_begin("first", SOCKET_ANY);
  why(NULL, PERIGEE_STATS_WHY_SECOND, PERIGEE_STATS_WHY_SECOND);
  why("shm", PERIGEE_STATS_WHY_NOT, PERIGEE_STATS_WHY_NOT);
  why("tcp", PERIGEE_STATS_WHY_ASKED, PERIGEE_STATS_WHY_ASKED);
}

static int page; /* the bytes of each; 0: as the system has it */

int getpagesize(void) {
  return page > 0 ? page : (int)getauxval(AT_PAGESZ);
}

/* Sessions on a system whose pages are not those of the shared memory. */
static void one_that_the_system_cannot_have_is_not_offered(void **state) {
  struct perigee_session_info info;
  struct pair p;
  (void)state;
  own_begin("own", SOCKET_TCP);
  page = 64 << 10;
  open_at(&p, path(), "tcp", 0);
  int dial = perigee_connect(p.engine[0], p.address, NULL, 20000 * MS);
  until(&p, 1, PERIGEE_EVENT_ACCEPTED);
  struct perigee_event e = ended(&p, 0, dial, PERIGEE_OK);
  struct perigee_session *other = perigee_session(p.engine[0], e.session);
  perigee_session_describe(other, &info, sizeof info);
  assert_string_not_equal(info.transport, "shm");
  assert_non_null(strstr(info.considered, "shm: shared memory needs pages of"));
  dial = perigee_connect(p.engine[0], p.address, "shm", 20000 * MS);
  e = ended(&p, 0, dial, PERIGEE_UNSUPPORTED);
  assert_non_null(strstr((const char *)e.pointer, "needs pages of 4096 bytes"));
  pair_drop(&p);
}

static int pages_as_they_are(void **state) {
  (void)state;
  page = 0;
  return 0;
}

static void
one_that_does_not_seal_is_not_offered_where_all_is_sealed(void **s) {
  (void)s;
  own_begin("plain", SOCKET_ANY);
  assert_true(is_offered(0));
  assert_false(is_offered(PERIGEE_ENCRYPT_ALL));
  assert_false(is_offered(PERIGEE_ENCRYPT_AUTH));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_that_needs_a_unix_socket_moves_there),
      cmocka_unit_test(one_that_needs_tcp_moves_to_loopback),
      cmocka_unit_test(one_that_cannot_take_its_socket_over_returns),
      cmocka_unit_test(one_without_its_devices_is_not_offered_over_tcp),
      cmocka_unit_test(one_after_very_many_has_no_devices),
      cmocka_unit_test(a_forked_child_lets_go_of_a_device),
      cmocka_unit_test(a_device_that_is_gone_ends_no_sleep),
      cmocka_unit_test(the_stats_tell_why_it_is_none_that_is_better),
      cmocka_unit_test_teardown(one_that_the_system_cannot_have_is_not_offered,
                                pages_as_they_are),
      cmocka_unit_test(
          one_that_does_not_seal_is_not_offered_where_all_is_sealed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
