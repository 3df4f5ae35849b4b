/* SPDX-License-Identifier: Apache-2.0
 *
 * frames.c - encoding and decoding frames, which wire.h describes, and the text
 * of an endpoint, which holds three of them; and the table of optional features. wire.c sends and reads
 * frames. Only the lane that a key of FOUND is for reads the bytes of the key.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "perigee.h"
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

static bool text_ends(const char *text, uint32_t room) {
  return memchr(text, 0, room) != NULL;
}

static bool terms_sound(const struct terms *t) {
  if (t->zero != 0 || !text_ends(t->name, TERMS_NAME))
    return false;
  if (t->transports > TRANSPORTS_MAX)
    return false;
  for (uint32_t i = 0; i < t->transports; i++)
    if (!text_ends(t->transport[i], TRANSPORT_NAME))
      return false;
  return true;
}

static bool drain_sound(const struct drain *d) {
  bool quiet = d->word == DRAIN_WORD_QUIET && d->taken == 0;
  return d->zero == 0 && (d->word == DRAIN_WORD_TAKEN || quiet);
}

static bool frame_is_sound(const struct frame *f) {
  switch (f->type) {
  case FRAME_REFUSE:
    return f->refuse.status < 0 && text_ends(f->refuse.text, REFUSE_TEXT);
  case FRAME_LOOKUP:
    return text_ends(f->lookup.name, REGION_NAME + 1);
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
static bool hello_decode(const uint8_t *body, uint32_t length,
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

static bool offer_decode(const uint8_t *body, uint32_t length,
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

static bool extra_decode(const uint8_t *body, uint32_t length,
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
         head.fds <= (offer  ? OFFER_FDS
                      : lost ? 0
                             : EXTRA_FDS) &&
         lost == (head.status < 0) && head.status <= 0;
}

static uint32_t extra_encode(const struct extra *extra, uint8_t *body) {
  struct extra_head head = {extra->lane, extra->word,
                            (uint16_t)extra->offer.fd_count, extra->status};
  memcpy(body, &head, sizeof head);
  memcpy(body + sizeof head, extra->offer.bytes, extra->offer.length);
  return (uint32_t)sizeof head + extra->offer.length;
}

/* ---- The body of FOUND --------------------------------------------------- */

enum { HEAD = offsetof(struct found, key), KEY_HEAD = 4 };
_Static_assert(HEAD == 40, "without keys it is as older builds have it");
_Static_assert(HEAD + FOUND_KEYS * (KEY_HEAD + KEY_MAX) <= FRAME_BODY,
               "an answer with all keys fits in a frame");
_Static_assert((int)KEY_FDS <= (int)WIRE_FDS,
               "and its descriptors in a message");

/* Returns whether the head alone describes the keys. */
static bool found_is_bare(const struct found *f) {
  return f->keys == 1 && f->key[0].lane == 0 && f->key[0].key.length == 0;
}

static bool found_decode_bare(struct found *f) {
  if (f->keys > 1)
    return false;
  f->keys = f->keys > 0 || f->fds > 0;
  f->key[0].key.fd_count = f->fds;
  return true;
}

/* Returns the number of bytes of the key, or 0 if it is not valid. */
static uint32_t found_decode_key(const uint8_t *at, uint32_t left,
                                 struct found_key *k) {
  uint16_t length;
  if (left < KEY_HEAD)
    return 0;
  memcpy(&length, at + 2, sizeof length);
  if (length > KEY_MAX || length > left - KEY_HEAD || at[1] > KEY_FDS)
    return 0;
  k->lane = at[0];
  k->key.fd_count = at[1];
  k->key.length = length;
  memcpy(k->key.bytes, at + KEY_HEAD, length);
  return KEY_HEAD + length;
}

static bool found_decode_keys(const uint8_t *at, uint32_t left,
                              struct found *f) {
  uint32_t used, fds = 0;
  for (uint32_t i = 0; i < f->keys; i++, at += used, left -= used) {
    used = found_decode_key(at, left, &f->key[i]);
    if (used == 0 || (i > 0 && f->key[i].lane <= f->key[i - 1].lane))
      return false;
    fds += f->key[i].key.fd_count;
  }
  return left == 0 && fds == f->fds && !found_is_bare(f);
}

static bool found_decode(const uint8_t *body, uint32_t length,
                         struct found *f) {
  *f = (struct found){.keys = 0};
  if (length < HEAD)
    return false;
  memcpy(f, body, HEAD);
  if (f->fds > KEY_FDS || f->keys > FOUND_KEYS)
    return false;
  return length > HEAD ? found_decode_keys(body + HEAD, length - HEAD, f)
                       : found_decode_bare(f);
}

static uint32_t found_encode_key(const struct found_key *k, uint8_t *at) {
  const uint32_t bytes = k->key.length;
  const uint16_t length = bytes < KEY_MAX ? (uint16_t)bytes : KEY_MAX;
  at[0] = (uint8_t)k->lane;
  at[1] = (uint8_t)k->key.fd_count;
  memcpy(at + 2, &length, sizeof length);
  memcpy(at + KEY_HEAD, k->key.bytes, length);
  return KEY_HEAD + length;
}

static uint32_t found_encode(const struct found *f, uint8_t *body) {
  uint32_t length = HEAD;
  memcpy(body, f, HEAD);
  for (uint32_t i = 0; i < f->keys && i < FOUND_KEYS && !found_is_bare(f); i++)
    length += found_encode_key(&f->key[i], body + length);
  return length;
}

/* ---- Frames -------------------------------------------------------------- */

static bool frame_decode_body(const uint8_t *body, uint32_t length,
                              struct frame *f) {
  if (f->type == FRAME_OFFER)
    return offer_decode(body, length, &f->offer);
  if (f->type == FRAME_FOUND)
    return found_decode(body, length, &f->found);
  if (f->type == FRAME_EXTRA)
    return extra_decode(body, length, &f->extra);
  if (f->type == FRAME_HELLO)
    return hello_decode(body, length, &f->hello);
  if (length != body_length[f->type])
    return false;
  memcpy(&f->hello, body, length);
  return frame_is_sound(f);
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
  if (!frame_decode_body(bytes + FRAME_HEAD, head.length, f))
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
    head.length = extra_encode(&f->extra, bytes + FRAME_HEAD);
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

/* ---- Texts of endpoints -------------------------------------------------- */

static const char digits[] = "0123456789abcdef";
static const char blanks[] = " \t\r\n";

/* FNV-1a. It finds accidental damage. It does not protect against an attacker:
 * the text has to be carried by a channel that one trusts. */
static uint64_t info_sum(const uint8_t *bytes, uint32_t length) {
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (uint32_t i = 0; i < length; i++)
    sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
  return sum;
}

static char *info_hex(const void *bytes, uint32_t length, char *text) {
  for (const uint8_t *at = bytes, *end = at + length; at != end; at++) {
    *text++ = digits[*at >> 4];
    *text++ = digits[*at & 15];
  }
  return text;
}

void info_text(const uint8_t *bytes, uint32_t length, char text[INFO_TEXT]) {
  uint64_t sum = info_sum(bytes, length);
  memcpy(text, INFO_PREFIX, sizeof INFO_PREFIX);
  text = info_hex(bytes, length, text + strlen(INFO_PREFIX));
  *info_hex(&sum, sizeof sum, text) = 0;
}

void info_write(const struct hello *hello, const struct terms *terms,
                const struct offer *offer, char text[INFO_TEXT]) {
  uint8_t bytes[INFO_BYTES];
  const struct frame frames[] = {{.type = FRAME_HELLO, .hello = *hello},
                                 {.type = FRAME_TERMS, .terms = *terms},
                                 {.type = FRAME_OFFER, .offer = *offer}};
  uint32_t version = INFO_VERSION, length = sizeof version;
  memcpy(bytes, &version, sizeof version);
  for (size_t i = 0; i < sizeof frames / sizeof *frames; i++)
    length += wire_encode(&frames[i], bytes + length);
  info_text(bytes, length, text);
}

/* Decodes hexadecimal digits: returns the number of bytes, or 0 if there are
 * none, too many, or an odd number of digits. */
static uint32_t info_unhex(const char *text, uint8_t *bytes, uint32_t room) {
  uint32_t length = 0;
  for (; *text && !strchr(blanks, *text); text += 2) {
    const char *high = strchr(digits, text[0]);
    const char *low = text[1] ? strchr(digits, text[1]) : NULL;
    if (!high || !low || length == room)
      return 0;
    bytes[length++] = (uint8_t)((high - digits) << 4 | (low - digits));
  }
  return text[strspn(text, blanks)] ? 0 : length;
}

/* Returns the bytes before the check sum if it is right, else 0. */
static uint32_t info_checked(const char *text, uint8_t bytes[INFO_BYTES + 8]) {
  uint64_t sum;
  text += strspn(text, blanks);
  if (strncmp(text, INFO_PREFIX, strlen(INFO_PREFIX)) != 0)
    return 0;
  uint32_t length =
      info_unhex(text + strlen(INFO_PREFIX), bytes, INFO_BYTES + sizeof sum);
  if (length < 4 + sizeof sum)
    return 0;
  length -= sizeof sum;
  memcpy(&sum, bytes + length, sizeof sum);
  return sum == info_sum(bytes, length) ? length : 0;
}

/* Decodes the frame at *at if it has that type, and moves *at behind it. */
static bool info_next(const uint8_t *bytes, uint32_t length, uint32_t *at,
                      int type, struct frame *f) {
  int used = wire_frame(bytes + *at, length - *at, f);
  *at += used > 0 ? (uint32_t)used : 0;
  return used > 0 && f->type == type;
}

int info_read(const char *text, struct hello *hello, struct terms *terms,
              struct offer *offer) {
  uint8_t bytes[INFO_BYTES + 8];
  struct frame f = {0};
  uint32_t version, length = info_checked(text, bytes), at = sizeof version;
  if (length == 0)
    return PERIGEE_PROTOCOL;
  memcpy(&version, bytes, sizeof version);
  if (version != INFO_VERSION)
    return PERIGEE_VERSION;
  if (!info_next(bytes, length, &at, FRAME_HELLO, &f))
    return PERIGEE_PROTOCOL;
  *hello = f.hello;
  if (!info_next(bytes, length, &at, FRAME_TERMS, &f))
    return PERIGEE_PROTOCOL;
  *terms = f.terms;
  if (!info_next(bytes, length, &at, FRAME_OFFER, &f) ||
      f.offer.fd_count != 0 || at != length)
    return PERIGEE_PROTOCOL;
  *offer = f.offer;
  return PERIGEE_OK;
}

/* ---- Optional features --------------------------------------------------- */

const struct feature features[] = {
    {FEATURE_TRACE, "trace", "requests with a trace context (record.h)"},
    {FEATURE_LANES, "lanes",
     "halves of additional lanes, and sources that name them (lanes.h)"},
    {FEATURE_STAGING, "staging",
     "payloads staged in a block of any size (transport/shm/shm_payload.c)"},
    {FEATURE_DRAIN, "drain",
     "that it takes no more calls, or has none under way (session/drain.c)"},
    {FEATURE_STREAMS, "streams",
     "streams for payloads that prove their life, and are attached anew once "
     "lost (transport/tcp/tcp_life.c)"},
    {FEATURE_PLACES, "places",
     "lists of places of its private memory (transport/shm/shm_payload.c)"},
    {FEATURE_MOVES, "moves",
     "rings that move to a block of their writer's "
     "(transport/shm/shm_moves.c)"},
    {FEATURE_WINDOWS, "windows",
     "pulls of what a staging block that is shorter than its payload lacks "
     "(transport/shm/shm_payload.c)"},
    {FEATURE_PAIRS, "pairs",
     "messages of additional lanes with two descriptors "
     "(transport/cuda/cuda_lane.h)"},
    {0, NULL, NULL}};

static const char separators[] = " ,\t\n";

const struct feature *feature_of(uint64_t bit) {
  const struct feature *f = features;
  while (f->name && f->bit != bit)
    f++;
  return f->name ? f : NULL;
}

const char *perigee_feature_name(int bit) {
  const struct feature *f =
      bit >= 0 && bit < 64 ? feature_of(UINT64_C(1) << bit) : NULL;
  return f ? f->name : NULL;
}

static const struct feature *feature_named(const char *name, size_t length) {
  const struct feature *f = features;
  while (f->name &&
         (strlen(f->name) != length || memcmp(f->name, name, length) != 0))
    f++;
  return f->name ? f : NULL;
}

int features_parse(const char *text, uint64_t *set, char *reason, size_t size) {
  *set = 0;
  for (const struct feature *f = features; f->name; f++)
    *set |= f->bit;
  for (text = text ? text : ""; *(text += strspn(text, separators));) {
    size_t length = strcspn(text, separators);
    const struct feature *f =
        *text == '-' ? feature_named(text + 1, length - 1) : NULL;
    if (!f) {
      snprintf(reason, size,
               "features: \"%.*s\" is no feature to turn off; -NAME turns off "
               "one that explain() lists",
               length < 64 ? (int)length : 64, text);
      return PERIGEE_INVALID;
    }
    *set &= ~f->bit;
    text += length;
  }
  return PERIGEE_OK;
}
