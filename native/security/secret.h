/* SPDX-License-Identifier: Apache-2.0
 *
 * secret.h - the shared secret that both sides of a session over TCP prove to
 * have. The text is read once, stretched if a person may have chosen it
 * (secret.c), and forgotten (but for the environment's). A key made of the
 * text and the scope is kept as long as the engine. Neither is ever sent, nor
 * part of a message to users.
 */
#ifndef SECRET_H
#define SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SECRET_KEY = 32, SECRET_LEAST = 16, SECRET_MOST = 4096 };

struct secret {
  uint8_t key[SECRET_KEY]; /* zeros if no secret is set */
  bool set;
};

/* Initialises libsodium for this process. Call it before anything else here, in
 * handshake.h and in seal.h. False if it has no randomness. */
bool secret_library(void);
/* given: "file:PATH", the text itself, "" for none, or NULL: what
 * PERIGEE_SECRET in the environment says in the same way, or none. scope: NULL
 * is "". PERIGEE_OK, or a status and in reason a sentence for the user. */
int secret_load(const char *given, const char *scope, struct secret *secret,
                char *reason, size_t room);
void secret_wipe(struct secret *secret);
/* The value of PERIGEE_SECRET once its text was taken out of the
 * environment. */
#define STRETCH_TAKEN "*"
/* Has the secret a form that only random bytes have? */
bool stretch_random(const char *bytes, size_t length);

#endif
