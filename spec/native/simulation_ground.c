/* SPDX-License-Identifier: Apache-2.0
 *
 * simulation_ground.c - memory of a simulated world. A ground is filled with
 * one byte value. An operation that takes a spot writes a pattern into it or
 * awaits one. When the spot is returned it is checked and wiped. A stray or
 * late write is found when the cell is taken again, or at the end.
 */
#include <stdlib.h>
#include <string.h>

#include "simulation.h"

enum { CLEAN = 0xcc, STRETCHES = 4093 };
enum { GROUND = LITTLE * CELL_LITTLE + (CELLS - LITTLE) * CELL_LARGE };

/* ---- Patterns ------------------------------------------------------------ */

/* All patterns are parts of one; the first eight bytes tell which part. */
static const uint8_t *pattern_bytes(uint64_t pattern) {
  static uint8_t bytes[GROUND + STRETCHES];
  if (!bytes[1]) {
    for (uint64_t i = 0; i < sizeof bytes; i++)
      bytes[i] = (uint8_t)(i * 167 + (i >> 8) * 13 + (i >> 16) * 7);
  }
  return bytes + pattern * 31 % STRETCHES;
}

static uint8_t byte_at(uint64_t pattern, uint64_t at) {
  return at < 8 ? (uint8_t)(pattern >> 8 * at) : pattern_bytes(pattern)[at];
}

void pattern_write(uint8_t *to, uint64_t pattern, uint64_t length) {
  memcpy(to, pattern_bytes(pattern), length);
  memcpy(to, &pattern, length < 8 ? length : 8);
}

void pattern_expect(struct side *side, const uint8_t *from, uint64_t pattern,
                    uint64_t length) {
  uint64_t word = length < 8 ? length : 8;
  if (length == 0)
    return;
  if (memcmp(from, &pattern, word) == 0 &&
      memcmp(from + word, pattern_bytes(pattern) + word, length - word) == 0)
    return;
  for (uint64_t i = 0; i < length; i++)
    if (from[i] != byte_at(pattern, i))
      wrong(side, "byte %llu of the %llu of pattern %llu is not what was sent",
            (unsigned long long)i, (unsigned long long)length,
            (unsigned long long)pattern);
}

/* A string, as string.buffer writes it; its tag is 32 and its length. */
static uint64_t tag_write(uint8_t *to, uint64_t length) {
  uint64_t tag = 32 + length;
  if (tag < 0xe0) {
    to[0] = (uint8_t)tag;
    return 1;
  }
  if (tag < 0x1fe0) {
    to[0] = (uint8_t)(0xe0 | (tag - 0xe0) >> 8);
    to[1] = (uint8_t)(tag - 0xe0);
    return 2;
  }
  uint32_t word = (uint32_t)tag;
  to[0] = 0xff;
  memcpy(to + 1, &word, 4);
  return 5;
}

uint8_t *typed_make(uint64_t pattern, uint64_t *length) {
  uint8_t tag[5], *bytes;
  uint64_t n = tag_write(tag, *length);
  bytes = malloc(n + *length);
  memcpy(bytes, tag, n);
  pattern_write(bytes + n, pattern, *length);
  *length += n;
  return bytes;
}

void typed_expect(struct side *side, const uint8_t *from, uint64_t length,
                  uint64_t pattern) {
  uint8_t tag[5];
  uint64_t n = from[0] < 0xe0 ? 1 : from[0] < 0xff ? 2 : 5;
  HOLDS(side, length >= n && tag_write(tag, length - n) == n);
  HOLDS(side, memcmp(tag, from, n) == 0);
  pattern_expect(side, from + n, pattern, length - n);
}

/* ---- Grounds ------------------------------------------------------------- */

static void cell_range(int cell, uint64_t *offset, uint64_t *length) {
  bool little = cell < LITTLE;
  *length = little ? CELL_LITTLE : CELL_LARGE;
  *offset = little ? (uint64_t)cell * CELL_LITTLE
                   : (uint64_t)LITTLE * CELL_LITTLE +
                         (uint64_t)(cell - LITTLE) * CELL_LARGE;
}

/* Peers map regions that the engine makes; others are accessed by their
 * owner. */
void ground_make(struct side *side, struct ground *ground, const char *name,
                 int access, uint64_t pattern) {
  struct world *w = side->world;
  bool host = strcmp(w->memory, "host") == 0;
  uint8_t *bytes = malloc(GROUND);
  int status;
  uint64_t life = ground->life + 1;
  *ground = (struct ground){.name = name, .life = life};
  if (host && happens(w, 0.4)) {
    ground->foreign = malloc(GROUND);
    status = perigee_region_register(side->engine, name, ground->foreign,
                                     GROUND, access, NULL, &ground->region);
  } else {
    status = perigee_region_alloc(side->engine, name, GROUND, access, w->memory,
                                  &ground->region);
  }
  HOLDS(side, status == PERIGEE_OK);
  if (pattern)
    pattern_write(bytes, pattern, GROUND);
  else
    memset(bytes, CLEAN, GROUND);
  HOLDS(side, perigee_region_write(ground->region, 0, bytes, GROUND) == 0);
  free(bytes);
}

static uint8_t *look(struct side *side, const struct ground *ground,
                     uint64_t offset, uint64_t length) {
  static uint8_t bytes[CELL_LARGE];
  HOLDS(side, length <= sizeof bytes);
  HOLDS(side, perigee_region_read(ground->region, offset, bytes, length) == 0);
  return bytes;
}

static void expect_clean(struct side *side, const struct ground *ground,
                         uint64_t offset, uint64_t length) {
  static uint8_t clean[CELL_LARGE];
  const uint8_t *bytes = look(side, ground, offset, length);
  if (!clean[0])
    memset(clean, CLEAN, sizeof clean);
  if (memcmp(bytes, clean, length) == 0)
    return;
  for (uint64_t i = 0; i < length; i++)
    if (bytes[i] != CLEAN)
      wrong(side, "byte %llu of \"%s\" was written, which was nobody's",
            (unsigned long long)(offset + i), ground->name);
}

void ground_end(struct side *side, struct ground *ground) {
  for (int i = 0; ground != &side->fixed && i < CELLS; i++) {
    uint64_t offset, length;
    cell_range(i, &offset, &length);
    HOLDS(side, ground->cells[i] != USED_CELL);
    if (ground->cells[i] == FREE_CELL)
      expect_clean(side, ground, offset, length);
  }
  HOLDS(side, perigee_region_close(ground->region, false) == PERIGEE_OK);
  free(ground->foreign);
}

/* ---- Spots --------------------------------------------------------------- */

uint64_t spot_length(const struct spot *spot) {
  return shape_length(&spot->shape);
}

struct perigee_slice spot_slice(const struct spot *spot) {
  return shape_slice(&spot->shape, spot->ground->region,
                     spot->also ? spot->also->region : NULL);
}

static const struct ground *ground_of(const struct spot *spot,
                                      const struct run *run) {
  return run->also ? spot->also : spot->ground;
}

static void expect_clean_around(struct side *side, const struct spot *spot) {
  uint64_t offset, room;
  cell_range(spot->cell, &offset, &room);
  expect_clean(side, spot->ground, offset, spot->end + 3 * EDGE);
  if (spot->also)
    expect_clean(side, spot->also, offset, spot->end + 3 * EDGE);
}

/* Finds a clean cell; returns how many bytes a spot there may take, or 0. */
static uint64_t cell_find(struct side *side, struct ground *ground,
                          uint64_t length, struct spot *spot) {
  struct world *w = side->world;
  int cell = (int)below(w, LITTLE);
  *spot = (struct spot){0};
  if (length + 8 * EDGE > CELL_LITTLE)
    cell = LITTLE + (int)below(w, CELLS - LITTLE);
  if (ground->cells[cell] != FREE_CELL || ground->closing)
    return 0;
  uint64_t offset, room;
  cell_range(cell, &offset, &room);
  *spot = (struct spot){.ground = ground, .life = ground->life, .cell = cell};
  return room - 5 * EDGE;
}

/* Only slices of a list may be in two regions. */
static bool cell_has_two(struct side *side, const struct spot *spot) {
  return spot->ground == &side->mine &&
         side->more.cells[spot->cell] == FREE_CELL && happens(side->world, 0.5);
}

static void cell_use(struct side *side, struct spot *spot) {
  uint64_t offset, room, margin = EDGE + below(side->world, EDGE);
  cell_range(spot->cell, &offset, &room);
  spot->also = shape_uses_two(&spot->shape) ? &side->more : NULL;
  spot->end = margin + shape_end(&spot->shape);
  shape_shift(&spot->shape, offset + margin);
  tell(side, "cell %d of %c is taken%s", spot->cell, *spot->ground->name,
       spot->also           ? " for a list in two regions"
       : spot->shape.listed ? " for a list"
                            : "");
  HOLDS(side, spot->end + 3 * EDGE <= room);
  expect_clean_around(side, spot);
  spot->ground->cells[spot->cell] = USED_CELL;
  if (spot->also)
    spot->also->cells[spot->cell] = USED_CELL;
}

bool spot_take(struct side *side, struct ground *ground, uint64_t length,
               struct spot *spot) {
  uint64_t room = cell_find(side, ground, length, spot);
  if (room == 0)
    return false;
  bool two = cell_has_two(side, spot);
  shape_make(side->world, &spot->shape, room, length, two);
  cell_use(side, spot);
  return true;
}

bool spot_take_comb(struct side *side, struct ground *ground,
                    const struct comb *comb, struct spot *spot) {
  uint64_t length = comb->slices * comb->most * comb->block;
  uint64_t room = cell_find(side, ground, length, spot);
  if (room == 0)
    return false;
  bool two = cell_has_two(side, spot);
  shape_comb(side->world, &spot->shape, room, comb, two);
  cell_use(side, spot);
  return true;
}

void spot_write(struct side *side, const struct spot *spot, uint64_t pattern) {
  uint64_t length = spot_length(spot);
  uint8_t *bytes = malloc(length + 1);
  struct walk walk = {.shape = &spot->shape};
  struct run run;
  if (pattern)
    pattern_write(bytes, pattern, length);
  else
    memset(bytes, CLEAN, length);
  while (walk_next(&walk, &run))
    HOLDS(side,
          perigee_region_write(ground_of(spot, &run)->region, run.offset,
                               bytes + run.begin, run.length) == PERIGEE_OK);
  free(bytes);
}

static uint8_t *gather(struct side *side, const struct spot *spot) {
  uint8_t *bytes = malloc(spot_length(spot) + 1);
  struct walk walk = {.shape = &spot->shape};
  struct run run;
  while (walk_next(&walk, &run))
    memcpy(bytes + run.begin,
           look(side, ground_of(spot, &run), run.offset, run.length),
           run.length);
  return bytes;
}

void spot_expect(struct side *side, const struct spot *spot, uint64_t pattern,
                 uint64_t length) {
  uint8_t *bytes = gather(side, spot);
  pattern_expect(side, bytes, pattern, length);
  free(bytes);
}

void spot_expect_from(struct side *side, const struct spot *spot,
                      const struct shape *from, uint64_t pattern) {
  uint8_t *bytes = gather(side, spot);
  struct walk walk = {.shape = from};
  struct run run;
  while (walk_next(&walk, &run))
    for (uint64_t i = 0; i < run.length; i++)
      if (bytes[run.begin + i] != byte_at(pattern, run.offset + i))
        wrong(side, "byte %llu of a read is not what lies there",
              (unsigned long long)(run.begin + i));
  free(bytes);
}

uint64_t spot_word(struct side *side, const struct spot *spot) {
  uint8_t *bytes = gather(side, spot);
  uint64_t word = 0;
  if (spot_length(spot) >= sizeof word)
    memcpy(&word, bytes, sizeof word);
  free(bytes);
  return word;
}

void spot_give(struct side *side, struct spot *spot) {
  struct ground *ground = spot->ground;
  if (!ground || ground->life != spot->life) {
    spot->ground = NULL; /* its region is gone */
    return;
  }
  tell(side, "cell %d of %c is given back", spot->cell, *ground->name);
  spot_write(side, spot, 0);
  expect_clean_around(side, spot);
  ground->cells[spot->cell] = FREE_CELL;
  if (spot->also)
    spot->also->cells[spot->cell] = FREE_CELL;
  spot->ground = NULL;
}

void spot_retire(struct spot *spot) {
  if (spot->ground && spot->ground->life == spot->life)
    spot->ground->cells[spot->cell] = RETIRED_CELL;
  spot->ground = NULL;
}
