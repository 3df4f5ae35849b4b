/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_recover.c - queue pairs that break, or have to be fenced: reset,
 * rebuilt, or down for good. verbs.h has their states.
 *
 * A reset discards what the hardware has; the slots are posted again once both
 * halves are connected again. That is safe for what slots contain: reads, and
 * writes that nobody was told of, as their immediate is sent after they
 * completed.
 *
 * The device of a process that is being killed refuses requests, too. So a
 * refusal is reported only once the pair is up again, as that needs a live
 * peer.
 *
 * Rebuilding uses frames. A side that resets tells its half (epoch, first
 * sequence number); the other side resets too, if it has not, and tells its
 * own. A half that says ready comes from a connected pair, to which may be
 * posted.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/adopted.h"
#include "verbs.h"

/* The frame that a side sends when it has reset a pair. */
struct half {
  uint32_t pair, epoch, psn, ready;
};

/* ---- Resetting and rebuilding ------------------------------------------- */

static void quiet(struct pair *p) {
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
  int error = p->rail->fabric->lib->modify_qp(p->qp, &a, IBV_QP_STATE);
  p->epoch++;
  p->connected = false;
  p->unsignaled = 0;
  if (error) { /* then only destroying the pair stops it */
    pair_unlink(p);
    p->rail->fabric->lib->destroy_qp(p->qp);
    p->qp = NULL;
  }
}

/* Requeues what the hardware had, except slots of one job. */
static void requeue(struct pair *p, const struct job *but) {
  uint32_t to = p->retired;
  for (uint32_t at = p->retired; at != p->filled; at++) {
    struct slot *slot = pair_slot_at(p, at);
    if (!slot->job || slot->job == but || slot->opcode == IBV_WR_BIND_MW)
      pair_settle(p, at, PERIGEE_CANCELLED);
    else if (at != to)
      *pair_slot_at(p, to) = *slot;
    to += slot->job != NULL;
  }
  p->filled = to;
  p->posted = p->retired;
}

static void tell_half(struct pair *p) {
  struct half half = {p->index, p->epoch, p->psn, p->connected};
  const struct lane_options *o = &p->lane->options;
  o->tell(o->session, &half, sizeof half);
}

static bool reset(struct pair *p, const struct job *but) {
  quiet(p);
  p->lane->resets++;
  p->state = PAIR_RESETTING;
  p->psn = pair_psn();
  requeue(p, but);
  if (!p->qp)
    lane_break(p->lane, PERIGEE_PEER_LOST,
               "a queue pair of %s cannot be reset: the device is gone",
               p->rail->port.device);
  return p->qp;
}

void pair_reset(struct pair *p, const struct job *but) {
  if (p->index == 0)
    lane_break(p->lane, PERIGEE_PEER_LOST, "%s does not do what it was given",
               p->rail->port.device);
  else if (p->state == PAIR_RESETTING)
    requeue(p, but);
  else if (p->state == PAIR_UP && reset(p, but))
    tell_half(p);
}

/* The peer is alive, and its device refused memory that the peer took back. */
static void tell_refused(struct pair *p) {
  struct slot *slot = pair_slot_at(p, p->retired);
  struct job *job = slot->job;
  if (p->retired == p->filled || slot->status == PERIGEE_OK)
    return;
  pair_settle(p, p->retired++, slot->status);
  requeue(p, job);
}

static void reconnect(struct pair *p, uint32_t psn) {
  p->peer_psn = psn;
  if (!pair_reconnect(p))
    return;
  p->connected = true;
  tell_half(p);
}

bool pair_renew(struct pair *p) {
  quiet(p);
  requeue(p, NULL);
  return pair_reconnect(p);
}

int pair_heard(struct lane *lane, const void *bytes, uint32_t length, int fd) {
  struct half half;
  if (fd >= 0)
    adopted_close(fd);
  if (fd >= 0 || length != sizeof half)
    return PERIGEE_PROTOCOL;
  memcpy(&half, bytes, sizeof half);
  if (half.pair == 0 || half.pair >= lane->pair_count || half.psn > 0xffffff)
    return PERIGEE_PROTOCOL;
  struct pair *p = &lane->pairs[half.pair];
  int32_t ahead = (int32_t)(half.epoch - p->epoch);
  if (p->state == PAIR_DOWN || p->state == PAIR_FRESH || ahead < 0)
    return PERIGEE_OK;
  if (ahead > 0) {
    if (!reset(p, NULL))
      return PERIGEE_OK;
    p->epoch = half.epoch;
  }
  if (p->state == PAIR_RESETTING && !p->connected)
    reconnect(p, half.psn);
  if (p->state == PAIR_RESETTING && p->connected && half.ready) {
    p->state = PAIR_UP;
    tell_refused(p);
    pair_post(p);
  }
  return PERIGEE_OK;
}

void pair_down(struct pair *p, int status) {
  if (!p->slots || p->state == PAIR_DOWN)
    return;
  if (p->qp)
    quiet(p);
  p->state = PAIR_DOWN;
  while (p->retired != p->filled)
    pair_settle(p, p->retired++, status);
  p->posted = p->filled;
}

void lane_break(struct lane *lane, int status, const char *format, ...) {
  va_list args;
  if (lane->status < 0)
    return;
  lane->status = status;
  lane->head.ending = true;
  va_start(args, format);
  vsnprintf(lane->reason, sizeof lane->reason, format, args);
  va_end(args);
  for (uint32_t i = 0; i < lane->pair_count; i++)
    pair_down(&lane->pairs[i], PERIGEE_PEER_LOST);
  if (lane->joined && !lane->cut)
    lane->options.activate(lane->options.session);
}
