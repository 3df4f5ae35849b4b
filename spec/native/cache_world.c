/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_world.c - the world of a cache and its clients: its clock, its random
 * choices, what was sealed in it, and its end.
 */
#include "cache_world.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct perigee_transport perigee_transport_inproc;

/* SLOWEST: in thousandths. A lease that runs by such a clock is longer by a
 * ninth, and the margin is an eighth. */
enum { ROUNDS = 400, LAST_ROUNDS = 20000, SLOWEST = 100 };
static const int64_t MS = 1000000, START = INT64_C(10000000000);

/* ---- Clock, and words ---------------------------------------------------- */

int64_t hand_time(const struct hand *hand) {
  int64_t passed = hand->world->now - START;
  return START + passed / 1000 * (1000 - hand->slow);
}

/* Time stands still within a turn, except while something waits for it to
 * pass. */
static int64_t hand_clock(void *context) {
  struct hand *hand = context;
  if (++hand->world->looks > 2000)
    hand->world->now += MS / 10;
  return hand_time(hand);
}

static int hand_random(void *context, void *bytes, uint64_t length) {
  struct hand *hand = context;
  for (uint64_t i = 0; i < length; i++)
    ((uint8_t *)bytes)[i] = (uint8_t)dice_next(&hand->world->random);
  return 0;
}

static void say(const struct world *w, const char *format, va_list list) {
  fprintf(stderr, "%12.6f ms: ", (double)(w->now - START) / 1e6);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
}

void broken(const struct world *w, const char *format, ...) {
  va_list list;
  va_start(list, format);
  say(w, format, list);
  va_end(list);
  fprintf(stderr, "seed %llu (%s) fails; again, alone: PERIGEE_SEED=%llu %s\n",
          (unsigned long long)w->seed, w->transport,
          (unsigned long long)w->seed, program_invocation_name);
  unlink(w->address + strlen("unix:"));
  exit(1);
}

void narrate(const struct world *w, const char *format, ...) {
  va_list list;
  if (!w->told)
    return;
  va_start(list, format);
  say(w, format, list);
  va_end(list);
}

/* ---- Numbers ------------------------------------------------------------- */

uint64_t numbers_write(uint8_t *bytes, uint64_t room, const uint64_t *numbers,
                       int count, bool slice) {
  struct perigee_encoder e;
  perigee_encode_begin(&e, bytes, room);
  for (int i = 0; i < count; i++)
    perigee_encode_uint64(&e, numbers[i]);
  if (slice)
    perigee_encode_slice(&e);
  int64_t length = perigee_encode_end(&e);
  return length < 0 ? 0 : (uint64_t)length;
}

bool numbers_read(const struct perigee_event *event, uint64_t *numbers,
                  int count) {
  struct perigee_decoder d;
  struct perigee_value v;
  if (perigee_decode_event(&d, event) < 0)
    return false;
  for (int i = 0; i < count; i++) {
    if (perigee_decode(&d, &v) != 1 || v.kind != PERIGEE_VALUE_UINT64)
      return false;
    numbers[i] = v.uint64;
  }
  return true;
}

void number_put(uint8_t **at, uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; i++)
    *(*at)++ = (uint8_t)(value >> (8 * i));
}

uint64_t number_get(const uint8_t *at, unsigned bytes) {
  uint64_t value = 0;
  for (unsigned i = 0; i < bytes; i++)
    value |= (uint64_t)at[i] << (8 * i);
  return value;
}

/* ---- What was sealed ----------------------------------------------------- */

uint64_t value_word(int key, uint64_t stamp, uint64_t at) {
  uint64_t base = (stamp * KEYS + (uint64_t)key) * UINT64_C(0x9e3779b97f4a7c15);
  return (base + at) * UINT64_C(0xd1b54a32d192ed03);
}

const char *name_of(int key) {
  static const char *const names[KEYS] = {"key a", "key b", "key c",
                                          "key d", "key e", "key f"};
  return names[key];
}

/* A TTL ends hard pins, too. */
void world_pinned(struct world *w, int key, int pin) {
  w->hard[key] = pin == PERIGEE_CACHE_HARD && w->ends[key] == 0;
}

void world_sealed(struct world *w, uint64_t version,
                  const struct value *value) {
  int key = value->key;
  HOLDS(w, version > w->latest[key] && w->base + version < VALUES);
  narrate(w, "%s has version %llu, stamp %llu", name_of(key),
          (unsigned long long)version, (unsigned long long)value->stamp);
  w->values[w->base + version] = *value;
  w->latest[key] = version;
  w->gone[key] = false;
  w->ends[key] = value->ttl ? w->now + value->ttl : 0;
  world_pinned(w, key, value->pin);
  w->tally.sealed++;
}

/* Entries live for up to 134 ms longer. */
void world_found(struct world *w, int key) {
  HOLDS(w, !w->gone[key] && w->latest[key] > 0);
  HOLDS(w, w->ends[key] == 0 || w->now <= w->ends[key] + 135 * MS);
}

void world_deleted(struct world *w, int key) {
  narrate(w, "%s is deleted", name_of(key));
  w->gone[key] = true;
  w->hard[key] = false;
  w->tally.deleted++;
}

/* Versions of the next life are other values. */
static void world_forget(struct world *w) {
  uint64_t most = 0;
  for (int i = 0; i < KEYS; i++) {
    most = w->latest[i] > most ? w->latest[i] : most;
    w->latest[i] = 0;
    w->gone[i] = w->hard[i] = false;
  }
  w->base += most;
}

/* ---- Engines ------------------------------------------------------------- */

/* Half of the engines have none. */
static void draw_faults(struct world *w, char *faults, uint64_t size) {
  static const double chances[] = {0, 0, 0.01, 0.05};
  faults[0] = 0;
  if (roll(w, 2))
    return;
  double drop = chances[roll(w, 4)], reorder = chances[roll(w, 4)];
  double cut = chances[roll(w, 4)] / 20;
  uint64_t delay = roll(w, 2) ? roll(w, 20000) : 0, seed = roll(w, 1 << 30);
  snprintf(
      faults, size, "seed=%llu drop=%.6f reorder=%.6f cut=%.6f delay=%lluus",
      (unsigned long long)seed, drop, reorder, cut, (unsigned long long)delay);
}

void engine_options(struct hand *hand, char *faults, uint64_t size,
                    struct perigee_options *o) {
  static const struct perigee_transport *const transports[] = {
      &perigee_transport_inproc, NULL};
  struct world *w = hand->world;
  draw_faults(w, faults, size);
  perigee_options_init(o, sizeof *o);
  o->operations = 256;
  o->sessions = 32;
  o->regions = SLABS;
  o->ring = 32768;
  o->eager = 4096;
  o->pool = 16 << 20;
  o->secret = "";
  o->clock = hand_clock;
  o->random = hand_random;
  o->context = hand;
  o->transports = transports;
  o->faults = faults;
}

/* ---- Rounds -------------------------------------------------------------- */

static void pass_time(struct world *w) {
  static const uint64_t most[] = {200000, 1000000, 5000000, 20000000};
  w->looks = 0;
  uint64_t step = w->winding_up ? 3 : roll(w, 4);
  w->now += 1000 * (1 + (int64_t)roll(w, most[step] / 1000));
}

static void round_of(struct world *w) {
  pass_time(w);
  cacher_turn(w);
  for (int i = 0; i < CLIENTS; i++)
    client_turn(&w->clients[i]);
}

static void some_client_dies(struct world *w) {
  struct client *c = &w->clients[roll(w, CLIENTS)];
  narrate(w, "client %d dies", c->index);
  client_end(c);
  client_open(w, c->index);
  w->tally.deaths++;
}

static void cache_restarts(struct world *w) {
  narrate(w, "the cache dies");
  cacher_die(w);
  world_forget(w);
  cacher_open(w);
  w->tally.lives++;
}

static bool busy(const struct world *w) {
  bool any = cacher_busy(w);
  for (int i = 0; i < CLIENTS; i++)
    any |= client_busy(&w->clients[i]);
  return any;
}

static void wind_up(struct world *w) {
  w->winding_up = true;
  w->cache.still_until = 0;
  for (int i = 0; i < CLIENTS; i++)
    w->clients[i].still_until = 0;
  for (int rounds = 0; busy(w); rounds++) {
    round_of(w);
    HOLDS(w, rounds < LAST_ROUNDS);
  }
}

/* The kernel decides how streams of TCP are cut. */
static const char *const transports[] = {"inproc", "shm", "inproc", "shm",
                                         "inproc", "shm", "inproc", "tcp"};
enum { TRANSPORTS = sizeof transports / sizeof *transports };

bool cache_world_is_exact(uint64_t seed) {
  return strcmp(transports[seed % TRANSPORTS], "tcp") != 0;
}

static void begin(struct world *w, uint64_t seed) {
  w->seed = seed;
  w->dice = seed * UINT64_C(0x9e3779b97f4a7c15);
  w->random = ~w->dice;
  w->now = START;
  w->transport = transports[seed % TRANSPORTS];
  cacher_open(w);
  for (int i = 0; i < CLIENTS; i++) {
    int slow = roll(w, 2) ? SLOWEST : (int)roll(w, SLOWEST);
    w->clients[i].hand = (struct hand){w, slow};
    client_open(w, i);
  }
}

#define N(what) (unsigned long long)tally.what

struct tally cache_world(uint64_t seed, enum rule rule, bool told) {
  struct world *w = calloc(1, sizeof *w);
  w->rule = rule;
  w->told = told;
  begin(w, seed);
  for (int i = 0; i < ROUNDS; i++) {
    round_of(w);
    if (chance(w, 0.002))
      some_client_dies(w);
    if (chance(w, 0.0005))
      cache_restarts(w);
  }
  wind_up(w);
  for (int i = 0; i < CLIENTS; i++)
    client_end(&w->clients[i]);
  cacher_end(w);
  struct tally tally = w->tally;
  narrate(w,
          "%llu gets: %llu taken, of which %llu came along, and %llu were "
          "mapped; %llu were late, %llu changed. "
          "%llu puts sealed, %llu given up; %llu refused. %llu deletes. %llu "
          "clients and %llu caches died",
          N(asked), N(taken), N(small), N(mapped), N(late), N(changed),
          N(sealed), N(aborted), N(refused), N(deleted), N(deaths), N(lives));
  free(w);
  return tally;
}
