/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_keys.h - between verbs_register.c, verbs_keys.c, verbs_rights.c,
 * verbs_grants.c and verbs_remote.c.
 *
 * An area that a fabric has registered has keys: for each part of the area (one
 * if it is registered as a whole) and each rail a memory region without remote
 * rights. Remote rights come from windows bound to these; where windows cannot
 * be had, from a second memory region, which all sessions share.
 *
 * Who refers to what: a grant to its keys, keys to all grants of their area. So
 * an area that goes takes its grants with it.
 */
#ifndef VERBS_KEYS_H
#define VERBS_KEYS_H

#include "verbs.h"

struct part {
  struct ibv_mr *mr; /* NULL: not registered; */
  int status;        /* if it was refused: why, */
  int64_t until;     /* and till when it is not tried again */
  bool bindable;     /* windows may be bound to mr */
};

/* A range with remote rights, used by that many grants. */
struct shared {
  struct shared *next;
  uint64_t offset, length;
  int rights;
  uint32_t users;
  struct ibv_mr *mr[RAILS]; /* those that were needed */
};

struct keys {
  struct keys *next, **link; /* in fabric->keys */
  struct keys *sibling;      /* in area->keys: those of other fabrics */
  struct fabric *fabric;
  struct area *area;
  uint64_t size, count; /* of a part; of parts */
  struct part *parts;   /* by part, then rail */
  struct shared *shared;
  struct granted *grants;
  uint64_t generation; /* as a payload; 0: it has no id, */
  uint32_t id;         /* the same on all lanes */
};

/* The key of a region whose windows are bound; of one whose windows are not, it
 * is without bytes, and NOTE_GRANT follows. rkey: by pair. */
struct verbs_key {
  uint64_t base;
  uint32_t rkey[PAIRS], zero;
};
_Static_assert(sizeof(struct verbs_key) <= KEY_MAX, "it fits");

enum { REFUSED = 1000000000 }; /* ns until what failed is tried again */
enum { PAGE = 64 }; /* entries of a page of lane->granted and remote_keys */
_Static_assert(IDS % PAGE == 0, "whole pages");
/* Bytes under one id: offsets in a source's address have 40 bits. */
#define GRANT_MOST (UINT64_C(1) << 40)

static inline int64_t keys_now(const struct fabric *fabric) {
  return fabric->engine.clock(fabric->engine.context);
}

/* The area's keys, made if there are none yet; NULL: no memory. */
struct keys *keys_of(struct fabric *fabric, struct area *area);
/* The part that the offset lies in, registered; or a status. */
int keys_part(struct keys *keys, struct rail *rail, uint64_t offset,
              struct part **part);
/* Where that part ends. */
uint64_t keys_part_end(const struct keys *keys, uint64_t offset);
/* NULL: errno says why, fabric->detail says it for people. */
struct ibv_mr *keys_register(struct rail *rail,
                             const struct memory_context *memory,
                             uint8_t *address, uint64_t length, int access);
void keys_deregister(struct fabric *fabric, struct ibv_mr **mr);
int keys_status(int error);

/* Keys for all pairs that carry bytes: good at once, or of windows that have to
 * be bound. Made again, they are new ones. 0 or a status; errno says more. */
int rights_make(struct granted *granted);
/* Has all that is to be bound been posted, as part of granted->job? */
bool rights_bind(struct granted *granted);
/* Ends only when the device is through with them. */
void rights_free(struct granted *granted);
/* Without a word to the peer, if the lane has ended. */
void granted_shut(struct granted *granted);
void remote_keys_close(struct lane *lane);

#endif
