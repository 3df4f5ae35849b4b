/* SPDX-License-Identifier: Apache-2.0
 *
 * copies.c - copies between local memory and memory that was imported. Those
 * that stay inside of GPUs are gathered: neighbours become one copy, and what
 * one job asks for until it is flushed is one batch, with one ticket. Copies
 * from and to host memory go one by one.
 *
 * A batch that is gathered counts as pending, as a copy under way does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"

/* ---- Tickets ------------------------------------------------------------- */

/* A lane that is cut waits for what is under way, so that is bounded. */
static bool ticket_room(const struct lane *lane) {
  return lane->ticket_count < LINK_TICKETS && lane->flying < LINK_FLIGHT;
}

static void ticket_add(struct lane *lane, const struct ticket *t) {
  lane->tickets[lane->ticket_count++] = *t;
  lane->flying += t->bytes;
}

/* Keeps the kind's sentence on a copy that has failed. */
static void link_told(struct lane *lane, const struct memory_context *by) {
  if (by->kind->why)
    snprintf(lane->why, sizeof lane->why, "%s", by->kind->why(by));
}

static void job_ended(struct lane *lane, struct job *job, struct imported *from,
                      uint64_t bytes, int status) {
  job->pending--;
  if (status < 0 && job->status == PERIGEE_OK)
    job->status = status;
  else if (status >= 0)
    job->done += bytes;
  if (from)
    imported_unuse(lane, from);
}

/* The last ticket takes the place of one that has ended. */
void link_look(struct lane *lane) {
  for (uint32_t i = 0; i < lane->ticket_count;) {
    const struct ticket t = lane->tickets[i];
    int status = t.by->kind->copies->finished(t.by, t.number);
    if (status == 0) {
      i++;
      continue;
    }
    lane->tickets[i] = lane->tickets[--lane->ticket_count];
    lane->flying -= t.bytes;
    if (status < 0)
      link_told(lane, t.by);
    job_ended(lane, t.job, t.imported, t.bytes, status);
  }
  if (lane->batch && lane->batch->job)
    link_flush(lane);
}

/* ---- Gathering ----------------------------------------------------------- */

static void batch_end(struct lane *lane, int status) {
  struct batch *b = lane->batch;
  struct job *job = b->job;
  b->job = NULL;
  job_ended(lane, job, b->imported, 0, status);
}

/* What is one copy needs no batch of the kind, which may have none. */
static int batch_ask(const struct batch *b, uint64_t *number) {
  const struct memory_copies *of = b->by->kind->copies;
  return b->count == 1 || !of->copy_all
             ? of->copy(b->by, b->copies, number)
             : of->copy_all(b->by, b->copies, b->count, number);
}

void link_flush(struct lane *lane) {
  struct batch *b = lane->batch;
  uint64_t number;
  if (!b || !b->job || !ticket_room(lane))
    return;
  int status = batch_ask(b, &number);
  lane->refused = status == PERIGEE_AGAIN;
  if (lane->refused)
    return;
  if (status < 0) {
    link_told(lane, b->by);
    batch_end(lane, status);
    return;
  }
  ticket_add(lane,
             &(struct ticket){b->by, b->job, b->imported, number, b->bytes});
  b->job = NULL;
}

static const uint8_t *copy_end(const struct memory_copy *c) {
  return c->to + (c->count - 1) * c->to_stride + c->block;
}

/* Do two copies write to places that lie apart? Those of one stride may
 * interlace. */
static bool copies_lie_apart(const struct memory_copy *a,
                             const struct memory_copy *b) {
  uint64_t stride = a->to_stride;
  if (a->to >= copy_end(b) || b->to >= copy_end(a))
    return true;
  if (stride == 0 || b->to_stride != stride)
    return false;
  uint64_t behind = a->to >= b->to
                        ? (uint64_t)(a->to - b->to) % stride
                        : stride - (uint64_t)(b->to - a->to) % stride;
  return behind >= b->block && behind + a->block <= stride;
}

/* Might the copy write where another one of the batch does? Items of a job may
 * overlap, but copies of a batch are done in any order. */
static bool batch_overlaps(const struct batch *b,
                           const struct memory_copy *copy) {
  if (copy->to >= b->high || copy_end(copy) <= b->low)
    return false;
  for (uint32_t i = 0; i < b->count; i++)
    if (!copies_lie_apart(&b->copies[i], copy))
      return true;
  return false;
}

static bool batch_joins(struct memory_copy *last,
                        const struct memory_copy *next) {
  if (last->count != 1 || next->count != 1 ||
      last->to + last->block != next->to ||
      last->from + last->block != next->from ||
      last->block + next->block > COPY_LONG)
    return false;
  last->block += next->block;
  return true;
}

static void batch_add(struct batch *b, const struct memory_copy *copy) {
  const uint8_t *end = copy_end(copy);
  b->bytes += copy->block * copy->count;
  if (b->count == 0 || copy->to < b->low)
    b->low = copy->to;
  if (b->count == 0 || end > b->high)
    b->high = end;
  if (b->count > 0 && batch_joins(&b->copies[b->count - 1], copy))
    return;
  b->copies[b->count++] = *copy;
  b->pieces += copy->count;
}

/* Is there room for one more copy of this job, and of this memory? A job may
 * have items in several memories, and each of these stays until its own copies
 * have ended. */
static bool batch_has_room(const struct batch *b, const struct job *job,
                           const struct imported *imported,
                           const struct memory_copy *copy) {
  const struct memory_context *by = copy->to_memory;
  uint32_t most = by->kind->copies->copy_all ? LINK_GATHERED : 1;
  return !b->job || (b->job == job && b->imported == imported && b->by == by &&
                     b->count < most && b->bytes < COPY_LONG &&
                     b->pieces + copy->count <= LINK_PIECES &&
                     (job->apart || !batch_overlaps(b, copy)));
}

static bool batch_takes(struct lane *lane, const struct job *job,
                        const struct imported *imported,
                        const struct memory_copy *copy) {
  if (!batch_has_room(lane->batch, job, imported, copy))
    link_flush(lane);
  return batch_has_room(lane->batch, job, imported, copy);
}

static void batch_begin(struct lane *lane, struct job *job,
                        struct imported *imported,
                        const struct memory_context *by) {
  struct batch *b = lane->batch;
  b->by = by;
  b->job = job;
  b->imported = imported;
  b->bytes = b->pieces = 0;
  b->count = 0;
  job->pending++;
  imported_use(imported);
}

/* 1, or 0: not now. */
static int link_gather(struct lane *lane, struct job *job,
                       struct imported *imported,
                       const struct memory_copy *copy) {
  struct batch *b = lane->batch;
  if (!batch_takes(lane, job, imported, copy))
    return 0;
  if (!b->job)
    batch_begin(lane, job, imported, copy->to_memory);
  batch_add(b, copy);
  return 1;
}

/* ---- One by one ---------------------------------------------------------- */

/* 1; 0: not now; or a status. */
static int link_ask(struct lane *lane, struct job *job,
                    struct imported *imported, const struct memory_context *by,
                    const struct memory_copy *copy) {
  uint64_t number;
  if (!ticket_room(lane))
    return 0;
  int status = by->kind->copies->copy(by, copy, &number);
  lane->refused = status == PERIGEE_AGAIN;
  if (lane->refused)
    return 0;
  if (status < 0) {
    link_told(lane, by);
    return status;
  }
  ticket_add(lane, &(struct ticket){by, job, imported, number,
                                    copy->block * copy->count});
  job->pending++;
  if (imported)
    imported_use(imported);
  return 1;
}

/* ---- Both ---------------------------------------------------------------- */

/* A copy between two devices is by no batch: either may be the local one. */
static bool copy_is_batched(const struct memory_copy *copy) {
  return copy->to_memory == copy->from_memory;
}

/* Adds the blocks that it asks for to *blocks. */
static int link_copy_next(struct lane *lane, struct job *job,
                          struct imported *imported,
                          const struct memory_context *by, struct payload *to,
                          struct payload *from, uint64_t *blocks) {
  struct memory_copy copy = {.to_memory = to->memory,
                             .from_memory = from->memory};
  uint64_t length = payload_copy_ahead(to, from, 0, UINT64_MAX, &copy);
  int status = copy_is_batched(&copy)
                   ? link_gather(lane, job, imported, &copy)
                   : link_ask(lane, job, imported, by, &copy);
  if (status == 1) {
    to->done += length;
    from->done += length;
    job->posted += length;
    *blocks += copy.count;
  }
  return status;
}

/* A landing may be longer than what comes. */
static bool left_to_copy(const struct payload *to, const struct payload *from) {
  return to->done < to->total && from->done < from->total;
}

/* The peer may have chosen a shape of many blocks, so each call asks for some. */
static int link_copy_some(struct lane *lane, struct job *job,
                          struct imported *imported,
                          const struct memory_context *by, struct payload *to,
                          struct payload *from) {
  uint64_t blocks = 0;
  int status = 1;
  while (status == 1 && left_to_copy(to, from) && blocks < LINK_BLOCKS)
    status = link_copy_next(lane, job, imported, by, to, from, &blocks);
  return status == 1 && left_to_copy(to, from) ? 0 : status;
}

int link_copies(struct lane *lane, struct job *job, struct imported *imported,
                const struct opening *opening, struct payload *remote,
                struct payload *local, bool write) {
  struct payload there = *remote;
  if (!lane->batch && !(lane->batch = calloc(1, sizeof *lane->batch)))
    return PERIGEE_NO_MEMORY;
  there.memory = opening->by;
  there.base = opening->pointer + (uintptr_t)remote->base;
  int status =
      write ? link_copy_some(lane, job, imported, opening->by, &there, local)
            : link_copy_some(lane, job, imported, opening->by, local, &there);
  remote->done = there.done;
  return status;
}

bool link_quiesce(struct lane *lane, struct job *job) {
  if (lane->batch && lane->batch->job == job)
    batch_end(lane, PERIGEE_CANCELLED);
  if (job->pending > 0)
    link_look(lane);
  return job->pending == 0;
}

void link_drain(struct lane *lane) {
  if (lane->forked)
    return;
  if (lane->batch && lane->batch->job)
    batch_end(lane, PERIGEE_PEER_LOST);
  for (uint32_t i = 0; i < lane->ticket_count; i++)
    lane->tickets[i].by->kind->copies->drain(lane->tickets[i].by);
  link_look(lane);
}

/* ---- One-sided access ---------------------------------------------------- */

/* Returns the memory as it is opened for copies with local memory. What is in
 * host memory here goes by a device that this process uses already. */
static const struct opening *window_open(struct lane *lane, struct imported *m,
                                         const struct payload *local) {
  const struct memory_context *by =
      local->memory->direct ? imported_home(lane, m) : local->memory;
  return by ? imported_open(lane, m, by) : NULL;
}

static bool link_reaches(struct lane *lane, const struct window *window,
                         const struct payload *local) {
  if (window->pointer)
    return strcmp(local->memory->kind->name, link_kind) == 0;
  struct imported *m = imported_for(lane, window);
  return m && window_open(lane, m, local);
}

/* Does the peer still grant it? 0, or why not. What a distant peer does not grant
 * is not known any more. */
static int link_refuses(const struct lane *lane, const struct window *window) {
  if (lane->over)
    return PERIGEE_PEER_LOST;
  if (lane->distant)
    return PERIGEE_OK;
  if (atomic_load_explicit(&lane->peer->regions[window->slot],
                           memory_order_acquire) == window->generation)
    return PERIGEE_OK;
  return atomic_load_explicit(&lane->peer->over, memory_order_relaxed)
             ? PERIGEE_PEER_LOST
             : PERIGEE_STALE;
}

/* Between here and memory of the host that is mapped. */
static int link_post_mapped(struct lane *lane, struct job *job,
                            const struct window *window, struct payload *remote,
                            struct payload *local, bool write) {
  struct payload there = *remote;
  there.base = window->pointer + (uintptr_t)remote->base;
  int status =
      write ? link_copy_some(lane, job, NULL, local->memory, &there, local)
            : link_copy_some(lane, job, NULL, local->memory, local, &there);
  remote->done = there.done;
  return status;
}

static int link_post(struct lane *lane, struct job *job,
                     const struct window *window, struct payload *remote,
                     struct payload *local, bool write) {
  if (window->pointer)
    return link_post_mapped(lane, job, window, remote, local, write);
  int status = link_refuses(lane, window);
  if (status < 0)
    return status;
  struct imported *m = imported_for(lane, window);
  const struct opening *o = m ? window_open(lane, m, local) : NULL;
  return o ? link_copies(lane, job, m, o, remote, local, write) : PERIGEE_STALE;
}

/* What has no room waits for those that have some. What the kind has refused may
 * wait for copies of others, which may have ended by now. */
static bool link_only_copies(const struct lane *lane) {
  return !lane->refused;
}

const struct transport_jobs link_jobs = {
    .reaches = link_reaches,
    .post = link_post,
    .flush = link_flush,
    .look = link_look,
    .quiesce = link_quiesce,
    .only_copies = link_only_copies,
};
