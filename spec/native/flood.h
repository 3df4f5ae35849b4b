/* SPDX-License-Identifier: Apache-2.0
 *
 * flood.h - a server that answers calls, and crowds that only cost it time.
 * Each runs in a process of its own.
 */
#ifndef FLOOD_H
#define FLOOD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "perigee.h"

#define FLOOD_SECRET "sixteen letters of secret"

struct server {
  pid_t pid;
  int told;     /* a pipe from the server */
  char tcp[80]; /* where it listens */
  char path[80];
};

/* Starts it; this process must not have an engine yet. */
void server_start(struct server *server);
/* Ends it; tells how many strangers it refused, and its CPU time in ns. */
void server_end(struct server *server, uint64_t *refused, int64_t *spent);

enum crowd {
  CROWD_SILENT, /* connects and sends nothing */
  CROWD_HALF,   /* sends a HELLO and nothing more */
  CROWD_WRONG,  /* sends a HELLO and a wrong proof */
  CROWDS
};

/* Starts connecting from an address of this host (NULL: to the path), `rate`
 * times a second, until flood_end. Returns the pid. */
pid_t flood_start(const struct server *, enum crowd, const char *from,
                  int rate);
/* Ends a flood; returns how many connections it made. */
int flood_end(pid_t pid);

#endif
