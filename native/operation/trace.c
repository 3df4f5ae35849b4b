/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <string.h>

#include "core/lanes.h"
#include "core/lock.h"
#include "net/features.h"

_Static_assert(sizeof(struct perigee_trace) == RECORD_TRACE_PAYLOAD,
               "it travels as it lies");

static bool is_zero(const uint8_t *bytes, size_t length) {
  uint8_t any = 0;
  for (size_t i = 0; i < length; i++)
    any |= bytes[i];
  return any == 0;
}

int trace_check(struct perigee_session *session,
                const struct perigee_message *m) {
  if (is_zero(m->trace->id, sizeof m->trace->id))
    return fail(session->engine, PERIGEE_INVALID,
                "a trace id of zeros is none");
  if (m->flags & PERIGEE_CARRIED)
    return PERIGEE_OK;
  return session_needs(session, FEATURE_TRACE);
}

/* splitmix64 from a random start: ids must be unique, not secret. */
static uint64_t next_span(struct perigee_engine *engine) {
  if (engine->spans == 0)
    engine->spans = engine_random(engine);
  uint64_t z = engine->spans += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  z ^= z >> 31;
  return z ? z : 1;
}

void trace_keep(struct operation *op) {
  bool carried = op->message.flags & PERIGEE_CARRIED;
  op->trace = *op->message.trace;
  op->message.trace = &op->trace;
  if (!(op->session->peer.features & FEATURE_TRACE))
    op->message.trace = NULL;
  if (!carried && !is_zero(op->trace.span, sizeof op->trace.span))
    return;
  uint64_t span = next_span(op->engine);
  memcpy(op->trace.span, &span, sizeof span);
}

/* As in W3C's format, an id of zeros means no trace. */
void trace_arrived(struct operation *op, const uint8_t *bytes) {
  struct perigee_trace *t = &op->came;
  memcpy(t, bytes, sizeof *t);
  if (!is_zero(t->id, sizeof t->id) && !is_zero(t->span, sizeof t->span))
    op->flags |= PERIGEE_TRACED;
}

int perigee_served_trace(const struct perigee_engine *engine, int served,
                         struct perigee_trace *trace) {
  LOOK(engine);
  const struct operation *op =
      operation_find((struct perigee_engine *)(uintptr_t)engine, served);
  if (!op || op->kind != OP_SERVED || !(op->flags & PERIGEE_TRACED))
    return 0;
  *trace = op->came;
  return 1;
}
