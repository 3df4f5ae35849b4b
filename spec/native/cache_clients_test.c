/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_clients_test.c - a store and several clients over a made-up clock. Each
 * client has a clock of its own, which is slower than the store's. Requests and
 * answers are late, and answers may be lost; clients copy and write piece by
 * piece, are stopped beyond their leases in between, and die. A seed determines
 * all of it. A value that a client takes is its key's, whole, and not older than
 * what it has seen. Nothing is left at the end. Two broken rules have to be found.
 */
#include "cached.h"

enum { KEYS = 12, CLIENTS = 5, PIECES = 4, TURNS = 60000, WORLDS = 40 };
enum { MOST_WORDS = 4000, SLOW = 100 }; /* SLOW: thousandths, of a clock */
#define MILLISECOND INT64_C(1000000)
#define LEASE (10 * SECONDS)

enum rule { ALL_RULES, NO_MARGIN, NO_LOOK_AT_THE_CLOCK };

struct player {
  enum { IDLE, ASKING, ANSWERED, READING, WRITING } state;
  uint32_t number, words, piece;
  int key, slow;
  int64_t at, sent; /* at: of its next step; sent: by its own clock */
  uint64_t stamp, seen[KEYS];
  struct perigee_cache_place place;
  uint64_t *copy;
};

struct world {
  struct cached k;
  enum rule rule;
  uint64_t dice, stamp, taken, late, wrong;
  struct player clients[CLIENTS];
};

static uint32_t roll(struct world *w, uint32_t sides) {
  w->dice = w->dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return (uint32_t)((w->dice >> 33) % sides);
}

static int64_t clock_of(const struct world *w, const struct player *c) {
  return w->k.now / 1000 * (1000 - c->slow);
}

static const char *name_of(int key) {
  static char name[16];
  snprintf(name, sizeof name, "key %d", key);
  return name;
}

static uint64_t word_of(const struct player *c, uint64_t stamp, uint32_t i) {
  uint64_t base = (uint64_t)c->key * UINT64_C(0x9E3779B97F4A7C15) + stamp;
  return i == 0 ? stamp : base * UINT64_C(0xD1B54A32D192ED03) + i;
}

/* Returns where the place lies now, or NULL: its slab has gone. */
static uint64_t *words_at(struct world *w, const struct player *c) {
  char *slab = cached_slab(&w->k, c->place.slab);
  uint64_t end = c->place.offset + c->place.length;
  if (!slab || end > w->k.lengths[c->place.slab & 0xffff])
    return NULL;
  return (uint64_t *)(void *)(slab + c->place.offset);
}

/* ---- Puts -------------------------------------------------------------- */

static void begin_put(struct world *w, struct player *c) {
  struct perigee_cache_put put = {.client = c->number};
  const char *name = name_of(c->key);
  c->words = roll(w, 4) ? MOST_WORDS - roll(w, 500) : 1 + roll(w, 500);
  put.length = c->words * sizeof(uint64_t);
  put.ttl = roll(w, 4) ? 0 : (1 + roll(w, 20000)) * MILLISECOND;
  put.pin = roll(w, 8) ? PERIGEE_CACHE_UNPINNED : PERIGEE_CACHE_SOFT;
  if (cached_reserve_as(&w->k, name, (uint32_t)strlen(name), &put, &c->place) <
      0)
    return;
  c->stamp = ++w->stamp;
  c->piece = 0;
  c->state = WRITING;
}

static void go_on_writing(struct world *w, struct player *c) {
  uint64_t *to = words_at(w, c);
  assert_non_null(to);
  uint32_t from = c->words * c->piece / PIECES;
  uint32_t end = c->words * ++c->piece / PIECES;
  for (uint32_t i = from; i < end; i++)
    to[i] = word_of(c, c->stamp, i);
  if (c->piece < PIECES && roll(w, 20))
    return;
  if (c->piece < PIECES)
    assert_int_equal(perigee_cache_abort(w->k.cache, c->place.entry), 0);
  else
    assert_true(perigee_cache_seal(w->k.cache, c->place.entry, 0, w->k.now) >
                0);
  c->state = IDLE;
}

/* ---- Gets -------------------------------------------------------------- */

/* The request arrives. The answer is lost now and then; its lease stays. */
static void locate(struct world *w, struct player *c) {
  const char *name = name_of(c->key);
  int status = perigee_cache_locate(
      w->k.cache, c->number, name, (uint32_t)strlen(name), w->k.now, &c->place);
  c->state = status < 0 || roll(w, 30) == 0 ? IDLE : ANSWERED;
}

static void begin_reading(struct player *c) {
  c->words = (uint32_t)(c->place.length / sizeof(uint64_t));
  c->piece = 0;
  c->state = READING;
}

static bool is_right(const struct player *c) {
  uint64_t stamp = c->copy[0];
  for (uint32_t i = 1; i < c->words; i++)
    if (c->copy[i] != word_of(c, stamp, i))
      return false;
  return stamp >= c->seen[c->key];
}

static void end_get(struct world *w, struct player *c) {
  c->state = IDLE;
  if (roll(w, 4))
    perigee_cache_release(w->k.cache, c->number, c->place.lease);
  if (clock_of(w, c) - c->sent >= LEASE) {
    w->late++;
    if (w->rule != NO_LOOK_AT_THE_CLOCK)
      return;
  }
  w->taken++;
  if (is_right(c))
    c->seen[c->key] = c->copy[0];
  else
    w->wrong++;
}

static void go_on_reading(struct world *w, struct player *c) {
  const uint64_t *from = words_at(w, c);
  uint32_t begin = c->words * c->piece / PIECES;
  uint32_t end = c->words * ++c->piece / PIECES;
  if (from)
    memcpy(c->copy + begin, from + begin, (end - begin) * sizeof *from);
  else
    memset(c->copy + begin, 0, (end - begin) * sizeof *from);
  if (c->piece == PIECES)
    end_get(w, c);
}

/* ---- A world ------------------------------------------------------------ */

static void begin(struct world *w, struct player *c) {
  const char *name = name_of(c->key = (int)roll(w, KEYS));
  uint32_t what = roll(w, 16);
  if (what < 6) {
    begin_put(w, c);
  } else if (what == 6) {
    perigee_cache_delete(w->k.cache, name, (uint32_t)strlen(name));
  } else if (what == 7) {
    perigee_cache_pin(w->k.cache, name, (uint32_t)strlen(name),
                      PERIGEE_CACHE_UNPINNED);
  } else {
    c->sent = clock_of(w, c);
    c->state = ASKING;
  }
}

static void be_born(struct world *w, struct player *c) {
  int64_t number = perigee_cache_client(w->k.cache);
  assert_true(number >= 0);
  c->number = (uint32_t)number;
  c->slow = (int)roll(w, SLOW + 1);
  c->state = IDLE;
  memset(c->seen, 0, sizeof c->seen);
}

static void die(struct world *w, struct player *c) {
  assert_int_equal(perigee_cache_client_gone(w->k.cache, c->number), 0);
}

static void step(struct world *w, struct player *c) {
  switch (c->state) {
  case IDLE:
    begin(w, c);
    break;
  case ASKING:
    locate(w, c);
    break;
  case ANSWERED:
    begin_reading(c);
    break;
  case READING:
    go_on_reading(w, c);
    break;
  case WRITING:
    go_on_writing(w, c);
    break;
  }
  /* Late by a little, or stopped until about the end of a lease. */
  c->at = w->k.now +
          (roll(w, 12) ? roll(w, 30) : 7000 + roll(w, 4000)) * MILLISECOND;
}

static void turn(struct world *w) {
  w->k.now += (1 + roll(w, 20)) * MILLISECOND;
  while (perigee_cache_turn(w->k.cache, w->k.now, 64) == 1)
    ;
  cached_feed(&w->k);
  struct player *c = &w->clients[roll(w, CLIENTS)];
  if (roll(w, 500) == 0) {
    die(w, c);
    be_born(w, c);
  } else if (c->at <= w->k.now) {
    step(w, c);
  }
}

static void nothing_is_left(struct world *w) {
  struct perigee_cache_counters n;
  for (int i = 0; i < CLIENTS; i++)
    die(w, &w->clients[i]);
  for (int key = 0; key < KEYS; key++)
    perigee_cache_delete(w->k.cache, name_of(key),
                         (uint32_t)strlen(name_of(key)));
  perigee_cache_count(w->k.cache, &n);
  assert_int_equal(n.entries + n.reserved + n.held + n.leases + n.used, 0);
  assert_int_equal(n.clients, 1); /* cached.h's own */
}

static struct world run(uint64_t seed, enum rule rule) {
  struct perigee_cache_options options = {.quota = 256 * KB,
                                          .slab = 64 * KB,
                                          .lease = LEASE,
                                          .clients = CLIENTS + 1};
  options.margin = rule == NO_MARGIN ? 1 : 0;
  struct world w = {.rule = rule, .dice = seed, .k = cached_open(&options)};
  for (int i = 0; i < CLIENTS; i++) {
    w.clients[i].copy = calloc(MOST_WORDS, sizeof(uint64_t));
    be_born(&w, &w.clients[i]);
  }
  for (int i = 0; i < TURNS; i++)
    turn(&w);
  nothing_is_left(&w);
  for (int i = 0; i < CLIENTS; i++)
    free(w.clients[i].copy);
  cached_close(&w.k);
  return w;
}

/* PERIGEE_WORLDS=n: so many worlds. */
static uint64_t worlds(void) {
  const char *text = getenv("PERIGEE_WORLDS");
  return text ? strtoull(text, NULL, 10) : WORLDS;
}

static void what_is_taken_is_right(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= worlds(); seed++) {
    struct world w = run(seed, ALL_RULES);
    assert_true(w.taken > 0 && w.late > 0);
    if (w.wrong)
      fail_msg("seed %llu: %llu wrong values", (unsigned long long)seed,
               (unsigned long long)w.wrong);
  }
}

static uint64_t wrong_with(enum rule rule) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= WORLDS; seed++)
    wrong += run(seed, rule).wrong;
  return wrong;
}

static void a_missing_margin_is_found(void **state) {
  (void)state;
  assert_true(wrong_with(NO_MARGIN) > 0);
}

static void a_client_that_does_not_look_at_its_clock_is_found(void **state) {
  (void)state;
  assert_true(wrong_with(NO_LOOK_AT_THE_CLOCK) > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_taken_is_right),
      cmocka_unit_test(a_missing_margin_is_found),
      cmocka_unit_test(a_client_that_does_not_look_at_its_clock_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
