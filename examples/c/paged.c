/* SPDX-License-Identifier: Apache-2.0
 *
 * paged [NAME]: a cache of pages, 16 layers of 64 pages of 4 KiB. It writes
 * some pages of all layers to other pages in the region "memory" of
 * examples/serve.lua, and reads them back, each by one operation: layers are
 * the slices of a list, pages its blocks, and the post names their numbers.
 */
#include "common.h"

enum { LAYERS = 16, PAGES = 64, PAGE = 4096, LAYER = PAGES * PAGE };

static const uint32_t here[] = {7, 3, 60}, there[] = {0, 1, 2};

/* The byte at which a page begins. */
static uint64_t place(int layer, uint32_t page) {
  return (uint64_t)layer * LAYER + page * PAGE;
}

/* A slice for each layer: PAGES blocks, one behind the other. */
static void fill(struct perigee_slice *list, struct perigee_region *region,
                 struct perigee_remote *remote) {
  memset(list, 0, LAYERS * sizeof *list);
  for (int i = 0; i < LAYERS; i++) {
    if (region)
      list[i].region = region;
    else
      list[i].remote = remote;
    list[i].offset = place(i, 0);
    list[i].length = list[i].stride = PAGE;
    list[i].count = PAGES;
  }
}

/* Checks the lists once; each post names pages of them. */
static struct perigee_prepared *prepare(struct perigee_engine *engine,
                                        struct perigee_session *session,
                                        int operation,
                                        struct perigee_region *region,
                                        struct perigee_remote *remote) {
  struct perigee_slice local[LAYERS], far[LAYERS];
  struct perigee_transfer all;
  struct perigee_prepared *prepared = NULL;
  fill(local, region, NULL);
  fill(far, NULL, remote);
  all.local = perigee_list(local, LAYERS);
  all.remote = perigee_list(far, LAYERS);
  int status = perigee_prepare(session, operation, &all, 1, 0, &prepared);
  if (status != PERIGEE_OK)
    fail(engine, "preparing", status);
  return prepared;
}

static void mark(uint8_t *bytes, int step) {
  for (int layer = 0; layer < LAYERS; layer++)
    for (int i = 0; i < 3; i++)
      memset(bytes + place(layer, here[i]), step ? 0 : 3 * layer + i + 1, PAGE);
}

/* Counts the pages that have what mark wrote. */
static int found(const uint8_t *bytes) {
  int good = 0;
  for (int layer = 0; layer < LAYERS; layer++)
    for (int i = 0; i < 3; i++) {
      const uint8_t *page = bytes + place(layer, here[i]);
      good += page[0] == 3 * layer + i + 1 && page[PAGE - 1] == page[0];
    }
  return good;
}

int main(int argc, char **argv) {
  struct perigee_engine *engine = open_engine();
  struct perigee_session *session =
      session_with(engine, argc > 1 ? argv[1] : "worker:0");
  struct perigee_remote *remote = region_of(engine, session, "memory");
  struct perigee_region *mine;
  int status = perigee_region_alloc(engine, NULL, LAYERS * LAYER, PERIGEE_LOCAL,
                                    NULL, &mine);
  if (status != PERIGEE_OK)
    fail(engine, "memory", status);
  uint8_t *bytes = perigee_region_pointer(mine);
  mark(bytes, 0);
  ended(engine, "writing pages",
        perigee_post_blocks(
            prepare(engine, session, PERIGEE_OP_WRITE, mine, remote), here,
            there, 3, 5 * SECONDS));
  mark(bytes, 1);
  ended(engine, "reading pages",
        perigee_post_blocks(
            prepare(engine, session, PERIGEE_OP_READ, mine, remote), here,
            there, 3, 5 * SECONDS));
  int good = found(bytes);
  printf("%d pages of %d layers written and read, %d right\n", 3 * LAYERS,
         LAYERS, good);
  perigee_engine_close(engine);
  return good == 3 * LAYERS ? 0 : 1;
}
