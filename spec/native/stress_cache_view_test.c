/* SPDX-License-Identifier: Apache-2.0
 *
 * stress_cache_view_test.c - readers of a cache's directory in threads of the
 * writer's process, where ThreadSanitizer sees both sides.
 */
#include <pthread.h>

#include "cached_readers.h"

enum { THREADS = 2, ROUNDS = 40, WRITES = 500 };

struct reader {
  struct readers_room *room;
  int number;
};

static void *reader_main(void *at) {
  const struct reader *r = at;
  readers_run(r->room, r->number);
  return NULL;
}

static void readers_in_threads_get_whole_values_or_none(void **state) {
  static struct readers_room room;
  struct reader readers[THREADS];
  pthread_t threads[THREADS];
  uint64_t step = 0, dice = 5;
  (void)state;
  room.k = readers_open();
  for (int i = 0; i < THREADS; i++) {
    readers[i] = (struct reader){&room, i};
    assert_int_equal(
        pthread_create(&threads[i], NULL, reader_main, &readers[i]), 0);
  }
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t before = atomic_load(&room.good[round % THREADS]);
    do {
      for (int i = 0; i < WRITES; i++)
        readers_write(&room.k, ++step, &dice);
    } while (atomic_load(&room.good[round % THREADS]) < before + 20);
  }
  atomic_store(&room.stop, 1);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(atomic_load(&room.bad), 0);
  cached_close(&room.k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(readers_in_threads_get_whole_values_or_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
