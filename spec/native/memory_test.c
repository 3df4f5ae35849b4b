/* SPDX-License-Identifier: Apache-2.0
 *
 * memory_test.c - kinds of memory: their devices, copies with tickets, the kind
 * that a pointer belongs to. "twin" is a kind that the core does not know.
 * memory_sharing_test.c has memory that another process uses.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gathered.h"

extern _Atomic uint64_t perigee_opaque_copies;

enum { HANDFUL = 8 };

/* ---- Shapes ---------------------------------------------------------------- */

static void a_thousand_blocks_are_a_handful_of_copies(void **state) {
  struct perigee_region *r = of_kind(*state, "opaque", SIZE);
  uint8_t *all = pattern(SIZE, 5), want[GATHERED], got[GATHERED];
  struct copies copies;
  fill(r, 0, all, SIZE);
  struct payload from = walk(r, &copies, true), to;
  payload_bytes(&to, got, GATHERED);
  uint64_t before = atomic_load(&perigee_opaque_copies);
  move_all(&to, &from);
  assert_in_range(atomic_load(&perigee_opaque_copies) - before, 1, HANDFUL);
  gather(want, all);
  assert_memory_equal(got, want, GATHERED);
  free(all);
  region_end(r);
}

/* Copies from the middle of one block into the middle of another. */
static void a_shape_may_begin_and_end_within_a_block(void **state) {
  struct perigee_region *r = of_kind(*state, "opaque", SIZE);
  uint8_t *all = pattern(SIZE, 6), want[GATHERED], got[GATHERED] = {0};
  struct copies copies;
  fill(r, 0, all, SIZE);
  gather(want, all);
  struct payload from = walk(r, &copies, true), to;
  from.done = copies.asked = 10;
  payload_bytes(&to, got + 10, GATHERED - 30);
  uint64_t before = atomic_load(&perigee_opaque_copies);
  move_all(&to, &from);
  assert_in_range(atomic_load(&perigee_opaque_copies) - before, 3, HANDFUL);
  assert_memory_equal(got + 10, want + 10, GATHERED - 30);
  assert_int_equal(got[GATHERED - 20], 0);
  free(all);
  region_end(r);
}

static void a_message_of_a_thousand_blocks_asks_for_a_handful(void **state) {
  static const struct variant opaque = {"opaque", "shm", "opaque", 1, NULL};
  (void)state;
  struct pair p;
  pair_open(&p, (void *)(uintptr_t)&opaque);
  struct perigee_region *r = region_of(&p, 0, NULL, SIZE, 0);
  struct perigee_region *into = region_of(&p, 1, NULL, SIZE, 0);
  struct perigee_slice all = all_of(into, GATHERED);
  uint8_t *bytes = pattern(SIZE, 7), want[GATHERED];
  fill(r, 0, bytes, SIZE);
  gather(want, bytes);
  uint64_t before = atomic_load(&perigee_opaque_copies);
  struct perigee_slice blocks = {{r}, 0, BLOCK, BLOCKS, STRIDE};
  assert_int_equal(perigee_recv(p.session[1], &all, -1) >= 0, 1);
  int op = perigee_send(p.session[0], &blocks, -1);
  until(&p, 1, PERIGEE_EVENT_DONE);
  finish(&p, op, 0);
  assert_in_range(atomic_load(&perigee_opaque_copies) - before, 2, 2 * HANDFUL);
  same(into, 0, want, GATHERED);
  settle(&p);
  free(bytes);
  region_end(r);
  region_end(into);
  pair_close(&p);
}

/* ---- Tickets --------------------------------------------------------------- */

static void many_copies_are_under_way_at_once(void **state) {
  enum { LONG = 4 * COPY_PIECE };
  struct perigee_region *r = of_kind(*state, "opaque", LONG);
  uint8_t *bytes = pattern(LONG, 8);
  struct copies copies = {0};
  struct payload to = {.memory = r->memory,
                       .base = perigee_region_pointer(r),
                       .block = LONG,
                       .count = 1,
                       .stride = LONG,
                       .total = LONG,
                       .copies = &copies};
  assert_int_equal(payload_put(&to, bytes, LONG), 0);
  assert_int_equal(copies.count, 4);
  assert_false(payload_quiet(&to));
  while (to.done < LONG)
    assert_true(payload_put(&to, bytes + to.done, LONG - to.done) >= 0);
  same(r, 0, bytes, LONG);
  free(bytes);
  region_end(r);
}

/* More bytes are given while the copies of earlier ones are under way. */
static void what_is_named_later_is_asked_for_at_once(void **state) {
  struct perigee_region *r = of_kind(*state, "opaque", SIZE);
  uint8_t *bytes = pattern(SIZE, 9);
  struct copies copies;
  struct payload to = walk(r, &copies, false);
  assert_int_equal(payload_put(&to, bytes, 100), 0);
  assert_int_equal(payload_put(&to, bytes, 300), 0);
  assert_int_equal(copies.count, 2);
  assert_int_equal(copies.asked, 300);
  while (to.done < 300)
    assert_true(payload_put(&to, bytes + to.done, 300 - to.done) >= 0);
  same(r, 0, bytes, 300);
  free(bytes);
  region_end(r);
}

/* A kind whose second copy fails while the first is still under way. */
static int asked, polled;

static int failing_copy(const struct memory_context *c,
                        const struct memory_copy *copy, uint64_t *ticket) {
  (void)c, (void)copy;
  *ticket = (uint64_t)++asked;
  return PERIGEE_OK;
}

static int failing_finished(const struct memory_context *c, uint64_t ticket) {
  (void)c;
  polled++;
  if (ticket == 1)
    return PERIGEE_SYSTEM;
  return polled < 4 ? 0 : 1;
}

static void drain_nothing(const struct memory_context *c) {
  (void)c;
}

static void a_failure_is_told_and_the_rest_is_waited_for(void **state) {
  (void)state;
  static const struct memory_copies table = {.copy = failing_copy,
                                             .finished = failing_finished,
                                             .drain = drain_nothing};
  static const struct perigee_memory kind = {.name = "failing",
                                             .copies = &table};
  static const struct memory_context memory = {.kind = &kind};
  static uint8_t bytes[2 * COPY_PIECE];
  struct copies copies = {0};
  struct payload to;
  payload_bytes(&to, bytes, sizeof bytes);
  to.memory = &memory;
  to.copies = &copies;
  asked = polled = 0;
  assert_int_equal(payload_put(&to, bytes, sizeof bytes), PERIGEE_SYSTEM);
  assert_int_equal(payload_put(&to, bytes, sizeof bytes), PERIGEE_SYSTEM);
  assert_int_equal(asked, 2);
  assert_false(payload_quiet(&to));
  while (!payload_quiet(&to))
    ;
  assert_int_equal(to.done, 0);
}

/* As above, but that what is under way ends by drain alone. */
static int begun, unended;
static bool drained;

static int open_copy(const struct memory_context *c,
                     const struct memory_copy *copy, uint64_t *ticket) {
  (void)c, (void)copy;
  *ticket = (uint64_t)++begun;
  unended++;
  return PERIGEE_OK;
}

static int open_finished(const struct memory_context *c, uint64_t ticket) {
  (void)c;
  if (ticket > 1 && !drained)
    return 0;
  unended--;
  return ticket > 1 ? 1 : PERIGEE_SYSTEM;
}

static void open_drain(const struct memory_context *c) {
  (void)c;
  drained = true;
}

static void a_failed_access_leaves_no_ticket_open(void **state) {
  (void)state;
  static const struct memory_copies table = {
      .copy = open_copy, .finished = open_finished, .drain = open_drain};
  static const struct perigee_memory kind = {.name = "open", .copies = &table};
  static const struct perigee_memory *const kinds[] = {&kind, NULL};
  static uint8_t there[2 * COPY_PIECE], here[2 * COPY_PIECE];
  struct perigee_options o;
  struct perigee_engine *engine;
  struct perigee_region *r;
  perigee_options_init(&o, sizeof o);
  o.memories = kinds;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  assert_int_equal(
      perigee_region_register(engine, NULL, there, sizeof there, 0, "open", &r),
      0);
  assert_int_equal(perigee_region_write(r, 0, here, sizeof here),
                   PERIGEE_SYSTEM);
  assert_int_equal(begun, 2);
  assert_int_equal(unended, 0);
  region_end(r);
  perigee_engine_close(engine);
}

/* The program waits in the middle of its transfers, which hold all tickets. */
static void an_access_needs_no_ticket_of_others(void **state) {
  struct perigee_engine *engine = *state;
  static const char *const kinds[] = {"opaque", "twin", NULL};
  static uint8_t bytes[SIZE], back[SIZE];
  for (int k = 0; kinds[k]; k++) {
    struct perigee_region *r = of_kind(engine, kinds[k], SIZE);
    const struct memory_copies *copies = r->memory->kind->copies;
    struct memory_copy one = {
        r->memory, &memory_host, r->pointer, bytes, 8, 1, 8, 8, false};
    uint64_t tickets[256];
    int n = 0;
    while (n < 256 && copies->copy(r->memory, &one, &tickets[n]) == 0)
      n++;
    assert_in_range(n, 1, 255);
    memset(bytes, 7 + k, sizeof bytes);
    assert_int_equal(perigee_region_write(r, 0, bytes, SIZE), 0);
    assert_int_equal(perigee_region_read(r, 0, back, SIZE), 0);
    assert_memory_equal(bytes, back, SIZE);
    copies->drain(r->memory);
    for (int i = 0; i < n; i++)
      assert_int_equal(copies->finished(r->memory, tickets[i]), 1);
    region_end(r);
  }
}

/* ---- Devices --------------------------------------------------------------- */

static void a_kind_has_devices_by_number(void **state) {
  struct perigee_engine *engine = *state;
  struct perigee_region *none, *first = of_kind(engine, "twin", SIZE),
                               *again = of_kind(engine, "twin:0", SIZE),
                               *second = of_kind(engine, "twin:1", SIZE);
  assert_ptr_equal(first->memory, again->memory);
  assert_ptr_not_equal(first->memory, second->memory);
  assert_int_equal(second->memory->device, 1);
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, "twin:2", &none),
                   PERIGEE_NOT_FOUND);
  assert_string_equal(perigee_detail(engine),
                      "a twin has two devices, 0 and 1");
  static const char *const wrong[] = {
      "twins", "twi", "twin:", "twin:x", "twin:-1", "twin:99999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(
        perigee_region_alloc(engine, NULL, SIZE, 0, wrong[i], &none),
        PERIGEE_UNSUPPORTED);
  region_end(first);
  region_end(again);
  region_end(second);
}

static void two_engines_have_contexts_of_their_own(void **state) {
  struct perigee_engine *other = engine_with_kinds();
  struct perigee_region *here = of_kind(*state, "twin", SIZE);
  struct perigee_region *there = of_kind(other, "twin", SIZE);
  assert_ptr_not_equal(here->memory, there->memory);
  assert_ptr_not_equal(here->memory->own, there->memory->own);
  region_end(there);
  perigee_engine_close(other);
  region_end(here);
}

static void one_device_copies_from_the_other_in_any_shape(void **state) {
  struct perigee_region *from = of_kind(*state, "twin:0", SIZE);
  struct perigee_region *to = of_kind(*state, "twin:1", SIZE);
  uint8_t *bytes = pattern(SIZE, 10), want[GATHERED];
  struct copies copies[2];
  fill(from, 0, bytes, SIZE);
  gather(want, bytes);
  struct payload a = walk(from, &copies[0], true);
  struct payload b = walk(to, &copies[1], false);
  move_all(&b, &a);
  same(to, 0, want, GATHERED);
  free(bytes);
  region_end(from);
  region_end(to);
}

static void two_kinds_do_not_copy_from_each_other(void **state) {
  struct perigee_region *from = of_kind(*state, "twin", SIZE);
  struct perigee_region *to = of_kind(*state, "opaque", SIZE);
  struct copies copies[2];
  struct payload a = walk(from, &copies[0], false);
  struct payload b = walk(to, &copies[1], false);
  assert_int_equal(payload_move(&b, &a, SIZE), PERIGEE_UNSUPPORTED);
  region_end(from);
  region_end(to);
}

/* ---- Whose memory is it? ---------------------------------------------------- */

static void a_pointer_is_registered_as_what_it_is(void **state) {
  struct perigee_engine *engine = *state;
  struct perigee_region *r = of_kind(engine, "twin:1", SIZE), *again = NULL;
  uint8_t *pointer = perigee_region_pointer(r), host[64];
  assert_int_equal(
      perigee_region_register(engine, NULL, pointer + 64, 64, 0, NULL, &again),
      0);
  assert_ptr_equal(again->memory, r->memory);
  region_end(again);
  static const char *const wrong[] = {"host", "opaque", "twin:0"};
  for (int i = 0; i < 3; i++)
    assert_int_equal(
        perigee_region_register(engine, NULL, pointer, 64, 0, wrong[i], &again),
        PERIGEE_INVALID);
  assert_int_equal(
      perigee_region_register(engine, NULL, host, 64, 0, "twin", &again),
      PERIGEE_INVALID);
  assert_int_equal(
      perigee_region_register(engine, NULL, host, 64, 0, NULL, &again), 0);
  assert_ptr_equal(again->memory, &memory_host);
  region_end(again);
  region_end(r);
}

/* ---- What a device may be -------------------------------------------------- */

static int some_open(uint32_t device, void **own, char reason[MEMORY_REASON]) {
  static bool pinnable[] = {false, true};
  (void)reason;
  *own = &pinnable[device];
  return 0;
}

static void some_close(void *own) {
  (void)own;
}

static bool some_pinnable(const void *own) {
  return *(const bool *)own;
}

/* RDMA devices may pin memory of one of its devices, and not of another one. */
static void each_device_is_pinnable_or_not(void **state) {
  (void)state;
  static struct perigee_memory some = {
      .name = "some", .open = some_open, .close = some_close};
  static const struct perigee_memory *const kinds[] = {&some, NULL};
  const struct memory_context *m;
  char reason[MEMORY_REASON];
  for (int asked = 0; asked < 2; asked++) {
    struct contexts all = {.kinds = kinds};
    some.pinnable = asked ? some_pinnable : NULL;
    for (int device = 0; device < 2; device++) {
      assert_int_equal(
          contexts_find(&all, device ? "some:1" : "some:0", &m, reason), 0);
      assert_int_equal(m->pinnable, asked && device == 1);
    }
    contexts_close(&all);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_ENGINE(a_thousand_blocks_are_a_handful_of_copies),
      WITH_ENGINE(a_shape_may_begin_and_end_within_a_block),
      cmocka_unit_test(a_message_of_a_thousand_blocks_asks_for_a_handful),
      WITH_ENGINE(many_copies_are_under_way_at_once),
      WITH_ENGINE(what_is_named_later_is_asked_for_at_once),
      cmocka_unit_test(a_failure_is_told_and_the_rest_is_waited_for),
      cmocka_unit_test(a_failed_access_leaves_no_ticket_open),
      WITH_ENGINE(an_access_needs_no_ticket_of_others),
      WITH_ENGINE(a_kind_has_devices_by_number),
      WITH_ENGINE(two_engines_have_contexts_of_their_own),
      WITH_ENGINE(one_device_copies_from_the_other_in_any_shape),
      WITH_ENGINE(two_kinds_do_not_copy_from_each_other),
      WITH_ENGINE(a_pointer_is_registered_as_what_it_is),
      cmocka_unit_test(each_device_is_pinnable_or_not),
  };
  return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
