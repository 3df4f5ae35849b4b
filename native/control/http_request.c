/* SPDX-License-Identifier: Apache-2.0
 *
 * http_request.c - a request to an HTTP server, as libcurl's options.
 */
#include "control/http.h"

#include <string.h>
#include <sys/socket.h>

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

bool http_request_is_valid(const struct perigee_http_request *request) {
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

/* What is the same for all calls. QUICK_EXIT: the end of a call does not wait
 * for a look-up of its host's name. */
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

/* Where authorities are given, no others are trusted: libcurl would also take
 * those in its folder. OpenSSL asks the terminal for a key's password, and
 * blocks, unless it is given one. */
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

bool http_request_set(CURL *easy, struct curl_slist **header,
                      const struct perigee_http_request *request) {
  return set_header(easy, header, request) && set_manners(easy) &&
         set_place(easy, request) && set_body(easy, request);
}
