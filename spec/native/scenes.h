/* SPDX-License-Identifier: Apache-2.0
 *
 * scenes.h - an operation of side 0 in each state in which it can be, for
 * tests of how it ends there.
 */
#ifndef SCENES_H
#define SCENES_H

#include "support.h"

struct scene {
  struct pair p;
  struct perigee_region *mine, *theirs; /* of ROOM bytes */
  struct perigee_region *plain[2];      /* host memory, a little */
  uint8_t *bytes;
  int operation;
  int served;      /* at side 1, still to be answered, or -1 */
  int64_t timeout; /* of the operation */
  uint64_t ends;   /* of it */
  int status;
  bool settled; /* it may have ended well before anybody stops it */
};

struct scene_kind {
  const char *name;
  void (*build)(struct scene *s);
  bool connecting; /* there is no session of it yet */
};
extern const struct scene_kind scene_kinds[];

enum { ROOM = 5 * MIB + 64 * KIB };

void scene_open(struct scene *s, void *state, int64_t timeout);
/* Polls, answers and lands all that comes until nothing is in flight; counts
 * the events of the operation. */
void scene_wind_up(struct scene *s);
void scene_close(struct scene *s);
void scene_drop(struct scene *s);
/* What one side's event asks for is done. */
void scene_answer(struct scene *s, int side, const struct perigee_event *e);
/* Ways to end the operation. */
void scene_by_timeout(struct scene *s);
void scene_by_cancel(struct scene *s);
void scene_by_close(struct scene *s);
void scene_by_peers_close(struct scene *s);
/* Builds the scene, ends the operation, which must have that status, and
 * checks that nothing is left of it. */
void scene_stop(void *state, const struct scene_kind *kind,
                void (*stop)(struct scene *), int status);
/* Time goes on for all engines of scenes. */
void scene_later(int64_t time);

#endif
