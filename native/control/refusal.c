/* SPDX-License-Identifier: Apache-2.0
 *
 * refusal.c - see refusal.h.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "control/listening.h"
#include "control/refusal.h"

/* ---- The hosts that a request may name ----------------------------------- */

enum { LONGEST = 255 }; /* characters of a name */

struct hosts {
  X509 *certificate; /* or NULL */
  char *names, *host;
  bool loopback; /* it listens at loopback alone */
};

/* ---- Addresses ----------------------------------------------------------- */

static bool is_address(const struct hosts *hosts, const char *host) {
  struct in_addr four;
  struct in6_addr six;
  if (inet_pton(AF_INET, host, &four) == 1)
    return !hosts->loopback || address_is_loopback(four);
  if (inet_pton(AF_INET6, host, &six) == 1)
    return !hosts->loopback || address_is_loopback6(&six);
  return false;
}

/* ---- Names --------------------------------------------------------------- */

static bool is_listed(const char *names, const char *host) {
  size_t length = strlen(host);
  while (*names) {
    size_t each = strcspn(names, " ");
    if (each == length && strncasecmp(names, host, length) == 0)
      return true;
    names += each + (names[each] == ' ');
  }
  return false;
}

static bool is_certified(const struct hosts *hosts, const char *host) {
  return hosts->certificate &&
         X509_check_host(hosts->certificate, host, strlen(host), 0, NULL) == 1;
}

/* Copies the host without its port, brackets and last dot; false: it is none.
 */
static bool hosts_plain(char into[LONGEST + 1], const char *host) {
  const char *end = host + strcspn(host, ":");
  if (*host == '[') {
    end = strchr(++host, ']');
    if (!end || (end[1] != 0 && end[1] != ':'))
      return false;
  }
  size_t length = (size_t)(end - host);
  if (length > 1 && host[length - 1] == '.')
    length--;
  if (length == 0 || length > LONGEST)
    return false;
  memcpy(into, host, length);
  into[length] = 0;
  return true;
}

/* Is a HOST or HOST:PORT one of them? Ports are not looked at: they are
 * forwarded, and no page has one of its own at another's address. */
static bool hosts_have(const struct hosts *hosts, const char *host) {
  char name[LONGEST + 1];
  if (!hosts_plain(name, host))
    return false;
  return is_address(hosts, name) || strcasecmp(name, "localhost") == 0 ||
         strcasecmp(name, hosts->host) == 0 || is_listed(hosts->names, name) ||
         is_certified(hosts, name);
}

/* Is an origin, as SCHEME://HOST[:PORT], that of a request's host? */
static bool hosts_are_same(const char *origin, const char *host) {
  const char *at = strstr(origin, "://");
  return at && strcasecmp(at + 3, host) == 0;
}

/* ---- Opening ------------------------------------------------------------- */

static X509 *certificate_of(const char *text) {
  BIO *from = text ? BIO_new_mem_buf(text, -1) : NULL;
  X509 *made = from ? PEM_read_bio_X509(from, NULL, NULL, NULL) : NULL;
  BIO_free(from);
  return made;
}

struct hosts *hosts_new(const struct perigee_web_to *to, int listening) {
  struct hosts *hosts = calloc(1, sizeof *hosts);
  if (!hosts)
    return NULL;
  hosts->certificate = certificate_of(to->certificate);
  hosts->loopback = listening_is_local(listening);
  hosts->names = strdup(to->names);
  hosts->host = strdup(to->host);
  if (hosts->names && hosts->host)
    return hosts;
  hosts_free(hosts);
  return NULL;
}

void hosts_free(struct hosts *hosts) {
  if (!hosts)
    return;
  X509_free(hosts->certificate);
  free(hosts->names);
  free(hosts->host);
  free(hosts);
}

/* ---- Refusals ------------------------------------------------------------ */

enum { PROBLEM = 512 }; /* characters of a problem */

struct refusal {
  unsigned status;
  const char *title, *kind, *detail;
};

const struct refusal REFUSED_CROWD = {503, "Service Unavailable", "no_memory",
                                      "this server has as many connections as "
                                      "it takes"};
static const struct refusal
    HOST = {400, "Bad Request", "protocol", "a request has one Host"},
    FIELD = {400, "Bad Request", "protocol",
             "a header has characters that none has, or several lines"},
    FOREIGN = {403, "Forbidden", "denied",
               "this server was not told that it goes by the host that the "
               "request names (options --name of perigee ctrl, "
               "--names of perigee metrics, --http-names of perigee cache)"},
    ORIGIN = {403, "Forbidden", "denied",
              "a page of another origin may ask nothing here"},
    NO_LENGTH = {400, "Bad Request", "protocol",
                 "the body's length is no number"},
    TARGET = {400, "Bad Request", "protocol",
              "the target has characters that are to be encoded"},
    LENGTH = {400, "Bad Request", "protocol",
              "the body's length is told more than once"},
    EXCESS = {413, "Content Too Large", "too_large",
              "the body is larger than this server takes"},
    LONG = {414, "URI Too Long", "too_large",
            "the target is longer than a head that this server takes"},
    HEAD = {431, "Request Header Fields Too Large", "too_large",
            "the head is larger than this server takes"},
    EXPECT = {417, "Expectation Failed", "unsupported",
              "nothing but 100-continue can be expected here"},
    CODING = {501, "Not Implemented", "unsupported",
              "no transfer coding but chunked is known here"};

/* ---- Headers ------------------------------------------------------------- */

/* The findings of a walk over all headers. */
struct found {
  unsigned hosts, lengths, codings;
  const char *host, *origin, *length, *coding, *expected;
  bool faulty;
};

static bool is_visible(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text <= ' ' || (unsigned char)*text >= 127)
      return false;
  return true;
}

/* As names are (RFC 9110, 5.6.2). */
static bool refusal_is_token(const char *text, size_t length) {
  return length > 0 && length == strspn(text, "!#$%&'*+-.^_`|~0123456789"
                                              "abcdefghijklmnopqrstuvwxyz"
                                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

/* Has a value no characters but those that can be there? A carriage return
 * alone ends a line for others (RFC 9112, 2.2). */
static bool is_plain(const char *value, size_t length) {
  size_t i = 0;
  while (i < length && (value[i] == '\t' || (unsigned char)value[i] >= ' ') &&
         value[i] != 127)
    i++;
  return i == length;
}

/* Is there but white space between a name and its value? libmicrohttpd 0.9 adds
 * a line that continues the value (obs-fold; RFC 9112, 5.2) to the name, in a
 * copy elsewhere: a header becomes another one, and a body another request. */
static bool is_one_line(const char *name, size_t length, const char *value) {
  const char *between = name + length + 1;
  if ((uintptr_t)value < (uintptr_t)between)
    return false;
  while (between != value && (*between == ' ' || *between == '\t'))
    between++;
  return between == value;
}

static bool is(const char *name, size_t length, const char *wanted) {
  return length == strlen(wanted) && strcasecmp(name, wanted) == 0;
}

static enum MHD_Result look(void *argument, enum MHD_ValueKind kind,
                            const char *name, size_t length, const char *value,
                            size_t size) {
  struct found *found = argument;
  (void)kind;
  if (!refusal_is_token(name, length) || !value || !is_plain(value, size) ||
      !is_one_line(name, length, value))
    found->faulty = true;
  if (is(name, length, "Host"))
    found->hosts++, found->host = value;
  else if (is(name, length, "Origin"))
    found->origin = value;
  else if (is(name, length, "Content-Length"))
    found->lengths++, found->length = value;
  else if (is(name, length, "Transfer-Encoding"))
    found->codings++, found->coding = value;
  else if (is(name, length, "Expect"))
    found->expected = value;
  return MHD_YES;
}

static bool is_one_host(const struct found *found, const char *version) {
  return found->hosts == 1 ||
         (found->hosts == 0 && !strcmp(version, "HTTP/1.0"));
}

/* The host of a target that is a whole URL; NULL: it is a path. */
static const char *authority_of(const char *target, char into[PROBLEM]) {
  const char *at = *target == '/' ? NULL : strstr(target, "://");
  size_t length = at ? strcspn(at + 3, "/?") : 0;
  if (!at)
    return NULL;
  snprintf(into, PROBLEM, "%.*s", (int)length, at + 3);
  return into;
}

/* Does a head name hosts of the server's alone? One without a host, which
 * HTTP/1.0 may be, is no browser's. */
static const struct refusal *of_hosts(const struct found *found,
                                      const struct head *head) {
  char room[PROBLEM];
  const char *authority = authority_of(head->target, room);
  if (found->host && !hosts_have(head->hosts, found->host))
    return &FOREIGN;
  if (authority && !hosts_have(head->hosts, authority))
    return &FOREIGN;
  if (found->origin &&
      !hosts_are_same(found->origin, found->host ? found->host : ""))
    return &ORIGIN;
  return NULL;
}

static const struct refusal *of_fields(const struct found *found,
                                       const struct head *head) {
  if (found->faulty)
    return &FIELD;
  if (!is_one_host(found, head->version))
    return &HOST;
  if (found->lengths + found->codings > 1)
    return &LENGTH;
  if (found->codings &&
      (!found->coding || strcasecmp(found->coding, "chunked") != 0))
    return &CODING;
  if (found->length && strtoull(found->length, NULL, 10) > head->body)
    return &EXCESS;
  if (found->expected && strcasecmp(found->expected, "100-continue") != 0)
    return &EXPECT;
  return head->hosts ? of_hosts(found, head) : NULL;
}

const struct refusal *refusal_of(const struct head *head) {
  const union MHD_ConnectionInfo *size = MHD_get_connection_info(
      head->wire, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  struct found found = {0};
  if (strlen(head->target) >= head->most)
    return &LONG;
  if (size && size->header_size > head->most)
    return &HEAD;
  if (!is_visible(head->target))
    return &TARGET;
  MHD_get_connection_values_n(head->wire, MHD_HEADER_KIND, look, &found);
  return of_fields(&found, head);
}

/* ---- Problems ------------------------------------------------------------ */

/* Writes the text of a problem. Returns its length. */
static size_t tell(char text[PROBLEM], const struct refusal *refusal) {
  return (size_t)snprintf(text, PROBLEM,
                          "{\"type\":\"about:blank\",\"status\":%u,"
                          "\"title\":\"%s\",\"kind\":\"%s\",\"detail\":\"%s\"}",
                          refusal->status, refusal->title, refusal->kind,
                          refusal->detail);
}

enum MHD_Result refuse(struct MHD_Connection *wire,
                       const struct refusal *refusal) {
  char text[PROBLEM];
  size_t length = tell(text, refusal);
  struct MHD_Response *response =
      MHD_create_response_from_buffer(length, text, MHD_RESPMEM_MUST_COPY);
  if (!response)
    return MHD_NO;
  MHD_add_response_header(response, "Content-Type", "application/problem+json");
  MHD_add_response_header(response, "Connection", "close");
  if (refusal->status == 503)
    MHD_add_response_header(response, "Retry-After", "1");
  enum MHD_Result queued = MHD_queue_response(wire, refusal->status, response);
  MHD_destroy_response(response);
  return queued;
}

/* ---- By hand ------------------------------------------------------------- */

static const char *length_of(struct MHD_Connection *wire) {
  return MHD_lookup_connection_value(wire, MHD_HEADER_KIND, "Content-Length");
}

/* As libmicrohttpd reads it, which knows no more than 64 bits. */
bool is_ambiguous(struct MHD_Connection *wire) {
  const char *length = length_of(wire);
  size_t digits = length ? strspn(length, "0123456789") : 0;
  return length && (digits == 0 || length[digits] != 0 ||
                    strtoull(length, NULL, 10) == ULLONG_MAX);
}

void refuse_by_hand(struct MHD_Connection *wire, bool plain) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(wire, MHD_CONNECTION_INFO_CONNECTION_FD);
  const char *length = length_of(wire);
  bool is_number = length && strspn(length, "0123456789") == strlen(length);
  const struct refusal *refusal = is_number && *length ? &EXCESS : &NO_LENGTH;
  char text[PROBLEM], all[2 * PROBLEM];
  size_t body = tell(text, refusal);
  int whole = snprintf(all, sizeof all,
                       "HTTP/1.1 %u %s\r\nConnection: close\r\n"
                       "Content-Type: application/problem+json\r\n"
                       "Content-Length: %zu\r\n\r\n%s",
                       refusal->status, refusal->title, body, text);
  if (plain && info)
    send(info->connect_fd, all, (size_t)whole, MSG_DONTWAIT | MSG_NOSIGNAL);
}
