/* SPDX-License-Identifier: Apache-2.0
 *
 * echo_server [NAME]: an agent with the service "echo", which C and Lua
 * programs call alike: a raw method, "back", and a typed one, "add". It serves
 * until it is stopped: perigee call NAME echo.add 1 2
 */
#include "common.h"

enum { BACK, ADD, METHODS };

/* The reply refers to the request where it lies, so nothing is copied here. It
 * stays there until the next poll, and longer if perigee_reply returns 1: then
 * SENT tells the end. */
static int answer_back(struct perigee_engine *engine,
                       const struct perigee_event *request) {
  struct perigee_message reply;
  memset(&reply, 0, sizeof reply);
  reply.head = request->pointer;
  reply.length = request->length;
  return perigee_reply(engine, request->operation, &reply);
}

/* Reads the two arguments; or returns 0. */
static int read_two(const struct perigee_event *request, double *sum) {
  struct perigee_decoder decoder;
  struct perigee_value a, b;
  if (perigee_decode_event(&decoder, request) != PERIGEE_OK ||
      perigee_decode(&decoder, &a) != 1 || a.kind != PERIGEE_VALUE_NUMBER ||
      perigee_decode(&decoder, &b) != 1 || b.kind != PERIGEE_VALUE_NUMBER)
    return 0;
  *sum = a.number + b.number;
  return 1;
}

/* The bytes have to stay until SENT if perigee_reply returns 1. So each call
 * has its own, by its number, which no other call has until then. */
static int answer_add(struct perigee_engine *engine,
                      const struct perigee_event *request) {
  static uint8_t all[65536][16];
  uint8_t *bytes = all[request->operation];
  struct perigee_encoder encoder;
  struct perigee_message reply;
  double sum;
  int fine = read_two(request, &sum);
  /* A slice that came beside the numbers is this program's now. */
  if (request->flags & PERIGEE_POOLED)
    perigee_pool_free(engine, request->landed);
  if (!fine)
    return perigee_fail_call(engine, request->operation, PERIGEE_REMOTE,
                             "add takes two numbers", NULL, true);
  perigee_encode_begin(&encoder, bytes, sizeof all[0]);
  perigee_encode_number(&encoder, sum);
  memset(&reply, 0, sizeof reply);
  reply.flags = PERIGEE_TYPED | PERIGEE_CHECKED;
  reply.head = bytes;
  reply.length = (uint64_t)perigee_encode_end(&encoder);
  return perigee_reply(engine, request->operation, &reply);
}

static void serve(struct perigee_engine *engine, struct perigee_agent *agent,
                  const struct perigee_method *methods) {
  for (;;) {
    struct perigee_event event = next_event(engine);
    if (event.kind == PERIGEE_EVENT_LOST)
      perigee_session_free(perigee_session(engine, event.session));
    if (perigee_agent_answer(agent, &event) != 0 ||
        event.kind != PERIGEE_EVENT_REQUEST)
      continue;
    int status = event.method == methods[ADD].id ? answer_add(engine, &event)
                                                 : answer_back(engine, &event);
    if (status < 0)
      fprintf(stderr, "a reply was not sent: %s\n", perigee_detail(engine));
  }
}

int main(int argc, char **argv) {
  struct perigee_engine *engine = open_engine();
  struct perigee_agent *agent = NULL;
  struct perigee_agent_options options;
  struct perigee_method methods[METHODS];
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.name = argc > 1 ? argv[1] : "echo:0";
  int status = perigee_agent_open(engine, &options, &agent);
  if (status != PERIGEE_OK)
    fail(engine, "opening an agent", status);
  memset(methods, 0, sizeof methods);
  methods[BACK].name = "back";
  methods[BACK].kind = PERIGEE_METHOD_RAW;
  methods[ADD].name = "add";
  status =
      perigee_agent_serve(agent, "echo", 1, methods, sizeof *methods, METHODS);
  if (status != PERIGEE_OK)
    fail(engine, "serving", status);
  printf("serving echo as %s\n", perigee_agent_name(agent));
  fflush(stdout);
  serve(engine, agent, methods);
}
