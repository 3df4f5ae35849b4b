/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"

#include "fabrics.h"
#include "lanes.h"
#include "lock.h"
#include "base/status.h"
#include "memory/backing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };
enum { RIGHTS = PERIGEE_READ | PERIGEE_WRITE };
enum {
  ACCESS = RIGHTS | PERIGEE_POPULATE | PERIGEE_SHARED | PERIGEE_HUGE |
           (2 * NODES - 1) * PERIGEE_NODE
};

bool shape_fits(uint64_t length, uint64_t offset, uint64_t block,
                uint64_t count, uint64_t stride) {
  uint64_t last, end;
  if (offset > length)
    return false;
  if (count == 0 || block == 0)
    return true;
  return !__builtin_mul_overflow(count - 1, stride, &last) &&
         !__builtin_add_overflow(last, block, &end) && end <= length - offset;
}

int regions_open(struct perigee_engine *engine) {
  struct regions *r = &engine->regions;
  r->limit = engine->options.regions;
  r->slots = calloc(r->limit, sizeof *r->slots);
  r->generation = engine_random(engine) >> 16 | 1;
  list_open(&r->privates);
  list_open(&r->closing);
  return r->slots ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

struct perigee_region *region_by_name(struct perigee_engine *engine,
                                      const char *name) {
  struct regions *r = &engine->regions;
  for (uint32_t i = 0; i < r->limit; i++)
    if (r->slots[i] && !r->slots[i]->closed &&
        strcmp(r->slots[i]->name, name) == 0)
      return r->slots[i];
  return NULL;
}

struct perigee_region *region_by_slot(struct perigee_engine *engine,
                                      uint64_t slot, uint64_t generation) {
  struct regions *r = &engine->regions;
  struct perigee_region *region = slot < r->limit ? r->slots[slot] : NULL;
  if (!region || region->closed || region->generation != generation)
    return NULL;
  return region;
}

/* ---- Making ------------------------------------------------------------ */

static int region_check(struct perigee_engine *engine, const char *name,
                        uint64_t length, int access) {
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (length == 0 || length > PAYLOAD_MAX)
    return fail(engine, PERIGEE_INVALID,
                "a region has 1 to 2^40 bytes, not %llu",
                (unsigned long long)length);
  if (access & ~ACCESS || access / PERIGEE_NODE > NODES)
    return fail(engine, PERIGEE_INVALID, "unknown access rights %d", access);
  if (!name)
    return PERIGEE_OK;
  if (!*name || strlen(name) > REGION_NAME)
    return fail(engine, PERIGEE_INVALID, "a region's name has 1 to 255 bytes");
  if (region_by_name(engine, name))
    return fail(engine, PERIGEE_NAME_TAKEN,
                "this engine has a region \"%s\" already; close it first",
                name);
  return PERIGEE_OK;
}

static int region_memory_named(struct perigee_engine *engine, const char *kind,
                               const struct memory_context **out) {
  char reason[MEMORY_REASON];
  int status = contexts_find(&engine->memories, kind, out, reason);
  return status < 0 ? fail(engine, status, "%s", reason) : PERIGEE_OK;
}

/* Returns a free slot, or the limit. */
static uint32_t region_slot_free(const struct regions *r) {
  uint32_t slot = 0;
  while (slot < r->limit && r->slots[slot])
    slot++;
  return slot;
}

static int region_make(struct perigee_engine *engine, const char *name,
                       uint64_t length, int access,
                       const struct memory_context *memory,
                       struct perigee_region **out) {
  struct regions *r = &engine->regions;
  bool shown = name || access & RIGHTS;
  uint32_t slot = shown ? region_slot_free(r) : REGION_PRIVATE;
  if (shown && slot == r->limit)
    return fail(engine, PERIGEE_NO_MEMORY,
                "all %u regions that peers may reach are in use (option "
                "regions)",
                r->limit);
  struct perigee_region *region = calloc(1, sizeof *region);
  if (!region)
    return PERIGEE_NO_MEMORY;
  *region = (struct perigee_region){.engine = engine,
                                    .slot = slot,
                                    .length = length,
                                    .access = access & RIGHTS,
                                    .memory = memory,
                                    .fd = -1,
                                    .generation = r->generation++};
  if (name)
    memcpy(region->name, name, strlen(name) + 1);
  if (shown)
    r->slots[slot] = region;
  else
    list_append(&r->privates, &region->among);
  r->count++;
  engine->counters->regions = r->count;
  *out = region;
  return PERIGEE_OK;
}

static uint64_t region_pages(uint64_t length) {
  return (length + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static void region_free(struct perigee_region *region) {
  struct regions *r = &region->engine->regions;
  fabrics_forget(region->engine, &region->area, 0, region->length);
  list_remove(&region->node);
  list_remove(&region->among);
  if (region->slot != REGION_PRIVATE)
    r->slots[region->slot] = NULL;
  r->count--;
  region->engine->counters->regions = r->count;
  if (region->area.pinned)
    contexts_unpin(&region->engine->memories, &region->area);
  if (region->admitted)
    region->memory->kind->admission->dismiss(region->memory,
                                             region->area.handle);
  if (region->allocated && region->pointer)
    region->memory->kind->release(region->memory, region->pointer,
                                  region_pages(region->length),
                                  region->area.handle);
  region->closed = region->freed = true;
  if (region->prepared == 0)
    free(region);
}

void region_keep(struct perigee_region *region) {
  region->prepared++;
}

void region_drop(struct perigee_region *region) {
  if (--region->prepared == 0 && region->freed)
    free(region);
}

static void region_describe_area(struct perigee_region *region) {
  region->area.memory = region->memory;
  region->area.base = region->pointer;
  region->area.length = region->length;
  region->area.readable = region->access & PERIGEE_READ;
  region->area.pins = true;
}

static void region_advise(const struct perigee_region *region, bool small) {
  if (region->allocated && region->pointer && region->memory->direct &&
      region->length >= HUGE_PAGE)
    madvise(region->pointer, region_pages(region->length),
            small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
}

/* How long that a large page took too long is held against other memory (ns):
 * mostly the host of a virtual machine had to find that memory, which is there
 * when its pages are used again. If it never is, one piece a second takes so
 * long. */
static const int64_t SMALL_FOR = 1000000000;

/* Pages that are there stay as they are. */
void regions_use_small_pages(struct perigee_engine *engine) {
  struct regions *r = &engine->regions;
  engine->budget.slow_pages = false;
  if (engine->now < r->small_until)
    return;
  r->small_until = engine->now + SMALL_FOR;
  for (uint32_t i = 0; i < r->limit; i++)
    if (r->slots[i])
      region_advise(r->slots[i], true);
  for (struct node *n = r->privates.next; n != &r->privates; n = n->next)
    region_advise(CONTAINER(n, struct perigee_region, among), true);
}

/* Peers may map what they may read. Memory that they may only write, which no
 * mapping can express, and memory that only this side uses, stays private. A
 * kind that does not bind who has a key gives keys only of what is open to
 * everything, or if the program says so. */
static bool region_is_shared(const struct perigee_region *region, int asked) {
  const struct memory_sharing *sharing = region->memory->kind->sharing;
  if (!sharing)
    return false;
  return sharing->binds ? region->access & PERIGEE_READ
                        : region->access == RIGHTS || asked & PERIGEE_SHARED;
}

/* The first lanes hand over the memfd as it is. */
static int region_back_file(struct perigee_region *region) {
  const struct memory_context *m = region->memory;
  struct memory_key key;
  int status =
      m->kind->sharing->share(m, region->pointer, region_pages(region->length),
                              region->area.handle, region->access, &key);
  region->fd = status == PERIGEE_OK ? key.fds[0] : -1;
  return status;
}

static int region_back(struct perigee_region *region, int asked) {
  const struct memory_context *m = region->memory;
  bool shared = region_is_shared(region, asked);
  region->allocated = true;
  int status = m->kind->allocate(m, region_pages(region->length), shared,
                                 &region->pointer, &region->area.handle);
  region->area.shared = status == PERIGEE_OK && shared;
  region->area.rights = PERIGEE_READ | (region->access & PERIGEE_WRITE);
  if (status == PERIGEE_OK && shared && m == &memory_host)
    status = region_back_file(region);
  if (status == PERIGEE_OK)
    region_advise(region, engine_clock(region->engine) <
                              region->engine->regions.small_until);
  return status;
}

/* Has the pages of allocated memory as asked. A device has all of its own from
 * the start. */
static int region_fill(struct perigee_region *region, int asked) {
  uint8_t *at = region->pointer;
  uint64_t length = region_pages(region->length);
  int node = asked / PERIGEE_NODE - 1;
  if (!region->memory->direct)
    return PERIGEE_OK;
  if (node >= 0 && !backing_place(at, length, (uint32_t)node))
    return PERIGEE_NOT_FOUND;
  if (asked & (PERIGEE_POPULATE | PERIGEE_HUGE) &&
      !backing_populate(at, length))
    return PERIGEE_NO_MEMORY;
  if (asked & PERIGEE_HUGE && !backing_make_huge(at, length))
    return PERIGEE_UNSUPPORTED;
  return PERIGEE_OK;
}

/* Why its kind of memory, or the system, has failed. */
static const char *region_trouble(const struct perigee_region *region,
                                  int status) {
  const struct memory_context *m = region->memory;
  if (m->direct && status == PERIGEE_NOT_FOUND)
    return "this process can have no memory of that NUMA node";
  if (m->direct && status == PERIGEE_UNSUPPORTED)
    return "the system does not put all of it in huge pages of 2 MiB";
  return m->kind->why ? m->kind->why(m) : system_text(errno);
}

static int region_too_much(struct perigee_engine *engine, uint64_t length) {
  return fail(engine, PERIGEE_NO_MEMORY,
              "a region of %llu bytes is more than the %llu that this machine, "
              "or this process's control group, has",
              (unsigned long long)length, (unsigned long long)backing_most());
}

int perigee_region_alloc(struct perigee_engine *engine, const char *name,
                         uint64_t length, int access, const char *kind,
                         struct perigee_region **out) {
  LOOK(engine);
  struct perigee_region *region = NULL;
  const struct memory_context *memory = NULL;
  int status = region_check(engine, name, length, access);
  if (status == PERIGEE_OK)
    status = region_memory_named(engine, kind, &memory);
  if (status < 0)
    return status;
  status = region_make(engine, name, length, access, memory, &region);
  if (!region)
    return status;
  if (region->memory == &memory_host && !backing_possible(length)) {
    region_free(region);
    return region_too_much(engine, length);
  }
  status = region_back(region, access);
  if (status == PERIGEE_OK)
    status = region_fill(region, access);
  if (status < 0) {
    status = fail(engine, status, "cannot allocate a region of %llu bytes: %s",
                  (unsigned long long)length, region_trouble(region, status));
    region_free(region);
    return status;
  }
  region_describe_area(region);
  *out = region;
  return PERIGEE_OK;
}

/* Finds the memory of the named kind; fails if the pointer is known to lead to
 * other memory. */
static int region_memory_of(struct perigee_engine *engine, const void *pointer,
                            const char *kind,
                            const struct memory_context **out) {
  const struct memory_context *owner;
  char reason[MEMORY_REASON];
  int status = contexts_owner(&engine->memories, pointer, &owner, reason);
  if (status < 0)
    return fail(engine, status, "%s", reason);
  *out = owner;
  if (kind && (status = region_memory_named(engine, kind, out)) < 0)
    return status;
  if (owner != *out && (owner != &memory_host || (*out)->kind->owner_of))
    return fail(engine, PERIGEE_INVALID,
                "that is memory of kind \"%s\", device %u, not of \"%s\"",
                owner->kind->name, owner->device, kind);
  return PERIGEE_OK;
}

/* Asks the kind what memory that is, if it has a say in it. */
static int region_admit(struct perigee_region *region, int asked) {
  const struct memory_context *m = region->memory;
  const struct memory_admission *admission = m->kind->admission;
  char reason[MEMORY_REASON] = "";
  if (!admission)
    return PERIGEE_OK;
  int status = admission->admit(m, region->pointer, region->length,
                                &region->area.handle, reason);
  if (status < 0)
    return fail(region->engine, status, "%s", reason);
  region->admitted = true;
  region->area.shared = asked & PERIGEE_SHARED && m->kind->sharing;
  region->area.rights = PERIGEE_READ | (region->access & PERIGEE_WRITE);
  return PERIGEE_OK;
}

bool region_valid(const struct perigee_region *region) {
  const struct memory_context *m = region->memory;
  return !region->admitted ||
         m->kind->admission->valid(m, region->pointer, region->area.handle);
}

int perigee_region_register(struct perigee_engine *engine, const char *name,
                            void *pointer, uint64_t length, int access,
                            const char *kind, struct perigee_region **out) {
  LOOK(engine);
  if (!pointer)
    return fail(engine, PERIGEE_INVALID, "cannot register a NULL pointer");
  struct perigee_region *region = NULL;
  const struct memory_context *memory = &memory_host;
  int status = region_check(engine, name, length, access);
  if (status == PERIGEE_OK)
    status = region_memory_of(engine, pointer, kind, &memory);
  if (status < 0)
    return status;
  status = region_make(engine, name, length, access, memory, &region);
  if (!region)
    return status;
  region->pointer = pointer;
  region_describe_area(region);
  status = region_admit(region, access);
  if (status < 0) {
    region_free(region);
    return status;
  }
  *out = region;
  return PERIGEE_OK;
}

/* errno says why, unless it is no such file. */
static int region_not_adopted(struct perigee_region *region, int fd,
                              int status) {
  struct perigee_engine *engine = region->engine;
  unsigned long long length = region->length;
  const char *why = system_text(errno);
  region_free(region);
  return status == PERIGEE_INVALID
             ? fail(engine, status,
                    "descriptor %d is no memory of %llu bytes whose size is "
                    "sealed, or cannot be sealed against writing",
                    fd, length)
             : fail(engine, status, "descriptor %d was not mapped: %s", fd,
                    why);
}

int perigee_region_adopt(struct perigee_engine *engine, const char *name,
                         int fd, uint64_t length, int access,
                         struct perigee_region **out) {
  LOOK(engine);
  struct perigee_region *region = NULL;
  int status = region_check(engine, name, length, access);
  if (status == PERIGEE_OK && access & ~PERIGEE_READ)
    status = fail(engine, PERIGEE_INVALID,
                  "peers may only read a file that is adopted");
  if (status < 0)
    return status;
  status = region_make(engine, name, length, access, &memory_host, &region);
  if (!region)
    return status;
  status = memory_host_of_file(fd, region_pages(length), &region->pointer,
                               &region->area.handle);
  region->allocated = status == PERIGEE_OK;
  if (status == PERIGEE_OK && access)
    status = region_back_file(region);
  if (status < 0)
    return region_not_adopted(region, fd, status);
  region->area.shared = access != 0;
  region->area.rights = PERIGEE_READ;
  region_describe_area(region);
  *out = region;
  return PERIGEE_OK;
}

int perigee_region_file(const struct perigee_region *region) {
  return region->fd >= 0 ? region->fd : PERIGEE_UNSUPPORTED;
}

uint8_t *perigee_region_pointer(const struct perigee_region *region) {
  return region->pointer;
}

const char *perigee_region_kind(const struct perigee_region *region,
                                uint32_t *device) {
  if (device)
    *device = region->memory->device;
  return region->memory->kind->name;
}

uint64_t perigee_region_length(const struct perigee_region *region) {
  return region->length;
}

/* ---- Closing ----------------------------------------------------------- */

/* Ordering: the generations are withdrawn first, then this side looks whether a
 * peer is inside. The transport's grant and inside have the fences
 * (shm_regions.c). */
static void region_withdraw(struct perigee_region *region) {
  region->closed = true;
  region->name[0] = 0;
  if (!region->granted)
    return;
  struct node *n, *head = &region->engine->granted;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, regions.granted);
    if (lane_table(s->lane)->access)
      lane_table(s->lane)->access->revoke(s->lane, region->slot);
    lanes_revoke(s, region->slot);
  }
}

/* Peers that know the memory are told that it goes once this side sends none of
 * it any more. */
static bool region_is_held(struct perigee_region *region) {
  const struct memory_sharing *sharing = region->memory->kind->sharing;
  if (region->area.told && lanes_forget(region->engine, &region->area))
    region->area.told = false;
  return region->admitted && region->area.shared && sharing->held &&
         sharing->held(region->memory, region->area.handle);
}

static bool region_is_occupied(struct perigee_region *region) {
  if (region->users > 0)
    return true;
  if (region_is_held(region))
    return true;
  if (!region->granted)
    return false;
  struct node *n, *head = &region->engine->granted;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_session *s =
        CONTAINER(n, struct perigee_session, regions.granted);
    if ((lane_table(s->lane)->access &&
         lane_table(s->lane)->access->inside(s->lane, region->slot)) ||
        lanes_inside(s, region->slot))
      return true;
  }
  return false;
}

static void region_await(struct perigee_region *region) {
  region->forced = true;
  if (!region->node.next)
    list_append(&region->engine->regions.closing, &region->node);
}

/* Nobody is inside any more. A peer that was told of its memory, and maps it, is
 * told that it goes; that may have to wait for room in the peer's socket. */
static void region_let_go(struct perigee_region *region) {
  if (!region->area.told || lanes_forget(region->engine, &region->area))
    region_free(region);
  else
    region_await(region);
}

int perigee_region_close(struct perigee_region *region, bool force) {
  ENTER(region->engine);
  struct perigee_engine *engine = region->engine;
  if (!engine_alive(engine))
    return PERIGEE_FORKED;
  if (!region->closed)
    region_withdraw(region);
  if (region_is_occupied(region) && !force)
    return fail(engine, PERIGEE_AGAIN, "%s",
                region->users == 0 && region_is_held(region)
                    ? "a process that opened the region's memory has not let "
                      "go of it yet"
                    : "an operation or a peer is still inside of the region");
  if (region_is_occupied(region))
    region_await(region);
  else
    region_let_go(region);
  return PERIGEE_OK;
}

void regions_sweep(struct perigee_engine *engine) {
  struct node *head = &engine->regions.closing, *next;
  for (struct node *n = head->next; n != head; n = next) {
    next = n->next;
    struct perigee_region *region = CONTAINER(n, struct perigee_region, node);
    if (!region_is_occupied(region))
      region_let_go(region);
  }
}

static void region_close_in_child(struct perigee_region *region) {
  const struct memory_context *m = region->memory;
  if (region->fd >= 0)
    close(region->fd);
  if (region->admitted)
    m->kind->admission->dismiss(m, region->area.handle);
  region->admitted = false;
}

/* A child process has copies of the descriptors, but not the memory. */
void regions_close_in_child(struct perigee_engine *engine) {
  struct regions *r = &engine->regions;
  for (uint32_t i = 0; i < r->limit; i++)
    if (r->slots[i])
      region_close_in_child(r->slots[i]);
  for (struct node *n = r->privates.next; n != &r->privates; n = n->next)
    region_close_in_child(CONTAINER(n, struct perigee_region, among));
}

void regions_close(struct perigee_engine *engine) {
  struct regions *r = &engine->regions;
  struct node *n;
  if (!r->slots)
    return;
  for (uint32_t i = 0; i < r->limit; i++)
    if (r->slots[i])
      region_free(r->slots[i]);
  while ((n = list_pop(&r->privates)))
    region_free(CONTAINER(n, struct perigee_region, among));
  free(r->slots);
  r->slots = NULL;
}

/* ---- Access by this side ------------------------------------------------- */

/* Blocks the program until each copy has ended. */
static int region_move_all(struct payload *to, struct payload *from) {
  const struct memory_context *m =
      to->memory->direct ? from->memory : to->memory;
  int64_t n = 0;
  while (to->done < to->total && n >= 0) {
    n = payload_move(to, from, to->total - to->done);
    if (n == 0)
      m->kind->copies->drain(m);
  }
  while (n < 0 && !(payload_quiet(to) && payload_quiet(from)))
    m->kind->copies->drain(m); /* their tickets end when they are asked for */
  return n < 0 ? (int)n : PERIGEE_OK;
}

static int region_access_here(struct perigee_region *region, uint64_t offset,
                              void *host, uint64_t length, bool in) {
  LOOK(region->engine);
  if (!engine_alive(region->engine))
    return PERIGEE_FORKED;
  if (!region_valid(region))
    return fail(region->engine, PERIGEE_STALE, "%s", REGION_INVALID);
  if (!host && length > 0)
    return fail_missing(region->engine, "host memory of a copy");
  if (!shape_fits(region->length, offset, length, 1, length))
    return fail(region->engine, PERIGEE_RANGE,
                "bytes %llu to %llu are outside of the region's %llu",
                (unsigned long long)offset,
                (unsigned long long)(offset + length),
                (unsigned long long)region->length);
  struct payload there, here;
  struct copies copies = {.waited_for = true};
  payload_bytes(&there, region->pointer + offset, length);
  payload_bytes(&here, host, length);
  there.memory = region->memory;
  there.copies = &copies;
  int status =
      in ? region_move_all(&there, &here) : region_move_all(&here, &there);
  return status < 0
             ? fail(region->engine, status, "the memory's copy failed: %s",
                    region->memory->kind->why
                        ? region->memory->kind->why(region->memory)
                        : perigee_status_text(status))
             : PERIGEE_OK;
}

int perigee_region_read(struct perigee_region *region, uint64_t offset,
                        void *to, uint64_t length) {
  return region_access_here(region, offset, to, length, false);
}

int perigee_region_write(struct perigee_region *region, uint64_t offset,
                         const void *from, uint64_t length) {
  return region_access_here(region, offset, (void *)(uintptr_t)from, length,
                            true);
}

/* ---- Regions of peers --------------------------------------------------- */

void remote_free(struct perigee_remote *r) {
  if (r && r->area.pinned && engine_alive(r->session->engine))
    contexts_unpin(&r->session->engine->memories, &r->area);
  for (uint32_t n = 0; r && n < LANES; n++) {
    struct window *window = remote_window(r, n);
    if (!window->attached)
      continue;
    struct lane *lane = session_lane(r->session, n);
    if (lane_table(lane)->access->detach)
      lane_table(lane)->access->detach(lane, window);
  }
  free(r);
}

/* What the parent has mapped is a hole in a forked child, where it may have put
 * something else. */
void remote_drop(struct perigee_remote *remote) {
  struct perigee_remote **at = &remote->session->regions.remotes;
  if (--remote->users > 0 || !engine_alive(remote->session->engine))
    return;
  while (*at && *at != remote)
    at = &(*at)->next;
  if (*at)
    *at = remote->next;
  remote_free(remote);
}

void remotes_free(struct perigee_session *s) {
  struct perigee_remote *r, *next;
  for (r = s->regions.remotes; r; r = next) {
    next = r->next;
    remote_free(r);
  }
  s->regions.remotes = NULL;
}
