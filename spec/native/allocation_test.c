/* SPDX-License-Identifier: Apache-2.0
 *
 * allocation_test.c - calls and transfers allocate nothing. malloc and its
 * relatives are replaced by functions that count. After a first round of
 * everything, a million operations must not have called them once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
int main(void) {
  printf("1..0 # SKIP the sanitizer has malloc to itself\n");
  return 77;
}
#else

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static uint64_t allocations;

void *malloc(size_t size) {
  allocations++;
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  allocations++;
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  allocations++;
  return __libc_realloc(old, size);
}

enum { LARGE = 64 * KIB };

/* One raw call of this length, echoed. */
static void call(struct pair *p, const uint8_t *bytes, uint64_t length) {
  struct perigee_message m = {
      .method = 1, .head = bytes, .length = length, .timeout = 1000 * MS};
  assert_true(perigee_call(p->session[0], &m) >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  bool sent = perigee_reply(p->engine[1], e.operation, &r) == 1;
  e = until(p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.length, length);
  if (sent)
    until(p, 1, PERIGEE_EVENT_SENT);
}

static void loaned(struct pair *p, uint64_t length) {
  struct perigee_loan loan;
  struct perigee_message m = {.method = 1, .capacity = length, .timeout = -1};
  assert_int_equal(perigee_call_begin(p->session[0], length, &loan), 0);
  assert_true(perigee_call_commit(p->session[0], &m, length) >= 0);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(
      perigee_reply_begin(p->engine[1], e.operation, length, &loan), 0);
  bool sent = perigee_reply_commit(p->engine[1], e.operation, length) == 1;
  until(p, 0, PERIGEE_EVENT_REPLY);
  if (sent)
    until(p, 1, PERIGEE_EVENT_SENT);
}

enum { PLACES = 96 };

struct scene {
  struct pair p;
  struct perigee_region *here;
  struct perigee_transfer mapped, asked, listed;
  struct perigee_slice from[PLACES], to[PLACES], into[PLACES];
  struct perigee_prepared *blocks;
};

static void transfer(struct scene *s, struct perigee_transfer *t) {
  int op = perigee_transfer(s->p.session[0], PERIGEE_OP_WRITE, t, 1, 0, -1);
  assert_true(op >= 0);
  if (op != PERIGEE_INLINE)
    until(&s->p, 0, PERIGEE_EVENT_DONE);
}

/* The reply of a call of this length lands in a list. */
static void listed_call(struct scene *s, const uint8_t *bytes) {
  struct perigee_message m = {.method = 1,
                              .head = bytes,
                              .length = PLACES,
                              .into = perigee_list(s->into, PLACES),
                              .timeout = 1000 * MS};
  assert_true(perigee_call(s->p.session[0], &m) >= 0);
  struct perigee_event e = until(&s->p, 1, PERIGEE_EVENT_REQUEST);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  bool sent = perigee_reply(s->p.engine[1], e.operation, &r) == 1;
  e = until(&s->p, 0, PERIGEE_EVENT_REPLY);
  assert_int_equal(e.slice, PLACES);
  if (sent)
    until(&s->p, 1, PERIGEE_EVENT_SENT);
}

static void numbered(struct scene *s) {
  static const uint32_t from[] = {1, 0}, to[] = {0, 1};
  int op = perigee_post_blocks(s->blocks, from, to, 2, -1);
  assert_true(op >= 0);
  if (op != PERIGEE_INLINE)
    until(&s->p, 0, PERIGEE_EVENT_DONE);
}

static void round_of_lists(struct scene *s, const uint8_t *bytes) {
  transfer(s, &s->listed);
  listed_call(s, bytes);
  numbered(s);
}

static void round_of_all(struct scene *s, const uint8_t *bytes) {
  call(&s->p, bytes, 64);
  call(&s->p, bytes, LARGE);
  loaned(&s->p, 64);
  loaned(&s->p, LARGE);
  transfer(s, &s->mapped);
  transfer(s, &s->asked);
  round_of_lists(s, bytes);
}

static struct perigee_remote *find(struct pair *p, const char *name) {
  assert_true(perigee_lookup(p->session[0], name, -1) >= 0);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_DONE);
  return (struct perigee_remote *)(uintptr_t)e.pointer;
}

/* Places that lie in no order, of two blocks each. */
static void open_lists(struct scene *s) {
  for (uint32_t i = 0; i < PLACES; i++) {
    uint64_t at = (uint64_t)(i * 7 % PLACES) * 512;
    s->from[i] = (struct perigee_slice){{s->here}, at, 64, 2, 128};
    s->to[i] = (struct perigee_slice){
        .offset = at + 256, .length = 64, .count = 2, .stride = 128};
    s->to[i].remote = s->mapped.remote.remote;
    s->into[i] = (struct perigee_slice){{s->here}, at + 384, 1, 1, 1};
  }
  s->listed.local = perigee_list(s->from, PLACES);
  s->listed.remote = perigee_list(s->to, PLACES);
  assert_int_equal(perigee_prepare(s->p.session[0], PERIGEE_OP_WRITE,
                                   &s->listed, 1, 0, &s->blocks),
                   0);
}

static void open_scene(struct scene *s, void *state, uint8_t *memory) {
  struct perigee_region *there;
  pair_open(&s->p, state);
  perigee_region_alloc(s->p.engine[0], NULL, LARGE, 0, NULL, &s->here);
  perigee_region_alloc(s->p.engine[1], "mapped", LARGE, 3, NULL, &there);
  perigee_region_register(s->p.engine[1], "asked", memory, LARGE, 3, NULL,
                          &there);
  struct perigee_slice from = {{s->here}, 0, LARGE, 1, LARGE};
  s->mapped = s->asked = (struct perigee_transfer){.local = from};
  s->mapped.remote = s->asked.remote =
      (struct perigee_slice){.length = LARGE, .count = 1, .stride = LARGE};
  s->mapped.remote.remote = find(&s->p, "mapped");
  s->asked.remote.remote = find(&s->p, "asked");
  open_lists(s);
}

static void operations_allocate_nothing(void **state) {
  static struct scene s;
  static uint8_t memory[LARGE], bytes[LARGE];
  open_scene(&s, *state, memory);
  for (int i = 0; i < 100; i++)
    round_of_all(&s, bytes);
  uint64_t before = allocations;
  for (int i = 0; i < 5000; i++)
    round_of_all(&s, bytes);
  for (int i = 0; i < 1000000; i++)
    call(&s.p, bytes, 64);
  assert_int_equal(allocations - before, 0);
  pair_drop(&s.p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(operations_allocate_nothing,
                                (void *)(uintptr_t)&variant_default),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
