/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of a call to a sleeping server: an eventfd ping-pong. The server
 * sleeps in poll(2) on its eventfd. The caller writes to it and, like a caller
 * of Perigee, polls shared memory for the answer. A round starts when both have
 * been quiet for 300 us.
 */
#include "floor.h"

#include <poll.h>
#include <sys/eventfd.h>

enum { QUIET = 300000 };

struct wake {
  int bell;
  uint8_t (*slots)[PAGE]; /* request and reply */
  _Atomic uint64_t *asked, *answered;
  uint64_t sequence;
};

static void ring(int bell) {
  uint64_t one = 1;
  if (write(bell, &one, sizeof one) != sizeof one)
    die("eventfd");
}

static void sleep_until_rung(int bell) {
  uint64_t rung;
  struct pollfd ear = {bell, POLLIN, 0};
  while (poll(&ear, 1, -1) < 1)
    ;
  if (read(bell, &rung, sizeof rung) != sizeof rung)
    die("eventfd");
}

static void serve(void *context) {
  struct wake *wake = context;
  for (uint64_t sequence = 1;; sequence++) {
    sleep_until_rung(wake->bell);
    if (atomic_load(wake->asked) != sequence)
      return;
    memcpy(wake->slots[1], wake->slots[0], LINE);
    atomic_store(wake->answered, sequence);
  }
}

static double round_one(struct wake *wake, uint8_t *buffer) {
  struct timespec quiet = {0, QUIET};
  uint64_t sequence = wake->sequence++;
  nanosleep(&quiet, NULL);
  stamp(buffer, LINE, sequence);
  int64_t begin = now();
  memcpy(wake->slots[0], buffer, LINE);
  atomic_store(wake->asked, sequence);
  ring(wake->bell);
  while (atomic_load(wake->answered) != sequence)
    ;
  int64_t end = now();
  if (check(wake->slots[1], LINE, sequence))
    wrong_bytes();
  return (double)(end - begin);
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  uint8_t buffer[LINE] = {0};
  pin(options.pins[0]);
  uint8_t *shared = memory(4 * (size_t)PAGE, MAP_SHARED);
  struct wake wake = {.bell = eventfd(0, EFD_NONBLOCK), .sequence = 1};
  wake.slots = (uint8_t(*)[PAGE])shared;
  wake.asked = (_Atomic uint64_t *)(shared + 2 * PAGE);
  wake.answered = (_Atomic uint64_t *)(shared + 3 * PAGE);
  struct samples samples = samples_new();
  start(&options, serve, &wake);
  for (int i = 0; i < 3; i++)
    round_one(&wake, buffer);
  int64_t end = now() + (int64_t)(options.seconds * 1e9);
  while (now() < end && samples.count < SAMPLES)
    samples.ns[samples.count++] = round_one(&wake, buffer);
  report(&options, "wake", argv[optind], &samples);
  ending();
  ring(wake.bell);
  return wait(NULL) < 0;
}
