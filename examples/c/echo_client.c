/* SPDX-License-Identifier: Apache-2.0
 *
 * echo_client [NAME [SERVICE [METHOD [BYTES [CALLS]]]]]: calls a raw method
 * that gives back what it gets, by its name; checks what comes back, and tells
 * how long a call took. By default it is that of echo_server; that of
 * examples/serve.lua is "worker:0 calc echo".
 */
#include "common.h"

static struct perigee_method find(struct perigee_engine *engine,
                                  struct perigee_session *session,
                                  const char *name, const char *method) {
  struct perigee_service *service = NULL;
  struct perigee_method found;
  int status = perigee_service_open(session, name, 5 * SECONDS, &service);
  if (status != PERIGEE_OK)
    fail(engine, name, status);
  status = perigee_service_method(service, method, &found, sizeof found);
  if (status != PERIGEE_OK)
    fail(NULL, method, status);
  perigee_service_close(service); /* found.name ends with it */
  return found;
}

static void call_once(struct perigee_engine *engine,
                      struct perigee_session *session, uint16_t method,
                      const uint8_t *bytes, uint64_t length) {
  struct perigee_message request;
  struct perigee_event reply;
  memset(&request, 0, sizeof request);
  request.method = method;
  request.head = bytes;
  request.length = length;
  request.timeout = 5 * SECONDS;
  int status = perigee_call_wait(session, &request, &reply);
  if (status != PERIGEE_OK)
    fail(engine, "calling", status);
  if (reply.length != length || memcmp(reply.pointer, bytes, length) != 0) {
    fprintf(stderr, "other bytes came back\n");
    exit(1);
  }
}

int main(int argc, char **argv) {
  struct perigee_engine *engine = open_engine();
  struct perigee_session *session =
      session_with(engine, argc > 1 ? argv[1] : "echo:0");
  struct perigee_method method =
      find(engine, session, argc > 2 ? argv[2] : "echo",
           argc > 3 ? argv[3] : "back");
  uint64_t length = argc > 4 ? strtoull(argv[4], NULL, 10) : 64;
  int calls = argc > 5 ? atoi(argv[5]) : 10000;
  uint8_t *bytes = (uint8_t *)malloc(length ? length : 1);
  if (!bytes || calls < 1) {
    fprintf(stderr, "echo_client [NAME [SERVICE [METHOD [BYTES [CALLS]]]]]\n");
    return 2;
  }
  int64_t start = perigee_now(engine);
  for (int i = 0; i < calls; i++) {
    memset(bytes, i, length);
    call_once(engine, session, method.id, bytes, length);
  }
  printf("%d calls of %llu bytes: %.2f us each\n", calls,
         (unsigned long long)length,
         (double)(perigee_now(engine) - start) / 1e3 / calls);
  free(bytes);
  perigee_engine_close(engine);
  return 0;
}
