/* SPDX-License-Identifier: Apache-2.0
 *
 * memory_cuda_test.c - memory of kind "cuda" as memory.h has it, by the fake of
 * CUDA's driver (spec/gpu/libcuda_fake.c), which ends the process where real
 * CUDA leaves undefined what happens. Tests are skipped unless
 * PERIGEE_CUDA_LIBRARY names the fake, as make check-gpu does.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "gathered.h"
#include "memory/cuda/cuda.h"

static void *fake_named(const char *function) {
  const char *name = getenv("PERIGEE_CUDA_LIBRARY");
  void *library = name && *name ? dlopen(name, RTLD_NOW) : NULL;
  return library ? dlsym(library, function) : NULL;
}

/* Sets the fake; skips the test if there is none. */
static void fake_set(const char *word) {
  void (*set)(const char *);
  *(void **)&set = fake_named("fake_cuda_set");
  if (set)
    set(word);
  else
    skip();
}

static uint64_t fake_counted(const char *name) {
  uint64_t (*count)(const char *);
  *(void **)&count = fake_named("fake_cuda_count");
  return count(name);
}

/* The copy of bytes of the host to the beginning of a device's region. */
static struct memory_copy one_copy(const struct perigee_region *r,
                                   const uint8_t *bytes, uint64_t length) {
  return (struct memory_copy){.to_memory = r->memory,
                              .from_memory = &memory_host,
                              .to = r->pointer,
                              .from = bytes,
                              .block = length,
                              .count = 1,
                              .to_stride = length,
                              .from_stride = length};
}

static const uint8_t eight[8] = "1234567";

/* Asks for a copy of eight bytes; returns its ticket. */
static uint64_t eight_asked(const struct perigee_region *r) {
  struct memory_copy one = one_copy(r, eight, sizeof eight);
  uint64_t ticket = 0;
  assert_int_equal(r->memory->kind->copies->copy(r->memory, &one, &ticket), 0);
  return ticket;
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

/* What the driver says of a stream may be about something else, and the stream
 * goes on: no copy is told of before it has ended. */
static void a_question_that_fails_ends_no_copy(void **state) {
  fake_set("slow=100000");
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  int status;
  fake_set("fail=cuStreamQuery@1:999");
  uint64_t ticket = eight_asked(r);
  while ((status = r->memory->kind->copies->finished(r->memory, ticket)) == 0)
    ;
  assert_int_equal(status, 1);
  same(r, 0, eight, sizeof eight);
  region_end(r);
}

/* After drain no ticket is still under way (memory.h), whatever the device. */
static void a_drained_copy_of_a_broken_device_has_ended(void **state) {
  fake_set("slow=100000"); /* it breaks once all was asked for */
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  const struct memory_copies *copies = r->memory->kind->copies;
  struct memory_copy one = one_copy(r, eight, sizeof eight);
  fake_set("fail=stream@1:700");
  uint64_t ticket = eight_asked(r);
  copies->drain(r->memory);
  assert_int_equal(copies->finished(r->memory, ticket), PERIGEE_CLOSED);
  assert_int_equal(copies->copy(r->memory, &one, &ticket), PERIGEE_CLOSED);
  region_end(r);
}

/* ---- Graphs --------------------------------------------------------------- */

static int capture_mode(void) {
  CUresult (*exchange)(CUstreamCaptureMode *);
  CUstreamCaptureMode mode = 0, now = 0;
  *(void **)&exchange = fake_named("cuThreadExchangeStreamCaptureMode");
  assert_int_equal(exchange(&mode), 0);
  now = mode;
  assert_int_equal(exchange(&mode), 0);
  return now;
}

/* The program captures a graph, which Perigee's calls neither end nor feel. */
static void a_capture_goes_on_beside_copies(void **state) {
  enum { PASSES = 2, BYTES = 1 << 20, LENGTH = 4096 };
  uint8_t *bytes = pattern(BYTES, 8);
  uint64_t tickets[2];
  int status = 0;
  fake_set("slow=50000");
  struct perigee_region *gpu = of_kind(*state, "cuda:0", BYTES), *host = NULL;
  assert_int_equal(
      perigee_region_register(*state, NULL, bytes, BYTES, 0, NULL, &host), 0);
  const struct memory_copies *copies = gpu->memory->kind->copies;
  struct memory_copy one = one_copy(gpu, bytes, LENGTH);
  fake_set("captures=1");
  struct perigee_region *other = of_kind(*state, "cuda:0", LENGTH);
  assert_int_equal(copies->copy(gpu->memory, &one, &tickets[0]), 0);
  for (int i = 0; i < 2 * LOOK && status == 0; i++)
    status = copies->finished(gpu->memory, tickets[0]);
  for (int i = PASSES; i-- > 0;)
    copies->most(gpu->memory, &host->area, bytes + (uint64_t)i * BYTES / 2);
  assert_int_equal(copies->copy(gpu->memory, &one, &tickets[1]), 0);
  copies->drain(gpu->memory);
  if (status == 0)
    status = copies->finished(gpu->memory, tickets[0]);
  assert_int_equal(status, 1);
  assert_int_equal(copies->finished(gpu->memory, tickets[1]), 1);
  region_end(host);
  region_end(other);
  fake_set("captures=0");
  assert_int_equal(fake_counted("captures ended"), 0);
  assert_int_equal(capture_mode(), 0);
  region_end(gpu);
  free(bytes);
}

/* ---- Pins ----------------------------------------------------------------- */

/* Memory that one pin has as a whole. */
enum { PINNED = 1 << 20, PIN_ALIGNED = 4 << 20 };

static struct perigee_region *registered(struct perigee_engine *engine,
                                         uint8_t *bytes) {
  struct perigee_region *r = NULL;
  assert_int_equal(
      perigee_region_register(engine, NULL, bytes, PINNED, 0, NULL, &r), 0);
  return r;
}

/* The bytes of one region may be those of another one, too. */
static void a_pin_stays_while_another_region_uses_it(void **state) {
  uint8_t *bytes = aligned_alloc(PIN_ALIGNED, PIN_ALIGNED);
  uint64_t ticket;
  fake_set("slow=100000");
  uint64_t undone = fake_counted("cuMemHostUnregister");
  struct perigee_region *gpu = of_kind(*state, "cuda:0", PINNED);
  struct perigee_region *a = registered(*state, bytes);
  struct perigee_region *b = registered(*state, bytes);
  const struct memory_copies *copies = gpu->memory->kind->copies;
  struct memory_copy one = one_copy(gpu, bytes, PINNED);
  memset(bytes, 7, PINNED);
  copies->most(gpu->memory, &a->area, bytes + PINNED / 2);
  assert_int_equal(copies->most(gpu->memory, &a->area, bytes), PINNED);
  assert_int_equal(copies->most(gpu->memory, &b->area, bytes), PINNED);
  assert_int_equal(copies->copy(gpu->memory, &one, &ticket), 0);
  region_end(a);
  while (copies->finished(gpu->memory, ticket) == 0)
    ;
  same(gpu, 0, bytes, PINNED);
  region_end(b);
  assert_int_equal(fake_counted("cuMemHostUnregister"), undone + 1);
  region_end(gpu);
  free(bytes);
}

/* ---- Pieces --------------------------------------------------------------- */

enum { PIECES = TABLE_PIECES, PIECE = 24, APART = 32 };

/* Regions for tables full of pieces, and what is asked for. */
static struct many_pieces {
  struct perigee_region *from, *to;
  const struct memory_copies *copies;
  struct memory_copy list[PIECES];
} pieces;

static void pieces_open(struct perigee_engine *engine, const char *by) {
  setenv("PERIGEE_CUDA_COPIES", by, 1);
  fake_set("slow=20");
  pieces.from = of_kind(engine, "cuda:0", PIECES * APART);
  pieces.to = of_kind(engine, "cuda:0", PIECES * APART);
  unsetenv("PERIGEE_CUDA_COPIES");
  pieces.copies = pieces.to->memory->kind->copies;
  for (uint32_t i = 0; i < PIECES; i++)
    pieces.list[i] = (struct memory_copy){pieces.to->memory,
                                          pieces.to->memory,
                                          pieces.to->pointer + i * APART,
                                          pieces.from->pointer + i * APART,
                                          PIECE,
                                          1,
                                          PIECE,
                                          PIECE,
                                          false};
}

static void pieces_close(void) {
  region_end(pieces.from);
  region_end(pieces.to);
}

static int pieces_ask(uint32_t count, uint64_t *ticket) {
  return pieces.copies->copy_all(pieces.to->memory, pieces.list, count, ticket);
}

static void pieces_await(uint64_t ticket) {
  int status;
  while ((status = pieces.copies->finished(pieces.to->memory, ticket)) == 0)
    ;
  assert_int_equal(status, 1);
}

/* Returns what the driver says of the stream of pieces: 0, it is at rest. */
static CUresult pieces_stream_state(void) {
  const struct cuda *c = pieces.to->memory->own;
  return c->driver->cuStreamQuery(c->streams[WAY_INSIDE].handle);
}

/* ---- Drivers that do not wait -------------------------------------------- */

/* While a graph is captured the driver may refuse to wait. */
static const char waits_not[] = "fail=cuStreamSynchronize@1:900:1000000";

static void a_drained_copy_has_ended_though_the_driver_waits_not(void **state) {
  fake_set("slow=100000");
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  const struct memory_copies *copies = r->memory->kind->copies;
  uint64_t ticket = eight_asked(r);
  fake_set(waits_not);
  copies->drain(r->memory);
  fake_set("fail=none@0");
  assert_int_equal(copies->finished(r->memory, ticket), 1);
  same(r, 0, eight, sizeof eight);
  region_end(r);
}

static void a_pin_stays_under_a_copy_though_the_driver_waits_not(void **state) {
  uint8_t *bytes = aligned_alloc(PIN_ALIGNED, PIN_ALIGNED);
  uint64_t ticket;
  memset(bytes, 7, PINNED);
  fake_set("slow=100000");
  struct perigee_region *gpu = of_kind(*state, "cuda:0", PINNED);
  struct perigee_region *a = registered(*state, bytes);
  const struct memory_copies *copies = gpu->memory->kind->copies;
  struct memory_copy one = one_copy(gpu, bytes, PINNED);
  copies->most(gpu->memory, &a->area, bytes + PINNED / 2);
  assert_int_equal(copies->most(gpu->memory, &a->area, bytes), PINNED);
  assert_int_equal(copies->copy(gpu->memory, &one, &ticket), 0);
  fake_set(waits_not);
  region_end(a);
  fake_set("fail=none@0");
  assert_int_equal(copies->finished(gpu->memory, ticket), 1);
  same(gpu, 0, bytes, PINNED);
  region_end(gpu);
  free(bytes);
}

/* The copies were asked for, but not their number: they have ended, too. */
static void a_failed_batch_has_ended_though_the_driver_waits_not(void **state) {
  uint64_t ticket;
  pieces_open(*state, "batch");
  fake_set(waits_not);
  fake_set("also=cuStreamWriteValue64@1:999");
  assert_int_equal(pieces_ask(3, &ticket), PERIGEE_CLOSED);
  assert_int_equal(pieces_stream_state(), 0);
  fake_set("fail=none@0");
  assert_int_equal(pieces_ask(3, &ticket), 0);
  pieces_await(ticket);
  pieces_close();
}

/* What it was asked for may go on for all that is known: it gets no more. */
static void a_stream_that_is_not_brought_to_rest_has_failed(void **state) {
  uint64_t ticket;
  pieces_open(*state, "batch");
  fake_set("fail=cuStreamSynchronize@1:999");
  fake_set("also=cuStreamWriteValue64@1:999");
  assert_int_equal(pieces_ask(3, &ticket), PERIGEE_CLOSED);
  assert_int_equal(pieces_ask(3, &ticket), PERIGEE_CLOSED);
  while (pieces_stream_state() != 0)
    ;
  pieces_close();
}

/* Its zeroes may still come for all that is known. */
static void memory_that_is_still_zeroed_is_not_freed(void **state) {
  struct perigee_region *r = NULL;
  fake_set("slow=20000");
  region_end(of_kind(*state, "cuda:0", SIZE));
  uint64_t unmapped = fake_counted("cuMemUnmap");
  fake_set("fail=cuStreamSynchronize@1:999");
  assert_int_equal(perigee_region_alloc(*state, NULL, SIZE, 0, "cuda:0", &r),
                   PERIGEE_SYSTEM);
  assert_int_equal(fake_counted("cuMemUnmap"), unmapped);
  region_end(of_kind(*state, "cuda:0", SIZE));
}

/* A driver whose device broke does not answer, and programs go on. */
static void memory_is_told_apart_though_the_driver_says_nothing(void **state) {
  struct perigee_region *again = NULL;
  uint8_t byte = 0;
  fake_set("slow=20");
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  fake_set("fail=cuPointerGetAttributes@1:999");
  assert_int_equal(
      perigee_region_register(*state, NULL, r->pointer, 8, 0, NULL, &again), 0);
  assert_ptr_equal(again->memory, r->memory);
  region_end(again);
  fake_set("fail=cuPointerGetAttributes@1:999");
  assert_int_equal(
      perigee_region_register(*state, NULL, &byte, 1, 0, NULL, &again), 0);
  assert_ptr_equal(again->memory, &memory_host);
  region_end(again);
  region_end(r);
}

/* The program's thread captures in the mode that it has chosen. */
static void the_mode_of_captures_is_left_as_it_was(void **state) {
  fake_set("fail=cuThreadExchangeStreamCaptureMode@1:999");
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  assert_int_equal(capture_mode(), 0);
  region_end(r);
}

/* ---- Being told -------------------------------------------------------------
 */

static void telling_end(const struct perigee_region *r, uint64_t ticket) {
  while (r->memory->kind->copies->finished(r->memory, ticket) == 0)
    ;
}

static void the_end_of_a_copy_is_told_once_for_each(void **state) {
  fake_set("slow=100000");
  struct perigee_region *r = of_kind(*state, "cuda:0", SIZE);
  const struct memory_copies *copies = r->memory->kind->copies;
  uint64_t asked = fake_counted("cuLaunchHostFunc");
  int fd = -1, again = -1;
  assert_int_equal(copies->tell(r->memory, &fd), 0);
  uint64_t ticket = eight_asked(r);
  assert_int_equal(copies->tell(r->memory, &fd), 1);
  assert_int_equal(copies->tell(r->memory, &again), 1);
  assert_int_equal(fd, again);
  assert_int_equal(fake_counted("cuLaunchHostFunc"), asked + 1);
  struct pollfd told = {.fd = fd, .events = POLLIN};
  assert_int_equal(poll(&told, 1, 0), 0);
  assert_int_equal(poll(&told, 1, -1), 1);
  assert_int_equal(copies->tell(r->memory, &again), PERIGEE_AGAIN);
  telling_end(r, ticket);
  assert_int_equal(copies->tell(r->memory, &fd), 0);
  ticket = eight_asked(r);
  assert_int_equal(copies->tell(r->memory, &fd), 1);
  assert_int_equal(fake_counted("cuLaunchHostFunc"), asked + 2);
  telling_end(r, ticket);
  region_end(r);
}

/* Whoever has the number of a descriptor after its context is not written to. */
static void a_closed_context_tells_nobody(void **state) {
  (void)state;
  fake_set("slow=20000");
  struct perigee_engine *engine = NULL;
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  struct perigee_region *r = of_kind(engine, "cuda:0", SIZE);
  int fd = -1;
  uint64_t ticket = eight_asked(r);
  assert_int_equal(r->memory->kind->copies->tell(r->memory, &fd), 1);
  telling_end(r, ticket);
  region_end(r);
  perigee_engine_close(engine);
  int other = eventfd(0, EFD_NONBLOCK);
  assert_int_equal(dup2(other, fd), fd);
  struct pollfd told = {.fd = fd, .events = POLLIN};
  assert_int_equal(poll(&told, 1, 50), 0);
  close(other);
  if (other != fd)
    close(fd);
}

/* The program has reset the device. */
static void a_context_that_is_gone_leaves_no_descriptor(void **state) {
  (void)state;
  fake_set("slow=20000");
  struct perigee_engine *engine = NULL;
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  struct perigee_region *r = of_kind(engine, "cuda:0", SIZE);
  struct pollfd told = {.fd = -1, .events = POLLIN};
  uint64_t ticket = eight_asked(r);
  assert_int_equal(r->memory->kind->copies->tell(r->memory, &told.fd), 1);
  assert_int_equal(poll(&told, 1, -1), 1);
  telling_end(r, ticket);
  region_end(r);
  fake_set("fail=cuCtxPushCurrent@1:201:1000000");
  perigee_engine_close(engine);
  fake_set("fail=none@0");
  for (int i = 0; i < 1000 && told.revents != POLLNVAL; i++) {
    usleep(1000); /* the driver's thread may still be in its call */
    assert_int_equal(poll(&told, 1, 0), 1);
  }
  assert_int_equal(told.revents, POLLNVAL);
}

/* A program that polls by itself sleeps by the engine's descriptor alone, until a
 * copy of 0.1 s has ended: not by the time that perigee_arm tells. */
static void told_by_the_descriptor(int64_t progress) {
  static const struct variant over = {"cuda", "shm", "cuda:0", 1, NULL};
  struct perigee_options o;
  struct pair p;
  variant_options(&over, &o);
  o.progress = (int)progress;
  fake_set("slow=100000");
  pair_open_with(&p, (void *)(uintptr_t)&over, &o);
  struct perigee_region *into = region_of(&p, 1, NULL, SIZE, 0), *from = NULL;
  assert_int_equal(
      perigee_region_alloc(p.engine[0], NULL, SIZE, 0, NULL, &from), 0);
  fill_byte(from, 3);
  struct perigee_slice all = all_of(into, 4096), sent = all_of(from, 4096);
  uint64_t copies = fake_counted("cuMemcpyAsync");
  uint64_t asked = fake_counted("cuLaunchHostFunc");
  assert_true(perigee_recv(p.session[1], &all, -1) >= 0);
  int op = perigee_send(p.session[0], &sent, -1);
  while (fake_counted("cuMemcpyAsync") == copies) {
    poll_side(&p, 0);
    poll_side(&p, 1);
  }
  struct perigee_event e = {0};
  struct pollfd news = {.fd = perigee_fd(p.engine[1]), .events = POLLIN};
  int64_t nap;
  int wakes = 0;
  for (; perigee_poll(p.engine[1], &e, 1) == 0; wakes++)
    if (perigee_arm(p.engine[1], &nap) == 0)
      assert_int_equal(poll(&news, 1, 20000), 1);
  assert_int_equal(e.kind, PERIGEE_EVENT_DONE);
  assert_in_range(wakes, 1, 20);
  assert_in_range(fake_counted("cuLaunchHostFunc"), asked + 1, asked + 3);
  finish(&p, op, 0);
  settle(&p);
  region_end(into);
  region_end(from);
  pair_close(&p);
}

static void an_engines_descriptor_tells(void **state) {
  (void)state;
  told_by_the_descriptor(0);
}

static void an_engines_descriptor_tells_beside_its_thread(void **state) {
  (void)state;
  told_by_the_descriptor(1);
}

/* ---- Reads ---------------------------------------------------------------- */

/* Pages that are not there are read by their owner, who may close the region once
 * it has. */
static void what_its_owner_has_read_may_be_closed(void **state) {
  static const struct variant over = {"cuda", "shm", "cuda:0", 1, NULL};
  static const uint8_t zeros[8] = {0};
  struct perigee_options o;
  struct perigee_region *from = NULL;
  struct pair p;
  (void)state;
  fake_set("slow=20");
  variant_options(&over, &o);
  pair_open_with(&p, (void *)(uintptr_t)&over, &o);
  struct perigee_region *into = region_of(&p, 0, NULL, SIZE, 0);
  fill_byte(into, 3);
  assert_int_equal(perigee_region_alloc(p.engine[1], "theirs", SIZE,
                                        PERIGEE_READ, NULL, &from),
                   0);
  struct perigee_transfer read = {
      .local = all_of(into, 8),
      .remote = {{.remote = look_up(&p, "theirs")}, 0, 8, 1, 8}};
  int op = perigee_transfer(p.session[0], PERIGEE_OP_READ, &read, 1, 0, -1);
  poll_side(&p, 0);
  for (int i = 0; i < 1000; i++)
    poll_side(&p, 1);
  region_end(from);
  finish(&p, op, 0);
  same(into, 0, zeros, sizeof zeros);
  settle(&p);
  region_end(into);
  pair_close(&p);
}

/* ---- Keys of bytes alone -------------------------------------------------- */

/* A region whose memory peers may open. */
static struct perigee_region *shared_new(struct perigee_engine *engine,
                                         uint64_t length) {
  struct perigee_region *r = NULL;
  assert_int_equal(perigee_region_alloc(engine, NULL, length,
                                        PERIGEE_READ | PERIGEE_WRITE, "cuda:0",
                                        &r),
                   0);
  return r;
}

static int share_bytes(const struct perigee_region *r, struct memory_key *key) {
  return r->memory->kind->sharing->share_bytes(r->memory, r->pointer,
                                               r->area.handle, key);
}

/* They have no descriptor, and lead to the whole region. */
static void memory_has_a_key_of_bytes(void **state) {
  fake_set("fabric=1");
  struct perigee_region *r = shared_new(*state, SIZE);
  const struct memory_sharing *sharing = r->memory->kind->sharing;
  const int rights = PERIGEE_READ | PERIGEE_WRITE;
  struct perigee_region seen = *r;
  uint8_t *bytes = pattern(SIZE, 4);
  struct memory_key key;
  void *handle;
  assert_int_equal(share_bytes(r, &key), 0);
  assert_int_equal(key.fd_count, 0);
  assert_int_equal(sharing->whose(&key), 0);
  assert_int_equal(
      sharing->adopt(r->memory, &key, SIZE, rights, &seen.pointer, &handle), 0);
  assert_ptr_not_equal(seen.pointer, r->pointer);
  fill(&seen, 0, bytes, SIZE);
  same(r, 0, bytes, SIZE);
  sharing->leave(r->memory, seen.pointer, SIZE, handle);
  free(bytes);
  region_end(r);
  fake_set("fabric=0");
}

static int adopts(const struct perigee_region *r, const struct memory_key *key,
                  uint64_t length) {
  uint8_t *pointer;
  void *handle;
  return r->memory->kind->sharing->adopt(r->memory, key, length, PERIGEE_READ,
                                         &pointer, &handle);
}

/* What a liar sends leaves nothing mapped. */
static void keys_of_bytes_are_checked(void **state) {
  struct memory_key key, forged;
  struct cuda_key {
    uint64_t way, size, offset;
    uint8_t device[16], fabric[64];
  } k;
  fake_set("fabric=1");
  struct perigee_region *r = shared_new(*state, SIZE);
  assert_int_equal(share_bytes(r, &key), 0);
  uint64_t reserved =
      fake_counted("cuMemAddressReserve") - fake_counted("cuMemAddressFree");
  for (int lie = 0; lie < 5; lie++) {
    forged = key;
    memcpy(&k, key.bytes, sizeof k);
    k.way += lie == 0;                              /* of no kind */
    k.size = lie == 1 ? UINT64_C(1) << 40 : k.size; /* longer than it is */
    k.offset = lie == 2 ? k.size : 0;
    k.fabric[20] ^= lie == 3;
    memcpy(forged.bytes, &k, sizeof k);
    forged.fd_count = lie == 4; /* with a descriptor, of which none is used */
    assert_int_equal(adopts(r, &forged, 100), PERIGEE_PROTOCOL);
  }
  assert_int_equal(adopts(r, &key, (uint64_t)64 << 20), PERIGEE_PROTOCOL);
  fake_set("channel=2");
  assert_int_equal(adopts(r, &key, 100), PERIGEE_UNSUPPORTED);
  fake_set("channel=1");
  assert_int_equal(fake_counted("cuMemAddressReserve") -
                       fake_counted("cuMemAddressFree"),
                   reserved);
  struct perigee_region freed = {.memory = r->memory};
  region_end(r);
  assert_int_equal(adopts(&freed, &key, 100), PERIGEE_PROTOCOL);
  fake_set("fabric=0");
}

/* The driver is asked once. */
static void without_a_channel_there_is_no_key_of_bytes(void **state) {
  struct memory_key key;
  fake_set("fabric=1");
  fake_set("channel=0");
  uint64_t made = fake_counted("cuMemCreate");
  struct perigee_region *r = shared_new(*state, SIZE);
  struct perigee_region *next = shared_new(*state, SIZE);
  assert_int_equal(fake_counted("cuMemCreate"), made + 3);
  for (int i = 0; i < 2; i++) {
    const struct perigee_region *of = i ? next : r;
    assert_int_equal(share_bytes(of, &key), PERIGEE_UNSUPPORTED);
    assert_non_null(strstr(of->memory->kind->why(of->memory),
                           "memory has no fabric handle: "
                           "CUDA_ERROR_NOT_PERMITTED"));
    assert_int_equal(of->memory->kind->sharing->share(
                         of->memory, of->pointer, SIZE, of->area.handle,
                         PERIGEE_READ | PERIGEE_WRITE, &key),
                     0);
  }
  region_end(r);
  region_end(next);
  fake_set("channel=1");
  fake_set("fabric=0");
}

/* ---- Many at once --------------------------------------------------------- */

/* Has batches copied until the kind tells that pieces go by the kernel. */
static void a_trial_goes_on_beside_batches(void **state) {
  const struct perigee_memory *kind;
  uint64_t ticket, launched;
  char told[MEMORY_REASON] = "";
  uint8_t *bytes = pattern(PIECES * APART, 5);
  pieces_open(*state, "");
  kind = pieces.to->memory->kind;
  fill(pieces.from, 0, bytes, PIECES * APART);
  while (!strstr(told, "by a kernel where")) {
    assert_int_equal(pieces_ask(100, &ticket), 0);
    pieces_await(ticket);
    kind->describe(pieces.to->memory, told, sizeof told);
  }
  launched = fake_counted("cuLaunchKernel");
  assert_int_equal(pieces_ask(PIECES, &ticket), 0);
  pieces_await(ticket);
  assert_int_equal(fake_counted("cuLaunchKernel"), launched + 1);
  for (uint32_t i = 0; i < PIECES; i++)
    same(pieces.to, i * APART, bytes + i * APART, PIECE);
  free(bytes);
  pieces_close();
}

/* Has a trial begin, which is to fail so, and keeps what the kind tells of it. */
static void trial_fails(const char *script, char told[MEMORY_REASON]) {
  const struct memory_context *by = pieces.to->memory;
  uint64_t ticket;
  fake_set("compile=100000");
  assert_int_equal(pieces_ask(100, &ticket), 0);
  pieces_await(ticket);
  fake_set(script);
  do
    by->kind->describe(by, told, MEMORY_REASON);
  while (strstr(told, "is tried"));
  fake_set("compile=0");
}

static uint64_t fake_left(const char *made, const char *freed) {
  return fake_counted(made) - fake_counted(freed);
}

/* Once the device has ended that after all. */
static void what_a_trial_gave_up_goes_with_the_context(void **state) {
  (void)state;
  char told[MEMORY_REASON];
  struct perigee_engine *engine = NULL;
  uint64_t allocated = fake_left("cuMemAlloc", "cuMemFree");
  uint64_t pinned = fake_left("cuMemHostAlloc", "cuMemFreeHost");
  uint64_t streams = fake_left("cuStreamCreate", "cuStreamDestroy");
  uint64_t modules = fake_left("cuModuleLoadData", "cuModuleUnload");
  assert_int_equal(perigee_engine_open(NULL, &engine), 0);
  pieces_open(engine, "");
  trial_fails("fail=cuStreamWriteValue64@1:999", told);
  assert_non_null(strstr(told, "did not end what was tried"));
  const struct cuda *c = pieces.to->memory->own;
  while (c->driver->cuStreamQuery(c->trial.stream.handle) != CUDA_SUCCESS)
    ;
  pieces_close();
  perigee_engine_close(engine);
  assert_int_equal(fake_left("cuMemAlloc", "cuMemFree"), allocated);
  assert_int_equal(fake_left("cuMemHostAlloc", "cuMemFreeHost"), pinned);
  assert_int_equal(fake_left("cuStreamCreate", "cuStreamDestroy"), streams);
  assert_int_equal(fake_left("cuModuleLoadData", "cuModuleUnload"), modules);
}

/* Each table is read by a kernel until that ends. */
static void more_than_all_tables_is_asked_again(void **state) {
  uint64_t tickets[TABLES + 1], launched, n = 0;
  uint8_t *bytes = pattern(PIECES * APART, 3);
  pieces_open(*state, "kernel");
  fill(pieces.from, 0, bytes, PIECES * APART);
  launched = fake_counted("cuLaunchKernel");
  fake_set("kernel=100000000");
  for (; n < TABLES; n++)
    assert_int_equal(pieces_ask(PIECES, &tickets[n]), 0);
  int more = pieces_ask(3, &tickets[n]);
  fake_set("kernel=0");
  assert_int_equal(more, PERIGEE_AGAIN);
  pieces_await(tickets[0]);
  assert_int_equal(pieces_ask(PIECES, &tickets[n]), 0);
  while (n > 0)
    pieces_await(tickets[n--]);
  assert_int_equal(fake_counted("cuLaunchKernel"), launched + TABLES + 1);
  for (uint32_t i = 0; i < PIECES; i++)
    same(pieces.to, i * APART, bytes + i * APART, PIECE);
  free(bytes);
  pieces_close();
}

/* No number was written that frees the tables of failed batches, so the next one
 * goes another way, and writes it. */
static void tables_of_failed_batches_are_free_again(void **state) {
  uint64_t ticket, launched;
  pieces_open(*state, "kernel");
  for (int i = 0; i < TABLES; i++) {
    fake_set("fail=cuStreamWriteValue64@1:999");
    assert_int_equal(pieces_ask(3, &ticket), PERIGEE_CLOSED);
  }
  launched = fake_counted("cuLaunchKernel");
  assert_int_equal(pieces_ask(3, &ticket), 0);
  pieces_await(ticket);
  assert_int_equal(fake_counted("cuLaunchKernel"), launched);
  assert_int_equal(pieces_ask(3, &ticket), 0);
  pieces_await(ticket);
  assert_int_equal(fake_counted("cuLaunchKernel"), launched + 1);
  pieces_close();
}

/* A copy of more pieces than all tables have goes by cuMemcpy2DAsync, and the
 * others of its batch by the kernel; those that take two tables, by two. */
static void a_copy_beyond_all_tables_goes_another_way(void **state) {
  enum { ROWS = TABLES * TABLE_PIECES + 1, COLUMN = 16 };
  uint64_t ticket, launched, flat;
  uint8_t *bytes = pattern(ROWS * COLUMN, 4);
  pieces_open(*state, "kernel");
  struct perigee_region *from = of_kind(*state, "cuda:0", ROWS * COLUMN);
  struct perigee_region *to = of_kind(*state, "cuda:0", ROWS * COLUMN);
  struct memory_copy rows = {to->memory,    to->memory, to->pointer,
                             from->pointer, 8,          ROWS,
                             COLUMN,        COLUMN,     false};
  fill(from, 0, bytes, ROWS * COLUMN);
  struct memory_copy kept = pieces.list[1];
  pieces.list[1] = rows;
  launched = fake_counted("cuLaunchKernel");
  flat = fake_counted("cuMemcpy2DAsync");
  assert_int_equal(pieces_ask(PIECES, &ticket), 0);
  pieces_await(ticket);
  assert_int_equal(fake_counted("cuMemcpy2DAsync"), flat + 1);
  assert_int_equal(fake_counted("cuLaunchKernel"), launched + 1);
  pieces.list[1].count = TABLE_PIECES;
  assert_int_equal(pieces_ask(PIECES, &ticket), 0);
  pieces_await(ticket);
  assert_int_equal(fake_counted("cuMemcpy2DAsync"), flat + 1);
  assert_int_equal(fake_counted("cuLaunchKernel"), launched + 3);
  for (uint32_t i = 0; i < ROWS; i += 1000)
    same(to, i * COLUMN, bytes + i * COLUMN, 8);
  pieces.list[1] = kept;
  free(bytes);
  region_end(from);
  region_end(to);
  pieces_close();
}

/* Nothing that has no order may do them, and the fake's kernel refuses. */
static void blocks_that_overlap_go_in_their_order(void **state) {
  uint64_t ticket, copied;
  uint8_t *bytes = pattern(4 * APART, 6);
  pieces_open(*state, "kernel");
  fill(pieces.from, 0, bytes, 4 * APART);
  struct memory_copy kept = pieces.list[1];
  pieces.list[1].count = 3;
  pieces.list[1].to_stride = 4;
  pieces.list[1].from_stride = PIECE;
  copied = fake_counted("cuMemcpyAsync");
  assert_int_equal(pieces_ask(3, &ticket), 0);
  pieces_await(ticket);
  assert_int_equal(fake_counted("cuMemcpyAsync"), copied + 3);
  for (uint32_t i = 0; i < 3; i++)
    same(pieces.to, APART + 4 * i, bytes + APART + PIECE * i,
         i == 2 ? PIECE : 4);
  same(pieces.to, 0, bytes, PIECE);
  pieces.list[1] = kept;
  free(bytes);
  pieces_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_ENGINE(one_device_copies_from_the_other),
      WITH_ENGINE(a_context_that_cannot_be_entered_is_not_left),
      WITH_ENGINE(a_question_that_fails_ends_no_copy),
      WITH_ENGINE(a_capture_goes_on_beside_copies),
      WITH_ENGINE(a_pin_stays_while_another_region_uses_it),
      WITH_ENGINE(a_drained_copy_has_ended_though_the_driver_waits_not),
      WITH_ENGINE(a_pin_stays_under_a_copy_though_the_driver_waits_not),
      WITH_ENGINE(a_failed_batch_has_ended_though_the_driver_waits_not),
      WITH_ENGINE(a_stream_that_is_not_brought_to_rest_has_failed),
      WITH_ENGINE(memory_that_is_still_zeroed_is_not_freed),
      WITH_ENGINE(memory_is_told_apart_though_the_driver_says_nothing),
      WITH_ENGINE(the_mode_of_captures_is_left_as_it_was),
      WITH_ENGINE(the_end_of_a_copy_is_told_once_for_each),
      cmocka_unit_test(an_engines_descriptor_tells),
      cmocka_unit_test(an_engines_descriptor_tells_beside_its_thread),
      cmocka_unit_test(what_its_owner_has_read_may_be_closed),
      WITH_ENGINE(a_closed_context_tells_nobody),
      cmocka_unit_test(a_context_that_is_gone_leaves_no_descriptor),
      WITH_ENGINE(memory_has_a_key_of_bytes),
      WITH_ENGINE(keys_of_bytes_are_checked),
      WITH_ENGINE(without_a_channel_there_is_no_key_of_bytes),
      WITH_ENGINE(a_trial_goes_on_beside_batches),
      cmocka_unit_test(what_a_trial_gave_up_goes_with_the_context),
      WITH_ENGINE(more_than_all_tables_is_asked_again),
      WITH_ENGINE(tables_of_failed_batches_are_free_again),
      WITH_ENGINE(blocks_that_overlap_go_in_their_order),
      WITH_ENGINE(a_copy_beyond_all_tables_goes_another_way),
      /* The last one, as the fake stays broken. */
      WITH_ENGINE(a_drained_copy_of_a_broken_device_has_ended),
  };
  return cmocka_run_group_tests_name("memory_cuda", tests, NULL, NULL);
}
