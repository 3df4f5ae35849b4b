/* SPDX-License-Identifier: Apache-2.0 */
#include "control/refusal.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 512 }; /* characters of a problem */

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

/* What a walk over all headers finds. */
struct found {
  unsigned hosts, lengths, codings;
  const char *length, *coding, *expected;
  bool faulty;
};

static bool is_visible(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text <= ' ' || (unsigned char)*text >= 127)
      return false;
  return true;
}

/* As names are (RFC 9110, 5.6.2). */
static bool is_token(const char *text, size_t length) {
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
  if (!is_token(name, length) || !value || !is_plain(value, size) ||
      !is_one_line(name, length, value))
    found->faulty = true;
  if (is(name, length, "Host"))
    found->hosts++;
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
  return NULL;
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

enum MHD_Result refuse(struct MHD_Connection *wire,
                       const struct refusal *refusal) {
  char text[LONGEST];
  int length =
      snprintf(text, sizeof text,
               "{\"type\":\"about:blank\",\"status\":%u,"
               "\"title\":\"%s\",\"kind\":\"%s\",\"detail\":\"%s\"}",
               refusal->status, refusal->title, refusal->kind, refusal->detail);
  struct MHD_Response *response = MHD_create_response_from_buffer(
      (size_t)length, text, MHD_RESPMEM_MUST_COPY);
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
