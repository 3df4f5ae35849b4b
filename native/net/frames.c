/* SPDX-License-Identifier: Apache-2.0
 *
 * frames.c - encoding and decoding frames, which wire.h describes. found.c does
 * the body of FOUND, wire.c sends and reads them.
 */
#include <stddef.h>
#include <string.h>

#include "wire.h"

struct frame_head {
  uint32_t length;
  uint16_t type, zero;
};
_Static_assert(sizeof(struct frame_head) == FRAME_HEAD, "as documented");
_Static_assert(offsetof(struct hello, nonce) == HELLO_VERSIONS,
               "a hello begins as all do");
_Static_assert(sizeof(struct terms) <= FRAME_BODY, "terms fit in a frame");
_Static_assert(sizeof(struct offer) - sizeof(int) * (OFFER_FDS + 2) <=
                   FRAME_BODY,
               "an offer fits in a frame");

/* Lengths of the bodies; those of OFFER, FOUND and EXTRA vary. */
static const uint32_t body_length[FRAME_TYPES] = {
    [FRAME_HELLO] = sizeof(struct hello),
    [FRAME_READY] = sizeof(uint32_t),
    [FRAME_REFUSE] = sizeof(struct refuse),
    [FRAME_LOOKUP] = sizeof(struct lookup),
    [FRAME_LANE] = sizeof(((struct frame *)0)->lane),
    [FRAME_PROOF] = HANDSHAKE_MAC,
    [FRAME_ATTACH] = sizeof(struct attach),
    [FRAME_MOVE] = sizeof(struct move),
    [FRAME_TERMS] = sizeof(struct terms),
    [FRAME_RETRY] = sizeof(struct retry),
    [FRAME_DRAIN] = sizeof(struct drain),
};

static bool ends(const char *text, uint32_t room) {
  return memchr(text, 0, room) != NULL;
}

static bool terms_sound(const struct terms *t) {
  if (t->zero != 0 || !ends(t->name, TERMS_NAME))
    return false;
  if (t->transports > TRANSPORTS_MAX)
    return false;
  for (uint32_t i = 0; i < t->transports; i++)
    if (!ends(t->transport[i], TRANSPORT_NAME))
      return false;
  return true;
}

static bool drain_sound(const struct drain *d) {
  bool quiet = d->word == DRAIN_WORD_QUIET && d->taken == 0;
  return d->zero == 0 && (d->word == DRAIN_WORD_TAKEN || quiet);
}

static bool sound(const struct frame *f) {
  switch (f->type) {
  case FRAME_REFUSE:
    return f->refuse.status < 0 && ends(f->refuse.text, REFUSE_TEXT);
  case FRAME_LOOKUP:
    return ends(f->lookup.name, REGION_NAME + 1);
  case FRAME_ATTACH:
    return f->attach.zero == 0;
  case FRAME_MOVE:
    return f->move.zero == 0 && f->move.port <= 65535;
  case FRAME_LANE:
    return f->lane.length <= LANE_FRAME_MAX && f->lane.fds <= 1;
  case FRAME_TERMS:
    return terms_sound(&f->terms);
  case FRAME_DRAIN:
    return drain_sound(&f->drain);
  default:
    return true;
  }
}

bool wire_foreign(const struct hello *h) {
  return h->version_min > PROTOCOL_MAX || h->version_max < PROTOCOL_MIN;
}

/* The HELLO of another version may have any length and any meaning. */
static bool decode_hello(const uint8_t *body, uint32_t length,
                         struct hello *h) {
  *h = (struct hello){.magic = 0};
  if (length < HELLO_VERSIONS)
    return false;
  memcpy(h, body, HELLO_VERSIONS);
  if (h->magic != HELLO_MAGIC)
    return false;
  if (wire_foreign(h))
    return true;
  if (length != sizeof *h)
    return false;
  memcpy(h, body, length);
  return true;
}

static bool decode_offer(const uint8_t *body, uint32_t length,
                         struct offer *offer) {
  uint32_t prefix[2];
  if (length < sizeof prefix || length - sizeof prefix > OFFER_MAX)
    return false;
  memcpy(prefix, body, sizeof prefix);
  offer->fd_count = prefix[0];
  offer->length = length - (uint32_t)sizeof prefix;
  memcpy(offer->bytes, body + sizeof prefix, offer->length);
  return offer->fd_count <= OFFER_FDS && prefix[1] == 0;
}

/* As it travels, before the bytes. */
struct extra_head {
  uint8_t lane, word;
  uint16_t fds;
  int32_t status;
};

static bool decode_extra(const uint8_t *body, uint32_t length,
                         struct extra *extra) {
  struct extra_head head;
  if (length < sizeof head || length - sizeof head > OFFER_MAX)
    return false;
  memcpy(&head, body, sizeof head);
  bool offer = head.word == EXTRA_WORD_OFFER;
  bool lost = head.word == EXTRA_WORD_LOST;
  extra->lane = head.lane;
  extra->word = head.word;
  extra->status = head.status;
  extra->offer.fd_count = head.fds;
  extra->offer.length = length - (uint32_t)sizeof head;
  memcpy(extra->offer.bytes, body + sizeof head, extra->offer.length);
  return head.lane > 0 && head.word > 0 && head.word < EXTRA_WORDS &&
         head.fds <= (offer ? OFFER_FDS : 0) && lost == (head.status < 0) &&
         head.status <= 0;
}

static uint32_t encode_extra(const struct extra *extra, uint8_t *body) {
  struct extra_head head = {extra->lane, extra->word,
                            (uint16_t)extra->offer.fd_count, extra->status};
  memcpy(body, &head, sizeof head);
  memcpy(body + sizeof head, extra->offer.bytes, extra->offer.length);
  return (uint32_t)sizeof head + extra->offer.length;
}

static bool decode_body(const uint8_t *body, uint32_t length, struct frame *f) {
  if (f->type == FRAME_OFFER)
    return decode_offer(body, length, &f->offer);
  if (f->type == FRAME_FOUND)
    return found_decode(body, length, &f->found);
  if (f->type == FRAME_EXTRA)
    return decode_extra(body, length, &f->extra);
  if (f->type == FRAME_HELLO)
    return decode_hello(body, length, &f->hello);
  if (length != body_length[f->type])
    return false;
  memcpy(&f->hello, body, length);
  return sound(f);
}

int wire_frame(const uint8_t *bytes, uint32_t length, struct frame *f) {
  struct frame_head head;
  if (length < FRAME_HEAD)
    return 0;
  memcpy(&head, bytes, sizeof head);
  if (head.length > FRAME_BODY || head.zero != 0 || head.type == 0 ||
      head.type >= FRAME_TYPES)
    return PERIGEE_PROTOCOL;
  if (length - FRAME_HEAD < head.length)
    return 0;
  f->type = head.type;
  if (!decode_body(bytes + FRAME_HEAD, head.length, f))
    return PERIGEE_PROTOCOL;
  return (int)(FRAME_HEAD + head.length);
}

uint32_t wire_encode(const struct frame *f, uint8_t *bytes) {
  struct frame_head head = {.type = f->type};
  if (f->type == FRAME_OFFER) {
    uint32_t prefix[2] = {f->offer.fd_count, 0};
    head.length = 8 + f->offer.length;
    memcpy(bytes + FRAME_HEAD, prefix, 8);
    memcpy(bytes + FRAME_HEAD + 8, f->offer.bytes, f->offer.length);
  } else if (f->type == FRAME_FOUND) {
    head.length = found_encode(&f->found, bytes + FRAME_HEAD);
  } else if (f->type == FRAME_EXTRA) {
    head.length = encode_extra(&f->extra, bytes + FRAME_HEAD);
  } else {
    head.length = body_length[f->type];
    memcpy(bytes + FRAME_HEAD, &f->hello, head.length);
  }
  memcpy(bytes, &head, sizeof head);
  return FRAME_HEAD + head.length;
}

uint32_t wire_fds(const struct frame *f) {
  if (f->type == FRAME_OFFER)
    return f->offer.fd_count;
  if (f->type == FRAME_EXTRA)
    return f->extra.offer.fd_count;
  if (f->type == FRAME_LANE)
    return f->lane.fds;
  return f->type == FRAME_FOUND ? f->found.fds : 0;
}
