/* SPDX-License-Identifier: Apache-2.0
 *
 * counted.c - both ends of an operation in one thread, for callgrind
 *
 *   counted inplace|raw|write shm|tcp SIZE COUNT
 *
 * count.lua collects what runs inside counted() only: COUNT operations, each of
 * which calls asks() once and serves() once, and takes() once where there is an
 * event to wait for. So asks() and takes() are the caller's instructions, and
 * serves() are the server's. The bytes of each operation are new, and checked
 * outside of these three.
 *
 * Nothing that is counted depends on time or on the machine's load. The two
 * engines take turns, so that each poll finds what it looks for; over TCP a
 * poll begins when the kernel has delivered something. The engines' clock is a
 * counter of its readings, and what they take for random is always the same.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "perigee.h"

#ifdef __clang__ /* which makes no clones */
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noinline, noclone))
#endif

enum { BATCH = 16, WARM = 300, TICK = 1000, TURNS = 1000000, SOCKETS = 64 };
static const int64_t LIMIT = 10000 * INT64_C(1000000000), MOMENT = 1000000;

enum operation { INPLACE, RAW, WRITE, OPERATIONS };
static const char *const NAMES[] = {"inplace", "raw", "write"};

static struct {
  struct perigee_engine *caller, *server;
  struct perigee_session *session;
  struct perigee_region *memory; /* the caller's: what goes out, what comes */
  struct perigee_region *there;  /* the server's */
  struct perigee_prepared *prepared;
  enum operation operation;
  bool tcp;
  size_t size;
  uint8_t *out, *in;
  const uint8_t *reply; /* where it was seen */
  int64_t readings;     /* of the engines' clock */
  uint64_t dice;
  struct pollfd sockets[SOCKETS];
  nfds_t socket_count;
} it;

static void must(int status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "counted: %s: %s\n", what, perigee_status_name(status));
  exit(1);
}

static void wrong(const char *what) {
  fprintf(stderr, "counted: %s\n", what);
  exit(1);
}

static int64_t counter(void *context) {
  (void)context;
  return ++it.readings * TICK;
}

static int same_dice(void *context, void *bytes, uint64_t length) {
  (void)context;
  for (uint64_t i = 0; i < length; i++) {
    it.dice = it.dice * UINT64_C(6364136223846793005) + 1442695040888963407;
    ((uint8_t *)bytes)[i] = (uint8_t)(it.dice >> 56);
  }
  return 0;
}

/* ---- What is counted ------------------------------------------------------ */

/* Waits until the kernel has delivered something, which it mostly has. It gives
 * up soon, as it may be a side that has to go on sending. What does not come by
 * a socket is there already. */
static APART void delivered(void) {
  if (it.tcp && poll(it.sockets, it.socket_count, 1) < 0)
    wrong("poll");
}

/* Returns the operation, or PERIGEE_INLINE if it has ended. */
static APART int asks(void) {
  if (it.operation == WRITE)
    return perigee_post(it.prepared, LIMIT);
  if (it.operation == RAW) {
    struct perigee_message m = {
        .slice = {{it.memory}, 0, it.size, 1, it.size},
        .into = {{it.memory}, it.size, it.size, 1, it.size},
        .timeout = LIMIT};
    return perigee_call(it.session, &m);
  }
  struct perigee_message m = {
      .method = 1, .capacity = it.size, .timeout = LIMIT};
  struct perigee_loan loan;
  must(perigee_call_begin(it.session, it.size, &loan), "call_begin");
  memcpy(loan.pointer, it.out, it.size);
  return perigee_call_commit(it.session, &m, it.size);
}

static void answer(const struct perigee_event *e) {
  struct perigee_loan loan;
  if (e->method == 0) {
    struct perigee_message m = {.head = e->pointer, .length = e->length};
    must(perigee_reply(it.server, e->operation, &m), "reply");
    return;
  }
  must(perigee_reply_begin(it.server, e->operation, e->capacity, &loan),
       "reply_begin");
  memcpy(loan.pointer, e->pointer, e->length);
  must(perigee_reply_commit(it.server, e->operation, e->length), "commit");
}

static APART void serves(void) {
  struct perigee_event events[BATCH];
  int count = perigee_poll(it.server, events, BATCH);
  for (int i = 0; i < count; i++)
    if (events[i].kind == PERIGEE_EVENT_REQUEST)
      answer(&events[i]);
}

/* Returns whether the operation has ended. */
static APART bool takes(void) {
  struct perigee_event e;
  if (perigee_poll(it.caller, &e, 1) == 0)
    return false;
  must(e.status, "result");
  it.reply = it.operation == INPLACE ? e.pointer : it.in;
  return true;
}

static void change(void) {
  static uint64_t round;
  round++;
  memcpy(it.out, &round, sizeof round);
  memcpy(it.out + it.size - sizeof round, &round, sizeof round);
}

static void check(void) {
  if (it.operation == WRITE)
    it.reply = perigee_region_pointer(it.there);
  if (memcmp(it.reply, it.out, it.size) != 0)
    wrong("wrong bytes");
}

/* A caller always polls once in vain, unless the operation ended at once. */
static inline __attribute__((always_inline)) void repeat(long count) {
  for (; count > 0; count--) {
    change();
    int operation = asks(), turns = 0;
    must(operation, "submit");
    while (operation != PERIGEE_INLINE && !takes()) {
      delivered();
      serves();
      delivered();
      if (++turns == TURNS)
        wrong("it never ends");
    }
    check();
  }
}

static APART void counted(long count) {
  repeat(count);
}

/* ---- What is not ----------------------------------------------------------- */

static struct perigee_engine *opened(void) {
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options_init(&o, sizeof o);
  o.clock = counter;
  o.random = same_dice;
  o.secret = "";
  o.faults = "";
  o.pull = 0; /* some sandboxes forbid it, and copy as if it were 0 */
  must(perigee_engine_open(&o, &engine), "engine");
  return engine;
}

/* Both engines go on until an event of the caller's. */
static struct perigee_event await(void) {
  struct perigee_engine *both[] = {it.caller, it.server};
  struct perigee_event e;
  for (int i = 0; i < TURNS; i++) {
    perigee_wait(both, 2, MOMENT);
    serves();
    if (perigee_poll(it.caller, &e, 1) == 1)
      return e;
  }
  wrong("nothing happens");
  return e;
}

static void connect_both(void) {
  struct perigee_listener *listener;
  char address[64] = "tcp://127.0.0.1:0";
  if (!it.tcp)
    snprintf(address, sizeof address, "unix:/tmp/perigee-counted-%d",
             (int)getpid());
  it.server = opened();
  it.caller = opened();
  must(perigee_listen(it.server, address, &listener), "listen");
  must(perigee_connect(it.caller, perigee_listener_address(listener),
                       it.tcp ? "tcp" : "shm", LIMIT),
       "connect");
  struct perigee_event e = await();
  must(e.status, "connect");
  it.session = perigee_session(it.caller, e.session);
}

static void take_memory(void) {
  size_t all = 2 * it.size;
  must(perigee_region_alloc(it.caller, NULL, all, PERIGEE_LOCAL, NULL,
                            &it.memory),
       "region");
  must(perigee_region_alloc(it.server, "there", all,
                            PERIGEE_READ | PERIGEE_WRITE, NULL, &it.there),
       "region");
  it.out = perigee_region_pointer(it.memory);
  it.in = it.out + it.size;
  memset(it.out, 1, all);
}

static void prepare(void) {
  must(perigee_lookup(it.session, "there", LIMIT), "lookup");
  struct perigee_event e = await();
  must(e.status, "lookup");
  struct perigee_transfer t = {.local = {{it.memory}, 0, it.size, 1, it.size}};
  t.remote = t.local;
  t.remote.remote = (struct perigee_remote *)(uintptr_t)e.pointer;
  must(perigee_prepare(it.session, PERIGEE_OP_WRITE, &t, 1, 0, &it.prepared),
       "prepare");
}

/* The process' sockets over TCP that may be read. */
static void find_sockets(void) {
  for (int fd = 3; fd < 1024 && it.socket_count < SOCKETS; fd++) {
    struct sockaddr_storage peer = {0};
    socklen_t length = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 &&
        peer.ss_family == AF_INET)
      it.sockets[it.socket_count++] =
          (struct pollfd){.fd = fd, .events = POLLIN};
  }
}

static bool understood(int argc, char **argv) {
  if (argc != 5)
    return false;
  while (it.operation < OPERATIONS && strcmp(argv[1], NAMES[it.operation]) != 0)
    it.operation++;
  it.tcp = strcmp(argv[2], "tcp") == 0;
  it.size = strtoull(argv[3], NULL, 10);
  return it.operation < OPERATIONS && it.size >= sizeof(uint64_t) &&
         (it.tcp || strcmp(argv[2], "shm") == 0);
}

int main(int argc, char **argv) {
  if (!understood(argc, argv)) {
    fprintf(stderr, "usage: %s inplace|raw|write shm|tcp SIZE COUNT\n",
            argv[0]);
    return 2;
  }
  connect_both();
  take_memory();
  if (it.operation == WRITE)
    prepare();
  if (it.tcp)
    find_sockets();
  repeat(WARM);
  counted(strtol(argv[4], NULL, 10));
  perigee_engine_close(it.caller);
  perigee_engine_close(it.server);
  return 0;
}
