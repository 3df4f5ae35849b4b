/* SPDX-License-Identifier: Apache-2.0
 *
 * Many clients of one cache, in C: how much one cache's process serves. Each has
 * a session of its own, and one request under way. They share a process and its
 * core, and so cost it less than as many clients in Lua.
 *
 *   cache_clients --at SCOPE/NAME --how typed|hits [--pin A,B] [--seconds S]
 *     [--window CLIENTS] [--count KEYS] SIZE
 *
 * typed: calls add(a, b) of the service "bench" of that agent. hits: asks the
 * service "cache" (native/cache/cache.h) for "zipf.SIZE.N" with N from 1 to KEYS
 * as often as Zipf's law says; the value, which begins with N as a double, comes
 * along. One that is missing is put. A sample is a request and its answer, and one
 * more, "share", has the share of hits.
 */
#include "floor.h"

#include <math.h>

#include "cache/cache.h"
#include "inbox.h"

static const int64_t SPIN = 20000000, LIMIT = 600 * INT64_C(1000000000);

enum {
  CLIENTS = 64,
  OPERATIONS = 1 << 16,
  DRAWS = 1 << 20,
  HEAD = 8,     /* of requests and answers */
  PLACE = 56,   /* as cache.h lays it out */
  SMALL = 7168, /* bytes of values that come along */
  KIB = 1024
};

struct client {
  struct perigee_session *session;
  int64_t begun;
  uint32_t key; /* that is asked for */
  bool puts;
  uint8_t request[HEAD + 2 + PERIGEE_CACHE_KEY + 34 + SMALL];
};

static struct {
  const struct options *options;
  struct inbox inbox;
  struct client clients[CLIENTS];
  uint16_t of[OPERATIONS]; /* the client of an operation */
  struct perigee_message message;
  size_t size;
  uint32_t draws[DRAWS];
  uint64_t round, asked, hits;
  bool typed;
} side;

static void must(int status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "cache_clients: %s: %s: %s\n", what,
          perigee_status_name(status), perigee_detail(side.inbox.engine));
  exit(1);
}

/* ---- Keys --------------------------------------------------------------- */

static void draw_all(long count) {
  srand48(now());
  double *sums = malloc((size_t)count * sizeof *sums), sum = 0;
  if (!sums)
    die("malloc");
  for (long n = 0; n < count; n++)
    sums[n] = sum += pow((double)n + 1, -0.99);
  for (int i = 0; i < DRAWS; i++) {
    double at = drand48() * sum;
    long low = 0, high = count - 1;
    while (low < high) {
      long middle = (low + high) / 2;
      if (sums[middle] < at)
        low = middle + 1;
      else
        high = middle;
    }
    side.draws[i] = (uint32_t)low + 1;
  }
  free(sums);
}

static uint8_t *put_number(uint8_t *at, uint64_t number, size_t bytes) {
  memcpy(at, &number, bytes);
  return at + bytes;
}

static uint8_t *put_head(uint8_t *at, enum perigee_cache_request what,
                         uint64_t flags, uint32_t key) {
  uint8_t *text = at + HEAD + 2;
  *at++ = 1;
  *at++ = (uint8_t)what;
  at = put_number(at, flags, 2);
  at = put_number(at, 1, 4);
  int n = snprintf((char *)text, PERIGEE_CACHE_KEY, "zipf.%zu.%u", side.size,
                   (unsigned)key);
  put_number(at, (uint64_t)n, 2);
  return text + n;
}

/* ---- Requests ----------------------------------------------------------- */

static uint64_t ask(struct client *c) {
  c->key = side.draws[side.round++ * 7919 % DRAWS];
  side.asked++;
  return (uint64_t)(put_head(c->request, PERIGEE_CACHE_LOCATE, SMALL / KIB,
                             c->key) -
                    c->request);
}

static uint64_t put(struct client *c) {
  double number = c->key;
  uint8_t *at = put_head(c->request, PERIGEE_CACHE_PUT, 0, c->key);
  memset(at, 0, 28); /* group, ttl, pin, if_absent, no parent, checksum */
  at = put_number(at + 28, side.size, 4);
  memset(at, 1, side.size);
  memcpy(at, &number, sizeof number);
  return (uint64_t)(at + side.size - c->request);
}

static uint64_t add(struct client *c) {
  struct perigee_encoder out;
  c->key = (uint32_t)++side.round;
  perigee_encode_begin(&out, c->request, sizeof c->request);
  perigee_encode_number(&out, c->key);
  perigee_encode_number(&out, 0.5);
  return (uint64_t)perigee_encode_end(&out);
}

static void submit(struct client *c, uint64_t length) {
  struct perigee_message m = side.message;
  m.head = c->request;
  m.length = length;
  int operation = perigee_call(c->session, &m);
  must(operation, "call");
  side.of[operation] = (uint16_t)(c - side.clients);
}

static void begin(struct client *c) {
  c->puts = false;
  c->begun = now();
  submit(c, side.typed ? add(c) : ask(c));
}

/* ---- Answers ------------------------------------------------------------ */

static void check_sum(const struct client *c, const struct perigee_event *e) {
  struct perigee_decoder in;
  struct perigee_value sum;
  if (perigee_decode_event(&in, e) < 0 || perigee_decode(&in, &sum) != 1 ||
      sum.kind != PERIGEE_VALUE_NUMBER || sum.number != c->key + 0.5)
    wrong_bytes();
}

/* Returns the status of an answer's first item. */
static int32_t status_of(const struct perigee_event *e) {
  int32_t status;
  if (e->length < HEAD + 4 || e->pointer[1] == 0)
    wrong_bytes();
  memcpy(&status, e->pointer + HEAD, sizeof status);
  return status;
}

static void check_value(const struct client *c, const struct perigee_event *e) {
  const uint8_t *value = e->pointer + HEAD + 4 + PLACE + 4;
  double number;
  if (e->length != HEAD + 4 + PLACE + 4 + side.size)
    wrong_bytes();
  memcpy(&number, value, sizeof number);
  if (number != c->key || value[side.size - 1] == 0)
    wrong_bytes();
}

/* Returns whether the client has what it wanted. */
static bool settle(struct client *c, const struct perigee_event *e) {
  must(e->status, "reply");
  if (side.typed) {
    check_sum(c, e);
    return true;
  }
  int32_t status = status_of(e);
  if (status == PERIGEE_NOT_FOUND && !c->puts) {
    c->puts = true;
    submit(c, put(c));
    return false;
  }
  if (status != PERIGEE_OK && status != PERIGEE_CACHE_BUSY)
    must(status > -100 ? status : PERIGEE_PROTOCOL, "cache");
  if (!c->puts) {
    check_value(c, e);
    side.hits++;
  }
  return true;
}

static const struct perigee_event *next(void) {
  const struct perigee_event *e = NULL;
  must(inbox_next(&side.inbox, LIMIT, &e), "wait");
  return e;
}

/* One request of each client is under way until then. */
static void measure(struct samples *samples, int64_t until) {
  int under = side.options->window;
  side.asked = side.hits = 0;
  for (int i = 0; i < under; i++)
    begin(&side.clients[i]);
  while (under > 0) {
    const struct perigee_event *e = next();
    if (e->kind == PERIGEE_EVENT_LOST)
      must(PERIGEE_PEER_LOST, "the cache");
    if (e->kind != PERIGEE_EVENT_REPLY)
      continue;
    struct client *c = &side.clients[side.of[e->operation]];
    if (!settle(c, e))
      continue;
    int64_t at = now();
    samples->ns[samples->count++] = (double)(at - c->begun);
    if (at < until && samples->count < SAMPLES - CLIENTS)
      begin(c);
    else
      under--;
  }
}

/* ---- The program -------------------------------------------------------- */

static void connect_all(const char *at) {
  struct perigee_options o;
  struct perigee_entry *entry;
  const char *name = strchr(at, '/');
  char scope[80];
  perigee_options_init(&o, sizeof o);
  o.spin = SPIN;
  o.dead_after = LIMIT;
  must(perigee_engine_open(&o, &side.inbox.engine), "engine");
  if (!name || name - at >= (ptrdiff_t)sizeof scope)
    must(PERIGEE_INVALID, at);
  snprintf(scope, sizeof scope, "%.*s", (int)(name - at), at);
  must(perigee_entry_find(scope, name + 1, &entry), at);
  for (int i = 0; i < side.options->window; i++)
    must(perigee_entry_connect(side.inbox.engine, entry, NULL, LIMIT,
                               &side.clients[i].session),
         at);
  perigee_entry_free(entry);
}

static void find_method(void) {
  struct perigee_service *service;
  struct perigee_method method;
  must(perigee_service_open(side.clients[0].session,
                            side.typed ? "bench" : "cache", LIMIT, &service),
       "service");
  must(perigee_service_method(service, side.typed ? "add" : "ask", &method,
                              sizeof method),
       "method");
  side.message =
      (struct perigee_message){.method = method.id, .timeout = LIMIT};
  if (side.typed)
    side.message.flags = PERIGEE_TYPED | PERIGEE_CHECKED;
  else
    side.message.capacity = HEAD + 4 + PLACE + 4 + SMALL;
  perigee_service_close(service);
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  side.size = largest(argc, argv);
  side.options = &options;
  side.typed = options.how && strcmp(options.how, "typed") == 0;
  side.inbox.under = options.window;
  if (!options.at || options.window > CLIENTS || side.size > SMALL ||
      side.size < sizeof(double) || optind + 1 != argc)
    usage(argv[0]);
  pin(options.pins[0]);
  draw_all(options.count);
  connect_all(options.at);
  find_method();
  struct samples samples = samples_new();
  int64_t span = (int64_t)(options.seconds * 1e9);
  measure(&samples, now() + span / 8);
  samples.count = 0;
  measure(&samples, now() + span);
  if (side.asked)
    printf("sample share %s %.4f 1\n", argv[optind],
           (double)side.hits / (double)side.asked);
  report(&options, side.typed ? "typed" : "hits", argv[optind], &samples);
  perigee_engine_close(side.inbox.engine);
  return 0;
}
