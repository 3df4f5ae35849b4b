/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_keys.c - registration of memory with devices, made on first use and
 * kept until the area is freed.
 *
 * Least rights. What is registered here lets the device work for this process
 * only. Memory whose pages are read-only is registered without the right to
 * write, and without windows, since a window could give that right: the kernel
 * pins bindable memory as if it were written to.
 *
 * A refusal is remembered: for good if the memory can never be registered,
 * otherwise for a second, since locked memory may become free.
 */
#include "verbs_keys.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Parts -------------------------------------------------------------- */

uint64_t keys_part_end(const struct keys *keys, uint64_t offset) {
  uint64_t begin = offset - offset % keys->size;
  uint64_t left = keys->area->length - begin;
  return begin + (keys->size < left ? keys->size : left);
}

static struct part *part_at(const struct keys *keys, uint64_t index,
                            uint32_t rail) {
  return &keys->parts[index * keys->fabric->rail_count + rail];
}

/* If the memory turns out to be read-only, the whole area is from then on. */
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

int keys_part(struct keys *keys, struct rail *rail, uint64_t offset,
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

/* ---- Keys --------------------------------------------------------------- */

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

struct keys *keys_of(struct fabric *fabric, struct area *area) {
  struct keys *keys = keys_find(fabric, area);
  return keys || area->length == 0 ? keys : keys_make(fabric, area);
}

static void part_close(struct keys *keys, uint64_t index) {
  for (uint32_t rail = 0; rail < keys->fabric->rail_count; rail++)
    keys_deregister(keys->fabric, &part_at(keys, index, rail)->mr);
}

static void unlink_keys(struct keys *keys) {
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
  if (keys->generation) {
    uint32_t number = keys->id - ID_PAYLOAD;
    keys->fabric->numbered[number / 64] &= ~(UINT64_C(1) << number % 64);
  }
  unlink_keys(keys);
  free(keys->parts);
  free(keys);
}

void keys_close(struct fabric *fabric) {
  while (fabric->keys)
    keys_drop(fabric->keys);
}

/* ---- The transport's ---------------------------------------------------- */

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
static bool is_inside(const struct keys *keys, uint64_t from, uint64_t to) {
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

static void shut_inside(struct keys *keys, uint64_t from, uint64_t to) {
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
  if (!is_inside(keys, offset, end))
    return false;
  shut_inside(keys, offset, end);
  for (uint64_t at = offset; at < end; at = keys_part_end(keys, at))
    part_close(keys, at / keys->size);
  return true;
}
