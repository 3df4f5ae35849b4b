/* SPDX-License-Identifier: Apache-2.0
 *
 * features.h - what a side can do beyond what its protocol version says. Each
 * tells its features in TERMS; those that both have are the session's. Bits that
 * this build does not know are ignored, so a feature may be added without a new
 * version; a bit is never given to another feature.
 */
#ifndef FEATURES_H
#define FEATURES_H

#include <stddef.h>
#include <stdint.h>

enum { FEATURE_TRACE = 1, FEATURE_LANES = 2 };

struct feature {
  uint64_t bit;
  const char *name;   /* as in options.features, and for people */
  const char *allows; /* what a peer may send to who has it */
};

/* The table ends with a name of NULL. */
extern const struct feature features[];

/* Its row, or NULL: this build knows no such bit. */
const struct feature *feature_of(uint64_t bit);
/* options.features: all but those that the text turns off. Text NULL: all.
 * PERIGEE_OK, or PERIGEE_INVALID and a sentence. */
int features_parse(const char *text, uint64_t *set, char *reason, size_t size);

#endif
