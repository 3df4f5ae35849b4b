/* SPDX-License-Identifier: Apache-2.0
 *
 * failure_fuzz.c - any bytes as the data of a failed call: a text up to the
 * first zero byte, and typed values behind it, of limited number.
 *
 * decoder: native/operation/outgoing.c
 */
#include <stdlib.h>
#include <string.h>

#include "operation/operations.h"

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
  return 0;
}
