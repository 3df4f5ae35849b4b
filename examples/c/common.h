/* SPDX-License-Identifier: Apache-2.0
 *
 * common.h - what the programs of this folder share: how they end when
 * something fails, how they find a peer, and how they wait.
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

/* Where there is a secret (the environment's PERIGEE_SECRET), peers over TCP
 * prove it in the scope of the agents. */
static inline struct perigee_engine *open_engine(void) {
  struct perigee_engine *engine = NULL;
  struct perigee_options options;
  const char *scope = getenv("PERIGEE_SCOPE");
  perigee_options_init(&options, sizeof options);
  options.scope = scope && scope[0] ? scope : "default";
  int status = perigee_engine_open(&options, &engine);
  if (status != PERIGEE_OK)
    fail(NULL, "opening an engine", status);
  return engine;
}

/* Returns the event that ends an operation; `operation` is what submitting it
 * has returned. */
static inline struct perigee_event ended(struct perigee_engine *engine,
                                         const char *what, int operation) {
  struct perigee_event event;
  int status = perigee_join(engine, operation, &event);
  if (status != PERIGEE_OK)
    fail(engine, what, status);
  return event;
}

/* Opens a session with the agent of a name, of this user on this host; of any
 * host with what `perigee lookup NAME --entry` prints in place of the name. */
static inline struct perigee_session *
session_with(struct perigee_engine *engine, const char *name) {
  struct perigee_entry *entry = NULL;
  struct perigee_session *session = NULL;
  int status = strncmp(name, "perigee-entry-", 14) == 0
                   ? perigee_entry_parse(name, &entry)
                   : perigee_entry_find(NULL, name, &entry);
  if (status != PERIGEE_OK)
    fail(NULL, name, status);
  status = perigee_entry_connect(engine, entry, NULL, 5 * SECONDS, &session);
  if (status != PERIGEE_OK)
    fail(engine, name, status);
  perigee_entry_free(entry);
  return session;
}

/* Returns the session's region of that name. */
static inline struct perigee_remote *region_of(struct perigee_engine *engine,
                                               struct perigee_session *session,
                                               const char *name) {
  struct perigee_event found =
      ended(engine, "looking for a region",
            perigee_lookup(session, name, 5 * SECONDS));
  return (struct perigee_remote *)(uintptr_t)found.pointer;
}

/* Returns the next event, and sleeps until there is one. */
static inline struct perigee_event next_event(struct perigee_engine *engine) {
  struct perigee_event event;
  while (perigee_poll(engine, &event, 1) == 0)
    perigee_wait(&engine, 1, -1);
  return event;
}

#endif
