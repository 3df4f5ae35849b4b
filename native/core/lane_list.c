/* SPDX-License-Identifier: Apache-2.0
 *
 * lane_list.c - a session's additional lanes: which of them an operation uses,
 * and what happens when one breaks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lane_list.h"

_Static_assert((int)FOUND_KEYS == (int)LANES, "a key for each lane");

static struct extra_lane *extra_of(const struct perigee_session *s,
                                   uint32_t number) {
  return &s->lanes->extra[number - 1];
}

static uint32_t count_of(const struct perigee_session *s) {
  return s->lanes ? s->lanes->count : 0;
}

static bool usable(const struct extra_lane *x) {
  return x->state == EXTRA_OPEN && !((struct lane_head *)x->lane)->ending;
}

/* ---- Choice ------------------------------------------------------------- */

static bool takes(const struct extra_lane *x, const char *memory,
                  uint64_t length) {
  const struct transport_additional *a = x->transport->additional;
  const char *const *name = a->memories;
  if (length < a->least)
    return false;
  while (*name && strcmp(*name, memory) != 0)
    name++;
  return *name != NULL;
}

uint32_t lanes_for(const struct perigee_session *s, const struct payload *p) {
  for (uint32_t n = 1; n <= count_of(s); n++) {
    const struct extra_lane *x = extra_of(s, n);
    if (usable(x) && x->transport->payloads &&
        takes(x, p->memory->kind->name, p->total))
      return n;
  }
  return 0;
}

uint32_t lanes_reach(const struct perigee_session *s,
                     const struct perigee_remote *remote,
                     const struct payload *local) {
  for (uint32_t n = 1; n <= count_of(s); n++) {
    const struct extra_lane *x = extra_of(s, n);
    const struct window *window = &remote->extra[n - 1];
    if (window->attached && usable(x) && x->transport->jobs &&
        local->total >= x->transport->additional->least &&
        x->transport->jobs->reaches(x->lane, window, local))
      return n;
  }
  return 0;
}

void lanes_count(struct perigee_session *s, uint32_t number, bool payload,
                 uint64_t bytes) {
  if (number == 0)
    return;
  struct extra_lane *x = extra_of(s, number);
  x->payloads += payload;
  x->transfers += !payload;
  x->bytes += bytes;
}

/* ---- Polls -------------------------------------------------------------- */

static int broken(const struct extra_lane *x, const char **why) {
  *why = "";
  return x->transport->broken ? x->transport->broken(x->lane, why) : PERIGEE_OK;
}

int lanes_status(const struct perigee_session *s, uint32_t number,
                 const char **why) {
  const struct extra_lane *x = extra_of(s, number);
  *why = x->why;
  if (x->state == EXTRA_LOST)
    return x->status;
  return x->state == EXTRA_OPEN ? broken(x, why) : PERIGEE_PROTOCOL;
}

const char *lanes_trouble(const struct perigee_session *s) {
  const char *why = "";
  for (uint32_t n = 1; n <= count_of(s); n++)
    if (extra_of(s, n)->state == EXTRA_LOST)
      why = extra_of(s, n)->why;
  return why;
}

static void tell_loss(struct perigee_session *s, uint32_t number, int status,
                      const char *why) {
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = (uint8_t)number,
                              .word = EXTRA_WORD_LOST,
                              .status = status}};
  f.extra.offer.length = (uint32_t)strnlen(why, REASON);
  memcpy(f.extra.offer.bytes, why, f.extra.offer.length);
  s->up->send(s, &f, NULL, 0);
}

void lanes_lose(struct perigee_session *s, uint32_t number, int status,
                const char *why, bool tell) {
  struct extra_lane *x = extra_of(s, number);
  if (x->state == EXTRA_LOST)
    return;
  x->state = EXTRA_LOST;
  x->status = status;
  snprintf(x->why, sizeof x->why, "the lane %s is lost: %s", x->transport->name,
           why);
  s->engine->progress++;
  if (x->lane && x->transport->cut)
    x->transport->cut(x->lane);
  if (tell)
    tell_loss(s, number, status, why);
}

void lanes_poll(struct perigee_session *s) {
  for (uint32_t n = 1; n <= count_of(s); n++) {
    struct extra_lane *x = extra_of(s, n);
    const char *why;
    if (x->state != EXTRA_OPEN)
      continue;
    if (x->transport->poll && x->transport->poll(x->lane))
      s->engine->progress++;
    int status = broken(x, &why);
    if (status < 0)
      lanes_lose(s, n, status, why, true);
    if (s->state != PERIGEE_SESSION_OPEN)
      return;
  }
}

void lanes_arm(struct perigee_session *s) {
  for (uint32_t n = 1; n <= count_of(s); n++)
    if (extra_of(s, n)->lane)
      lane_sleep(extra_of(s, n)->lane)->arm(extra_of(s, n)->lane);
}

void lanes_disarm(struct perigee_session *s) {
  for (uint32_t n = 1; n <= count_of(s); n++)
    if (extra_of(s, n)->lane)
      lane_sleep(extra_of(s, n)->lane)->disarm(extra_of(s, n)->lane);
}

bool lanes_rest(const struct perigee_session *s) {
  for (uint32_t n = 1; n <= count_of(s); n++) {
    const struct extra_lane *x = extra_of(s, n);
    if (x->state == EXTRA_OPEN &&
        !(x->transport->rests && x->transport->rests(x->lane)))
      return false;
  }
  return true;
}

/* ---- Regions ------------------------------------------------------------ */

struct lane *lanes_to_export(const struct perigee_session *s, uint32_t number,
                             const struct area *area) {
  const struct extra_lane *x = extra_of(s, number);
  bool may = usable(x) && takes(x, area->memory->kind->name, UINT64_MAX);
  return may ? x->lane : NULL;
}

struct lane *lanes_to_attach(const struct perigee_session *s, uint32_t number) {
  const struct extra_lane *x = extra_of(s, number);
  return usable(x) ? x->lane : NULL;
}

static bool has_regions(const struct extra_lane *x) {
  return x->lane && x->transport->access;
}

void lanes_revoke(struct perigee_session *s, uint32_t slot) {
  for (uint32_t n = 1; n <= count_of(s); n++)
    if (has_regions(extra_of(s, n)))
      extra_of(s, n)->transport->access->revoke(extra_of(s, n)->lane, slot);
}

bool lanes_inside(struct perigee_session *s, uint32_t slot) {
  bool inside = false;
  for (uint32_t n = 1; n <= count_of(s); n++) {
    const struct extra_lane *x = extra_of(s, n);
    inside = inside || (has_regions(x) && x->state == EXTRA_OPEN &&
                        x->transport->access->inside(x->lane, slot));
  }
  return inside;
}

/* ---- Faults ------------------------------------------------------------- */

int lane_inject(struct perigee_engine *engine, struct lane **lane,
                const struct perigee_transport **transport,
                struct offer *offer) {
  if (!engine->faults)
    return PERIGEE_OK;
  const struct perigee_transport *t = faults_join(engine->faults, *lane);
  if (t) {
    *transport = t;
    return PERIGEE_OK;
  }
  for (uint32_t i = 0; i < offer->fd_count; i++)
    close(offer->fds[i]);
  (*transport)->close(*lane);
  *lane = NULL;
  return PERIGEE_NO_MEMORY;
}

/* ---- Ending ------------------------------------------------------------- */

void lanes_cut(struct perigee_session *s) {
  for (uint32_t n = 1; n <= count_of(s); n++) {
    const struct extra_lane *x = extra_of(s, n);
    if (x->lane && x->state != EXTRA_LOST && x->transport->cut)
      x->transport->cut(x->lane);
  }
}

void lanes_forked(struct perigee_session *s) {
  for (uint32_t n = 1; n <= count_of(s); n++) {
    const struct extra_lane *x = extra_of(s, n);
    if (x->lane && x->transport->forked)
      x->transport->forked(x->lane);
  }
}

void lanes_close(struct perigee_session *s) {
  for (uint32_t n = count_of(s); n > 0; n--)
    if (extra_of(s, n)->lane)
      extra_of(s, n)->transport->close(extra_of(s, n)->lane);
  free(s->lanes);
  s->lanes = NULL;
}
