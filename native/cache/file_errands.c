/* SPDX-License-Identifier: Apache-2.0
 *
 * file_errands.c - opening and closing a file of values, and what its caller
 * asks for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache/file.h"

enum {
  LEAST_FILE = 1 << 20,
  LEAST_UNIT = 64 << 10,
  MOST_UNIT = 4 << 20,
  UNITS = 1024,
  ORDINARY = 64 << 20,
  ERRANDS = 64,
  MOST_ERRANDS = 1000,
  ROOM = 256, /* removals of one errand at most */
  TRIES = 8
};
/* Leases are the reads' own, which give them back. */
#define LEASE (INT64_C(1) << 57)

/* ---- Opening ----------------------------------------------------------- */

static uint64_t unit_of(uint64_t size) {
  uint64_t unit = LEAST_UNIT;
  while (unit < MOST_UNIT && size / unit > UNITS)
    unit *= 2;
  return unit;
}

static uint64_t slab_ordinary(const struct perigee_cache_file *f,
                              uint64_t slab) {
  uint64_t wanted = slab ? slab : f->size / 16;
  if (!slab && wanted > ORDINARY)
    wanted = ORDINARY;
  return wanted > f->unit ? wanted / f->unit * f->unit : f->unit;
}

/* The key of a file that is begun anew makes what was in it void. */
static int head_take(struct perigee_cache_file *f) {
  struct table_head head;
  uint8_t *block = f->flush_bytes;
  if (f->disk->had_head && pread(f->disk->file, block, BLOCK, 0) == BLOCK &&
      table_head_read(block, &head) && head.size == f->size &&
      head.unit == f->unit) {
    memcpy(f->key, head.key, sizeof f->key);
    return PERIGEE_OK;
  }
  head = (struct table_head){.size = f->size, .unit = f->unit};
  randombytes_buf(head.key, sizeof head.key);
  memcpy(f->key, head.key, sizeof f->key);
  table_head_write(block, &head);
  return pwrite(f->disk->file, block, BLOCK, 0) == BLOCK ? PERIGEE_OK
                                                         : PERIGEE_CACHE_IO;
}

static int store_of_file(struct perigee_cache_file *f, uint64_t slab) {
  struct perigee_cache_options o = {.quota = f->units * f->unit,
                                    .slab = slab_ordinary(f, slab),
                                    .lease = LEASE,
                                    .margin = 1,
                                    .clients = 1,
                                    .leases = f->depth,
                                    .leases_each = f->depth,
                                    .reserved_each = f->depth,
                                    .groups = 1,
                                    .events = 1,
                                    .event_bytes = PERIGEE_CACHE_KEY};
  int status = perigee_cache_open(&o, f->now, &f->store);
  if (status < 0)
    return status;
  f->store->file = f;
  f->store->changed = file_changed;
  status = file_piece(f);
  if (status < 0)
    return status;
  int64_t client = perigee_cache_client(f->store);
  f->client = (uint32_t)client;
  return client < 0 ? (int)client : PERIGEE_OK;
}

static int file_parts(struct perigee_cache_file *f) {
  f->unit = unit_of(f->size);
  f->units = (uint32_t)((f->size - BLOCK) / (f->unit + BLOCK));
  f->data = (uint64_t)BLOCK * (1 + f->units);
  f->used = calloc(f->units, 1);
  f->errands = calloc(f->depth, sizeof *f->errands);
  f->flush_bytes = aligned_alloc(BLOCK, (size_t)(FLUSHES + 1) * BLOCK);
  if (!f->used || !f->errands || !f->flush_bytes)
    return PERIGEE_NO_MEMORY;
  for (uint32_t i = 0; i < FLUSHES; i++)
    f->flushes[i].bytes = f->flush_bytes + (size_t)i * BLOCK;
  f->head = f->flush_bytes + (size_t)FLUSHES * BLOCK;
  return again_open(f);
}

static void file_free(struct perigee_cache_file *f) {
  if (f->disk)
    disk_close(f->disk);
  if (f->store)
    perigee_cache_close(f->store);
  for (uint32_t i = 0; i < f->piece_count; i++)
    munmap(f->pieces[i], PERIGEE_CACHE_PIECE);
  for (uint32_t i = 0; i < f->part_end; i++)
    free(f->parts[i].blocks);
  again_close(f);
  free(f->parts);
  free(f->used);
  free(f->errands);
  free(f->flush_bytes);
  free(f);
}

static int file_begin(struct perigee_cache_file *f,
                      const struct perigee_cache_file_options *o, char *reason,
                      uint64_t room) {
  struct perigee_cache_file_options own = *o;
  own.depth = f->depth + FLUSHES + 2;
  int status = disk_open(&own, TABLE_MAGIC, &f->disk, reason, room);
  if (status < 0)
    return status;
  status = file_parts(f);
  if (status == 0)
    status = head_take(f);
  if (status == 0)
    status = store_of_file(f, o->slab);
  if (status < 0 && room > 0)
    snprintf(reason, room, "%s: %s", o->path,
             status == PERIGEE_CACHE_IO ? "its head cannot be written"
                                        : "no memory");
  return status;
}

int perigee_cache_file_open(const struct perigee_cache_file_options *o,
                            struct perigee_cache *memory, int64_t now,
                            int64_t wall, struct perigee_cache_file **file,
                            char *reason, uint64_t room) {
  bool sound = o->size >= LEAST_FILE && o->depth <= MOST_ERRANDS &&
               o->slab <= PERIGEE_CACHE_LARGEST && sodium_init() >= 0;
  struct perigee_cache_file *f = sound ? calloc(1, sizeof *f) : NULL;
  if (room > 0)
    snprintf(reason, room, "%s",
             sound ? "no memory" : "options are out of their range");
  if (!f)
    return sound ? PERIGEE_NO_MEMORY : PERIGEE_INVALID;
  f->memory = memory;
  f->now = now;
  f->wall = wall;
  f->size = o->size;
  f->depth = o->depth ? o->depth : ERRANDS;
  int status = file_begin(f, o, reason, room);
  if (status < 0) {
    file_free(f);
    return status;
  }
  if (room > 0)
    *reason = 0;
  again_go(f);
  disk_go(f->disk);
  *file = f;
  return PERIGEE_OK;
}

/* ---- The head ------------------------------------------------------------ */

/* A key that is to be forgotten before the directory is read has a record that
 * nobody knows yet. Until it is found, and is gone from the disk, the head there
 * has another key than the records: a process that ends before then leaves a
 * file that is begun anew. */
static void head_go(struct perigee_cache_file *f) {
  struct table_head head = {.size = f->size, .unit = f->unit};
  if (f->heading || f->failed || f->owing == f->owes)
    return;
  if (f->owes)
    randombytes_buf(head.key, sizeof head.key);
  else
    memcpy(head.key, f->key, sizeof head.key);
  table_head_write(f->head, &head);
  f->heading =
      disk_write(f->disk, f->head, BLOCK, 0, token_of(OF_HEAD, 0)) == 0;
  if (f->heading)
    f->owing = f->owes;
}

static void head_ended(struct perigee_cache_file *f, int64_t status) {
  f->heading = false;
  if (status < 0)
    f->failed = (int32_t)status;
}

/* What is asked for begins at once. */
static void file_go(struct perigee_cache_file *f) {
  file_flush(f);
  head_go(f);
  disk_go(f->disk);
  if (f->ended)
    disk_tell(f->disk);
}

int perigee_cache_file_close(struct perigee_cache_file *f) {
  bool writes = !f->failed && ((f->again == AGAIN_DONE && f->queued > 0) ||
                               f->owing != f->owes);
  f->closing = true;
  if (writes)
    file_go(f);
  if (f->disk->busy || f->waiting || writes)
    return PERIGEE_AGAIN;
  file_free(f);
  return PERIGEE_OK;
}

int perigee_cache_file_descriptor(const struct perigee_cache_file *f) {
  return f->disk->event;
}

struct perigee_cache *perigee_cache_file_store(struct perigee_cache_file *f) {
  return f->store;
}

void perigee_cache_file_state(const struct perigee_cache_file *f,
                              struct perigee_cache_file_state *state) {
  *state = (struct perigee_cache_file_state){.failed = f->failed,
                                             .under_way = f->waiting +
                                                          f->moving + f->ended,
                                             .ready = f->again == AGAIN_DONE,
                                             .ring = f->disk->ring != NULL,
                                             .direct = f->disk->align > 1};
}

/* ---- Errands ------------------------------------------------------------- */

static void errand_end(struct perigee_cache_file *f, struct errand *k,
                       int64_t status) {
  if (k->state == WAITING)
    f->waiting--;
  if (k->state == MOVING)
    f->moving--;
  k->state = ENDED;
  k->status = status;
  f->ended++;
}

/* The key of a reservation that is sealed now. */
static void memory_mark(const struct perigee_cache_file *f,
                        const struct errand *k) {
  uint8_t key[PERIGEE_CACHE_KEY];
  const struct entry *r = record(f->store, (uint32_t)k->entry);
  if (!f->memory)
    return;
  key_copy(r, key);
  perigee_cache_mark(f->memory, (const char *)key, what_length(word(&r->what)),
                     k->version, 1);
}

static int64_t write_end(struct perigee_cache_file *f, const struct errand *k,
                         int64_t status) {
  if (status < 0 || k->doomed) {
    perigee_cache_abort(f->store, k->entry);
    return status < 0 ? status : PERIGEE_CANCELLED;
  }
  int64_t version =
      entry_seal(f->store, k->entry, k->checksum, k->version, f->now);
  if (version < 0)
    return version;
  memory_mark(f, k);
  return PERIGEE_OK;
}

static void errand_done(struct perigee_cache_file *f, struct errand *k,
                        int64_t status) {
  if (k->kind == ERRAND_WRITE)
    status = write_end(f, k, status);
  if (k->kind == ERRAND_READ)
    perigee_cache_release(f->store, f->client, k->lease);
  errand_end(f, k, status);
}

static void errand_move(struct perigee_cache_file *f, struct errand *k) {
  uint64_t offset = part_offset(f, slab_index(k->place.slab)) + k->place.offset;
  uint64_t token = token_of(OF_ERRAND, (uint32_t)(k - f->errands));
  int status = PERIGEE_OK;
  if (k->state == WAITING)
    f->waiting--;
  k->state = MOVING;
  f->moving++;
  if (k->place.length > 0)
    status =
        k->kind == ERRAND_READ
            ? disk_read(f->disk, k->memory, k->place.length, offset, token)
            : disk_write(f->disk, k->memory, k->place.length, offset, token);
  if (status < 0 || k->place.length == 0)
    errand_done(f, k, status);
}

static void errand_wait(struct perigee_cache_file *f, struct errand *k) {
  k->state = WAITING;
  f->waiting++;
}

/* Has an errand that is not begun yet. */
static int errand_take(struct perigee_cache_file *f, enum errand_kind kind,
                       uint64_t token, struct errand **errand) {
  uint32_t i = 0;
  if (f->failed)
    return f->failed;
  if (f->again != AGAIN_DONE || f->closing ||
      f->waiting + f->moving + f->ended == f->depth ||
      f->removal_count > REMOVALS - ROOM)
    return PERIGEE_AGAIN;
  while (f->errands[i].state != ERRAND_NONE)
    i++;
  f->errands[i] = (struct errand){.kind = kind, .token = token};
  *errand = &f->errands[i];
  return PERIGEE_OK;
}

static bool memory_is_sound(const void *memory, uint64_t length) {
  return length <= DISK_BOUNCE || (uintptr_t)memory % DISK_BLOCK == 0;
}

/* ---- Writing ----------------------------------------------------------- */

static int file_reserve(struct perigee_cache_file *f, const char *key,
                        uint32_t key_length, uint64_t length, int64_t ttl,
                        struct perigee_cache_place *place) {
  struct perigee_cache_put put = {
      .length = length, .ttl = ttl, .client = f->client};
  int status = PERIGEE_CACHE_WANTS;
  for (int i = 0; status == PERIGEE_CACHE_WANTS && i < TRIES; i++) {
    status =
        perigee_cache_reserve(f->store, key, key_length, &put, f->now, place);
    if (status == PERIGEE_CACHE_WANTS && file_feed(f) == PERIGEE_AGAIN)
      break;
  }
  return status == PERIGEE_CACHE_WANTS ? PERIGEE_NO_MEMORY : status;
}

/* Nothing is written that memory has replaced or deleted, or is about to: the
 * key was forgotten for that, and would be there again. */
static int memory_check(const struct perigee_cache_file *f, const char *key,
                        uint32_t key_length, uint64_t version) {
  struct sought s;
  if (!f->memory || !sought_key(&s, f->memory->o.seed, key, key_length))
    return PERIGEE_OK;
  if (directory_find(f->memory, &s, false))
    return PERIGEE_CACHE_BUSY;
  uint32_t ref = memory_find(f, key, key_length);
  return ref && word(&record(f->memory, ref)->version) == version
             ? PERIGEE_OK
             : PERIGEE_STALE;
}

static int write_check(struct perigee_cache_file *f, const char *key,
                       uint32_t key_length, uint64_t version) {
  int status = memory_check(f, key, key_length, version);
  uint32_t ref = entry_find(f->store, key, key_length, f->now);
  if (status < 0)
    return status;
  return ref && word(&record(f->store, ref)->version) >= version
             ? PERIGEE_CACHE_EXISTS
             : PERIGEE_OK;
}

int perigee_cache_file_write(struct perigee_cache_file *f, const char *key,
                             uint32_t key_length, const void *value,
                             uint64_t length, uint64_t version,
                             uint64_t checksum, int64_t ttl, uint64_t token) {
  struct errand *k;
  int status = errand_take(f, ERRAND_WRITE, token, &k);
  if (status == 0 && (!memory_is_sound(value, length) || version == 0))
    status = PERIGEE_INVALID;
  if (status == 0)
    status = write_check(f, key, key_length, version);
  if (status == 0)
    status = file_reserve(f, key, key_length, length, ttl, &k->place);
  if (status < 0)
    return status;
  k->memory = (uint8_t *)(uintptr_t)value;
  k->version = version;
  k->checksum = checksum;
  k->entry = k->place.entry;
  k->part = slab_index(k->place.slab);
  k->number =
      (uint32_t)(k->place.offset / size_bytes(f->store->slabs[k->part].size));
  if (place_is_left(f, k->part, k->number))
    errand_wait(f, k);
  else
    errand_move(f, k);
  file_go(f);
  return PERIGEE_OK;
}

/* ---- Reading, forgetting ----------------------------------------------- */

int perigee_cache_file_read(struct perigee_cache_file *f, const char *key,
                            uint32_t key_length, void *to, uint64_t room,
                            uint64_t token, struct perigee_cache_place *place) {
  struct errand *k;
  int status = errand_take(f, ERRAND_READ, token, &k);
  if (status == 0)
    status = perigee_cache_locate(f->store, f->client, key, key_length, f->now,
                                  place);
  if (status < 0)
    return status;
  if (place->length > room || !memory_is_sound(to, place->length)) {
    perigee_cache_release(f->store, f->client, place->lease);
    return place->length > room ? PERIGEE_TOO_LARGE : PERIGEE_INVALID;
  }
  k->memory = to;
  k->place = *place;
  k->lease = place->lease;
  errand_move(f, k);
  file_go(f);
  return PERIGEE_OK;
}

/* The key of a write that is under way never gets a record. */
static void write_doom(struct perigee_cache_file *f, uint32_t ref) {
  for (uint32_t i = 0; ref && i < f->depth; i++) {
    struct errand *k = &f->errands[i];
    if (k->kind != ERRAND_WRITE || (uint32_t)k->entry != ref ||
        (k->state != WAITING && k->state != MOVING))
      continue;
    k->doomed = true;
    if (k->state == WAITING)
      errand_done(f, k, PERIGEE_OK);
    return;
  }
}

/* Nobody finds the key from now on, whether there is an errand for it or not:
 * who has asked for this tells that the key is gone. */
int perigee_cache_file_forget(struct perigee_cache_file *f, const char *key,
                              uint32_t key_length, uint64_t token) {
  struct errand *k;
  struct sought s;
  if (!sought_key(&s, f->store->o.seed, key, key_length))
    return PERIGEE_INVALID;
  if (f->again == AGAIN_DONE) {
    write_doom(f, directory_find(f->store, &s, false));
    perigee_cache_delete(f->store, key, key_length);
  }
  int status = errand_take(f, ERRAND_FORGET, token, &k);
  if (status == PERIGEE_AGAIN && f->again != AGAIN_DONE)
    f->owes = true;
  if (status == 0 && !key_is_left(f, s.hash))
    return 0;
  if (status == 0) {
    k->hash = s.hash;
    errand_wait(f, k);
  }
  file_go(f);
  return status < 0 ? status : 1;
}

void perigee_cache_file_settled(struct perigee_cache_file *f) {
  f->owes = false;
  file_go(f);
}

/* ---- Polling ----------------------------------------------------------- */

static void waiting_go(struct perigee_cache_file *f) {
  for (uint32_t i = 0; f->waiting > 0 && i < f->depth; i++) {
    struct errand *k = &f->errands[i];
    if (k->state != WAITING)
      continue;
    if (f->failed)
      errand_done(f, k, f->failed);
    else if (k->kind == ERRAND_WRITE && !place_is_left(f, k->part, k->number))
      errand_move(f, k);
    else if (k->kind == ERRAND_FORGET && !key_is_left(f, k->hash))
      errand_done(f, k, PERIGEE_OK);
  }
}

static void disk_ended(struct perigee_cache_file *f, const struct disk_end *e) {
  uint32_t index = (uint32_t)e->token;
  if (e->token >> 32 == OF_ERRAND)
    errand_done(f, &f->errands[index], e->status);
  else if (e->token >> 32 == OF_FLUSH)
    flush_ended(f, index, e->status);
  else if (e->token >> 32 == OF_HEAD)
    head_ended(f, e->status);
  else
    again_ended(f, e->status);
}

static void disk_ends(struct perigee_cache_file *f) {
  enum { MANY = 64 };
  struct disk_end ends[MANY];
  uint32_t n = disk_poll(f->disk, ends, MANY);
  for (uint32_t i = 0; i < n; i++)
    disk_ended(f, &ends[i]);
}

/* What goes is noted, so no more may go than there is room for. */
static void store_turn(struct perigee_cache_file *f) {
  if (f->again != AGAIN_DONE || f->removal_count > REMOVALS - 2 * TURN)
    return;
  if (perigee_cache_turn(f->store, f->now, TURN))
    disk_tell(f->disk);
  if (f->lowered && f->store->starved == NONE && !f->store->drained)
    file_quota(f, false);
}

int64_t perigee_cache_file_poll(struct perigee_cache_file *f, int64_t now,
                                int64_t wall,
                                struct perigee_cache_file_end *ends,
                                uint64_t most) {
  uint64_t n = 0;
  f->now = now;
  f->wall = wall;
  disk_ends(f);
  again_go(f);
  store_turn(f);
  waiting_go(f);
  for (uint32_t i = 0; f->ended > 0 && n < most && i < f->depth; i++) {
    struct errand *k = &f->errands[i];
    if (k->state != ENDED)
      continue;
    ends[n++] =
        (struct perigee_cache_file_end){.token = k->token, .status = k->status};
    k->state = ERRAND_NONE;
    f->ended--;
  }
  file_go(f);
  return (int64_t)n;
}
