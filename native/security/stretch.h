/* SPDX-License-Identifier: Apache-2.0
 *
 * stretch.h - makes secrets that a person may have chosen slow to guess.
 *
 * A process that dials a listener gets its proof (proof.c) and can try secrets
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
#ifndef STRETCH_H
#define STRETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STRETCH_KEY = 32 };

/* Has the secret a form that only random bytes have? */
bool stretch_random(const char *bytes, size_t length);
/* PERIGEE_OK, or PERIGEE_NO_MEMORY. */
int stretch(const char *bytes, size_t length, const char *scope,
            uint8_t key[STRETCH_KEY]);
/* Reads PERIGEE_SECRET from the environment: returns its length, at most room;
 * 0 if it is not set; or a status. A reference to a file stays there. A secret
 * is taken out of the environment at the first call, also where the system
 * shows it (/proc/PID/environ). The variable then holds STRETCH_TAKEN, also in
 * children, for whom that is an error (PERIGEE_DENIED). */
int64_t stretch_environment(char *text, size_t room);
#define STRETCH_TAKEN "*"

#endif
