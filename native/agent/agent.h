/* SPDX-License-Identifier: Apache-2.0
 *
 * agent.h - an agent of a C program: an engine that others find by a name in
 * the folder of its scope. agent.c holds the name and publishes its entry,
 * serving.c has its services.
 */
#ifndef AGENT_H
#define AGENT_H

#include <stdint.h>

#include "perigee.h"
#include "scope.h"

/* A service as the entry tells it. serving.c owns these, mostly as the first
 * field of what else it knows of a service. */
struct agent_service {
  struct agent_service *next;
  const char *name;
  uint64_t version;
};

struct perigee_agent {
  struct perigee_engine *engine;
  char name[SCOPE_NAME], scope[SCOPE_NAME], kind[SCOPE_NAME];
  char *folder;       /* of the scope */
  int descriptor;     /* of the name */
  double since, term; /* monotonic ns; the number of this taking */
  struct perigee_listener **listeners; /* the first is at the name's socket */
  uint32_t listener_count;
  /* What serving.c hangs here. A close calls services_free, which may be
   * NULL, and then frees the agent. */
  struct agent_service *services;
  uint32_t service_count;
  void *serving;
  void (*services_free)(struct perigee_agent *agent);
};

/* Publishes the agent's entry, after a change of its services. TOO_LARGE: the
 * entry would have more than PERIGEE_ENTRY_MAX bytes; the one before stays. The
 * engine keeps the sentence of a failure. */
int agent_publish(struct perigee_agent *agent);
/* Has the engine keep the sentence of a failure, which was the thread's. */
int agent_failed(struct perigee_engine *engine, int status);

#endif
