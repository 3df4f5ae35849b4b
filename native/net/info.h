/* SPDX-License-Identifier: Apache-2.0
 *
 * info.h - an endpoint's description, as a text that any channel can carry:
 * "perigee-endpoint:" and, in hexadecimal, u32 version, the frames HELLO, TERMS
 * and OFFER as in wire.h, and a check sum of all that. White space around it is
 * ignored.
 */
#ifndef INFO_H
#define INFO_H

#include "wire.h"

#define INFO_PREFIX "perigee-endpoint:"
enum { INFO_VERSION = 2 };
/* The most bytes of a description, and of its text with the final zero. */
enum {
  INFO_BYTES = 4 + 3 * FRAME_HEAD + sizeof(struct hello) +
               sizeof(struct terms) + 8 + OFFER_MAX
};
enum { INFO_TEXT = sizeof INFO_PREFIX + 2 * (INFO_BYTES + 8) };
_Static_assert(INFO_TEXT <= 4096, "as perigee.h promises");

/* Encodes bytes, with their check sum, as a text. */
void info_text(const uint8_t *bytes, uint32_t length, char text[INFO_TEXT]);
void info_write(const struct hello *, const struct terms *,
                const struct offer *, char text[INFO_TEXT]);
/* PERIGEE_OK, PERIGEE_VERSION, or PERIGEE_PROTOCOL if the text is no
 * description, is truncated, or was changed. An offer that was read has no
 * descriptors. */
int info_read(const char *text, struct hello *, struct terms *, struct offer *);

#endif
