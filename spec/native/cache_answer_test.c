/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_answer_test.c - requests of clients, byte by byte: what each is
 * answered, what is refused, what an answer that has little room leaves to be
 * asked again, and what is told of a store below.
 */
#include <pthread.h>

#include "cached_inside.h"

static const struct perigee_cache_options few = {
    .quota = 16 * MB, .slab = MB, .events = 8, .event_bytes = 1024};

struct talk {
  struct cached k;
  uint8_t request[1 << 16], reply[1 << 16];
  uint64_t length, room, at;
  int64_t answer;
};

static struct talk talk_open(void) {
  struct talk t = {.k = cached_open(&few), .room = sizeof t.reply};
  return t;
}

static void say(struct talk *t, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++)
    t->request[t->length++] = (uint8_t)(value >> (8 * i));
}

static void begin(struct talk *t, int what, uint16_t flags, uint32_t count) {
  t->length = 0;
  say(t, 1, 1);
  say(t, (uint64_t)what, 1);
  say(t, flags, 2);
  say(t, count, 4);
}

static void say_key(struct talk *t, const char *key) {
  say(t, strlen(key), 2);
  memcpy(t->request + t->length, key, strlen(key));
  t->length += strlen(key);
}

static uint64_t hear(struct talk *t, int bytes) {
  uint64_t value = 0;
  assert_true(t->at + (uint64_t)bytes <= (uint64_t)t->answer);
  for (int i = 0; i < bytes; i++)
    value |= (uint64_t)t->reply[t->at++] << (8 * i);
  return value;
}

/* Sends the request in memory of just its length; returns the answer's
 * count. */
static int64_t ask(struct talk *t) {
  uint8_t *exact = malloc(t->length ? t->length : 1);
  memcpy(exact, t->request, t->length);
  t->answer = perigee_cache_answer(t->k.cache, t->k.client, exact, t->length,
                                   t->reply, t->room, t->k.now);
  free(exact);
  t->at = 0;
  if (t->answer < 0)
    return t->answer;
  assert_int_equal(hear(t, 1), 1);
  assert_int_equal(hear(t, 1), t->request[1]);
  assert_int_equal(hear(t, 2), 0);
  return (int64_t)hear(t, 4);
}

static void hear_key(struct talk *t, const char *key) {
  assert_int_equal(hear(t, 2), strlen(key));
  assert_memory_equal(t->reply + t->at, key, strlen(key));
  t->at += strlen(key);
}

static void assert_done(struct talk *t) {
  assert_int_equal(t->at, t->answer);
}

/* ---- Each request ------------------------------------------------------ */

static void has_and_match_tell_what_is_there(void **state) {
  struct talk t = talk_open();
  (void)state;
  cached_put(&t.k, "a", 1);
  cached_put(&t.k, "b", 1);
  cached_put(&t.k, "d", 1);
  for (int what = PERIGEE_CACHE_HAS; what <= PERIGEE_CACHE_MATCH; what++) {
    begin(&t, what, 0, 4);
    say_key(&t, "a"), say_key(&t, "b"), say_key(&t, "c"), say_key(&t, "d");
    assert_int_equal(ask(&t), what == PERIGEE_CACHE_HAS ? 4 : 2);
    if (what == PERIGEE_CACHE_HAS)
      assert_int_equal(hear(&t, 4), 0x01000101);
    assert_done(&t);
  }
  cached_close(&t.k);
}

static uint64_t hear_place(struct talk *t, uint64_t length, uint64_t version,
                           bool leased) {
  assert_int_equal(hear(t, 4), 0);
  assert_int_equal(hear(t, 4), 0);
  assert_int_equal(hear(t, 8) % 4096, 0);
  assert_int_equal(hear(t, 8), length);
  assert_int_equal(hear(t, 8), version);
  assert_int_equal(hear(t, 8), 0);
  uint64_t lease = hear(t, 8);
  assert_int_equal(lease != 0, leased);
  assert_int_equal(hear(t, 8), leased ? 10 * SECONDS : 0);
  return lease;
}

static void locate_grants_leases_and_release_ends_them(void **state) {
  struct talk t = talk_open();
  (void)state;
  cached_put(&t.k, "a", 3000);
  begin(&t, PERIGEE_CACHE_LOCATE, 0, 2);
  say_key(&t, "none"), say_key(&t, "a");
  assert_int_equal(ask(&t), 2);
  assert_int_equal((int32_t)hear(&t, 4), PERIGEE_NOT_FOUND);
  assert_int_equal(hear(&t, 4), 0);
  uint64_t lease = hear_place(&t, 3000, 1, true);
  assert_int_equal(hear(&t, 4), 0);
  assert_done(&t);
  assert_int_equal(cached_count(&t.k).leases, 1);
  begin(&t, PERIGEE_CACHE_RELEASE, 0, 2);
  say(&t, lease, 8), say(&t, lease, 8);
  assert_int_equal(ask(&t), 2);
  assert_int_equal(hear(&t, 4), 0);
  assert_int_equal((int32_t)hear(&t, 4), PERIGEE_STALE);
  assert_done(&t);
  cached_close(&t.k);
}

static void small_values_come_along_without_a_lease(void **state) {
  struct talk t = talk_open();
  struct perigee_cache_place place;
  struct perigee_cache_put put = {.length = 1024};
  (void)state;
  assert_int_equal(cached_reserve(&t.k, "a", &put, &place), 0);
  memset(cached_slab(&t.k, place.slab) + place.offset, 'x', 1024);
  perigee_cache_seal(t.k.cache, place.entry, 0, t.k.now);
  cached_put(&t.k, "b", 1025);
  begin(&t, PERIGEE_CACHE_LOCATE, 1, 2);
  say_key(&t, "a"), say_key(&t, "b");
  assert_int_equal(ask(&t), 2);
  assert_int_equal(hear(&t, 4), 0);
  hear_place(&t, 1024, 1, false);
  assert_int_equal(hear(&t, 4), 1024);
  for (int i = 0; i < 1024; i++)
    assert_int_equal(hear(&t, 1), 'x');
  assert_int_equal(hear(&t, 4), 0);
  hear_place(&t, 1025, 2, true);
  assert_int_equal(hear(&t, 4), 0);
  assert_done(&t);
  cached_close(&t.k);
}

static void say_put(struct talk *t, const char *key, const char *parent,
                    int if_absent, uint32_t length) {
  say_key(t, key);
  say(t, 0, 8), say(t, 0, 8), say(t, 0, 1), say(t, (uint64_t)if_absent, 1);
  say_key(t, parent);
  say(t, 77, 8);
  say(t, length, 4);
  memset(t->request + t->length, 'v', length);
  t->length += length;
}

static void values_that_come_along_are_sealed_at_once(void **state) {
  struct talk t = talk_open();
  struct perigee_cache_place place;
  (void)state;
  begin(&t, PERIGEE_CACHE_PUT, 0, 3);
  say_put(&t, "a", "", 1, 5000);
  say_put(&t, "a", "", 1, 1);
  say_put(&t, "b", "none", 0, 1);
  assert_int_equal(ask(&t), PERIGEE_CACHE_WANTS);
  cached_feed(&t.k);
  assert_int_equal(ask(&t), 3);
  assert_int_equal(hear(&t, 4), 0);
  assert_int_equal(hear(&t, 8), 1);
  assert_int_equal((int32_t)hear(&t, 4), PERIGEE_CACHE_EXISTS);
  assert_int_equal(hear(&t, 8), 0);
  assert_int_equal((int32_t)hear(&t, 4), PERIGEE_NOT_FOUND);
  assert_int_equal(hear(&t, 8), 0);
  assert_done(&t);
  assert_int_equal(perigee_cache_stat(t.k.cache, "a", 1, t.k.now, &place), 0);
  assert_int_equal(place.checksum, 77);
  assert_int_equal(place.length, 5000);
  const char *bytes = cached_slab(&t.k, place.slab) + place.offset;
  for (int i = 0; i < 5000; i++)
    assert_int_equal(bytes[i], 'v');
  cached_close(&t.k);
}

static void a_put_that_is_cut_is_refused(void **state) {
  struct talk t = talk_open();
  (void)state;
  cached_feed(&t.k);
  begin(&t, PERIGEE_CACHE_PUT, 0, 1);
  say_put(&t, "a", "", 0, 9);
  while (--t.length >= 8)
    assert_int_equal(ask(&t), PERIGEE_PROTOCOL);
  assert_false(cached_has(&t.k, "a"));
  cached_close(&t.k);
}

/* A client that writes to its request while that is answered, as it may in the
 * ring that it shares with a cache. */
struct writer {
  pthread_t thread;
  _Atomic uint8_t *at;
  atomic_bool over;
};

static void *writer_run(void *arg) {
  struct writer *w = arg;
  while (!atomic_load(&w->over))
    atomic_fetch_xor(w->at, 'a' ^ 'b');
  return NULL;
}

static void writer_start(struct writer *w, uint8_t *at) {
  w->at = (_Atomic uint8_t *)at;
  atomic_init(&w->over, false);
  assert_int_equal(pthread_create(&w->thread, NULL, writer_run, w), 0);
}

static void writer_stop(struct writer *w) {
  atomic_store(&w->over, true);
  pthread_join(w->thread, NULL);
}

static int64_t ask_in_place(struct talk *t) {
  return perigee_cache_answer(t->k.cache, t->k.client, t->request, t->length,
                              t->reply, t->room, t->k.now);
}

static uint64_t keys_found(struct talk *t, char *key) {
  uint64_t n = 0;
  char *last = key + strlen(key) - 1;
  for (*last = 'a'; *last <= 'b'; ++*last)
    n += (uint64_t)cached_has(&t->k, key);
  return n;
}

static void a_key_that_changes_under_way_is_one_key(void **state) {
  enum { PUTS = 100000 };
  char key[PERIGEE_CACHE_KEY + 1] = {0};
  static struct talk t;
  (void)state;
  t = talk_open();
  memset(key, 'a', PERIGEE_CACHE_KEY);
  cached_feed(&t.k);
  begin(&t, PERIGEE_CACHE_PUT, 0, 1);
  say_put(&t, key, "", 0, 0);
  struct writer w;
  writer_start(&w, t.request + 8 + 2 + PERIGEE_CACHE_KEY - 1);
  uint64_t entries = 0, found = 0;
  for (int i = 0; i < PUTS && entries == found; i++) {
    while (ask_in_place(&t) == PERIGEE_CACHE_WANTS)
      cached_feed(&t.k);
    entries = cached_count(&t.k).entries;
    found = keys_found(&t, key);
  }
  writer_stop(&w);
  bool each_has_the_hash_of_its_key = entries == found;
  assert_true(each_has_the_hash_of_its_key);
  assert_true(entries > 0);
  cached_check(t.k.cache);
  cached_close(&t.k);
}

static bool sum_is_right(struct talk *t) {
  struct perigee_cache_place place;
  assert_int_equal(perigee_cache_stat(t->k.cache, "k", 1, t->k.now, &place), 0);
  const char *value = cached_slab(&t->k, place.slab) + place.offset;
  return place.checksum == perigee_cache_sum(value, place.length, 0);
}

static void
a_value_that_changes_under_way_is_summed_as_it_is_kept(void **state) {
  enum { PUTS = 20000, LENGTH = 4096 };
  static struct talk t;
  struct perigee_cache_options sums = few;
  struct writer w;
  (void)state;
  sums.sums = 1;
  t = (struct talk){.k = cached_open(&sums), .room = sizeof t.reply};
  cached_feed(&t.k);
  begin(&t, PERIGEE_CACHE_PUT, 0, 1);
  say_put(&t, "k", "", 0, LENGTH);
  writer_start(&w, t.request + t.length - 1);
  bool sum_is_of_what_is_kept = true;
  for (int i = 0; i < PUTS && sum_is_of_what_is_kept; i++) {
    while (ask_in_place(&t) == PERIGEE_CACHE_WANTS)
      cached_feed(&t.k);
    sum_is_of_what_is_kept = sum_is_right(&t);
  }
  writer_stop(&w);
  assert_true(sum_is_of_what_is_kept);
  cached_close(&t.k);
}

/* The first value is longer than the answer has room for: its place is told, so
 * that the client gets on. */
static void a_value_without_room_is_told_by_its_place(void **state) {
  struct talk t = talk_open();
  (void)state;
  cached_put(&t.k, "a", 3000);
  cached_put(&t.k, "b", 3000);
  begin(&t, PERIGEE_CACHE_LOCATE, 4, 2);
  say_key(&t, "a"), say_key(&t, "b");
  t.room = 1000;
  assert_int_equal(ask(&t), 1);
  assert_int_equal(hear(&t, 4), 0);
  hear_place(&t, 3000, 1, true);
  assert_int_equal(hear(&t, 4), 0);
  assert_done(&t);
  assert_int_equal(cached_count(&t.k).hits, 1);
  t.room = 4000;
  assert_int_equal(ask(&t), 1);
  assert_int_equal(cached_count(&t.k).hits, 2);
  cached_close(&t.k);
}

static void touch_pin_stat_and_delete_are_of_many_keys(void **state) {
  static const int whats[] = {PERIGEE_CACHE_TOUCH, PERIGEE_CACHE_PIN,
                              PERIGEE_CACHE_STAT, PERIGEE_CACHE_DELETE};
  struct talk t = talk_open();
  (void)state;
  cached_put(&t.k, "a", 77);
  for (int i = 0; i < 4; i++) {
    begin(&t, whats[i], 0, 2);
    say_key(&t, "a"), say_key(&t, "none");
    assert_int_equal(ask(&t), 2);
    assert_int_equal(hear(&t, 4), 0);
    if (whats[i] == PERIGEE_CACHE_STAT)
      hear_place(&t, 77, 1, false);
    assert_int_equal((int32_t)hear(&t, 4), PERIGEE_NOT_FOUND);
    assert_done(&t);
  }
  begin(&t, PERIGEE_CACHE_STAT, 0, 0);
  assert_int_equal(ask(&t), 0);
  assert_int_equal(t.answer, 8 + sizeof(struct perigee_cache_counters));
  assert_int_equal(hear(&t, 8), 0);
  cached_close(&t.k);
}

/* ---- Lists ------------------------------------------------------------- */

static void a_list_goes_on_from_its_cursor_while_the_table_grows(void **state) {
  enum { THERE = 300, AT_ONCE = 7 };
  struct talk t = talk_open();
  char key[64];
  uint8_t heard[THERE] = {0};
  uint64_t cursor = 0;
  (void)state;
  for (int i = 0; i < THERE; i++) {
    snprintf(key, sizeof key, "in/%d", i);
    cached_put(&t.k, key, 0);
    snprintf(key, sizeof key, "out/%d", i);
    cached_put(&t.k, key, 0);
  }
  for (int n = 0; cursor != UINT64_MAX; n++) {
    begin(&t, PERIGEE_CACHE_LIST, AT_ONCE, 1);
    say(&t, cursor, 8);
    say_key(&t, "in/");
    int64_t count = ask(&t);
    assert_in_range(count, 0, AT_ONCE);
    cursor = hear(&t, 8);
    for (; count > 0; count--) {
      uint64_t length = hear(&t, 2);
      heard[atoi(memcpy(memset(key, 0, sizeof key), t.reply + t.at + 3,
                        length - 3))] = 1;
      t.at += length;
    }
    assert_done(&t);
    snprintf(key, sizeof key, "new/%d", n);
    for (int i = 0; i < 30 && n < 60; i++) {
      snprintf(key, sizeof key, "new/%d/%d", n, i);
      cached_put(&t.k, key, 0);
    }
  }
  for (int i = 0; i < THERE; i++)
    assert_int_equal(heard[i], 1);
  cached_close(&t.k);
}

/* Returns how many of the keys are in the list from there, one at a time; with
 * each, every key's value is replaced. */
static uint32_t list_and_replace(struct talk *t, int keys) {
  uint64_t cursor = 0;
  uint32_t heard = 0;
  char key[64];
  while (cursor != UINT64_MAX) {
    begin(t, PERIGEE_CACHE_LIST, 1, 1);
    say(t, cursor, 8), say_key(t, "");
    int64_t count = ask(t);
    cursor = hear(t, 8);
    if (count)
      heard |= 1U << (t->reply[t->at + 2] - 'a');
    for (int i = 0; i < keys; i++) {
      snprintf(key, sizeof key, "%c", 'a' + i);
      assert_true(cached_put(&t->k, key, 0) > 0);
    }
  }
  return heard;
}

/* Stores have their own seeds, so other keys share a bucket in each. */
static void a_list_has_keys_whose_values_are_replaced(void **state) {
  (void)state;
  for (int n = 0; n < 20; n++) {
    struct talk t = talk_open();
    char key[64];
    for (int i = 0; i < 26; i++) {
      snprintf(key, sizeof key, "%c", 'a' + i);
      assert_true(cached_put(&t.k, key, 0) > 0);
    }
    assert_int_equal(list_and_replace(&t, 26), (1 << 26) - 1);
    cached_close(&t.k);
  }
}

/* ---- Events ------------------------------------------------------------ */

static uint64_t ask_events(struct talk *t, uint64_t from, int64_t count,
                           bool lost) {
  begin(t, PERIGEE_CACHE_EVENTS, 0, 1);
  say(t, from, 8);
  assert_int_equal(ask(t), count);
  uint64_t next = hear(t, 8);
  assert_int_equal(hear(t, 8), lost);
  return next;
}

static void hear_event(struct talk *t, int what, uint64_t number,
                       uint64_t version, uint64_t length, const char *key) {
  assert_int_equal(hear(t, 1), what);
  assert_int_equal(hear(t, 8), number);
  assert_int_equal(hear(t, 8), version);
  assert_int_equal(hear(t, 8), length);
  hear_key(t, key);
}

static void events_come_in_order_and_are_lost_when_old(void **state) {
  struct talk t = talk_open();
  (void)state;
  assert_int_equal(ask_events(&t, 0, 0, false), 1);
  cached_put(&t.k, "a", 5);
  cached_put(&t.k, "a", 6);
  cached_delete(&t.k, "a");
  cached_put(&t.k, "b", 0);
  evict_one(t.k.cache, 0, false);
  assert_int_equal(ask_events(&t, 0, 6, false), 7);
  hear_event(&t, PERIGEE_CACHE_SEALED, 1, 1, 5, "a");
  hear_event(&t, PERIGEE_CACHE_REPLACED, 2, 1, 5, "a");
  hear_event(&t, PERIGEE_CACHE_SEALED, 3, 2, 6, "a");
  hear_event(&t, PERIGEE_CACHE_DELETED, 4, 2, 6, "a");
  hear_event(&t, PERIGEE_CACHE_SEALED, 5, 3, 0, "b");
  hear_event(&t, PERIGEE_CACHE_EVICTED, 6, 3, 0, "b");
  assert_done(&t);
  assert_int_equal(ask_events(&t, 7, 0, false), 7);
  for (int i = 0; i < 4; i++)
    cached_put(&t.k, i % 2 ? "y" : "z", 0);
  assert_int_equal(cached_count(&t.k).entries, 2);
  assert_int_equal(ask_events(&t, 7, 6, false), 13);
  assert_int_equal(ask_events(&t, 1, 8, true), 13);
  hear_event(&t, PERIGEE_CACHE_SEALED, 5, 3, 0, "b");
  assert_int_equal(ask_events(&t, 99, 0, true), 13);
  cached_close(&t.k);
}

static void copies_are_found_by_their_keys_alone(void **state) {
  struct talk t = talk_open();
  struct perigee_cache_put copy = {
      .length = 7, .ttl = SECONDS, .pin = PERIGEE_CACHE_COPY};
  (void)state;
  assert_true(cached_put_as(&t.k, "copy", &copy) > 0);
  assert_true(cached_put(&t.k, "k", 5) > 0);
  assert_true(cached_has(&t.k, "copy"));
  cached_delete(&t.k, "copy");
  assert_int_equal(ask_events(&t, 0, 1, false), 2);
  hear_event(&t, PERIGEE_CACHE_SEALED, 1, 2, 5, "k");
  assert_done(&t);
  assert_true(cached_put_as(&t.k, "copy", &copy) > 0);
  begin(&t, PERIGEE_CACHE_LIST, 0, 1);
  say(&t, 0, 8);
  say_key(&t, "");
  assert_int_equal(ask(&t), 1);
  hear(&t, 8);
  hear_key(&t, "k");
  assert_done(&t);
  cached_close(&t.k);
}

static void events_with_long_keys_are_lost_by_their_bytes(void **state) {
  struct talk t = talk_open();
  char key[513] = {0};
  (void)state;
  for (int i = 0; i < 3; i++) {
    memset(key, 'a' + i, 512);
    cached_put(&t.k, key, 0);
  }
  assert_int_equal(ask_events(&t, 1, 2, true), 4);
  memset(key, 'b', 512);
  hear_event(&t, PERIGEE_CACHE_SEALED, 2, 2, 0, key);
  cached_close(&t.k);
}

/* ---- Bad requests ------------------------------------------------------ */

static void requests_that_are_none_are_refused(void **state) {
  struct talk t = talk_open();
  (void)state;
  cached_put(&t.k, "a", 1);
  for (int what = 0; what < 256; what++) {
    bool empty_list =
        what == PERIGEE_CACHE_LIST || what == PERIGEE_CACHE_EVENTS;
    begin(&t, what, 0, 1);
    assert_int_equal(ask(&t), PERIGEE_PROTOCOL);
    begin(&t, what, 0, 0);
    bool known = what >= PERIGEE_CACHE_HAS && what <= PERIGEE_CACHE_PUT;
    assert_int_equal(ask(&t), known && !empty_list ? 0 : PERIGEE_PROTOCOL);
    begin(&t, what, 0, PERIGEE_CACHE_MANY + 1);
    assert_int_equal(ask(&t), PERIGEE_PROTOCOL);
  }
  begin(&t, PERIGEE_CACHE_HAS, 0, 1);
  say_key(&t, "a");
  for (uint64_t length = t.length; t.length > 0;) {
    t.length--;
    assert_int_equal(ask(&t), PERIGEE_PROTOCOL);
    assert_true(t.length < length);
  }
  begin(&t, PERIGEE_CACHE_HAS, 0, 1);
  say(&t, 513, 2);
  t.length += 513;
  assert_int_equal(ask(&t), PERIGEE_PROTOCOL);
  begin(&t, PERIGEE_CACHE_PIN, 3, 1);
  say_key(&t, "a");
  assert_int_equal(ask(&t), 1);
  assert_int_equal((int32_t)hear(&t, 4), PERIGEE_INVALID);
  cached_close(&t.k);
}

static void what_has_no_room_is_not_done(void **state) {
  struct talk t = talk_open();
  (void)state;
  cached_put(&t.k, "a", 1);
  cached_put(&t.k, "b", 1);
  t.room = 7;
  begin(&t, PERIGEE_CACHE_DELETE, 0, 2);
  say_key(&t, "a"), say_key(&t, "b");
  assert_int_equal(ask(&t), PERIGEE_TOO_LARGE);
  t.room = 8 + 4 + 3;
  assert_int_equal(ask(&t), 1);
  assert_false(cached_has(&t.k, "a"));
  assert_true(cached_has(&t.k, "b"));
  begin(&t, PERIGEE_CACHE_LOCATE, 0, 1);
  say_key(&t, "b");
  t.room = 8 + 4 + 56 + 3;
  assert_int_equal(ask(&t), 0);
  assert_int_equal(cached_count(&t.k).leases, 0);
  t.room++;
  assert_int_equal(ask(&t), 1);
  assert_int_equal(cached_count(&t.k).leases, 1);
  cached_close(&t.k);
}

/* ---- A store below that clients read ------------------------------------ */

/* A store with "both", and one below that has "both" and "low". */
static void spill_open(struct talk *t, struct cached *below) {
  *t = (struct talk){.room = sizeof t->reply};
  struct perigee_cache_options o = few;
  o.clients = 2;
  assert_int_equal(perigee_cache_open(&o, 0, &t->k.cache), 0);
  o.clients = 3;
  *below = cached_open(&o);
  t->k.now = below->now;
  perigee_cache_spill(t->k.cache, below->cache);
  cached_grow(&t->k);
  t->k.client = (uint32_t)perigee_cache_client(t->k.cache);
  cached_put(&t->k, "both", 3000);
  cached_put(below, "both", 3000);
  cached_put(below, "low", 3000);
  assert_int_equal(perigee_cache_mark(t->k.cache, "both", 4, 1, 1), 0);
}

static void spill_close(struct talk *t, struct cached *below) {
  cached_close(&t->k);
  cached_close(below);
}

/* Locates a key, and returns its lease. */
static uint64_t hear_located(struct talk *t, const char *key, bool below) {
  begin(t, PERIGEE_CACHE_LOCATE, 0, 1);
  say_key(t, key);
  assert_int_equal(ask(t), 1);
  assert_int_equal((int32_t)hear(t, 4), 0);
  assert_int_equal(hear(t, 4), below ? PERIGEE_CACHE_SPILLED : 0);
  assert_int_equal(hear(t, 4), below);
  t->at += 32;
  return hear(t, 8);
}

static int32_t hear_flagged(struct talk *t, int what, uint16_t flags,
                            const char *key) {
  begin(t, what, flags, 1);
  say_key(t, key);
  assert_int_equal(ask(t), 1);
  return (int32_t)hear(t, 4);
}

static int32_t hear_status(struct talk *t, int what, const char *key) {
  return hear_flagged(t, what,
                      what == PERIGEE_CACHE_PIN ? PERIGEE_CACHE_HARD : 0, key);
}

static int32_t hear_released(struct talk *t, uint64_t lease) {
  begin(t, PERIGEE_CACHE_RELEASE, 0, 1);
  say(t, lease, 8);
  assert_int_equal(ask(t), 1);
  return (int32_t)hear(t, 4);
}

static void what_is_below_alone_is_read_there(void **state) {
  struct talk t;
  struct cached below;
  (void)state;
  spill_open(&t, &below);
  uint64_t above = hear_located(&t, "both", false);
  uint64_t low = hear_located(&t, "low", true);
  assert_int_not_equal(above, low);
  assert_int_equal(cached_count(&below).leases, 1);
  assert_int_equal(cached_count(&t.k).leases, 2);
  assert_int_equal(cached_count(&t.k).hits, 2);
  assert_int_equal(cached_count(&t.k).spilled, 2);
  assert_int_equal(hear_status(&t, PERIGEE_CACHE_TOUCH, "low"), 0);
  assert_int_equal(hear_status(&t, PERIGEE_CACHE_PIN, "low"), 0);
  assert_int_equal(cached_count(&below).hard, 4096);
  assert_int_equal(hear_status(&t, PERIGEE_CACHE_TOUCH, "none"),
                   PERIGEE_NOT_FOUND);
  assert_int_equal(hear_released(&t, low), 0);
  assert_int_equal(hear_released(&t, low), PERIGEE_STALE);
  assert_int_equal(hear_released(&t, above), 0);
  assert_int_equal(cached_count(&t.k).leases, 0);
  spill_close(&t, &below);
}

static void
a_pin_below_goes_when_what_came_back_is_pinned_or_not(void **state) {
  struct talk t;
  struct cached below;
  (void)state;
  spill_open(&t, &below);
  assert_int_equal(hear_status(&t, PERIGEE_CACHE_PIN, "low"), 0);
  assert_int_equal(cached_count(&below).hard, 4096);
  cached_put(&t.k, "low", 3000);
  assert_int_equal(hear_status(&t, PERIGEE_CACHE_PIN, "low"), 0);
  assert_int_equal(cached_count(&below).hard, 0);
  assert_int_equal(cached_count(&t.k).hard, 4096);
  assert_int_equal(
      hear_flagged(&t, PERIGEE_CACHE_PIN, PERIGEE_CACHE_UNPINNED, "low"), 0);
  assert_int_equal(cached_count(&t.k).hard, 0);
  spill_close(&t, &below);
}

static void a_client_that_is_gone_holds_nothing_below(void **state) {
  struct talk t;
  struct cached below;
  (void)state;
  spill_open(&t, &below);
  hear_located(&t, "low", true);
  assert_int_equal(cached_delete(&below, "low"), 0);
  assert_int_equal(cached_count(&below).held, 1);
  assert_int_equal(perigee_cache_client_gone(t.k.cache, t.k.client), 0);
  assert_int_equal(cached_count(&below).held, 0);
  assert_int_equal(cached_count(&below).clients, 1);
  for (int i = 0; i < 2; i++)
    assert_true(perigee_cache_client(t.k.cache) >= 0);
  assert_int_equal(perigee_cache_client(t.k.cache), PERIGEE_NO_MEMORY);
  spill_close(&t, &below);
}

static void a_client_that_has_no_place_below_has_none(void **state) {
  struct talk t;
  struct cached below;
  (void)state;
  spill_open(&t, &below);
  assert_true(perigee_cache_client(below.cache) >= 0);
  assert_int_equal(perigee_cache_client(t.k.cache), PERIGEE_NO_MEMORY);
  assert_int_equal(cached_count(&t.k).clients, 1);
  spill_close(&t, &below);
}

static void what_has_gone_from_below_is_written_again(void **state) {
  struct talk t;
  struct cached below;
  struct perigee_cache_cold cold[2];
  (void)state;
  spill_open(&t, &below);
  assert_int_equal(perigee_cache_coldest(t.k.cache, cold, 2, 9), 0);
  assert_int_equal(cached_delete(&below, "both"), 0);
  assert_int_equal(perigee_cache_coldest(t.k.cache, cold, 2, 9), 1);
  spill_close(&t, &below);
}

static void locate_often(struct talk *t, const char *key, int times,
                         bool below) {
  for (int i = 0; i < times; i++)
    assert_int_equal(hear_released(t, hear_located(t, key, below)), 0);
}

static uint32_t hot(struct talk *t, struct perigee_cache_cold *named) {
  return perigee_cache_hot(t->k.cache, named, 2, t->k.now);
}

static void what_is_got_often_below_is_named_as_hot(void **state) {
  struct talk t;
  struct cached below;
  struct perigee_cache_cold named[2];
  (void)state;
  spill_open(&t, &below);
  locate_often(&t, "both", 20, false);
  locate_often(&t, "low", 7, true);
  assert_int_equal(hot(&t, named), 0);
  locate_often(&t, "low", 1, true);
  assert_int_equal(hot(&t, named), 1);
  assert_int_equal(named->key_length, 3);
  assert_memory_equal(named->key, "low", 3);
  assert_int_equal(named->place.length, 3000);
  assert_int_equal(hot(&t, named), 0);
  locate_often(&t, "low", 7, true);
  t.k.now = below.now += 4 * SECONDS;
  locate_often(&t, "low", 7, true);
  assert_int_equal(hot(&t, named), 0);
  locate_often(&t, "low", 1, true);
  assert_int_equal(cached_delete(&below, "low"), 0);
  assert_int_equal(hot(&t, named), 0);
  spill_close(&t, &below);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_below_alone_is_read_there),
      cmocka_unit_test(a_pin_below_goes_when_what_came_back_is_pinned_or_not),
      cmocka_unit_test(a_client_that_is_gone_holds_nothing_below),
      cmocka_unit_test(a_client_that_has_no_place_below_has_none),
      cmocka_unit_test(what_has_gone_from_below_is_written_again),
      cmocka_unit_test(what_is_got_often_below_is_named_as_hot),
      cmocka_unit_test(has_and_match_tell_what_is_there),
      cmocka_unit_test(locate_grants_leases_and_release_ends_them),
      cmocka_unit_test(small_values_come_along_without_a_lease),
      cmocka_unit_test(values_that_come_along_are_sealed_at_once),
      cmocka_unit_test(a_put_that_is_cut_is_refused),
      cmocka_unit_test(a_key_that_changes_under_way_is_one_key),
      cmocka_unit_test(a_value_that_changes_under_way_is_summed_as_it_is_kept),
      cmocka_unit_test(a_value_without_room_is_told_by_its_place),
      cmocka_unit_test(touch_pin_stat_and_delete_are_of_many_keys),
      cmocka_unit_test(a_list_goes_on_from_its_cursor_while_the_table_grows),
      cmocka_unit_test(a_list_has_keys_whose_values_are_replaced),
      cmocka_unit_test(events_come_in_order_and_are_lost_when_old),
      cmocka_unit_test(copies_are_found_by_their_keys_alone),
      cmocka_unit_test(events_with_long_keys_are_lost_by_their_bytes),
      cmocka_unit_test(requests_that_are_none_are_refused),
      cmocka_unit_test(what_has_no_room_is_not_done),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
