/* SPDX-License-Identifier: Apache-2.0
 *
 * http_call.c - one request to an HTTP server, and its answer.
 *
 *   state     event                                     becomes
 *   running   bytes                                     running
 *   running   more bytes than a stream's program takes  paused
 *   paused    the program takes some                    running
 *   running   the answer's end, a failure, too large    ended
 *   any       perigee_http_end                          freed
 */
#include "control/http.h"
#include "perigee.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 65536 }; /* bytes of an answer's head at most */

/* ---- What arrives -------------------------------------------------------- */

/* Returns what has libcurl end the call. */
static size_t http_call_refuse(struct perigee_http_call *call, int status) {
  call->refused = status;
  return 0;
}

static bool is_last(const char *line, size_t length) {
  return length > 0 && (line[0] == '\r' || line[0] == '\n');
}

/* A line of a head. An interim answer (1xx) is followed by another head, and a
 * body in chunks perhaps by more lines, which are ignored. */
static size_t take_line(char *line, size_t size, size_t n, void *argument) {
  struct perigee_http_call *call = argument;
  long status = 0;
  n *= size;
  if (call->whole)
    return n;
  if (n >= 5 && memcmp(line, "HTTP/", 5) == 0)
    bytes_drop(&call->head, bytes_length(&call->head));
  if (bytes_length(&call->head) + n > HEAD)
    return http_call_refuse(call, PERIGEE_TOO_LARGE);
  if (!bytes_add(&call->head, line, n))
    return http_call_refuse(call, PERIGEE_NO_MEMORY);
  if (!is_last(line, n))
    return n;
  curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
  if (status < 200)
    return n;
  call->whole = true;
  call->status = (int32_t)status;
  http_tell(call);
  return n;
}

static size_t take_bytes(char *from, size_t size, size_t n, void *argument) {
  struct perigee_http_call *call = argument;
  size_t length = bytes_length(&call->body);
  n *= size;
  if (length + n > call->limit && !call->streamed)
    return http_call_refuse(call, PERIGEE_TOO_LARGE);
  if (length + n > call->limit && length > 0) {
    call->paused = true;
    return CURL_WRITEFUNC_PAUSE;
  }
  if (!bytes_add(&call->body, from, n))
    return http_call_refuse(call, PERIGEE_NO_MEMORY);
  if (call->streamed)
    http_tell(call);
  return n;
}

/* ---- The end ------------------------------------------------------------- */

static int http_call_status_of(const struct perigee_http_call *call,
                               CURLcode code) {
  long error = 0;
  if (call->refused)
    return call->refused;
  switch (code) {
  case CURLE_OK:
    return 1;
  case CURLE_COULDNT_CONNECT:
    curl_easy_getinfo(call->easy, CURLINFO_OS_ERRNO, &error);
    return error == ECONNREFUSED || error == ENOENT ? PERIGEE_NOT_FOUND
                                                    : PERIGEE_PEER_LOST;
  case CURLE_COULDNT_RESOLVE_HOST:
    return PERIGEE_NOT_FOUND;
  case CURLE_OPERATION_TIMEDOUT:
    return PERIGEE_TIMEOUT;
  case CURLE_OUT_OF_MEMORY:
    return PERIGEE_NO_MEMORY;
  case CURLE_PEER_FAILED_VERIFICATION:
  case CURLE_SSL_CACERT_BADFILE:
  case CURLE_SSL_CERTPROBLEM:
    return PERIGEE_DENIED;
  case CURLE_URL_MALFORMAT:
  case CURLE_UNSUPPORTED_PROTOCOL:
    return PERIGEE_INVALID;
  case CURLE_WEIRD_SERVER_REPLY:
  case CURLE_BAD_CONTENT_ENCODING:
  case CURLE_HTTP2:
    return PERIGEE_PROTOCOL;
  default:
    return PERIGEE_PEER_LOST;
  }
}

static const char *words(const struct perigee_http_call *call, CURLcode code) {
  if (call->refused == PERIGEE_TOO_LARGE)
    return "what it answers is too large";
  return call->refused ? "there is no memory" : curl_easy_strerror(code);
}

static void http_call_release(struct perigee_http_call *call) {
  if (!call->easy)
    return;
  curl_multi_remove_handle(call->http->multi, call->easy);
  curl_easy_cleanup(call->easy);
  call->easy = NULL;
}

void http_ended(struct perigee_http_call *call, CURLcode code) {
  call->result = http_call_status_of(call, code);
  if (call->result < 0 && (call->refused || !call->why[0]))
    snprintf(call->why, sizeof call->why, "%s", words(call, code));
  http_call_release(call);
  http_tell(call);
}

/* ---- Sending ------------------------------------------------------------- */

static bool listen_to(struct perigee_http_call *call) {
  CURL *easy = call->easy;
  int bad = 0;
  bad |= curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
  bad |= curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->why);
  bad |= curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_line);
  bad |= curl_easy_setopt(easy, CURLOPT_HEADERDATA, call);
  bad |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
  bad |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
  return bad == 0;
}

static bool http_call_begin(struct perigee_http_call *call,
                            const struct perigee_http_request *request) {
  int running;
  call->easy = curl_easy_init();
  if (!call->easy || !listen_to(call) ||
      !http_request_set(call->easy, &call->header, request) ||
      curl_multi_add_handle(call->http->multi, call->easy) != CURLM_OK)
    return false;
  curl_multi_socket_action(call->http->multi, CURL_SOCKET_TIMEOUT, 0, &running);
  return true;
}

int perigee_http_send(struct perigee_http *http,
                      const struct perigee_http_request *request,
                      struct perigee_http_call **made) {
  *made = NULL;
  if (!http_request_is_valid(request))
    return PERIGEE_INVALID;
  struct perigee_http_call *call = calloc(1, sizeof *call);
  if (!call)
    return PERIGEE_NO_MEMORY;
  call->http = http;
  call->limit = request->limit;
  call->tag = request->tag;
  call->socket = -1;
  call->streamed = request->streamed;
  TAILQ_INSERT_TAIL(&http->all, call, in_all);
  if (!http_call_begin(call, request)) {
    perigee_http_end(call);
    return PERIGEE_NO_MEMORY;
  }
  *made = call;
  return PERIGEE_OK;
}

/* ---- Answers ------------------------------------------------------------- */

void perigee_http_look(const struct perigee_http_call *call,
                       struct perigee_http_answer *answer) {
  *answer =
      (struct perigee_http_answer){.status = call->status,
                                   .result = call->result,
                                   .head = bytes_begin(&call->head),
                                   .head_length = bytes_length(&call->head),
                                   .body = bytes_begin(&call->body),
                                   .length = bytes_length(&call->body),
                                   .why = call->why};
}

void perigee_http_take(struct perigee_http_call *call, uint64_t length) {
  bytes_drop(&call->body, length);
  if (!call->paused || !call->easy)
    return;
  call->paused = false;
  curl_easy_pause(call->easy, CURLPAUSE_CONT);
}

void perigee_http_end(struct perigee_http_call *call) {
  if (!call)
    return;
  http_call_release(call);
  if (call->has_news)
    TAILQ_REMOVE(&call->http->told, call, in_told);
  TAILQ_REMOVE(&call->http->all, call, in_all);
  curl_slist_free_all(call->header);
  bytes_free(&call->head);
  bytes_free(&call->body);
  free(call);
}
