/* SPDX-License-Identifier: Apache-2.0
 *
 * fault_script.c - parses the script of faults.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"

enum { WORD = 64 };
static const int64_t DELAY_MAX = INT64_C(60000000000);
#define KNOWN "seed, drop, delay, duplicate, truncate, reorder and cut"

/* clang-format off */
static const struct chance {
  const char *name;
  size_t offset;
} chances[] = {
    {"drop", offsetof(struct script, drop)},
    {"duplicate", offsetof(struct script, duplicate)},
    {"truncate", offsetof(struct script, truncate)},
    {"reorder", offsetof(struct script, reorder)},
    {"cut", offsetof(struct script, cut)},
};
/* clang-format on */
enum { CHANCES = sizeof chances / sizeof *chances, SEED = CHANCES, DELAY };

static double *script_chance(struct script *script, size_t i) {
  return (double *)(void *)((char *)script + chances[i].offset);
}

static int script_wrong(char reason[REASON], const char *word,
                        const char *why) {
  snprintf(reason, REASON, "faults: \"%s\": %s", word, why);
  return PERIGEE_INVALID;
}

/* Parses digits with at most one point, and tells where they end. */
static bool script_decimal(const char *text, double *value, const char **end) {
  double scale = 0;
  size_t digits = 0;
  for (*value = 0; isdigit((uint8_t)*text) || (*text == '.' && scale == 0);
       text++) {
    if (*text == '.') {
      scale = 1;
      continue;
    }
    digits++;
    *value = *value * 10 + (*text - '0');
    scale *= 10;
  }
  *end = text;
  if (scale > 0)
    *value /= scale;
  return digits > 0 && digits < 19;
}

static const struct {
  const char *name;
  int64_t ns;
} units[] = {{"s", 1000000000}, {"ms", 1000000}, {"us", 1000}, {"ns", 1}};

static bool script_time(const char *text, int64_t *out) {
  double value;
  const char *unit;
  if (!script_decimal(text, &value, &unit))
    return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcmp(unit, units[i].name) != 0)
      continue;
    *out =
        value * units[i].ns > 1e18 ? INT64_MAX : (int64_t)(value * units[i].ns);
    return *out <= DELAY_MAX;
  }
  return false;
}

static bool script_seed(const char *text, uint64_t *seed) {
  if (!isdigit((uint8_t)*text) || strlen(text) > 19)
    return false;
  char *end;
  *seed = strtoull(text, &end, 10);
  return *end == 0 && *seed <= UINT64_C(1) << 63;
}

static int script_set(struct script *script, size_t key, const char *word,
                      const char *value, char reason[REASON]) {
  const char *end;
  if (key == SEED) {
    script->seeded = true;
    return script_seed(value, &script->seed)
               ? PERIGEE_OK
               : script_wrong(reason, word, "a seed is a number, 0 to 2^63");
  }
  if (key == DELAY)
    return script_time(value, &script->delay)
               ? PERIGEE_OK
               : script_wrong(
                     reason, word,
                     "a delay is a time like 5ms, 200us or 1s, at most 60s");
  double *chance = script_chance(script, key);
  if (!script_decimal(value, chance, &end) || *end || *chance > 1)
    return script_wrong(reason, word, "a probability is a number, 0 to 1");
  return PERIGEE_OK;
}

static size_t script_key(const char *word, size_t length) {
  size_t i = 0;
  while (i < CHANCES && (strlen(chances[i].name) != length ||
                         memcmp(chances[i].name, word, length) != 0))
    i++;
  if (i < CHANCES)
    return i;
  if (length == 4 && memcmp(word, "seed", 4) == 0)
    return SEED;
  return length == 5 && memcmp(word, "delay", 5) == 0 ? DELAY : DELAY + 1;
}

int script_parse(const char *text, struct script *script, char reason[REASON]) {
  uint32_t seen = 0;
  *script = (struct script){0};
  for (;;) {
    char word[WORD];
    text += strspn(text, ", \t\n");
    size_t length = strcspn(text, ", \t\n");
    if (length == 0)
      return PERIGEE_OK;
    snprintf(word, sizeof word, "%.*s",
             (int)(length < WORD ? length : WORD - 1), text);
    text += length;
    size_t name = strcspn(word, "="), key = script_key(word, name);
    if (key > DELAY || !word[name])
      return script_wrong(reason, word,
                          "each word is name=value; known are " KNOWN);
    if (seen & 1u << key)
      return script_wrong(reason, word, "it is said twice");
    seen |= 1u << key;
    int status = script_set(script, key, word, word + name + 1, reason);
    if (status < 0)
      return status;
  }
}

void script_text(const struct script *script, char text[SCRIPT_TEXT]) {
  int n = snprintf(text, SCRIPT_TEXT, "seed=%llu",
                   (unsigned long long)script->seed);
  size_t u = 0;
  while (script->delay % units[u].ns != 0)
    u++;
  if (script->delay > 0)
    n += snprintf(text + n, SCRIPT_TEXT - (size_t)n, " delay=%lld%s",
                  (long long)(script->delay / units[u].ns), units[u].name);
  struct script copy = *script;
  for (size_t i = 0; i < CHANCES && n < SCRIPT_TEXT; i++)
    if (*script_chance(&copy, i) > 0)
      n += snprintf(text + n, SCRIPT_TEXT - (size_t)n, " %s=%.9g",
                    chances[i].name, *script_chance(&copy, i));
}
