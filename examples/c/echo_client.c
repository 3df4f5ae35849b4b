/* SPDX-License-Identifier: Apache-2.0
 *
 * echo_client ADDRESS [BYTES [CALLS]]: calls echo_server, checks what comes
 * back, and tells how long a call took.
 */
#include "common.h"

static void call_once(struct perigee_session *session,
                      struct perigee_engine *engine, const uint8_t *bytes,
                      uint64_t length) {
  struct perigee_message request;
  memset(&request, 0, sizeof request);
  request.method = 1; /* the server looks at no number */
  request.head = bytes;
  request.length = length;
  request.timeout = 5 * SECONDS;
  struct perigee_event reply =
      await(engine, "calling", perigee_call(session, &request));
  if (reply.length != length || memcmp(reply.pointer, bytes, length) != 0) {
    fprintf(stderr, "other bytes came back\n");
    exit(1);
  }
}

int main(int argc, char **argv) {
  struct perigee_engine *engine = open_engine();
  struct perigee_session *session =
      connect_to(engine, argc > 1 ? argv[1] : "unix:/tmp/echo.sock");
  uint64_t length = argc > 2 ? strtoull(argv[2], NULL, 10) : 64;
  int calls = argc > 3 ? atoi(argv[3]) : 10000;
  uint8_t *bytes = (uint8_t *)malloc(length ? length : 1);
  if (!bytes || calls < 1) {
    fprintf(stderr, "echo_client ADDRESS [BYTES [CALLS]]\n");
    return 2;
  }
  int64_t start = perigee_now(engine);
  for (int i = 0; i < calls; i++) {
    memset(bytes, i, length);
    call_once(session, engine, bytes, length);
  }
  printf("%d calls of %llu bytes: %.2f us each\n", calls,
         (unsigned long long)length,
         (double)(perigee_now(engine) - start) / 1e3 / calls);
  free(bytes);
  perigee_engine_close(engine);
  return 0;
}
