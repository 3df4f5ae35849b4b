/* SPDX-License-Identifier: Apache-2.0
 *
 * spans.c - the ring of spans in the stats file (stats.h, spans.h).
 *
 * Ordering. One thread at a time writes; readers are other processes. `sequence`
 * is 0 from before the first word of a new span is stored until after the last
 * one, and then a number that no row has had. Release fences keep the stores in
 * that order, at the cost of nothing on x86-64. So a reader that finds the same
 * number before and after it has copied a row has a copy of one span: if a word of
 * the copy is a later span's, `sequence` was 0 before that word was stored, and
 * the second look comes after the copy. The words that are written later, while
 * the call goes on, are stored at once each, and `end` behind `status` and the
 * bytes: so a reader that saw the end at its first look has them in its copy.
 */
#include "spans.h"

#include <stdatomic.h>
#include <string.h>

#include "core/stats_file.h"

static int64_t span_now(const struct operation *op) {
  return op->engine->options.clock(op->engine->options.context);
}

/* splitmix64 from a random start: ids must be unique, not secret. */
uint64_t span_next(struct perigee_engine *engine) {
  if (engine->spans == 0)
    engine->spans = engine_random(engine);
  uint64_t z = engine->spans += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  z ^= z >> 31;
  return z ? z : 1;
}

/* The call's row; NULL: it has none, or another one has taken it. */
static struct perigee_stats_span *span_of(const struct operation *op) {
  uint32_t n = op->kind == OP_SERVED ? op->came_span : op->span;
  struct perigee_stats_span *row =
      &op->engine->stats.at->spans[(n - 1) % PERIGEE_STATS_SPANS];
  return span_has(op) && (uint32_t)row->sequence == n ? row : NULL;
}

/* Copies the name of the session's peer, cut to what there is room for. */
static void span_put_peer(struct perigee_stats_span *row,
                          const struct perigee_session *s) {
  const char *name = *s->peer.terms.name ? s->peer.terms.name : s->peer.name;
  size_t length = strnlen(name, sizeof row->peer - 1);
  memcpy(row->peer, name, length);
  memset(row->peer + length, 0, sizeof row->peer - length);
}

static void span_put_ids(struct perigee_stats_span *row,
                         const struct operation *op, const uint8_t parent[8]) {
  bool own = op->kind == OP_CALL;
  const struct perigee_trace *t = own ? &op->trace : &op->came;
  uint64_t id = 0;
  memcpy(row->trace, t->id, sizeof row->trace);
  memcpy(row->parent, own ? parent : t->span, sizeof row->parent);
  memset(row->wire, 0, sizeof row->wire);
  if (!own || op->traced & TRACE_TRAVELS)
    memcpy(row->wire, t->span, sizeof row->wire);
  if (own && memcmp(t->span, parent, sizeof t->span) != 0)
    memcpy(&id, t->span, sizeof id);
  else
    id = span_next(op->engine);
  memcpy(row->span, &id, sizeof row->span);
}

void span_begin(struct operation *op, struct stats_row method,
                const uint8_t parent[8]) {
  struct stats *at = op->engine->stats.at;
  uint64_t n = ++at->head.spans_given;
  struct perigee_stats_span *row = &at->spans[(n - 1) % PERIGEE_STATS_SPANS];
  op->traced |= TRACE_SPAN;
  *(op->kind == OP_CALL ? &op->span : &op->came_span) = (uint32_t)n;
  op->measured = span_now(op); /* so its end is told here */
  row->sequence = 0;
  stats_fence();
  span_put_ids(row, op, parent);
  row->session = op->session->id;
  row->what = op->kind | method.what;
  row->start = (uint64_t)op->measured;
  row->sent = row->landing = row->service = row->end = 0;
  row->bytes_out = row->bytes_in = 0;
  row->status = 0;
  span_put_peer(row, op->session);
  stats_fence();
  row->sequence = n;
}

void span_sent(struct operation *op, uint64_t bytes) {
  struct perigee_stats_span *row = span_of(op);
  if (!row)
    return;
  row->bytes_out = bytes;
  row->sent = (uint64_t)span_now(op);
}

void span_landing(struct operation *op) {
  struct perigee_stats_span *row = span_of(op);
  if (row && row->landing == 0)
    row->landing = (uint64_t)span_now(op);
}

void span_service(struct operation *op, int64_t now, uint64_t bytes) {
  struct perigee_stats_span *row = span_of(op);
  if (!row)
    return;
  row->bytes_in = bytes;
  row->service = (uint64_t)now;
}

void span_end(struct operation *op, int64_t now, int status, uint64_t replied) {
  struct perigee_stats_span *row = span_of(op);
  if (!row || row->end != 0)
    return;
  if (op->kind == OP_SERVED)
    row->bytes_out = replied;
  else if (op->status == PERIGEE_OK)
    row->bytes_in = op->length + op->slice;
  row->status = op->kind == OP_SERVED ? status : op->status;
  stats_fence();
  row->end = (uint64_t)now;
}

void span_lost(struct operation *op, int status) {
  span_end(op, span_now(op), status, 0);
}
