/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_keys_test.c - the RDMA transport's checks of what any peer says: keys of
 * regions, and resets of queue pairs. No device is needed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transport/verbs/verbs.h"

enum { LENGTH = 1 << 20, BOTH = PERIGEE_READ | PERIGEE_WRITE };
enum { SLOT = 5, ID = ID_REGION + SLOT };

static struct window window_of(uint64_t generation) {
  return (struct window){
      .slot = SLOT, .generation = generation, .length = LENGTH, .access = BOTH};
}

static struct region_key rkeys_of(uint64_t base) {
  struct verbs_key said = {.base = base, .rkey = {1, 2, 3}};
  struct region_key key = {.length = sizeof said};
  memcpy(key.bytes, &said, sizeof said);
  return key;
}

static void tells(struct lane *lane, enum note_kind kind, uint64_t generation) {
  struct note note = {.kind = (uint8_t)kind,
                      .operation = ID,
                      .value = generation,
                      .base = 4096,
                      .length = LENGTH};
  grant_heard(lane, &note);
}

static int attaches(struct lane *lane, uint64_t generation,
                    const struct region_key *key) {
  struct window w = window_of(generation);
  return transport_verbs.access->attach(lane, &w, key);
}

static void rdma_keys_have_one_form(void **state) {
  static struct lane lane;
  (void)state;
  struct region_key good = rkeys_of(4096), key;
  const uint32_t lengths[] = {1, sizeof(struct verbs_key) - 1,
                              sizeof(struct verbs_key) + 1, KEY_MAX};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    key = good;
    key.length = lengths[i];
    assert_int_equal(attaches(&lane, 9, &key), PERIGEE_PROTOCOL);
  }
  key = good;
  key.fd_count = 1;
  assert_int_equal(attaches(&lane, 9, &key), PERIGEE_PROTOCOL);
  key = good;
  key.bytes[offsetof(struct verbs_key, zero)] = 1;
  assert_int_equal(attaches(&lane, 9, &key), PERIGEE_PROTOCOL);
  key = rkeys_of(UINT64_MAX - LENGTH + 1);
  assert_int_equal(attaches(&lane, 9, &key), PERIGEE_PROTOCOL);
  assert_int_equal(attaches(&lane, 0, &good), PERIGEE_PROTOCOL);
  assert_null(remote_key_find(&lane, ID));
  key = (struct region_key){.length = 0};
  assert_int_equal(attaches(&lane, 9, &key), PERIGEE_OK);
  assert_null(remote_key_find(&lane, ID)); /* a note will tell */
  assert_int_equal(attaches(&lane, 9, &good), PERIGEE_OK);
  assert_int_equal(remote_key_find(&lane, ID)->rkey[2], 3);
  remote_keys_close(&lane);
}

/* Keys come over the session's socket, notes over the lane. */
static void notes_and_rdma_keys_may_overtake_each_other(void **state) {
  static struct lane lane;
  (void)state;
  struct region_key key = rkeys_of(8192);
  tells(&lane, NOTE_GRANT, 3);
  tells(&lane, NOTE_REVOKE, 3);
  assert_int_equal(attaches(&lane, 3, &key), PERIGEE_OK);
  assert_true(remote_key_find(&lane, ID)->revoked);
  assert_int_equal(attaches(&lane, 5, &key), PERIGEE_OK);
  assert_false(remote_key_find(&lane, ID)->revoked);
  tells(&lane, NOTE_GRANT, 4);
  tells(&lane, NOTE_REVOKE, 4);
  assert_int_equal(attaches(&lane, 4, &key), PERIGEE_OK);
  assert_int_equal(remote_key_find(&lane, ID)->generation, 5);
  assert_int_equal(remote_key_find(&lane, ID)->base, 8192);
  assert_false(remote_key_find(&lane, ID)->revoked);
  remote_keys_close(&lane);
}

static int device_obeys(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask) {
  (void)qp, (void)a, (void)mask;
  return 0;
}

static int nobody_is_told(struct perigee_session *session, const void *bytes,
                          uint32_t length) {
  (void)session, (void)bytes, (void)length;
  return PERIGEE_OK;
}

static int nobody_takes_it(struct perigee_session *session, const void *bytes,
                           uint32_t length) {
  (void)session, (void)bytes, (void)length;
  return PERIGEE_AGAIN;
}

/* A lane with one data pair, which has been reset once. */
static struct lane *lane_of_pairs(void) {
  static const struct verbs_library lib = {.modify_qp = device_obeys};
  static struct fabric fabric = {.lib = &lib};
  static struct rail rail = {.fabric = &fabric};
  static struct ibv_qp qp;
  static struct lane lane;
  lane = (struct lane){.pair_count = 2, .options.tell = nobody_is_told};
  lane.pairs[1] = (struct pair){.lane = &lane,
                                .rail = &rail,
                                .qp = &qp,
                                .index = 1,
                                .state = PAIR_UP,
                                .epoch = 1};
  return &lane;
}

static int hears_of_reset(struct lane *lane, uint32_t epoch) {
  const uint32_t half[] = {1, epoch, 0, 0}; /* pair, epoch, psn, ready */
  return transport_verbs.heard(lane, half, sizeof half, -1);
}

static void a_pair_follows_its_peer_by_one_reset_at_a_time(void **state) {
  (void)state;
  struct lane *lane = lane_of_pairs();
  const uint32_t ahead[] = {2, 1000, INT32_MAX};
  for (size_t i = 0; i < sizeof ahead / sizeof *ahead; i++) {
    assert_int_equal(hears_of_reset(lane, 1 + ahead[i]), PERIGEE_PROTOCOL);
    assert_int_equal(lane->pairs[1].epoch, 1);
  }
  assert_int_equal(hears_of_reset(lane, 1), PERIGEE_OK);
  assert_int_equal(hears_of_reset(lane, 0), PERIGEE_OK);
  assert_int_equal(lane->pairs[1].epoch, 1);
  assert_int_equal(hears_of_reset(lane, 2), PERIGEE_OK);
  assert_int_equal(lane->pairs[1].epoch, 2);
}

static void a_reset_that_cannot_be_told_breaks_the_lane(void **state) {
  (void)state;
  struct lane *lane = lane_of_pairs();
  const char *reason = "";
  lane->options.tell = nobody_takes_it;
  pair_reset(&lane->pairs[1], NULL);
  assert_int_equal(transport_verbs.broken(lane, &reason), PERIGEE_PROTOCOL);
  assert_non_null(strstr(reason, "does not take what it is told"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rdma_keys_have_one_form),
      cmocka_unit_test(notes_and_rdma_keys_may_overtake_each_other),
      cmocka_unit_test(a_pair_follows_its_peer_by_one_reset_at_a_time),
      cmocka_unit_test(a_reset_that_cannot_be_told_breaks_the_lane),
  };
  return cmocka_run_group_tests_name("verbs_keys", tests, NULL, NULL);
}
