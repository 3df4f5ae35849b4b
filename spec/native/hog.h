/* SPDX-License-Identifier: Apache-2.0
 *
 * hog.h - a peer in a process of its own that makes a server hold as much
 * memory as it can, and then does nothing more for it.
 */
#ifndef HOG_H
#define HOG_H

#include <sys/types.h>

#include "support.h"

enum hog_kind {
  HOG_SENDS,    /* 16 sessions, 1,024 messages each that are not received */
  HOG_SLICES,   /* 30 sessions, each announces a slice and sends little of it */
  HOG_REPLIES,  /* 16 sessions, requests of 64 bytes for 1 MiB each, whose
                   replies it never looks at */
  HOG_OUTBOXES, /* 46 sessions, each with an outbox of 2 TiB */
  HOG_SESSIONS  /* as many sessions as it can have */
};
/* The server's methods. */
enum { METHOD_ECHO = 1, METHOD_FILL };
enum { HOG_SLICE = 33 * MIB, HOG_REPLY = MIB };

struct hog {
  pid_t pid;
  int say, hear;
};

/* Forks; this process must not have an engine yet. */
void hog_fork(struct hog *hog, enum hog_kind kind, const char *transport);
/* Tells it to begin, at the address. */
void hog_begin(struct hog *hog, const char *address);
/* Whether it has done all that it does. */
bool hog_is_done(struct hog *hog);
void hog_end(struct hog *hog);

#endif
