/* SPDX-License-Identifier: Apache-2.0
 *
 * http.c - a client of HTTP servers by libcurl, whose descriptors and timer are
 * in one epoll, so that the program waits for one descriptor.
 *
 * libcurl calls watch() whenever it wants to wait for another descriptor, or
 * for another direction, and set_timer() for its next timeout. step() tells it
 * which of them are ready.
 */
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "control/bytes.h"
#include "control/control.h"
#include "perigee.h"

TAILQ_HEAD(http_calls, perigee_http_call);

struct perigee_http {
  CURLM *multi;
  int ready, timer; /* an epoll's descriptor, which has the timer's, too */
  struct http_calls all, told;
};

struct perigee_http_call {
  struct perigee_http *http;
  TAILQ_ENTRY(perigee_http_call) in_all, in_told;
  CURL *easy; /* NULL: it has ended */
  struct curl_slist *header;
  struct bytes head, body;
  uint64_t limit, tag;
  int32_t status, result;
  int socket;      /* that libcurl waits for; -1: none */
  int32_t refused; /* why this side has stopped it: a status, or 0 */
  bool streamed, paused, has_news, whole; /* whole: all of the head is there */
  char why[CURL_ERROR_SIZE];
};

/* ---- Requests ------------------------------------------------------------ */

/* ---- Checks -------------------------------------------------------------- */

static bool http_request_is_token(const char *text) {
  return *text && strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == strlen(text);
}

/* A line's name is of letters, digits and '-'; its value has no controls. */
static bool is_line(const char *text) {
  size_t name = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "abcdefghijklmnopqrstuvwxyz0123456789-");
  if (name == 0 || text[name] != ':')
    return false;
  for (const char *at = text + name; *at; at++)
    if (((unsigned char)*at < ' ' && *at != '\t') || *at == 127)
      return false;
  return true;
}

/* Are the method and the header's lines valid, and is there a tag? */
static bool http_request_is_valid(const struct perigee_http_request *request) {
  const char *const *line = request->header;
  if (!request->url || !request->method ||
      !http_request_is_token(request->method))
    return false;
  while (line && *line)
    if (!is_line(*line++))
      return false;
  return request->tag != 0 && request->length <= INT32_MAX;
}

int64_t perigee_http_date(const char *text) {
  return text ? curl_getdate(text, NULL) : -1;
}

/* ---- Options ------------------------------------------------------------- */

static bool add_line(struct curl_slist **list, const char *line) {
  struct curl_slist *longer = curl_slist_append(*list, line);
  if (longer)
    *list = longer;
  return longer;
}

/* "Expect:" has libcurl send a large body at once. */
static bool set_header(CURL *easy, struct curl_slist **list,
                       const struct perigee_http_request *request) {
  const char *const *line = request->header;
  bool fine = add_line(list, "Expect:");
  while (fine && line && *line)
    fine = add_line(list, *line++);
  return fine && curl_easy_setopt(easy, CURLOPT_HTTPHEADER, *list) == CURLE_OK;
}

static curl_socket_t open_socket(void *unused, curlsocktype type,
                                 struct curl_sockaddr *address) {
  (void)unused;
  (void)type;
  return socket(address->family, address->socktype | SOCK_CLOEXEC,
                address->protocol);
}

/* Sets what is the same for all calls. QUICK_EXIT: the end of a call does not
 * wait for a look-up of its host's name. */
static bool set_manners(CURL *easy) {
  int bad = 0;
  bad |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
  bad |= curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  bad |= curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  bad |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  bad |= curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  bad |= curl_easy_setopt(easy, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  bad |= curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  bad |= curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  bad |= curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  bad |= curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 10L);
  bad |= curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
  bad |=
      curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
  return bad == 0;
}

static int set_text(CURL *easy, CURLoption option, const char *text) {
  return text ? (int)curl_easy_setopt(easy, option, text) : 0;
}

/* No others are trusted if authorities are given: libcurl would also take those
 * in its folder. OpenSSL asks the terminal for a key's password, and blocks,
 * unless it is given one. */
static int set_tls(CURL *easy, const struct perigee_http_request *request) {
  int bad = 0;
  if (request->authorities)
    bad |= curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
  bad |= set_text(easy, CURLOPT_CAINFO, request->authorities);
  bad |= set_text(easy, CURLOPT_SSLCERT, request->certificate);
  bad |= set_text(easy, CURLOPT_SSLKEY,
                  request->key ? request->key : request->certificate);
  bad |= curl_easy_setopt(easy, CURLOPT_KEYPASSWD, "");
  return bad;
}

static bool set_place(CURL *easy, const struct perigee_http_request *request) {
  int bad = curl_easy_setopt(easy, CURLOPT_URL, request->url);
  bad |= curl_easy_setopt(easy, CURLOPT_PROXY,
                          request->proxy ? request->proxy : "");
  bad |= curl_easy_setopt(easy, CURLOPT_NOPROXY, ""); /* no environment's */
  bad |= set_text(easy, CURLOPT_UNIX_SOCKET_PATH, request->path);
  bad |= set_tls(easy, request);
  bad |= curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                          request->connecting ? (long)request->connecting
                                              : INT32_MAX);
  bad |= curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)request->total);
  return bad == 0;
}

static bool set_body(CURL *easy, const struct perigee_http_request *request) {
  int bad = 0;
  if (request->body) {
    bad |= curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                            (curl_off_t)request->length);
    bad |= curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, request->body);
  }
  bad |= curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
  if (strcmp(request->method, "HEAD") == 0)
    bad |= curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  return bad == 0;
}

/* Gives libcurl the request. The lines are added to *header, which the caller
 * frees after `easy`. Returns false if there is no memory. */
static bool http_request_set(CURL *easy, struct curl_slist **header,
                             const struct perigee_http_request *request) {
  return set_header(easy, header, request) && set_manners(easy) &&
         set_place(easy, request) && set_body(easy, request);
}

/* ---- Calls --------------------------------------------------------------- */

/* One request to an HTTP server, and its answer.
 *
 *   state     event                                     becomes
 *   running   bytes                                     running
 *   running   more bytes than a stream's program takes  paused
 *   paused    the program takes some                    running
 *   running   the answer's end, a failure, too large    ended
 *   any       perigee_http_end                          freed */

enum { HEAD = 65536 }; /* bytes of an answer's head at most */

/* Puts the call among those of which the program is to be told. */
static void http_tell(struct perigee_http_call *call) {
  if (call->has_news)
    return;
  call->has_news = true;
  TAILQ_INSERT_TAIL(&call->http->told, call, in_told);
}

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

/* Notes how the call has ended. */
static void http_ended(struct perigee_http_call *call, CURLcode code) {
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

/* ---- The client ---------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode begun;

static void http_begin(void) {
  begun = curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* ---- What libcurl waits for ---------------------------------------------- */

/* The handles of libcurl's own are no calls. */
static void note_socket(CURL *easy, curl_socket_t descriptor, bool removed) {
  struct perigee_http_call *call = NULL;
  curl_easy_getinfo(easy, CURLINFO_PRIVATE, &call);
  if (call && !removed)
    call->socket = descriptor;
  else if (call && call->socket == descriptor)
    call->socket = -1;
}

static int watch(CURL *easy, curl_socket_t descriptor, int what, void *argument,
                 void *unused) {
  const struct perigee_http *http = argument;
  struct epoll_event event = {.data.fd = descriptor};
  (void)unused;
  note_socket(easy, descriptor, what == CURL_POLL_REMOVE);
  if (what == CURL_POLL_REMOVE) {
    epoll_ctl(http->ready, EPOLL_CTL_DEL, descriptor, &event);
    return 0;
  }
  event.events = (what & CURL_POLL_IN ? EPOLLIN : 0U) |
                 (what & CURL_POLL_OUT ? EPOLLOUT : 0U);
  if (epoll_ctl(http->ready, EPOLL_CTL_MOD, descriptor, &event) == 0)
    return 0;
  return epoll_ctl(http->ready, EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0
                                                                        : -1;
}

static int set_timer(CURLM *multi, long milliseconds, void *argument) {
  const struct perigee_http *http = argument;
  struct itimerspec at = {.it_value.tv_sec = milliseconds / 1000,
                          .it_value.tv_nsec = milliseconds % 1000 * 1000000};
  (void)multi;
  if (milliseconds < 0)
    at = (struct itimerspec){0};
  else if (milliseconds == 0)
    at.it_value.tv_nsec = 1;
  return timerfd_settime(http->timer, 0, &at, NULL);
}

/* ---- Opening ------------------------------------------------------------- */

static bool prepare(struct perigee_http *http) {
  struct epoll_event event = {.events = EPOLLIN};
  http->multi = curl_multi_init();
  http->ready = epoll_create1(EPOLL_CLOEXEC);
  http->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  event.data.fd = http->timer;
  if (!http->multi || http->ready < 0 || http->timer < 0 ||
      epoll_ctl(http->ready, EPOLL_CTL_ADD, http->timer, &event) < 0)
    return false;
  int bad = 0;
  bad |= curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, watch);
  bad |= curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
  bad |= curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, set_timer);
  bad |= curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
  return bad == 0;
}

struct perigee_http *perigee_http_open(void) {
  pthread_once(&once, http_begin);
  struct perigee_http *http =
      begun == CURLE_OK ? calloc(1, sizeof *http) : NULL;
  if (!http)
    return NULL;
  http->ready = http->timer = -1;
  TAILQ_INIT(&http->all);
  TAILQ_INIT(&http->told);
  if (prepare(http))
    return http;
  perigee_http_close(http);
  return NULL;
}

void perigee_http_close(struct perigee_http *http) {
  if (!http)
    return;
  struct perigee_http_call *call, *next;
  for (call = TAILQ_FIRST(&http->all); call; call = next) {
    next = TAILQ_NEXT(call, in_all);
    perigee_http_end(call);
  }
  curl_multi_cleanup(http->multi);
  if (http->timer >= 0)
    close(http->timer);
  if (http->ready >= 0)
    close(http->ready);
  free(http);
}

int perigee_http_descriptor(const struct perigee_http *http) {
  return http->ready;
}

/* ---- Going on ------------------------------------------------------------ */

/* Has libcurl run a call, by a pause that ends at once. */
static void nudge(struct perigee_http_call *call) {
  curl_easy_pause(call->easy, CURLPAUSE_RECV);
  curl_easy_pause(call->easy, CURLPAUSE_CONT);
}

/* Has libcurl look at what is due. Where the time of an address is over it
 * closes the socket, and opens that for the name's next address when it looks
 * again, for which it sets no timer. So calls without a socket are nudged. */
static CURLMcode look_at_due(struct perigee_http *http) {
  int running;
  CURLMcode code =
      curl_multi_socket_action(http->multi, CURL_SOCKET_TIMEOUT, 0, &running);
  struct perigee_http_call *call = TAILQ_FIRST(&http->all);
  for (; call; call = TAILQ_NEXT(call, in_all))
    if (call->easy && !call->whole && call->socket < 0)
      nudge(call);
  return code != CURLM_OK ? code
                          : curl_multi_socket_action(
                                http->multi, CURL_SOCKET_TIMEOUT, 0, &running);
}

static CURLMcode act(struct perigee_http *http,
                     const struct epoll_event *event) {
  int running, what = 0;
  uint64_t times;
  if (event->data.fd != http->timer) {
    what |= event->events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0;
    what |= event->events & EPOLLOUT ? CURL_CSELECT_OUT : 0;
    what |= event->events & EPOLLERR ? CURL_CSELECT_ERR : 0;
    return curl_multi_socket_action(http->multi, event->data.fd, what,
                                    &running);
  }
  if (read(http->timer, &times, sizeof times) < 0 && errno == EAGAIN)
    return CURLM_OK;
  return look_at_due(http);
}

static void http_collect(const struct perigee_http *http) {
  CURLMsg *message;
  int left;
  while ((message = curl_multi_info_read(http->multi, &left))) {
    struct perigee_http_call *call = NULL;
    if (message->msg != CURLMSG_DONE)
      continue;
    CURLcode code = message->data.result;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
    http_ended(call, code);
  }
}

int perigee_http_step(struct perigee_http *http) {
  struct epoll_event events[64];
  int n = epoll_wait(http->ready, events, sizeof events / sizeof *events, 0);
  CURLMcode code = CURLM_OK;
  for (int i = 0; i < n && code == CURLM_OK; i++)
    code = act(http, &events[i]);
  http_collect(http);
  return code == CURLM_OK ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

uint64_t perigee_http_news(struct perigee_http *http) {
  struct perigee_http_call *call = TAILQ_FIRST(&http->told);
  if (!call)
    return 0;
  TAILQ_REMOVE(&http->told, call, in_told);
  call->has_news = false;
  return call->tag;
}
