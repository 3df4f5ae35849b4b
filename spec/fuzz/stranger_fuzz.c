/* SPDX-License-Identifier: Apache-2.0
 *
 * stranger_fuzz.c - a peer that does not have the secret, which has dialed an
 * engine or was dialed by it. It sends anything, in any pieces. It gets only a
 * HELLO, a refusal and, if the engine owes it one, the engine's proof. No
 * session opens, no region is looked up, no other session gets a stream, and
 * when the peer has gone nothing is left of it.
 *
 * decoders: native/wireup/wireup.c native/session/peer.c native/security/handshake.c native/session/streams.c
 */
#include "fuzz.h"
#include "session/sessions.h"
#include "transport/tcp/tcp.h"

enum { LEAN = 256 << 10 }; /* bytes that a stranger may cost meanwhile */

struct scene {
  struct perigee_engine *engine;
  struct perigee_region *region;
  struct hand friend;
  struct world world;
  int64_t allocated;
};

static const struct secret wrong = {.key = "not the secret", .set = true};

/* ---- The stage ----------------------------------------------------------- */

static uint64_t polled(struct hand *h) {
  struct perigee_event events[4];
  int n = hand_poll(h, events, 4);
  return n > 0 ? (uint64_t)n : 0;
}

static void stage_open(struct scene *s, const char *secret) {
  s->world.seed = 1;
  s->engine = engine_of(&s->world, secret, true);
  require(perigee_region_alloc(s->engine, "region", 4096, 3, NULL,
                               &s->region) == PERIGEE_OK);
  hand_come(&s->friend, s->engine, true);
  require(hand_open(&s->friend, s->engine->secret));
  for (int i = 0; i < 8; i++)
    polled(&s->friend);
  hand_drop(&s->friend);
}

/* The engine is as if only the friend had ever connected. */
static void is_untouched(struct scene *s) {
  const struct perigee_counters *c = perigee_counters(s->engine, NULL);
  require(s->friend.session->state == PERIGEE_SESSION_OPEN);
  require(s->friend.session->lane->stream_count == 1);
  require(s->region->granted == 0 && s->region->users == 0);
  require(c->operations == 0 && c->pooled == 0);
}

/* ---- What he hears -------------------------------------------------------- */

struct heard {
  int hellos, proofs, refusals, retries;
};

/* Frames after the engine's proof are sealed, and cannot be read here. */
static void hears(struct hand *h, struct heard *heard) {
  struct frame f;
  while (heard->proofs == 0 && hand_hears(h, &f)) {
    require(heard->refusals == 0);
    if (f.type == FRAME_HELLO) {
      h->heard = f.hello;
      heard->hellos++;
    } else if (f.type == FRAME_PROOF) {
      heard->proofs++;
    } else {
      require(f.type == FRAME_REFUSE);
      heard->refusals++;
    }
  }
  require(heard->hellos <= 1 + heard->retries && heard->proofs <= h->dials);
}

/* ---- What he says --------------------------------------------------------- */

static void says_bytes(struct hand *h, struct input *in) {
  uint8_t bytes[256];
  hand_say(h, bytes, take(in, bytes, take8(in)));
}

static void says_hello(struct hand *h, struct input *in) {
  struct frame f;
  uint8_t patches = take8(in) % 4;
  hand_hello(h, &f);
  for (; patches > 0; patches--) {
    size_t at = take16(in) % sizeof f.hello;
    ((uint8_t *)&f.hello)[at] = take8(in);
  }
  hand_says_hello(h, &f);
}

static void says_proof(struct hand *h, struct input *in) {
  struct frame f = {.type = FRAME_PROOF};
  if (take8(in) % 2 == 0 || !hand_proof(h, &wrong, &f))
    take(in, f.proof, sizeof f.proof);
  hand_frame(h, &f);
}

/* The nonce is not secret: anybody on the way can read it. */
static void says_attach(struct hand *h, struct input *in,
                        const struct scene *s) {
  struct frame f = {.type = FRAME_ATTACH};
  f.attach.session = s->friend.heard.nonce + (take8(in) % 4 == 0);
  f.attach.index = (uint32_t)take_edge(in);
  take(in, f.attach.mac, take8(in) % sizeof f.attach.mac);
  hand_frame(h, &f);
}

/* RETRY makes the engine send its HELLO once more. */
static void says_frame(struct hand *h, struct input *in, struct heard *heard) {
  struct frame f = {.type = (uint16_t)(1 + take8(in) % FRAME_TYPES)};
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  if (f.type >= FRAME_TYPES)
    return;
  heard->retries += f.type == FRAME_RETRY && !h->dials;
  if (f.type == FRAME_OFFER)
    f.offer.length = take8(in);
  else
    take(in, &f.refuse, take8(in));
  uint32_t length = wire_encode(&f, bytes);
  uint64_t said = take8(in) < 32 ? take_edge(in) : length;
  hand_say(h, bytes, said < length ? said : length);
}

/* Sends back what the engine said: mostly a hello, and a proof. */
static void says_after(struct hand *h, const struct heard *heard) {
  struct frame f = {.type = FRAME_HELLO, .hello = h->heard};
  if (heard->hellos > 0)
    hand_says_hello(h, &f);
}

static void speaks(struct scene *s, struct hand *h, struct input *in) {
  struct heard heard = {0};
  for (int i = 0; i < 64 && in->size > 0; i++) {
    switch (take8(in) % 7) {
    case 0:
      says_bytes(h, in);
      break;
    case 1:
      says_hello(h, in);
      break;
    case 2:
      says_proof(h, in);
      break;
    case 3:
      says_attach(h, in, s);
      break;
    case 4:
      says_frame(h, in, &heard);
      break;
    case 5:
      says_after(h, &heard);
      break;
    default:
      s->world.now += take8(in) == 0 ? s->engine->options.hello_timeout : 0;
    }
    require(polled(h) == 0);
    hears(h, &heard);
    hand_drop(&s->friend);
    is_untouched(s);
    require(allocated_by(s->engine) < s->allocated + LEAN);
  }
}

/* ---- One of them ----------------------------------------------------------- */

static void leaves(struct scene *s, struct hand *h) {
  hand_close(h);
  for (int i = 0; i < 4; i++) {
    require(polled(h) == 0);
    if (h->session && h->session->state == PERIGEE_SESSION_ENDED)
      perigee_session_free(h->session); /* as the dialer's program would */
  }
  require(h->session == NULL && s->engine->hellos == 0);
  require(perigee_counters(s->engine, NULL)->sessions == 1);
  is_untouched(s);
}

static void visit(struct scene *s, struct input *in, bool dials) {
  struct hand h;
  hand_come(&h, s->engine, dials);
  speaks(s, &h, in);
  leaves(s, &h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct scene stages[2];
  struct input in = {data, size}, none = {data, 0};
  uint8_t how = take8(&in);
  struct scene *s = &stages[how & 1];
  if (!s->engine) {
    stage_open(s, how & 1 ? "sixteen letters of secret" : "");
    visit(s, &none, true);
  }
  s->allocated = allocated_by(s->engine);
  visit(s, &in, (how & 2) == 0);
  require(allocated_by(s->engine) == s->allocated);
  return 0;
}
