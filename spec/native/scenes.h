/* SPDX-License-Identifier: Apache-2.0
 *
 * scenes.h - brings an operation of side 0 into each of its possible states,
 * for tests of how it ends there.
 */
#ifndef SCENES_H
#define SCENES_H

#include "support.h"

struct scene {
  struct pair p;
  struct perigee_region *mine, *theirs; /* of ROOM bytes */
  struct perigee_region *plain[2];      /* host memory, small */
  uint8_t *bytes;
  int operation;
  int served;      /* side 1's call to be answered, or -1 */
  int64_t timeout; /* of the operation */
  uint64_t ends;   /* events that ended the operation */
  int status;
  bool settled; /* the operation may succeed before it is stopped */
};

struct scene_kind {
  const char *name;
  void (*build)(struct scene *s);
  bool connecting; /* the operation is a connect: no session yet */
};
extern const struct scene_kind scene_kinds[];

enum { ROOM = 5 * MIB + 64 * KIB };

void scene_open(struct scene *s, void *state, int64_t timeout);
/* Polls, and answers and lands whatever comes, until nothing is in flight.
 * Counts the events that end the operation. */
void scene_wind_up(struct scene *s);
void scene_close(struct scene *s);
void scene_drop(struct scene *s);
/* Handles an event of one side. */
void scene_answer(struct scene *s, int side, const struct perigee_event *e);
/* Ways to end the operation. */
void scene_by_timeout(struct scene *s);
void scene_by_cancel(struct scene *s);
void scene_by_close(struct scene *s);
void scene_by_peers_close(struct scene *s);
/* Builds the scene, ends the operation, which must end with that status, and
 * checks that it leaves nothing behind. */
void scene_stop(void *state, const struct scene_kind *kind,
                void (*stop)(struct scene *), int status);
/* Moves the clock of all engines of scenes forward. */
void scene_later(int64_t time);

#endif
