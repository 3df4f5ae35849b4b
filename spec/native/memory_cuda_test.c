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

#include "kinds.h"

enum { BLOCKS = 1000, BLOCK = 64, STRIDE = 256 };
enum { GATHERED = BLOCKS * BLOCK, SIZE = BLOCKS * STRIDE };

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

static struct perigee_region *of_cuda(struct perigee_engine *engine,
                                      const char *kind) {
  struct perigee_region *region = NULL;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, kind, &region),
                   0);
  return region;
}

static struct payload whole(struct perigee_region *r, struct copies *copies,
                            bool blocks) {
  *copies = (struct copies){0};
  uint64_t block = blocks ? BLOCK : GATHERED, count = blocks ? BLOCKS : 1;
  return (struct payload){.memory = r->memory,
                          .base = perigee_region_pointer(r),
                          .block = block,
                          .count = count,
                          .stride = blocks ? STRIDE : GATHERED,
                          .total = GATHERED,
                          .copies = copies};
}

static void move_all(struct payload *to, struct payload *from) {
  while (to->done < to->total)
    assert_true(payload_move(to, from, to->total - to->done) >= 0);
  assert_true(payload_quiet(to) && payload_quiet(from));
}

static void gather(uint8_t *to, const uint8_t *from) {
  for (int i = 0; i < BLOCKS; i++)
    memcpy(to + i * BLOCK, from + i * STRIDE, BLOCK);
}

/* What cuMemMap has mapped is for one device: by cuMemcpyPeerAsync alone. */
static void one_device_copies_from_the_other(void **state) {
  fake_set("slow=20");
  struct perigee_region *from = of_cuda(*state, "cuda:0");
  struct perigee_region *to = of_cuda(*state, "cuda:1");
  uint8_t *bytes = pattern(SIZE, 10), want[GATHERED];
  struct copies copies[2];
  fill(from, 0, bytes, SIZE);
  gather(want, bytes);
  for (int blocks = 0; blocks < 2; blocks++) {
    struct payload a = whole(from, &copies[0], blocks);
    struct payload b = whole(to, &copies[1], false);
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
  struct perigee_region *r = of_cuda(engine, "cuda:0"), *none = NULL;
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
  struct perigee_region *r = of_cuda(*state, "cuda:0");
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
