/* SPDX-License-Identifier: Apache-2.0 */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system.h"
#include "perigee.h"
#include "stretch.h"

_Static_assert(SECRET_KEY == crypto_generichash_BYTES, "a hash is a key");
_Static_assert(SECRET_KEY == crypto_kdf_KEYBYTES, "of which others are made");

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

static int complain(const struct complaint *c, int status, const char *path,
                    const char *what) {
  snprintf(c->reason, c->room, "the secret's file %s %s", path, what);
  return status;
}

/* ---- A file -------------------------------------------------------------- */

static int check_file(int fd, const char *path, const struct complaint *c) {
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
    return complain(c, PERIGEE_DENIED, path, "is not a regular file");
  if (st.st_uid != geteuid() && st.st_uid != 0)
    return complain(c, PERIGEE_DENIED, path,
                    "belongs to another user; make a copy of your own");
  if (st.st_mode & (S_IRWXG | S_IRWXO))
    return complain(c, PERIGEE_DENIED, path,
                    "is open to other users; close it with chmod 600");
  return PERIGEE_OK;
}

static int cannot_open(const char *path, const struct complaint *c) {
  char what[128];
  int status = errno == ENOENT   ? PERIGEE_NOT_FOUND
               : errno == EACCES ? PERIGEE_DENIED
                                 : system_status(errno);
  if (errno == ELOOP)
    return complain(c, PERIGEE_DENIED, path,
                    "is a symbolic link; name the file itself");
  snprintf(what, sizeof what, "cannot be read: %s", system_text(errno));
  return complain(c, status, path, what);
}

/* Editors of Windows end lines in CR LF and begin texts with a mark. To who
 * wrote the same words elsewhere that would be another secret, and nothing would
 * tell them why. */
static int check_form(const struct text *text, const char *path,
                      const struct complaint *c) {
  const char *end = text->bytes + text->length;
  if (text->length >= 2 && memcmp(end - 2, "\r\n", 2) == 0)
    return complain(c, PERIGEE_DENIED, path,
                    "ends in CR LF, which would be part of the secret; write "
                    "it anew without CR, by tr -d '\\r'");
  if (memcmp(text->bytes, "\xef\xbb\xbf", 3) == 0 ||
      memcmp(text->bytes, "\xff\xfe", 2) == 0)
    return complain(c, PERIGEE_DENIED, path,
                    "begins with a byte order mark, which would be part of the "
                    "secret; write it anew as plain text");
  return PERIGEE_OK;
}

/* Reads without stdio, whose buffers would keep a copy of the secret. */
static int read_all(int fd, const char *path, struct text *text,
                    const struct complaint *c) {
  ssize_t n = 1;
  while (n > 0 && text->length < sizeof text->bytes) {
    n = read(fd, text->bytes + text->length, sizeof text->bytes - text->length);
    if (n < 0 && errno != EINTR)
      return cannot_open(path, c);
    text->length += n > 0 ? (size_t)n : 0;
    n = n < 0 ? 1 : n;
  }
  int status = check_form(text, path, c);
  if (text->length && text->bytes[text->length - 1] == '\n')
    text->length--;
  return status;
}

static int read_file(const char *path, struct text *text,
                     const struct complaint *c) {
  int fd =
      open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  text->from_file = true;
  if (fd < 0)
    return cannot_open(path, c);
  int status = check_file(fd, path, c);
  if (status == PERIGEE_OK)
    status = read_all(fd, path, text, c);
  close(fd);
  return status;
}

/* ---- From any of the places ---------------------------------------------- */

static int read_text(const char *given, struct text *text,
                     const struct complaint *c) {
  if (strncmp(given, "file:", 5) == 0)
    return read_file(given + 5, text, c);
  text->length = strnlen(given, sizeof text->bytes);
  memcpy(text->bytes, given, text->length);
  return PERIGEE_OK;
}

/* Reads PERIGEE_SECRET, if it is set, or the file that it names. */
static int read_environment(struct text *text, const struct complaint *c) {
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
  return read_file(path, text, c);
}

/* Hashes scope and secret. The scope comes first with its length, so that no
 * two pairs of scope and secret hash the same bytes. */
static void make_key(const char *bytes, size_t count, const char *scope,
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
static int stretched(struct text *text, const char *scope,
                     const struct complaint *c) {
  uint8_t key[STRETCH_KEY];
  if (stretch_random(text->bytes, text->length))
    return PERIGEE_OK;
  int status = stretch(text->bytes, text->length, scope, key);
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
static int check_length(size_t length, bool from_file,
                        const struct complaint *c) {
  if (length >= SECRET_LEAST && length <= SECRET_MOST)
    return PERIGEE_OK;
  snprintf(c->reason, c->room, "a secret has %d to %d bytes, this one has %s",
           SECRET_LEAST, SECRET_MOST, length > SECRET_MOST ? "more" : "fewer");
  return from_file ? PERIGEE_DENIED : PERIGEE_INVALID;
}

/* A text that a shell or a unit took from a file with CR LF. */
static int check_end(const struct text *text, const struct complaint *c) {
  if (text->from_file || !text->length || text->bytes[text->length - 1] != '\r')
    return PERIGEE_OK;
  snprintf(c->reason, c->room,
           "the secret ends in CR, as a line of a file with CR LF: peers "
           "without it would have another one");
  return PERIGEE_INVALID;
}

static int load(const char *given, const char *scope, struct text *text,
                struct secret *secret, const struct complaint *c) {
  int status = given ? read_text(given, text, c) : read_environment(text, c);
  if (status < 0 || (!given && text->length == 0 && !text->from_file))
    return status;
  status = check_length(text->length, text->from_file, c);
  if (status == PERIGEE_OK)
    status = check_end(text, c);
  if (status == PERIGEE_OK)
    status = stretched(text, scope, c);
  if (status == PERIGEE_OK)
    make_key(text->bytes, text->length, scope, secret);
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
  int status = load(given, scope ? scope : "", text, secret, &c);
  sodium_free(text); /* wipes it first */
  return status;
}

void secret_wipe(struct secret *secret) {
  sodium_memzero(secret, sizeof *secret);
}
