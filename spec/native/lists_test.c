/* SPDX-License-Identifier: Apache-2.0
 *
 * lists_test.c - lists of slices: payloads with extents beside a copy byte by
 * byte; which lists are refused; calls, replies, landings and messages whose
 * memory is a list.
 */
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "kinds.h"
#include "operation/operations.h"
#include "transport/shm/shm.h"
#include "support_inside.h"

enum { SIZE = 16 * KIB, MOST = 40, ROUNDS = 600 };

/* ---- Random lists ----------------------------------------------------------- */

static uint32_t seed;

static uint32_t roll(uint32_t below) {
  seed = seed * 1664525 + 1013904223;
  return (seed >> 8) % below;
}

/* A list within one region, and the offset of each of its bytes. */
struct random_list {
  struct perigee_slice slices[MOST];
  uint32_t count;
  uint32_t at[MOST * SIZE], total;
  uint8_t uses[SIZE]; /* how often each byte is named */
};

static struct perigee_slice random_slice(struct perigee_region *r,
                                         uint32_t stride) {
  uint32_t count = roll(3) ? 1 : 1 + roll(12);
  uint32_t block = roll(count > 1 && stride ? stride : 200) + (count > 1);
  uint32_t step = stride ? stride : block + roll(100);
  while (count > 1 && (count - 1) * step + block > SIZE)
    count--;
  uint32_t span = (count - 1) * step + block;
  return (struct perigee_slice){{r}, roll(SIZE - span + 1), block, count, step};
}

static bool list_meets(const struct random_list *l,
                       const struct perigee_slice *s) {
  for (uint64_t i = 0; i < s->count; i++)
    for (uint64_t j = 0; j < s->length; j++)
      if (l->uses[s->offset + i * s->stride + j])
        return true;
  return false;
}

static void list_add(struct random_list *l, const struct perigee_slice *s) {
  l->slices[l->count++] = *s;
  for (uint64_t i = 0; i < s->count; i++)
    for (uint64_t j = 0; j < s->length; j++) {
      uint32_t at = (uint32_t)(s->offset + i * s->stride + j);
      l->at[l->total++] = at;
      l->uses[at]++;
    }
}

/* stride: of all slices with several blocks; 0: each has its own. apart: without
 * overlaps. */
static void list_fill(struct random_list *l, struct perigee_region *r,
                      uint32_t stride, bool apart) {
  uint32_t wanted = 1 + roll(MOST);
  memset(l, 0, sizeof *l);
  for (int tries = 0; tries < 200 && l->count < wanted; tries++) {
    struct perigee_slice s = random_slice(r, stride);
    if (l->count > 0 && roll(4) == 0) /* right behind the one before */
      s.offset =
          l->slices[l->count - 1].offset + l->slices[l->count - 1].length;
    if (s.offset + (s.count - 1) * s.stride + s.length <= SIZE &&
        !(apart && list_meets(l, &s)))
      list_add(l, &s);
  }
  if (l->count == 0)
    list_add(l, &(struct perigee_slice){{r}, 0, 1, 1, 1});
}

static struct spread *spread(struct perigee_engine *engine,
                             const struct random_list *l, bool written) {
  struct spread *s = NULL;
  struct perigee_slice list = perigee_list(l->slices, l->count);
  assert_int_equal(spread_make(engine, &list, written, &s), 0);
  assert_int_equal(s->payload.total, l->total);
  return s;
}

/* ---- Payloads ---------------------------------------------------------------- */

struct sides {
  struct perigee_region *from, *to;
  struct random_list out, in;
  uint8_t *before, want[SIZE], got[SIZE], source[SIZE];
  struct copies copies[2];
};

static void sides_fill(struct sides *s) {
  uint8_t *bytes = pattern(SIZE, (uint8_t)roll(200));
  uint8_t *other = pattern(SIZE, (uint8_t)roll(200));
  memcpy(s->source, bytes, SIZE);
  memcpy(s->want, other, SIZE);
  fill(s->from, 0, bytes, SIZE);
  fill(s->to, 0, other, SIZE);
  free(bytes);
  free(other);
}

/* Moves n bytes from byte `first` on, in steps of any length. */
static void sides_move(struct sides *s, struct payload to, struct payload from,
                       uint64_t first, uint64_t n) {
  s->copies[0] = s->copies[1] = (struct copies){.asked = first};
  to.copies = &s->copies[0];
  from.copies = &s->copies[1];
  to.done = from.done = first;
  to.total = first + n;
  while (to.done < to.total) {
    uint64_t most = 1 + roll(3 * KIB);
    if (payload_busy(&to) || payload_busy(&from))
      most = n; /* the next call names again what is under way */
    assert_true(payload_move(&to, &from, most) >= 0);
  }
  assert_true(payload_quiet(&to) && payload_quiet(&from));
}

static void sides_round(struct perigee_engine *engine, struct sides *s) {
  list_fill(&s->out, s->from, roll(2) ? 256 : 0, false);
  list_fill(&s->in, s->to, 256, true);
  sides_fill(s);
  struct spread *out = spread(engine, &s->out, false);
  struct spread *in = spread(engine, &s->in, true);
  uint64_t both = s->out.total < s->in.total ? s->out.total : s->in.total;
  uint64_t first = both ? roll((uint32_t)both) : 0;
  uint64_t n = both ? roll((uint32_t)(both - first)) + 1 : 0;
  for (uint64_t i = first; i < first + n; i++)
    s->want[s->in.at[i]] = s->source[s->out.at[i]];
  sides_move(s, in->payload, out->payload, first, n);
  same(s->to, 0, s->want, SIZE);
  spread_free(out);
  spread_free(in);
}

static void rounds(struct perigee_engine *engine, const char *from,
                   const char *to) {
  struct sides *s = calloc(1, sizeof *s);
  seed = 7;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, from, &s->from),
                   0);
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, to, &s->to), 0);
  for (int i = 0; i < ROUNDS; i++)
    sides_round(engine, s);
  region_end(s->from);
  region_end(s->to);
  free(s);
}

static void host_memory_is_moved_as_byte_by_byte(void **state) {
  rounds(*state, "host", "host");
}

static void other_memory_is_moved_so_too(void **state) {
  rounds(*state, "opaque", "host");
  rounds(*state, "host", "opaque");
  rounds(*state, "twin:0", "twin:1");
}

/* 20 MiB, in blocks at odd addresses, to a shape or to a list. */
static void large_ones_are_moved_so_too(void **state) {
  enum { BLOCKS = 4000, BLOCK = 5001, STRIDE = 6007, ALL = BLOCKS * STRIDE };
  struct perigee_engine *engine = *state;
  struct perigee_region *from, *to;
  struct spread *s;
  uint8_t *bytes = pattern(ALL, 77), *want = calloc(1, ALL);
  struct perigee_slice list[BLOCKS];
  assert_int_equal(perigee_region_alloc(engine, NULL, ALL, 0, NULL, &from), 0);
  assert_int_equal(perigee_region_alloc(engine, NULL, ALL, 0, NULL, &to), 0);
  fill(from, 0, bytes, ALL);
  for (uint64_t i = 0; i < BLOCKS; i++) {
    uint64_t at = (BLOCKS - 1 - i) * STRIDE + i % 3;
    list[i] = (struct perigee_slice){{to}, at, BLOCK, 1, BLOCK};
    memcpy(want + at, bytes + i * STRIDE, BLOCK);
  }
  struct perigee_slice all = perigee_list(list, BLOCKS);
  assert_int_equal(spread_make(engine, &all, true, &s), 0);
  struct payload in = s->payload, out = {.memory = &memory_host,
                                         .base = perigee_region_pointer(from),
                                         .block = BLOCK,
                                         .count = BLOCKS,
                                         .stride = STRIDE,
                                         .total = BLOCKS * BLOCK};
  while (in.done < in.total)
    assert_true(payload_copy(&in, &out, 3 * MIB + 77) > 0);
  same(to, 0, want, ALL);
  /* and back, by shapes alone */
  struct payload back = out;
  in.done = back.done = 0;
  fill_byte(from, 0);
  while (in.done < in.total)
    assert_true(payload_copy(&back, &in, 3 * MIB + 77) > 0);
  for (uint64_t i = 0; i < BLOCKS; i++)
    same(from, i * STRIDE, bytes + i * STRIDE, BLOCK);
  spread_free(s);
  free(bytes);
  free(want);
  region_end(from);
  region_end(to);
}

/* ---- What is refused ---------------------------------------------------------- */

static bool list_overlaps(const struct random_list *l) {
  bool any = false;
  for (uint32_t i = 0; i < SIZE; i++)
    any |= l->uses[i] > 1;
  return any;
}

/* With one stride the answer is exact; with several, an overlap is never
 * missed. */
static void overlaps_are_found(void **state) {
  struct perigee_engine *engine = *state;
  struct perigee_region *r;
  struct random_list *l = malloc(sizeof *l);
  int found = 0, none = 0;
  seed = 3;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, NULL, &r), 0);
  for (int i = 0; i < 10 * ROUNDS; i++) {
    uint32_t stride = roll(3) ? 1 + roll(1000) : 0;
    list_fill(l, r, stride, roll(2));
    struct spread *s = NULL;
    struct perigee_slice list = perigee_list(l->slices, l->count);
    int status = spread_make(engine, &list, true, &s);
    bool overlaps = list_overlaps(l);
    if (stride)
      assert_int_equal(status, overlaps ? PERIGEE_INVALID : 0);
    else if (overlaps)
      assert_int_equal(status, PERIGEE_INVALID);
    found += status < 0;
    none += status == 0;
    if (s)
      spread_free(s);
    if (status < 0)
      assert_non_null(strstr(perigee_detail(engine), "overlap"));
  }
  assert_true(found > ROUNDS && none > ROUNDS);
  free(l);
  region_end(r);
}

static void refused(struct perigee_engine *engine,
                    const struct perigee_slice *slices, uint64_t n, int status,
                    const char *why) {
  struct perigee_slice list = perigee_list(slices, n);
  struct spread *s = NULL;
  assert_int_equal(spread_make(engine, &list, true, &s), status);
  assert_null(s);
  if (!strstr(perigee_detail(engine), why))
    fail_msg("\"%s\" does not say \"%s\"", perigee_detail(engine), why);
}

static void what_is_wrong_is_told_by_number(void **state) {
  struct perigee_engine *engine = *state;
  struct perigee_region *r, *other;
  assert_int_equal(perigee_region_alloc(engine, NULL, SIZE, 0, NULL, &r), 0);
  assert_int_equal(
      perigee_region_alloc(engine, NULL, SIZE, 0, "opaque", &other), 0);
  struct perigee_slice good = {{r}, 0, 10, 1, 10};
  struct perigee_slice s[3] = {good, {{r}, 10, 10, 1, 10}, {{r}, 30, 9, 1, 9}};
  refused(engine, s, 0, PERIGEE_INVALID, "1 to 4096 slices, not 0");
  refused(engine, s, 4097, PERIGEE_INVALID, "not 4097");
  refused(engine, NULL, 2, PERIGEE_INVALID, "NULL");
  s[2].region = other;
  refused(engine, s, 3, PERIGEE_INVALID, "slice 3 of a list is in memory of");
  s[2] = (struct perigee_slice){{r}, SIZE - 5, 6, 1, 6};
  refused(engine, s, 3, PERIGEE_RANGE, "slice 3 of a list lies outside");
  s[2] = (struct perigee_slice){{r}, 0, UINT64_MAX, 3, 1};
  refused(engine, s, 3, PERIGEE_RANGE, "slice 3");
  s[2].region = NULL;
  refused(engine, s, 3, PERIGEE_INVALID, "slice 3 of a list has no region");
  s[2] = perigee_list(s, 2);
  refused(engine, s, 3, PERIGEE_INVALID, "slice 3 of a list is a list");
  s[2] = (struct perigee_slice){{r}, 19, 2, 1, 2};
  refused(engine, s, 3, PERIGEE_INVALID, "slices 2 and 3 of a list overlap");
  s[2] = (struct perigee_slice){{r}, 100, 8, 3, 4};
  refused(engine, s, 3, PERIGEE_INVALID, "the blocks of slice 3");
  assert_int_equal(r->users, 0);
  region_end(other);
  region_end(r);
}

static void a_list_of_too_many_bytes_is_refused(void **state) {
  enum { PARTS_OF = 3 };
  struct perigee_engine *engine = *state;
  static uint8_t here; /* no byte is touched */
  struct perigee_region *r;
  const uint64_t large = UINT64_C(1) << 39;
  assert_int_equal(
      perigee_region_register(engine, NULL, &here, large, 0, NULL, &r), 0);
  struct perigee_slice s[PARTS_OF];
  for (int i = 0; i < PARTS_OF; i++)
    s[i] = (struct perigee_slice){{r}, 0, large, 1, large};
  refused(engine, s, PARTS_OF, PERIGEE_TOO_LARGE, "slice 3");
  region_end(r);
}

/* ---- Calls and messages -------------------------------------------------------- */

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

enum { PIECES = 200 };

/* Pieces of a region of twice their length, from its end to its begin. */
struct pieces {
  struct perigee_region *region;
  struct perigee_slice list[PIECES];
  uint64_t count, length;
};

static void pieces_open(struct pair *p, struct pieces *s, int side,
                        uint64_t length, uint64_t count) {
  *s = (struct pieces){region_of(p, side, NULL, 2 * length + 64, 0),
                       .count = count, .length = length};
  uint64_t given = 0, at = 2 * length;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t n = i + 1 == count ? length - given : length / count;
    at -= n + n / 2;
    s->list[i] = (struct perigee_slice){{s->region}, at, n, 1, n};
    given += n;
  }
}

static void pieces_fill(const struct pieces *s, const uint8_t *bytes) {
  for (uint64_t i = 0; i < s->count; bytes += s->list[i++].length)
    fill(s->region, s->list[i].offset, bytes, s->list[i].length);
}

static void pieces_same(const struct pieces *s, const uint8_t *bytes) {
  for (uint64_t i = 0; i < s->count; bytes += s->list[i++].length)
    same(s->region, s->list[i].offset, bytes, s->list[i].length);
}

static struct perigee_slice all(const struct pieces *s) {
  return perigee_list(s->list, s->count);
}

/* The array of a list is the program's again when the function returns. */
static void pieces_forget(struct pieces *s, struct perigee_slice *kept) {
  memcpy(kept, s->list, sizeof s->list);
  memset(s->list, 0xee, sizeof s->list);
}

static void all_sent(struct pair *p, int reply) {
  assert_true(reply >= 0);
  if (reply == 1)
    assert_int_equal(until(p, 1, PERIGEE_EVENT_SENT).status, 0);
}

static void called(struct pair *p, uint64_t length, uint64_t count) {
  struct pieces from, to, back;
  struct perigee_slice kept[3][PIECES];
  uint8_t *bytes = pattern(length, 19);
  pieces_open(p, &from, 0, length, count);
  pieces_open(p, &back, 0, length, count);
  pieces_open(p, &to, 1, length, count + 1);
  pieces_fill(&from, bytes);
  struct perigee_message m = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all(&from),
                              .into = all(&back),
                              .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  assert_true(call >= 0);
  pieces_forget(&from, kept[0]);
  pieces_forget(&back, kept[1]);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_LANDING);
  struct perigee_slice short_of = perigee_list(to.list, 1), there = all(&to);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &short_of),
                   PERIGEE_TOO_LARGE);
  assert_int_equal(to.region->users, 0);
  assert_int_equal(perigee_land(p->engine[1], e.operation, &there), 0);
  pieces_forget(&to, kept[2]);
  e = until(p, 1, PERIGEE_EVENT_REQUEST);
  memcpy(to.list, kept[2], sizeof kept[2]);
  pieces_same(&to, bytes);
  struct perigee_message r = {.flags = PERIGEE_TYPED,
                              .head = seven,
                              .length = sizeof seven,
                              .slice = all(&to)};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  pieces_forget(&to, kept[2]);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  memcpy(back.list, kept[1], sizeof kept[1]);
  pieces_same(&back, bytes);
  all_sent(p, sent);
  settle(p);
  region_end(from.region);
  region_end(back.region);
  region_end(to.region);
  free(bytes);
}

static const uint64_t lengths[] = {64, 4000, 8192, 100000, 3 * MIB + 7};

static void slices_of_calls_may_be_lists(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 5; i++)
    for (uint64_t count = 2; count <= 32; count *= 4)
      called(&p, lengths[i], count);
  called(&p, 3 * MIB + 7, 100); /* more than a fetch looks at in one step */
  pair_close(&p);
}

/* A raw call: its payload, and the reply's place. */
static void raw_called(struct pair *p, uint64_t length, uint64_t count) {
  struct pieces from, back;
  uint8_t *bytes = pattern(length, 23);
  pieces_open(p, &from, 0, length, count);
  pieces_open(p, &back, 0, length, count);
  pieces_fill(&from, bytes);
  struct perigee_message m = {
      .slice = all(&from), .into = all(&back), .timeout = -1};
  int call = perigee_call(p->session[0], &m);
  struct perigee_event e = until(p, 1, PERIGEE_EVENT_REQUEST);
  assert_int_equal(e.length, length);
  assert_memory_equal(e.pointer, bytes, length);
  struct perigee_message r = {.head = e.pointer, .length = e.length};
  int sent = perigee_reply(p->engine[1], e.operation, &r);
  e = ended(p, 0, call, 0);
  assert_int_equal(e.slice, length);
  pieces_same(&back, bytes);
  all_sent(p, sent);
  settle(p);
  region_end(from.region);
  region_end(back.region);
  free(bytes);
}

static void so_may_those_of_raw_calls(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 5; i++)
    for (uint64_t count = 2; count <= 32; count *= 4)
      raw_called(&p, lengths[i], count);
  pair_close(&p);
}

static void messages_may_be_lists(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 5; i++) {
    struct pieces from, to;
    uint8_t *bytes = pattern(lengths[i], 29);
    pieces_open(&p, &from, 0, lengths[i], 7);
    pieces_open(&p, &to, 1, lengths[i], 5);
    pieces_fill(&from, bytes);
    struct perigee_slice out = all(&from), in = all(&to);
    int recv = perigee_recv(p.session[1], &in, -1);
    int send = perigee_send(p.session[0], &out, -1);
    assert_true(recv >= 0 && send >= 0);
    assert_int_equal(until(&p, 1, PERIGEE_EVENT_DONE).length, lengths[i]);
    ended(&p, 0, send, 0);
    pieces_same(&to, bytes);
    settle(&p);
    region_end(from.region);
    region_end(to.region);
    free(bytes);
  }
  pair_close(&p);
}

/* A message that is a list, between sides with these features; `lent`: is a block
 * in use for it? */
static void sent_by(const char *features, uint64_t count, bool lent) {
  enum { LENGTH = 600 * KIB };
  struct perigee_options o;
  struct pair p;
  struct pieces from, to;
  uint8_t *bytes = pattern(LENGTH, 37);
  variant_options((void *)(uintptr_t)&variant_default, &o);
  o.features = features;
  pair_open_with(&p, (void *)(uintptr_t)&variant_default, &o);
  pieces_open(&p, &from, 0, LENGTH, count);
  pieces_open(&p, &to, 1, LENGTH, 5);
  pieces_fill(&from, bytes);
  struct perigee_slice out = all(&from), in = all(&to);
  int send = perigee_send(p.session[0], &out, -1);
  assert_int_equal(lent_bytes(p.session[0]) > 0, lent);
  assert_true(perigee_recv(p.session[1], &in, -1) >= 0);
  until(&p, 1, PERIGEE_EVENT_DONE);
  ended(&p, 0, send, 0);
  pieces_same(&to, bytes);
  settle(&p);
  region_end(from.region);
  region_end(to.region);
  free(bytes);
  pair_close(&p);
}

static void older_peers_get_lists_in_a_block(void **state) {
  (void)state;
  sent_by(NULL, 7, false);
  sent_by("-places", 7, true);
}

/* Of 600 KiB 100 pieces are long, and 200 are short. */
static void short_places_travel_in_a_block(void **state) {
  (void)state;
  sent_by(NULL, 100, false);
  sent_by(NULL, 200, true);
}

/* A peer that ends has its list no more, which breaks no protocol. What was freed
 * is written over, so that none is found there by chance. */
static void lists_may_go_at_any_time(void **state) {
  struct pair p;
  struct pieces from;
  pair_open(&p, *state);
  pieces_open(&p, &from, 1, 8 * MIB, 100);
  struct perigee_message m = {.flags = PERIGEE_TYPED | PERIGEE_POOLED,
                              .head = seven,
                              .length = sizeof seven,
                              .timeout = -1};
  int call = perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
  m.slice = all(&from);
  assert_true(perigee_reply(p.engine[1], e.operation, &m) >= 0);
  mallopt(M_PERTURB, 0x5a);
  perigee_session_free(p.session[1]);
  p.session[1] = NULL;
  for (int i = 0; i < 2; i++)
    perigee_poll(p.engine[1], &e, 1);
  mallopt(M_PERTURB, 0);
  ended(&p, 0, call, PERIGEE_PEER_LOST);
  pair_drop(&p);
}

static void ticks(int signal) {
  (void)signal;
}

/* Looks at the process that is read, while signals come all the time. */
static void signals_are_no_end_of_a_process(void **state) {
  (void)state;
  static const uint64_t probe[2] = {17, 19};
  struct lane_options o = {.probe = {17, 19},
                           .peer_pid = getpid(),
                           .peer_pidfd =
                               (int)syscall(SYS_pidfd_open, getpid(), 0)};
  struct sigaction old, action = {.sa_handler = ticks};
  struct itimerval often = {{0, 20}, {0, 20}}, never = {{0, 0}, {0, 0}};
  int lost = 0;
  assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < 100000; i++)
    lost += !shm_probe(&o, (uintptr_t)probe);
  setitimer(ITIMER_REAL, &never, NULL);
  assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
  close(o.peer_pidfd);
  assert_int_equal(lost, 0);
}

/* A list is refused before anything is sent, and its memory is not in use. */
static void bad_lists_are_refused_at_once(void **state) {
  struct pair p;
  struct pieces s;
  pair_open(&p, *state);
  pieces_open(&p, &s, 0, 1000, 4);
  s.list[2].offset = 2064;
  struct perigee_slice list = all(&s);
  assert_int_equal(perigee_send(p.session[0], &list, -1), PERIGEE_RANGE);
  assert_int_equal(perigee_recv(p.session[0], &list, -1), PERIGEE_RANGE);
  struct perigee_message m = {.slice = list, .timeout = -1};
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_RANGE);
  m = (struct perigee_message){.into = list, .timeout = -1};
  assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_RANGE);
  struct perigee_loan loan;
  assert_int_equal(perigee_call_begin(p.session[0], 64, &loan), 0);
  assert_int_equal(perigee_call_commit(p.session[0], &m, 1), PERIGEE_RANGE);
  assert_int_equal(s.region->users, 0);
  assert_int_equal(operations(&p, 0), 0);
  settle(&p);
  region_end(s.region);
  pair_close(&p);
}

/* ---- Transfers ------------------------------------------------------------------ */

enum { REGIONS = 3, TRANSFERS = 40, NEARBY = 24 * KIB };

struct far {
  struct pair p;
  struct perigee_region *near, *regions[REGIONS];
  struct perigee_remote *remotes[REGIONS];
  uint8_t *bytes[REGIONS], *here; /* what should be there */
};

static void far_open(struct far *f, void *state) {
  static const char *const names[REGIONS] = {"a", "b", "c"};
  pair_open(&f->p, state);
  f->near = region_of(&f->p, 0, NULL, NEARBY, 0);
  f->here = pattern(NEARBY, 1);
  fill(f->near, 0, f->here, NEARBY);
  for (int i = 0; i < REGIONS; i++) {
    f->regions[i] =
        region_of(&f->p, 1, names[i], NEARBY, PERIGEE_READ | PERIGEE_WRITE);
    f->bytes[i] = pattern(NEARBY, (uint8_t)(3 + i));
    fill(f->regions[i], 0, f->bytes[i], NEARBY);
    f->remotes[i] = look_up(&f->p, names[i]);
  }
}

static void far_close(struct far *f) {
  settle(&f->p);
  for (int i = 0; i < REGIONS; i++) {
    same(f->regions[i], 0, f->bytes[i], NEARBY);
    free(f->bytes[i]);
    region_end(f->regions[i]);
  }
  same(f->near, 0, f->here, NEARBY);
  assert_int_equal(f->near->users, 0);
  free(f->here);
  region_end(f->near);
  pair_close(&f->p);
}

/* One side of a random transfer: slices, and where each byte should be. */
struct side_list {
  struct perigee_slice slices[MOST];
  uint32_t count, total;
  uint8_t *at[NEARBY];
};

/* Adds slices of at most room bytes together; one after another in memory, with
 * gaps, so that none overlap. */
static void side_fill(struct side_list *s, struct far *f, bool remote,
                      uint32_t room) {
  uint32_t used[REGIONS] = {0};
  memset(s, 0, sizeof *s);
  while (s->total < room && s->count < MOST) {
    uint32_t r = remote ? roll(REGIONS) : 0, left = room - s->total;
    uint32_t count = roll(3) ? 1 : 1 + roll(5);
    uint32_t block = roll(s->count + 1 == MOST ? 8192 : 900) + 1;
    if (s->count + 1 == MOST || block * count > left) {
      count = 1;
      block = s->count + 1 == MOST || block > left ? left : block;
    }
    uint32_t stride = block + roll(10);
    uint32_t span = (count - 1) * stride + block;
    if (used[r] + span > NEARBY)
      return;
    struct perigee_slice *slice = &s->slices[s->count++];
    *slice = (struct perigee_slice){{NULL}, used[r], block, count, stride};
    uint8_t *base = remote ? f->bytes[r] : f->here;
    if (remote)
      slice->remote = f->remotes[r];
    else
      slice->region = f->near;
    for (uint32_t i = 0; i < count; i++)
      for (uint32_t j = 0; j < block; j++)
        s->at[s->total++] = base + used[r] + i * stride + j;
    used[r] += span + roll(3) * roll(40);
  }
}

/* Both sides have the same bytes: the longer one is made anew. */
static void sides_agree(struct far *f, struct side_list *local,
                        struct side_list *remote, uint32_t room) {
  uint32_t again = seed;
  side_fill(local, f, false, room);
  side_fill(remote, f, true, room);
  while (local->total != remote->total) {
    room = local->total < remote->total ? local->total : remote->total;
    seed = again;
    side_fill(local, f, false, room);
    side_fill(remote, f, true, room);
  }
}

static struct perigee_slice side_slice(const struct side_list *s) {
  return s->count == 1 && roll(2) ? s->slices[0]
                                  : perigee_list(s->slices, s->count);
}

static void side_copy(struct side_list *to, struct side_list *from) {
  for (uint32_t i = 0; i < to->total; i++)
    *to->at[i] = *from->at[i];
}

static void transfers_are_paired_by_bytes(void **state) {
  struct far f;
  struct side_list *s = calloc(2, sizeof *s);
  far_open(&f, *state);
  seed = 11;
  for (int i = 0; i < TRANSFERS; i++) {
    sides_agree(&f, &s[0], &s[1], 1 + roll(i % 2 ? 20000 : 3000));
    bool write = roll(2);
    struct perigee_transfer t = {.local = side_slice(&s[0]),
                                 .remote = side_slice(&s[1])};
    int op = perigee_transfer(f.p.session[0],
                              write ? PERIGEE_OP_WRITE : PERIGEE_OP_READ, &t, 1,
                              0, -1);
    side_copy(&s[write], &s[!write]);
    memset(s[0].slices, 0xee, sizeof s[0].slices);
    memset(s[1].slices, 0xee, sizeof s[1].slices);
    finish(&f.p, op, 0);
  }
  far_close(&f);
  free(s);
}

static void prepared_ones_are_posted_again(void **state) {
  struct far f;
  struct side_list *s = calloc(2, sizeof *s);
  struct perigee_prepared *prepared;
  far_open(&f, *state);
  seed = 12;
  sides_agree(&f, &s[0], &s[1], 5000);
  struct perigee_transfer t = {.local = perigee_list(s[0].slices, s[0].count),
                               .remote = perigee_list(s[1].slices, s[1].count)};
  assert_int_equal(
      perigee_prepare(f.p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, &prepared),
      0);
  memset(s[0].slices, 0xee, sizeof s[0].slices);
  memset(s[1].slices, 0xee, sizeof s[1].slices);
  for (int i = 0; i < 5; i++) {
    memset(f.here, 'a' + i, NEARBY);
    fill(f.near, 0, f.here, NEARBY);
    assert_int_equal(f.near->users, 0);
    finish(&f.p, perigee_post(prepared, -1), 0);
    side_copy(&s[1], &s[0]);
  }
  perigee_prepared_free(prepared);
  far_close(&f);
  free(s);
}

/* Of 5 slices with 8 blocks on each side, some blocks by number. */
static void blocks_are_posted_by_number(void **state) {
  enum { SLICES = 5, BLOCK_OF = 40, STEP = 1000, EACH = 8 };
  static const uint32_t from[] = {6, 1, 3}, to[] = {0, 1, 7}, twice[] = {2, 2};
  static const uint32_t beyond[] = {0, EACH};
  struct far f;
  struct perigee_slice near[SLICES], there[SLICES];
  struct perigee_prepared *prepared;
  far_open(&f, *state);
  for (uint64_t i = 0; i < SLICES; i++) {
    near[i] =
        (struct perigee_slice){{f.near}, i * STEP, BLOCK_OF, EACH, BLOCK_OF};
    there[i] = (struct perigee_slice){{NULL}, i * i * 700, BLOCK_OF, EACH, 60};
    there[i].remote = f.remotes[i % 2];
  }
  struct perigee_transfer t = {.local = perigee_list(near, SLICES),
                               .remote = perigee_list(there, SLICES)};
  assert_int_equal(
      perigee_prepare(f.p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, &prepared),
      0);
  for (int round = 0; round < 2; round++)
    finish(&f.p, perigee_post_blocks(prepared, from, to, 3, -1), 0);
  for (uint64_t i = 0; i < SLICES; i++)
    for (int j = 0; j < 3; j++)
      memcpy(f.bytes[i % 2] + there[i].offset + to[j] * 60,
             f.here + i * STEP + from[j] * BLOCK_OF, BLOCK_OF);
  assert_int_equal(perigee_post_blocks(prepared, from, twice, 2, -1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_post_blocks(prepared, from, beyond, 2, -1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_post_blocks(prepared, from, to, 0, -1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_post_blocks(prepared, from, NULL, 1, -1),
                   PERIGEE_INVALID);
  finish(&f.p, perigee_post_blocks(prepared, twice, to, 2, -1), 0);
  for (uint64_t i = 0; i < SLICES; i++)
    for (int j = 0; j < 2; j++)
      memcpy(f.bytes[i % 2] + there[i].offset + to[j] * 60,
             f.here + i * STEP + 2 * BLOCK_OF, BLOCK_OF);
  assert_int_equal(f.near->users, 0);
  perigee_prepared_free(prepared);
  far_close(&f);
}

/* Ended at any time, or with the session, a transfer gives all back. */
static void transfers_may_end_at_any_time(void **state) {
  for (int polls = 0; polls < 12; polls++) {
    struct far f;
    struct side_list *s = calloc(2, sizeof *s);
    far_open(&f, *state);
    seed = 13;
    sides_agree(&f, &s[0], &s[1], 20000);
    struct perigee_transfer t = {.local = perigee_list(s[0].slices, s[0].count),
                                 .remote =
                                     perigee_list(s[1].slices, s[1].count)};
    int op = perigee_transfer(f.p.session[0], PERIGEE_OP_READ, &t, 1, 0, -1);
    for (int i = 0; i < polls; i++) {
      poll_side(&f.p, 0);
      poll_side(&f.p, 1);
    }
    if (op != PERIGEE_INLINE && polls % 2)
      perigee_cancel(f.p.engine[0], op);
    if (polls % 3 == 0) {
      perigee_session_free(f.p.session[0]);
      f.p.session[0] = NULL;
    }
    for (int i = 0; i < 200 && f.near->users > 0; i++) {
      struct perigee_event e[8];
      perigee_poll(f.p.engine[0], e, 8);
      perigee_poll(f.p.engine[1], e, 8);
    }
    assert_int_equal(f.near->users, 0);
    for (int i = 0; i < REGIONS; i++)
      free(f.bytes[i]);
    free(f.here);
    free(s);
    pair_drop(&f.p);
  }
}

/* Memory that peers only write is written by its owner, who gets the places of
 * one move: at its ends, these are more than the list has. */
static void a_move_has_more_places_than_its_list(void **state) {
  enum { SLICES = PERIGEE_LIST_MOST, BLOCKS = SLICES + 2, STEP = 4400 };
  const uint64_t each = 4200, total = each * BLOCKS, end = KIB + total;
  struct pair p;
  pair_open(&p, *state);
  struct perigee_region *near = region_of(&p, 0, NULL, STEP * BLOCKS, 0);
  struct perigee_region *far =
      region_of(&p, 1, "far", end + KIB, PERIGEE_WRITE);
  struct perigee_remote *remote = look_up(&p, "far");
  struct perigee_slice *list = calloc(SLICES, sizeof *list);
  struct perigee_slice ends[] = {{{NULL}, 0, 50, 1, 50},
                                 {{NULL}, KIB, total - 100, 1, total - 100},
                                 {{NULL}, end, 50, 1, 50}};
  uint8_t *bytes = pattern(STEP * BLOCKS, 23), *want = malloc(total);
  fill(near, 0, bytes, STEP * BLOCKS);
  for (uint64_t i = 0, at = 0; i < SLICES; at += list[i++].count) {
    uint64_t count = i == 0 || i + 1 == SLICES ? 2 : 1;
    list[i] = (struct perigee_slice){{near}, STEP * at, each, count, STEP};
  }
  for (uint64_t i = 0; i < BLOCKS; i++)
    memcpy(want + i * each, bytes + i * STEP, each);
  for (int i = 0; i < 3; i++)
    ends[i].remote = remote;
  struct perigee_transfer t = {perigee_list(list, SLICES),
                               perigee_list(ends, 3)};
  finish(&p, perigee_transfer(p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1), 0);
  same(far, 0, want, 50);
  same(far, KIB, want + 50, total - 100);
  same(far, end, want + total - 50, 50);
  free(bytes);
  free(want);
  free(list);
  settle(&p);
  region_end(near);
  region_end(far);
  pair_close(&p);
}

static void bad_transfers_move_nothing(void **state) {
  struct far f;
  far_open(&f, *state);
  struct perigee_slice local[2] = {{{f.near}, 0, 16, 1, 16},
                                   {{f.near}, 16, 16, 1, 16}};
  struct perigee_slice remote[2] = {{{NULL}, 0, 16, 1, 16},
                                    {{NULL}, NEARBY - 8, 16, 1, 16}};
  remote[0].remote = remote[1].remote = f.remotes[0];
  struct perigee_transfer t = {perigee_list(local, 2), perigee_list(remote, 2)};
  struct perigee_session *s = f.p.session[0];
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, &t, 1, 0, -1),
                   PERIGEE_RANGE);
  assert_non_null(strstr(perigee_detail(f.p.engine[0]), "slice 2 of a list"));
  remote[1].offset = 10;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(f.p.engine[0]), "slices 1 and 2"));
  remote[1].offset = 100;
  remote[1].length = 17;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_WRITE, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  local[1].offset = 8;
  remote[1].length = 16;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_READ, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  remote[1] = perigee_list(local, 1);
  local[1].offset = 16;
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_READ, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  t.remote = perigee_list(remote, 0);
  assert_int_equal(perigee_transfer(s, PERIGEE_OP_READ, &t, 1, 0, -1),
                   PERIGEE_INVALID);
  far_close(&f);
}

int main(void) {
  const struct CMUnitTest alone[] = {
      WITH_ENGINE(host_memory_is_moved_as_byte_by_byte),
      WITH_ENGINE(other_memory_is_moved_so_too),
      WITH_ENGINE(large_ones_are_moved_so_too),
      WITH_ENGINE(overlaps_are_found),
      WITH_ENGINE(what_is_wrong_is_told_by_number),
      WITH_ENGINE(a_list_of_too_many_bytes_is_refused),
      cmocka_unit_test(signals_are_no_end_of_a_process),
      cmocka_unit_test(older_peers_get_lists_in_a_block),
      cmocka_unit_test(short_places_travel_in_a_block),
      OVER(variant_default, a_move_has_more_places_than_its_list),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slices_of_calls_may_be_lists),
      cmocka_unit_test(so_may_those_of_raw_calls),
      cmocka_unit_test(messages_may_be_lists),
      cmocka_unit_test(lists_may_go_at_any_time),
      cmocka_unit_test(bad_lists_are_refused_at_once),
      cmocka_unit_test(transfers_are_paired_by_bytes),
      cmocka_unit_test(prepared_ones_are_posted_again),
      cmocka_unit_test(blocks_are_posted_by_number),
      cmocka_unit_test(transfers_may_end_at_any_time),
      cmocka_unit_test(bad_transfers_move_nothing),
  };
  int failed = cmocka_run_group_tests_name("lists", alone, NULL, NULL);
  return failed + RUN_MATRIX("lists", tests);
}
