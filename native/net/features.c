/* SPDX-License-Identifier: Apache-2.0 */
#include "features.h"

#include <stdio.h>
#include <string.h>

#include "perigee.h"

const struct feature features[] = {
    {FEATURE_TRACE, "trace", "requests with a trace context (record.h)"},
    {FEATURE_LANES, "lanes",
     "halves of additional lanes, and sources that name them (lane_list.h)"},
    {FEATURE_STAGING, "staging",
     "payloads staged in a block of any size (transport/shm/shm_payload.c)"},
    {FEATURE_DRAIN, "drain",
     "that it takes no more calls, or has none under way (session/drain.c)"},
    {FEATURE_STREAMS, "streams",
     "streams for payloads that prove their life, and are attached anew once "
     "lost (transport/tcp/tcp_life.c)"},
    {0, NULL, NULL}};

static const char blanks[] = " ,\t\n";

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
  for (text = text ? text : ""; *(text += strspn(text, blanks));) {
    size_t length = strcspn(text, blanks);
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
