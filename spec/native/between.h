/* SPDX-License-Identifier: Apache-2.0
 *
 * between.h - a man in the middle between a dialer and a listener over TCP,
 * which records what passes and may change it. It has a thread of its own, so
 * that both sides are polled as if it were not there.
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
  uint8_t *said[2]; /* first SAID bytes of the dialer, the listener */
  size_t length[2];
};

struct between {
  char address[64]; /* dial this instead of the listener's */
  int door, port;   /* port: the listener's; 0: the dialer hears itself */
  struct link link[LINKS];
  atomic_int links, over;
  /* Changes to what each side sends on the first link, which carries the
   * calls: a bit to flip, counted from the beginning, and one harm to a
   * block that passes. Other links are not changed: what they carry while a
   * session is made may arrive after it has opened, when its loss would go
   * unnoticed. */
  size_t flip[2];
  atomic_int harm[2];
  pthread_t thread;
};

void between_open(struct between *b, int port);
void between_close(struct between *b);
/* Whether a side sent these bytes unencrypted, over any link. */
bool between_heard(const struct between *b, int side, const void *bytes,
                   size_t length);

#endif
