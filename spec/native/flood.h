/* SPDX-License-Identifier: Apache-2.0
 *
 * flood.h - a server that answers calls, and a crowd that wants nothing of it
 * but its time, each a process of its own.
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
  int told;     /* a pipe from it */
  char tcp[80]; /* where it listens */
  char path[80];
};

/* Before this process has an engine. */
void server_start(struct server *server);
/* Ends it: the strangers that it refused, and its time on a processor in ns. */
void server_end(struct server *server, uint64_t *refused, int64_t *spent);

enum crowd {
  CROWD_SILENT, /* comes and says nothing */
  CROWD_HALF,   /* says hello, and no more */
  CROWD_WRONG,  /* says hello and proves nothing */
  CROWDS
};

/* They come from an address of this host (NULL: to the path), so many a second,
 * until flood_end. Returns the pid. */
pid_t flood_start(const struct server *, enum crowd, const char *from,
                  int rate);
/* How many came. */
int flood_end(pid_t pid);

#endif
