/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_keys.h - shared by verbs_register.c, verbs_keys.c, verbs_rights.c,
 * verbs_grants.c and verbs_remote.c.
 *
 * An area that a fabric has registered has keys: for each part of the area (one
 * part if it is registered as a whole) and each rail one memory region without
 * remote rights. Remote rights come from windows that are bound to these; if
 * the device has no windows, from a second memory region, which all sessions
 * share.
 *
 * A grant refers to its keys, and keys to all grants of their area. So when an
 * area is freed, its grants end.
 */
#ifndef VERBS_KEYS_H
#define VERBS_KEYS_H

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

/* The key of a region whose windows are bound; of one whose windows are not, it
 * is without bytes, and NOTE_GRANT follows. rkey: by pair. */
struct verbs_key {
  uint64_t base;
  uint32_t rkey[PAIRS], zero;
};
_Static_assert(sizeof(struct verbs_key) <= KEY_MAX, "it fits");

enum { REFUSED = 1000000000 }; /* ns until a refused registration is retried */
enum { PAGE = 64 }; /* entries of a page of lane->granted and remote_keys */
_Static_assert(IDS % PAGE == 0, "whole pages");
/* Most bytes under one id: offsets in a source's address have 40 bits. */
#define GRANT_MOST (UINT64_C(1) << 40)

static inline int64_t keys_now(const struct fabric *fabric) {
  return fabric->engine.clock(fabric->engine.context);
}

/* Returns the area's keys, made if needed; NULL without memory. */
struct keys *keys_of(struct fabric *fabric, struct area *area);
/* Registers the part that contains the offset; 0 or a status. */
int keys_part(struct keys *keys, struct rail *rail, uint64_t offset,
              struct part **part);
/* Returns where the part that contains the offset ends. */
uint64_t keys_part_end(const struct keys *keys, uint64_t offset);
/* Returns NULL if it fails; errno says why, fabric->detail says it for
 * users. */
struct ibv_mr *keys_register(struct rail *rail,
                             const struct memory_context *memory,
                             uint8_t *address, uint64_t length, int access);
void keys_deregister(struct fabric *fabric, struct ibv_mr **mr);
int keys_status(int error);

/* Makes keys for all pairs that carry bytes: valid at once, or of windows that
 * have to be bound. Called again, it makes new ones. 0 or a status; errno says
 * more. */
int rights_make(struct granted *granted);
/* Posts the binds as part of granted->job; true once all are posted. */
bool rights_bind(struct granted *granted);
/* Frees the keys; returns when the device does not use them any more. */
void rights_free(struct granted *granted);
/* Shuts a grant; tells the peer unless the lane has ended. */
void granted_shut(struct granted *granted);
void remote_keys_close(struct lane *lane);

#endif
