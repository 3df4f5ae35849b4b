/* SPDX-License-Identifier: Apache-2.0
 *
 * stretch.h - secrets that somebody may have chosen, made slow to guess.
 *
 * Who dials a listener gets its proof (proof.c) and can try secrets on it at
 * home. So a text is stretched by Argon2id, which takes this machine and that
 * one some 0.1 s and 64 MiB for each guess. The salt has to be the same on both
 * sides, which know nothing of each other by then: it is a fixed text and the
 * scope. So tables can be made ahead for a scope, and for all who have none:
 * where the secret is chosen, a scope with a name of its own is worth having.
 * 32 random bytes cannot be guessed, and are not stretched; they are told by
 * their form: 64 hexadecimal digits, base64, or 32 bytes that are no text.
 *
 * It is done once in a process for a text and a scope. What comes of it, and the
 * text that the environment had, are kept in locked memory of the process.
 */
#ifndef STRETCH_H
#define STRETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STRETCH_KEY = 32 };

/* Is it of a form that only random bytes have? */
bool stretch_random(const char *bytes, size_t length);
/* PERIGEE_OK, or PERIGEE_NO_MEMORY. */
int stretch(const char *bytes, size_t length, const char *scope,
            uint8_t key[STRETCH_KEY]);
/* What the environment's PERIGEE_SECRET says: bytes in text, at most room; 0:
 * nothing; or a status. A reference to a file is left there. A text is taken out
 * of the environment the first time, also where the system shows it
 * (/proc/PID/environ): then it says STRETCH_TAKEN, also to children, for whom
 * that is an error (PERIGEE_DENIED). */
int64_t stretch_environment(char *text, size_t room);
#define STRETCH_TAKEN "*"

#endif
