/* SPDX-License-Identifier: Apache-2.0
 *
 * between.h - somebody on the way between a dialer and a listener over TCP, who
 * writes down what passes and may change it. A thread of its own, so both
 * sides can be polled as if nobody was there.
 */
#ifndef BETWEEN_H
#define BETWEEN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "support.h"

enum { LINKS = 8, SAID = 8 << 20 };

enum harm { HARM_NONE, HARM_FLIP, HARM_REPEAT, HARM_DROP };

struct link {
  int fd[2];        /* towards the dialer, the listener */
  uint8_t *said[2]; /* by the dialer, the listener: the first SAID bytes */
  size_t length[2];
};

struct between {
  char address[64]; /* to be dialed instead of the listener's */
  int door, port;   /* port: the listener's, or 0: who dials hears itself */
  struct link link[LINKS];
  atomic_int links, over;
  /* A bit of what a side says on the first link, which carries the calls,
   * counted from its begin, that is changed; and what is done once to a block
   * of its that passes there. What the others carry of a session's making may
   * pass after that is open, and nobody would miss it then. */
  size_t flip[2];
  atomic_int harm[2];
  pthread_t thread;
};

void between_open(struct between *b, int port);
void between_close(struct between *b);
/* Did a side say these bytes in the clear, over any of the links? */
bool between_heard(const struct between *b, int side, const void *bytes,
                   size_t length);

#endif
