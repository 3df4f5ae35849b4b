/* SPDX-License-Identifier: Apache-2.0 */
#include "info.h"

#include <string.h>

static const char digits[] = "0123456789abcdef";
static const char blanks[] = " \t\r\n";

/* FNV-1a. It finds accidental damage. It does not protect against an attacker:
 * the text has to be carried by a channel that one trusts. */
static uint64_t sum_of(const uint8_t *bytes, uint32_t length) {
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (uint32_t i = 0; i < length; i++)
    sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
  return sum;
}

static char *hex(const void *bytes, uint32_t length, char *text) {
  for (const uint8_t *at = bytes, *end = at + length; at != end; at++) {
    *text++ = digits[*at >> 4];
    *text++ = digits[*at & 15];
  }
  return text;
}

void info_text(const uint8_t *bytes, uint32_t length, char text[INFO_TEXT]) {
  uint64_t sum = sum_of(bytes, length);
  memcpy(text, INFO_PREFIX, sizeof INFO_PREFIX);
  text = hex(bytes, length, text + strlen(INFO_PREFIX));
  *hex(&sum, sizeof sum, text) = 0;
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
static uint32_t unhex(const char *text, uint8_t *bytes, uint32_t room) {
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
static uint32_t checked(const char *text, uint8_t bytes[INFO_BYTES + 8]) {
  uint64_t sum;
  text += strspn(text, blanks);
  if (strncmp(text, INFO_PREFIX, strlen(INFO_PREFIX)) != 0)
    return 0;
  uint32_t length =
      unhex(text + strlen(INFO_PREFIX), bytes, INFO_BYTES + sizeof sum);
  if (length < 4 + sizeof sum)
    return 0;
  length -= sizeof sum;
  memcpy(&sum, bytes + length, sizeof sum);
  return sum == sum_of(bytes, length) ? length : 0;
}

/* Decodes the frame at *at if it has that type, and moves *at behind it. */
static bool next(const uint8_t *bytes, uint32_t length, uint32_t *at, int type,
                 struct frame *f) {
  int used = wire_frame(bytes + *at, length - *at, f);
  *at += used > 0 ? (uint32_t)used : 0;
  return used > 0 && f->type == type;
}

int info_read(const char *text, struct hello *hello, struct terms *terms,
              struct offer *offer) {
  uint8_t bytes[INFO_BYTES + 8];
  struct frame f;
  uint32_t version, length = checked(text, bytes), at = sizeof version;
  if (length == 0)
    return PERIGEE_PROTOCOL;
  memcpy(&version, bytes, sizeof version);
  if (version != INFO_VERSION)
    return PERIGEE_VERSION;
  if (!next(bytes, length, &at, FRAME_HELLO, &f))
    return PERIGEE_PROTOCOL;
  *hello = f.hello;
  if (!next(bytes, length, &at, FRAME_TERMS, &f))
    return PERIGEE_PROTOCOL;
  *terms = f.terms;
  if (!next(bytes, length, &at, FRAME_OFFER, &f) || f.offer.fd_count != 0 ||
      at != length)
    return PERIGEE_PROTOCOL;
  *offer = f.offer;
  return PERIGEE_OK;
}
