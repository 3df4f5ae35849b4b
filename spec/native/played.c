/* SPDX-License-Identifier: Apache-2.0 */
#include "played.h"
#include "session/sessions.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- The scene -------------------------------------------------------------- */

void played_look(struct played *s, int polls) {
  struct perigee_event e;
  while (polls-- > 0 && s->lost.kind == 0)
    if (hand_poll(&s->hand, &e, 1) == 1) {
      if (e.kind == PERIGEE_EVENT_LOST)
        s->lost = e;
      if (e.kind == PERIGEE_EVENT_DONE)
        s->done = e;
    }
}

int played_open_with(void **state, uint64_t features,
                     int64_t (*clock)(void *context)) {
  static const struct perigee_memory *const memories[] = {
      &perigee_memory_opaque, NULL};
  struct played *s = *state = calloc(1, sizeof *s);
  struct perigee_options o;
  perigee_options_init(&o, sizeof o);
  o.secret = "sixteen letters of secret";
  o.memories = memories;
  if (clock)
    o.clock = clock;
  assert_int_equal(perigee_engine_open(&o, &s->engine), 0);
  assert_int_equal(
      perigee_region_alloc(s->engine, "region", SIZE, 3, NULL, &s->region), 0);
  memset(perigee_region_pointer(s->region), BEFORE, SIZE);
  hand_come(&s->hand, s->engine, true);
  s->hand.features = features;
  assert_true(hand_open(&s->hand, s->engine->secret));
  played_look(s, 8);
  hand_drop(&s->hand);
  return 0;
}

int played_open(void **state) {
  return played_open_with(state, 0, NULL);
}

int played_close(void **state) {
  struct played *s = *state;
  hand_close(&s->hand);
  perigee_engine_close(s->engine);
  free(s);
  return 0;
}

void played_lost_by(struct played *s, int status) {
  played_look(s, 4096);
  assert_int_equal(s->lost.kind, PERIGEE_EVENT_LOST);
  assert_int_equal(s->lost.status, status);
}

void played_goes_on(struct played *s) {
  played_look(s, 64);
  assert_int_equal(s->lost.kind, 0);
  assert_int_equal(s->hand.session->state, PERIGEE_SESSION_OPEN);
}

/* ---- What is said ------------------------------------------------------------ */

static void tell_record(struct played *s, struct record *r,
                        const struct access *a) {
  uint8_t bytes[256] = {0};
  r->remaining = RECORD_NO_LIMIT;
  r->flags |= RECORD_SLICE | RECORD_SLICE_BULK;
  r->slice_source =
      (struct source){1, r->slice_length, r->slice_length, 1, r->slice_length};
  struct tcp_head h = {.type = TCP_RECORD, .length = (uint32_t)record_size(r)};
  record_encode(r, bytes);
  if (a)
    memcpy(record_head(r, bytes), a, sizeof *a);
  hand_lane(&s->hand, &h, sizeof h);
  hand_lane(&s->hand, bytes, h.length);
}

void played_tell_write(struct played *s, uint64_t length) {
  struct record r = {.kind = RECORD_WRITE,
                     .operation = 1,
                     .generation = 1,
                     .head_length = sizeof(struct access),
                     .slice_length = length};
  struct access a = {s->region->slot, s->region->generation, 0, length, 1,
                     length};
  tell_record(s, &r, &a);
}

void played_tell_empty_read(struct played *s, uint64_t count) {
  struct record r = {.kind = RECORD_READ,
                     .operation = 1,
                     .generation = 1,
                     .head_length = sizeof(struct access)};
  struct access a = {s->region->slot, s->region->generation, 0, 0, count, 0};
  tell_record(s, &r, &a);
}

void played_tell_message(struct played *s, uint64_t length) {
  struct record r = {.kind = RECORD_SEND,
                     .operation = 1,
                     .generation = 1,
                     .slice_length = length};
  tell_record(s, &r, NULL);
}

struct tcp_head played_piece(uint64_t at, uint32_t length) {
  return (struct tcp_head){.length = length,
                           .type = TCP_FRAGMENT,
                           .which = PART_EAGER | 1,
                           .operation = 1,
                           .generation = 1,
                           .at = at};
}

void played_tell_piece(struct played *s, uint64_t at, uint32_t length,
                       uint64_t word) {
  static const uint8_t zeros[SIZE];
  struct tcp_head h = played_piece(at, length);
  hand_lane(&s->hand, &h, sizeof h);
  hand_lane(&s->hand, zeros, length);
  hand_lane(&s->hand, &word, sizeof word);
}

void played_tell_word(struct played *s, struct tcp_head h) {
  hand_lane(&s->hand, &h, sizeof h);
}

void played_post_opaque(struct played *s, struct perigee_region **region) {
  assert_int_equal(
      perigee_region_alloc(s->engine, NULL, SIZE, 0, "opaque", region), 0);
  struct perigee_slice all = {{*region}, 0, SIZE, 1, SIZE};
  assert_true(perigee_recv(s->hand.session, &all, -1) >= 0);
}

void played_tell_on(int fd, const void *bytes, uint32_t length) {
  assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
}

int played_silent_stream(struct played *s, uint32_t number, int status) {
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair),
                   0);
  assert_int_equal(attach_give(s->hand.session, number, pair[1], NULL, 0),
                   status);
  return pair[0];
}

int played_stream(struct played *s, uint32_t number, int status) {
  const struct tcp_head word = {.type = TCP_WORD};
  int fd = played_silent_stream(s, number, status);
  if (status == 0)
    played_tell_on(fd, &word, sizeof word);
  return fd;
}
