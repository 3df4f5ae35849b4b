/* SPDX-License-Identifier: Apache-2.0
 *
 * A checked echo of Perigee's over shared memory with both ends in C: what the
 * core costs without Lua. --how raw: a region's bytes in, into another; inplace
 * (the default): a loan is filled, copied to the reply's loan, and one byte of
 * each page of the reply is read in place.
 */
#include "floor.h"
#include "perigee.h"

static const int64_t SPIN = 20000000, LIMIT = 10 * INT64_C(1000000000);

struct side {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_region *region; /* raw: request, then reply */
  uint8_t *buffer, *target;
  const struct options *options;
  char address[64];
};

static void must(int status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, perigee_status_name(status));
  exit(1);
}

static void open_side(struct side *side) {
  struct perigee_options o;
  perigee_options(&o);
  o.spin = SPIN;
  must(perigee_engine_open(&o, &side->engine), "engine");
}

static struct perigee_event next(struct side *side) {
  struct perigee_event e;
  while (perigee_poll(side->engine, &e, 1) == 0)
    must(perigee_wait(&side->engine, 1, LIMIT), "wait");
  return e;
}

/* ---- The server --------------------------------------------------------- */

static void answer(struct side *side, const struct perigee_event *e) {
  struct perigee_loan loan;
  if (e->method == 0) {
    struct perigee_message m = {.head = e->pointer, .length = e->length};
    must(perigee_reply(side->engine, e->operation, &m), "reply");
    return;
  }
  must(perigee_reply_begin(side->engine, e->operation, e->capacity, &loan),
       "reply_begin");
  memcpy(loan.pointer, e->pointer, e->length);
  must(perigee_reply_commit(side->engine, e->operation, e->length),
       "reply_commit");
}

static void serve(void *context) {
  struct side *side = context;
  struct perigee_listener *listener;
  open_side(side);
  must(perigee_listen(side->engine, side->address, &listener), "listen");
  for (;;) {
    struct perigee_event e = next(side);
    if (e.kind == PERIGEE_EVENT_REQUEST)
      answer(side, &e);
    if (e.kind == PERIGEE_EVENT_LOST)
      break;
  }
  perigee_engine_close(side->engine);
}

/* ---- The caller --------------------------------------------------------- */

static void dial(struct side *side) {
  struct perigee_event e = {.status = PERIGEE_NOT_FOUND};
  for (int i = 0; e.status == PERIGEE_NOT_FOUND && i < 1000; i++) {
    usleep(10000);
    must(perigee_connect(side->engine, side->address, "shm", LIMIT), "connect");
    e = next(side);
  }
  must(e.status, "connect");
  side->session = perigee_session(side->engine, e.session);
}

static bool is_raw(const struct side *side) {
  return side->options->how && strcmp(side->options->how, "raw") == 0;
}

static int submit_raw(struct side *side, size_t length) {
  struct perigee_message m = {
      .slice = {{side->region}, 0, length, 1, length},
      .into = {{side->region}, length, length, 1, length},
      .timeout = LIMIT};
  return perigee_call(side->session, &m);
}

static int submit_inplace(struct side *side, size_t length) {
  struct perigee_message m = {
      .method = 1, .capacity = length, .timeout = LIMIT};
  struct perigee_loan loan;
  must(perigee_call_begin(side->session, length, &loan), "call_begin");
  memcpy(loan.pointer, side->buffer, length);
  return perigee_call_commit(side->session, &m, length);
}

static struct perigee_event collect(struct side *side, int operation) {
  struct perigee_event e;
  must(operation, "call");
  while (perigee_await(side->engine, operation, &e, SPIN) == 0)
    must(perigee_poll(side->engine, &e, 1) == 0 ? 0 : PERIGEE_SYSTEM, "await");
  must(e.status, "reply");
  return e;
}

static void round_one(struct side *side, size_t length, uint64_t round,
                      double *ns) {
  stamp(side->buffer, length, round);
  int64_t begin = now();
  bool raw = is_raw(side);
  int operation = raw ? submit_raw(side, length) : submit_inplace(side, length);
  struct perigee_event e = collect(side, operation);
  const uint8_t *reply = raw ? side->target : e.pointer;
  unsigned bad = check(reply, length, round);
  *ns = (double)(now() - begin);
  if (bad || (raw ? e.slice : e.length) != length)
    wrong_bytes();
}

static void measure(struct side *side, const char *size,
                    struct samples *samples) {
  size_t length = strtoull(size, NULL, 10);
  must(perigee_region_alloc(side->engine, NULL, 2 * length, PERIGEE_LOCAL, NULL,
                            &side->region),
       "region");
  side->buffer = perigee_region_pointer(side->region);
  side->target = side->buffer + length;
  memset(side->buffer, 1, 2 * length);
  int64_t begin = now(), span = (int64_t)(side->options->seconds * 1e9);
  uint64_t round = 0;
  while (round < 3 || now() - begin < span / 8)
    round_one(side, length, round++, samples->ns);
  for (int64_t end = now() + span;
       samples->count < 3 || (now() < end && samples->count < SAMPLES);)
    round_one(side, length, round++, &samples->ns[samples->count++]);
  if (is_raw(side) && memcmp(side->target, side->buffer, length) != 0)
    wrong_bytes();
  report(side->options, is_raw(side) ? "raw" : "inplace", size, samples);
  must(perigee_region_close(side->region, true), "close");
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  struct side side = {.options = &options};
  largest(argc, argv);
  snprintf(side.address, sizeof side.address, "unix:/tmp/perigee-echo-%d",
           (int)getpid());
  start(&options, serve, &side);
  open_side(&side);
  dial(&side);
  struct samples samples = samples_new();
  for (char **size = argv + optind; *size; size++)
    measure(&side, *size, &samples);
  ending();
  perigee_engine_close(side.engine);
  if (wait(NULL) < 0)
    die("wait");
  return 0;
}
