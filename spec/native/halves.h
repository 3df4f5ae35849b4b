/* SPDX-License-Identifier: Apache-2.0
 *
 * halves.h - two halves of the lane "cuda" in one process, without engines or
 * sessions: what one half says is kept until the test lets the other one hear
 * it. Their memory is that of the fake of CUDA's driver (spec/gpu/), which ends
 * the process where real CUDA leaves undefined what happens.
 */
#ifndef HALVES_H
#define HALVES_H

#include "support.h"
#include "transport/cuda/cuda_lane.h"

enum { SAID = 64, AREA = 2 << 20 };

struct said {
  struct word word;
  int fd;     /* -1: none */
  int second; /* likewise */
};

struct half {
  struct lane *lane;
  struct half *other;
  struct contexts memories;
  const struct memory_context *device; /* cuda:0, if it was opened */
  struct perigee_options options;
  struct shares shares;
  struct share *share;
  struct said said[SAID]; /* the other half has not heard it */
  uint32_t said_count;
  bool full;   /* its socket takes nothing */
  int64_t now; /* each word is heard a second after the last one */
};

/* 0 is the peer; 1 is our half, which may have memory. */
struct halves {
  struct half of[2];
  struct half *peer, *ours;
  struct area here; /* ours */
  int files;        /* that were open before */
};

/* Sets the fake; skips the test if there is none. */
void fake_set(const char *word);
uint64_t fake_counts(const char *name);

/* Opens both, each with a context of cuda:0, and ours with AREA bytes. Each copy
 * takes so many microseconds. */
void halves_open(struct halves *h, long slow);
/* The same, of a session that takes no descriptors. */
void halves_open_distant(struct halves *h, long slow);
/* As halves_open, but our half has neither a context nor memory. */
void halves_open_bare(struct halves *h);
/* Fails if a half holds anything, or a descriptor is left. */
void halves_close(struct halves *h);
/* Each half hears all that the other one says, and finds it right. */
void halves_talk(struct halves *h);
/* Takes the oldest thing that the half has said. */
struct said half_said(struct half *h);
int half_hears(struct half *h, const struct word *word, int fd);
int half_hears_pair(struct half *h, const struct word *word, int first,
                    int second);
const struct memory_context *half_device(struct half *h, const char *name);

/* Memory of the half's device; and what the peer grants in that slot: a window of
 * our half. The area stays where it is. */
void area_new(struct half *h, struct area *area, uint64_t length);
void area_end(struct half *h, struct area *area);
/* The same as the program made it by cuMemCreate, as torch does. */
struct lent {
  struct area area;
  void *own;
};
void lent_new(struct half *h, struct lent *lent);
void lent_end(struct half *h, struct lent *lent);
/* Does another process have it open, as its kind tells? No key of it is given any
 * more. */
bool lent_is_held(const struct lent *lent);
struct window peer_grants(struct halves *h, struct area *area, uint32_t slot);
void area_fill(const struct area *area, int byte);
void area_same(const struct area *area, uint64_t offset, uint64_t length,
               int byte);

/* A payload of memory of a device, or of the host (memory NULL). */
struct payload area_payload(const struct area *area);
struct payload payload_of(const struct memory_context *memory, void *at,
                          uint64_t length);
/* Our half posts a copy of all of the local payload as part of the job. Returns
 * what post returned at last. */
int ours_post(struct halves *h, struct job *job, const struct window *w,
              uint64_t offset, struct payload local, bool write);
void ours_await(struct halves *h, struct job *job);
/* Both, and the status of the job if it has failed. */
int ours_move(struct halves *h, const struct window *w, uint64_t offset,
              struct payload local, bool write);
/* Of all of our memory. */
int ours_write(struct halves *h, const struct window *w);
/* The peer exposes a payload of that memory, as part of operation 5. Returns what
 * expose does. */
enum { EXPOSED_AS = 5 };
int peer_exposes(struct halves *h, struct area *area, struct fetch *f,
                 struct payload *into);
/* Fetches all of it: 1, or up to the first status. */
int ours_fetch(struct halves *h, struct fetch *f);

#endif
