/* SPDX-License-Identifier: Apache-2.0 */
#include "scenes.h"

#include <stdlib.h>
#include <string.h>

#include "session/sessions.h"
#include "support_inside.h"

/* ---- Time --------------------------------------------------------------- */

static int64_t offset;

static int64_t moved_clock(void *context) {
  (void)context;
  return clock_now() + offset;
}

void scene_later(int64_t time) {
  offset += time;
}

/* ---- Opening and closing ------------------------------------------------ */

void scene_open(struct scene *s, void *state, int64_t timeout) {
  struct perigee_options o;
  variant_options(state, &o);
  o.clock = moved_clock;
  o.dead_after = o.hello_timeout = 3600 * 1000 * MS; /* where time leaps */
  *s = (struct scene){.served = -1, .timeout = timeout};
  pair_open_with(&s->p, state, &o);
  s->bytes = pattern(4096, 99);
  s->mine = region_of(&s->p, 0, NULL, ROOM, 0);
  s->theirs = region_of(&s->p, 1, "theirs", ROOM, 3);
  for (int i = 0; i < 2; i++)
    assert_int_equal(perigee_region_alloc(s->p.engine[i], "plain", 4096, 3,
                                          NULL, &s->plain[i]),
                     0);
}

static void own_event(struct scene *s, const struct perigee_event *e) {
  if (e->kind < PERIGEE_EVENT_REPLY && e->kind != PERIGEE_EVENT_CONNECTED)
    return;
  if (e->kind == PERIGEE_EVENT_SENT || e->operation != s->operation)
    return;
  if (e->kind == PERIGEE_EVENT_REPLY_LANDING)
    return;
  s->ends++;
  s->status = e->status;
}

void scene_answer(struct scene *s, int side, const struct perigee_event *e) {
  struct perigee_message r = {.head = "x", .length = 1};
  struct perigee_slice none = {0};
  if (side == 0)
    own_event(s, e);
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(s->p.engine[side], e->landed);
  if (e->kind == PERIGEE_EVENT_LANDING)
    perigee_land(s->p.engine[side], e->operation, &none);
  else if (e->kind == PERIGEE_EVENT_REPLY_LANDING)
    perigee_land_reply(s->p.engine[side], e->operation, &none);
  else if (e->kind == PERIGEE_EVENT_REQUEST)
    perigee_reply(s->p.engine[side], e->operation, &r);
  else if (e->kind == PERIGEE_EVENT_ABANDONED && e->operation == s->served)
    s->served = -1;
}

static void answer_kept(struct scene *s) {
  struct perigee_message r = {.head = "late", .length = 4};
  if (s->served >= 0)
    perigee_reply(s->p.engine[1], s->served, &r);
  s->served = -1;
  perigee_land_reply(s->p.engine[0], s->operation, NULL); /* if it asks */
}

void scene_wind_up(struct scene *s) {
  int64_t end = clock_now() + 10000 * MS;
  s->p.still[0] = s->p.still[1] = false;
  for (int idle = 0; idle < 200; idle++) {
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      poll_side(&s->p, side);
      while (taken(&s->p, side, &e))
        scene_answer(s, side, &e);
    }
    if (idle == 100)
      answer_kept(s);
    if (idle == 150) /* ends the other side's operations by timeout */
      scene_later(1000 * MS);
    if (operations(&s->p, 0) + operations(&s->p, 1) > (s->served >= 0) &&
        idle > 150)
      idle = 150;
    if (clock_now() > end)
      fail_msg("%d and %d operations are left", (int)operations(&s->p, 0),
               (int)operations(&s->p, 1));
  }
}

void scene_close(struct scene *s) {
  region_end(s->mine);
  region_end(s->theirs);
  for (int i = 0; i < 2; i++)
    region_end(s->plain[i]);
  pair_close(&s->p);
  free(s->bytes);
}

void scene_drop(struct scene *s) {
  free(s->bytes);
}

/* ---- Stopping it ------------------------------------------------------- */

static const int64_t LIMIT = 10000 * MS;

void scene_by_timeout(struct scene *s) {
  timers_begin(s->p.engine[0]);
  scene_later(2 * LIMIT);
}

void scene_by_cancel(struct scene *s) {
  perigee_cancel(s->p.engine[0], s->operation);
}

void scene_by_close(struct scene *s) {
  perigee_session_close(s->p.session[0]);
}

void scene_by_peers_close(struct scene *s) {
  perigee_session_close(s->p.session[1]);
}

/* Polls until the operation has ended, and handles all other events. */
static void await_end(struct scene *s) {
  int64_t end = clock_now() + 5000 * MS;
  while (s->ends == 0) {
    for (int side = 0; side < 2; side++) {
      struct perigee_event e;
      poll_side(&s->p, side);
      while (s->ends == 0 && taken(&s->p, side, &e))
        scene_answer(s, side, &e);
    }
    if (clock_now() > end)
      fail_msg("it does not end");
  }
}

/* The session still works: a call over it succeeds. */
static void goes_on(struct scene *s) {
  struct perigee_message m = {.head = "on", .length = 2, .timeout = -1};
  int op = perigee_call(s->p.session[0], &m);
  struct perigee_event e = until(&s->p, 1, PERIGEE_EVENT_REQUEST);
  assert_memory_equal(e.pointer, "on", 2);
  assert_int_equal(perigee_reply(s->p.engine[1], e.operation, &m), 0);
  assert_int_equal(ended(&s->p, 0, op, 0).length, 2);
}

void scene_stop(void *state, const struct scene_kind *kind,
                void (*stop)(struct scene *), int status) {
  struct scene s;
  bool ends_session = stop == scene_by_close || stop == scene_by_peers_close;
  if (kind->connecting && ends_session)
    return;
  print_message("# %s\n", kind->name);
  scene_open(&s, state, stop == scene_by_timeout ? LIMIT : -1);
  kind->build(&s);
  stop(&s);
  if (stop == scene_by_peers_close) /* earlier messages are still received */
    s.p.still[0] = s.p.still[1] = false;
  await_end(&s);
  if (!(s.settled && s.status == PERIGEE_OK) && s.status != status)
    fail_msg("it ended in %s", perigee_status_name(s.status));
  fill_byte(s.mine, 0xcc);
  scene_wind_up(&s);
  assert_int_equal(s.ends, 1);
  all_byte(s.mine, 0xcc);
  if (!ends_session)
    goes_on(&s);
  scene_close(&s);
}
