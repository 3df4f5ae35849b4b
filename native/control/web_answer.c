/* SPDX-License-Identifier: Apache-2.0
 *
 * web_answer.c - answers to requests, and streams of parts; the end of a request.
 *
 * The bytes that were told and not sent are bounded for each stream (`queued`),
 * and for all together (`backlog`). Beyond that the streams end that have been
 * behind for longest. A client sees that it was cut off, because the stream's
 * last chunk is missing. It has whole parts before that, comes back, and says
 * what it has.
 */
#include "control/web.h"
#include "perigee.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The bytes of an answer for which there is always room. Each connection has
 * one answer at most, so these are few bytes together. */
enum { SMALL = 1024 };

/* ---- A request's life ----------------------------------------------------- */

void web_doze(struct request *r) {
  r->suspended = true;
  MHD_suspend_connection(r->wire);
}

void web_awake(struct request *r) {
  if (!r->suspended)
    return;
  r->suspended = false;
  MHD_resume_connection(r->wire);
}

void web_destroy(struct request *r) {
  web_forget_parts(r);
  bytes_free(&r->joined);
  free(r->target);
  free(r);
}

void web_free_unowned(struct request *r) {
  if (r->live || r->held)
    return;
  LIST_REMOVE(r, in_all);
  web_destroy(r);
}

/* The program lets go of a request. */
static void web_give_up(struct request *r) {
  r->held = false;
  web_awake(r);
  web_free_unowned(r);
}

/* ---- Headers ------------------------------------------------------------- */

/* The header that a walk looks for, and its findings. */
struct values {
  const char *name, *first;
  struct bytes *joined;
  bool failed;
};

static void join(struct values *values, const char *more) {
  struct bytes *joined = values->joined;
  bool fine = bytes_length(joined) > 0 ||
              bytes_add(joined, values->first, strlen(values->first));
  fine = fine && bytes_add(joined, ", ", 2) &&
         bytes_add(joined, more, strlen(more));
  values->failed = values->failed || !fine;
}

static enum MHD_Result web_answer_collect(void *argument,
                                          enum MHD_ValueKind kind,
                                          const char *name, const char *value) {
  struct values *values = argument;
  (void)kind;
  if (strcasecmp(name, values->name) != 0 || !value)
    return MHD_YES;
  if (values->first)
    join(values, value);
  else
    values->first = value;
  return MHD_YES;
}

/* The value is "" if there is no memory to join several values, and "" fits
 * nothing that is looked for. */
const char *perigee_web_header(const struct perigee_web_request *request,
                               const char *name) {
  struct request *r = web_request(request);
  struct values values = {.name = name, .joined = &r->joined};
  bytes_free(&r->joined);
  MHD_get_connection_values(r->wire, MHD_HEADER_KIND, web_answer_collect,
                            &values);
  if (bytes_length(&r->joined) == 0 && !values.failed)
    return values.first;
  if (values.failed || !bytes_add(&r->joined, "", 1))
    return "";
  return bytes_begin(&r->joined);
}

/* ---- Answers ------------------------------------------------------------- */

/* A response that cannot be queued ends the connection: once it is resumed,
 * libmicrohttpd calls the handler again. */
static bool reply(struct request *r, uint32_t status, const char *const *header,
                  struct MHD_Response *response) {
  bool queued = response;
  for (int i = 0; queued && header[i] && header[i + 1]; i += 2)
    queued =
        MHD_add_response_header(response, header[i], header[i + 1]) == MHD_YES;
  queued = queued && MHD_queue_response(r->wire, status, response) == MHD_YES;
  if (response)
    MHD_destroy_response(response);
  r->ended = !queued;
  return queued;
}

void perigee_web_answer(struct perigee_web_request *request,
                        const struct perigee_web_reply *given) {
  struct request *r = web_request(request);
  if (reply(r, given->status, given->header,
            MHD_create_response_from_buffer(given->length, (void *)given->body,
                                            MHD_RESPMEM_MUST_COPY)) &&
      r->live) {
    r->answered = given->length;
    r->web->answering += r->answered;
    web_wait_in(r->web, r->connection, LINE_TAKING);
  }
  web_give_up(r);
}

/* A quarter of what is left, so that a client that takes large answers and
 * reads none of them leaves room for smaller ones. */
uint64_t perigee_web_room(const struct perigee_web *web) {
  uint64_t most = web->to.answers, used = web->answering;
  if (most == 0 || used < most / 8)
    return UINT64_MAX;
  return used + 4 * SMALL < most ? (most - used) / 4 : SMALL;
}

void perigee_web_count(const struct perigee_web *web, uint32_t *connections,
                       uint32_t *streams) {
  *connections = web->connections;
  *streams = web->streams;
}

/* ---- Streams ------------------------------------------------------------- */

static void leave_behind(struct request *r) {
  if (r->behind)
    TAILQ_REMOVE(&r->web->behind, r, in_behind);
  r->behind = false;
}

/* A stream whose client takes something goes to the end of those that are
 * behind. */
static void note_behind(struct request *r) {
  leave_behind(r);
  if (bytes_length(&r->text) == 0)
    return;
  web_note_progress(r);
  TAILQ_INSERT_TAIL(&r->web->behind, r, in_behind);
  r->behind = true;
}

static bool add_part(struct request *r, const char *part, size_t length) {
  if (!bytes_add(&r->text, part, length))
    return false;
  r->web->backlog += length;
  if (!r->behind)
    note_behind(r);
  return true;
}

static void drop_part(struct request *r, size_t length) {
  bytes_drop(&r->text, length);
  r->web->backlog -= length;
  note_behind(r);
}

void web_forget_parts(struct request *r) {
  if (r->behind)
    drop_part(r, bytes_length(&r->text));
  web_set_bulk(r, 0);
  bytes_free(&r->text);
}

static ssize_t write_parts(void *argument, uint64_t at, char *into,
                           size_t capacity) {
  struct request *r = argument;
  size_t length = bytes_length(&r->text);
  (void)at;
  if (length == 0 && r->seen.gone)
    return MHD_CONTENT_READER_END_WITH_ERROR;
  if (length == 0 && r->ended)
    return MHD_CONTENT_READER_END_OF_STREAM;
  if (length == 0) {
    web_doze(r);
    return 0;
  }
  if (length > capacity)
    length = capacity;
  memcpy(into, bytes_begin(&r->text), length);
  drop_part(r, length);
  return (ssize_t)length;
}

int perigee_web_may_stream(const struct perigee_web_request *request,
                           int trusted) {
  const struct request *r = web_request(request);
  return !r->live || web_has_place(r, trusted);
}

int perigee_web_stream(struct perigee_web_request *request,
                       const struct perigee_web_reply *given, int trusted) {
  struct request *r = web_request(request);
  web_forget_parts(r);
  if (!reply(r, given->status, given->header,
             MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096,
                                               write_parts, r, NULL))) {
    web_give_up(r);
    return PERIGEE_NO_MEMORY;
  }
  if (r->live)
    web_count_stream(r, trusted);
  web_awake(r);
  return PERIGEE_OK;
}

uint64_t perigee_web_behind(const struct perigee_web_request *request) {
  struct request *r = web_request(request);
  return web_is_far_behind(r->web) ? UINT64_MAX : bytes_length(&r->text);
}

/* Ends a stream at once. */
static void web_cut_off(struct request *r) {
  r->ended = true;
  r->seen.gone = 1;
  web_forget_parts(r);
  web_hang_up(r->connection);
  web_awake(r);
}

int web_pass_streams(struct perigee_web *web) {
  int64_t at = web_now(), most = (int64_t)web->to.patience * 1000;
  int64_t patience = web_is_far_behind(web) && CROWDED < most ? CROWDED : most;
  struct request *r;
  while ((r = TAILQ_FIRST(&web->behind)) && at - r->since >= patience)
    web_cut_off(r);
  return r ? (int)(patience - (at - r->since)) : -1;
}

/* One part may be of any length, such as the part that tells all that there
 * is. */
static bool is_behind(const struct request *r, uint64_t more) {
  size_t queued = bytes_length(&r->text);
  return queued > 0 && queued + more > r->web->to.queued;
}

/* Ends the streams that have been behind for longest until there is room for
 * more of one. Returns false if that one is to end. */
static bool has_room(struct request *r, uint64_t more) {
  struct perigee_web *web = r->web;
  while (web->to.backlog && web->backlog &&
         web->backlog + more > web->to.backlog) {
    struct request *oldest = TAILQ_FIRST(&web->behind);
    if (oldest == r)
      return false;
    web_cut_off(oldest);
  }
  return true;
}

void perigee_web_tell(struct perigee_web_request *request, const char *part,
                      uint64_t length) {
  struct request *r = web_request(request);
  if (r->seen.gone || r->ended)
    return;
  if (is_behind(r, length) || !has_room(r, length) ||
      !add_part(r, part, length))
    web_cut_off(r);
  web_awake(r);
}

void perigee_web_end(struct perigee_web_request *request) {
  struct request *r = web_request(request);
  r->ended = true;
  web_give_up(r);
}
