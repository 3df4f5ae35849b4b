/* SPDX-License-Identifier: Apache-2.0
 *
 * json_fuzz.c - bytes as JSON of others, in pieces that the input chooses. The
 * tokens are the same whatever the pieces; they are those of a value: keys and
 * values in turn, tables that end, no more of them than there are bytes. What is
 * written of them anew is scanned as the same.
 *
 * Decoders: native/control/json.c
 */
#include "fuzz.h"

#include "control/control.h"

enum { MOST = 1 << 14, MEMORY = 1 << 20, DEEP = 32 };

/* The tokens of a text, as a text of their own. */
struct told {
  char bytes[8 * MOST];
  size_t length;
  uint8_t object[DEEP + 1], key[DEEP + 1];
  int depth, tokens, status;
};

static void tell(struct told *t, const void *bytes, size_t length) {
  require(t->length + length <= sizeof t->bytes);
  if (length)
    memcpy(t->bytes + t->length, bytes, length);
  t->length += length;
}

/* A value is where one may be: in a list, behind a key, or the only one. */
static void check_place(struct told *t) {
  require(t->depth > 0 || t->tokens == 0);
  require(t->depth == 0 || !t->object[t->depth] || t->key[t->depth]);
  t->key[t->depth] = 0;
}

static void check_token(struct told *t,
                        const struct perigee_json_token *token) {
  switch (token->kind) {
  case PERIGEE_JSON_KEY:
    require(t->depth > 0 && t->object[t->depth] && !t->key[t->depth]);
    t->key[t->depth] = 1;
    break;
  case PERIGEE_JSON_END:
    require(t->depth > 0 && !t->key[t->depth]);
    t->depth--;
    break;
  default:
    check_place(t);
  }
  if (token->kind == PERIGEE_JSON_LIST || token->kind == PERIGEE_JSON_OBJECT) {
    require(t->depth < DEEP);
    t->depth++;
    t->object[t->depth] = token->kind == PERIGEE_JSON_OBJECT;
    t->key[t->depth] = 0;
  }
}

static void take_token(struct told *t, const struct perigee_json_token *token) {
  bool text =
      token->kind == PERIGEE_JSON_TEXT || token->kind == PERIGEE_JSON_KEY;
  check_token(t, token);
  t->tokens++;
  tell(t, &token->kind, 1);
  if (token->kind == PERIGEE_JSON_NUMBER)
    tell(t, &token->number, sizeof token->number);
  if (text) {
    uint32_t length = (uint32_t)token->length;
    tell(t, &length, sizeof length);
    tell(t, token->text, length);
  }
}

/* A piece is a copy of just its bytes, which goes with it. */
static int scan_piece(struct perigee_json *json, const char *bytes,
                      size_t length, struct told *t) {
  struct perigee_json_token token;
  char *piece = malloc(length ? length : 1);
  int status;
  require(piece != NULL);
  memcpy(piece, bytes, length);
  perigee_json_feed(json, piece, length);
  while ((status = perigee_json_next(json, &token)) == 1)
    take_token(t, &token);
  free(piece);
  return status;
}

static void scan(const char *bytes, size_t length, struct input *sizes,
                 struct told *t) {
  struct perigee_json *json = perigee_json_open(MEMORY);
  require(json != NULL);
  t->length = 0;
  t->depth = t->tokens = t->status = 0;
  for (size_t at = 0; at < length && t->status == 0;) {
    size_t size = sizes ? 1 + take8(sizes) % 16 : length;
    size = size < length - at ? size : length - at;
    t->status = scan_piece(json, bytes + at, size, t);
    at += size;
  }
  if (t->status == 0)
    t->status = scan_piece(json, " ", 1, t);
  if (t->status == 0 && perigee_json_ended(json))
    t->status = 1;
  require(t->status != 1 || (t->depth == 0 && t->tokens > 0));
  require(t->status >= 0 || perigee_json_why(json)[0]);
  require((size_t)t->tokens <= length);
  perigee_json_close(json);
}

/* ---- Written anew -------------------------------------------------------- */

static size_t write_text(char *to, const char *text, size_t length) {
  size_t n = 0;
  to[n++] = '"';
  for (size_t i = 0; i < length; i++) {
    uint8_t byte = (uint8_t)text[i];
    if (byte < 0x20 || byte == '"' || byte == '\\')
      n += (size_t)sprintf(to + n, "\\u%04x", byte);
    else
      to[n++] = (char)byte;
  }
  to[n++] = '"';
  return n;
}

/* Writes the JSON of tokens; returns its length. */
static size_t write_again(const struct told *t, char *to) {
  static const char words[3][6] = {"null", "false", "true"};
  uint8_t object[DEEP + 1] = {0};
  size_t n = 0, depth = 0;
  for (size_t at = 0; at < t->length;) {
    int kind = (uint8_t)t->bytes[at++];
    if (kind <= PERIGEE_JSON_TRUE) {
      n += (size_t)sprintf(to + n, "%s", words[kind]);
    } else if (kind == PERIGEE_JSON_NUMBER) {
      double number;
      memcpy(&number, t->bytes + at, sizeof number);
      at += sizeof number;
      n += (size_t)(number - number == 0
                        ? sprintf(to + n, "%.17g", number)
                        : sprintf(to + n, "%s1e999", number < 0 ? "-" : ""));
    } else if (kind == PERIGEE_JSON_TEXT || kind == PERIGEE_JSON_KEY) {
      uint32_t length;
      memcpy(&length, t->bytes + at, sizeof length);
      at += sizeof length;
      n += write_text(to + n, t->bytes + at, length);
      at += length;
      if (kind == PERIGEE_JSON_KEY)
        to[n++] = ':';
    } else if (kind == PERIGEE_JSON_END) {
      n -= to[n - 1] == ',';
      to[n++] = object[depth--] ? '}' : ']';
    } else {
      object[++depth] = kind == PERIGEE_JSON_OBJECT;
      to[n++] = object[depth] ? '{' : '[';
    }
    if (depth > 0 && kind != PERIGEE_JSON_KEY && to[n - 1] != '[' &&
        to[n - 1] != '{')
      to[n++] = ',';
  }
  return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct told whole, pieces;
  static char again[64 * MOST];
  struct input sizes = {data, size};
  size = size < MOST ? size : MOST;
  scan((const char *)data, size, NULL, &whole);
  scan((const char *)data, size, &sizes, &pieces);
  require(whole.status == pieces.status && whole.length == pieces.length);
  require(memcmp(whole.bytes, pieces.bytes, whole.length) == 0);
  if (whole.status != 1)
    return 0;
  size = write_again(&whole, again);
  scan(again, size, NULL, &pieces);
  require(pieces.status == 1 && whole.length == pieces.length);
  require(memcmp(whole.bytes, pieces.bytes, whole.length) == 0);
  return 0;
}
