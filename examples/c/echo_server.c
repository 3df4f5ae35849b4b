/* SPDX-License-Identifier: Apache-2.0
 *
 * echo_server ADDRESS: answers each call with what came, until it is stopped.
 * ADDRESS: "unix:/tmp/echo.sock", or "tcp://127.0.0.1:7000".
 */
#include "common.h"

/* The reply refers to the request where it lies, so nothing is copied here. It
 * stays there until the next poll, and longer if perigee_reply returns 1: then
 * SENT tells the end. */
static void answer(struct perigee_engine *engine,
                   const struct perigee_event *request) {
  struct perigee_message reply;
  memset(&reply, 0, sizeof reply);
  reply.head = request->pointer;
  reply.length = request->length;
  int status = perigee_reply(engine, request->operation, &reply);
  if (status < 0)
    fprintf(stderr, "a reply was not sent: %s\n", perigee_detail(engine));
}

int main(int argc, char **argv) {
  struct perigee_engine *engine = open_engine();
  struct perigee_listener *listener;
  const char *address = argc > 1 ? argv[1] : "unix:/tmp/echo.sock";
  int status = perigee_listen(engine, address, &listener);
  if (status != PERIGEE_OK)
    fail(engine, "listening", status);
  printf("echoing at %s\n", perigee_listener_address(listener));
  fflush(stdout);
  for (;;) {
    struct perigee_event event = next_event(engine);
    if (event.kind == PERIGEE_EVENT_REQUEST)
      answer(engine, &event);
    else if (event.kind == PERIGEE_EVENT_LOST)
      perigee_session_free(perigee_session(engine, event.session));
  }
}
