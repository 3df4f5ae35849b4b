/* SPDX-License-Identifier: Apache-2.0
 *
 * failure.c - reads what a failed call tells, and answers calls with failures,
 * in the form that Lua agents use: a text, a zero, and typed values (traceback,
 * code, whether a handler ran, and the kind of the handler's own error;
 * operation/operations.h, lua/perigee/serving/reply.lua). Any of the values may
 * be missing, and a peer may send values of any kind in their places: those are
 * passed over.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "base/versions.h"
#include "core/lock.h"
#include "operation/operations.h"
#include "perigee.h"

/* ---- Kinds --------------------------------------------------------------- */

/* Lua knows the statuses from here on, up to -1, as kinds of errors. */
enum { FAILURE_LAST_KIND = PERIGEE_NOT_FOUND };

static bool failure_is_kind(int status) {
  return status < 0 && status >= FAILURE_LAST_KIND;
}

static int failure_of_kind(const struct perigee_value *kind, int otherwise) {
  for (int status = -1; failure_is_kind(status); status--) {
    const char *name = perigee_status_name(status);
    if (kind->kind == PERIGEE_VALUE_STRING && kind->length == strlen(name) &&
        memcmp(kind->string, name, kind->length) == 0)
      return status;
  }
  return otherwise;
}

/* ---- Reading ------------------------------------------------------------- */

/* Statuses by which a call is refused before any handler runs. */
static bool failure_is_refusal(int status) {
  switch (status) {
  case PERIGEE_NO_SERVICE:
  case PERIGEE_NO_METHOD:
  case PERIGEE_VERSION:
  case PERIGEE_DENIED:
  case PERIGEE_DRAINING:
    return true;
  default:
    return false;
  }
}

/* The text is the peer's, or the sentence of the status. */
static void failure_read_text(const struct perigee_event *e,
                              struct perigee_failure *f) {
  bool told = e->pointer && e->length > 0;
  f->text = told ? (const char *)e->pointer : perigee_status_text(f->status);
  f->text_length = told ? e->length : strlen(f->text);
}

static void failure_set_code(struct perigee_failure *f, const char *code) {
  f->code = (struct perigee_value){
      .kind = PERIGEE_VALUE_STRING, .string = code, .length = strlen(code)};
}

/* Reads the next value of those behind the text: nil if there is none. */
static struct perigee_value failure_next(struct perigee_decoder *d) {
  struct perigee_value v = {.kind = PERIGEE_VALUE_NIL};
  if (perigee_decode(d, &v) == 1 && perigee_decode_skip(d, &v) == PERIGEE_OK)
    return v;
  return (struct perigee_value){.kind = PERIGEE_VALUE_NIL};
}

static void failure_read_values(const struct perigee_event *e,
                                struct perigee_failure *f) {
  struct perigee_decoder d = {.data = e->pointer + e->length + 1,
                              .length = e->slice};
  struct perigee_value traceback = failure_next(&d);
  if (traceback.kind == PERIGEE_VALUE_STRING && traceback.length > 0) {
    f->traceback = traceback.string;
    f->traceback_length = traceback.length;
  }
  struct perigee_value code = failure_next(&d);
  if (code.kind == PERIGEE_VALUE_STRING || code.kind == PERIGEE_VALUE_NUMBER)
    f->code = code;
  struct perigee_value ran = failure_next(&d), kind = failure_next(&d);
  if (ran.kind == PERIGEE_VALUE_BOOLEAN)
    f->ran = ran.boolean;
  if (e->status == PERIGEE_REMOTE)
    f->status = failure_of_kind(&kind, PERIGEE_REMOTE);
}

static void failure_read(const struct perigee_event *e,
                         struct perigee_failure *f) {
  *f = (struct perigee_failure){.status = e->status, .ran = -1};
  if (e->kind == PERIGEE_EVENT_REPLY && e->pointer && e->slice > 0)
    failure_read_values(e, f);
  if (failure_is_refusal(e->status))
    f->ran = 0;
  if (e->status == PERIGEE_DRAINING)
    failure_set_code(f, "draining");
  failure_read_text(e, f);
}

int perigee_failure_read(const struct perigee_event *event,
                         struct perigee_failure *failure, uint64_t size) {
  struct perigee_failure known;
  if (!version_size_is_right("perigee_failure", size))
    return PERIGEE_INVALID;
  if (event->status >= 0)
    return detail_fail(PERIGEE_INVALID, "an event that tells of no failure");
  failure_read(event, &known);
  version_give(failure, size, &known, sizeof known);
  return PERIGEE_OK;
}

/* ---- Answering ----------------------------------------------------------- */

/* A failure that is short enough to travel in the ring is not referred to after
 * it was sent. CODE: the longest code. VALUES: what travels behind the text. */
enum { FAILURE_ROOM = 8 << 10, CODE = 1 << 10, VALUES = CODE + 64 };

/* Returns how many bytes a failure may have that goes into the caller's
 * ring. */
static uint64_t failure_room(struct perigee_engine *engine, int served) {
  struct operation *op = operation_find(engine, served);
  uint64_t room = FAILURE_ROOM;
  if (!op || !op->session)
    return room;
  const struct terms *peer = &op->session->peer.terms;
  if (op->session->peer.eager < room)
    room = op->session->peer.eager;
  return peer->typed < room ? peer->typed : room;
}

/* Cuts off what is beyond so many bytes, but no character in two. */
static uint64_t failure_cut(const char *text, uint64_t length, uint64_t most) {
  if (length <= most)
    return length;
  while (most > 0 && ((uint8_t)text[most] & 0xc0) == 0x80)
    most--;
  return most;
}

/* Encodes what stands behind the text, and returns its length. */
static int64_t failure_values(uint8_t values[VALUES], int status,
                              const struct perigee_value *code, bool ran) {
  struct perigee_encoder e;
  perigee_encode_begin(&e, values, VALUES);
  perigee_encode_text(&e, ""); /* no traceback */
  if (code->kind == PERIGEE_VALUE_STRING)
    perigee_encode_string(&e, code->string,
                          failure_cut(code->string, code->length, CODE));
  else
    perigee_encode_value(&e, code);
  perigee_encode_boolean(&e, ran);
  if (ran && status != PERIGEE_REMOTE && failure_is_kind(status))
    perigee_encode_text(&e, perigee_status_name(status));
  return perigee_encode_end(&e);
}

/* Puts the text, a zero and the values together. Where there is no room for
 * values and a text, it is the text alone. */
static struct perigee_message failure_head(uint8_t *head, uint64_t room,
                                           const char *text,
                                           const uint8_t *values,
                                           uint64_t length) {
  struct perigee_message m = {.head = head};
  bool typed = room > length + 1;
  uint64_t most = typed ? room - length - 1 : room;
  m.length = failure_cut(text, strlen(text), most);
  memcpy(head, text, m.length);
  if (!typed)
    return m;
  head[m.length] = 0;
  memcpy(head + m.length + 1, values, length);
  m.length += 1 + length;
  m.flags = PERIGEE_TYPED | PERIGEE_CHECKED;
  return m;
}

static bool failure_takes(const struct perigee_value *code) {
  switch (code->kind) {
  case PERIGEE_VALUE_NIL:
  case PERIGEE_VALUE_NUMBER:
    return true;
  case PERIGEE_VALUE_STRING:
    return code->string || code->length == 0;
  default:
    return false;
  }
}

int perigee_fail_call(struct perigee_engine *engine, int served, int status,
                      const char *text, const struct perigee_value *code,
                      bool ran) {
  static const struct perigee_value none = {.kind = PERIGEE_VALUE_NIL};
  uint8_t values[VALUES], head[FAILURE_ROOM];
  ENTER(engine);
  if (status >= 0 || status < PERIGEE_DRAINING)
    return fail(engine, PERIGEE_INVALID, "%d is no status of a failure",
                status);
  if (code && !failure_takes(code))
    return fail(engine, PERIGEE_INVALID, "a code is a string or a number");
  int64_t length = failure_values(values, status, code ? code : &none, ran);
  struct perigee_message m = failure_head(
      head, failure_room(engine, served),
      text ? text : perigee_status_text(status), values, (uint64_t)length);
  m.status = ran ? PERIGEE_REMOTE : status;
  return perigee_reply(engine, served, &m);
}
