/* SPDX-License-Identifier: Apache-2.0
 *
 * common.h - what the programs of this folder share: how they end when
 * something fails, and how they wait for the end of an operation.
 */
#ifndef COMMON_H
#define COMMON_H

#include <perigee.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS 1000000000ll /* times are nanoseconds */

/* Says what failed and why, and ends the program. */
static inline void fail(const struct perigee_engine *engine, const char *what,
                        int status) {
  fprintf(stderr, "%s: %s: %s\n", what, perigee_status_name(status),
          perigee_detail(engine));
  exit(1);
}

static inline struct perigee_engine *open_engine(void) {
  struct perigee_engine *engine = NULL;
  int status = perigee_engine_open(NULL, &engine);
  if (status != PERIGEE_OK)
    fail(NULL, "opening an engine", status);
  return engine;
}

/* Returns the next event, and sleeps until there is one. */
static inline struct perigee_event next_event(struct perigee_engine *engine) {
  struct perigee_event event;
  while (perigee_poll(engine, &event, 1) == 0)
    perigee_wait(&engine, 1, -1);
  return event;
}

/* Events of no own operation have 0 for it, which is also a number. */
static inline int is_end_of(const struct perigee_event *event, int operation) {
  return event->operation == operation &&
         (event->kind == PERIGEE_EVENT_CONNECTED ||
          event->kind == PERIGEE_EVENT_REPLY ||
          event->kind == PERIGEE_EVENT_DONE);
}

/* Returns the event that ends an operation; `operation` is what submitting it
 * has returned. */
static inline struct perigee_event await(struct perigee_engine *engine,
                                         const char *what, int operation) {
  struct perigee_event event;
  memset(&event, 0, sizeof event);
  if (operation < 0)
    fail(engine, what, operation);
  if (operation == PERIGEE_INLINE) /* it has succeeded at once */
    return event;
  do
    event = next_event(engine);
  while (!is_end_of(&event, operation));
  if (event.status != PERIGEE_OK) {
    fprintf(stderr, "%s: %s: %.*s\n", what, perigee_status_name(event.status),
            (int)event.length,
            event.pointer ? (const char *)event.pointer : "");
    exit(1);
  }
  return event;
}

static inline struct perigee_session *connect_to(struct perigee_engine *engine,
                                                 const char *address) {
  struct perigee_event event =
      await(engine, "connecting",
            perigee_connect(engine, address, NULL, 5 * SECONDS));
  return perigee_session(engine, event.session);
}

#endif
