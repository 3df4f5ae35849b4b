/* SPDX-License-Identifier: Apache-2.0
 *
 * lane_offers.c - how a session gets its additional lanes, and what the two
 * sides tell each other about them by EXTRA (lanes.h has the states). The
 * peer's frames are checked here: the lane's number, its order, and which word
 * it may send when.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fabrics.h"
#include "core/lanes.h"
#include "host/adopted.h"
#include "net/wire.h"
#include "sessions.h"

/* Stands before the name of an additional transport in TERMS. Peers that do not
 * know additional transports then do not take it for one that could carry the
 * session. */
enum { MARK = '+' };

/* ---- Which there are ----------------------------------------------------- */

static const struct perigee_transport *const additional_built_in[] = {
    &transport_cuda};

/* Returns transport number i, the program's before the built-in ones; NULL:
 * there are no more. */
static const struct perigee_transport *
additional_known(const struct perigee_engine *engine, uint32_t i) {
  const struct perigee_transport *const *t = engine->options.transports;
  for (; t && *t; t++)
    if (i-- == 0)
      return *t;
  return i < sizeof additional_built_in / sizeof *additional_built_in
             ? additional_built_in[i]
             : NULL;
}

static bool additional_could(const struct perigee_transport *t) {
  return !t->additional->could || t->additional->could();
}

void additional_look(struct perigee_engine *engine) {
  const struct perigee_transport *t;
  for (uint32_t i = 0; i < 64 && (t = additional_known(engine, i)); i++)
    if (t->additional && additional_could(t))
      engine->additional |= UINT64_C(1) << i;
}

/* Returns transport number i of those that could be beside a first lane; NULL:
 * there are no more. */
static const struct perigee_transport *
additional_at(const struct perigee_engine *engine, uint32_t i) {
  uint64_t left = engine->additional;
  while (left && i--)
    left &= left - 1;
  return left ? additional_known(engine, (uint32_t)__builtin_ctzll(left))
              : NULL;
}

/* Returns the transport by which one is there in this session, or NULL:
 * descriptors need a Unix socket. */
static const struct perigee_transport *
additional_for(const struct perigee_session *s,
               const struct perigee_transport *t) {
  return t->socket == SOCKET_UNIX && s->tcp ? t->additional->distant : t;
}

static bool additional_suits(const struct perigee_session *s,
                             const struct perigee_transport *t) {
  const struct perigee_transport *by = additional_for(s, t);
  return by == t || (by && additional_could(by));
}

void lanes_list(const struct perigee_session *s, struct terms *terms) {
  const struct perigee_transport *t;
  if (s->alone || !(s->engine->features & FEATURE_LANES))
    return;
  for (uint32_t i = 0;
       terms->transports < TRANSPORTS_MAX && (t = additional_at(s->engine, i));
       i++)
    if (additional_suits(s, t))
      snprintf(terms->transport[terms->transports++], TRANSPORT_NAME, "%c%s",
               MARK, t->name);
}

static const struct perigee_transport *
additional_named(const struct perigee_session *s, const char *name) {
  const struct perigee_transport *t;
  for (uint32_t i = 0; (t = additional_at(s->engine, i)); i++)
    if (strcmp(t->name, name) == 0)
      return additional_for(s, t);
  return NULL;
}

bool terms_offer(const struct terms *terms, const char *name) {
  for (uint32_t i = 0; i < terms->transports; i++)
    if (strcmp(terms->transport[i], name) == 0)
      return true;
  return false;
}

/* Has neither side asked by name that all is enciphered, or has MACs? */
static bool lanes_may_be_open(const struct perigee_session *s) {
  uint32_t flags = s->security.own_flags | s->peer.terms.flags;
  return !s->security.intact || !(flags & TERMS_STRICT);
}

static bool lanes_may_be(const struct perigee_session *s) {
  return (s->peer.features & FEATURE_LANES) && lanes_may_be_open(s) &&
         !s->alone;
}

/* Faults break any lane. */
static bool lanes_want_polls(const struct perigee_engine *engine,
                             const struct lane_list *l) {
  for (uint32_t i = 0; i < l->count; i++)
    if (l->extra[i].transport->poll || l->extra[i].transport->broken ||
        engine->faults)
      return true;
  return false;
}

bool lanes_agree(struct perigee_session *s, const struct terms *own) {
  const struct terms *order = s->dialed ? own : &s->peer.terms;
  const struct terms *other = s->dialed ? &s->peer.terms : own;
  if (!s->engine->additional)
    return true;
  struct lane_list *l = s->lanes = calloc(1, sizeof *s->lanes);
  if (!l)
    return false;
  for (uint32_t i = 0; lanes_may_be(s) && i < order->transports; i++) {
    const char *name = order->transport[i];
    const struct perigee_transport *t =
        *name == MARK ? additional_named(s, name + 1) : NULL;
    if (t && terms_offer(other, name) && l->count < LANES - 1)
      l->extra[l->count++].transport = t;
  }
  s->attends = s->alone || lanes_want_polls(s->engine, l);
  return true;
}

bool lanes_complete(const struct perigee_session *s) {
  return !s->lanes || s->lanes->heard == s->lanes->count;
}

/* ---- This side's halves -------------------------------------------------- */

static struct frame extra_word(uint32_t number, const void *bytes,
                               uint32_t length) {
  struct frame f = {
      .type = FRAME_EXTRA,
      .extra = {.lane = (uint8_t)number, .word = EXTRA_WORD_LANE}};
  f.extra.offer.length = length;
  memcpy(f.extra.offer.bytes, bytes, length);
  return f;
}

static int extra_tell(struct perigee_session *s, uint32_t number,
                      const void *bytes, uint32_t length) {
  struct frame f = extra_word(number, bytes, length);
  return lane_tell(s, &f);
}

/* A session whose socket was given away hands over no descriptors. Room in the
 * socket ends the engine's sleep, as the lane will try again. */
static int extra_hand(struct perigee_session *s, uint32_t number,
                      const void *bytes, uint32_t length, const int *fds,
                      uint32_t fd_count, const char **why) {
  struct frame f = extra_word(number, bytes, length);
  bool socket = !s->tcp && s->streams.state == STREAMS_SOCKET;
  *why = "the peer's socket is full";
  if (s->state == PERIGEE_SESSION_ENDED || (fd_count > 0 && !socket))
    return PERIGEE_AGAIN;
  f.extra.offer.fd_count = fd_count;
  int status = s->up->tell(s, &f, fds, fd_count);
  if (status == PERIGEE_AGAIN && socket)
    s->up->await_room(s);
  return status;
}

/* Transports do not know their lane's number, so each number has its own
 * functions. */
#define EXTRA_BY_NUMBER(n)                                                     \
  static int extra_tell_##n(struct perigee_session *s, const void *bytes,      \
                            uint32_t length) {                                 \
    return extra_tell(s, n, bytes, length);                                    \
  }                                                                            \
  static int extra_hand_##n(struct perigee_session *s, const void *bytes,      \
                            uint32_t length, int fd, const char **why) {       \
    return extra_hand(s, n, bytes, length, &fd, fd >= 0, why);                 \
  }                                                                            \
  static int extra_hand_pair_##n(struct perigee_session *s, const void *bytes, \
                                 uint32_t length, const int fds[2],            \
                                 const char **why) {                           \
    return extra_hand(s, n, bytes, length, fds, 2, why);                       \
  }
EXTRA_BY_NUMBER(1)
EXTRA_BY_NUMBER(2)
EXTRA_BY_NUMBER(3)

static const struct {
  int (*tell)(struct perigee_session *, const void *, uint32_t);
  int (*hand)(struct perigee_session *, const void *, uint32_t, int,
              const char **);
  int (*hand_pair)(struct perigee_session *, const void *, uint32_t,
                   const int[2], const char **);
} words[] = {{extra_tell_1, extra_hand_1, extra_hand_pair_1},
             {extra_tell_2, extra_hand_2, extra_hand_pair_2},
             {extra_tell_3, extra_hand_3, extra_hand_pair_3}};
_Static_assert(sizeof words / sizeof *words == LANES - 1, "one for each");

static struct lane_options extra_options(struct perigee_session *s,
                                         uint32_t number) {
  return (struct lane_options){
      .operations = s->engine->options.operations,
      .peer_pid = s->process.pid,
      .peer_pidfd = s->process.pidfd,
      .key = (s->handshake.nonce ^ s->peer.hello.nonce) + number,
      .pairs = s->peer.features & FEATURE_PAIRS,
      .dialed = s->dialed,
      .share = s->account.share,
      .session = s,
      .activate = hot_activate,
      .tell = words[number - 1].tell,
      .hand = words[number - 1].hand,
      .hand_pair = words[number - 1].hand_pair,
      .memories = &s->engine->memories,
      .now = &s->engine->now};
}

static int extra_open_half(struct perigee_session *s, uint32_t number,
                           struct offer *offer, char reason[REASON]) {
  struct extra_lane *x = &s->lanes->extra[number - 1];
  struct lane_options options = extra_options(s, number);
  *reason = 0;
  int status = fabric_of(s->engine, x->transport, &options.fabric, reason);
  if (status == PERIGEE_OK)
    status = x->transport->open(&options, &x->lane, offer, reason);
  if (status == PERIGEE_OK)
    status = lane_inject(s->engine, &x->lane, &x->transport, offer);
  if (status < 0 && !*reason)
    snprintf(reason, REASON, "it cannot be opened");
  return status;
}

static void extra_offer_half(struct perigee_session *s, uint32_t number) {
  struct frame f = {
      .type = FRAME_EXTRA,
      .extra = {.lane = (uint8_t)number, .word = EXTRA_WORD_OFFER}};
  struct offer *offer = &f.extra.offer;
  char reason[REASON];
  int status = extra_open_half(s, number, offer, reason);
  if (status < 0) {
    lanes_lose(s, number, status, reason, true);
    return;
  }
  s->lanes->extra[number - 1].state = EXTRA_OFFERED;
  s->up->send(s, &f, offer->fds, offer->fd_count);
  for (uint32_t i = 0; i < offer->fd_count; i++)
    close(offer->fds[i]);
}

void lanes_offer(struct perigee_session *s) {
  for (uint32_t n = 1;
       s->lanes && n <= s->lanes->count && s->state != PERIGEE_SESSION_ENDED;
       n++)
    extra_offer_half(s, n);
}

/* ---- The peer's ---------------------------------------------------------- */

static bool extra_take_descriptors(struct perigee_session *s,
                                   struct offer *offer) {
  for (uint32_t i = 0; i < offer->fd_count; i++)
    if ((offer->fds[i] = wire_take_fd(&s->socket.wire)) < 0) {
      while (i-- > 0)
        adopted_close(offer->fds[i]);
      return false;
    }
  return true;
}

static void extra_close_descriptors(const struct offer *offer) {
  for (uint32_t i = 0; i < offer->fd_count; i++)
    adopted_close(offer->fds[i]);
}

static int extra_join(struct perigee_session *s, uint32_t number,
                      const struct offer *said, bool vouched) {
  struct extra_lane *x = &s->lanes->extra[number - 1];
  struct offer offer = *said;
  char reason[REASON] = "";
  if (!extra_take_descriptors(s, &offer))
    return PERIGEE_PROTOCOL;
  if (x->state != EXTRA_OFFERED) { /* this side has no half */
    extra_close_descriptors(&offer);
    return PERIGEE_OK;
  }
  offer.vouched = vouched;
  int status = x->transport->join(x->lane, &offer, reason);
  if (status == PERIGEE_OK)
    x->state = EXTRA_OPEN;
  else
    lanes_lose(s, number, status,
               *reason ? reason : "the peer's half is not what it said", true);
  return PERIGEE_OK;
}

/* The peer chose the text, so unprintable characters are replaced. */
static void extra_lost_there(struct perigee_session *s, const struct extra *e) {
  char why[REASON];
  uint32_t length = e->offer.length < 200 ? e->offer.length : 200;
  snprintf(why, sizeof why, "the peer: %.*s", (int)length,
           (const char *)e->offer.bytes);
  for (char *c = why; *c; c++)
    if (*c < ' ' || *c > '~')
      *c = '?';
  lanes_lose(s, e->lane, status_of_peer(e->status), why, false);
}

static bool extra_hears(const struct extra_lane *x, uint32_t fd_count) {
  return x->state == EXTRA_OPEN &&
         (fd_count < 2 ? x->transport->heard != NULL
                       : x->transport->heard_pair != NULL);
}

static int extra_hear(const struct extra_lane *x, const struct offer *said) {
  return said->fd_count < 2
             ? x->transport->heard(x->lane, said->bytes, said->length,
                                   said->fd_count > 0 ? said->fds[0] : -1)
             : x->transport->heard_pair(x->lane, said->bytes, said->length,
                                        said->fds);
}

/* Only the lane is lost if the transport does not understand the message. A
 * word comes behind its half's OFFER, in the handshake or later, so this side's
 * half is open by then, or lost: nobody listens to a lost one. */
static void extra_lane_word(struct perigee_session *s, const struct extra *e) {
  struct extra_lane *x = &s->lanes->extra[e->lane - 1];
  struct offer said = e->offer;
  int status = PERIGEE_PROTOCOL;
  bool whole = extra_take_descriptors(s, &said);
  if (whole && extra_hears(x, said.fd_count))
    status = extra_hear(x, &said);
  else if (whole)
    extra_close_descriptors(&said);
  if (x->state != EXTRA_OPEN)
    return;
  if (status < 0)
    lanes_lose(s, e->lane, status, "the peer's half said what is no word of it",
               true);
}

int lanes_heard(struct perigee_session *s, const struct extra *e,
                bool vouched) {
  struct lane_list *l = s->lanes;
  if (!l || e->lane > l->count || e->lane > l->heard + 1)
    return PERIGEE_PROTOCOL;
  bool first = e->lane == l->heard + 1; /* OFFER or LOST; no later OFFER */
  if (e->word == (first ? EXTRA_WORD_LANE : EXTRA_WORD_OFFER))
    return PERIGEE_PROTOCOL;
  l->heard += first;
  s->engine->progress++;
  if (e->word == EXTRA_WORD_OFFER)
    return extra_join(s, e->lane, &e->offer, vouched);
  if (e->word == EXTRA_WORD_LOST)
    extra_lost_there(s, e);
  else
    extra_lane_word(s, e);
  return PERIGEE_OK;
}

/* ---- For people ---------------------------------------------------------- */

static const char *extra_why_none(const struct perigee_session *s,
                                  const struct perigee_transport *t) {
  if (s->alone)
    return "the session has no socket";
  const struct perigee_transport *by = additional_for(s, t);
  if (!by)
    return "it needs a Unix socket between the two processes";
  if (!additional_suits(s, t))
    return by->additional->needs;
  if (!(s->engine->features & FEATURE_LANES))
    return "the feature \"lanes\" is turned off here (option features)";
  if ((s->peer.features & FEATURE_LANES) && !lanes_may_be_open(s))
    return "what it carries is neither encrypted nor has MACs, and that is "
           "asked for";
  return "the peer does not have it";
}

static const struct extra_lane *extra_named(const struct perigee_session *s,
                                            const char *name) {
  for (uint32_t i = 0; i < s->lanes->count; i++) {
    const struct perigee_transport *t = s->lanes->extra[i].transport;
    if (t && strcmp(t->name, name) == 0)
      return &s->lanes->extra[i];
  }
  return NULL;
}

static void extra_kinds(const struct transport_additional *a, char *text,
                        size_t size) {
  size_t length = 0;
  *text = 0;
  for (const char *const *m = a->memories; *m && length < size; m++)
    length += (size_t)snprintf(text + length, size - length, "%s%s",
                               length ? ", " : "", *m);
}

/* What the devices whose memory it carries tell of themselves. */
static void extra_devices(const struct perigee_session *s,
                          const struct transport_additional *a, char *text,
                          size_t size) {
  size_t length = 0;
  *text = 0;
  for (const char *const *m = a->memories; *m && length + 1 < size; m++) {
    contexts_describe(&s->engine->memories, *m, text + length, size - length);
    length += strlen(text + length);
  }
}

static int extra_line(const struct perigee_session *s,
                      const struct perigee_transport *t, char *text,
                      size_t size) {
  const struct extra_lane *x = extra_named(s, t->name);
  char of[64], devices[REASON];
  if (!x || x->state != EXTRA_OPEN)
    return snprintf(text, size, "%s: %s", t->name,
                    !x                       ? extra_why_none(s, t)
                    : x->state == EXTRA_LOST ? x->why
                                             : "not yet");
  t = additional_for(s, t);
  extra_kinds(t->additional, of, sizeof of);
  extra_devices(s, t->additional, devices, sizeof devices);
  const char *trouble = t->trouble ? t->trouble(x->lane) : "";
  const char *note = t->additional->note ? t->additional->note : "";
  return snprintf(
      text, size,
      "%s: %s%s%s of %s memory, from %llu bytes on; %llu payloads and %llu "
      "items, %llu bytes so far%s%s%s%s%s",
      t->name, t->payloads ? "payloads" : "",
      t->payloads && t->jobs ? " and " : "", t->jobs ? "one-sided copies" : "",
      of, (unsigned long long)t->additional->least,
      (unsigned long long)x->payloads, (unsigned long long)x->transfers,
      (unsigned long long)x->bytes, *note ? "; " : "", note, devices,
      *trouble ? "; lately " : "", trouble);
}

const char *lanes_told(const struct perigee_session *s) {
  const struct perigee_transport *t;
  struct lane_list *l = s->lanes;
  size_t length = 0;
  if (!l)
    return "";
  *l->told = 0;
  for (uint32_t i = 0;
       length + 1 < sizeof l->told && (t = additional_at(s->engine, i)); i++) {
    if (length > 0)
      l->told[length++] = '\n';
    length +=
        (size_t)extra_line(s, t, l->told + length, sizeof l->told - length);
  }
  return l->told;
}
