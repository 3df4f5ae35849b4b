/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_file_traces_test.c - random traces of a small file with much under way:
 * writes, reads and forgets of some keys, times to live, restarts. A read that
 * has its checksum has the bytes of its key and version, and of no version from
 * before a forget that had ended when the read began. When all is forgotten,
 * nothing is left of anything.
 */
#include "filed.h"

enum { KEYS = 90, SLOTS = 40, STEPS_OF_ONE = 6000, MOST = 150000 };

enum slot_kind { FREE, WRITES, READS, FORGETS };
struct slot {
  enum slot_kind kind;
  uint32_t key;
  uint64_t least;
  struct perigee_cache_place place;
  uint8_t *memory;
};

struct trace {
  struct filed k;
  uint64_t dice, version, found;
  uint64_t least[KEYS];  /* of what may be there */
  uint64_t latest[KEYS]; /* that was asked to be written */
  struct slot slots[SLOTS];
  uint32_t busy;
};

static uint64_t roll(struct trace *t, uint64_t below) {
  t->dice = t->dice * UINT64_C(6364136223846793005) + 1442695040888963407;
  return (t->dice >> 20) % below;
}

static void key_name(uint32_t number, char key[16]) {
  snprintf(key, 16, "key %u", number);
}

static uint64_t some_length(struct trace *t) {
  static const uint32_t most[] = {1, 4096, 4096, 20000, 20000, MOST};
  return roll(t, most[roll(t, 6)]);
}

static struct slot *free_slot(struct trace *t) {
  for (int i = 0; i < SLOTS; i++)
    if (t->slots[i].kind == FREE)
      return &t->slots[i];
  return NULL;
}

static void taken(struct trace *t, struct slot *s, enum slot_kind kind,
                  uint32_t key) {
  s->kind = kind;
  s->key = key;
  t->busy++;
}

/* ---- Ends -------------------------------------------------------------- */

static void check_bytes(struct trace *t, struct slot *s) {
  static uint8_t wanted[MOST];
  char key[16];
  if (perigee_cache_sum(s->memory, s->place.length, 0) != s->place.checksum)
    fail_msg("no write was under way there, yet its bytes are others'");
  key_name(s->key, key);
  filed_value(wanted, s->place.length, key, s->place.version);
  assert_memory_equal(s->memory, wanted, s->place.length);
  assert_true(s->place.version >= s->least);
  t->found++;
}

static void ended(struct trace *t, const struct perigee_cache_file_end *e) {
  struct slot *s = &t->slots[e->token];
  assert_int_not_equal(s->kind, FREE);
  if (s->kind == WRITES)
    assert_true(e->status == PERIGEE_OK || e->status == PERIGEE_CANCELLED);
  else
    assert_int_equal(e->status, PERIGEE_OK);
  if (s->kind == READS)
    check_bytes(t, s);
  if (s->kind == FORGETS && t->least[s->key] < s->least)
    t->least[s->key] = s->least;
  s->kind = FREE;
  t->busy--;
}

static void step_poll(struct trace *t) {
  struct perigee_cache_file_end ends[8];
  int64_t n = filed_poll(&t->k, ends, 1 + roll(t, 8));
  for (int i = 0; i < n; i++)
    ended(t, &ends[i]);
  if (n == 0 && t->busy > SLOTS / 2)
    filed_wait(&t->k);
}

static void all_ended(struct trace *t) {
  struct perigee_cache_file_end end;
  while (t->busy > 0)
    if (filed_poll(&t->k, &end, 1) == 1)
      ended(t, &end);
    else
      filed_wait(&t->k);
}

/* ---- Steps ------------------------------------------------------------- */

static void step_write(struct trace *t) {
  uint32_t number = (uint32_t)roll(t, KEYS);
  struct slot *s = free_slot(t);
  uint64_t length = some_length(t);
  int64_t ttl = roll(t, 8) == 0 ? SECONDS * (int64_t)roll(t, 200) : 0;
  char key[16];
  if (!s)
    return;
  key_name(number, key);
  filed_value(s->memory, length, key, ++t->version);
  int status = filed_start(&t->k, key, s->memory, length, t->version, ttl,
                           (uint64_t)(s - t->slots));
  assert_true(status == 0 || status == PERIGEE_CACHE_BUSY ||
              status == PERIGEE_NO_MEMORY || status == PERIGEE_AGAIN);
  if (status == 0) {
    t->latest[number] = t->version;
    taken(t, s, WRITES, number);
  }
}

static void step_read(struct trace *t) {
  uint32_t number = (uint32_t)roll(t, KEYS);
  struct slot *s = free_slot(t);
  char key[16];
  if (!s)
    return;
  key_name(number, key);
  int status =
      perigee_cache_file_read(t->k.file, key, (uint32_t)strlen(key), s->memory,
                              MOST, (uint64_t)(s - t->slots), &s->place);
  assert_true(status == 0 || status == PERIGEE_NOT_FOUND ||
              status == PERIGEE_AGAIN);
  s->least = t->least[number];
  if (status == 0)
    taken(t, s, READS, number);
}

static void step_forget(struct trace *t) {
  uint32_t number = (uint32_t)roll(t, KEYS);
  struct slot *s = free_slot(t);
  char key[16];
  if (!s)
    return;
  key_name(number, key);
  int status = perigee_cache_file_forget(t->k.file, key, (uint32_t)strlen(key),
                                         (uint64_t)(s - t->slots));
  s->least = t->latest[number] + 1;
  if (status == 0)
    t->least[number] = s->least;
  else if (status == 1)
    taken(t, s, FORGETS, number);
  else
    assert_int_equal(status, PERIGEE_AGAIN);
}

static void step_time(struct trace *t) {
  t->k.now += (int64_t)roll(t, 2 * SECONDS);
}

static void step_restart(struct trace *t) {
  if (roll(t, 100) > 0)
    return;
  all_ended(t);
  uint64_t entries = filed_entries(&t->k);
  filed_close(&t->k);
  filed_open_ready(&t->k);
  assert_true(filed_entries(&t->k) <= entries);
}

static void (*const steps[])(struct trace *) = {
    step_write, step_write,  step_write,  step_read, step_read,
    step_read,  step_forget, step_poll,   step_poll, step_poll,
    step_poll,  step_time,   step_restart};

/* ---- The whole --------------------------------------------------------- */

static void nothing_is_left(struct trace *t) {
  char key[16];
  for (uint32_t i = 0; i < KEYS; i++) {
    key_name(i, key);
    filed_forget(&t->k, key);
  }
  filed_settle(&t->k);
  const struct perigee_cache_file *f = t->k.file;
  struct perigee_cache_counters n;
  perigee_cache_count(f->store, &n);
  assert_int_equal(n.entries + n.reserved + n.held + n.leases, 0);
  assert_int_equal(n.used + n.values, 0);
  assert_int_equal(f->store->empty_bytes, f->store->slab_bytes);
  assert_int_equal(f->removal_count, 0);
  assert_int_equal(f->untold + f->waiting + f->moving + f->ended, 0);
  filed_close(&t->k);
  filed_open_ready(&t->k);
  assert_int_equal(filed_entries(&t->k), 0);
}

static void run_trace(uint64_t seed, bool by_threads) {
  struct trace t = {.dice = seed};
  filed_begin(&t.k, by_threads);
  t.k.options.size = (uint64_t)(1 + seed % 3) << 20;
  filed_open_ready(&t.k);
  for (int i = 0; i < SLOTS; i++)
    t.slots[i].memory = filed_memory(MOST);
  for (int i = 0; i < STEPS_OF_ONE; i++)
    steps[roll(&t, sizeof steps / sizeof *steps)](&t);
  all_ended(&t);
  assert_true(t.found > 50);
  nothing_is_left(&t);
  filed_close(&t.k);
  filed_end(&t.k);
  for (int i = 0; i < SLOTS; i++)
    free(t.slots[i].memory);
}

static void random_traces_by_a_ring(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 4; seed++)
    run_trace(seed, false);
}

static void random_traces_by_threads(void **state) {
  (void)state;
  for (uint64_t seed = 11; seed <= 14; seed++)
    run_trace(seed, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_traces_by_a_ring),
      cmocka_unit_test(random_traces_by_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
