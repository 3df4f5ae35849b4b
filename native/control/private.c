/* SPDX-License-Identifier: Apache-2.0
 *
 * private.c - what only its user may know: files that hold keys and tokens, and
 * the tokens.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control/control.h"
#include "perigee.h"

/* ---- Files --------------------------------------------------------------- */

static int private_status_of(int error) {
  return error == ENOENT                     ? PERIGEE_NOT_FOUND
         : error == EACCES || error == EPERM ? PERIGEE_DENIED
                                             : PERIGEE_SYSTEM;
}

/* Others may neither read nor write the file. Its group may read it if `group`
 * is set, as there are groups that keep keys, and may never write. */
static int check(int file, bool group, uint64_t capacity) {
  mode_t refused = S_IRWXO | (group ? S_IWGRP | S_IXGRP : S_IRWXG);
  struct stat st;
  if (fstat(file, &st) != 0 || !S_ISREG(st.st_mode))
    return PERIGEE_SYSTEM;
  if (st.st_mode & refused)
    return PERIGEE_DENIED;
  if (st.st_uid != geteuid() && st.st_uid != 0)
    return PERIGEE_DENIED;
  return (uint64_t)st.st_size > capacity ? PERIGEE_TOO_LARGE : PERIGEE_OK;
}

static int64_t read_all(int file, char *into, uint64_t capacity) {
  uint64_t length = 0;
  while (length < capacity) {
    ssize_t n = read(file, into + length, (size_t)(capacity - length));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return PERIGEE_SYSTEM;
    if (n == 0)
      break;
    length += (uint64_t)n;
  }
  return (int64_t)length;
}

int64_t perigee_private_read(const char *path, int group, char *into,
                             uint64_t capacity) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return private_status_of(errno);
  int64_t result = check(file, group, capacity);
  if (result == PERIGEE_OK)
    result = read_all(file, into, capacity);
  close(file);
  return result;
}

static int write_all(int file, const char *text, uint64_t length) {
  ssize_t n = write(file, text, (size_t)length);
  return n == (ssize_t)length ? PERIGEE_OK : PERIGEE_SYSTEM;
}

int perigee_private_write(const char *path, const char *text, uint64_t length) {
  char other[4096];
  int n = snprintf(other, sizeof other, "%s.%d", path, (int)getpid());
  if (n < 0 || (size_t)n >= sizeof other)
    return PERIGEE_TOO_LARGE;
  unlink(other);
  int file = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                  S_IRUSR | S_IWUSR);
  if (file < 0)
    return private_status_of(errno);
  int status = write_all(file, text, length);
  close(file);
  if (status == PERIGEE_OK && rename(other, path) != 0)
    status = private_status_of(errno);
  if (status != PERIGEE_OK)
    unlink(other);
  return status;
}

/* ---- Tokens -------------------------------------------------------------- */

/* Random texts that open a door, and what is kept of them. They have 256 random
 * bits, so a plain hash needs no salt and no stretching. */
enum { SECRET = 32, HASH = 32 };

int perigee_token_make(char text[44]) {
  unsigned char secret[SECRET];
  if (sodium_init() < 0)
    return PERIGEE_SYSTEM;
  randombytes_buf(secret, sizeof secret);
  sodium_bin2base64(text, 44, secret, sizeof secret,
                    sodium_base64_VARIANT_URLSAFE_NO_PADDING);
  sodium_memzero(secret, sizeof secret);
  return PERIGEE_OK;
}

int perigee_token_hash(char hash[65], const char *text, uint64_t length) {
  unsigned char made[HASH];
  if (sodium_init() < 0)
    return PERIGEE_SYSTEM;
  crypto_generichash(made, sizeof made, (const unsigned char *)text, length,
                     NULL, 0);
  sodium_bin2hex(hash, 65, made, sizeof made);
  return PERIGEE_OK;
}
