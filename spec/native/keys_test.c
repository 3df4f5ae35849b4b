/* SPDX-License-Identifier: Apache-2.0
 *
 * keys_test.c - keys of regions, as a malicious peer may write them: look-ups
 * are answered here by hand. A key that is not the lane's, or whose memory may
 * not be mapped, ends the look-up or the session with a fitting status. Nothing
 * stays open, mapped or counted, and no key reaches another region.
 */
#include "core/engine.h"
#include "raw_peer.h"
#include "support_inside.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH = 64 * KIB, BOTH = PERIGEE_READ | PERIGEE_WRITE };
enum { SIZES = F_SEAL_SHRINK | F_SEAL_GROW };

/* ---- The scene ------------------------------------------------------------ */

/* Side 1 does not poll while a look-up of side 0 waits: the test answers it. */
struct scene {
  struct pair p;
  struct perigee_region *there, *here;
  int fds;
  uint64_t mapped;
};

static uint64_t mapped(const struct scene *s) {
  return s->p.session[0]->account.share->used[SHARE_MAPPED];
}

static void open_scene(struct scene *s, void *state) {
  struct perigee_options o;
  variant_options(state, &o);
  o.mapped = UINT64_C(1) << 40;
  pair_open_with(&s->p, state, &o);
  s->there = region_of(&s->p, 1, "there", LENGTH, BOTH);
  s->here = region_of(&s->p, 0, NULL, LENGTH, 0);
  fill_byte(s->here, 7);
  s->fds = descriptors();
  s->mapped = mapped(s);
}

static void close_scene(struct scene *s) {
  s->p.still[1] = false;
  settle(&s->p);
  region_end(s->there);
  region_end(s->here);
  pair_close(&s->p);
}

static void nothing_is_left(const struct scene *s) {
  assert_int_equal(descriptors(), s->fds);
  assert_int_equal(mapped(s), s->mapped);
}

static int asks(struct scene *s) {
  s->p.still[1] = true;
  int op = perigee_lookup(s->p.session[0], "there", -1);
  assert_true(op >= 0);
  return op;
}

/* An answer to the look-up that describes the region truly, without keys. */
static struct frame answer(struct scene *s, int op) {
  struct frame f = {.type = FRAME_FOUND};
  f.found =
      (struct found){.operation = (uint32_t)op,
                     .generation = generation_at(s->p.engine[0], (uint32_t)op),
                     .slot = s->there->slot,
                     .region = s->there->generation,
                     .length = s->there->length,
                     .access = BOTH};
  return f;
}

static void adds_key(struct frame *f, uint32_t lane, uint32_t fds,
                     uint32_t length) {
  struct found_key *k = &f->found.key[f->found.keys++];
  k->lane = lane;
  k->key.fd_count = fds;
  k->key.length = length;
  memset(k->key.bytes, 0x5a, length);
  f->found.fds += (uint16_t)fds;
}

static void says(struct scene *s, const struct frame *f, const int *fds,
                 uint32_t count) {
  say_frame(s->p.session[1]->socket.fd, f, fds, count);
}

/* The session goes on, and the owner's own answer is accepted. */
static void is_found_after_all(struct scene *s) {
  s->p.still[1] = false;
  struct perigee_remote *r = look_up(&s->p, "there");
  struct perigee_transfer t = {.local = all_of(s->here, 8),
                               .remote = {{.remote = r}, 0, 8, 1, 8}};
  finish(&s->p,
         perigee_transfer(s->p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1), 0);
  assert_int_equal(*perigee_region_pointer(s->there), 7);
}

static void look_up_ends(struct scene *s, int op, int status) {
  ended(&s->p, 0, op, status);
  nothing_is_left(s);
  is_found_after_all(s);
}

static void session_ends(struct scene *s, int op) {
  struct perigee_event e = until(&s->p, 0, PERIGEE_EVENT_DONE);
  assert_int_equal(e.operation, op);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  e = until(&s->p, 0, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  s->fds--; /* its socket */
  nothing_is_left(s);
  s->p.still[1] = false;
  until(&s->p, 1, PERIGEE_EVENT_LOST);
}

/* ---- Descriptors ------------------------------------------------------------ */

static int memory_of(uint64_t length, int seals) {
  int fd = memfd_create("key", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

static int socket_of(void) {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int file_of(void) {
  int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  assert_int_equal(ftruncate(fd, LENGTH), 0);
  return fd;
}

/* Answers that the region has so many bytes, with a key that has only this
 * descriptor. */
static void answered_of(void **state, int fd, uint64_t length, int status) {
  struct scene s;
  open_scene(&s, *state);
  s.fds--; /* this one */
  int op = asks(&s);
  struct frame f = answer(&s, op);
  f.found.length = length;
  adds_key(&f, 0, 1, 0);
  says(&s, &f, &fd, 1);
  close(fd);
  look_up_ends(&s, op, status);
  close_scene(&s);
}

static void answered_with(void **state, int fd, int status) {
  answered_of(state, fd, LENGTH, status);
}

static void what_is_no_memory_is_not_mapped(void **state) {
  answered_with(state, socket_of(), PERIGEE_PROTOCOL);
  answered_with(state, file_of(), PERIGEE_PROTOCOL);
}

static void memory_whose_size_may_change_is_not_mapped(void **state) {
  answered_with(state, memory_of(LENGTH, 0), PERIGEE_PROTOCOL);
  answered_with(state, memory_of(LENGTH, F_SEAL_GROW), PERIGEE_PROTOCOL);
  answered_with(state, memory_of(LENGTH, F_SEAL_SHRINK), PERIGEE_PROTOCOL);
}

static void memory_that_ends_before_the_region_is_not_mapped(void **state) {
  answered_with(state, memory_of(LENGTH - 4096, SIZES), PERIGEE_PROTOCOL);
  answered_with(state, memory_of(0, SIZES), PERIGEE_PROTOCOL);
}

static void
who_grants_what_the_memory_does_not_allow_is_not_believed(void **state) {
  answered_with(state, memory_of(LENGTH, SIZES | F_SEAL_FUTURE_WRITE),
                PERIGEE_PROTOCOL);
}

/* A sparse file costs only address space. */
static void more_than_the_share_of_the_peer_is_not_mapped(void **state) {
  uint64_t length = UINT64_C(1) << 40;
  answered_of(state, memory_of(length, SIZES), length, PERIGEE_NO_MEMORY);
}

/* ---- Keys ------------------------------------------------------------------- */

/* Answers with a key of the lane that has so many valid descriptors, and
 * bytes. */
static void answered_by(void **state, uint32_t count, uint32_t length) {
  struct scene s;
  int fds[WIRE_FDS];
  open_scene(&s, *state);
  int op = asks(&s);
  struct frame f = answer(&s, op);
  adds_key(&f, 0, count, length);
  for (uint32_t i = 0; i < count; i++)
    fds[i] = memory_of(LENGTH, SIZES);
  says(&s, &f, fds, count);
  for (uint32_t i = 0; i < count; i++)
    close(fds[i]);
  look_up_ends(&s, op, PERIGEE_PROTOCOL);
  close_scene(&s);
}

static void a_key_of_another_form_is_none_of_the_lanes(void **state) {
  answered_by(state, 0, 0);
  answered_by(state, 2, 0);
  answered_by(state, WIRE_FDS, 0);
  answered_by(state, 1, 8);
  answered_by(state, 0, KEY_MAX);
}

/* Answers with a valid key, and one for a lane that does not exist. */
static void a_key_is_for_a_lane_that_there_is(void **state) {
  const uint32_t lanes[] = {1, FOUND_KEYS, 255};
  int fd = memory_of(LENGTH, SIZES);
  for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
    struct scene s;
    open_scene(&s, *state);
    int op = asks(&s);
    struct frame f = answer(&s, op);
    adds_key(&f, 0, 1, 0);
    adds_key(&f, lanes[i], 0, 16);
    says(&s, &f, &fd, 1);
    session_ends(&s, op);
    s.p.session[0] = s.p.session[1] = NULL;
    close_scene(&s);
  }
  close(fd);
}

static void descriptors_that_do_not_come_end_the_session(void **state) {
  int fd = memory_of(LENGTH, SIZES);
  for (uint32_t came = 0; came < 2; came++) {
    struct scene s;
    open_scene(&s, *state);
    int op = asks(&s);
    struct frame f = answer(&s, op);
    adds_key(&f, 0, came + 1, 0);
    says(&s, &f, &fd, came);
    session_ends(&s, op);
    s.p.session[0] = s.p.session[1] = NULL;
    close_scene(&s);
  }
  close(fd);
}

/* Answers with these bytes, of which one is changed. */
static void answered_badly(void **state, uint32_t at, uint8_t value) {
  struct scene s;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  open_scene(&s, *state);
  int op = asks(&s);
  struct frame f = answer(&s, op);
  adds_key(&f, 0, 0, KEY_MAX);
  uint32_t length = wire_encode(&f, bytes);
  bytes[at] = value;
  say(s.p.session[1]->socket.fd, bytes, length, NULL, 0);
  session_ends(&s, op);
  s.p.session[0] = s.p.session[1] = NULL;
  close_scene(&s);
}

static void a_key_that_is_too_long_ends_the_session(void **state) {
  const uint32_t key = FRAME_HEAD + offsetof(struct found, key);
  answered_badly(state, key + 2, KEY_MAX + 1);
  answered_badly(state, key + 3, 1);
  answered_badly(state, key + 2, KEY_MAX - 1); /* a byte is left over */
}

/* ---- Whose region it is ----------------------------------------------------- */

static struct perigee_remote *adopted_as(struct scene *s, uint64_t generation,
                                         int fd) {
  int op = asks(s);
  struct frame f = answer(s, op);
  f.found.region = generation;
  adds_key(&f, 0, 1, 0);
  says(s, &f, &fd, 1);
  struct perigee_event e = ended(&s->p, 0, op, PERIGEE_OK);
  s->p.still[1] = false;
  return (struct perigee_remote *)(uintptr_t)e.pointer;
}

static int writes(struct scene *s, struct perigee_remote *r) {
  struct perigee_transfer t = {.local = all_of(s->here, 8),
                               .remote = {{.remote = r}, 0, 8, 1, 8}};
  return perigee_transfer(s->p.session[0], PERIGEE_OP_WRITE, &t, 1, 0, -1);
}

static void a_key_of_an_older_life_is_stale(void **state) {
  struct scene s;
  int fd = memory_of(LENGTH, SIZES);
  open_scene(&s, *state);
  is_found_after_all(&s); /* granted, as it is now */
  fill_byte(s.there, 1);
  struct perigee_remote *old =
      adopted_as(&s, s.there->generation - 1, s.there->fd);
  struct perigee_remote *other = adopted_as(&s, s.there->generation + 1, fd);
  assert_int_equal(writes(&s, old), PERIGEE_STALE);
  assert_int_equal(writes(&s, other), PERIGEE_STALE);
  all_byte(s.there, 1);
  close(fd);
  close_scene(&s);
}

/* A descriptor without a key is how older builds describe shared memory. */
static void an_answer_of_an_older_build_is_a_key_too(void **state) {
  enum { MAPPED = FRAME_HEAD + 36, KEYED = FRAME_HEAD + 38 };
  struct scene s;
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  open_scene(&s, *state);
  is_found_after_all(&s); /* granted, as each region is before its answer */
  int op = asks(&s);
  struct frame f = answer(&s, op);
  uint32_t length = wire_encode(&f, bytes);
  assert_int_equal(length, FRAME_HEAD + 40);
  bytes[MAPPED] = 1;
  assert_int_equal(bytes[KEYED], 0);
  say(s.p.session[1]->socket.fd, bytes, length, &s.there->fd, 1);
  struct perigee_event e = ended(&s.p, 0, op, PERIGEE_OK);
  struct perigee_remote *r = (struct perigee_remote *)(uintptr_t)e.pointer;
  is_found_after_all(&s); /* granted */
  assert_int_equal(writes(&s, r), PERIGEE_INLINE);
  assert_int_equal(descriptors(), s.fds + 1); /* not all of it is there yet */
  assert_int_equal(mapped(&s), s.mapped + LENGTH);
  close_scene(&s);
}

/* One key was asked for: repeated or late ones are released. */
static void an_answer_that_nobody_waits_for_is_dropped(void **state) {
  struct scene s;
  int fd = memory_of(LENGTH, SIZES);
  open_scene(&s, *state);
  int op = asks(&s);
  struct frame f = answer(&s, op);
  adds_key(&f, 0, 1, 0);
  f.found.generation--;
  for (int i = 0; i < 3; i++)
    says(&s, &f, &fd, 1);
  for (int i = 0; i < 200; i++)
    poll_side(&s.p, 0);
  nothing_is_left(&s);
  s.p.still[1] = false;
  ended(&s.p, 0, op, PERIGEE_OK);
  close(fd);
  close_scene(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER(variant_default, what_is_no_memory_is_not_mapped),
      OVER(variant_default, memory_whose_size_may_change_is_not_mapped),
      OVER(variant_default, memory_that_ends_before_the_region_is_not_mapped),
      OVER(variant_default,
           who_grants_what_the_memory_does_not_allow_is_not_believed),
      OVER(variant_default, more_than_the_share_of_the_peer_is_not_mapped),
      OVER(variant_default, a_key_of_another_form_is_none_of_the_lanes),
      OVER(variant_default, a_key_is_for_a_lane_that_there_is),
      OVER(variant_default, descriptors_that_do_not_come_end_the_session),
      OVER(variant_default, a_key_that_is_too_long_ends_the_session),
      OVER(variant_default, a_key_of_an_older_life_is_stale),
      OVER(variant_default, an_answer_of_an_older_build_is_a_key_too),
      OVER(variant_default, an_answer_that_nobody_waits_for_is_dropped),
  };
  return cmocka_run_group_tests_name("keys", tests, NULL, NULL);
}
