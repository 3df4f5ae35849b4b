/* SPDX-License-Identifier: Apache-2.0
 *
 * secret.h - what both sides of a session over TCP prove to have. The text is
 * read once, stretched if somebody may have chosen it (stretch.h), and
 * forgotten, but for the environment's; a key made of it and of the scope is
 * kept as long as the engine. Neither is ever sent, nor part of a message to
 * people.
 */
#ifndef SECRET_H
#define SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SECRET_KEY = 32, SECRET_LEAST = 16, SECRET_MOST = 4096 };

struct secret {
  uint8_t key[SECRET_KEY]; /* zeros if none is set */
  bool set;
};

/* Readies libsodium for this process: before anything else here, in
 * handshake.h and seal.h. False: it has no randomness. */
bool secret_library(void);
/* given: "file:PATH", the text itself, "" for none, or NULL: what the
 * environment's PERIGEE_SECRET says in the same way, else none. scope: NULL is
 * "". PERIGEE_OK, or a status and in reason a sentence for the user. */
int secret_load(const char *given, const char *scope, struct secret *secret,
                char *reason, size_t room);
void secret_wipe(struct secret *secret);

#endif
