/* SPDX-License-Identifier: Apache-2.0
 *
 * transfers_test.c - one-sided reads and writes, whole, in batches, strided and
 * prepared, of memory that is mapped, registered or reachable only by its
 * owner.
 */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SIZE = 3 * MIB, BOTH = PERIGEE_READ | PERIGEE_WRITE };

static const uint64_t sizes[] = {0,     1,     63,           64,  8191,   8192,
                                 65535, 65536, 64 * KIB + 1, MIB, MIB + 1};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* A region there, its handle here, and memory here. */
struct reach {
  struct pair p;
  struct perigee_region *there, *here;
  struct perigee_remote *remote;
  uint8_t *memory, *bytes;
};

static void reach_open(struct reach *r, void *state, int access,
                       bool registered) {
  pair_open(&r->p, state);
  r->memory = pattern(SIZE, 1);
  r->bytes = pattern(SIZE, 2);
  if (registered)
    assert_int_equal(perigee_region_register(r->p.engine[1], "memory",
                                             r->memory, SIZE, access, NULL,
                                             &r->there),
                     0);
  else
    r->there = region_of(&r->p, 1, "memory", SIZE, access);
  r->here = region_of(&r->p, 0, NULL, SIZE, 0);
  r->remote = look_up(&r->p, "memory");
  assert_int_equal(perigee_remote_length(r->remote), SIZE);
  assert_int_equal(perigee_remote_access(r->remote), access);
}

static void reach_close(struct reach *r) {
  region_end(r->here);
  pair_close(&r->p);
  free(r->memory);
  free(r->bytes);
}

static struct perigee_transfer item(struct reach *r, uint64_t local,
                                    uint64_t remote, uint64_t length) {
  return (struct perigee_transfer){
      .local = {{r->here}, local, length, 1, length},
      .remote = {{.remote = r->remote}, remote, length, 1, length}};
}

static int one(struct reach *r, int operation,
               const struct perigee_transfer *t) {
  return perigee_transfer(r->p.session[0], operation, t, 1, 0, -1);
}

static void back_and_forth(void **state, bool registered) {
  struct reach r;
  reach_open(&r, *state, BOTH, registered);
  for (int i = 0; i < SIZES; i++) {
    struct perigee_transfer t = item(&r, 7, 11, sizes[i]);
    fill(r.here, 7, r.bytes, sizes[i]);
    fill_byte(r.there, 0);
    finish_moved(&r.p, one(&r, PERIGEE_OP_WRITE, &t), sizes[i]);
    same(r.there, 11, r.bytes, sizes[i]);
    same(r.there, 11 + sizes[i], "\0\0\0\0\0\0\0\0", 8);
    fill_byte(r.here, 0);
    finish_moved(&r.p, one(&r, PERIGEE_OP_READ, &t), sizes[i]);
    same(r.here, 7, r.bytes, sizes[i]);
    same(r.here, 7 + sizes[i], "\0\0\0\0\0\0\0\0", 8);
  }
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

static void memory_is_written_and_read(void **state) {
  back_and_forth(state, false);
}

static void registered_memory_is_reached_by_request(void **state) {
  back_and_forth(state, true);
}

/* Memory that both processes have mapped is read and written without a
 * transfer. */
static void mapped_memory_has_an_address(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  const struct variant *v = *state;
  uint32_t device = 7;
  assert_string_equal(perigee_region_kind(r.here, &device), v->memory);
  assert_int_equal(device, 0);
  uint8_t *mapped = perigee_remote_pointer(r.remote);
  bool direct = strcmp(v->memory, "host") == 0;
  if (strcmp(v->transport, "tcp") == 0)
    assert_null(mapped);
  if (direct && strcmp(v->transport, "shm") == 0)
    assert_non_null(mapped);
  if (direct && mapped) {
    fill(r.there, 0, r.bytes, SIZE);
    assert_memory_equal(mapped, r.bytes, SIZE);
    memset(mapped + 5, 0x5a, 1);
    same(r.there, 5, "\x5a", 1);
  }
  reach_close(&r);
}

/* Does this process have a page there? */
static bool is_mapped(uint8_t *page) {
  unsigned char there;
  return mincore(page, 1, &there) == 0;
}

static void expect_unmapped(uint8_t *page) {
  if (page)
    assert_false(is_mapped(page));
}

/* Each look-up is undone by itself, and the name can be looked up anew. */
static void a_region_is_let_go_when_each_look_up_is_undone(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  struct perigee_transfer t = item(&r, 0, 0, MIB);
  uint8_t *mapped = perigee_remote_pointer(r.remote);
  assert_ptr_equal(look_up(&r.p, "memory"), r.remote);
  perigee_remote_close(r.remote);
  assert_ptr_equal(perigee_remote_pointer(r.remote), mapped);
  finish(&r.p, one(&r, PERIGEE_OP_WRITE, &t), 0);
  perigee_remote_close(r.remote);
  expect_unmapped(mapped);
  r.remote = look_up(&r.p, "memory");
  t = item(&r, 0, 0, MIB);
  fill(r.there, 0, r.bytes, MIB);
  finish(&r.p, one(&r, PERIGEE_OP_READ, &t), 0);
  same(r.here, 0, r.bytes, MIB);
  reach_close(&r);
}

/* What is under way, and what is prepared, goes on. */
static void a_region_that_is_let_go_stays_for_its_transfers(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  fill(r.there, 0, r.bytes, SIZE);
  uint8_t *mapped = perigee_remote_pointer(r.remote);
  struct perigee_transfer t = item(&r, 0, 0, MIB);
  struct perigee_slice places[2] = {
      {{.remote = r.remote}, 0, MIB / 2, 1, MIB / 2},
      {{.remote = r.remote}, MIB / 2 + 64, MIB / 2, 1, MIB / 2}};
  struct perigee_transfer list = {t.local, perigee_list(places, 2)};
  struct perigee_prepared *plain, *listed;
  struct perigee_session *s = r.p.session[0];
  assert_int_equal(perigee_prepare(s, PERIGEE_OP_READ, &t, 1, 0, &plain), 0);
  assert_int_equal(perigee_prepare(s, PERIGEE_OP_READ, &list, 1, 0, &listed),
                   0);
  int op = one(&r, PERIGEE_OP_READ, &list);
  perigee_remote_close(r.remote);
  finish(&r.p, op, 0);
  fill_byte(r.here, 0);
  finish(&r.p, perigee_post(plain, -1), 0);
  same(r.here, 0, r.bytes, MIB);
  perigee_prepared_free(plain);
  finish(&r.p, perigee_post(listed, -1), 0);
  same(r.here, MIB / 2, r.bytes + MIB / 2 + 64, MIB / 2);
  if (mapped)
    assert_true(is_mapped(mapped));
  perigee_prepared_free(listed);
  expect_unmapped(mapped);
  reach_close(&r);
}

/* The last operation that names it frees it. */
static void a_region_that_is_let_go_ends_with_its_transfer(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  fill(r.there, 0, r.bytes, SIZE);
  uint8_t *mapped = perigee_remote_pointer(r.remote);
  struct perigee_transfer t = item(&r, 0, 0, MIB);
  int op = one(&r, PERIGEE_OP_READ, &t);
  perigee_remote_close(r.remote);
  if (mapped && op != PERIGEE_INLINE)
    assert_true(is_mapped(mapped));
  finish(&r.p, op, 0);
  same(r.here, 0, r.bytes, MIB);
  expect_unmapped(mapped);
  reach_close(&r);
}

static void strides_gather_and_scatter(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  fill(r.there, 0, r.bytes, SIZE);
  struct perigee_transfer g = item(&r, 0, 0, 64000);
  g.remote = (struct perigee_slice){{.remote = r.remote}, 32, 64, 1000, 256};
  finish_moved(&r.p, one(&r, PERIGEE_OP_READ, &g), 64000);
  uint8_t *gathered = malloc(64000);
  for (int i = 0; i < 1000; i++)
    memcpy(gathered + 64 * i, r.bytes + 32 + 256 * i, 64);
  same(r.here, 0, gathered, 64000);
  /* The bytes are also scattered elsewhere, in blocks of another size on
   * this side. */
  g.local = (struct perigee_slice){{r.here}, 0, 6400, 10, 6400};
  g.remote.offset = 160;
  finish(&r.p, one(&r, PERIGEE_OP_WRITE, &g), 0);
  for (int i = 0; i < 1000; i++)
    memcpy(r.bytes + 160 + 256 * i, gathered + 64 * i, 64);
  same(r.there, 0, r.bytes, SIZE);
  free(gathered);
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

static void a_batch_is_one_event(void **state) {
  enum { ITEMS = 100, STEP = 20000 };
  struct perigee_transfer list[ITEMS];
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  fill(r.here, 0, r.bytes, SIZE);
  for (int i = 0; i < ITEMS; i++)
    list[i] =
        item(&r, (uint64_t)i * STEP, (uint64_t)(ITEMS - 1 - i) * STEP, STEP);
  struct perigee_session *s = r.p.session[0];
  finish_moved(&r.p, perigee_transfer(s, PERIGEE_OP_WRITE, list, ITEMS, 0, -1),
               ITEMS * STEP);
  for (int i = 0; i < ITEMS; i++)
    same(r.there, (uint64_t)(ITEMS - 1 - i) * STEP,
         r.bytes + (uint64_t)i * STEP, STEP);
  quiet(&r.p, 20);
  /* If one item is invalid, none of them is moved. */
  fill_byte(r.there, 9);
  list[ITEMS - 1].remote.offset = SIZE;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, list, ITEMS, 0, -1),
                   PERIGEE_RANGE);
  all_byte(r.there, 9);
  finish(&r.p, perigee_transfer(s, PERIGEE_OP_WRITE, list, 0, 0, -1), 0);
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

static void prepared_transfers_are_posted_again(void **state) {
  static const uint64_t lengths[] = {8, 64 * KIB, MIB};
  struct perigee_prepared *prepared;
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  for (int i = 0; i < 3; i++) {
    struct perigee_transfer t = item(&r, 0, 0, lengths[i]);
    assert_int_equal(
        perigee_prepare(r.p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, &prepared),
        0);
    for (int round = 0; round < 5; round++) {
      fill(r.here, 0, r.bytes + round * 100, lengths[i]);
      int op = perigee_post(prepared, -1);
      if (op != PERIGEE_INLINE)
        assert_int_equal(perigee_post(prepared, -1), PERIGEE_AGAIN);
      finish_moved(&r.p, op, lengths[i]);
      same(r.there, 0, r.bytes + round * 100, lengths[i]);
    }
    perigee_prepared_free(prepared);
  }
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

/* Whichever of its regions was closed: it may be freed by then, and another
 * one be in its place. */
static void prepared_transfers_of_closed_regions_are_stale(void **state) {
  struct perigee_prepared *prepared;
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  fill_byte(r.there, 9);
  for (int closed = 0; closed < 2; closed++) {
    struct perigee_transfer list[2];
    struct perigee_region *pair[2];
    for (uint64_t i = 0; i < 2; i++) {
      pair[i] = region_of(&r.p, 0, NULL, 4096, 0);
      list[i] = item(&r, 0, i * 8, 8);
      list[i].local.region = pair[i];
    }
    assert_int_equal(perigee_prepare(r.p.session[0], PERIGEE_OP_WRITE, list, 2,
                                     0, &prepared),
                     0);
    region_end(pair[closed]);
    struct perigee_region *next = region_of(&r.p, 0, NULL, 4096, 0);
    assert_int_equal(perigee_post(prepared, -1), PERIGEE_STALE);
    all_byte(r.there, 9);
    region_end(pair[!closed]);
    assert_int_equal(perigee_post(prepared, -1), PERIGEE_STALE);
    if (closed == 0) /* the other one is freed with its session */
      perigee_prepared_free(prepared);
    region_end(next);
  }
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

/* Peers cannot ask for them, so they take no place that peers share. */
static void private_regions_are_not_counted(void **state) {
  enum { MANY = 5000 };
  static struct perigee_region *all[MANY];
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  for (int i = 0; i < MANY; i++) {
    assert_int_equal(
        perigee_region_alloc(r.p.engine[0], NULL, 8, 0, NULL, &all[i]), 0);
    fill(all[i], 0, &i, sizeof i);
  }
  struct perigee_transfer t = item(&r, 0, 0, 8);
  t.local.region = all[MANY - 1];
  finish(&r.p, one(&r, PERIGEE_OP_WRITE, &t), 0);
  assert_int_equal(perigee_counters(r.p.engine[0], NULL)->regions, MANY + 1);
  for (int i = 0; i < MANY; i += 2)
    region_end(all[i]);
  for (int i = 1; i < MANY; i += 2)
    same(all[i], 0, &i, sizeof i);
  settle(&r.p);
  region_end(r.there);
  reach_close(&r); /* the rest ends with the engine */
}

/* The immediate comes after all of its data, in the order of the writes. */
static void immediates_follow_their_data(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  for (int i = 0; i < SIZES; i++) {
    struct perigee_transfer t = item(&r, 0, 0, sizes[i]);
    fill(r.here, 0, r.bytes + i, sizes[i]);
    fill_byte(r.there, 0);
    int wait = perigee_recv_imm(r.p.session[1], -1);
    int op = perigee_transfer(r.p.session[0], PERIGEE_OP_WRITE_IMM, &t, 1,
                              (uint64_t)i << 40, -1);
    struct perigee_event e = ended(&r.p, 1, wait, 0);
    assert_int_equal(e.immediate, (uint64_t)i << 40);
    same(r.there, 0, r.bytes + i, sizes[i]);
    finish(&r.p, op, 0);
  }
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

static void refused(struct reach *r, int operation,
                    const struct perigee_transfer *t, int status) {
  assert_int_equal(one(r, operation, t), status);
  assert_true(perigee_detail(r->p.engine[0])[0] != 0);
}

static void what_was_not_granted_is_refused(void **state) {
  struct reach r;
  reach_open(&r, *state, PERIGEE_READ, false);
  fill_byte(r.there, 1);
  struct perigee_transfer t = item(&r, 0, 0, 100);
  refused(&r, PERIGEE_OP_WRITE, &t, PERIGEE_DENIED);
  static const struct perigee_slice outside[] = {
      {.offset = SIZE, .length = 1, .count = 1, .stride = 1},
      {.offset = UINT64_MAX, .length = 1, .count = 1, .stride = 1},
      {.offset = 0, .length = SIZE + 1ull, .count = 1, .stride = 1},
      {.offset = 0, .length = 1, .count = 2, .stride = SIZE},
      {.offset = 0, .length = 1, .count = 2, .stride = UINT64_MAX},
      {.offset = 1, .length = 1, .count = 3, .stride = UINT64_MAX / 2},
      {.offset = 0, .length = UINT64_MAX, .count = 2, .stride = 1},
      {.offset = 0, .length = 1ull << 32, .count = 1ull << 32, .stride = 0},
      {.offset = 0, .length = 1ull << 41, .count = 1, .stride = 1},
  };
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    struct perigee_transfer bad = t;
    bad.remote = outside[i];
    bad.remote.remote = r.remote;
    refused(&r, PERIGEE_OP_READ, &bad, PERIGEE_RANGE);
    bad = t;
    bad.local = outside[i];
    bad.local.region = r.here;
    refused(&r, PERIGEE_OP_READ, &bad, PERIGEE_RANGE);
  }
  t.local.length = t.local.stride = 99;
  refused(&r, PERIGEE_OP_READ, &t, PERIGEE_INVALID);
  settle(&r.p);
  region_end(r.there);
  reach_close(&r);
}

static void a_closed_region_is_stale(void **state) {
  struct reach r;
  reach_open(&r, *state, BOTH, false);
  region_end(r.there);
  /* A new region with the same name and slot is not mistaken for the old
   * one. */
  struct perigee_region *other = region_of(&r.p, 1, "memory", SIZE, BOTH);
  fill_byte(other, 3);
  static const uint64_t lengths[] = {8, MIB};
  for (int i = 0; i < 2; i++)
    for (int operation = 1; operation <= 2; operation++) {
      struct perigee_transfer t = item(&r, 0, 0, lengths[i]);
      int op = one(&r, operation, &t);
      if (op != PERIGEE_STALE)
        finish(&r.p, op, PERIGEE_STALE);
    }
  all_byte(other, 3);
  assert_ptr_not_equal(look_up(&r.p, "memory"), r.remote);
  settle(&r.p);
  region_end(other);
  reach_close(&r);
}

/* A session of side 1 that ends: it may be freed, and destroyed. */
static void owner_ends(struct reach *r, bool frees) {
  r->p.still[1] = true;
  if (!frees) {
    perigee_session_close(r->p.session[1]);
    return;
  }
  struct perigee_event e;
  perigee_session_free(r->p.session[1]);
  r->p.session[1] = NULL;
  for (int i = 0; i < 3; i++)
    assert_int_equal(perigee_poll(r->p.engine[1], &e, 1), 0);
}

static void lost(struct reach *r, int operation, uint64_t length) {
  struct perigee_transfer t = item(r, 0, 0, length);
  int op = one(r, operation, &t);
  if (op != PERIGEE_PEER_LOST)
    finish(&r->p, op, PERIGEE_PEER_LOST);
}

/* Side 0 does not know yet that its session is over. */
static void an_ended_session_grants_nothing(void **state) {
  static const uint64_t lengths[] = {8, MIB};
  for (int i = 0; i < 16; i++) {
    bool frees = i & 1, closes = i & 2;
    struct reach r;
    reach_open(&r, *state, BOTH, false);
    fill_byte(r.there, 3);
    owner_ends(&r, frees);
    if (closes)
      region_end(r.there);
    lost(&r, 1 + (i >> 2) % 2, lengths[i >> 3]);
    if (!closes)
      all_byte(r.there, 3);
    until(&r.p, 0, PERIGEE_EVENT_LOST);
    region_end(r.here);
    pair_drop(&r.p);
    free(r.memory);
    free(r.bytes);
  }
}

static void names_are_found_or_not(void **state) {
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *local = region_of(&p, 1, "own", 100, PERIGEE_LOCAL);
  struct perigee_region *write = region_of(&p, 1, "in", 100, PERIGEE_WRITE);
  ended(&p, 0, perigee_lookup(p.session[0], "none", -1), PERIGEE_NOT_FOUND);
  ended(&p, 0, perigee_lookup(p.session[0], "own", -1), PERIGEE_DENIED);
  struct perigee_remote *remote = look_up(&p, "in");
  assert_ptr_equal(look_up(&p, "in"), remote);
  settle(&p);
  region_end(local);
  region_end(write);
  pair_close(&p);
}

/* The answers of so many would not fit into the peer's socket at once. */
static void many_look_ups_are_answered_in_turn(void **state) {
  enum { TURNS = 8, EACH_TURN = 150, NUMBERS = 1 << 16 };
  static const char *const names[] = {"none", "there"};
  static bool found[NUMBERS];
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *there = region_of(&p, 1, "there", 64, PERIGEE_READ);
  for (int turn = 0; turn < TURNS; turn++) {
    for (int i = 0; i < EACH_TURN; i++) {
      int op = perigee_lookup(p.session[0], names[i % 2], -1);
      assert_in_range(op, 0, NUMBERS - 1);
      found[op] = i % 2;
    }
    for (int i = 0; i < 20; i++)
      poll_side(&p, 1);
  }
  for (int i = 0; i < TURNS * EACH_TURN; i++) {
    struct perigee_event e = until(&p, 0, PERIGEE_EVENT_DONE);
    assert_int_equal(e.status,
                     found[e.operation] ? PERIGEE_OK : PERIGEE_NOT_FOUND);
  }
  settle(&p);
  region_end(there);
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_written_and_read),
      cmocka_unit_test(registered_memory_is_reached_by_request),
      cmocka_unit_test(mapped_memory_has_an_address),
      cmocka_unit_test(a_region_is_let_go_when_each_look_up_is_undone),
      cmocka_unit_test(a_region_that_is_let_go_stays_for_its_transfers),
      cmocka_unit_test(a_region_that_is_let_go_ends_with_its_transfer),
      cmocka_unit_test(strides_gather_and_scatter),
      cmocka_unit_test(a_batch_is_one_event),
      cmocka_unit_test(prepared_transfers_are_posted_again),
      cmocka_unit_test(prepared_transfers_of_closed_regions_are_stale),
      cmocka_unit_test(private_regions_are_not_counted),
      cmocka_unit_test(immediates_follow_their_data),
      cmocka_unit_test(what_was_not_granted_is_refused),
      cmocka_unit_test(a_closed_region_is_stale),
      cmocka_unit_test(an_ended_session_grants_nothing),
      cmocka_unit_test(names_are_found_or_not),
      cmocka_unit_test(many_look_ups_are_answered_in_turn),
  };
  return RUN_MATRIX("transfers", tests);
}
