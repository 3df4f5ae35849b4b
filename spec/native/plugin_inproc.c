/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_inproc.c - a transport for specs between two engines of one thread.
 * Records arrive late, payloads in splinters, and copies take several steps.
 * Nothing else in the tree depends on it.
 *
 * A side that is armed receives everything without delay, since nothing would
 * wake it for what comes later.
 *
 * There are two transports: this one, that sessions begin with, and an
 * additional one for opaque memory (inproc_link.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inproc.h"

extern const struct perigee_transport perigee_transport_inproc;

/* An offer tells a lane's number: the lane may be gone when its peer joins. */
static struct lane *living;
static uint64_t lanes;

static struct lane *lane_living(uint64_t number) {
  struct lane *lane = living;
  while (lane && lane->number != number)
    lane = lane->next;
  return lane;
}

static void lane_gone(struct lane *lane) {
  struct lane **at = &living;
  while (*at != lane)
    at = &(*at)->next;
  *at = lane->next;
  for (struct lane *l = living; l; l = l->next)
    if (l->peer == lane)
      l->peer = NULL;
}

int inproc_open(const struct lane_options *options, struct lane **out,
                struct offer *offer, char reason[REASON]) {
  (void)reason;
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane)
    return PERIGEE_NO_MEMORY;
  lane_by(lane, &perigee_transport_inproc);
  lane->seed = (uint32_t)options->key;
  lane->alone = options->alone;
  lane->share = options->share;
  for (int i = 0; i < RINGS; i++)
    lane->in[i].last = &lane->in[i].first;
  lane->number = ++lanes;
  lane->next = living;
  living = lane;
  memcpy(offer->bytes, &lane->number, sizeof lane->number);
  offer->length = sizeof lane->number;
  offer->fd_count = 0;
  *out = lane;
  return PERIGEE_OK;
}

int inproc_join(struct lane *lane, const struct offer *offer,
                char reason[REASON]) {
  uint64_t number;
  memcpy(&number, offer->bytes, sizeof number);
  lane->peer = lane_living(number);
  snprintf(reason, REASON, "the peer's half is gone");
  return lane->peer ? PERIGEE_OK : PERIGEE_PEER_LOST;
}

/* Ends the copies of both sides, as each is in memory of both. */
void inproc_cut(struct lane *lane) {
  lane->over = true;
  inproc_tasks_end(lane);
  if (lane->peer && lane->peer->peer == lane)
    inproc_tasks_end(lane->peer);
}

static void drop(struct late **first) {
  while (*first) {
    struct late *late = *first;
    *first = late->next;
    free(late);
  }
}

void inproc_close(struct lane *lane) {
  inproc_cut(lane);
  lane_gone(lane);
  inproc_link_gone(lane);
  for (int i = 0; i < RINGS; i++) {
    drop(&lane->in[i].first);
    drop(&lane->in[i].peeked);
    free(lane->reserved[i]);
  }
  inproc_loans_end(lane);
  free(lane->said);
  free(lane);
}

/* ---- Without a socket --------------------------------------------------- */

static int inproc_say(struct lane *lane, const uint8_t *bytes,
                      uint32_t length) {
  struct lane *to = lane->peer;
  if (!to)
    return PERIGEE_PEER_LOST;
  to->said = realloc(to->said, to->said_length + length);
  memcpy(to->said + to->said_length, bytes, length);
  to->said_length += length;
  return PERIGEE_OK;
}

static uint32_t inproc_hear(struct lane *lane, uint8_t *bytes, uint32_t room) {
  uint64_t left = lane->said_length - lane->said_taken;
  if (left == 0 || inproc_later(lane))
    return 0;
  uint32_t n = (uint32_t)inproc_splinter(lane, left < room ? left : room);
  memcpy(bytes, lane->said + lane->said_taken, n);
  lane->said_taken += n;
  return n;
}

static bool inproc_drained(struct lane *lane) {
  return !lane->armed;
}

/* A probe is lost if the peer has not joined. */
static void inproc_probe(struct lane *lane) {
  if (lane->peer && lane->peer->peer == lane)
    lane->peer->met = true;
}

static bool inproc_met(const struct lane *lane) {
  return lane->met;
}

static void inproc_keepalive(struct lane *lane) {
  (void)lane;
}

static int inproc_broken(const struct lane *lane, const char **reason) {
  *reason = "the peer's half is gone";
  return lane->alone && !lane->peer ? PERIGEE_PEER_LOST : PERIGEE_OK;
}

/* ---- Records ------------------------------------------------------------ */

static uint8_t *inproc_reserve(struct lane *lane, enum ring ring,
                               uint64_t length) {
  struct queue *queue = lane->peer ? &lane->peer->in[ring] : NULL;
  if (!queue || queue->bytes + length > CREDIT)
    return NULL;
  free(lane->reserved[ring]);
  struct late *late = aligned_alloc(64, (sizeof *late + length + 63) & ~63ul);
  *late = (struct late){.length = length};
  lane->reserved[ring] = late;
  return late->bytes;
}

static void inproc_publish(struct lane *lane, enum ring ring, uint64_t length) {
  struct late *late = lane->reserved[ring];
  lane->reserved[ring] = NULL;
  if (!lane->peer) {
    free(late);
    return;
  }
  struct queue *queue = &lane->peer->in[ring];
  late->length = length;
  late->delay = (int)(inproc_chance(lane) % 4);
  *queue->last = late;
  queue->last = &late->next;
  queue->bytes += length;
}

static int inproc_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
                       uint64_t *length) {
  struct queue *queue = &lane->in[ring];
  struct late *late = queue->first;
  if (!late || (!lane->armed && late->delay-- > 0))
    return 0;
  queue->first = late->next;
  if (!queue->first)
    queue->last = &queue->first;
  late->next = queue->peeked;
  queue->peeked = late;
  *bytes = late->bytes;
  *length = late->length;
  return 1;
}

static bool inproc_release(struct lane *lane) {
  bool any = false;
  for (int i = 0; i < RINGS; i++) {
    for (struct late *l = lane->in[i].peeked; l; l = l->next, any = true)
      lane->in[i].bytes -= l->length;
    drop(&lane->in[i].peeked);
  }
  return any;
}

/* ---- Sleeping ----------------------------------------------------------- */

static void inproc_arm(struct lane *lane) {
  lane->armed = true;
  lane->arms++;
}

static void inproc_disarm(struct lane *lane) {
  lane->armed = false;
}

static bool inproc_wanted(struct lane *lane) {
  if (!lane->peer || !lane->peer->armed || lane->kicked == lane->peer->arms)
    return false;
  lane->kicked = lane->peer->arms;
  return true;
}

static void inproc_unwoken(struct lane *lane) {
  lane->kicked = lane->peer->arms - 1;
}

static const struct transport_records records = {
    .reserve = inproc_reserve,
    .publish = inproc_publish,
    .peek = inproc_peek,
    .release = inproc_release,
};

const struct transport_sleep inproc_sleep = {
    .arm = inproc_arm,
    .disarm = inproc_disarm,
    .wanted = inproc_wanted,
    .unwoken = inproc_unwoken,
};

static const struct transport_frames frames = {
    .say = inproc_say,
    .hear = inproc_hear,
    .drained = inproc_drained,
};

static const struct transport_alone alone = {
    .probe = inproc_probe,
    .met = inproc_met,
    .keepalive = inproc_keepalive,
};

PERIGEE_API const struct perigee_transport perigee_transport_inproc = {
    .name = "inproc",
    .records = &records,
    .payloads = &inproc_payloads,
    .loans = &inproc_loans,
    .access = &inproc_access,
    .copies = &inproc_copies,
    .sleep = &inproc_sleep,
    .frames = &frames,
    .alone = &alone,
    .open = inproc_open,
    .join = inproc_join,
    .close = inproc_close,
    .cut = inproc_cut,
    .broken = inproc_broken,
};
