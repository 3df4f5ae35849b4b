/* SPDX-License-Identifier: Apache-2.0
 *
 * A C program that finds an agent by its name and calls its service "bench"
 * (worker.lua), one call after the other by perigee_call_wait: the caller of
 * c_calls.lua.
 *
 *   c_caller --at SCOPE/NAME --how raw|typed [--pin A,B] [--seconds S] SIZE
 *
 * raw: SIZE bytes go out of a region and come into another; they are changed
 * before the time and looked at after it, as from Lua. typed: two numbers are
 * encoded, and their sum is decoded; SIZE only names the row.
 */
#include "floor.h"
#include "perigee.h"

static const int64_t SPIN = 20000000, LIMIT = 10 * INT64_C(1000000000);

struct side {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct perigee_message message;
  uint8_t *bytes; /* of raw: what goes out, and behind it what comes */
  size_t length;
  bool raw;
  uint64_t round;
};

static void must(int status, const char *what, const char *why) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s: %s\n", what, perigee_status_name(status), why);
  exit(1);
}

/* ---- Calls ---------------------------------------------------------------- */

static void call_raw(struct side *side) {
  struct perigee_event e;
  must(perigee_call_wait(side->session, &side->message, &e), "echo", "");
  if (e.slice != side->length)
    wrong_bytes();
}

static void call_typed(struct side *side) {
  uint8_t head[64];
  struct perigee_encoder out;
  struct perigee_decoder in;
  struct perigee_value sum;
  struct perigee_event e;
  double a = (double)side->round;
  perigee_encode_begin(&out, head, sizeof head);
  perigee_encode_number(&out, a);
  perigee_encode_number(&out, 0.5);
  struct perigee_message m = side->message;
  m.head = head;
  m.length = (uint64_t)perigee_encode_end(&out);
  must(perigee_call_wait(side->session, &m, &e), "add", "");
  if (perigee_decode_event(&in, &e) < 0 || perigee_decode(&in, &sum) != 1 ||
      sum.kind != PERIGEE_VALUE_NUMBER || sum.number != a + 0.5)
    wrong_bytes();
}

/* ---- Finding -------------------------------------------------------------- */

static void connect_by_name(struct side *side, const char *at) {
  struct perigee_options o;
  struct perigee_entry *entry;
  const char *name = strchr(at, '/');
  char scope[80];
  perigee_options_init(&o, sizeof o);
  o.spin = SPIN;
  must(perigee_engine_open(&o, &side->engine), "engine", perigee_detail(NULL));
  if (!name || name - at >= (ptrdiff_t)sizeof scope)
    must(PERIGEE_INVALID, at, "it is no SCOPE/NAME");
  snprintf(scope, sizeof scope, "%.*s", (int)(name - at), at);
  must(perigee_entry_find(scope, name + 1, &entry), at, perigee_detail(NULL));
  must(perigee_entry_connect(side->engine, entry, NULL, LIMIT, &side->session),
       at, perigee_detail(side->engine));
  perigee_entry_free(entry);
}

static void find_method(struct side *side) {
  struct perigee_service *service;
  struct perigee_method method;
  must(perigee_service_open(side->session, "bench", LIMIT, &service), "service",
       perigee_detail(side->engine));
  must(perigee_service_method(service, side->raw ? "echo" : "add", &method,
                              sizeof method),
       "method", perigee_detail(NULL));
  side->message =
      (struct perigee_message){.method = method.id, .timeout = LIMIT};
  perigee_service_close(service);
}

static void take_memory(struct side *side) {
  struct perigee_region *region;
  size_t n = side->length;
  must(perigee_region_alloc(side->engine, NULL, 2 * n, PERIGEE_LOCAL, NULL,
                            &region),
       "region", perigee_detail(side->engine));
  side->bytes = perigee_region_pointer(region);
  memset(side->bytes, 1, 2 * n);
  side->message.slice = (struct perigee_slice){{region}, 0, n, 1, n};
  side->message.into = (struct perigee_slice){{region}, n, n, 1, n};
}

/* ---- Measuring ------------------------------------------------------------- */

static int64_t round_one(struct side *side, double *ns) {
  side->round++;
  if (side->raw)
    stamp(side->bytes, side->length, side->round);
  int64_t begun = now();
  (side->raw ? call_raw : call_typed)(side);
  int64_t at = now();
  if (side->raw && check(side->bytes + side->length, side->length, side->round))
    wrong_bytes();
  *ns = (double)(at - begun);
  return at;
}

static long measure(struct side *side, double *ns, int64_t end) {
  long count = 0;
  int64_t at;
  do {
    at = round_one(side, &ns[count++]);
  } while (count < SAMPLES && at < end);
  return count;
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  static struct side side;
  int64_t span = (int64_t)(options.seconds * 1e9);
  side.raw = !options.how || strcmp(options.how, "raw") == 0;
  side.length = largest(argc, argv);
  if (!options.at || optind + 1 != argc)
    usage(argv[0]);
  pin(options.pins[0]);
  connect_by_name(&side, options.at);
  find_method(&side);
  if (side.raw)
    take_memory(&side);
  else
    side.message.flags = PERIGEE_TYPED | PERIGEE_CHECKED;
  struct samples samples = samples_new();
  measure(&side, samples.ns, now() + span / 8);
  samples.count = measure(&side, samples.ns, now() + span);
  report(&options, side.raw ? "raw" : "typed", argv[optind], &samples);
  perigee_engine_close(side.engine);
  return 0;
}
