/* SPDX-License-Identifier: Apache-2.0
 *
 * A checked echo over Perigee with both ends in C, which measures the core
 * without Lua. It runs over shared memory, or with --at tcp://HOST:PORT over
 * TCP, with the secret in PERIGEE_SECRET. --how raw: bytes are sent from a
 * region and received into another; --how inplace (the default): a loan is
 * filled, copied to the reply's loan, and one byte of each page of the reply is
 * read in place. --window: how many are under way.
 */
#include "base/stamp.h"
#include "echoes.h"
#include "inbox.h"

static const int64_t SPIN = 20000000, LIMIT = 10 * INT64_C(1000000000);

enum { OPERATIONS = 1 << 16 };

struct side {
  struct inbox inbox;
  struct perigee_session *session;
  struct perigee_region *region; /* for each slot the request, then the reply */
  uint8_t *bytes;
  const struct options *options;
  bool raw;      /* --how */
  int operation; /* of the slot, if there is one only */
  uint16_t slots[OPERATIONS];
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
  perigee_options_init(&o, sizeof o);
  STAMPS_OPEN();
  o.spin = SPIN;
  side->inbox.under = side->options->window;
  must(perigee_engine_open(&o, &side->inbox.engine), "engine");
}

static const struct perigee_event *next(struct side *side) {
  const struct perigee_event *e = NULL;
  must(inbox_next(&side->inbox, LIMIT, &e), "wait");
  return e;
}

/* ---- The server --------------------------------------------------------- */

static void answer(struct side *side, const struct perigee_event *e) {
  struct perigee_loan loan;
  if (e->method == 0) {
    struct perigee_message m = {.head = e->pointer, .length = e->length};
    must(perigee_reply(side->inbox.engine, e->operation, &m), "reply");
    return;
  }
  must(
      perigee_reply_begin(side->inbox.engine, e->operation, e->capacity, &loan),
      "reply_begin");
  perigee_copy(loan.pointer, e->pointer, e->length);
  must(perigee_reply_commit(side->inbox.engine, e->operation, e->length),
       "reply_commit");
}

static void serve(void *context) {
  struct side *side = context;
  struct perigee_listener *listener;
  open_side(side);
  must(perigee_listen(side->inbox.engine, side->address, &listener), "listen");
  for (;;) {
    const struct perigee_event *e = next(side);
    if (e->kind == PERIGEE_EVENT_REQUEST) {
      STAMP(STAMP_HANDLER);
      answer(side, e);
    }
    if (e->kind == PERIGEE_EVENT_LOST)
      break;
  }
  perigee_engine_close(side->inbox.engine);
}

/* ---- The caller --------------------------------------------------------- */

static void dial(struct side *side) {
  struct perigee_event e = {.status = PERIGEE_NOT_FOUND};
  for (int i = 0; e.status == PERIGEE_NOT_FOUND && i < 1000; i++) {
    usleep(10000);
    must(perigee_connect(side->inbox.engine, side->address,
                         side->options->at ? "tcp" : "shm", LIMIT),
         "connect");
    e = *next(side);
  }
  must(e.status, "connect");
  side->session = perigee_session(side->inbox.engine, e.session);
}

static int submit_raw(struct side *side, int slot, size_t length) {
  uint64_t at = 2 * (uint64_t)slot * length;
  struct perigee_message m = {
      .slice = {{side->region}, at, length, 1, length},
      .into = {{side->region}, at + length, length, 1, length},
      .timeout = LIMIT};
  return perigee_call(side->session, &m);
}

static int submit_inplace(struct side *side, int slot, size_t length) {
  struct perigee_message m = {
      .method = 1, .capacity = length, .timeout = LIMIT};
  struct perigee_loan loan;
  must(perigee_call_begin(side->session, length, &loan), "call_begin");
  perigee_copy(loan.pointer, side->bytes + 2 * (size_t)slot * length, length);
  return perigee_call_commit(side->session, &m, length);
}

static void submit(void *context, int slot, size_t length) {
  struct side *side = context;
  STAMP(STAMP_ASKED);
  side->operation = side->raw ? submit_raw(side, slot, length)
                              : submit_inplace(side, slot, length);
  must(side->operation, "call");
  side->slots[side->operation] = (uint16_t)slot;
}

static int collect(void *context, size_t length, const uint8_t **reply) {
  struct side *side = context;
  const struct perigee_event *e =
      side->options->window == 1
          ? inbox_await(&side->inbox, side->operation, SPIN)
          : next(side);
  bool raw = side->raw;
  STAMP(STAMP_DONE);
  must(e->status, "reply");
  if ((raw ? e->slice : e->length) != length)
    wrong_bytes();
  int slot = side->slots[e->operation];
  *reply = raw ? side->bytes + (2 * (size_t)slot + 1) * length : e->pointer;
  return slot;
}

static void measure(struct side *side, const char *size,
                    struct samples *samples) {
  static struct caller caller;
  size_t length = strtoull(size, NULL, 10);
  int window = side->options->window;
  size_t all = 2 * (size_t)window * length;
  must(perigee_region_alloc(side->inbox.engine, NULL, all, PERIGEE_LOCAL, NULL,
                            &side->region),
       "region");
  side->bytes = perigee_region_pointer(side->region);
  memset(side->bytes, 1, all);
  caller = (struct caller){.options = side->options,
                           .what = side->raw ? "raw" : "inplace",
                           .window = window,
                           .in_place = !side->raw,
                           .context = side,
                           .submit = submit,
                           .collect = collect};
  for (int i = 0; i < window; i++)
    caller.buffers[i] = side->bytes + 2 * (size_t)i * length;
  caller_measure(&caller, size, samples);
  must(perigee_region_close(side->region, true), "close");
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  static struct side side;
  side.options = &options;
  side.raw = options.how && strcmp(options.how, "raw") == 0;
  largest(argc, argv);
  if (options.window > WINDOW)
    usage(argv[0]);
  if (options.at)
    snprintf(side.address, sizeof side.address, "%s", options.at);
  else
    snprintf(side.address, sizeof side.address, "unix:/tmp/perigee-echo-%d",
             (int)getpid());
  start(&options, serve, &side);
  open_side(&side);
  dial(&side);
  struct samples samples = samples_new();
  for (char **size = argv + optind; *size; size++)
    measure(&side, *size, &samples);
  ending();
  perigee_engine_close(side.inbox.engine);
  if (wait(NULL) < 0)
    die("wait");
  if (!options.at)
    unlink(side.address + strlen("unix:"));
  return 0;
}
