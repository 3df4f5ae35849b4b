/* SPDX-License-Identifier: Apache-2.0
 *
 * lookup.c - finds a peer's region by its name. It uses frames, because over a
 * Unix socket a descriptor may come with the answer.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "call/calls.h"
#include "core/lane_list.h"
#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "host/adopted.h"
#include "sessions.h"

/* ---- Asking ------------------------------------------------------------- */

/* The operation keeps the name where others keep a message's head. */
static void ask(struct operation *op) {
  struct frame f = {.type = FRAME_LOOKUP,
                    .lookup = {op->index, op->generation, ""}};
  memcpy(f.lookup.name, op->block, op->length);
  int status = op->session->up->tell(op->session, &f, NULL, 0);
  if (status != PERIGEE_AGAIN) {
    operation_unqueue(op);
    return;
  }
  operation_move(op);
  if (!op->session->tcp && !op->session->alone) /* else the lane tells it */
    op->session->up->await_room(op->session);
}

static const struct operation_class lookup_class = {.name = "look-up",
                                                    .kind = OP_LOOKUP,
                                                    .event = PERIGEE_EVENT_DONE,
                                                    .step = ask,
                                                    .late = operation_late,
                                                    .stop = transfer_stop,
                                                    .given = transfer_given};

int perigee_lookup(struct perigee_session *s, const char *name,
                   int64_t timeout) {
  ENTER(s->engine);
  int status;
  if (!session_open_for(s, &status))
    return status;
  size_t length = strlen(name);
  if (length == 0 || length > REGION_NAME)
    return fail(s->engine, PERIGEE_INVALID,
                "a region's name has 1 to 255 bytes");
  struct operation *op = operation_take(s, &lookup_class);
  if (!op)
    return PERIGEE_NO_MEMORY;
  op->block = pool_take(s, REGION_NAME + 1);
  if (!op->block) {
    operation_free(op);
    return fail(s->engine, PERIGEE_NO_MEMORY, "the pool is used up");
  }
  memcpy(op->block, name, length + 1);
  op->length = length + 1;
  transfer_submit(op, timeout);
  ask(op);
  return op->index;
}

/* ---- Answering ---------------------------------------------------------- */

/* If the descriptor cannot be sent, the region is accessed on request. */
static void tell_found(struct perigee_session *s, struct frame *f, int fd) {
  if (s->up->tell(s, f, &fd, wire_fds(f)) == PERIGEE_OK)
    return;
  f->found.mapped = 0;
  s->up->send(s, f, NULL, 0);
}

int lookup_asked(struct perigee_session *s, const struct lookup *asked) {
  struct perigee_region *region =
      asked->name[0] ? region_by_name(s->engine, asked->name) : NULL;
  struct frame f = {.type = FRAME_FOUND,
                    .found = {.operation = asked->operation,
                              .generation = asked->generation}};
  struct found *found = &f.found;
  if (!region) {
    found->status = PERIGEE_NOT_FOUND;
  } else if (region->access == PERIGEE_LOCAL) {
    found->status = PERIGEE_DENIED;
  } else {
    found->slot = region->slot;
    found->region = region->generation;
    found->length = region->length;
    found->access = (uint32_t)region->access;
    region->granted++;
    if (!s->regions.granted.next)
      list_append(&s->engine->granted, &s->regions.granted);
    const struct perigee_transport *t = lane_table(s->lane);
    const struct grant grant = {region->slot, region->generation, &region->area,
                                region->access};
    bool granted = t->access && t->access->grant(s->lane, &grant);
    found->mapped = t->copies && region->fd >= 0 && !s->alone && !s->tcp;
    found->keyed = (uint16_t)((!t->copies && granted) | lanes_grant(s, &grant));
  }
  tell_found(s, &f, region ? region->fd : -1);
  return PERIGEE_OK;
}

/* ---- Being answered ----------------------------------------------------- */

/* Maps the region only if its memory cannot shrink later. */
static int map_window(struct perigee_remote *r, int fd) {
  enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };
  uint64_t length;
  if (!adopted_memory(fd, SEALS, &length) || length < r->window.length)
    return PERIGEE_PROTOCOL;
  int protection = PROT_READ | (r->access & PERIGEE_WRITE ? PROT_WRITE : 0);
  if (!share_take(r->session->account.share, SHARE_MAPPED, length))
    return PERIGEE_NO_MEMORY;
  r->mapped = length;
  void *p = mmap(NULL, r->mapped, protection, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    share_give(r->session->account.share, SHARE_MAPPED, r->mapped);
    return PERIGEE_NO_MEMORY;
  }
  madvise(p, r->mapped, MADV_DONTFORK);
  r->window.pointer = p;
  return PERIGEE_OK;
}

static struct perigee_remote *known(struct perigee_session *s,
                                    const struct found *found) {
  struct perigee_remote *r = s->regions.remotes;
  while (r && (r->window.slot != found->slot ||
               r->window.generation != found->region))
    r = r->next;
  return r;
}

static struct perigee_remote *adopt(struct perigee_session *s,
                                    const struct found *found, const char *name,
                                    int fd, int *status) {
  struct perigee_remote *r = calloc(1, sizeof *r);
  *status = PERIGEE_NO_MEMORY;
  if (!r)
    return NULL;
  r->session = s;
  r->window = (struct window){.slot = found->slot,
                              .generation = found->region,
                              .length = found->length,
                              .keyed = found->keyed & 1,
                              .lanes = (uint8_t)found->keyed};
  r->access = (int)(found->access & (PERIGEE_READ | PERIGEE_WRITE));
  strncpy(r->name, name, REGION_NAME);
  *status = fd >= 0 ? map_window(r, fd) : PERIGEE_OK;
  if (*status < 0) {
    free(r);
    return NULL;
  }
  r->next = s->regions.remotes;
  s->regions.remotes = r;
  return r;
}

/* Are the lanes that it names there? */
static bool names_lanes(const struct perigee_session *s,
                        const struct found *found) {
  for (uint32_t n = 1; n < 16; n++)
    if ((found->keyed & 1u << n) && !lanes_know(s, n))
      return false;
  return true;
}

int lookup_found(struct perigee_session *s, const struct found *found) {
  if (!names_lanes(s, found))
    return PERIGEE_PROTOCOL;
  /* What cannot be mapped here is no descriptor's business. */
  int fd = found->mapped ? wire_take_fd(&s->socket.wire) : -1;
  if (found->mapped && fd < 0)
    return PERIGEE_PROTOCOL;
  struct operation *op =
      operation_find(s->engine, (int)(found->operation & 0x7fffffff));
  int status = status_of_peer(found->status);
  if (found->slot >= REGION_SLOTS || found->length > PAYLOAD_MAX)
    status = PERIGEE_PROTOCOL;
  if (op && op->kind == OP_LOOKUP && op->session == s &&
      op->generation == found->generation && op->event == 0) {
    struct perigee_remote *r = status == PERIGEE_OK ? known(s, found) : NULL;
    if (status == PERIGEE_OK && !r)
      r = adopt(s, found, (const char *)op->block, fd, &status);
    op->pointer = (const uint8_t *)r;
    op->length = 0;
    transfer_stop(op, status);
  }
  if (fd >= 0)
    adopted_close(fd);
  return PERIGEE_OK;
}

void remotes_free(struct perigee_session *s) {
  struct perigee_remote *r, *next;
  for (r = s->regions.remotes; r; r = next) {
    next = r->next;
    if (r->window.pointer) {
      munmap(r->window.pointer, r->mapped);
      share_give(s->account.share, SHARE_MAPPED, r->mapped);
    }
    free(r);
  }
  s->regions.remotes = NULL;
}

uint64_t perigee_remote_length(const struct perigee_remote *remote) {
  return remote->window.length;
}

uint64_t perigee_remote_identity(const struct perigee_remote *remote) {
  return remote->window.generation;
}

int perigee_remote_access(const struct perigee_remote *remote) {
  return remote->access;
}
