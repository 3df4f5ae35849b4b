/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/region.h"
#include "session/sessions.h"

/* ---- Defaults ------------------------------------------------------------ */

static int64_t real_clock(void *context) {
  struct timespec t;
  (void)context;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int real_random(void *context, void *bytes, uint64_t length) {
  (void)context;
  return getrandom(bytes, length, 0) == (ssize_t)length ? PERIGEE_OK
                                                        : PERIGEE_SYSTEM;
}

void perigee_options(struct perigee_options *o) {
  *o = (struct perigee_options){.operations = 16384,
                                .sessions = 1024,
                                .regions = 1024,
                                .hellos = 256,
                                .watched = 4096,
                                .hello_timeout = 2000000000,
                                .ring = 64 << 10,
                                .eager = 8 << 10,
                                .message = PAYLOAD_MAX,
                                .typed = (1 << 20) + 4096,
                                .hold = UINT64_MAX,
                                .pool = 1 << 30,
                                .serving = 1024,
                                .mapped = UINT64_C(1) << 46,
                                .untaken = 32 << 20,
                                .spin = -1,
                                .pull = 1,
                                .dead_after = INT64_C(3000000000),
                                .streams = 1,
                                .clock = real_clock,
                                .random = real_random};
}

/* ---- Checks -------------------------------------------------------------- */

/* Has a transport all that an additional lane needs (transport.h)? */
static bool carries_payloads(const struct perigee_transport *t) {
  bool payloads = t->payloads && t->payloads->mark && t->payloads->live &&
                  !t->payloads->pushes;
  bool jobs = t->access && t->jobs;
  return (payloads || (jobs && !t->payloads)) && t->additional->memories &&
         strlen(t->name) < TRANSPORT_NAME - 1;
}

/* Has each other transport all that the first lane of a session needs? */
static bool carry_sessions(const struct perigee_transport *const *all) {
  for (; all && *all; all++) {
    const struct perigee_transport *t = *all;
    if (t->additional && !carries_payloads(t))
      return false;
    if (t->additional)
      continue;
    bool lane = t->records && t->payloads && t->loans;
    bool frames = t->frames || (!t->sockets && !t->alone);
    if (!lane || !frames)
      return false;
  }
  return true;
}

const char *options_wrong(const struct perigee_options *o) {
  if (o->operations < 16 || o->operations > 65536)
    return "operations (16 to 65536)";
  if (o->sessions < 1 || o->sessions > 65536)
    return "sessions (1 to 65536)";
  if (o->regions < 1 || o->regions > REGION_SLOTS)
    return "regions (1 to 4096)";
  if (o->watched > 1 << 20)
    return "watched (0 to 1048576)";
  if (o->ring < 4096 || o->ring > 16 << 20 || (o->ring & (o->ring - 1)))
    return "ring (a power of two, 4 KiB to 16 MiB)";
  if (o->eager > o->ring / 4 - 128)
    return "eager (at most a quarter of ring less 128)";
  if (o->message < 1 || o->message > PAYLOAD_MAX)
    return "message (1 to 2^40)";
  if (o->pool < 1 << 20 || o->pool > UINT64_C(1) << 40)
    return "pool (1 MiB to 1 TiB)";
  if (o->mapped < 1 << 30 || o->mapped > UINT64_C(1) << 47)
    return "mapped (1 GiB to 128 TiB)";
  if (o->untaken < 1)
    return "untaken (at least 1)";
  if (o->streams < 1 || o->streams > STREAMS_MAX)
    return "streams (1 to 16)";
  if (o->progress != 0 && o->progress != 1)
    return "progress (0: none, 1: a thread)";
  if (o->encrypt < PERIGEE_ENCRYPT_DEFAULT || o->encrypt > PERIGEE_ENCRYPT_OFF)
    return "encrypt (0: by default, 1: all, 2: auth, 3: off)";
  if (o->dead_after < DEAD_AFTER_LEAST)
    return "dead_after (10 ms at least)";
  if (o->serving < 1 || o->hellos < 1 || !o->clock || !o->random)
    return "serving, hellos, clock and random (must be given)";
  if (!carry_sessions(o->transports))
    return "transports (each with records, payloads and loans, and with frames "
           "if sockets or alone; an additional one with what transport.h says)";
  return NULL;
}
