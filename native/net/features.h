/* SPDX-License-Identifier: Apache-2.0
 *
 * features.h - optional features beyond the protocol version. Each side tells
 * its features in TERMS; those that both have are the session's. Unknown bits
 * are ignored, so a feature may be added without a new version; a bit is never
 * reused for another feature.
 */
#ifndef FEATURES_H
#define FEATURES_H

#include <stddef.h>
#include <stdint.h>

enum {
  FEATURE_TRACE = 1,
  FEATURE_LANES = 2,
  FEATURE_STAGING = 4,
  FEATURE_DRAIN = 8,
  FEATURE_STREAMS = 16
};

struct feature {
  uint64_t bit;
  const char *name;   /* in options.features, and in messages */
  const char *allows; /* what a peer may send to a side that has it */
};

/* The table ends with a name of NULL. */
extern const struct feature features[];

/* Returns the bit's row, or NULL: this build knows no such bit. */
const struct feature *feature_of(uint64_t bit);
/* Parses options.features: all features but those that the text turns off; all
 * for NULL. PERIGEE_OK, or PERIGEE_INVALID and a sentence. */
int features_parse(const char *text, uint64_t *set, char *reason, size_t size);

#endif
