/* SPDX-License-Identifier: Apache-2.0
 *
 * memory_cuda_test.c - memory of kind "cuda" as memory.h has it, by the fake of
 * CUDA's driver (spec/gpu/libcuda_fake.c), which ends the process where real
 * CUDA leaves undefined what happens. Tests are skipped unless
 * PERIGEE_CUDA_LIBRARY names the fake, as make check-gpu does.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "gathered.h"

/* Sets the fake; skips the test if there is none. */
static void fake_set(const char *word) {
  const char *name = getenv("PERIGEE_CUDA_LIBRARY");
  void *library = name && *name ? dlopen(name, RTLD_NOW) : NULL;
  void (*set)(const char *) = NULL;
  if (library)
    *(void **)&set = dlsym(library, "fake_cuda_set");
  if (set)
    set(word);
  else
    skip();
}

/* What cuMemMap has mapped is for one device: by cuMemcpyPeerAsync alone. */
static void one_device_copies_from_the_other(void **state) {
  fake_set("slow=20");
  struct perigee_region *from = of_kind(*state, "cuda:0", SIZE);
  struct perigee_region *to = of_kind(*state, "cuda:1", SIZE);
  uint8_t *bytes = pattern(SIZE, 10), want[GATHERED];
  struct copies copies[2];
  fill(from, 0, bytes, SIZE);
  gather(want, bytes);
  for (int blocks = 0; blocks < 2; blocks++) {
    struct payload a = walk(from, &copies[0], blocks);
    struct payload b = walk(to, &copies[1], false);
    move_all(&b, &a);
    same(to, 0, blocks ? want : bytes, GATHERED);
  }
  free(bytes);
  region_end(from);
  region_end(to);
}

/* The program's own context stays the current one. */
static void a_context_that_cannot_be_entered_is_not_left(void **state) {
  struct perigee_engine *engine = *state;
  fake_set("slow=20");
  struct perigee_region *r = of_kind(engine, "cuda:0", SIZE), *none = NULL;
  fake_set("fail=cuCtxPushCurrent@1:201");
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, "cuda:0", &none),
                   PERIGEE_SYSTEM);
  fake_set("fail=cuCtxPushCurrent@1:201");
  assert_int_equal(perigee_region_write(r, 0, "abc", 3), PERIGEE_CLOSED);
  assert_int_equal(perigee_region_write(r, 0, "abc", 3), 0);
  region_end(r);
}

/* After drain no ticket is still under way (memory.h), whatever the device. */
static void a_drained_copy_of_a_broken_device_has_ended(void **state) {
  fake_set("slow=20");
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  const struct memory_copies *copies = r->memory->kind->copies;
  uint8_t bytes[8] = {0};
  struct memory_copy one = {r->memory, &memory_host, r->pointer, bytes, 8, 1, 8,
                            8,         false};
  uint64_t tickets[2];
  fake_set("fail=stream@1:700");
  assert_int_equal(copies->copy(r->memory, &one, &tickets[0]), 0);
  copies->drain(r->memory);
  assert_int_equal(copies->finished(r->memory, tickets[0]), PERIGEE_CLOSED);
  assert_int_equal(copies->copy(r->memory, &one, &tickets[1]), PERIGEE_CLOSED);
  region_end(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_ENGINE(one_device_copies_from_the_other),
      WITH_ENGINE(a_context_that_cannot_be_entered_is_not_left),
      /* The last one, as the fake stays broken. */
      WITH_ENGINE(a_drained_copy_of_a_broken_device_has_ended),
  };
  return cmocka_run_group_tests_name("memory_cuda", tests, NULL, NULL);
}
