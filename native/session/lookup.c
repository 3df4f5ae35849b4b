/* SPDX-License-Identifier: Apache-2.0
 *
 * lookup.c - finding a peer's region by its name: by frames, because over a
 * socket descriptors may come with them. The owner's lane says by which key the
 * peer's lane reaches it; what that is passes here unseen (transport.h, Access).
 */
#include <stdlib.h>
#include <string.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "core/pool.h"
#include "host/adopted.h"
#include "operation/operations.h"
#include "sessions.h"

/* ---- Asking ------------------------------------------------------------- */

/* So many are asked before their answers have come; others wait. An owner
 * answers at once, and ends the session if its socket has no room: that of a
 * Unix socket is some 200 KiB, of which a frame and its key take 3 at most, those
 * of both sides' look-ups at the same time. */
enum { ASKED_MOST = 32 };

/* The name is kept in the operation as its message's head would be. */
static int lookup_tell(struct operation *op) {
  struct perigee_session *s = op->session;
  struct frame f = {.type = FRAME_LOOKUP,
                    .lookup = {op->index, op->generation, ""}};
  memcpy(f.lookup.name, op->block, op->length);
  int status = s->up->tell(s, &f, NULL, 0);
  if (status == PERIGEE_OK)
    s->regions.asked++;
  else if (status == PERIGEE_AGAIN && !s->tcp && !s->alone)
    s->up->await_room(s); /* otherwise its lane tells */
  return status;
}

/* An answer to another, or room in the socket, has a poll try again. A peer that
 * is dead is noticed by the end of its socket. */
static void lookup_ask(struct operation *op) {
  bool waits = op->session->regions.asked >= ASKED_MOST;
  int status = waits ? PERIGEE_AGAIN : lookup_tell(op);
  if (status == PERIGEE_AGAIN)
    operation_move(op);
  else if (status == PERIGEE_NO_MEMORY)
    operation_finish(op, status);
  else
    operation_unqueue(op);
}

static const struct operation_class lookup_class = {.name = "look-up",
                                                    .kind = OP_LOOKUP,
                                                    .event = PERIGEE_EVENT_DONE,
                                                    .step = lookup_ask,
                                                    .late = operation_late,
                                                    .stop = operation_finish,
                                                    .given = operation_given};

int perigee_lookup(struct perigee_session *s, const char *name,
                   int64_t timeout) {
  ENTER(s->engine);
  int status;
  if (!session_open_for(s, &status))
    return status;
  if (!name)
    return fail_missing(s->engine, "name of a region");
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
  operation_start(op, timeout);
  lookup_ask(op);
  return op->index;
}

/* ---- Answering ---------------------------------------------------------- */

/* The lane's key of the region. Nothing, if it cannot, or if descriptors have
 * to go with it and cannot: then the peer asks for each access. */
static void add_key(struct perigee_session *s, struct lane *lane,
                    uint32_t number, const struct grant *grant,
                    struct found *found) {
  const struct transport_access *access =
      lane ? lane_table(lane)->access : NULL;
  struct found_key *k = &found->key[found->keys];
  uint32_t room =
      s->tcp || s->streams.state != STREAMS_SOCKET ? 0 : WIRE_FDS - found->fds;
  if (!access || access->export(lane, grant, &k->key) < 0 ||
      k->key.fd_count > room)
    return;
  k->lane = number;
  found->keys++;
  found->fds = (uint16_t)(found->fds + k->key.fd_count);
}

/* The answer has no keys if descriptors cannot go now. */
static void tell_found(struct perigee_session *s, struct frame *f) {
  struct found *found = &f->found;
  int fds[WIRE_FDS];
  uint32_t count = 0;
  for (uint32_t i = 0; i < found->keys; i++)
    for (uint32_t k = 0; k < found->key[i].key.fd_count; k++)
      fds[count++] = found->key[i].key.fds[k];
  if (s->up->tell(s, f, fds, count) == PERIGEE_OK)
    return;
  found->keys = found->fds = 0;
  s->up->send(s, f, NULL, 0);
}

static void describe(struct perigee_session *s, struct perigee_region *region,
                     struct found *found) {
  const struct grant grant = {region->slot, region->generation, &region->area,
                              region->access, region->fd};
  found->slot = region->slot;
  found->region = region->generation;
  found->length = region->length;
  found->access = (uint32_t)region->access;
  region->granted++;
  if (!s->regions.granted.next)
    list_append(&s->engine->granted, &s->regions.granted);
  add_key(s, s->lane, 0, &grant, found);
  for (uint32_t n = 1; n < LANES && lanes_know(s, n); n++)
    add_key(s, lanes_to_export(s, n, &region->area), n, &grant, found);
}

int lookup_asked(struct perigee_session *s, const struct lookup *asked) {
  struct perigee_region *region =
      asked->name[0] ? region_by_name(s->engine, asked->name) : NULL;
  struct frame f = {.type = FRAME_FOUND,
                    .found = {.operation = asked->operation,
                              .generation = asked->generation}};
  if (!region)
    f.found.status = PERIGEE_NOT_FOUND;
  else if (region->access == PERIGEE_LOCAL)
    f.found.status = PERIGEE_DENIED;
  else if (!region_valid(region)) /* a key of it would be of other memory */
    f.found.status = PERIGEE_STALE;
  else
    describe(s, region, &f.found);
  tell_found(s, &f);
  return PERIGEE_OK;
}

/* ---- Being answered ----------------------------------------------------- */

static struct perigee_remote *known(struct perigee_session *s,
                                    const struct found *found) {
  struct perigee_remote *r = s->regions.remotes;
  while (r && (r->window.slot != found->slot ||
               r->window.generation != found->region))
    r = r->next;
  return r;
}

static struct perigee_remote *remote_new(struct perigee_session *s,
                                         const struct found *found,
                                         const char *name) {
  struct perigee_remote *r = calloc(1, sizeof *r);
  if (!r)
    return NULL;
  r->session = s;
  r->window = (struct window){
      .slot = found->slot,
      .generation = found->region,
      .length = found->length,
      .access = (int)(found->access & (PERIGEE_READ | PERIGEE_WRITE))};
  for (uint32_t n = 1; n < LANES; n++)
    *remote_window(r, n) = r->window;
  strncpy(r->name, name, REGION_NAME);
  return r;
}

/* A lane that is lost here needs no key any more. */
static int attach(struct perigee_session *s, struct perigee_remote *r,
                  const struct found_key *k) {
  struct lane *lane = k->lane ? lanes_to_attach(s, k->lane) : s->lane;
  struct window *window = remote_window(r, k->lane);
  if (!lane || window->attached)
    return PERIGEE_OK;
  if (!lane_table(lane)->access)
    return PERIGEE_PROTOCOL;
  int status = lane_table(lane)->access->attach(lane, window, &k->key);
  window->attached = status == PERIGEE_OK;
  return status;
}

static int attach_all(struct perigee_session *s, struct perigee_remote *r,
                      const struct found *found) {
  int status = PERIGEE_OK;
  for (uint32_t i = 0; i < found->keys && status == PERIGEE_OK; i++)
    status = attach(s, r, &found->key[i]);
  return status;
}

/* One that is there, and that no key has come for, may have one now. */
static int remote_adopt(struct perigee_session *s, const struct found *found,
                        const char *name, struct perigee_remote **out) {
  struct perigee_remote *r = known(s, found), *fresh = NULL;
  if (!r && !(r = fresh = remote_new(s, found, name)))
    return PERIGEE_NO_MEMORY;
  int status = attach_all(s, r, found);
  if (status < 0) {
    remote_free(fresh);
    return status;
  }
  if (fresh) {
    r->next = s->regions.remotes;
    r->number = r->next ? r->next->number + 1 : 1;
    s->regions.remotes = r;
  }
  *out = r;
  return PERIGEE_OK;
}

/* Is it asked for still? */
static struct operation *asked_for(struct perigee_session *s,
                                   const struct found *found) {
  struct operation *op =
      operation_find(s->engine, (int)(found->operation & 0x7fffffff));
  bool is = op && op->kind == OP_LOOKUP && op->session == s &&
            op->generation == found->generation && !operation_has_ended(op);
  return is ? op : NULL;
}

static void lookup_answered(struct operation *op, const struct found *found) {
  struct perigee_remote *remote = NULL;
  int status = status_of_peer(found->status);
  if (found->slot >= REGION_SLOTS || found->length > PAYLOAD_MAX)
    status = PERIGEE_PROTOCOL;
  if (status == PERIGEE_OK)
    status = remote_adopt(op->session, found, (const char *)op->block, &remote);
  if (remote)
    remote_use(remote);
  op->pointer = (const uint8_t *)remote;
  op->length = 0;
  operation_finish(op, status);
}

static bool names_lanes(const struct perigee_session *s,
                        const struct found *found) {
  for (uint32_t i = 0; i < found->keys; i++)
    if (!lanes_know(s, found->key[i].lane))
      return false;
  return true;
}

/* The descriptors that came, in the order of the keys: how many. */
static uint32_t take_fds(struct perigee_session *s, struct found *found,
                         int fds[WIRE_FDS]) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < found->keys; i++)
    for (uint32_t k = 0; k < found->key[i].key.fd_count; k++) {
      int fd = wire_take_fd(&s->socket.wire);
      if (fd < 0)
        return count;
      found->key[i].key.fds[k] = fds[count++] = fd;
    }
  return count;
}

int lookup_found(struct perigee_session *s, struct found *found) {
  int fds[WIRE_FDS];
  uint32_t count = take_fds(s, found, fds);
  struct operation *op = asked_for(s, found);
  bool good = count == found->fds && names_lanes(s, found);
  if (s->regions.asked > 0) /* a peer may answer what nobody has asked */
    s->regions.asked--;
  if (op && good)
    lookup_answered(op, found);
  while (count > 0)
    adopted_close(fds[--count]);
  return good ? PERIGEE_OK : PERIGEE_PROTOCOL;
}

void perigee_remote_close(struct perigee_remote *remote) {
  LOOK(remote->session->engine);
  remote_drop(remote);
}

uint8_t *perigee_remote_pointer(const struct perigee_remote *remote) {
  return remote->window.pointer;
}

uint64_t perigee_remote_length(const struct perigee_remote *remote) {
  return remote->window.length;
}

uint64_t perigee_remote_identity(const struct perigee_remote *remote) {
  return remote->window.generation;
}

int perigee_remote_access(const struct perigee_remote *remote) {
  return remote->window.access;
}
