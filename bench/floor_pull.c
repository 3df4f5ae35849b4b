/* SPDX-License-Identifier: Apache-2.0
 *
 * The floors of a raw echo, whose bytes begin and end in private memory:
 *   pull     each side reads the other's buffer with process_vm_readv;
 *   overlap  each direction goes through shared memory in chunks of 32 KiB,
 *            the sender filling one while the receiver empties another.
 * The reply starts when the whole request is there, as a handler would see it.
 * Each is measured with one buffer at the handler and ("-2") with two used in
 * turn, because the caches favour the one at some sizes and the other at
 * others.
 */
#include "floor.h"

#include <sys/uio.h>

enum { CHUNK = 32 << 10, CHUNKS = 8, PULL = 1, OVERLAP = 2, STOP = 3 };

/* One direction: how many messages and chunks its sender has published, and
 * how many chunks its receiver has emptied, each on a line of its own. */
struct lane {
  _Alignas(LINE) _Atomic uint64_t sequence;
  uint64_t way;
  uint64_t views; /* buffers of the handler that are used in turn */
  uint64_t length;
  _Alignas(LINE) _Atomic uint64_t filled;
  _Alignas(LINE) _Atomic uint64_t emptied;
  _Alignas(PAGE) uint8_t chunks[CHUNKS][CHUNK];
};

/* Both processes have the same addresses in private memory of their own. */
struct pull {
  struct lane *request, *reply;
  uint8_t *buffer; /* the caller's */
  uint8_t *views;  /* the handler's, two */
  uint8_t *into;   /* the caller's, for the reply */
  size_t most;
  pid_t caller, handler;
  uint64_t sequence;
};

static uint8_t *view_of(const struct pull *pull, uint64_t sequence) {
  return pull->views + sequence % pull->request->views * pull->most;
}

static void await(_Atomic uint64_t *at, uint64_t value) {
  while (atomic_load_explicit(at, memory_order_acquire) < value)
    ;
}

static void publish(_Atomic uint64_t *at, uint64_t value) {
  atomic_store_explicit(at, value, memory_order_release);
}

static void fill(struct lane *lane, const uint8_t *from, size_t length) {
  uint64_t filled = atomic_load(&lane->filled);
  for (size_t at = 0; at < length; at += CHUNK, filled++) {
    size_t part = length - at < CHUNK ? length - at : CHUNK;
    await(&lane->emptied, filled < CHUNKS ? 0 : filled - CHUNKS + 1);
    memcpy(lane->chunks[filled % CHUNKS], from + at, part);
    publish(&lane->filled, filled + 1);
  }
}

static void drain(struct lane *lane, uint8_t *to, size_t length) {
  uint64_t emptied = atomic_load(&lane->emptied);
  for (size_t at = 0; at < length; at += CHUNK, emptied++) {
    size_t part = length - at < CHUNK ? length - at : CHUNK;
    await(&lane->filled, emptied + 1);
    memcpy(to + at, lane->chunks[emptied % CHUNKS], part);
    publish(&lane->emptied, emptied + 1);
  }
}

static void read_peer(pid_t peer, uint8_t *to, uint8_t *from, size_t length) {
  struct iovec here = {to, length}, there = {from, length};
  if (process_vm_readv(peer, &here, 1, &there, 1, 0) != (ssize_t)length)
    die("process_vm_readv");
}

static void serve(void *context) {
  struct pull *pull = context;
  touch((char *)pull->request, sizeof *pull->request);
  touch((char *)pull->reply, sizeof *pull->reply);
  memset(pull->views, 0, 2 * pull->most);
  for (uint64_t sequence = 1;; sequence++) {
    await(&pull->request->sequence, sequence);
    size_t length = pull->request->length;
    uint8_t *view = view_of(pull, sequence);
    switch (pull->request->way) {
    case PULL:
      read_peer(pull->caller, view, pull->buffer, length);
      publish(&pull->reply->sequence, sequence);
      break;
    case OVERLAP:
      drain(pull->request, view, length);
      fill(pull->reply, view, length);
      break;
    default:
      return;
    }
  }
}

static void request(struct pull *pull, uint64_t way, size_t length) {
  pull->request->way = way;
  pull->request->length = length;
  publish(&pull->request->sequence, pull->sequence++);
}

static void round_one(struct pull *pull, int way, size_t length, double *ns) {
  uint64_t sequence = pull->sequence;
  stamp(pull->buffer, length, sequence);
  int64_t begin = now();
  request(pull, (uint64_t)way, length);
  if (way == PULL) {
    await(&pull->reply->sequence, sequence);
    read_peer(pull->handler, pull->into, view_of(pull, sequence), length);
  } else {
    fill(pull->request, pull->buffer, length);
    drain(pull->reply, pull->into, length);
  }
  *ns = (double)(now() - begin);
  if (check(pull->into, length, sequence))
    wrong_bytes();
}

static void measure_views(struct pull *pull, const struct options *options,
                          int way, uint64_t views, const char *size,
                          struct samples *samples) {
  static const char *const names[] = {"pull", "pull-2", "overlap", "overlap-2"};
  size_t length = strtoull(size, NULL, 10);
  int64_t begin = now(), span = (int64_t)(options->seconds * 1e9 / 4);
  pull->request->views = views;
  memset(pull->into, 0, length);
  for (int i = 0; i < 3 || now() - begin < span / 8; i++)
    round_one(pull, way, length, samples->ns);
  int64_t end = now() + span;
  while (samples->count < 3 || (now() < end && samples->count < SAMPLES))
    round_one(pull, way, length, &samples->ns[samples->count++]);
  if (memcmp(pull->into, pull->buffer, length) != 0)
    wrong_bytes();
  report(options, names[2 * (way == OVERLAP) + (views == 2)], size, samples);
}

static void measure(struct pull *pull, const struct options *options, int way,
                    const char *size, struct samples *samples) {
  measure_views(pull, options, way, 1, size, samples);
  measure_views(pull, options, way, 2, size, samples);
}

/* Where reading a peer's memory is forbidden, only the chunks are measured. */
static bool may_pull(const struct pull *pull) {
  uint8_t byte;
  struct iovec here = {&byte, 1}, there = {pull->views, 1};
  return process_vm_readv(pull->handler, &here, 1, &there, 1, 0) == 1;
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  struct pull pull = {
      .most = largest(argc, argv), .caller = getpid(), .sequence = 1};
  pin(options.pins[0]);
  pull.request = memory(sizeof *pull.request, MAP_SHARED);
  pull.reply = memory(sizeof *pull.reply, MAP_SHARED);
  pull.buffer = memory(pull.most, MAP_PRIVATE);
  pull.views = memory(2 * pull.most, MAP_PRIVATE);
  pull.into = memory(pull.most, MAP_PRIVATE);
  struct samples samples = samples_new();
  pull.handler = start(&options, serve, &pull);
  bool pulls = may_pull(&pull);
  for (int i = optind; i < argc; i++) {
    if (pulls)
      measure(&pull, &options, PULL, argv[i], &samples);
    measure(&pull, &options, OVERLAP, argv[i], &samples);
  }
  ending();
  request(&pull, STOP, 0);
  return wait(NULL) < 0;
}
