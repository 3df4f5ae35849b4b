/* SPDX-License-Identifier: Apache-2.0
 *
 * inproc_link.c - the in-process transport as an additional lane for opaque
 * memory (plugin_opaque.c), named "link". It copies by jobs between the memory
 * of both sides, and can be broken.
 */
#include <stdlib.h>

#include "inproc.h"

static struct lane *newest[2]; /* by dialed */

void inproc_link_gone(const struct lane *lane) {
  if (newest[lane->dialed] == lane)
    newest[lane->dialed] = NULL;
}

static bool inproc_reaches(struct lane *lane, const struct window *window,
                           const struct payload *local) {
  (void)lane;
  return !window->pointer && !local->memory->direct;
}

/* Posts the whole item at once. */
static int inproc_post(struct lane *lane, struct job *job,
                       const struct window *window, struct payload *remote,
                       struct payload *local, bool write) {
  struct lane *peer = lane->peer;
  int status = inproc_refuses(lane, window);
  if (status < 0)
    return status;
  struct task *t = calloc(1, sizeof *t);
  if (!t)
    return PERIGEE_NO_MEMORY;
  struct payload there = *remote;
  there.memory = peer->areas[window->slot]->memory;
  there.base = peer->areas[window->slot]->base + (uintptr_t)remote->base;
  t->job = job;
  t->slot = window->slot;
  t->from = write ? *local : there;
  t->to = write ? there : *local;
  t->total = remote->total;
  t->from_copies.asked = t->from.done;
  t->to_copies.asked = t->to.done;
  t->from.copies = &t->from_copies;
  t->to.copies = &t->to_copies;
  t->next = lane->tasks;
  lane->tasks = t;
  job->pending++;
  job->posted += remote->total;
  return 1;
}

static void inproc_flush(struct lane *lane) {
  (void)lane;
}

/* Copies a splinter through the block. Returns bytes, 0 while a copy is
 * under way, or a status. */
static int64_t task_step(struct lane *lane, struct task *t) {
  if (t->put == t->wanted) {
    t->wanted = inproc_splinter(lane, t->total - t->done);
    t->filled = t->put = 0;
  }
  if (t->filled < t->wanted) {
    int64_t got =
        payload_take(&t->from, t->block + t->filled, t->wanted - t->filled);
    if (got <= 0)
      return got;
    t->filled += (uint64_t)got;
  }
  if (t->filled < t->wanted)
    return 0;
  int64_t put = payload_put(&t->to, t->block + t->put, t->filled - t->put);
  if (put <= 0)
    return put;
  t->done += (uint64_t)put;
  t->put += (uint64_t)put;
  return put;
}

static void task_end(struct task **at, int status) {
  struct task *t = *at;
  while (!payload_quiet(&t->from) || !payload_quiet(&t->to))
    ;
  t->job->pending--;
  t->job->done += t->done;
  if (status < 0 && t->job->status == 0)
    t->job->status = status;
  *at = t->next;
  free(t);
}

void inproc_tasks_end(struct lane *lane) {
  while (lane->tasks)
    task_end(&lane->tasks, PERIGEE_PEER_LOST);
}

/* Each turn moves every task one step, unless it is delayed. */
static bool additional_poll(struct lane *lane) {
  bool any = false;
  for (struct task **at = &lane->tasks; *at && !lane->broken;) {
    int64_t n = inproc_later(lane) ? 0 : task_step(lane, *at);
    any = any || n > 0;
    if (n < 0 || (*at)->done == (*at)->total)
      task_end(at, n < 0 ? (int)n : 0);
    else
      at = &(*at)->next;
  }
  return any;
}

static bool inproc_cease(struct lane *lane, struct job *job) {
  for (struct task **at = &lane->tasks; *at;)
    if ((*at)->job == job)
      task_end(at, PERIGEE_CANCELLED);
    else
      at = &(*at)->next;
  return true;
}

static int additional_broken(const struct lane *lane, const char **reason) {
  *reason =
      lane->broken ? "it was broken on purpose" : "the peer's half is gone";
  return lane->broken || !lane->peer ? PERIGEE_PEER_LOST : PERIGEE_OK;
}

extern const struct perigee_transport perigee_transport_inproc_additional;

static int additional_open(const struct lane_options *options,
                           struct lane **out, struct offer *offer,
                           char reason[REASON]) {
  int status = inproc_open(options, out, offer, reason);
  if (status < 0)
    return status;
  lane_by(*out, &perigee_transport_inproc_additional);
  (*out)->dialed = options->dialed;
  newest[options->dialed] = *out;
  return PERIGEE_OK;
}

/* Breaks that side's newest lane, as if a cable were pulled. */
PERIGEE_API void perigee_inproc_break(int dialed);
void perigee_inproc_break(int dialed) {
  newest[dialed]->broken = true;
}

static const struct transport_jobs jobs = {
    .reaches = inproc_reaches,
    .post = inproc_post,
    .flush = inproc_flush,
    .quiesce = inproc_cease,
};

static const char *const kinds[] = {"opaque", NULL};
static const struct transport_additional beside = {
    .memories = kinds,
    .least = 4096,
};

PERIGEE_API const struct perigee_transport perigee_transport_inproc_additional =
    {
        .name = "link",
        .payloads = &inproc_payloads,
        .access = &inproc_access,
        .jobs = &jobs,
        .sleep = &inproc_sleep,
        .additional = &beside,
        .open = additional_open,
        .join = inproc_join,
        .close = inproc_close,
        .cut = inproc_cut,
        .poll = additional_poll,
        .broken = additional_broken,
};
