/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.h - an honest peer in a process of its own, for tests that kill or
 * stop it. It has regions "mapped" and "asked" of WORKER_SIZE bytes of 0x11,
 * answers calls by method, and sends and receives all the time.
 */
#ifndef WORKER_H
#define WORKER_H

#include <sys/types.h>

#include "support.h"

enum { WORKER_SIZE = 64 * MIB, WORKER_SHORT = 3 * MIB };
enum { WORKER_LONG_REPLY = 1, WORKER_SHORT_REPLY, WORKER_LOAN, WORKER_ECHO };

/* The worker, and this process's session with it. */
struct worker {
  pid_t pid;
  char address[80];
  struct perigee_engine *engine;
  struct perigee_session *session;
};

/* Forks the worker, opens an engine and dials. */
void worker_start(struct worker *w, const struct variant *variant);
/* Kills the worker if it still runs, and closes the engine. */
void worker_end(struct worker *w);
/* Polls until the operation has ended. */
struct perigee_event worker_await(struct worker *w, int operation);
struct perigee_remote *worker_region(struct worker *w, const char *name);

#endif
