/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_keys.c - memory of ours: registered with devices, and granted to peers.
 *
 * An area that a fabric has registered has keys: for each part of the area (one
 * part if it is registered as a whole) and each rail one memory region without
 * remote rights. It is made on first use and kept until the area is freed, and
 * lets the device work for this process only. Memory whose pages are read-only
 * is registered without the right to write, and without windows, since a window
 * could give that right: the kernel pins bindable memory as if it were written
 * to. Memory that no CPU can touch is registered through its dma-buf, if it has
 * one and the driver supports it; otherwise by address, if a kernel module pins
 * such addresses; otherwise not at all, and then its bytes are staged.
 *
 * A refusal is remembered: for good if the memory can never be registered,
 * otherwise for a second, since locked memory may become free.
 *
 * Rights. A peer reaches what it was granted by further keys. A device with
 * memory windows has one for each pair of the lane: no other session's pair can
 * use its key, and its rights are those of the grant. Otherwise the range is
 * registered once more, with the rights, and all sessions share that; then
 * every process that learns the key and is connected to this one can use it, as
 * long as any session has a grant of the range.
 *
 * A grant is memory of ours that a peer may reach by itself. It has an id, a
 * generation, and such keys.
 *
 *   none     open    opening   keys are made, windows are being bound
 *   none     open    refused   no keys could be made: retried after a second
 *   opening  bound   granted   on all pairs: the peer is told
 *   opening  reset   opening   a pair was reset: new windows are made
 *   opening, granted
 *            shut    none      windows are freed, the peer is told
 *
 * A window is bound in the order of its pair, behind bulk data that is there
 * already. Only the peer waits for that; it knows that the grant will come.
 *
 * Freeing a window, like deregistering, returns only when the device does not
 * use it any more: it is a fence. A peer that was not told yet, and uses the
 * key, breaks its own pair, which is then rebuilt.
 *
 * A grant refers to its keys, and keys to all grants of their area. So when an
 * area is freed, its grants end.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "verbs.h"

struct part {
  struct ibv_mr *mr; /* NULL: not registered */
  int status;        /* why it was refused, if it was */
  int64_t until;     /* when a refused one is tried again */
  bool bindable;     /* windows may be bound to mr */
};

/* A range with remote rights, shared by several grants. */
struct shared {
  struct shared *next;
  uint64_t offset, length;
  int rights;
  uint32_t users;
  struct ibv_mr *mr[RAILS]; /* NULL where not needed yet */
};

struct keys {
  struct keys *next, **link; /* in fabric->keys */
  struct keys *sibling;      /* in area->keys: of another fabric */
  struct fabric *fabric;
  struct area *area;
  uint64_t size, count; /* bytes of a part; number of parts */
  struct part *parts;   /* by part, then rail */
  struct shared *shared;
  struct granted *grants;
  uint64_t generation; /* of its grants as a payload; 0: it has no id */
  uint32_t id;         /* of these grants, the same on all lanes */
};

enum { REFUSED = 1000000000 }; /* ns until a refused registration is retried */

static int64_t keys_now(const struct fabric *fabric) {
  return fabric->engine.clock(fabric->engine.context);
}

/* ---- Memory regions ------------------------------------------------------ */

static void register_size_text(char *text, size_t size, uint64_t bytes) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  unsigned unit = 0;
  for (; value >= 1024 && unit < 4; unit++)
    value /= 1024;
  snprintf(text, size, "%.4g %s", value, units[unit]);
}

static int keys_status(int error) {
  bool later = error == ENOMEM || error == EAGAIN || error == EPERM;
  return later ? PERIGEE_NO_MEMORY : PERIGEE_UNSUPPORTED;
}

static void register_explain(struct rail *rail, uint64_t length, int error) {
  char *detail = rail->fabric->detail, wanted[32], most[32];
  const char *device = rail->port.device;
  struct rlimit limit;
  rail->fabric->detail_at = keys_now(rail->fabric);
  register_size_text(wanted, sizeof wanted, length);
  if (keys_status(error) != PERIGEE_NO_MEMORY ||
      getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    snprintf(detail, REASON, "cannot register %s with %s: %s", wanted, device,
             strerror(error));
    return;
  }
  register_size_text(most, sizeof most, limit.rlim_cur);
  snprintf(detail, REASON,
           "cannot register %s with %s: locked memory is limited to %s; raise "
           "it (ulimit -l, LimitMEMLOCK=)",
           wanted, device, most);
}

static struct ibv_mr *register_by_dmabuf(struct rail *rail,
                                         const struct memory_context *memory,
                                         const uint8_t *address,
                                         uint64_t length, int access) {
  const struct verbs_library *lib = rail->fabric->lib;
  uint64_t offset = 0;
  errno = EOPNOTSUPP;
  if (!memory->kind->dmabuf || !lib->reg_dmabuf_mr)
    return NULL;
  int fd = memory->kind->dmabuf(memory, address, length, &offset);
  if (fd < 0) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  struct ibv_mr *mr = lib->reg_dmabuf_mr(rail->pd, offset, length,
                                         (uintptr_t)address, fd, access);
  int error = errno;
  close(fd);
  errno = error;
  return mr;
}

/* Returns NULL if it fails; errno says why, fabric->detail says it for
 * users. */
static struct ibv_mr *keys_register(struct rail *rail,
                                    const struct memory_context *memory,
                                    uint8_t *address, uint64_t length,
                                    int access) {
  struct fabric *fabric = rail->fabric;
  struct ibv_mr *mr = NULL;
  if (!memory->direct)
    mr = register_by_dmabuf(rail, memory, address, length, access);
  if (!mr && (memory->direct || memory->pinnable))
    mr = fabric->lib->reg_mr(rail->pd, address, length, access);
  if (!mr) {
    int error = errno;
    register_explain(rail, length, error);
    errno = error;
    return NULL;
  }
  fabric->registered += mr->length;
  fabric->registrations++;
  return mr;
}

static void keys_deregister(struct fabric *fabric, struct ibv_mr **mr) {
  if (!*mr)
    return;
  uint64_t length = (*mr)->length;
  fabric->lib->dereg_mr(*mr);
  fabric->registered -= length;
  *mr = NULL;
}

/* ---- Parts of an area ---------------------------------------------------- */

/* Returns where the part that contains the offset ends. */
static uint64_t keys_part_end(const struct keys *keys, uint64_t offset) {
  uint64_t begin = offset - offset % keys->size;
  uint64_t left = keys->area->length - begin;
  return begin + (keys->size < left ? keys->size : left);
}

static struct part *part_at(const struct keys *keys, uint64_t index,
                            uint32_t rail) {
  return &keys->parts[index * keys->fabric->rail_count + rail];
}

/* The whole area is read-only from then on if the memory turns out to be. */
static int part_register(struct keys *keys, struct rail *rail, uint64_t offset,
                         struct part *part) {
  struct area *area = keys->area;
  uint64_t begin = offset - offset % keys->size;
  uint64_t length = keys_part_end(keys, offset) - begin;
  uint8_t *address = area->base + begin;
  int access =
      IBV_ACCESS_LOCAL_WRITE | (rail->windows ? IBV_ACCESS_MW_BIND : 0);
  if (!area->read_only)
    part->mr = keys_register(rail, area->memory, address, length, access);
  bool again = area->read_only || (!part->mr && errno == EFAULT);
  if (again) {
    access = 0;
    part->mr = keys_register(rail, area->memory, address, length, access);
    area->read_only = area->read_only || part->mr;
  }
  part->bindable = access & IBV_ACCESS_MW_BIND;
  return part->mr ? PERIGEE_OK : keys_status(errno);
}

/* Registers the part that contains the offset; 0 or a status. */
static int keys_part(struct keys *keys, struct rail *rail, uint64_t offset,
                     struct part **out) {
  struct part *part = part_at(keys, offset / keys->size, rail->index);
  *out = part;
  if (part->mr)
    return PERIGEE_OK;
  if (part->status < 0 &&
      (part->until == INT64_MAX || keys_now(keys->fabric) < part->until))
    return part->status;
  part->status = part_register(keys, rail, offset, part);
  if (part->status == PERIGEE_NO_MEMORY)
    part->until = keys_now(keys->fabric) + REFUSED;
  else if (part->status < 0)
    part->until = INT64_MAX;
  return part->status;
}

/* ---- Keys ---------------------------------------------------------------- */

static struct keys *keys_find(const struct fabric *fabric,
                              const struct area *area) {
  struct keys *keys = area->keys;
  while (keys && keys->fabric != fabric)
    keys = keys->sibling;
  return keys;
}

static struct keys *keys_make(struct fabric *fabric, struct area *area) {
  struct keys *keys = calloc(1, sizeof *keys);
  if (!keys)
    return NULL;
  keys->fabric = fabric;
  keys->area = area;
  keys->size = area->chunk ? area->chunk : area->length;
  keys->count = (area->length - 1) / keys->size + 1;
  keys->parts = calloc(keys->count * fabric->rail_count, sizeof *keys->parts);
  if (!keys->parts) {
    free(keys);
    return NULL;
  }
  keys->sibling = area->keys;
  area->keys = keys;
  keys->next = fabric->keys;
  keys->link = &fabric->keys;
  if (keys->next)
    keys->next->link = &keys->next;
  fabric->keys = keys;
  return keys;
}

/* Returns the area's keys, made if needed; NULL without memory. */
static struct keys *keys_of(struct fabric *fabric, struct area *area) {
  struct keys *keys = keys_find(fabric, area);
  return keys || area->length == 0 ? keys : keys_make(fabric, area);
}

/* ---- Rights without windows ---------------------------------------------- */

static struct shared *shared_take(struct keys *keys, uint64_t offset,
                                  uint64_t length, int rights) {
  struct shared *shared = keys->shared;
  while (shared && (shared->offset != offset || shared->length != length ||
                    shared->rights != rights))
    shared = shared->next;
  if (!shared) {
    shared = calloc(1, sizeof *shared);
    if (!shared)
      return NULL;
    *shared = (struct shared){keys->shared, offset, length, rights, 0, {0}};
    keys->shared = shared;
  }
  shared->users++;
  return shared;
}

static void shared_give(struct keys *keys, struct shared *shared) {
  if (--shared->users > 0)
    return;
  for (uint32_t i = 0; i < RAILS; i++)
    keys_deregister(keys->fabric, &shared->mr[i]);
  struct shared **link = &keys->shared;
  while (*link != shared)
    link = &(*link)->next;
  *link = shared->next;
  free(shared);
}

static int shared_key(struct granted *granted, struct rail *rail, int rights,
                      uint32_t *rkey) {
  struct keys *keys = granted->keys;
  if (!granted->shared)
    granted->shared =
        shared_take(keys, granted->offset, granted->length, rights);
  if (!granted->shared)
    return PERIGEE_NO_MEMORY;
  struct ibv_mr **mr = &granted->shared->mr[rail->index];
  /* The remote right to write requires the local one. */
  if (rights & IBV_ACCESS_REMOTE_WRITE)
    rights |= IBV_ACCESS_LOCAL_WRITE;
  if (!*mr)
    *mr = keys_register(rail, keys->area->memory,
                        keys->area->base + granted->offset, granted->length,
                        rights);
  if (!*mr)
    return keys_status(errno);
  *rkey = (*mr)->rkey;
  return PERIGEE_OK;
}

/* ---- Windows ------------------------------------------------------------- */

static int window_make(struct granted *granted, struct pair *pair,
                       struct ibv_mw **mw) {
  if (*mw)
    ibv_dealloc_mw(*mw);
  *mw = ibv_alloc_mw(pair->rail->pd, IBV_MW_TYPE_2);
  if (!*mw)
    return keys_status(errno);
  granted->rkey[pair->index] = ibv_inc_rkey((*mw)->rkey);
  return PERIGEE_OK;
}

/* Returns the key for a pair: valid at once, or that of a window to be
 * bound. */
static int granted_pair_key(struct granted *granted, uint32_t at) {
  struct pair *pair = &granted->lane->pairs[at];
  struct rail *rail = pair->rail;
  struct keys *keys = granted->keys;
  uint32_t *rkey = &granted->rkey[at];
  if (!rail->windows)
    return shared_key(granted, rail, granted->rights, rkey);
  struct part *part;
  int status = keys_part(keys, rail, granted->offset, &part);
  if (status < 0)
    return status;
  if (!part->bindable)
    return shared_key(granted, rail, granted->rights, rkey);
  /* A window is within one memory region. */
  uint64_t end = granted->offset + granted->length;
  if (end > keys_part_end(keys, granted->offset))
    return PERIGEE_UNSUPPORTED;
  return window_make(granted, pair, &granted->mw[at]);
}

/* Makes keys for all pairs that carry bytes: valid at once, or of windows that
 * have to be bound. Called again, it makes new ones. 0 or a status; errno says
 * more. */
static int rights_make(struct granted *granted) {
  const struct lane *lane = granted->lane;
  int status = PERIGEE_OK;
  for (uint32_t i = 1; i < lane->pair_count && status >= 0; i++)
    status = granted_pair_key(granted, i);
  granted->bound = 1;
  return status;
}

/* Posts the binds as part of granted->job; true once all are posted. */
static bool rights_bind(struct granted *granted) {
  struct lane *lane = granted->lane;
  const struct keys *keys = granted->keys;
  for (; granted->bound < lane->pair_count; granted->bound++) {
    struct pair *pair = &lane->pairs[granted->bound];
    struct ibv_mw *mw = granted->mw[granted->bound];
    if (!mw)
      continue;
    if (pair->state != PAIR_UP || pair_room(pair) == 0)
      return false;
    uint64_t part = granted->offset / keys->size * lane->fabric->rail_count;
    pair_bind(pair, &granted->job, mw, keys->parts[part + pair->rail->index].mr,
              (uintptr_t)keys->area->base + granted->offset, granted->length,
              granted->rights, granted->rkey[granted->bound]);
  }
  return true;
}

/* Frees the keys; returns when the device does not use them any more. */
static void rights_free(struct granted *granted) {
  for (uint32_t i = 0; i < PAIRS; i++)
    if (granted->mw[i])
      ibv_dealloc_mw(granted->mw[i]);
  if (granted->shared)
    shared_give(granted->keys, granted->shared);
}

/* ---- Grants by id -------------------------------------------------------- */

static struct granted *granted_find(const struct lane *lane, uint32_t id) {
  if (id >= IDS || !lane->granted || !lane->granted[id / ID_PAGE])
    return NULL;
  return &lane->granted[id / ID_PAGE][id % ID_PAGE];
}

static struct granted *granted_make(struct lane *lane, uint32_t id) {
  if (!lane->granted)
    lane->granted = calloc(IDS / ID_PAGE, sizeof *lane->granted);
  if (!lane->granted)
    return NULL;
  struct granted **page = &lane->granted[id / ID_PAGE];
  if (!*page)
    *page = calloc(ID_PAGE, sizeof **page);
  return *page ? &(*page)[id % ID_PAGE] : NULL;
}

/* ---- Ids of payloads ------------------------------------------------------ */

/* Returns the next free id. So an id that was freed is not reused for long. */
static int payload_id_take(struct fabric *fabric) {
  const uint32_t count = ID_ARENA - ID_PAYLOAD;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t number = fabric->number++ % count;
    uint64_t *word = &fabric->numbered[number / 64];
    uint64_t bit = UINT64_C(1) << number % 64;
    if (*word & bit)
      continue;
    *word |= bit;
    return (int)(ID_PAYLOAD + number);
  }
  return PERIGEE_NO_MEMORY;
}

static void payload_id_give(struct fabric *fabric, uint32_t id) {
  uint32_t number = id - ID_PAYLOAD;
  fabric->numbered[number / 64] &= ~(UINT64_C(1) << number % 64);
}

/* ---- Grants -------------------------------------------------------------- */

static void granted_link(struct granted *granted) {
  struct keys *keys = granted->keys;
  granted->next = keys->grants;
  granted->link = &keys->grants;
  if (granted->next)
    granted->next->link = &granted->next;
  keys->grants = granted;
}

static void granted_unlink_opening(struct granted *granted) {
  struct granted **link = &granted->lane->fabric->opening;
  while (*link && *link != granted)
    link = &(*link)->waiting;
  if (*link)
    *link = granted->waiting;
  granted->opening = false;
}

/* Stops binding, on the pairs that would do it later. */
static void granted_stop_binding(struct granted *granted) {
  granted_unlink_opening(granted);
  lane_fence(granted->lane, &granted->job);
}

static void granted_free(struct granted *granted) {
  if (granted->opening)
    granted_stop_binding(granted);
  rights_free(granted);
  if (granted->numbered)
    payload_id_give(granted->lane->fabric, granted->id);
  *granted->link = granted->next;
  if (granted->next)
    granted->next->link = granted->link;
  memset(granted, 0, sizeof *granted);
}

/* Shuts a grant; tells the peer unless the lane has ended. */
static void granted_shut(struct granted *granted) {
  struct lane *lane = granted->lane;
  struct note note = {.kind = NOTE_REVOKE,
                      .operation = granted->id,
                      .value = granted->generation};
  granted_free(granted);
  if (note.value != 0 && lane->status >= 0 && !lane->cut)
    note_send(lane, &note);
}

static int granted_begin(struct lane *lane, uint32_t id, struct area *area,
                         uint64_t offset, uint64_t length,
                         struct granted **out) {
  if (id >= IDS || length == 0 || length > GRANT_MOST ||
      offset > area->length || length > area->length - offset)
    return PERIGEE_UNSUPPORTED;
  struct granted *granted = granted_make(lane, id);
  struct keys *keys = keys_of(lane->fabric, area);
  if (!granted || !keys)
    return PERIGEE_NO_MEMORY;
  *granted = (struct granted){
      .lane = lane, .id = id, .keys = keys, .offset = offset, .length = length};
  granted_link(granted);
  *out = granted;
  return PERIGEE_OK;
}

static void granted_tell_peer(const struct granted *granted) {
  struct note note = {.kind = NOTE_GRANT,
                      .operation = granted->id,
                      .value = granted->generation,
                      .base = (uintptr_t)granted->keys->area->base +
                              granted->offset,
                      .length = granted->length};
  memcpy(note.rkey, granted->rkey, sizeof note.rkey);
  note_send(granted->lane, &note);
}

/* A reset has cancelled the binding: it is begun again. */
static void granted_open_again(struct granted *granted) {
  bool refused = granted->job.status != PERIGEE_CANCELLED;
  granted->job = (struct job){0};
  if (refused || rights_make(granted) < 0)
    lane_break(granted->lane, PERIGEE_NO_MEMORY,
               "%s does not bind a memory window",
               granted->lane->pairs[0].rail->port.device);
}

/* Continues to open a grant; false while it has to wait. */
static bool granted_go_on(struct granted *granted) {
  struct job *job = &granted->job;
  if (granted->lane->status < 0 || granted->lane->cut) {
    granted_unlink_opening(granted);
    return true;
  }
  if (job->pending == 0 && job->status < 0)
    granted_open_again(granted);
  if (!rights_bind(granted) || job->pending > 0 || job->status < 0)
    return false;
  granted_unlink_opening(granted);
  if (granted->by_note)
    granted_tell_peer(granted);
  return true;
}

/* Goes on with grants that are being opened. */
static void grants_turn(struct fabric *fabric) {
  for (struct granted *g = fabric->opening, *next; g; g = next) {
    next = g->waiting;
    granted_go_on(g);
  }
}

static void granted_refuse(struct granted *granted, uint64_t generation) {
  struct fabric *fabric = granted->lane->fabric;
  granted_free(granted);
  granted->refused = generation;
  granted->until = keys_now(fabric) + REFUSED;
}

static int granted_open(struct granted *granted, uint64_t generation,
                        int access) {
  struct fabric *fabric = granted->lane->fabric;
  granted->rights = (access & PERIGEE_READ ? IBV_ACCESS_REMOTE_READ : 0) |
                    (access & PERIGEE_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0);
  int status = rights_make(granted);
  if (status < 0) {
    granted_refuse(granted, generation);
    return status;
  }
  granted->generation = generation;
  granted->opening = true;
  granted->waiting = fabric->opening;
  fabric->opening = granted;
  granted->by_note = granted->id >= ID_PAYLOAD || !granted->lane->keyed;
  granted_go_on(granted);
  granted->by_note = true; /* it is not bound yet */
  return PERIGEE_OK;
}

/* Revokes a grant: from the return on the peer does not reach the memory. */
static void grant_shut(struct lane *lane, uint32_t id) {
  struct granted *granted = granted_find(lane, id);
  if (granted && granted->generation != 0)
    granted_shut(granted);
}

bool grant_is(const struct lane *lane, uint32_t id, uint64_t generation) {
  const struct granted *granted = granted_find(lane, id);
  return granted && generation != 0 && granted->generation == generation;
}

int grant_open(struct lane *lane, uint32_t id, uint64_t generation,
               struct area *area, uint64_t offset, uint64_t length,
               int access) {
  if (lane->status < 0 || lane->cut)
    return lane->status < 0 ? lane->status : PERIGEE_CLOSED;
  if (generation == 0)
    return PERIGEE_UNSUPPORTED;
  if (grant_is(lane, id, generation))
    return PERIGEE_OK;
  grant_shut(lane, id);
  struct granted *granted = granted_find(lane, id);
  if (granted && granted->refused == generation &&
      keys_now(lane->fabric) < granted->until)
    return PERIGEE_NO_MEMORY;
  int status = granted_begin(lane, id, area, offset, length, &granted);
  return status < 0 ? status : granted_open(granted, generation, access);
}

bool verbs_turn(struct fabric *f) {
  bool any = rails_poll(f);
  if (f->opening)
    grants_turn(f);
  return any;
}

static void granted_page_close(struct granted *page) {
  for (uint32_t i = 0; page && i < ID_PAGE; i++)
    if (page[i].keys)
      granted_free(&page[i]);
  free(page);
}

void grants_close(struct lane *lane) {
  for (uint32_t i = 0; lane->granted && i < IDS / ID_PAGE; i++)
    granted_page_close(lane->granted[i]);
  free(lane->granted);
  lane->granted = NULL;
  remote_keys_close(lane);
}

/* ---- Regions and payloads ------------------------------------------------ */

/* Writes the key of a region whose windows are bound. */
static void region_key_write(const struct granted *granted,
                             struct region_key *key) {
  struct verbs_key said = {.base = (uintptr_t)granted->keys->area->base};
  memcpy(said.rkey, granted->rkey, sizeof said.rkey);
  memcpy(key->bytes, &said, sizeof said);
  key->length = sizeof said;
}

int verbs_export(struct lane *lane, const struct grant *grant,
                 struct region_key *key) {
  uint32_t id = ID_REGION + grant->slot;
  if (grant->slot >= ID_PAYLOAD - ID_REGION ||
      (grant->access & (PERIGEE_READ | PERIGEE_WRITE)) == 0)
    return PERIGEE_UNSUPPORTED;
  int status = grant_open(lane, id, grant->generation, grant->area, 0,
                          grant->area->length, grant->access);
  if (status < 0)
    return status;
  const struct granted *granted = granted_find(lane, id);
  key->length = key->fd_count = 0;
  if (lane->keyed && !granted->opening)
    region_key_write(granted, key);
  return PERIGEE_OK;
}

void verbs_revoke(struct lane *lane, uint32_t slot) {
  if (slot < ID_PAYLOAD - ID_REGION)
    grant_shut(lane, ID_REGION + slot);
}

bool verbs_inside(struct lane *lane, uint32_t slot) {
  (void)lane, (void)slot;
  return false;
}

static int keys_take_id(struct keys *keys) {
  int id = payload_id_take(keys->fabric);
  if (id < 0)
    return id;
  keys->id = (uint32_t)id;
  keys->generation = ++keys->fabric->generation;
  return PERIGEE_OK;
}

int keys_payload_id(struct lane *lane, struct area *area) {
  if (area->chunk || area->length == 0)
    return PERIGEE_UNSUPPORTED;
  struct keys *keys = keys_of(lane->fabric, area);
  if (!keys)
    return PERIGEE_NO_MEMORY;
  int status = keys->generation ? PERIGEE_OK : keys_take_id(keys);
  if (status < 0)
    return status;
  if (!grant_is(lane, keys->id, keys->generation))
    status = grant_open(lane, keys->id, keys->generation, area, 0, area->length,
                        PERIGEE_READ);
  return status < 0 ? status : (int)keys->id;
}

/* Can windows be bound to the area on all pairs that carry bytes? */
static bool keys_bindable(const struct lane *lane, struct keys *keys) {
  struct part *part;
  for (uint32_t i = 1; i < lane->pair_count; i++) {
    struct rail *rail = lane->pairs[i].rail;
    if (!rail->windows || keys_part(keys, rail, 0, &part) < 0 ||
        !part->bindable)
      return false;
  }
  return true;
}

int grant_payload(struct lane *lane, struct area *area, uint64_t offset,
                  uint64_t length, uint64_t *generation) {
  struct fabric *fabric = lane->fabric;
  struct keys *keys = area->chunk ? NULL : keys_of(fabric, area);
  if (!keys || !keys_bindable(lane, keys))
    return PERIGEE_UNSUPPORTED;
  int id = payload_id_take(fabric);
  if (id < 0)
    return id;
  *generation = ++fabric->generation;
  int status = grant_open(lane, (uint32_t)id, *generation, area, offset, length,
                          PERIGEE_READ);
  if (status < 0) {
    payload_id_give(fabric, (uint32_t)id);
    return status;
  }
  granted_find(lane, (uint32_t)id)->numbered = true;
  return id;
}

/* Its area may have been freed before, and the id be another's. */
void grant_payload_end(struct lane *lane, uint32_t id, uint64_t generation) {
  if (grant_is(lane, id, generation))
    grant_shut(lane, id);
}

/* ---- The inbox ----------------------------------------------------------- */

int inbox_open(struct lane *lane) {
  struct rail *rail = lane->fabric->rails;
  int right = rail->windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE;
  lane->inbox_mr =
      keys_register(rail, &memory_host, lane->inbox, lane->inbox_length,
                    IBV_ACCESS_LOCAL_WRITE | right);
  if (!lane->inbox_mr)
    return keys_status(errno);
  lane->inbox_key = lane->inbox_mr->rkey;
  if (!rail->windows)
    return PERIGEE_OK;
  lane->inbox_mw = ibv_alloc_mw(rail->pd, IBV_MW_TYPE_2);
  if (!lane->inbox_mw) {
    snprintf(lane->fabric->detail, REASON, "no memory window from %s: %s",
             rail->port.device, strerror(errno));
    return keys_status(errno);
  }
  /* The key that it will have: the peer is told before the window is bound. */
  lane->inbox_key = ibv_inc_rkey(lane->inbox_mw->rkey);
  return PERIGEE_OK;
}

int inbox_bind(struct lane *lane) {
  if (!lane->inbox_mw)
    return PERIGEE_OK;
  struct job job = {0};
  pair_bind(&lane->pairs[0], &job, lane->inbox_mw, lane->inbox_mr,
            (uintptr_t)lane->inbox, lane->inbox_length, IBV_ACCESS_REMOTE_WRITE,
            lane->inbox_key);
  lane_await(lane, &job);
  return job.status;
}

void inbox_close(struct lane *lane) {
  if (lane->inbox_mw)
    ibv_dealloc_mw(lane->inbox_mw);
  lane->inbox_mw = NULL;
  keys_deregister(lane->fabric, &lane->inbox_mr);
}

/* ---- The end of keys ----------------------------------------------------- */

static void part_close(struct keys *keys, uint64_t index) {
  for (uint32_t rail = 0; rail < keys->fabric->rail_count; rail++)
    keys_deregister(keys->fabric, &part_at(keys, index, rail)->mr);
}

static void keys_unlink(struct keys *keys) {
  struct keys **link = &keys->area->keys;
  while (*link != keys)
    link = &(*link)->sibling;
  *link = keys->sibling;
  *keys->link = keys->next;
  if (keys->next)
    keys->next->link = keys->link;
}

/* Shuts the grants first: memory with windows cannot be deregistered. */
static void keys_drop(struct keys *keys) {
  while (keys->grants)
    granted_shut(keys->grants);
  for (uint64_t i = 0; i < keys->count; i++)
    part_close(keys, i);
  if (keys->generation)
    payload_id_give(keys->fabric, keys->id);
  keys_unlink(keys);
  free(keys->parts);
  free(keys);
}

void keys_close(struct fabric *fabric) {
  while (fabric->keys)
    keys_drop(fabric->keys);
}

/* ---- Local keys, and memory that is unmapped ----------------------------- */

int keys_local(struct rail *rail, struct area *area, const uint8_t *pointer,
               uint32_t *lkey, uint64_t *run) {
  uint64_t offset = (uint64_t)((uintptr_t)pointer - (uintptr_t)area->base);
  if (offset >= area->length)
    return PERIGEE_UNSUPPORTED;
  struct keys *keys = keys_of(rail->fabric, area);
  if (!keys)
    return PERIGEE_NO_MEMORY;
  struct part *part;
  int status = keys_part(keys, rail, offset, &part);
  if (status < 0)
    return status;
  *lkey = part->mr->lkey;
  *run = keys_part_end(keys, offset) - offset;
  return PERIGEE_OK;
}

/* Checks all rails, as a transfer may be striped over them. */
bool keys_reach(struct lane *lane, struct area *area) {
  struct fabric *fabric = lane->fabric;
  uint32_t key;
  uint64_t run;
  for (uint32_t i = 0; i < fabric->rail_count; i++)
    if (!fabric->rails[i].failed &&
        keys_local(&fabric->rails[i], area, area->base, &key, &run) < 0)
      return false;
  return true;
}

/* Is everything that is registered or granted of a range completely within
 * it? */
static bool keys_are_inside(const struct keys *keys, uint64_t from,
                            uint64_t to) {
  for (uint64_t at = from; at < to; at = keys_part_end(keys, at)) {
    bool whole = at % keys->size == 0 && keys_part_end(keys, at) <= to;
    for (uint32_t rail = 0; rail < keys->fabric->rail_count; rail++)
      if (!whole && part_at(keys, at / keys->size, rail)->mr)
        return false;
  }
  for (struct granted *g = keys->grants; g; g = g->next)
    if (g->offset < to && from < g->offset + g->length &&
        (g->offset < from || g->offset + g->length > to))
      return false;
  return true;
}

static void keys_shut_inside(struct keys *keys, uint64_t from, uint64_t to) {
  for (struct granted *g = keys->grants, *next; g; g = next) {
    next = g->next;
    if (g->offset < to && from < g->offset + g->length)
      granted_shut(g);
  }
}

bool verbs_forget(struct fabric *fabric, struct area *area, uint64_t offset,
                  uint64_t length) {
  struct keys *keys = keys_find(fabric, area);
  if (!keys || length == 0 || offset >= area->length)
    return true;
  if (offset == 0 && length >= area->length) {
    keys_drop(keys);
    return true;
  }
  uint64_t left = area->length - offset;
  uint64_t end = offset + (length < left ? length : left);
  if (!keys_are_inside(keys, offset, end))
    return false;
  keys_shut_inside(keys, offset, end);
  for (uint64_t at = offset; at < end; at = keys_part_end(keys, at))
    part_close(keys, at / keys->size);
  return true;
}
