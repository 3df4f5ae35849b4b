/* SPDX-License-Identifier: Apache-2.0
 *
 * http.h - what a client of HTTP servers and its calls share.
 */
#ifndef PERIGEE_CONTROL_HTTP_H
#define PERIGEE_CONTROL_HTTP_H

#include "control/bytes.h"
#include "control/control.h"

#include <curl/curl.h>
#include <sys/queue.h>

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

/* Puts the call among those of which the program is to be told. */
void http_tell(struct perigee_http_call *call);
/* Notes how the call has ended. */
void http_ended(struct perigee_http_call *call, CURLcode code);

/* Are the method and the header's lines valid, and is there a tag? */
bool http_request_is_valid(const struct perigee_http_request *request);
/* Gives libcurl the request. The lines are added to *header, which the caller
 * frees after `easy`. Returns false if there is no memory. */
bool http_request_set(CURL *easy, struct curl_slist **header,
                      const struct perigee_http_request *request);

#endif
