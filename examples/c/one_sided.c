/* SPDX-License-Identifier: Apache-2.0
 *
 * one_sided [NAME]: writes to the region "memory" of examples/serve.lua, and
 * reads it back. The worker's program takes no part.
 */
#include "common.h"

enum { BYTES = 1 << 20 };

static void transfer(struct perigee_engine *engine,
                     struct perigee_session *session, int operation,
                     struct perigee_region *local, uint64_t offset,
                     struct perigee_remote *remote) {
  struct perigee_transfer list;
  memset(&list, 0, sizeof list);
  list.local.region = local;
  list.local.offset = offset;
  list.remote.remote = remote;
  list.local.length = list.remote.length = BYTES;
  list.local.count = list.remote.count = 1;
  ended(engine, operation == PERIGEE_OP_READ ? "reading" : "writing",
        perigee_transfer(session, operation, &list, 1, 0, 5 * SECONDS));
}

int main(int argc, char **argv) {
  struct perigee_engine *engine = open_engine();
  struct perigee_session *session =
      session_with(engine, argc > 1 ? argv[1] : "worker:0");
  struct perigee_remote *remote = region_of(engine, session, "memory");
  struct perigee_region *mine;
  int status =
      perigee_region_alloc(engine, NULL, 2 * BYTES, PERIGEE_LOCAL, NULL, &mine);
  if (status != PERIGEE_OK)
    fail(engine, "memory", status);
  uint8_t *bytes = perigee_region_pointer(mine);
  for (int i = 0; i < BYTES; i++)
    bytes[i] = (uint8_t)(i * 7);
  transfer(engine, session, PERIGEE_OP_WRITE, mine, 0, remote);
  transfer(engine, session, PERIGEE_OP_READ, mine, BYTES, remote);
  int same = memcmp(bytes, bytes + BYTES, BYTES) == 0;
  printf("%d bytes written to \"memory\" of %llu bytes, and read: %s\n", BYTES,
         (unsigned long long)perigee_remote_length(remote),
         same ? "the same" : "OTHERS");
  perigee_engine_close(engine);
  return same ? 0 : 1;
}
