/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of an echo: two processes, a cache-line ping-pong, and exactly two
 * copies: from the caller's buffer to the request slot in shared memory, and
 * from there to the reply slot. The caller reads one byte of each page of the
 * reply in place. With --copies 3 it copies the reply into its own buffer
 * instead. With --window N, N messages are under way at once, each in a slot of
 * its own. Otherwise it is measured with one slot each way and with two used in
 * turn, because the caches favour the one at some sizes and the other at
 * others.
 */
#include "floor.h"

/* A slot's header fills its first line; the payload follows. The sequence is
 * written last, so a process that sees it also sees the payload. */
struct slot {
  _Alignas(LINE) _Atomic uint64_t sequence;
  uint64_t length; /* of a request; 0: no more will come */
  _Alignas(LINE) uint8_t payload[];
};

struct echo {
  const struct options *options;
  uint64_t slots;
  size_t slot; /* bytes of a slot */
  size_t room; /* bytes of all slots one way */
  char *requests, *replies;
  uint8_t *buffer, *into; /* the caller's own */
  uint64_t sequence;      /* of the next message; starts at 1 */
};

static struct slot *slot_at(const struct echo *echo, char *slots,
                            uint64_t sequence) {
  return (struct slot *)(slots + sequence % echo->slots * echo->slot);
}

static void await(struct slot *slot, uint64_t sequence) {
  while (atomic_load_explicit(&slot->sequence, memory_order_acquire) !=
         sequence)
    ;
}

static void publish(struct slot *slot, uint64_t sequence) {
  atomic_store_explicit(&slot->sequence, sequence, memory_order_release);
}

static void serve(void *context) {
  struct echo *echo = context;
  touch(echo->requests, echo->room);
  memset(echo->replies, 0, echo->room);
  for (uint64_t sequence = 1;; sequence++) {
    struct slot *request = slot_at(echo, echo->requests, sequence);
    struct slot *reply = slot_at(echo, echo->replies, sequence);
    await(request, sequence);
    if (!request->length)
      return;
    memcpy(reply->payload, request->payload, request->length);
    publish(reply, sequence);
  }
}

static void submit(struct echo *echo, size_t length) {
  struct slot *request = slot_at(echo, echo->requests, echo->sequence);
  memcpy(request->payload, echo->buffer, length);
  request->length = length;
  publish(request, echo->sequence++);
}

/* Returns 0 if the reply is right. */
static unsigned collect(struct echo *echo, uint64_t sequence, size_t length) {
  struct slot *reply = slot_at(echo, echo->replies, sequence);
  await(reply, sequence);
  if (echo->options->copies < 3)
    return check(reply->payload, length, sequence);
  memcpy(echo->into, reply->payload, length);
  return 0;
}

static void round_one(struct echo *echo, size_t length, double *ns) {
  uint64_t sequence = echo->sequence;
  stamp(echo->buffer, length, sequence);
  int64_t begin = now();
  submit(echo, length);
  unsigned bad = collect(echo, sequence, length);
  *ns = (double)(now() - begin);
  if (bad ||
      (echo->options->copies == 3 && check(echo->into, length, sequence)))
    wrong_bytes();
}

/* Collects the oldest and submits one. A latency is from submit to collect. */
static long rounds_window(struct echo *echo, size_t length, double *ns,
                          int64_t end) {
  int64_t begun[1024];
  uint64_t oldest = echo->sequence, window = (uint64_t)echo->options->window;
  long count = 0;
  for (int64_t at = now(); at < end || oldest < echo->sequence;) {
    while (at < end && echo->sequence - oldest < window) {
      stamp(echo->buffer, length, echo->sequence);
      begun[echo->sequence % window] = at = now();
      submit(echo, length);
    }
    if (collect(echo, oldest, length) ||
        (echo->options->copies == 3 && check(echo->into, length, oldest)))
      wrong_bytes();
    at = now();
    ns[count % SAMPLES] = (double)(at - begun[oldest++ % window]);
    count++;
  }
  return count < SAMPLES ? count : SAMPLES;
}

static void measure(struct echo *echo, const char *size,
                    struct samples *samples) {
  size_t length = strtoull(size, NULL, 10);
  int64_t begin = now(), span = (int64_t)(echo->options->seconds * 1e9);
  for (int i = 0; i < 3 || now() - begin < span / 8; i++)
    round_one(echo, length, samples->ns);
  int64_t end = now() + span;
  if (echo->options->window > 1)
    samples->count = rounds_window(echo, length, samples->ns, end);
  else
    while (samples->count < 3 || (now() < end && samples->count < SAMPLES))
      round_one(echo, length, &samples->ns[samples->count++]);
  uint8_t *reply = slot_at(echo, echo->replies, echo->sequence - 1)->payload;
  if (memcmp(reply, echo->buffer, length) != 0)
    wrong_bytes();
  report(echo->options, echo->slots == 2 ? "echo-2" : "echo", size, samples);
}

/* Measures all sizes with that many slots, each with a new server. */
static void run(struct echo *echo, uint64_t slots, char **sizes,
                struct samples *samples) {
  echo->slots = slots;
  echo->sequence = 1;
  memset(echo->requests, 0, echo->room);
  memset(echo->replies, 0, echo->room);
  start(echo->options, serve, echo);
  for (; *sizes; sizes++)
    measure(echo, *sizes, samples);
  ending();
  struct slot *last = slot_at(echo, echo->requests, echo->sequence);
  last->length = 0;
  publish(last, echo->sequence);
  if (wait(NULL) < 0)
    die("wait");
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  size_t most = largest(argc, argv);
  uint64_t window = (uint64_t)options.window;
  struct echo echo = {.options = &options};
  if (options.window > 1024)
    usage(argv[0]);
  if (window == 1)
    options.seconds /= 2;
  pin(options.pins[0]);
  echo.slot = (sizeof(struct slot) + most + PAGE - 1) / PAGE * PAGE + LINE;
  echo.room = echo.slot * (window > 1 ? window : 2);
  echo.requests = memory(echo.room, MAP_SHARED);
  echo.replies = memory(echo.room, MAP_SHARED);
  echo.buffer = memory(most, MAP_PRIVATE);
  echo.into = memory(most, MAP_PRIVATE);
  struct samples samples = samples_new();
  run(&echo, window, argv + optind, &samples);
  if (window == 1)
    run(&echo, 2, argv + optind, &samples);
  return 0;
}
