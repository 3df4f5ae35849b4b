/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation.c - a simulated world: its clock, its random choices, its two
 * sides, and its end.
 */
#include "simulation.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_inside.h"
#include "worlds.h"

extern const struct perigee_transport perigee_transport_inproc;
extern const struct perigee_memory perigee_memory_opaque;

enum { ROUNDS = 700, LAST_ROUNDS = 60000, EVENTS = 16, LATE = 400 };
static const int64_t MS = 1000000, START = INT64_C(1000000000);

/* ---- Dice, clock, and words ---------------------------------------------- */

uint64_t dice(struct world *w) {
  return dice_next(&w->dice);
}

uint64_t below(struct world *w, uint64_t n) {
  return dice_below(&w->dice, n);
}

bool happens(struct world *w, double chance) {
  return dice_happens(&w->dice, chance);
}

/* Time stands still within a turn, except while something waits for it to
 * pass. */
static int64_t world_clock(void *context) {
  struct world *w = context;
  if (++w->looks > 2000)
    w->now += MS / 10;
  return w->now;
}

static int world_random(void *context, void *bytes, uint64_t length) {
  struct world *w = context;
  for (uint64_t i = 0; i < length; i++)
    ((uint8_t *)bytes)[i] = (uint8_t)dice_next(&w->random);
  return 0;
}

static void say(const struct side *side, const char *format, va_list list) {
  fprintf(stderr,
          "%12.6f ms, side %d: ", (double)(side->world->now - START) / 1e6,
          side->index);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
}

void wrong(const struct side *side, const char *format, ...) {
  const struct world *w = side->world;
  va_list list;
  va_start(list, format);
  say(side, format, list);
  va_end(list);
  fprintf(stderr,
          "seed %llu (%s, %s; faults \"%s\" and \"%s\") fails; again, alone: "
          "PERIGEE_SEED=%llu %s\n",
          (unsigned long long)w->seed, w->transport, w->memory,
          w->sides[0].faults, w->sides[1].faults, (unsigned long long)w->seed,
          program_invocation_name);
  unlink(w->address + strlen("unix:"));
  exit(1);
}

void tell(const struct side *side, const char *format, ...) {
  va_list list;
  if (!side->world->told)
    return;
  va_start(list, format);
  say(side, format, list);
  va_end(list);
}

static void trace(struct world *w, uint64_t value) {
  w->trace = (w->trace ^ value) * UINT64_C(0x100000001b3);
}

/* ---- The beginning ------------------------------------------------------- */

static double some_chance(struct world *w) {
  static const double chances[] = {0.002, 0.02, 0.1};
  return chances[below(w, 3)];
}

static void worse(double *all, double chance) {
  if (chance > *all)
    *all = chance;
}

/* One seed in eight has no faults, and one has all of them. */
static void choose_weather(struct world *w, struct side *side, uint64_t kind) {
  bool all = kind == 7;
  struct weather own = {.drop = all || kind == 2 ? some_chance(w) : 0,
                        .duplicate = all || kind == 3 ? some_chance(w) : 0,
                        .reorder = all || kind == 4 ? some_chance(w) : 0,
                        .truncate = all || kind == 5 ? some_chance(w) / 20 : 0,
                        .cut = all || kind == 6 ? some_chance(w) / 20 : 0};
  uint64_t delay = below(w, 2) ? below(w, 3000) : 0;
  if (kind == 0 || happens(w, 0.2))
    return;
  snprintf(side->faults, sizeof side->faults,
           "seed=%llu drop=%.6f duplicate=%.6f reorder=%.6f truncate=%.6f "
           "cut=%.6f delay=%lluus",
           (unsigned long long)below(w, 1 << 30), own.drop, own.duplicate,
           own.reorder, own.truncate, own.cut, (unsigned long long)delay);
  worse(&w->weather.drop, own.drop);
  worse(&w->weather.duplicate, own.duplicate);
  worse(&w->weather.reorder, own.reorder);
  worse(&w->weather.truncate, own.truncate);
  worse(&w->weather.cut, own.cut);
}

/* The variants of seeds: the transports, and both kinds of memory. */
static const struct variant {
  const char *transport, *memory;
  int pull;
  bool sealed;
} variants[] = {
    {"inproc", "host", 1, false},   {"shm", "host", 1, false},
    {"inproc", "opaque", 1, false}, {"tcp", "host", 1, false},
    {"inproc", "host", 1, false},   {"shm", "host", 0, false},
    {"shm", "opaque", 0, false},    {"tcp", "opaque", 1, true},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void begin_side(struct world *w, int index, uint64_t kind) {
  static const struct perigee_transport *const transports[] = {
      &perigee_transport_inproc, NULL};
  static const struct perigee_memory *const memories[] = {
      &perigee_memory_opaque, NULL};
  struct side *side = &w->sides[index];
  struct perigee_options o;
  side->world = w;
  side->index = index;
  choose_weather(w, side, kind);
  perigee_options_init(&o, sizeof o);
  o.operations = 256;
  o.sessions = 8;
  o.regions = 8;
  o.ring = below(w, 2) ? 4096 : 32768;
  o.eager = below(w, 2) ? 512 : 896;
  o.pool = 64 << 20;
  o.serving = 16;
  o.pull = w->variant->pull;
  o.encrypt = w->variant->sealed;
  o.secret = o.encrypt ? "the secret of a world" : "";
  o.streams = o.encrypt ? 2 : 1;
  o.clock = world_clock;
  o.random = world_random;
  o.context = w;
  o.transports = transports;
  o.memories = memories;
  o.faults = side->faults;
  HOLDS(side, perigee_engine_open(&o, &side->engine) == PERIGEE_OK);
  ground_make(side, &side->mine, "mine", PERIGEE_LOCAL, 0);
  ground_make(side, &side->more, "more", PERIGEE_LOCAL, 0);
  ground_make(side, &side->open, "open",
              PERIGEE_WRITE | (below(w, 2) ? PERIGEE_READ : 0), 0);
  ground_make(side, &side->fixed, "fixed", PERIGEE_READ,
              FIXED + (uint64_t)index);
}

static void begin(struct world *w, uint64_t seed) {
  size_t v = seed % VARIANTS;
  w->seed = seed;
  w->dice = seed * UINT64_C(0x9e3779b97f4a7c15);
  w->random = ~w->dice;
  w->now = START;
  w->variant = &variants[v];
  w->sealed = variants[v].sealed;
  w->transport = variants[v].transport;
  w->memory = variants[v].memory;
  for (int i = 0; i < 2; i++)
    begin_side(w, i, seed / VARIANTS % 8);
  struct side *listener = &w->sides[1];
  snprintf(w->address, sizeof w->address, "unix:/tmp/perigee-world-%d",
           getpid());
  unlink(w->address + strlen("unix:")); /* left by one that was killed */
  if (strcmp(w->transport, "tcp") == 0)
    strcpy(w->address, "tcp://127.0.0.1:0");
  HOLDS(listener, perigee_listen(listener->engine, w->address,
                                 &listener->listener) == PERIGEE_OK);
  snprintf(w->address, sizeof w->address, "%s",
           perigee_listener_address(listener->listener));
  if (strcmp(w->transport, "tcp") == 0 && happens(w, 0.7))
    wires_open(w);
}

/* ---- Rounds -------------------------------------------------------------- */

static void accepted(struct side *side, uint32_t id) {
  struct perigee_session *session = perigee_session(side->engine, id);
  struct link *l = side->links;
  HOLDS(side, session);
  while (l->session)
    HOLDS(side, ++l < side->links + LINKS);
  *l = (struct link){.session = session, .id = id, .up = true};
  look_up_regions(side, l);
}

static void lost(struct side *side, uint32_t id) {
  struct link *l = link_of(side, id);
  HOLDS(side, l && !l->lost);
  l->lost = true;
  for (int i = 0; i < OWN; i++) /* its operations were told before it */
    HOLDS(side, !(side->own[i].kind && side->own[i].link == l));
}

static void happened(struct side *side, const struct perigee_event *e) {
  struct world *w = side->world;
  tell(side, "event %d of %d in session %u: %s, %llu bytes (%llu)", e->kind,
       e->operation, e->session, perigee_status_name(e->status),
       (unsigned long long)(e->length + e->slice), (unsigned long long)e->code);
  w->events++;
  trace(w, (uint64_t)w->now ^ (uint64_t)side->index);
  trace(w, (uint64_t)e->kind << 32 | (uint32_t)e->status);
  trace(w, (uint64_t)e->operation << 32 | e->session);
  trace(w, e->code ^ e->slice);
  if (e->kind == PERIGEE_EVENT_ACCEPTED)
    accepted(side, e->session);
  else if (e->kind == PERIGEE_EVENT_LOST)
    lost(side, e->session);
  else if (e->kind >= PERIGEE_EVENT_REQUEST &&
           e->kind <= PERIGEE_EVENT_ABANDONED)
    serve_event(side, e);
  else if (e->kind == PERIGEE_EVENT_SENT)
    serve_event(side, e);
  else if (e->kind == PERIGEE_EVENT_REPLY_LANDING)
    own_asked(side, e);
  else
    own_ended(side, e);
}

static void poll_side(struct side *side) {
  struct world *w = side->world;
  struct perigee_event events[EVENTS];
  if (happens(w, 0.5) || w->winding_up)
    look_at_clock(side->engine);
  int n = perigee_poll(side->engine, events, 1 + (int)below(w, EVENTS));
  HOLDS(side, n >= 0);
  for (int i = 0; i < n; i++)
    happened(side, &events[i]);
}

/* No operation waits longer than its timeout, counted from the engine's next
 * look at the clock, which is at most 64 polls away. */
static void look_for_hangs(struct side *side) {
  for (int i = 0; i < OWN; i++) {
    struct own *own = &side->own[i];
    if (own->kind && ++own->polls == 65)
      own->counted = side->world->now;
    if (own->kind && own->polls > 64 &&
        own->counted + own->timeout + 2 * MS < side->world->now &&
        ++own->late > LATE)
      wrong(side, "operation %d of kind %d does not end", own->operation,
            own->kind);
  }
}

static void close_region(struct side *side) {
  struct ground *g = &side->open;
  if (!g->closing)
    return;
  bool force = !g->foreign && happens(side->world, 0.05);
  int status = perigee_region_close(g->region, force);
  if (status == PERIGEE_AGAIN && !force) {
    HOLDS(side, side->world->now < g->closed_at + 10000 * MS);
    return;
  }
  HOLDS(side, status == PERIGEE_OK);
  tell(side, "its open region is gone");
  free(g->foreign);
  ground_make(side, g, "open",
              PERIGEE_WRITE | (below(side->world, 2) ? PERIGEE_READ : 0), 0);
}

static void tidy(struct side *side) {
  struct world *w = side->world;
  close_region(side);
  for (int i = 0; i < LINKS; i++)
    if (side->links[i].lost && happens(w, 0.1))
      link_free(side, &side->links[i]);
}

static void turn(struct side *side) {
  struct world *w = side->world;
  if (w->now < side->still_until)
    return;
  poll_side(side);
  look_for_hangs(side);
  serve_due(side);
  land_due(side);
  tidy(side);
  for (uint64_t n = w->winding_up ? 0 : below(w, 3); n > 0; n--)
    begin_something(side);
  if (!w->winding_up && happens(w, 0.003))
    side->still_until = w->now + (int64_t)below(w, 300) * MS;
}

/* Mostly little time passes, sometimes much. */
static void pass_time(struct world *w) {
  w->looks = 0;
  static const uint64_t most[] = {2000,   2000,    50000,  50000,
                                  200000, 1000000, 300000, 10000};
  w->now += 1 + (int64_t)below(w, most[below(w, 8)]);
  if (happens(w, w->winding_up ? 0.02 : 0.001))
    w->now += (int64_t)below(w, 700) * MS;
}

static void round_of(struct world *w) {
  pass_time(w);
  for (int i = 0; i < 2; i++) {
    turn(&w->sides[i]);
    wires_turn(w);
  }
  if (!w->winding_up && happens(w, 0.02))
    begin_connect(&w->sides[0]);
}

/* ---- The end ------------------------------------------------------------- */

static bool busy(const struct side *side) {
  bool any = side->open.closing;
  for (int i = 0; i < OWN; i++)
    any |= side->own[i].kind != OWN_NONE;
  for (int i = 0; i < ANSWERS; i++)
    any |= side->answers[i].state != NOTHING;
  return any;
}

static void until_idle(struct world *w) {
  w->winding_up = true;
  for (int i = 0; i < 2; i++)
    w->sides[i].still_until = 0;
  int rounds = 0;
  while (busy(&w->sides[0]) || busy(&w->sides[1])) {
    round_of(w);
    HOLDS(&w->sides[busy(&w->sides[1])], ++rounds < LAST_ROUNDS);
  }
}

static bool idle(struct side *side, bool sessions) {
  const struct perigee_counters *c = perigee_counters(side->engine, NULL);
  return c->operations == 0 && c->pooled == 0 && c->regions == 4 &&
         (sessions || c->sessions == 0);
}

/* Memory that a dropped record leaves behind stays as long as its session. */
static void expect_idle(struct world *w, bool sessions) {
  for (int i = 0; i < 2; i++) {
    struct side *side = &w->sides[i];
    for (int rounds = 0; !idle(side, sessions); rounds++) {
      round_of(w);
      if (rounds < LAST_ROUNDS)
        continue;
      wrong(side, "there are %llu pooled bytes, %llu sessions, %llu regions%s",
            (unsigned long long)perigee_counters(side->engine, NULL)->pooled,
            (unsigned long long)perigee_counters(side->engine, NULL)->sessions,
            (unsigned long long)perigee_counters(side->engine, NULL)->regions,
            what_is_left(side->engine));
    }
  }
}

static void end_sessions(struct world *w) {
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < LINKS; k++)
      if (w->sides[i].links[k].session)
        link_free(&w->sides[i], &w->sides[i].links[k]);
  for (int i = 0; i < 20; i++)
    round_of(w);
}

static void end_side(struct side *side) {
  ground_end(side, &side->mine);
  ground_end(side, &side->more);
  ground_end(side, &side->open);
  ground_end(side, &side->fixed);
  HOLDS(side, perigee_counters(side->engine, NULL)->regions == 0);
  perigee_engine_close(side->engine);
}

bool world_is_exact(uint64_t seed) {
  return strcmp(variants[seed % VARIANTS].transport, "tcp") != 0;
}

uint64_t simulate(uint64_t seed, bool told) {
  struct world *w = calloc(1, sizeof *w);
  w->told = told;
  begin(w, seed);
  begin_connect(&w->sides[0]);
  for (int i = 0; i < ROUNDS; i++)
    round_of(w);
  until_idle(w);
  if (w->weather.drop == 0)
    expect_idle(w, true);
  end_sessions(w);
  expect_idle(w, false);
  trace(w, w->events);
  for (int i = 0; i < 2; i++)
    end_side(&w->sides[i]);
  wires_close(w);
  for (int i = 0; told && i < OWN_KINDS; i++)
    fprintf(stderr, "kind %d: %llu ended, %llu well\n", i,
            (unsigned long long)w->ended[i], (unsigned long long)w->fine[i]);
  uint64_t result = w->trace;
  free(w);
  return result;
}
