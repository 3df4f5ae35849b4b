/* SPDX-License-Identifier: Apache-2.0
 *
 * reach.c - opens a session with the agent of an entry: which of its addresses
 * are dialled, in which order, and for how long each.
 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "core/lock.h"
#include "engine/polling.h"
#include "perigee.h"
#include "security/secret.h"

enum { ENTRY_DIALLED = 16 };

struct entry_order {
  const char *addresses[ENTRY_DIALLED];
  uint32_t count;
};

static void entry_order_add(struct entry_order *order, const char *address) {
  for (uint32_t i = 0; i < order->count; i++)
    if (strcmp(order->addresses[i], address) == 0)
      return;
  if (order->count < ENTRY_DIALLED)
    order->addresses[order->count++] = address;
}

/* Puts the addresses in the order in which Lua dials them (registry/init.lua):
 * sockets whose path is there, and then all that are no paths. A path that is
 * there may still be of another host or container, where the socket is another
 * agent's, who goes by another name. Without any of these it is the first. */
static void entry_order_make(struct entry_order *order,
                             const struct perigee_entry *entry) {
  static const char unix_path[] = "unix:/";
  const char *const *address = entry->addresses;
  order->count = 0;
  for (int turn = 0; turn < 2; turn++)
    for (uint32_t i = 0; i < entry->address_count; i++) {
      bool path = strncmp(address[i], unix_path, sizeof unix_path - 1) == 0;
      const char *at = address[i] + (path ? sizeof unix_path - 2 : 0);
      if (path ? turn == 0 && perigee_folder_look(at) != PERIGEE_NOT_FOUND
               : turn == 1)
        entry_order_add(order, address[i]);
    }
  if (order->count == 0 && entry->address_count > 0)
    entry_order_add(order, address[0]);
}

/* The time for the next address, of which so many are left: an equal share.
 * Without a limit all but the last one have 3 s. */
static int64_t entry_share(struct perigee_engine *engine, int64_t deadline,
                           uint32_t left) {
  static const int64_t without = INT64_C(3000000000);
  if (deadline < 0)
    return left > 1 ? without : -1;
  int64_t time = deadline - perigee_now(engine);
  return time <= 0 ? 0 : time / left;
}

/* After these another address, or a later attempt, may do. */
static bool entry_is_passing(int status) {
  return status == PERIGEE_NOT_FOUND || status == PERIGEE_PEER_LOST ||
         status == PERIGEE_TIMEOUT || status == PERIGEE_CLOSED ||
         status == PERIGEE_NO_MEMORY;
}

struct entry_failure {
  int status;
  const char *address;
  char why[DETAIL];
};

/* Keeps the first failure, or the first passing one in its place: an address
 * may have been given to somebody else, who refuses. */
static void entry_note(struct entry_failure *failure, int status,
                       const char *address, const struct perigee_event *event,
                       const struct perigee_engine *engine) {
  int length = event->length < DETAIL ? (int)event->length : DETAIL;
  if (failure->status < 0 &&
      (entry_is_passing(failure->status) || !entry_is_passing(status)))
    return;
  failure->status = status;
  failure->address = address;
  if (status == PERIGEE_TIMEOUT || !event->pointer)
    snprintf(failure->why, sizeof failure->why, "%s",
             event->kind ? perigee_status_text(status)
                         : perigee_detail(engine));
  else
    snprintf(failure->why, sizeof failure->why, "%.*s", length,
             (const char *)event->pointer);
}

/* Has the agent, or this side, refused a proof? It may be of another scope:
 * mostly a program has left out that option of its engine. */
static bool entry_is_unproven(const struct perigee_engine *engine,
                              const struct perigee_entry *entry,
                              const struct entry_failure *failure) {
  return failure->status == PERIGEE_DENIED && engine->secret->set &&
         strncmp(failure->address, "tcp://", 6) == 0 && entry->scope;
}

static int entry_failed(struct perigee_engine *engine,
                        const struct perigee_entry *entry,
                        const struct entry_failure *failure) {
  ENTER(engine);
  if (entry_is_unproven(engine, entry, failure))
    return fail(engine, failure->status,
                "connecting to %s, of scope %s, at %.60s: %s", entry->name,
                entry->scope, failure->address, failure->why);
  return fail(engine, failure->status, "connecting to %s at %.110s: %s",
              entry->name, failure->address, failure->why);
}

/* One address after the other: unlike Lua's race of addresses, an address that
 * does not answer keeps the next one waiting for its share of the time. */
int perigee_entry_connect(struct perigee_engine *engine,
                          const struct perigee_entry *entry,
                          const char *transport, int64_t timeout,
                          struct perigee_session **session) {
  struct entry_order order;
  struct entry_failure failure = {0};
  int64_t deadline =
      timeout < 0 ? -1 : time_after(perigee_now(engine), timeout);
  entry_order_make(&order, entry);
  *session = NULL;
  for (uint32_t i = 0; i < order.count; i++) {
    struct perigee_event event = {0};
    int status = engine_keep_found(engine);
    if (status == PERIGEE_OK)
      status =
          perigee_connect_to(engine, order.addresses[i], entry->name, transport,
                             entry_share(engine, deadline, order.count - i));
    status = perigee_join(engine, status, &event);
    *session = status < 0 ? NULL : perigee_session(engine, event.session);
    if (*session)
      return PERIGEE_OK;
    entry_note(&failure, status < 0 ? status : PERIGEE_PEER_LOST,
               order.addresses[i], &event, engine);
  }
  return entry_failed(engine, entry, &failure);
}
