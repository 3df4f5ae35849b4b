/* SPDX-License-Identifier: Apache-2.0
 *
 * misuse_test.c - what a program must not hand over is refused, with a sentence,
 * before anything is sent: NULL in place of what has to be there, and typed data
 * that are none.
 */
#include <string.h>

#include "support.h"

enum { SIZE = 4096, LONG = 300 };

static void refused(struct pair *p, int side, int status, const char *why) {
  assert_int_equal(status, PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(p->engine[side]), why));
}

/* ---- NULL ---------------------------------------------------------------- */

static void there_is_an_address(void **state) {
  struct pair p;
  struct perigee_listener *listener;
  pair_open(&p, *state);
  struct perigee_engine *e = p.engine[0];
  refused(&p, 0, perigee_listen(e, NULL, &listener), "no address");
  refused(&p, 0, perigee_connect(e, NULL, NULL, -1), "no address");
  refused(&p, 0, perigee_connect_to(e, NULL, "name", NULL, -1), "no address");
  refused(&p, 0, perigee_lookup(p.session[0], NULL, -1), "no name");
  pair_close(&p);
}

static void a_wait_is_for_some_engines(void **state) {
  static struct perigee_engine *many[65];
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 65; i++)
    many[i] = p.engine[0];
  assert_int_equal(perigee_wait(many, 64, 0), 0);
  refused(&p, 0, perigee_wait(many, 65, 0), "at most 64 engines, not 65");
  assert_int_equal(perigee_wait(many, 0, 0), PERIGEE_INVALID);
  assert_string_equal(perigee_detail(NULL), "there is no engine to wait for");
  assert_int_equal(perigee_wait(NULL, 1, 0), PERIGEE_INVALID);
  pair_close(&p);
}

static void an_endpoint_is_connected_to_another(void **state) {
  struct pair p;
  struct perigee_endpoint *endpoint;
  pair_open(&p, *state);
  assert_int_equal(perigee_endpoint_open(p.engine[0], "inproc", &endpoint), 0);
  refused(&p, 0, perigee_endpoint_connect(endpoint, NULL, -1),
          "no information");
  perigee_endpoint_close(endpoint);
  pair_close(&p);
}

static void names_and_lists_are_there(void **state) {
  (void)state;
  const char *folder = "/tmp";
  char bytes[PERIGEE_CHANGED_MIN];
  assert_int_equal(perigee_folder(NULL), PERIGEE_INVALID);
  assert_int_equal(perigee_folder_look(NULL), PERIGEE_INVALID);
  assert_int_equal(perigee_name_hold(NULL, "x"), PERIGEE_INVALID);
  assert_int_equal(perigee_name_hold(folder, NULL), PERIGEE_INVALID);
  assert_int_equal(perigee_entry_write(0, NULL, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_entry_read(NULL, "x", bytes, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_entry_read(folder, NULL, bytes, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_names(NULL, bytes, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_names_watch(NULL), PERIGEE_INVALID);
  assert_int_equal(
      perigee_devices(NULL, NULL, sizeof(struct perigee_device), 1),
      PERIGEE_INVALID);
  assert_int_equal(perigee_gpus(NULL, NULL, sizeof(struct perigee_gpu), 1),
                   PERIGEE_INVALID);
  assert_int_equal(perigee_gpus(NULL, NULL, 0, 0), PERIGEE_INVALID);
  assert_int_equal(
      perigee_device_gids(NULL, NULL, 1, NULL, sizeof(struct perigee_gid), 0),
      PERIGEE_INVALID);
  assert_int_equal(perigee_wait(NULL, 1, 0), PERIGEE_INVALID);
  assert_int_equal(perigee_typed_scan(NULL, 1), PERIGEE_INVALID);
  assert_int_equal(perigee_typed_scan(NULL, 0), 0);
}

static void a_transfer_has_a_list_and_its_items_regions(void **state) {
  struct pair p;
  struct perigee_prepared *prepared;
  pair_open(&p, *state);
  struct perigee_session *s = p.session[0];
  struct perigee_region *there = region_of(&p, 1, "there", SIZE, PERIGEE_WRITE);
  struct perigee_region *here = region_of(&p, 0, NULL, SIZE, 0);
  const struct perigee_transfer whole = {
      .local = all_of(here, 8),
      .remote = {{.remote = look_up(&p, "there")}, 0, 8, 1, 8}};
  struct perigee_transfer list[2] = {whole, whole};
  refused(&p, 0, perigee_transfer(s, PERIGEE_OP_WRITE, NULL, 1, 0, -1),
          "no list");
  refused(&p, 0, perigee_prepare(s, PERIGEE_OP_WRITE, NULL, 1, 0, &prepared),
          "no list");
  for (uint32_t n = 1; n <= 2; n++) {
    list[n - 1].local.region = NULL;
    refused(&p, 0, perigee_transfer(s, PERIGEE_OP_WRITE, list, n, 0, -1),
            "no region");
    refused(&p, 0, perigee_prepare(s, PERIGEE_OP_WRITE, list, n, 0, &prepared),
            "no region");
    list[n - 1] = whole;
    list[n - 1].remote.remote = NULL;
    refused(&p, 0, perigee_transfer(s, PERIGEE_OP_WRITE, list, n, 0, -1),
            "no remote region");
    list[n - 1] = whole;
  }
  refused(&p, 0, perigee_region_read(here, 0, NULL, 1), "no host memory");
  refused(&p, 0, perigee_region_write(here, 0, NULL, 1), "no host memory");
  settle(&p);
  region_end(here);
  region_end(there);
  pair_close(&p);
}

static void a_message_has_a_slice_of_a_region(void **state) {
  struct pair p;
  const struct perigee_slice none = {.length = 8, .count = 1, .stride = 8};
  pair_open(&p, *state);
  for (int i = 0; i < 2; i++) {
    const struct perigee_slice *slice = i ? &none : NULL;
    refused(&p, 0, perigee_send(p.session[0], slice, -1), "no slice");
    refused(&p, 0, perigee_recv(p.session[0], slice, -1),
            i ? "no region" : "no slice");
  }
  pair_close(&p);
}

/* A request of side 0, which side 1 has got. */
static int request(struct pair *p, int *call) {
  struct perigee_message m = {.timeout = -1};
  *call = perigee_call(p->session[0], &m);
  return until(p, 1, PERIGEE_EVENT_REQUEST).operation;
}

static void a_head_of_some_length_is_there(void **state) {
  static const uint64_t lengths[] = {1, LONG, MIB};
  static const uint16_t flags[] = {0, PERIGEE_TYPED,
                                   PERIGEE_TYPED | PERIGEE_CHECKED};
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 9; i++) {
    struct perigee_message m = {
        .flags = flags[i % 3], .length = lengths[i / 3], .timeout = -1};
    refused(&p, 0, perigee_call(p.session[0], &m), "no head");
    for (int fails = 0; fails < 2; fails++) {
      int call, served = request(&p, &call);
      m.status = fails ? PERIGEE_REMOTE : PERIGEE_OK;
      refused(&p, 1, perigee_reply(p.engine[1], served, &m), "no head");
      ended(&p, 0, call, PERIGEE_INVALID);
    }
  }
  pair_close(&p);
}

/* ---- Typed data ---------------------------------------------------------- */

static const struct {
  const char *bytes;
  uint64_t length;
} malformed[] = {
    {"\x21", 1},               /* a text that is not there */
    {"\x05", 1},               /* no tag */
    {"\xff", 1},               /* half a tag */
    {"\x0a\x10", 2},           /* a list without its items */
    {"\x02\x09\x01\x02\0", 5}, /* nil in a pair */
};
enum { MALFORMED = sizeof malformed / sizeof *malformed };

/* These data, behind a text of that length (as tag, length and bytes). */
static struct perigee_message message_of(int number, uint64_t text) {
  static uint8_t bytes[2 * LONG];
  uint64_t at = 0;
  if (text > 0) {
    bytes[at++] = 0xe0 + ((text + 32 - 0xe0) >> 8);
    bytes[at++] = (uint8_t)(text + 32 - 0xe0);
    memset(bytes + at, 'x', text);
    at += text;
  }
  memcpy(bytes + at, malformed[number].bytes, malformed[number].length);
  at += malformed[number].length;
  return (struct perigee_message){
      .flags = PERIGEE_TYPED, .head = bytes, .length = at, .timeout = -1};
}

static uint64_t sent(struct pair *p, int side) {
  return perigee_counters(p->engine[side], p->session[side])->bytes_sent;
}

static void malformed_data_are_not_called_with(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 2 * MALFORMED; i++) {
    uint64_t before = sent(&p, 0);
    struct perigee_message m = message_of(i / 2, i % 2 ? LONG : 0);
    assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_PROTOCOL);
    quiet(&p, 5);
    assert_int_equal(sent(&p, 0), before);
  }
  pair_close(&p);
}

static void malformed_data_are_no_reply(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 2 * MALFORMED; i++) {
    int call, served = request(&p, &call);
    uint64_t before = sent(&p, 1);
    struct perigee_message m = message_of(i / 2, i % 2 ? LONG : 0);
    assert_int_equal(perigee_reply(p.engine[1], served, &m), PERIGEE_PROTOCOL);
    ended(&p, 0, call, PERIGEE_PROTOCOL);
    assert_int_equal(sent(&p, 1), before);
  }
  pair_close(&p);
}

static void malformed_data_do_not_follow_a_failures_text(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < MALFORMED; i++) {
    uint8_t bytes[16] = "why"; /* and a zero */
    memcpy(bytes + 4, malformed[i].bytes, malformed[i].length);
    struct perigee_message m = {.flags = PERIGEE_TYPED,
                                .status = PERIGEE_REMOTE,
                                .head = bytes,
                                .length = 4 + malformed[i].length};
    int call, served = request(&p, &call);
    assert_int_equal(perigee_reply(p.engine[1], served, &m), PERIGEE_PROTOCOL);
    ended(&p, 0, call, PERIGEE_PROTOCOL);
  }
  pair_close(&p);
}

/* The receiver believes nobody, and long data are checked for what they cost
 * anyway. */
static void who_vouches_for_malformed_data_is_not_believed(void **state) {
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < MALFORMED; i++) {
    struct perigee_message m = message_of(i, 0);
    m.flags |= PERIGEE_CHECKED;
    ended(&p, 0, perigee_call(p.session[0], &m), PERIGEE_PROTOCOL);
    int call, served = request(&p, &call);
    m = message_of(i, 0);
    m.flags |= PERIGEE_CHECKED;
    assert_int_equal(perigee_reply(p.engine[1], served, &m), 0);
    ended(&p, 0, call, PERIGEE_PROTOCOL);
    m = message_of(i, LONG);
    m.flags |= PERIGEE_CHECKED;
    assert_int_equal(perigee_call(p.session[0], &m), PERIGEE_PROTOCOL);
  }
  pair_close(&p);
}

/* A loan is sent as a raw head, whatever the message is of. */
static void a_loan_is_raw(void **state) {
  static const uint64_t lengths[] = {3, 64 * KIB};
  struct pair p;
  pair_open(&p, *state);
  for (int i = 0; i < 2; i++) {
    struct perigee_loan loan;
    struct perigee_message m = {.flags = PERIGEE_TYPED, .timeout = -1};
    assert_int_equal(perigee_call_begin(p.session[0], lengths[i], &loan), 0);
    memset(loan.pointer, 0xff, lengths[i]);
    int call = perigee_call_commit(p.session[0], &m, lengths[i]);
    struct perigee_event e = until(&p, 1, PERIGEE_EVENT_REQUEST);
    assert_int_equal(e.flags, 0);
    assert_int_equal(e.length, lengths[i]);
    const struct perigee_message none = {0};
    assert_int_equal(perigee_reply(p.engine[1], e.operation, &none), 0);
    ended(&p, 0, call, 0);
  }
  pair_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(there_is_an_address),
      cmocka_unit_test(a_wait_is_for_some_engines),
      cmocka_unit_test(an_endpoint_is_connected_to_another),
      cmocka_unit_test(names_and_lists_are_there),
      cmocka_unit_test(a_transfer_has_a_list_and_its_items_regions),
      cmocka_unit_test(a_message_has_a_slice_of_a_region),
      cmocka_unit_test(a_head_of_some_length_is_there),
      cmocka_unit_test(malformed_data_are_not_called_with),
      cmocka_unit_test(malformed_data_are_no_reply),
      cmocka_unit_test(malformed_data_do_not_follow_a_failures_text),
      cmocka_unit_test(who_vouches_for_malformed_data_is_not_believed),
      cmocka_unit_test(a_loan_is_raw),
  };
  return RUN_MATRIX("misuse", tests);
}
