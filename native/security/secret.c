/* SPDX-License-Identifier: Apache-2.0
 *
 * secret.c - reads the secret, stretches it and makes the key (secret.h).
 *
 * Stretching makes secrets that a person may have chosen slow to guess.
 *
 * A process that dials a listener gets its proof (peer.c) and can try secrets
 * on it offline. So a text is stretched by Argon2id, which takes some 0.1 s and
 * 64 MiB for each guess, on this machine as on the attacker's. The salt must be
 * the same on both sides, which know nothing of each other yet: it is a fixed
 * text and the scope. So tables can be computed in advance for a scope, and for
 * everybody without a scope: for a chosen secret, a scope of its own is worth
 * having. 32 random bytes cannot be guessed and are not stretched; they are
 * recognised by their form: 64 hexadecimal digits, base64, or 32 bytes that are
 * no text.
 *
 * Each text and scope is stretched once in a process. The results, and the
 * secret that was taken out of the environment, are kept in locked memory.
 */
#include "secret.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "perigee.h"

_Static_assert(SECRET_KEY == crypto_generichash_BYTES, "a hash is a key");
_Static_assert(SECRET_KEY == crypto_kdf_KEYBYTES, "of which others are made");

/* ---- Stretching: results of this process --------------------------------- */

enum { STRETCH_KEY = 32 };

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

static void stretch_lock(void) {
  pthread_mutex_lock(&mutex);
}

static void stretch_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

/* The caller holds the lock. A child that forks meanwhile finds it unlocked. */
static struct kept *stretch_cache(void) {
  if (kept || !(kept = sodium_malloc(sizeof *kept)))
    return kept;
  memset(kept, 0, sizeof *kept);
  randombytes_buf(kept->mask, sizeof kept->mask);
  pthread_atfork(stretch_lock, stretch_unlock, stretch_unlock);
  return kept;
}

/* ---- Stretching: forms --------------------------------------------------- */

static int stretch_distinct(const char *bytes, size_t length) {
  bool seen[256] = {false};
  int count = 0;
  for (size_t i = 0; i < length; i++) {
    count += !seen[(uint8_t)bytes[i]];
    seen[(uint8_t)bytes[i]] = true;
  }
  return count;
}

static bool stretch_is_hex(const char *bytes, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (!isxdigit((uint8_t)bytes[i]))
      return false;
  return length == 64 && stretch_distinct(bytes, length) >= 8;
}

/* A chosen text of that length hardly has upper case, lower case and digits. */
static bool stretch_is_base64(const char *bytes, size_t length) {
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
         stretch_distinct(bytes, length) >= 16;
}

/* Returns how many bytes follow the first of a UTF-8 character; -1 if none can
 * begin so. */
static int stretch_follow(uint8_t first) {
  if (first < 0x80)
    return first >= ' ' && first != 0x7f ? 0 : -1;
  return first < 0xc2   ? -1
         : first < 0xe0 ? 1
         : first < 0xf0 ? 2
         : first < 0xf5 ? 3
                        : -1;
}

static bool stretch_is_text(const char *bytes, size_t length) {
  for (size_t i = 0; i < length;) {
    int more = stretch_follow((uint8_t)bytes[i++]);
    if (more < 0)
      return false;
    for (; more > 0; more--, i++)
      if (i == length || ((uint8_t)bytes[i] & 0xc0) != 0x80)
        return false;
  }
  return true;
}

bool stretch_random(const char *bytes, size_t length) {
  return stretch_is_hex(bytes, length) || stretch_is_base64(bytes, length) ||
         (length == 32 && !stretch_is_text(bytes, length));
}

/* ---- Stretching: computing ----------------------------------------------- */

/* Hashes scope and text, by which a result is found. The scope comes first,
 * with its length. */
static void stretch_name(const struct kept *k, const char *bytes, size_t length,
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

static bool stretch_recall(const struct kept *k, const uint8_t name[NAME],
                           uint8_t key[STRETCH_KEY]) {
  for (uint32_t i = 0; i < k->used && i < RESULTS; i++)
    if (memcmp(k->results[i].name, name, NAME) == 0) {
      memcpy(key, k->results[i].key, STRETCH_KEY);
      return true;
    }
  return false;
}

/* Replaces the oldest result. */
static void stretch_remember(struct kept *k, const uint8_t name[NAME],
                             const uint8_t key[STRETCH_KEY]) {
  uint32_t at = k->used++ % RESULTS;
  if (k->used == 2 * RESULTS) /* keeps the counter from overflowing */
    k->used = RESULTS;
  memcpy(k->results[at].name, name, NAME);
  memcpy(k->results[at].key, key, STRETCH_KEY);
}

static int stretch_compute(const char *bytes, size_t length, const char *scope,
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

/* PERIGEE_OK, or PERIGEE_NO_MEMORY. */
static int stretch_text(const char *bytes, size_t length, const char *scope,
                        uint8_t key[STRETCH_KEY]) {
  uint8_t name[NAME];
  stretch_lock();
  struct kept *k = stretch_cache();
  if (k)
    stretch_name(k, bytes, length, scope, name);
  bool known = k && stretch_recall(k, name, key);
  stretch_unlock();
  if (known)
    return PERIGEE_OK;
  int status =
      stretch_compute(bytes, length, scope, key); /* without the lock */
  stretch_lock();
  if (k && status == PERIGEE_OK)
    stretch_remember(k, name, key);
  stretch_unlock();
  return status;
}

/* ---- Stretching: the environment ----------------------------------------- */

static void stretch_take_out(struct kept *k, char *value) {
  k->length = strnlen(value, sizeof k->text);
  memcpy(k->text, value, k->length);
  k->place = value;
  sodium_memzero(value, strlen(value));
  *value = *STRETCH_TAKEN;
}

static int64_t stretch_copy_out(const char *from, size_t length, char *text,
                                size_t room) {
  size_t fits = length < room ? length : room;
  memcpy(text, from, fits);
  return (int64_t)fits;
}

static int64_t stretch_look(char *value, char *text, size_t room) {
  if (!value || !*value)
    return 0;
  if (strncmp(value, "file:", 5) == 0)
    return stretch_copy_out(value, strlen(value), text, room);
  struct kept *k = stretch_cache();
  if (!k)
    return PERIGEE_NO_MEMORY;
  if (strcmp(value, STRETCH_TAKEN) != 0)
    stretch_take_out(k, value);
  else if (k->place != value)
    return PERIGEE_DENIED;
  return stretch_copy_out(k->text, k->length, text, room);
}

/* Reads PERIGEE_SECRET from the environment: returns its length, at most room;
 * 0 if it is not set; or a status. A reference to a file stays there. A secret
 * is taken out of the environment at the first call, also where the system
 * shows it (/proc/PID/environ). The variable then holds STRETCH_TAKEN, also in
 * children, for whom that is an error (PERIGEE_DENIED). */
static int64_t stretch_environment(char *text, size_t room) {
  stretch_lock();
  int64_t length = stretch_look(getenv("PERIGEE_SECRET"), text, room);
  stretch_unlock();
  return length;
}

/* ---- Loading ------------------------------------------------------------- */

struct text {
  char bytes[SECRET_MOST + 2]; /* room for a newline and one byte too many */
  size_t length;
  bool from_file;
};

struct complaint {
  char *reason;
  size_t room;
};

bool secret_library(void) {
  return sodium_init() >= 0;
}

static int secret_complain(const struct complaint *c, int status,
                           const char *path, const char *what) {
  snprintf(c->reason, c->room, "the secret's file %s %s", path, what);
  return status;
}

/* ---- Loading: a file ----------------------------------------------------- */

static int secret_check_file(int fd, const char *path,
                             const struct complaint *c) {
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
    return secret_complain(c, PERIGEE_DENIED, path, "is not a regular file");
  if (st.st_uid != geteuid() && st.st_uid != 0)
    return secret_complain(c, PERIGEE_DENIED, path,
                           "belongs to another user; make a copy of your own");
  if (st.st_mode & (S_IRWXG | S_IRWXO))
    return secret_complain(c, PERIGEE_DENIED, path,
                           "is open to other users; close it with chmod 600");
  return PERIGEE_OK;
}

static int secret_not_opened(const char *path, const struct complaint *c) {
  char what[128];
  int status = errno == ENOENT   ? PERIGEE_NOT_FOUND
               : errno == EACCES ? PERIGEE_DENIED
                                 : system_status(errno);
  if (errno == ELOOP)
    return secret_complain(c, PERIGEE_DENIED, path,
                           "is a symbolic link; name the file itself");
  snprintf(what, sizeof what, "cannot be read: %s", system_text(errno));
  return secret_complain(c, status, path, what);
}

/* Editors of Windows end lines in CR LF and begin texts with a mark. To who
 * wrote the same words elsewhere that would be another secret, and nothing
 * would tell them why. */
static int secret_check_form(const struct text *text, const char *path,
                             const struct complaint *c) {
  const char *end = text->bytes + text->length;
  if (text->length >= 2 && memcmp(end - 2, "\r\n", 2) == 0)
    return secret_complain(
        c, PERIGEE_DENIED, path,
        "ends in CR LF, which would be part of the secret; write "
        "it anew without CR, by tr -d '\\r'");
  if (memcmp(text->bytes, "\xef\xbb\xbf", 3) == 0 ||
      memcmp(text->bytes, "\xff\xfe", 2) == 0)
    return secret_complain(
        c, PERIGEE_DENIED, path,
        "begins with a byte order mark, which would be part of the "
        "secret; write it anew as plain text");
  return PERIGEE_OK;
}

/* Reads without stdio, whose buffers would keep a copy of the secret. */
static int secret_read_all(int fd, const char *path, struct text *text,
                           const struct complaint *c) {
  ssize_t n = 1;
  while (n > 0 && text->length < sizeof text->bytes) {
    n = read(fd, text->bytes + text->length, sizeof text->bytes - text->length);
    if (n < 0 && errno != EINTR)
      return secret_not_opened(path, c);
    text->length += n > 0 ? (size_t)n : 0;
    n = n < 0 ? 1 : n;
  }
  int status = secret_check_form(text, path, c);
  if (text->length && text->bytes[text->length - 1] == '\n')
    text->length--;
  return status;
}

static int secret_read_file(const char *path, struct text *text,
                            const struct complaint *c) {
  int fd =
      open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  text->from_file = true;
  if (fd < 0)
    return secret_not_opened(path, c);
  int status = secret_check_file(fd, path, c);
  if (status == PERIGEE_OK)
    status = secret_read_all(fd, path, text, c);
  close(fd);
  return status;
}

/* ---- Loading: from any of the places ------------------------------------- */

static int secret_read_text(const char *given, struct text *text,
                            const struct complaint *c) {
  if (strncmp(given, "file:", 5) == 0)
    return secret_read_file(given + 5, text, c);
  text->length = strnlen(given, sizeof text->bytes);
  memcpy(text->bytes, given, text->length);
  return PERIGEE_OK;
}

/* Reads PERIGEE_SECRET, if it is set, or the file that it names. */
static int secret_read_environment(struct text *text,
                                   const struct complaint *c) {
  char path[sizeof text->bytes];
  int64_t length = stretch_environment(text->bytes, sizeof text->bytes - 1);
  if (length == PERIGEE_DENIED)
    snprintf(c->reason, c->room,
             "PERIGEE_SECRET was cleared by the process that read it, this "
             "one's parent: children have it by PERIGEE_SECRET=file:PATH");
  else if (length < 0)
    snprintf(c->reason, c->room, "no memory to keep PERIGEE_SECRET in");
  if (length < 0)
    return (int)length;
  text->bytes[length] = 0;
  text->length = (size_t)length;
  if (strncmp(text->bytes, "file:", 5) != 0)
    return PERIGEE_OK;
  memcpy(path, text->bytes + 5, text->length - 4);
  text->length = 0;
  return secret_read_file(path, text, c);
}

/* Hashes scope and secret. The scope comes first with its length, so that no
 * two pairs of scope and secret hash the same bytes. */
static void secret_make_key(const char *bytes, size_t count, const char *scope,
                            struct secret *secret) {
  static const uint8_t salt[crypto_generichash_blake2b_SALTBYTES],
      use[crypto_generichash_blake2b_PERSONALBYTES] = "perigee secret 2";
  crypto_generichash_blake2b_state state;
  uint64_t length = strlen(scope);
  crypto_generichash_blake2b_init_salt_personal(&state, NULL, 0, SECRET_KEY,
                                                salt, use);
  crypto_generichash_blake2b_update(&state, (uint8_t *)&length, sizeof length);
  crypto_generichash_blake2b_update(&state, (const uint8_t *)scope, length);
  crypto_generichash_blake2b_update(&state, (const uint8_t *)bytes, count);
  crypto_generichash_blake2b_final(&state, secret->key, SECRET_KEY);
  sodium_memzero(&state, sizeof state);
  secret->set = true;
}

/* Replaces the text by its stretched key. */
static int secret_stretch(struct text *text, const char *scope,
                          const struct complaint *c) {
  uint8_t key[STRETCH_KEY];
  if (stretch_random(text->bytes, text->length))
    return PERIGEE_OK;
  int status = stretch_text(text->bytes, text->length, scope, key);
  if (status < 0)
    snprintf(c->reason, c->room,
             "no memory to stretch the secret, which takes 64 MiB for a moment "
             "(not where it is 32 random bytes, in base64)");
  sodium_memzero(text->bytes, text->length);
  memcpy(text->bytes, key, sizeof key);
  text->length = sizeof key;
  sodium_memzero(key, sizeof key);
  return status;
}

/* A file with a bad length is not the program's mistake, so not
 * PERIGEE_INVALID. */
static int secret_check_length(size_t length, bool from_file,
                               const struct complaint *c) {
  if (length >= SECRET_LEAST && length <= SECRET_MOST)
    return PERIGEE_OK;
  snprintf(c->reason, c->room, "a secret has %d to %d bytes, this one has %s",
           SECRET_LEAST, SECRET_MOST, length > SECRET_MOST ? "more" : "fewer");
  return from_file ? PERIGEE_DENIED : PERIGEE_INVALID;
}

/* A text that a shell or a unit took from a file with CR LF. */
static int secret_check_end(const struct text *text,
                            const struct complaint *c) {
  if (text->from_file || !text->length || text->bytes[text->length - 1] != '\r')
    return PERIGEE_OK;
  snprintf(c->reason, c->room,
           "the secret ends in CR, as a line of a file with CR LF: peers "
           "without it would have another one");
  return PERIGEE_INVALID;
}

static int secret_load_text(const char *given, const char *scope,
                            struct text *text, struct secret *secret,
                            const struct complaint *c) {
  int status = given ? secret_read_text(given, text, c)
                     : secret_read_environment(text, c);
  if (status < 0 || (!given && text->length == 0 && !text->from_file))
    return status;
  status = secret_check_length(text->length, text->from_file, c);
  if (status == PERIGEE_OK)
    status = secret_check_end(text, c);
  if (status == PERIGEE_OK)
    status = secret_stretch(text, scope, c);
  if (status == PERIGEE_OK)
    secret_make_key(text->bytes, text->length, scope, secret);
  return status;
}

int secret_load(const char *given, const char *scope, struct secret *secret,
                char *reason, size_t room) {
  const struct complaint c = {reason, room};
  *secret = (struct secret){.set = false};
  if (given && !*given)
    return PERIGEE_OK;
  struct text *text = sodium_malloc(sizeof *text);
  if (!text) {
    snprintf(reason, room, "no memory to read the secret to");
    return PERIGEE_NO_MEMORY;
  }
  *text = (struct text){.length = 0};
  int status = secret_load_text(given, scope ? scope : "", text, secret, &c);
  sodium_free(text); /* wipes it first */
  return status;
}

void secret_wipe(struct secret *secret) {
  sodium_memzero(secret, sizeof *secret);
}
