/* SPDX-License-Identifier: Apache-2.0
 *
 * choice.c - which transport carries a session: those that this side can offer,
 * the one that both sides choose, and this side's half of it.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/accounts.h"
#include "core/fabrics.h"
#include "core/lanes.h"
#include "core/pool.h"
#include "net/wire.h"
#include "sessions.h"
#include "stats.h"

/* ---- Choosing ------------------------------------------------------------ */

static const struct perigee_transport *const built_in[] = {
    &transport_shm, &transport_verbs, &transport_tcp};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* This side's transports in order: those of the options, then the built in.
 * NULL: there are no more. */
static const struct perigee_transport *
transport_at(const struct perigee_engine *engine, uint32_t index) {
  const struct perigee_transport *const *t = engine->options.transports;
  for (; t && *t; t++)
    if (index-- == 0)
      return *t;
  return index < BUILT_IN ? built_in[index] : NULL;
}

/* Over TCP: may the transport carry what has to be sealed? */
static bool transport_is_safe(const struct perigee_session *s,
                              const struct perigee_transport *t) {
  return t->seals || !proof_strict(s->engine);
}

void choice_fabrics(struct perigee_session *s) {
  const struct perigee_transport *t;
  s->handshake.fabrics = 0;
  for (uint32_t i = 0; i < 32 && (t = transport_at(s->engine, i)); i++)
    if (t->fabric && !t->additional && transport_is_safe(s, t) &&
        fabric_usable(s->engine, t))
      s->handshake.fabrics |= 1u << i;
}

static bool transport_has_fabric(const struct perigee_session *s,
                                 const struct perigee_transport *t) {
  uint32_t i = 0;
  while (i < 32 && transport_at(s->engine, i) != t)
    i++;
  return !t->fabric || (i < 32 && (s->handshake.fabrics >> i & 1));
}

/* Returns why this system cannot have it, or NULL. */
static const char *transport_unfit(const struct perigee_transport *t) {
  return t->unfit ? t->unfit() : NULL;
}

/* Can the transport carry this session? Over TCP one that needs a Unix socket
 * may be asked for if the session would move for it. A Unix socket does for
 * all: for one that needs TCP the session moves. */
static bool transport_carries(const struct perigee_session *s,
                              const struct perigee_transport *t) {
  if (transport_unfit(t))
    return false;
  if (!s->tcp)
    return true;
  return t->socket == SOCKET_UNIX
             ? session_may_move(s)
             : transport_is_safe(s, t) && transport_has_fabric(s, t);
}

/* The session uses no other transport if the program asked for one. */
static bool choice_asked_for_another(const struct perigee_session *s,
                                     const struct perigee_transport *t) {
  return *s->target.transport && strcmp(s->target.transport, t->name) != 0;
}

void choice_list(const struct perigee_session *s, struct terms *terms) {
  const struct perigee_transport *t;
  uint32_t count = 0;
  for (uint32_t i = 0;
       count < TRANSPORTS_MAX && (t = transport_at(s->engine, i)); i++)
    if (!t->additional && !choice_asked_for_another(s, t) &&
        transport_carries(s, t))
      snprintf(terms->transport[count++], TRANSPORT_NAME, "%s", t->name);
  terms->transports = count;
  lanes_list(s, terms);
}

const struct perigee_transport *transport_named(struct perigee_engine *engine,
                                                const char *name) {
  const struct perigee_transport *t;
  for (uint32_t i = 0; (t = transport_at(engine, i)); i++)
    if (!t->additional && strcmp(t->name, name) == 0)
      return t;
  return NULL;
}

int transport_unknown(struct perigee_engine *engine, const char *name) {
  char names[TRANSPORTS_MAX * (TRANSPORT_NAME + 2)] = "";
  const struct perigee_transport *t;
  size_t n = 0;
  for (uint32_t i = 0; (t = transport_at(engine, i)); i++)
    if (!t->additional && n < sizeof names - TRANSPORT_NAME - 2)
      n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "",
                            t->name);
  return fail(engine, PERIGEE_UNSUPPORTED,
              "there is no transport \"%.40s\"; this build has %s%s", name,
              names,
              strcmp(name, "rdma") == 0 ? " (RDMA is called verbs)" : "");
}

bool transport_needs(struct perigee_engine *engine, const char *name,
                     enum transport_socket socket) {
  const struct perigee_transport *t = transport_named(engine, name);
  return t && t->socket == socket;
}

const struct perigee_transport *transport_alone(struct perigee_engine *engine) {
  const struct perigee_transport *t;
  for (uint32_t i = 0; (t = transport_at(engine, i)); i++)
    if (t->alone && !t->additional)
      return t;
  return NULL;
}

const struct perigee_transport *choice_of(struct perigee_session *s,
                                          const struct terms *own) {
  const struct terms *order = s->dialed ? own : &s->peer.terms;
  const struct terms *other = s->dialed ? &s->peer.terms : own;
  for (uint32_t i = 0; i < order->transports; i++)
    if (terms_offer(other, order->transport[i]))
      return transport_named(s->engine, order->transport[i]);
  return NULL;
}

/* Over TCP: was a transport asked for that only a Unix socket can have? */
static bool choice_wants_memory(const struct perigee_session *s,
                                const struct terms *peer) {
  if (s->dialed)
    return transport_needs(s->engine, s->target.transport, SOCKET_UNIX);
  for (uint32_t i = 0; i < peer->transports; i++)
    if (transport_needs(s->engine, peer->transport[i], SOCKET_UNIX))
      return true;
  return false;
}

/* Why the one that was asked for cannot be had here, or NULL. */
static const char *choice_unfit(const struct perigee_session *s) {
  const struct perigee_transport *t =
      transport_named(s->engine, s->target.transport);
  return t ? transport_unfit(t) : NULL;
}

int choice_none(const struct perigee_session *s, const struct terms *peer,
                char reason[REASON]) {
  bool apart = s->tcp && !s->peer.same_host && choice_wants_memory(s, peer);
  const char *why = apart ? "shared memory is for two processes on one host"
                          : choice_unfit(s);
  snprintf(reason, REASON, "the two sides have no transport in common%s%s",
           why ? ": " : "", why ? why : "");
  return PERIGEE_UNSUPPORTED;
}

/* ---- Why not the others -------------------------------------------------- */

/* Why a session over TCP does not use a transport that needs a Unix socket. */
static enum perigee_stats_why
choice_why_no_memory(const struct perigee_session *s,
                     const struct perigee_transport *t) {
  if (!s->peer.same_host)
    return PERIGEE_STATS_WHY_APART;
  if (s->migration.state == MIGRATION_RETURNED)
    return PERIGEE_STATS_WHY_RETURNED;
  if (!terms_offer(&s->peer.terms, t->name))
    return PERIGEE_STATS_WHY_NOT_OFFERED;
  return s->peer.terms.user != geteuid() ? PERIGEE_STATS_WHY_USER
                                         : PERIGEE_STATS_WHY_STAYED;
}

static enum perigee_stats_why choice_why(const struct perigee_session *s,
                                         const struct perigee_transport *t) {
  if (s->alone)
    return PERIGEE_STATS_WHY_NO_SOCKET;
  if (choice_asked_for_another(s, t))
    return PERIGEE_STATS_WHY_ASKED;
  if (transport_unfit(t))
    return PERIGEE_STATS_WHY_UNFIT;
  if (s->tcp && t->socket == SOCKET_UNIX)
    return choice_why_no_memory(s, t);
  if (!transport_carries(s, t))
    return transport_is_safe(s, t) ? PERIGEE_STATS_WHY_NONE_HERE
                                   : PERIGEE_STATS_WHY_BARE;
  return terms_offer(&s->peer.terms, t->name) ? PERIGEE_STATS_WHY_SECOND
                                              : PERIGEE_STATS_WHY_NOT_OFFERED;
}

/* Sentences; those without one here name something. */
static const char *const choice_sentences[] = {
    [PERIGEE_STATS_WHY_APART] = "the peer is on another host",
    [PERIGEE_STATS_WHY_NOT_OFFERED] = "the peer does not offer it",
    [PERIGEE_STATS_WHY_USER] = "the peer runs as another user",
    [PERIGEE_STATS_WHY_RETURNED] = "the session could not move to it",
    [PERIGEE_STATS_WHY_STAYED] = "the session did not move to it",
    [PERIGEE_STATS_WHY_BARE] =
        ("what it carries is neither encrypted nor has MACs, and that is "
         "asked for"),
    [PERIGEE_STATS_WHY_NO_SOCKET] = "it needs a socket"};

static void choice_why_not(const struct perigee_session *s,
                           const struct perigee_transport *t,
                           char why[REASON]) {
  enum perigee_stats_why code = choice_why(s, t);
  const char *trouble = "";
  if (code == PERIGEE_STATS_WHY_NONE_HERE)
    trouble = fabric_trouble(s->engine, t);
  if (code == PERIGEE_STATS_WHY_ASKED)
    snprintf(why, REASON, "%s was asked for", s->target.transport);
  else if (code == PERIGEE_STATS_WHY_UNFIT)
    snprintf(why, REASON, "%s", transport_unfit(t));
  else if (code == PERIGEE_STATS_WHY_SECOND)
    snprintf(why, REASON, "%s comes first", s->transport->name);
  else if (code == PERIGEE_STATS_WHY_NONE_HERE)
    snprintf(why, REASON, "%s", *trouble ? trouble : "no device here");
  else
    snprintf(why, REASON, "%s", choice_sentences[code]);
}

/* The built in ones stand in order; faults keep the name of what they are put
 * in front of. */
static uint8_t choice_why_no_better(const struct perigee_session *s,
                                    const struct perigee_transport *better) {
  for (uint32_t i = 0; i < BUILT_IN; i++) {
    if (strcmp(built_in[i]->name, s->transport->name) == 0)
      break;
    if (built_in[i] == better)
      return (uint8_t)choice_why(s, better);
  }
  return PERIGEE_STATS_WHY_NOT;
}

void choice_note(struct perigee_session *s) {
  s->not_shm = choice_why_no_better(s, &transport_shm);
  s->not_verbs = choice_why_no_better(s, &transport_verbs);
}

void choice_considered(const struct perigee_session *s, char *text,
                       size_t size) {
  const struct perigee_transport *t;
  char why[REASON];
  size_t length = 0;
  *text = 0;
  if (!s->transport)
    return;
  for (uint32_t i = 0; length < size && (t = transport_at(s->engine, i)); i++) {
    if (t->additional || strcmp(t->name, s->transport->name) == 0)
      continue;
    choice_why_not(s, t, why);
    length += (size_t)snprintf(text + length, size - length, "%s%s: %s",
                               length ? "\n" : "", t->name, why);
  }
}

/* ---- Opening its half ---------------------------------------------------- */

static int choice_tell_lane(struct perigee_session *s, const void *bytes,
                            uint32_t length) {
  struct frame f = {.type = FRAME_LANE, .lane = {.length = (uint16_t)length}};
  memcpy(f.lane.bytes, bytes, length);
  return lane_tell(s, &f);
}

static void choice_poll_soon(struct perigee_session *s) {
  s->engine->poll_soon |= SOON_LOOK;
}

static bool choice_overdue(struct perigee_session *s, uint64_t bytes) {
  return engine_overdue(s->engine, bytes);
}

static void choice_spend(struct perigee_session *s, uint64_t bytes) {
  engine_spend(s->engine, bytes);
}

int choice_open(struct perigee_session *s, struct offer *offer,
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
      .sized = s->peer.features & FEATURE_STAGING,
      .places = s->peer.features & FEATURE_PLACES,
      .moves = s->peer.features & FEATURE_MOVES,
      .windows = s->peer.features & FEATURE_WINDOWS,
      .alone = s->alone,
      .dialed = s->dialed,
      .here = s->peer.here,
      .streams = o->streams,
      .heals = attach_heals(s),
      .patience = liveness_of_streams(s),
      .seal = s->security.intact ? s->security.keys->session : NULL,
      .bare = !s->security.sealed,
      .aes = s->security.aes,
      .share = s->account.share,
      .vault = &s->engine->vault,
      .session = s,
      .activate = hot_activate,
      .soon = choice_poll_soon,
      .watch = lane_watch,
      .close = lane_close,
      .detach = attach_closed,
      .tell = choice_tell_lane,
      .file = handing_file,
      .hand = handing_hand,
      .later = handing_later,
      .piece = &s->engine->budget.piece,
      .overdue = choice_overdue,
      .spend = choice_spend,
      .now = &s->engine->now,
      .clock = s->engine->options.clock,
      .context = s->engine->options.context,
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
