/* SPDX-License-Identifier: Apache-2.0
 *
 * http.c - a client of HTTP servers by libcurl, whose descriptors and timer are
 * in one epoll, so that the program waits for one descriptor.
 *
 * libcurl calls watch() whenever it wants to wait for another descriptor, or
 * for another direction, and set_timer() for its next timeout. step() tells it
 * which of them are ready.
 */
#include "control/http.h"
#include "perigee.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

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
  while (!TAILQ_EMPTY(&http->all))
    perigee_http_end(TAILQ_FIRST(&http->all));
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

void http_tell(struct perigee_http_call *call) {
  if (call->has_news)
    return;
  call->has_news = true;
  TAILQ_INSERT_TAIL(&call->http->told, call, in_told);
}
