/* SPDX-License-Identifier: Apache-2.0 */
#include "hand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "session/sessions.h"
#include "transport/tcp/tcp.h"

static void require(bool holds) {
  if (!holds)
    abort();
}

/* ---- Coming and going ---------------------------------------------------- */

void hand_come(struct hand *h, struct perigee_engine *engine, bool dials) {
  int pair[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                     pair) == 0);
  *h = (struct hand){.engine = engine, .fd = pair[0], .dials = dials};
  h->session = session_new(engine, pair[1]);
  require(h->session != NULL);
  h->session->tcp = true;
  h->session->dialed = !dials;
  h->id = h->session->id;
  snprintf(h->session->target.address, sizeof h->session->target.address,
           "by hand");
  require(watch_add(engine, pair[1], &h->session->socket.watcher,
                    EPOLLIN | EPOLLRDHUP) == 0);
  h->session->engine->wireup->begin(h->session);
}

void hand_close(struct hand *h) {
  if (h->fd >= 0)
    close(h->fd);
  h->fd = -1;
  wire_close(&h->wire);
  seal_end(&h->out);
}

int hand_poll(struct hand *h, struct perigee_event *events, int capacity) {
  h->engine->sockets_due = true;
  int n = perigee_poll(h->engine, events, capacity);
  h->session = session_by_id(h->engine, h->id);
  return n;
}

/* ---- Words --------------------------------------------------------------- */

size_t hand_say(struct hand *h, const void *bytes, size_t length) {
  ssize_t n = send(h->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  return n > 0 ? (size_t)n : 0;
}

void hand_frame(struct hand *h, const struct frame *f) {
  wire_post(h->fd, &h->wire, f);
}

static void word(struct hand *h, bool ours, const struct frame *f) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  uint32_t length = wire_encode(f, bytes);
  if (f->type == FRAME_HELLO)
    handshake_hello(&h->shake, ours == h->dials, bytes, length);
  else
    handshake_word(&h->shake, ours == h->dials, bytes, length);
}

void hand_word(struct hand *h, const struct frame *f) {
  word(h, true, f);
  hand_frame(h, f);
}

bool hand_hears(struct hand *h, struct frame *f) {
  if (h->wire.length < sizeof h->wire.bytes)
    wire_read(h->fd, &h->wire);
  int status = wire_next(&h->wire, f);
  require(status >= 0);
  return status > 0;
}

size_t hand_drop(struct hand *h) {
  uint8_t bytes[16 << 10];
  size_t sum = 0;
  ssize_t n;
  while ((n = recv(h->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
    sum += (size_t)n;
  return sum;
}

/* ---- Hello --------------------------------------------------------------- */

void hand_hello(struct hand *h, struct frame *f) {
  const struct perigee_options *o = &h->engine->options;
  *f = (struct frame){.type = FRAME_HELLO};
  f->hello = (struct hello){.magic = HELLO_MAGIC,
                            .version_min = PROTOCOL_MIN,
                            .version_max = PROTOCOL_MAX,
                            .nonce = 2};
  h->wants = (struct terms){.epoch = 1,
                            .features = h->features,
                            .ring = o->ring,
                            .eager = o->eager,
                            .message = PAYLOAD_MAX,
                            .typed = 1 << 20,
                            .operations = o->operations,
                            .transports = 1,
                            .transport = {"tcp"},
                            .dead_after = h->dead_after ? h->dead_after : 60000,
                            .flags = seal_has_aes() ? TERMS_AES : 0};
  require(handshake_begin(&h->shake, h->dials, o->random, o->context,
                          f->hello.challenge, f->hello.public_key) == 0);
}

void hand_says_hello(struct hand *h, const struct frame *f) {
  hand_word(h, f);
}

bool hand_proof(struct hand *h, const struct secret *secret, struct frame *f) {
  *f = (struct frame){.type = FRAME_PROOF};
  int status = handshake_agree(&h->shake, secret, h->heard.public_key);
  if (status == PERIGEE_OK)
    handshake_prove(&h->shake, f->proof);
  return status == PERIGEE_OK;
}

/* Waits for the engine's next frame, which must be of this type. */
static bool says(struct hand *h, struct frame *f, int type) {
  struct perigee_event events[4];
  for (int i = 0; i < 8; i++) {
    if (hand_hears(h, f)) {
      if (f->type == type)
        word(h, false, f);
      return f->type == type;
    }
    hand_poll(h, events, 4);
  }
  return false;
}

static void seals(struct hand *h, bool ours) {
  uint8_t key[SEAL_KEY];
  struct seal *seal = &h->words[ours];
  handshake_seal_words(&h->shake, ours == h->dials, key);
  seal_begin(seal, key, false);
  *(ours ? &h->wire.seal_out : &h->wire.seal_in) = seal;
}

static void says_proof(struct hand *h) {
  struct frame f = {.type = FRAME_PROOF};
  handshake_prove(&h->shake, f.proof);
  hand_word(h, &f);
  seals(h, true);
}

static bool is_proven(struct hand *h) {
  struct frame f;
  if (!says(h, &f, FRAME_PROOF) || !handshake_proven(&h->shake, f.proof))
    return false;
  seals(h, false);
  return true;
}

bool hand_proves(struct hand *h, const struct secret *secret) {
  struct frame f, heard;
  hand_hello(h, &f);
  if (h->dials)
    hand_says_hello(h, &f);
  if (!says(h, &heard, FRAME_HELLO))
    return false;
  h->heard = heard.hello;
  if (!h->dials)
    hand_says_hello(h, &f);
  if (handshake_agree(&h->shake, secret, h->heard.public_key) < 0)
    return false;
  if (!h->dials)
    says_proof(h);
  if (!is_proven(h))
    return false;
  if (h->dials)
    says_proof(h);
  return true;
}

struct perigee_engine *hand_named(uint8_t name[HELLO_LOCAL]) {
  struct perigee_engine *engine;
  struct terms terms = {0};
  require(perigee_engine_open(NULL, &engine) == 0);
  struct perigee_session *s = session_new(engine, -1);
  require(s != NULL);
  s->tcp = true;
  migrate_terms(s, &terms);
  memcpy(name, terms.local, HELLO_LOCAL);
  return engine;
}

bool hand_moves(struct hand *h, const struct secret *secret,
                const uint8_t name[HELLO_LOCAL], uint64_t alias) {
  struct frame f = {.type = FRAME_TERMS};
  if (!hand_proves(h, secret))
    return false;
  f.terms = h->wants;
  f.terms.probe[0] = alias;
  memcpy(f.terms.local, name, HELLO_LOCAL);
  f.terms.user = (uint32_t)geteuid();
  strcpy(f.terms.transport[0], "shm");
  hand_word(h, &f);
  return says(h, &f, FRAME_TERMS) && says(h, &f, FRAME_MOVE);
}

bool hand_joins(struct hand *h, const struct secret *secret) {
  struct frame f = {.type = FRAME_TERMS};
  if (!hand_proves(h, secret))
    return false;
  f.terms = h->wants;
  hand_word(h, &f);
  if (!says(h, &f, FRAME_TERMS))
    return false;
  h->sealed = (f.terms.flags & TERMS_ENCRYPT) != 0;
  if (!says(h, &f, FRAME_OFFER))
    return false;
  const struct tcp_offer offer = {h->engine->options.ring, TCP_WINDOW};
  f = (struct frame){.type = FRAME_OFFER};
  memcpy(f.offer.bytes, &offer, sizeof offer);
  f.offer.length = sizeof offer;
  hand_word(h, &f);
  return says(h, &f, FRAME_READY);
}

bool hand_open(struct hand *h, const struct secret *secret) {
  struct frame f = {.type = FRAME_READY};
  struct perigee_event events[4];
  uint8_t key[SEAL_KEY];
  if (!hand_joins(h, secret))
    return false;
  hand_word(h, &f);
  hand_poll(h, events, 4);
  h->wire.seal_in = h->wire.seal_out = NULL;
  handshake_end(&h->shake, h->key);
  handshake_seal(h->key, 0, h->dials, key);
  seal_begin(&h->out, key, seal_has_aes());
  handshake_further(h->key);
  return true;
}

void hand_lane(struct hand *h, const void *bytes, uint32_t length) {
  uint8_t chunk[SEAL_CHUNK_MOST];
  const uint8_t *from = bytes;
  for (uint32_t n; h->sealed && length > 0; from += n, length -= n) {
    n = length < SEAL_MOST ? length : SEAL_MOST;
    hand_say(h, chunk, seal_close(&h->out, chunk, from, n));
  }
  if (length > 0)
    hand_say(h, from, length);
}
