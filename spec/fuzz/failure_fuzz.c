/* SPDX-License-Identifier: Apache-2.0
 *
 * failure_fuzz.c - any bytes as the data of a failed call: a text up to the
 * first zero byte, and typed values behind it, of limited number. What they
 * tell is read from an event, as a C program does.
 *
 * decoders: native/operation/outgoing.c native/agent/failure.c
 */
#include <stdlib.h>
#include <string.h>

#include "operation/operations.h"

/* Is that a text within the data, or none? */
static bool within(const uint8_t *data, size_t size, const char *text,
                   uint64_t length) {
  const uint8_t *at = (const uint8_t *)text;
  return !at || (at >= data && length <= size && at + length <= data + size);
}

static void told(const uint8_t *data, size_t size, uint64_t text, int status) {
  struct perigee_failure f;
  struct perigee_event e = {.kind = PERIGEE_EVENT_REPLY,
                            .status = status,
                            .pointer = data,
                            .length = text,
                            .slice = size - text - 1};
  if (perigee_failure_read(&e, &f, sizeof f) < 0 || f.ran < -1 || f.ran > 1 ||
      f.status >= 0 || (status != PERIGEE_REMOTE && f.status != status) ||
      !within(data, size, f.traceback, f.traceback_length))
    abort();
  if (text > 0 && ((const uint8_t *)f.text != data || f.text_length != text))
    abort();
  if (f.code.kind == PERIGEE_VALUE_STRING &&
      !within(data, size, f.code.string, f.code.length))
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint64_t text = UINT64_MAX;
  int status = failure_split(data, size, &text);
  if (status < 0)
    return 0;
  if (text >= size || data[text] != 0 || memchr(data, 0, text) ||
      size - text - 1 > FAILURE_MORE)
    abort();
  if (perigee_typed_scan(data + text + 1, size - text - 1) < 0)
    abort();
  told(data, size, text, PERIGEE_REMOTE);
  told(data, size, text, PERIGEE_CLOSED);
  return 0;
}
