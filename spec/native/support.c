/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"
#include "support_inside.h"

#include <dirent.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const struct variant variant_default = {"shm, host", "shm", "host", 1, NULL};

static const struct perigee_transport *const transports[] = {
    &perigee_transport_inproc, NULL};
static const struct perigee_memory *const memories[] = {&perigee_memory_opaque,
                                                        NULL};

int64_t clock_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int descriptors(void) {
  DIR *d = opendir("/proc/self/fd");
  int n = 0;
  while (readdir(d))
    n++;
  closedir(d);
  return n;
}

/* ---- The pair ----------------------------------------------------------- */

static bool over(const struct variant *v, const char *transport) {
  return strcmp(v->transport, transport) == 0;
}

static bool over_tcp(const struct variant *v, const char *how) {
  return over(v, "tcp") && v->how && strstr(v->how, how);
}

void variant_options(const struct variant *v, struct perigee_options *o) {
  perigee_options_init(o, sizeof *o);
  o->pull = v->pull;
  o->transports = transports;
  o->rdma = over(v, "verbs") ? v->how : NULL;
  o->memories = memories;
  o->encrypt = over_tcp(v, "sealed");
  o->secret = o->encrypt ? "the secret of these tests" : "";
  if (over_tcp(v, "streams"))
    o->streams = 4;
  o->progress = getenv("PERIGEE_TEST_PROGRESS") != NULL;
}

/* Events of these kinds hold pointers, which are valid until the next poll. */
static bool points(const struct perigee_event *e) {
  return e->kind == PERIGEE_EVENT_REQUEST || e->kind == PERIGEE_EVENT_LANDING ||
         e->kind == PERIGEE_EVENT_REPLY ||
         e->kind == PERIGEE_EVENT_REPLY_LANDING;
}

void poll_side(struct pair *p, int side) {
  int n = p->kept[side];
  if (!p->engine[side] || p->still[side] || n == INBOX ||
      (n && points(&p->inbox[side][n - 1])))
    return;
  p->kept[side] += perigee_poll(p->engine[side], &p->inbox[side][n], 1);
}

/* Polls both sides until this one has an event, for at most 20 s. */
static bool event(struct pair *p, int side) {
  int64_t end = clock_now() + 20000 * MS;
  for (int i = 0; p->kept[side] == 0; i++) {
    poll_side(p, 0);
    poll_side(p, 1);
    if (i % 1000 == 0 && clock_now() > end)
      return false;
  }
  return true;
}

static struct perigee_event take(struct pair *p, int side) {
  struct perigee_event first = p->inbox[side][0];
  p->kept[side]--;
  memmove(p->inbox[side], p->inbox[side] + 1,
          (size_t)p->kept[side] * sizeof first);
  return first;
}

bool taken(struct pair *p, int side, struct perigee_event *e) {
  if (p->kept[side] == 0)
    return false;
  *e = take(p, side);
  return true;
}

struct perigee_event any_event(struct pair *p, int side) {
  if (!event(p, side))
    fail_msg("no event on side %d", side);
  return take(p, side);
}

struct perigee_event until(struct pair *p, int side, int kind) {
  if (!event(p, side))
    fail_msg("no event %d on side %d", kind, side);
  struct perigee_event e = take(p, side);
  if (e.kind != kind)
    fail_msg("event %d with %s, not %d, on side %d", e.kind,
             perigee_status_name(e.status), kind, side);
  return e;
}

void quiet(struct pair *p, int rounds) {
  for (int i = 0; i < rounds; i++)
    for (int side = 0; side < 2; side++) {
      poll_side(p, side);
      if (p->kept[side])
        fail_msg("an event %d with %s on side %d", p->inbox[side][0].kind,
                 perigee_status_name(p->inbox[side][0].status), side);
    }
}

uint64_t operations(struct pair *p, int side) {
  return perigee_counters(p->engine[side], NULL)->operations;
}

void settle(struct pair *p) {
  int64_t end = clock_now() + 20000 * MS;
  while (operations(p, 0) + operations(p, 1) > 0) {
    quiet(p, 1);
    if (clock_now() > end)
      fail_msg("%d and %d operations are left", (int)operations(p, 0),
               (int)operations(p, 1));
  }
}

void pair_dial(struct pair *p, struct perigee_session *session[2]) {
  int dial = perigee_connect(p->engine[0], p->address, p->variant->transport,
                             20000 * MS);
  assert_true(dial >= 0);
  struct perigee_event up = until(p, 1, PERIGEE_EVENT_ACCEPTED);
  session[1] = perigee_session(p->engine[1], up.session);
  struct perigee_event e = until(p, 0, PERIGEE_EVENT_CONNECTED);
  assert_int_equal(e.status, 0);
  assert_int_equal(e.operation, dial);
  session[0] = perigee_session(p->engine[0], e.session);
}

static int pairs;
static pid_t program; /* of which its children have the number, too */

__attribute__((constructor)) static void paths_begin(void) {
  program = getpid();
}

/* Children that were killed have left theirs. */
__attribute__((destructor)) static void paths_remove(void) {
  char pattern[64];
  glob_t all;
  if (getpid() != program)
    return;
  snprintf(pattern, sizeof pattern, "/tmp/perigee-spec-%d-*", program);
  if (glob(pattern, GLOB_NOSORT, NULL, &all) != 0)
    return;
  for (size_t i = 0; i < all.gl_pathc; i++)
    unlink(all.gl_pathv[i]);
  globfree(&all);
}

const char *pair_path_next(void) {
  static char path[64];
  snprintf(path, sizeof path, "/tmp/perigee-spec-%d-%d-%d", program, getpid(),
           pairs);
  return path;
}

/* A variant over TCP is dialed at a TCP address, too. */
void pair_listen(struct pair *p) {
  char address[80] = "tcp://127.0.0.1:0";
  if (!over(p->variant, "tcp")) {
    memcpy(p->path, pair_path_next(), sizeof p->path);
    pairs++;
    unlink(p->path); /* left by a killed process that had our pid */
    snprintf(address, sizeof address, "unix:%s", p->path);
  }
  assert_int_equal(perigee_listen(p->engine[1], address, &p->listener), 0);
  snprintf(p->address, sizeof p->address, "%s",
           perigee_listener_address(p->listener));
}

void pair_open_with(struct pair *p, void *state,
                    const struct perigee_options *options) {
  *p = (struct pair){.variant = state};
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_engine_open(options, &p->engine[i]), 0);
  pair_listen(p);
  pair_dial(p, p->session);
}

void pair_open(struct pair *p, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  pair_open_with(p, state, &o);
}

void pair_drop(struct pair *p) {
  perigee_engine_close(p->engine[0]);
  perigee_engine_close(p->engine[1]);
}

void pair_close(struct pair *p) {
  settle(p);
  quiet(p, 2); /* returns the memory that events pointed to */
  for (int i = 0; i < 2; i++) {
    assert_int_equal(perigee_counters(p->engine[i], NULL)->pooled, 0);
    if (p->session[i])
      assert_int_equal(lent_bytes(p->session[i]), 0);
  }
  pair_drop(p);
}

struct perigee_event ended(struct pair *p, int side, int op, int status) {
  assert_true(op >= 0 && op != PERIGEE_INLINE);
  if (!event(p, side))
    fail_msg("operation %d does not end", op);
  struct perigee_event e = take(p, side);
  if (e.kind < PERIGEE_EVENT_REPLY && e.kind != PERIGEE_EVENT_CONNECTED)
    fail_msg("event %d is no end", e.kind);
  assert_int_equal(e.operation, op);
  if (e.status != status)
    fail_msg("it ended in %s, not %s: %s", perigee_status_name(e.status),
             perigee_status_name(status), perigee_detail(p->engine[side]));
  return e;
}

void finish(struct pair *p, int op, int status) {
  if (op == PERIGEE_INLINE)
    assert_int_equal(status, 0);
  else
    ended(p, 0, op, status);
}

void finish_moved(struct pair *p, int op, uint64_t bytes) {
  if (op != PERIGEE_INLINE)
    assert_int_equal(ended(p, 0, op, PERIGEE_OK).length, bytes);
}

struct perigee_remote *look_up(struct pair *p, const char *name) {
  int op = perigee_lookup(p->session[0], name, -1);
  struct perigee_event e = ended(p, 0, op, 0);
  assert_non_null(e.pointer);
  return (struct perigee_remote *)(uintptr_t)e.pointer;
}

/* ---- Memory ------------------------------------------------------------- */

uint32_t any_seed = 1;

uint32_t any_below(uint32_t most) {
  any_seed = any_seed * 1664525 + 1013904223;
  return (any_seed >> 8) % most;
}

uint8_t *pattern(uint64_t length, uint8_t seed) {
  uint8_t *bytes = malloc(length + 1);
  for (uint64_t i = 0; i < length; i++)
    bytes[i] = (uint8_t)(i * 7 + (i >> 8) + (i >> 16) * 3 + seed);
  return bytes;
}

struct perigee_region *region_of(struct pair *p, int side, const char *name,
                                 uint64_t length, int access) {
  struct perigee_region *region = NULL;
  int status = perigee_region_alloc(p->engine[side], name, length ? length : 1,
                                    access, p->variant->memory, &region);
  assert_int_equal(status, 0);
  return region;
}

void fill(struct perigee_region *region, uint64_t offset, const void *bytes,
          uint64_t length) {
  assert_int_equal(perigee_region_write(region, offset, bytes, length), 0);
}

static uint8_t *bytes_of(struct perigee_region *region, uint64_t offset,
                         uint64_t length) {
  uint8_t *bytes = malloc(length + 1);
  assert_int_equal(perigee_region_read(region, offset, bytes, length), 0);
  return bytes;
}

void same(struct perigee_region *region, uint64_t offset, const void *bytes,
          uint64_t length) {
  uint8_t *got = bytes_of(region, offset, length);
  if (memcmp(got, bytes, length) != 0)
    assert_memory_equal(got, bytes, length);
  free(got);
}

enum { CHUNK = 64 << 10 };

static uint64_t chunk_of(struct perigee_region *region, uint64_t at) {
  uint64_t left = perigee_region_length(region) - at;
  return left < CHUNK ? left : CHUNK;
}

void fill_byte(struct perigee_region *region, int byte) {
  static uint8_t bytes[CHUNK];
  uint64_t n;
  memset(bytes, byte, CHUNK);
  for (uint64_t at = 0; (n = chunk_of(region, at)) > 0; at += n)
    fill(region, at, bytes, n);
}

void all_byte(struct perigee_region *region, int byte) {
  static uint8_t wanted[CHUNK];
  uint64_t n;
  memset(wanted, byte, CHUNK);
  for (uint64_t at = 0; (n = chunk_of(region, at)) > 0; at += n)
    same(region, at, wanted, n);
}

void none_byte(struct perigee_region *region, int byte) {
  static uint8_t bytes[CHUNK];
  uint64_t n;
  for (uint64_t at = 0; (n = chunk_of(region, at)) > 0; at += n) {
    assert_int_equal(perigee_region_read(region, at, bytes, n), 0);
    assert_null(memchr(bytes, byte, n));
  }
}

void region_end(struct perigee_region *region) {
  assert_int_equal(perigee_region_close(region, false), 0);
}

struct perigee_slice all_of(struct perigee_region *region, uint64_t length) {
  return (struct perigee_slice){{region}, 0, length, 1, length};
}
