/* SPDX-License-Identifier: Apache-2.0
 *
 * hog.h - a peer in a process of its own that makes a server hold all that it
 * can be made to hold, and does nothing for it any more.
 */
#ifndef HOG_H
#define HOG_H

#include <sys/types.h>

#include "support.h"

enum hog_kind {
  HOG_SENDS,    /* 16 sessions, 1,024 messages each that nobody receives */
  HOG_SLICES,   /* 30 sessions, each announces a slice and sends little of it */
  HOG_REPLIES,  /* 16 sessions, requests of 64 bytes for 1 MiB each, whose
                   replies it never looks at */
  HOG_OUTBOXES, /* 46 sessions, each with an outbox of 2 TiB */
  HOG_SESSIONS  /* as many sessions as it can have */
};
/* What it calls. */
enum { METHOD_ECHO = 1, METHOD_FILL };
enum { HOG_SLICE = 33 * MIB, HOG_REPLY = MIB };

struct hog {
  pid_t pid;
  int say, hear;
};

/* Forked before this process has an engine. */
void hog_fork(struct hog *hog, enum hog_kind kind, const char *transport);
/* Begins, at the address. */
void hog_begin(struct hog *hog, const char *address);
/* It has done all that it does. */
bool hog_is_done(struct hog *hog);
void hog_end(struct hog *hog);

#endif
