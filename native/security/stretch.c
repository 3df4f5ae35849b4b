/* SPDX-License-Identifier: Apache-2.0 */
#include "stretch.h"

#include <ctype.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "perigee.h"
#include "secret.h"

enum { RESULTS = 16, NAME = 32 };

/* The cache of the process. */
struct kept {
  uint8_t mask[NAME]; /* key of the hashes by which results are found */
  struct {
    uint8_t name[NAME], key[STRETCH_KEY];
  } results[RESULTS];
  uint32_t used;
  char text[SECRET_MOST + 2]; /* the environment's secret */
  size_t length;
  char *place; /* where the environment has it */
};

static struct kept *kept;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) {
  pthread_mutex_lock(&mutex);
}

static void unlock(void) {
  pthread_mutex_unlock(&mutex);
}

/* The caller holds the lock. A child that forks meanwhile finds it unlocked. */
static struct kept *keep(void) {
  if (kept || !(kept = sodium_malloc(sizeof *kept)))
    return kept;
  memset(kept, 0, sizeof *kept);
  randombytes_buf(kept->mask, sizeof kept->mask);
  pthread_atfork(lock, unlock, unlock);
  return kept;
}

/* ---- Forms --------------------------------------------------------------- */

static int distinct(const char *bytes, size_t length) {
  bool seen[256] = {false};
  int count = 0;
  for (size_t i = 0; i < length; i++) {
    count += !seen[(uint8_t)bytes[i]];
    seen[(uint8_t)bytes[i]] = true;
  }
  return count;
}

static bool is_hex(const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (!isxdigit((uint8_t)bytes[i]))
      return false;
  return length == 64 && distinct(bytes, length) >= 8;
}

/* A chosen text of that length hardly has upper case, lower case and digits. */
static bool is_base64(const char *bytes, size_t length) {
  int upper = 0, lower = 0, digits = 0;
  if (length == 44 && bytes[43] == '=')
    length--;
  for (size_t i = 0; i < length; i++) {
    uint8_t c = (uint8_t)bytes[i];
    if (c == 0 || c > '~' || !(isalnum(c) || strchr("+/-_", c)))
      return false;
    upper += isupper(c) != 0;
    lower += islower(c) != 0;
    digits += isdigit(c) != 0;
  }
  return length == 43 && upper && lower && digits &&
         distinct(bytes, length) >= 16;
}

/* Returns how many bytes follow the first of a UTF-8 character; -1 if none can
 * begin so. */
static int follow(uint8_t first) {
  if (first < 0x80)
    return first >= ' ' && first != 0x7f ? 0 : -1;
  return first < 0xc2   ? -1
         : first < 0xe0 ? 1
         : first < 0xf0 ? 2
         : first < 0xf5 ? 3
                        : -1;
}

static bool is_text(const char *bytes, size_t length) {
  for (size_t i = 0; i < length;) {
    int more = follow((uint8_t)bytes[i++]);
    if (more < 0)
      return false;
    for (; more > 0; more--, i++)
      if (i == length || ((uint8_t)bytes[i] & 0xc0) != 0x80)
        return false;
  }
  return true;
}

bool stretch_random(const char *bytes, size_t length) {
  return is_hex(bytes, length) || is_base64(bytes, length) ||
         (length == 32 && !is_text(bytes, length));
}

/* ---- Stretching ---------------------------------------------------------- */

/* Hashes scope and text, by which a result is found. The scope comes first,
 * with its length. */
static void name_of(const struct kept *k, const char *bytes, size_t length,
                    const char *scope, uint8_t name[NAME]) {
  crypto_generichash_state state;
  uint64_t scope_length = strlen(scope);
  crypto_generichash_init(&state, k->mask, sizeof k->mask, NAME);
  crypto_generichash_update(&state, (uint8_t *)&scope_length, 8);
  crypto_generichash_update(&state, (const uint8_t *)scope, scope_length);
  crypto_generichash_update(&state, (const uint8_t *)bytes, length);
  crypto_generichash_final(&state, name, NAME);
  sodium_memzero(&state, sizeof state);
}

static bool recall(const struct kept *k, const uint8_t name[NAME],
                   uint8_t key[STRETCH_KEY]) {
  for (uint32_t i = 0; i < k->used && i < RESULTS; i++)
    if (memcmp(k->results[i].name, name, NAME) == 0) {
      memcpy(key, k->results[i].key, STRETCH_KEY);
      return true;
    }
  return false;
}

/* Replaces the oldest result. */
static void remember(struct kept *k, const uint8_t name[NAME],
                     const uint8_t key[STRETCH_KEY]) {
  uint32_t at = k->used++ % RESULTS;
  if (k->used == 2 * RESULTS) /* keeps the counter from overflowing */
    k->used = RESULTS;
  memcpy(k->results[at].name, name, NAME);
  memcpy(k->results[at].key, key, STRETCH_KEY);
}

static int compute(const char *bytes, size_t length, const char *scope,
                   uint8_t key[STRETCH_KEY]) {
  static const char use[] = "perigee stretch 1";
  uint8_t salt[crypto_pwhash_SALTBYTES];
  crypto_generichash(salt, sizeof salt, (const uint8_t *)scope, strlen(scope),
                     (const uint8_t *)use, sizeof use - 1);
  int bad = crypto_pwhash(
      key, STRETCH_KEY, bytes, length, salt, crypto_pwhash_OPSLIMIT_INTERACTIVE,
      crypto_pwhash_MEMLIMIT_INTERACTIVE, crypto_pwhash_ALG_ARGON2ID13);
  return bad ? PERIGEE_NO_MEMORY : PERIGEE_OK;
}

int stretch(const char *bytes, size_t length, const char *scope,
            uint8_t key[STRETCH_KEY]) {
  uint8_t name[NAME];
  lock();
  struct kept *k = keep();
  if (k)
    name_of(k, bytes, length, scope, name);
  bool known = k && recall(k, name, key);
  unlock();
  if (known)
    return PERIGEE_OK;
  int status = compute(bytes, length, scope, key); /* without the lock */
  lock();
  if (k && status == PERIGEE_OK)
    remember(k, name, key);
  unlock();
  return status;
}

/* ---- The environment ----------------------------------------------------- */

static void take_out(struct kept *k, char *value) {
  k->length = strnlen(value, sizeof k->text);
  memcpy(k->text, value, k->length);
  k->place = value;
  sodium_memzero(value, strlen(value));
  *value = *STRETCH_TAKEN;
}

static int64_t copy_out(const char *from, size_t length, char *text,
                        size_t room) {
  size_t fits = length < room ? length : room;
  memcpy(text, from, fits);
  return (int64_t)fits;
}

static int64_t look(char *value, char *text, size_t room) {
  if (!value || !*value)
    return 0;
  if (strncmp(value, "file:", 5) == 0)
    return copy_out(value, strlen(value), text, room);
  struct kept *k = keep();
  if (!k)
    return PERIGEE_NO_MEMORY;
  if (strcmp(value, STRETCH_TAKEN) != 0)
    take_out(k, value);
  else if (k->place != value)
    return PERIGEE_DENIED;
  return copy_out(k->text, k->length, text, room);
}

int64_t stretch_environment(char *text, size_t room) {
  lock();
  int64_t length = look(getenv("PERIGEE_SECRET"), text, room);
  unlock();
  return length;
}
