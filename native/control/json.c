/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - scans JSON (RFC 8259) that others have written, piece by piece; and
 * bytes as text, for protocols that are made of JSON.
 *
 * A token that lies within one piece is reported by its place there. One that
 * goes on in the next piece, or has an escape, is gathered in `aside`.
 *
 *   next      after                          becomes
 *   VALUE     [ {                            FIRST KEY_FIRST
 *   VALUE     any other value                AFTER; END if it was the outermost
 *   FIRST     ]                              as after a value; else as VALUE
 *   KEY_FIRST }                              as after a value; else as KEY
 *   KEY       a text                         COLON
 *   COLON     :                              VALUE
 *   AFTER     , in a list, in an object      VALUE, KEY
 *   AFTER     ] }                            as after a value
 *   END       blanks                         END
 */
#include <locale.h>
#include <sodium/utils.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "control/bytes.h"
#include "control/control.h"
#include "perigee.h"

/* Limits: tables in one another (bits of `lists`); values in one table, because
 * LuaJIT enlarges a table in one go; bytes of a number. */
enum { DEEPEST = 32, WITHIN = 1 << 18, DIGITS = 128 };
/* About the memory that a decoder needs in LuaJIT: for a table, a place in a
 * list, a key and its place (most keys are there many times), and a text. */
enum { TABLE = 64, PLACE = 16, PAIR = 40, STRING = 32 };

enum awaited { VALUE, FIRST, KEY_FIRST, KEY, COLON, AFTER, END };
/* The kind of the token that goes on in the next piece; ESCAPE: its last byte
 * was a backslash in a text. */
enum inside { NOTHING, WORD, TEXT, ESCAPE };

struct perigee_json {
  const char *at, *stop; /* what is left of the piece */
  struct bytes aside;
  const char *why;
  locale_t plain;
  uint64_t memory, limit;
  enum awaited next;
  enum inside inside;
  int failed;            /* the status of the failure */
  uint32_t depth, lists; /* bit i: the table i deep is a list */
  uint32_t within[DEEPEST];
  bool escaped;
};

struct perigee_json *perigee_json_open(uint64_t memory) {
  struct perigee_json *json = calloc(1, sizeof *json);
  if (!json)
    return NULL;
  json->limit = memory;
  json->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!json->plain) {
    free(json);
    return NULL;
  }
  return json;
}

void perigee_json_close(struct perigee_json *json) {
  if (!json)
    return;
  freelocale(json->plain);
  bytes_free(&json->aside);
  free(json);
}

void perigee_json_feed(struct perigee_json *json, const char *piece,
                       uint64_t length) {
  json->at = piece;
  json->stop = piece + length;
}

const char *perigee_json_why(const struct perigee_json *json) {
  return json->why ? json->why : "";
}

/* ---- Failures ------------------------------------------------------------ */

static int json_refuse(struct perigee_json *json, int status, const char *why) {
  json->why = why;
  return status;
}

static int wrong(struct perigee_json *json) {
  return json_refuse(json, PERIGEE_PROTOCOL, "it is no JSON");
}

static int charge(struct perigee_json *json, uint64_t bytes) {
  json->memory += bytes;
  if (json->memory <= json->limit)
    return PERIGEE_OK;
  return json_refuse(json, PERIGEE_TOO_LARGE, "it has too many values");
}

/* ---- Structure ----------------------------------------------------------- */

static bool in_list(const struct perigee_json *json) {
  return json->lists >> (json->depth - 1) & 1;
}

static void value_ended(struct perigee_json *json) {
  json->next = json->depth ? AFTER : END;
}

static bool takes_value(const struct perigee_json *json) {
  return json->next == VALUE || json->next == FIRST;
}

static bool takes_key(const struct perigee_json *json) {
  return json->next == KEY || json->next == KEY_FIRST;
}

/* Counts a value in the table around it, and its place there, which is a key's
 * in an object. */
static int charge_place(struct perigee_json *json) {
  if (json->depth == 0)
    return PERIGEE_OK;
  if (json->within[json->depth - 1]++ == WITHIN)
    return json_refuse(json, PERIGEE_TOO_LARGE,
                       "it has too many values in one");
  return charge(json, in_list(json) ? PLACE : 0);
}

static int enter(struct perigee_json *json, bool list) {
  if (!takes_value(json))
    return wrong(json);
  if (json->depth == DEEPEST)
    return json_refuse(json, PERIGEE_PROTOCOL, "it is nested too deep");
  int status = charge_place(json);
  if (status == PERIGEE_OK)
    status = charge(json, TABLE);
  json->within[json->depth] = 0;
  json->lists = (json->lists & ~(UINT32_C(1) << json->depth)) |
                (uint32_t)list << json->depth;
  json->depth++;
  json->next = list ? FIRST : KEY_FIRST;
  return status;
}

static int leave(struct perigee_json *json, bool list) {
  enum awaited empty = list ? FIRST : KEY_FIRST;
  if (!json->depth || in_list(json) != list ||
      (json->next != AFTER && json->next != empty))
    return wrong(json);
  json->depth--;
  value_ended(json);
  return PERIGEE_OK;
}

static int separate(struct perigee_json *json, char byte) {
  if (byte == ':' && json->next == COLON)
    json->next = VALUE;
  else if (byte == ',' && json->next == AFTER)
    json->next = in_list(json) ? VALUE : KEY;
  else
    return wrong(json);
  return PERIGEE_OK;
}

/* ---- Numbers and words --------------------------------------------------- */

static bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

static const char *digits(const char *at, const char *stop) {
  while (at < stop && is_digit(*at))
    at++;
  return at;
}

/* Returns where the number at `at` ends, or NULL if it is none. */
static const char *number_end(const char *at, const char *stop) {
  const char *from;
  at += at < stop && *at == '-';
  if (at == stop || !is_digit(*at))
    return NULL;
  at = *at == '0' ? at + 1 : digits(at, stop);
  if (at < stop && *at == '.') {
    from = ++at;
    at = digits(at, stop);
    if (at == from)
      return NULL;
  }
  if (at < stop && (*at == 'e' || *at == 'E')) {
    at++;
    at += at < stop && (*at == '+' || *at == '-');
    from = at;
    at = digits(at, stop);
    if (at == from)
      return NULL;
  }
  return at;
}

static int take_number(struct perigee_json *json, const char *from,
                       size_t length, struct perigee_json_token *token) {
  char copy[DIGITS + 1];
  if (length > DIGITS || number_end(from, from + length) != from + length)
    return wrong(json);
  memcpy(copy, from, length);
  copy[length] = 0;
  token->kind = PERIGEE_JSON_NUMBER;
  token->number = strtod_l(copy, NULL, json->plain);
  return PERIGEE_OK;
}

static int take_word(struct perigee_json *json, const char *from, size_t length,
                     struct perigee_json_token *token) {
  if (length == 4 && memcmp(from, "null", 4) == 0)
    token->kind = PERIGEE_JSON_NULL;
  else if (length == 4 && memcmp(from, "true", 4) == 0)
    token->kind = PERIGEE_JSON_TRUE;
  else if (length == 5 && memcmp(from, "false", 5) == 0)
    token->kind = PERIGEE_JSON_FALSE;
  else if (take_number(json, from, length, token) < 0)
    return PERIGEE_PROTOCOL;
  value_ended(json);
  return charge_place(json);
}

/* ---- Texts --------------------------------------------------------------- */

static int hex(char byte) {
  if (is_digit(byte))
    return byte - '0';
  byte |= 0x20;
  return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* Reads four hexadecimal digits; -1 if they are none. */
static int32_t unit(const char *at, const char *stop) {
  int32_t value = 0;
  if (stop - at < 4)
    return -1;
  for (int i = 0; i < 4; i++) {
    if (hex(at[i]) < 0)
      return -1;
    value = value * 16 + hex(at[i]);
  }
  return value;
}

/* Reads what follows \u, one unit or two; returns the code point, or -1. */
static int32_t point(const char **at, const char *stop) {
  int32_t high = unit(*at, stop), low;
  if (high < 0 || (high >= 0xdc00 && high < 0xe000))
    return -1;
  *at += 4;
  if (high < 0xd800 || high >= 0xe000)
    return high;
  if (stop - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u')
    return -1;
  low = unit(*at + 2, stop);
  if (low < 0xdc00 || low >= 0xe000)
    return -1;
  *at += 6;
  return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static char *put_point(char *to, int32_t value) {
  if (value < 0x80) {
    *to++ = (char)value;
    return to;
  }
  if (value < 0x800) {
    *to++ = (char)(0xc0 | value >> 6);
  } else {
    if (value < 0x10000) {
      *to++ = (char)(0xe0 | value >> 12);
    } else {
      *to++ = (char)(0xf0 | value >> 18);
      *to++ = (char)(0x80 | (value >> 12 & 63));
    }
    *to++ = (char)(0x80 | (value >> 6 & 63));
  }
  *to++ = (char)(0x80 | (value & 63));
  return to;
}

/* Writes what the escape at `at`, behind its backslash, stands for; NULL if it
 * is none. */
static char *put_escape(char *to, const char **at, const char *stop) {
  static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
  if (*at == stop)
    return NULL;
  char name = *(*at)++;
  if (name == 'u') {
    int32_t value = point(at, stop);
    return value < 0 ? NULL : put_point(to, value);
  }
  const char *found = memchr(names, name, sizeof names - 1);
  if (found)
    *to++ = meant[found - names];
  return found ? to : NULL;
}

/* Replaces the escapes of a text where it lies; none is shorter than what it
 * stands for. Returns the new length, or -1. */
static int64_t unescape(char *text, size_t length) {
  const char *at = text, *stop = text + length;
  char *to = text;
  while (at < stop && to) {
    char byte = *at++;
    if (byte == '\\')
      to = put_escape(to, &at, stop);
    else
      *to++ = byte;
  }
  return to ? to - text : -1;
}

static int take_text(struct perigee_json *json, const char *from, size_t length,
                     struct perigee_json_token *token) {
  bool key = takes_key(json);
  token->kind = key ? PERIGEE_JSON_KEY : PERIGEE_JSON_TEXT;
  token->text = from;
  token->length = length;
  int status = key ? PERIGEE_OK : charge_place(json);
  if (key)
    json->next = COLON;
  else
    value_ended(json);
  return status < 0 ? status : charge(json, length + (key ? PAIR : STRING));
}

/* ---- Tokens that begin and end ------------------------------------------- */

/* Puts what has come of a token aside. */
static int put_aside(struct perigee_json *json, const char *from) {
  size_t length = (size_t)(json->at - from);
  if (bytes_length(&json->aside) + length > json->limit)
    return json_refuse(json, PERIGEE_TOO_LARGE, "it has too long a text");
  if (!bytes_add(&json->aside, from, length))
    return json_refuse(json, PERIGEE_NO_MEMORY, "there is no memory");
  return PERIGEE_OK;
}

static bool is_of_word(char byte) {
  return is_digit(byte) || (byte >= 'a' && byte <= 'z') || byte == '-' ||
         byte == '+' || byte == '.' || byte == 'E';
}

/* Goes on to the end of a word, if that is in the piece. */
static bool find_word_end(struct perigee_json *json) {
  while (json->at < json->stop && is_of_word(*json->at))
    json->at++;
  return json->at < json->stop;
}

/* Goes on to the quote that ends a text: 1; 0: it is not in the piece. */
static int find_text_end(struct perigee_json *json) {
  const char *at = json->at;
  for (; at < json->stop; at++) {
    if ((uint8_t)*at < 0x20) {
      return wrong(json);
    } else if (json->inside == ESCAPE) {
      json->inside = TEXT;
    } else if (*at == '\\') {
      json->inside = ESCAPE;
      json->escaped = true;
    } else if (*at == '"') {
      break;
    }
  }
  json->at = at;
  return at < json->stop;
}

/* A text that was put aside. */
static int take_aside(struct perigee_json *json,
                      struct perigee_json_token *token) {
  int64_t n = (int64_t)bytes_length(&json->aside);
  if (json->escaped)
    n = unescape(json->aside.at + json->aside.first, (size_t)n);
  if (n < 0)
    return wrong(json);
  return take_text(json, bytes_begin(&json->aside), (size_t)n, token);
}

/* Takes the token that ends where the scan is. */
static int end_token(struct perigee_json *json, const char *from,
                     struct perigee_json_token *token) {
  bool text = json->inside != WORD, aside = bytes_length(&json->aside) > 0;
  size_t length = (size_t)(json->at - from);
  int status = PERIGEE_OK;
  if (aside || json->escaped)
    status = put_aside(json, from);
  json->inside = NOTHING;
  json->at += text; /* the quote */
  if (status < 0)
    return status;
  if (!aside && !json->escaped)
    return text ? take_text(json, from, length, token)
                : take_word(json, from, length, token);
  return text ? take_aside(json, token)
              : take_word(json, bytes_begin(&json->aside),
                          bytes_length(&json->aside), token);
}

/* Goes on with the token that the scan is inside of: 1, it is complete; 0: it
 * goes on in the next piece. */
static int go_on(struct perigee_json *json, struct perigee_json_token *token) {
  const char *from = json->at;
  int found = json->inside == WORD ? find_word_end(json) : find_text_end(json);
  if (found < 0)
    return found;
  int status = found ? end_token(json, from, token) : put_aside(json, from);
  return status < 0 ? status : found;
}

static int json_begin(struct perigee_json *json,
                      struct perigee_json_token *token) {
  bool text = *json->at == '"';
  if (!takes_value(json) && !(text && takes_key(json)))
    return wrong(json);
  if (!text && !is_of_word(*json->at))
    return wrong(json);
  bytes_drop(&json->aside, bytes_length(&json->aside));
  json->inside = text ? TEXT : WORD;
  json->escaped = false;
  json->at += text;
  return go_on(json, token);
}

/* ---- Tokens -------------------------------------------------------------- */

/* Passes over blanks and what separates tokens. */
static int skip(struct perigee_json *json) {
  for (; json->at < json->stop; json->at++) {
    char byte = *json->at;
    int status = PERIGEE_OK;
    if (byte == ',' || byte == ':')
      status = separate(json, byte);
    else if (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t')
      break;
    if (status < 0)
      return status;
  }
  return PERIGEE_OK;
}

static bool is_bracket(char byte) {
  return byte == '[' || byte == ']' || byte == '{' || byte == '}';
}

/* Takes a bracket: 1; or the status of the failure. */
static int bracket(struct perigee_json *json, char byte,
                   struct perigee_json_token *token) {
  bool list = byte == '[' || byte == ']', opens = byte == '[' || byte == '{';
  int status = opens ? enter(json, list) : leave(json, list);
  token->kind = !opens ? PERIGEE_JSON_END
                : list ? PERIGEE_JSON_LIST
                       : PERIGEE_JSON_OBJECT;
  json->at++;
  return status < 0 ? status : 1;
}

static int next(struct perigee_json *json, struct perigee_json_token *token) {
  int status = json->inside ? PERIGEE_OK : skip(json);
  if (status < 0)
    return status;
  if (json->at == json->stop)
    return 0;
  if (json->inside)
    return go_on(json, token);
  if (is_bracket(*json->at))
    return bracket(json, *json->at, token);
  return json_begin(json, token);
}

int perigee_json_next(struct perigee_json *json,
                      struct perigee_json_token *token) {
  if (json->failed == PERIGEE_OK) {
    int status = next(json, token);
    if (status >= 0)
      return status;
    json->failed = status;
  }
  return json->failed;
}

int perigee_json_ended(const struct perigee_json *json) {
  return json->failed == PERIGEE_OK && json->next == END;
}

/* ---- Bytes as text ------------------------------------------------------- */

int64_t perigee_base64(char *into, uint64_t capacity, const char *from,
                       uint64_t length) {
  const int variant = sodium_base64_VARIANT_ORIGINAL;
  /* With a NUL at its end, which is not counted. */
  if (length > INT32_MAX ||
      capacity < sodium_base64_ENCODED_LEN(length, variant))
    return -1;
  sodium_bin2base64(into, capacity, (const unsigned char *)from, length,
                    variant);
  return (int64_t)sodium_base64_ENCODED_LEN(length, variant) - 1;
}

int64_t perigee_from_base64(char *into, uint64_t capacity, const char *from,
                            uint64_t length) {
  size_t made = 0;
  int status =
      sodium_base642bin((unsigned char *)into, capacity, from, length, NULL,
                        &made, NULL, sodium_base64_VARIANT_ORIGINAL);
  return status == 0 ? (int64_t)made : -1;
}
