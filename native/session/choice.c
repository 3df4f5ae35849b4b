/* SPDX-License-Identifier: Apache-2.0
 *
 * choice.c - which transport carries a session: those that this side can offer,
 * the one that both sides choose, and this side's half of it.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/accounts.h"
#include "core/trim.h"
#include "core/fabrics.h"
#include "core/hot.h"
#include "core/lane_list.h"
#include "migrate.h"

/* ---- Choosing ----------------------------------------------------------- */

/* After a look that found no devices, nobody looks again for so long: a look
 * costs more than an unauthenticated peer may cause. */
static const int64_t NO_DEVICES = 1000000000; /* ns */

static const struct perigee_transport *const built_in[] = {
    &transport_shm, &transport_verbs, &transport_tcp, NULL};

/* Can the transport carry this session? Shared memory needs descriptors, which
 * TCP cannot bring; it may still be asked for if the session would move for it.
 * Verbs needs devices, and cannot seal. */
static bool carries(const struct perigee_session *s,
                    const struct perigee_transport *t) {
  if (!s->tcp)
    return true;
  if (t == &transport_shm)
    return migrate_willing(s);
  return t != &transport_verbs || s->handshake.devices;
}

bool choice_devices(struct perigee_engine *engine) {
  struct fabric *fabric;
  int64_t now = engine_clock(engine);
  if (proof_strict(engine) || now < engine->no_devices_until)
    return false;
  bool had = fabric_of(engine, &transport_verbs, &fabric, engine->no_devices) ==
             PERIGEE_OK;
  if (!had)
    engine->no_devices_until = now + NO_DEVICES;
  return had;
}

static uint32_t list_names(const struct perigee_session *s,
                           const struct perigee_transport *const *from,
                           struct terms *terms, uint32_t count) {
  for (; from && *from && count < TRANSPORTS_MAX; from++) {
    if ((*s->target.transport &&
         strcmp(s->target.transport, (*from)->name) != 0) ||
        (*from)->additional || !carries(s, *from))
      continue;
    snprintf(terms->transport[count++], TRANSPORT_NAME, "%s", (*from)->name);
  }
  return count;
}

void choice_list(const struct perigee_session *s, struct terms *terms) {
  terms->transports = list_names(s, s->engine->options.transports, terms, 0);
  terms->transports = list_names(s, built_in, terms, terms->transports);
  lanes_list(s, terms);
}

static const struct perigee_transport *
find(const struct perigee_transport *const *from, const char *name) {
  for (; from && *from; from++)
    if (!(*from)->additional && strcmp((*from)->name, name) == 0)
      return *from;
  return NULL;
}

const struct perigee_transport *transport_named(struct perigee_engine *engine,
                                                const char *name) {
  const struct perigee_transport *t = find(engine->options.transports, name);
  return t ? t : find(built_in, name);
}

const struct perigee_transport *transport_alone(struct perigee_engine *engine) {
  const struct perigee_transport *const *lists[] = {engine->options.transports,
                                                    built_in};
  for (size_t i = 0; i < 2; i++)
    for (size_t k = 0; lists[i] && lists[i][k]; k++)
      if (lists[i][k]->alone && !lists[i][k]->additional)
        return lists[i][k];
  return NULL;
}

static bool offers(const struct terms *terms, const char *name) {
  for (uint32_t i = 0; i < terms->transports; i++)
    if (strcmp(terms->transport[i], name) == 0)
      return true;
  return false;
}

const struct perigee_transport *choice_of(struct perigee_session *s,
                                          const struct terms *own) {
  const struct terms *order = s->dialed ? own : &s->peer.terms;
  const struct terms *other = s->dialed ? &s->peer.terms : own;
  for (uint32_t i = 0; i < order->transports; i++)
    if (offers(other, order->transport[i]))
      return transport_named(s->engine, order->transport[i]);
  return NULL;
}

int choice_none(const struct perigee_session *s, const struct terms *peer,
                char reason[REASON]) {
  const char *shm = transport_shm.name;
  bool memory =
      s->dialed ? strcmp(s->target.transport, shm) == 0 : offers(peer, shm);
  snprintf(reason, REASON, "the two sides have no transport in common%s",
           s->tcp && memory && !s->peer.same_host
               ? ": shared memory is for two processes on one host"
               : "");
  return PERIGEE_UNSUPPORTED;
}

/* ---- Why not the others -------------------------------------------------- */

/* Why a session over TCP does not use shared memory. */
static const char *why_no_memory(const struct perigee_session *s) {
  if (!s->peer.same_host)
    return "the peer is on another host";
  if (s->migration.state == MIGRATION_RETURNED)
    return "the session could not move to it";
  if (!offers(&s->peer.terms, transport_shm.name))
    return "the peer does not offer it";
  return s->peer.terms.user != geteuid() ? "the peer runs as another user"
                                         : "the session did not move to it";
}

static const char *why_not_here(const struct perigee_session *s,
                                const struct perigee_transport *t) {
  if (t == &transport_shm)
    return why_no_memory(s);
  if (proof_strict(s->engine))
    return "what it carries is neither encrypted nor has MACs, and that is "
           "asked for";
  return *s->engine->no_devices ? s->engine->no_devices : "no device here";
}

static void why_not(const struct perigee_session *s,
                    const struct perigee_transport *t, char why[REASON]) {
  const char *chosen = s->transport->name;
  if (s->alone)
    snprintf(why, REASON, "it needs a socket");
  else if (*s->target.transport && strcmp(s->target.transport, t->name) != 0)
    snprintf(why, REASON, "%s was asked for", s->target.transport);
  else if (!carries(s, t) || (s->tcp && t == &transport_shm))
    snprintf(why, REASON, "%s", why_not_here(s, t));
  else if (!offers(&s->peer.terms, t->name))
    snprintf(why, REASON, "the peer does not offer it");
  else
    snprintf(why, REASON, "%s comes first", chosen);
}

static size_t consider(const struct perigee_session *s,
                       const struct perigee_transport *const *from, char *text,
                       size_t size, size_t length) {
  char why[REASON];
  for (; from && *from && length < size; from++) {
    if ((*from)->additional || strcmp((*from)->name, s->transport->name) == 0)
      continue;
    why_not(s, *from, why);
    length += (size_t)snprintf(text + length, size - length, "%s%s: %s",
                               length ? "\n" : "", (*from)->name, why);
  }
  return length;
}

void choice_considered(const struct perigee_session *s, char *text,
                       size_t size) {
  *text = 0;
  if (!s->transport)
    return;
  size_t length = consider(s, s->engine->options.transports, text, size, 0);
  consider(s, built_in, text, size, length);
}

/* ---- Opening its half ---------------------------------------------------- */

static void tell(struct perigee_session *s, const void *bytes,
                 uint32_t length) {
  struct frame f = {.type = FRAME_LANE, .lane = {.length = (uint16_t)length}};
  memcpy(f.lane.bytes, bytes, length);
  if (s->state != PERIGEE_SESSION_ENDED)
    session_send(s, &f, NULL, 0);
}

int wireup_open(struct perigee_session *s, struct offer *offer,
                char reason[REASON]) {
  const struct perigee_options *o = &s->engine->options;
  int status = accounts_join(s, reason, REASON);
  if (status < 0)
    return status;
  struct lane_options lane = {
      .ring = o->ring,
      .pool = o->pool,
      .operations = o->operations,
      .pull = o->pull,
      .peer_pid = s->process.pid,
      .peer_pidfd = s->process.pidfd,
      .probe = {s->handshake.probe[0], s->handshake.probe[1]},
      .probed = {s->peer.terms.probe[0], s->peer.terms.probe[1]},
      .key = s->handshake.nonce ^ s->peer.hello.nonce,
      .alone = s->alone,
      .dialed = s->dialed,
      .streams = o->streams,
      .seal = s->security.intact ? s->security.keys->session : NULL,
      .bare = !s->security.sealed,
      .aes = s->security.aes,
      .share = s->account.share,
      .vault = &s->engine->vault,
      .session = s,
      .activate = hot_activate,
      .watch = lane_watch,
      .close = lane_close,
      .tell = tell,
      .file = handing_file,
      .hand = handing_hand,
      .later = handing_later,
      .now = &s->engine->now,
      .keeps = trim_keeps,
      .look = &s->engine->trim.look};
  status = fabric_of(s->engine, s->transport, &lane.fabric, reason);
  if (status == PERIGEE_OK)
    status = s->transport->open(&lane, &s->lane, offer, reason);
  if (status == PERIGEE_OK && s->engine->faults)
    status = lane_inject(s->engine, &s->lane, &s->transport, offer);
  if (status < 0 && !*reason)
    snprintf(reason, REASON, "no memory for the session's rings");
  return status;
}
