/* SPDX-License-Identifier: Apache-2.0
 *
 * copies_test.c - operations that end while a copy runs on the memory's own
 * time: nothing blocks, the end is reported once the copy is over, and until
 * then the memory is in use. The kind of memory here ends copies when the test
 * says so.
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "support.h"
#include "support_inside.h"

enum { SIZE = 64 * KIB, COPIES = 64 };

/* ---- A kind that waits for the test ----------------------------------------- */

static struct memory_copy asked[COPIES];
static bool open_tickets[COPIES];
static int asked_for;
static bool may_end;

static int slow_allocate(const struct memory_context *c, uint64_t length,
                         bool shared, uint8_t **pointer, void **handle) {
  (void)c, (void)shared;
  *pointer = *handle = calloc(1, length);
  return *pointer ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static void slow_release(const struct memory_context *c, uint8_t *pointer,
                         uint64_t length, void *handle) {
  (void)c, (void)pointer, (void)length;
  for (int i = 0; i < COPIES; i++)
    assert_false(open_tickets[i] && !may_end);
  free(handle);
}

static int slow_copy(const struct memory_context *c,
                     const struct memory_copy *copy, uint64_t *ticket) {
  (void)c;
  int i = 0;
  while (i < COPIES && open_tickets[i])
    i++;
  if (i == COPIES)
    return PERIGEE_AGAIN;
  asked[i] = *copy;
  open_tickets[i] = true;
  asked_for++;
  *ticket = (uint64_t)i + 1;
  return PERIGEE_OK;
}

static int slow_finished(const struct memory_context *c, uint64_t ticket) {
  (void)c;
  const struct memory_copy *copy = &asked[ticket - 1];
  if (!may_end)
    return 0;
  for (uint64_t i = 0; i < copy->count; i++)
    memcpy(copy->to + i * copy->to_stride, copy->from + i * copy->from_stride,
           copy->block);
  open_tickets[ticket - 1] = false;
  return 1;
}

static void slow_drain(const struct memory_context *c) {
  (void)c;
  may_end = true;
}

static const struct memory_copies copies = {
    .copy = slow_copy, .finished = slow_finished, .drain = slow_drain};
static const struct perigee_memory slow = {.name = "slow",
                                           .allocate = slow_allocate,
                                           .release = slow_release,
                                           .copies = &copies};

/* ---- Time ------------------------------------------------------------------- */

static int64_t leap;

static int64_t leaping_clock(void *context) {
  (void)context;
  return clock_now() + leap;
}

/* ---- Scenes ------------------------------------------------------------------ */

static void open_pair(struct pair *p, void **state) {
  static const struct perigee_memory *const kinds[] = {&slow, NULL};
  struct perigee_options o;
  may_end = false;
  asked_for = 0;
  memset(open_tickets, 0, sizeof open_tickets);
  variant_options(*state, &o);
  o.memories = kinds;
  o.clock = leaping_clock;
  o.dead_after = 3600 * 1000 * MS; /* where time leaps */
  pair_open_with(p, *state, &o);
}

static struct perigee_region *of_kind(struct pair *p, int side,
                                      const char *kind) {
  struct perigee_region *r = NULL;
  assert_int_equal(
      perigee_region_alloc(p->engine[side], NULL, SIZE, 0, kind, &r), 0);
  return r;
}

/* Polls until a copy that does not end is under way. */
static void until_copying(struct pair *p) {
  int64_t end = clock_now() + 5000 * MS;
  while (asked_for == 0) {
    quiet(p, 1);
    assert_true(clock_now() < end);
  }
  quiet(p, 10);
}

static int send_all(struct pair *p, struct perigee_region *from) {
  struct perigee_slice all = all_of(from, SIZE);
  return perigee_send(p->session[0], &all, -1);
}

static int receive(struct pair *p, struct perigee_region *into) {
  struct perigee_slice all = all_of(into, SIZE);
  int op = perigee_recv(p->session[1], &all, -1);
  assert_true(op >= 0);
  return op;
}

/* The memory is in use as long as the copy takes, and not longer. */
static void free_once_it_may_end(struct pair *p, struct perigee_region *r) {
  for (int i = 0; i < 20; i++) {
    quiet(p, 1);
    assert_int_equal(perigee_region_close(r, false), PERIGEE_AGAIN);
  }
  may_end = true;
  int64_t end = clock_now() + 5000 * MS;
  while (perigee_region_close(r, false) == PERIGEE_AGAIN) {
    quiet(p, 1);
    assert_true(clock_now() < end);
  }
}

/* ---- Messages ----------------------------------------------------------------- */

static void a_receive_that_is_given_up_ends_when_its_copy_has(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *from = of_kind(&p, 0, "host");
  struct perigee_region *into = of_kind(&p, 1, "slow");
  struct perigee_region *next = of_kind(&p, 1, "host");
  int recv = receive(&p, into), send = send_all(&p, from);
  until_copying(&p);
  perigee_cancel(p.engine[1], recv);
  perigee_cancel(p.engine[1], recv);
  quiet(&p, 20);
  assert_int_equal(perigee_region_close(into, false), PERIGEE_AGAIN);
  may_end = true;
  ended(&p, 1, recv, PERIGEE_CANCELLED);
  finish(&p, send, PERIGEE_CANCELLED);
  recv = receive(&p, next);
  send = send_all(&p, from);
  ended(&p, 1, recv, 0);
  finish(&p, send, 0);
  settle(&p);
  region_end(from);
  perigee_region_close(into, true);
  region_end(next);
  pair_close(&p);
}

/* The message is lost; its receive is used for the next one when that is
 * safe. (Over TCP the withdrawal is read after its bytes have been copied.) */
static void a_message_that_is_given_up_frees_its_receive_later(void **state) {
  const struct variant *v = *state;
  struct pair p;
  if (strcmp(v->transport, "tcp") == 0)
    return;
  open_pair(&p, state);
  struct perigee_region *from = of_kind(&p, 0, "host");
  struct perigee_region *into = of_kind(&p, 1, "slow");
  struct perigee_region *other = of_kind(&p, 1, "host");
  int first = receive(&p, into), second = receive(&p, other);
  int lost = send_all(&p, from);
  until_copying(&p);
  perigee_cancel(p.engine[0], lost);
  finish(&p, lost, PERIGEE_CANCELLED);
  quiet(&p, 20); /* until the other side knows that */
  int send = send_all(&p, from);
  quiet(&p, 20); /* nor does it go to the second one */
  may_end = true;
  ended(&p, 1, first, 0);
  finish(&p, send, 0);
  perigee_cancel(p.engine[1], second);
  ended(&p, 1, second, PERIGEE_CANCELLED);
  settle(&p);
  region_end(from);
  region_end(into);
  region_end(other);
  pair_close(&p);
}

/* ---- Sessions ------------------------------------------------------------------ */

static void a_session_that_ends_is_told_of_after_its_copies(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *from = of_kind(&p, 0, "host");
  struct perigee_region *into = of_kind(&p, 1, "slow");
  int recv = receive(&p, into), send = send_all(&p, from);
  until_copying(&p);
  perigee_session_close(p.session[1]);
  p.still[0] = true;
  quiet(&p, 20);
  p.still[0] = false;
  may_end = true;
  ended(&p, 1, recv, PERIGEE_CLOSED);
  finish(&p, send, PERIGEE_PEER_LOST);
  until(&p, 0, PERIGEE_EVENT_LOST);
  until(&p, 1, PERIGEE_EVENT_LOST);
  settle(&p);
  region_end(from);
  region_end(into);
  pair_drop(&p);
}

static void a_freed_session_keeps_memory_while_it_is_copied(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *from = of_kind(&p, 0, "host");
  struct perigee_region *into = of_kind(&p, 1, "slow");
  receive(&p, into);
  int send = send_all(&p, from);
  until_copying(&p);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  finish(&p, send, PERIGEE_PEER_LOST);
  until(&p, 0, PERIGEE_EVENT_LOST);
  free_once_it_may_end(&p, into);
  settle(&p);
  region_end(from);
  pair_drop(&p);
}

static void a_freed_sender_keeps_memory_while_it_is_copied(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *from = of_kind(&p, 0, "slow");
  struct perigee_region *into = of_kind(&p, 1, "host");
  int recv = receive(&p, into);
  send_all(&p, from);
  until_copying(&p);
  perigee_session_free(p.session[0]);
  p.session[0] = NULL;
  p.still[1] = true;
  free_once_it_may_end(&p, from);
  p.still[1] = false;
  ended(&p, 1, recv, PERIGEE_PEER_LOST);
  until(&p, 1, PERIGEE_EVENT_LOST);
  settle(&p);
  region_end(into);
  pair_drop(&p);
}

/* ---- Every operation, however it ends ------------------------------------------- */

/* An operation under way that copies, and the program's memory that it names:
 * `named` must not be read or written after its end, or after the session was
 * freed. */
struct deed {
  struct pair p;
  int side; /* the one whose memory copies */
  int64_t timeout;
  struct perigee_region *slow, *there;
  struct perigee_prepared *prepared;
  int operation; /* of that side, or -1: it is the peer's */
  union named {
    struct perigee_transfer list;
    struct perigee_message message;
    uint8_t head[SIZE];
    struct {
      uint8_t head[SIZE];
      struct perigee_answer answer;
    } batch;
  } * named;
};

static int transfer(struct deed *d, int operation) {
  d->named->list = (struct perigee_transfer){
      .local = all_of(d->slow, SIZE),
      .remote = {{.remote = look_up(&d->p, "there")}, 0, SIZE, 1, SIZE}};
  return perigee_transfer(d->p.session[0], operation, &d->named->list, 1, 0,
                          d->timeout);
}

static int a_write(struct deed *d) {
  return transfer(d, PERIGEE_OP_WRITE);
}

static int a_read(struct deed *d) {
  return transfer(d, PERIGEE_OP_READ);
}

static int a_prepared_write(struct deed *d) {
  const struct perigee_transfer list = {
      .local = all_of(d->slow, SIZE),
      .remote = {{.remote = look_up(&d->p, "there")}, 0, SIZE, 1, SIZE}};
  assert_int_equal(perigee_prepare(d->p.session[0], PERIGEE_OP_WRITE, &list, 1,
                                   0, &d->prepared),
                   0);
  return perigee_post(d->prepared, d->timeout);
}

static int a_write_of_lists(struct deed *d) {
  const struct perigee_slice local = all_of(d->slow, SIZE);
  const struct perigee_transfer list = {
      .local = perigee_list(&local, 1),
      .remote = {{.remote = look_up(&d->p, "there")}, 0, SIZE, 1, SIZE}};
  return perigee_transfer(d->p.session[0], PERIGEE_OP_WRITE, &list, 1, 0,
                          d->timeout);
}

static int a_call_with_a_slice(struct deed *d) {
  d->named->message = (struct perigee_message){
      .slice = all_of(d->slow, SIZE), .length = SIZE, .timeout = d->timeout};
  return perigee_call(d->p.session[0], &d->named->message);
}

static int a_call_with_a_landing(struct deed *d) {
  memset(d->named, 7, sizeof *d->named);
  const struct perigee_message m = {.head = d->named->head,
                                    .length = SIZE,
                                    .into = all_of(d->slow, SIZE),
                                    .timeout = d->timeout};
  return perigee_call(d->p.session[0], &m);
}

static int a_batch(struct deed *d) {
  memset(d->named, 7, sizeof *d->named);
  const struct perigee_message m = {.head = d->named->batch.head,
                                    .length = SIZE,
                                    .into = all_of(d->slow, SIZE),
                                    .timeout = d->timeout};
  return perigee_call_batch(d->p.session[0], &m, 1, &d->named->batch.answer);
}

static int a_send(struct deed *d) {
  receive(&d->p, d->there);
  d->named->message.slice = all_of(d->slow, SIZE);
  return perigee_send(d->p.session[0], &d->named->message.slice, d->timeout);
}

/* At the other side, which names where the slice of a call lands. */
static int a_landing(struct deed *d) {
  static const uint8_t nothing[] = {0}; /* typed */
  const struct perigee_message m = {.flags = PERIGEE_TYPED,
                                    .head = nothing,
                                    .length = 1,
                                    .slice = all_of(d->there, SIZE),
                                    .timeout = -1};
  assert_true(perigee_call(d->p.session[0], &m) >= 0);
  struct perigee_event e = until(&d->p, 1, PERIGEE_EVENT_LANDING);
  d->named->message.slice = all_of(d->slow, SIZE);
  assert_int_equal(
      perigee_land(d->p.engine[1], e.operation, &d->named->message.slice), 0);
  return -1;
}

static const struct {
  int (*begin)(struct deed *d);
  int side;
} deeds[] = {{a_write, 0},
             {a_read, 0},
             {a_prepared_write, 0},
             {a_write_of_lists, 0},
             {a_call_with_a_slice, 0},
             {a_call_with_a_landing, 0},
             {a_batch, 0},
             {a_send, 0},
             {a_landing, 1}};
enum { DEEDS = sizeof deeds / sizeof *deeds };

/* The peer returns what it is asked. */
static void serve(struct deed *d) {
  struct perigee_event e;
  if (!taken(&d->p, 1, &e) || e.kind != PERIGEE_EVENT_REQUEST)
    return;
  const struct perigee_message m = {.head = e.pointer, .length = e.length};
  assert_true(perigee_reply(d->p.engine[1], e.operation, &m) >= 0);
}

static void deed_begin(struct deed *d, int number, void **state,
                       int64_t timeout) {
  open_pair(&d->p, state);
  d->side = deeds[number].side;
  d->timeout = timeout;
  d->prepared = NULL;
  d->named = calloc(1, sizeof *d->named);
  d->slow = of_kind(&d->p, d->side, "slow");
  assert_int_equal(perigee_region_alloc(d->p.engine[!d->side], "there", SIZE,
                                        PERIGEE_READ | PERIGEE_WRITE, NULL,
                                        &d->there),
                   0);
  d->operation = deeds[number].begin(d);
  int64_t end = clock_now() + 5000 * MS;
  while (asked_for == 0) {
    poll_side(&d->p, 0);
    poll_side(&d->p, 1);
    serve(d);
    assert_true(clock_now() < end);
  }
}

/* The program has its memory again: what is in it means nothing any more. */
static void deed_end(struct deed *d) {
  memset(d->named, 0xdd, sizeof *d->named);
  free(d->named);
  pair_drop(&d->p);
}

/* Its side has no event as long as the copy goes on; then this one. */
static void ends_after_its_copy(struct deed *d, int status) {
  struct perigee_event e;
  for (int i = 0; i < 20; i++) {
    poll_side(&d->p, d->side);
    assert_false(taken(&d->p, d->side, &e));
    assert_int_equal(perigee_region_close(d->slow, false), PERIGEE_AGAIN);
  }
  may_end = true;
  d->p.still[!d->side] = true;
  if (d->operation >= 0)
    ended(&d->p, d->side, d->operation, status);
  else
    until(&d->p, d->side, PERIGEE_EVENT_ABANDONED);
  assert_int_equal(perigee_region_close(d->slow, false), 0);
}

static void
no_operation_uses_what_was_named_once_its_session_is_freed(void **state) {
  for (int i = 0; i < DEEDS; i++) {
    struct deed d;
    deed_begin(&d, i, state, -1);
    perigee_session_free(d.p.session[d.side]);
    memset(d.named, 0xdd, sizeof *d.named);
    d.p.still[!d.side] = true;
    free_once_it_may_end(&d.p, d.slow);
    for (size_t k = 0; k < sizeof *d.named; k++)
      assert_int_equal(((const uint8_t *)d.named)[k], 0xdd);
    deed_end(&d);
  }
}

static void
operations_of_a_closed_session_end_after_their_copies(void **state) {
  for (int i = 0; i < DEEDS; i++) {
    struct deed d;
    deed_begin(&d, i, state, -1);
    perigee_session_close(d.p.session[d.side]);
    ends_after_its_copy(&d, PERIGEE_CLOSED);
    deed_end(&d);
  }
}

static void until_ended(struct deed *d) {
  struct perigee_session_info info;
  int64_t end = clock_now() + 5000 * MS;
  do {
    poll_side(&d->p, d->side);
    perigee_session_describe(d->p.session[d->side], &info, sizeof info);
    assert_true(clock_now() < end);
  } while (info.state == PERIGEE_SESSION_OPEN);
}

/* Over TCP the end is read after all bytes before it have been copied. */
static void operations_of_a_lost_session_end_after_their_copies(void **state) {
  const struct variant *v = *state;
  if (strcmp(v->transport, "tcp") == 0)
    return;
  for (int i = 0; i < DEEDS; i++) {
    struct deed d;
    deed_begin(&d, i, state, -1);
    perigee_session_close(d.p.session[!d.side]);
    until_ended(&d);
    ends_after_its_copy(&d, PERIGEE_PEER_LOST);
    deed_end(&d);
  }
}

static void cancelled_operations_end_after_their_copies(void **state) {
  for (int i = 0; i < DEEDS && deeds[i].side == 0; i++) {
    struct deed d;
    deed_begin(&d, i, state, -1);
    perigee_cancel(d.p.engine[0], d.operation);
    ends_after_its_copy(&d, PERIGEE_CANCELLED);
    deed_end(&d);
  }
}

static void look(struct deed *d) {
  look_at_clock(d->p.engine[0]);
  poll_side(&d->p, 0);
}

static void late_operations_end_after_their_copies(void **state) {
  for (int i = 0; i < DEEDS && deeds[i].side == 0; i++) {
    struct deed d;
    deed_begin(&d, i, state, 100 * MS);
    look(&d); /* its time runs */
    int64_t late = clock_now() + 120 * MS;
    while (clock_now() < late)
      look(&d);
    look(&d);
    ends_after_its_copy(&d, PERIGEE_TIMEOUT);
    if (deeds[i].begin == a_batch) /* that was its call */
      ended(&d.p, 0, d.operation, PERIGEE_TIMEOUT);
    if (deeds[i].begin == a_call_with_a_slice ||
        deeds[i].begin == a_call_with_a_landing || deeds[i].begin == a_batch)
      assert_true(longest_call(d.p.engine[0]) >= (uint64_t)(100 * MS));
    deed_end(&d);
  }
}

static uint64_t timeouts(const struct deed *d) {
  return perigee_counters(d->p.engine[0], NULL)->timeouts;
}

/* Their time is over while the copy still goes on. */
static void operations_that_were_cancelled_do_not_time_out(void **state) {
  for (int i = 0; i < DEEDS && deeds[i].side == 0; i++) {
    struct deed d;
    deed_begin(&d, i, state, 60000 * MS);
    look(&d); /* its time runs */
    perigee_cancel(d.p.engine[0], d.operation);
    leap += 100000 * MS;
    look(&d);
    assert_int_equal(timeouts(&d), 0);
    ends_after_its_copy(&d, PERIGEE_CANCELLED);
    deed_end(&d);
  }
}

static void an_engine_that_closes_waits_for_its_copies(void **state) {
  struct pair p;
  open_pair(&p, state);
  struct perigee_region *from = of_kind(&p, 0, "slow");
  struct perigee_region *into = of_kind(&p, 1, "slow");
  receive(&p, into);
  send_all(&p, from);
  until_copying(&p);
  pair_drop(&p);
  assert_true(may_end);
}

static void close_over(int number, void **state) {
  struct deed d;
  deed_begin(&d, number, state, -1);
  perigee_engine_close(d.p.engine[d.side]);
  d.p.engine[d.side] = NULL;
  assert_true(may_end);
  deed_end(&d);
}

/* Bytes of the heap in use; under a sanitizer, or without mallinfo2, any number
 * that stays. */
static size_t heap(void) {
#if __GLIBC_PREREQ(2, 33)
  return mallinfo2().uordblks;
#else
  return 0;
#endif
}

/* What the engine had made for them is gone with it. */
static void engines_close_over_the_copies_of_all_operations(void **state) {
  enum { ROUNDS = 8, LEAST = 1 * KIB };
  for (int i = 0; i < DEEDS; i++) {
    close_over(i, state);
    close_over(i, state);
    size_t before = heap();
    for (int n = 0; n < ROUNDS; n++)
      close_over(i, state);
    if (heap() >= before + ROUNDS * LEAST)
      fail_msg("%d engines have left %d bytes", ROUNDS, (int)(heap() - before));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_receive_that_is_given_up_ends_when_its_copy_has),
      cmocka_unit_test(a_message_that_is_given_up_frees_its_receive_later),
      cmocka_unit_test(a_session_that_ends_is_told_of_after_its_copies),
      cmocka_unit_test(a_freed_session_keeps_memory_while_it_is_copied),
      cmocka_unit_test(a_freed_sender_keeps_memory_while_it_is_copied),
      cmocka_unit_test(
          no_operation_uses_what_was_named_once_its_session_is_freed),
      cmocka_unit_test(operations_of_a_closed_session_end_after_their_copies),
      cmocka_unit_test(operations_of_a_lost_session_end_after_their_copies),
      cmocka_unit_test(cancelled_operations_end_after_their_copies),
      cmocka_unit_test(late_operations_end_after_their_copies),
      cmocka_unit_test(operations_that_were_cancelled_do_not_time_out),
      cmocka_unit_test(an_engine_that_closes_waits_for_its_copies),
      cmocka_unit_test(engines_close_over_the_copies_of_all_operations),
  };
  return RUN_MATRIX("copies", tests);
}
