/* SPDX-License-Identifier: Apache-2.0
 *
 * fabrics.c - what a transport shares among all sessions of an engine: devices,
 * queues, registered memory. A fabric is made when a session first needs it,
 * and closed with the engine.
 */
#include <stdio.h>
#include <sys/epoll.h>

#include "fabrics.h"

enum { WATCHED = 16 }; /* most descriptors of a fabric */

/* The descriptors of a device that is gone may stay readable for ever, and
 * would end each sleep for as long as a session keeps its lane. */
static void fabric_unwatch_dead(struct perigee_engine *engine,
                                const struct transport_fabric *t,
                                struct fabric *fabric) {
  int fds[WATCHED];
  bool used;
  int n = t->dead(fabric, &used) ? t->descriptors(fabric, fds, WATCHED) : 0;
  for (int i = 0; i < n; i++)
    watch_remove(engine, fds[i]);
}

static void fabrics_ready(struct watcher *watcher, uint32_t events) {
  struct perigee_engine *engine =
      CONTAINER(watcher, struct perigee_engine, fabrics_watcher);
  (void)events;
  for (uint32_t i = 0; i < engine->fabric_count; i++) {
    const struct transport_fabric *t = engine->fabrics[i].table;
    t->ready(engine->fabrics[i].fabric);
    fabric_unwatch_dead(engine, t, engine->fabrics[i].fabric);
  }
  engine->progress++; /* lanes that were armed have to be armed again */
}

static int fabric_watch(struct perigee_engine *engine,
                        const struct transport_fabric *t,
                        struct fabric *fabric) {
  int fds[WATCHED];
  engine->fabrics_watcher.ready = fabrics_ready;
  int n = t->descriptors(fabric, fds, WATCHED);
  for (int i = 0; i < n; i++)
    if (watch_add(engine, fds[i], &engine->fabrics_watcher,
                  EPOLLIN | EPOLLRDHUP) != 0)
      return PERIGEE_SYSTEM;
  return PERIGEE_OK;
}

/* Waits poll longer: each sleep arms the devices, and is ended by an
 * interrupt. */
enum { SPIN_TIMES = 4 };

static int fabric_start(struct perigee_engine *engine,
                        const struct transport_fabric *t,
                        struct fabric **fabric, char reason[REASON]) {
  const struct perigee_options *o = &engine->options;
  struct fabric_options options = {.operations = o->operations,
                                   .pool = &engine->pool_area,
                                   .rdma = o->rdma,
                                   .clock = o->clock,
                                   .context = o->context};
  if (engine->fabric_count == TRANSPORTS_MAX)
    return PERIGEE_NO_MEMORY;
  int status = t->start(&options, fabric, reason);
  if (status == PERIGEE_OK && (status = fabric_watch(engine, t, *fabric)) < 0) {
    snprintf(reason, REASON, "epoll cannot watch a device");
    t->stop(*fabric);
  }
  if (status < 0)
    return status;
  spin_lengthen(&engine->spin, SPIN_TIMES);
  engine->fabrics[engine->fabric_count].table = t;
  engine->fabrics[engine->fabric_count++].fabric = *fabric;
  return PERIGEE_OK;
}

void fabrics_reap(struct perigee_engine *engine) {
  bool used;
  for (uint32_t i = engine->fabric_count; i-- > 0;) {
    const struct transport_fabric *t = engine->fabrics[i].table;
    if (!t->dead(engine->fabrics[i].fabric, &used) || used)
      continue;
    t->stop(engine->fabrics[i].fabric);
    engine->fabrics[i] = engine->fabrics[--engine->fabric_count];
  }
}

int fabric_of(struct perigee_engine *engine,
              const struct perigee_transport *transport, struct fabric **fabric,
              char reason[REASON]) {
  const struct transport_fabric *t = transport->fabric;
  *fabric = NULL;
  reason[0] = 0;
  if (!t)
    return PERIGEE_OK;
  fabrics_reap(engine);
  for (uint32_t i = 0; i < engine->fabric_count; i++)
    if (engine->fabrics[i].table == t)
      *fabric = engine->fabrics[i].fabric;
  bool used;
  const char *why = *fabric ? t->dead(*fabric, &used) : NULL;
  if (why) {
    snprintf(reason, REASON, "%s", why);
    return PERIGEE_UNSUPPORTED;
  }
  if (!*fabric)
    return fabric_start(engine, t, fabric, reason);
  return t->look ? t->look(*fabric, reason) : PERIGEE_OK;
}

/* ---- Looks for one ------------------------------------------------------- */

static const int64_t LOOK_AGAIN = 1000000000; /* ns, after a failure */

/* Returns the entry of that table, or a free one; NULL: all are in use. */
static struct fabric_look *
fabric_look_of(struct fabric_look *looks,
               const struct transport_fabric *table) {
  for (int i = 0; i < TRANSPORTS_MAX; i++)
    if (!looks[i].table || looks[i].table == table)
      return &looks[i];
  return NULL;
}

bool fabric_usable(struct perigee_engine *engine,
                   const struct perigee_transport *transport) {
  struct fabric_look *look =
      fabric_look_of(engine->fabric_looks, transport->fabric);
  struct fabric *fabric;
  int64_t now = engine_clock(engine);
  if (!look || now < look->until)
    return false;
  look->table = transport->fabric;
  if (fabric_of(engine, transport, &fabric, look->why) == PERIGEE_OK)
    return true;
  look->until = now + LOOK_AGAIN;
  return false;
}

const char *fabric_trouble(const struct perigee_engine *engine,
                           const struct perigee_transport *transport) {
  for (int i = 0; i < TRANSPORTS_MAX; i++)
    if (engine->fabric_looks[i].table == transport->fabric)
      return engine->fabric_looks[i].why;
  return "";
}

/* ---- All of them --------------------------------------------------------- */

void fabrics_turn(struct perigee_engine *engine) {
  for (uint32_t i = 0; i < engine->fabric_count; i++)
    if (engine->fabrics[i].table->turn(engine->fabrics[i].fabric))
      engine->progress++;
}

void fabrics_arm(struct perigee_engine *engine) {
  for (uint32_t i = 0; i < engine->fabric_count; i++)
    engine->fabrics[i].table->arm(engine->fabrics[i].fabric);
}

bool fabrics_forget(struct perigee_engine *engine, struct area *area,
                    uint64_t offset, uint64_t length) {
  bool may = true;
  for (uint32_t i = 0; area->keys && i < engine->fabric_count; i++)
    may = engine->fabrics[i].table->forget(engine->fabrics[i].fabric, area,
                                           offset, length) &&
          may;
  return may;
}

void fabrics_close_in_child(struct perigee_engine *engine) {
  for (uint32_t i = 0; i < engine->fabric_count; i++)
    engine->fabrics[i].table->forked(engine->fabrics[i].fabric);
}

void fabrics_close(struct perigee_engine *engine) {
  while (engine->fabric_count > 0) {
    engine->fabric_count--;
    engine->fabrics[engine->fabric_count].table->stop(
        engine->fabrics[engine->fabric_count].fabric);
  }
}
