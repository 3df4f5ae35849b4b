/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_fuzz.c - any bytes as a typed payload. What is accepted must be
 * refused as soon as its last byte is missing, or hold one value less (or cost
 * too much for what is left).
 */
#include <stdint.h>
#include <stdlib.h>

#include "perigee.h"

static int scan(const uint8_t *data, size_t size) {
  int values = perigee_typed_scan(data, size);
  if (values < 0 && values != PERIGEE_PROTOCOL && values != PERIGEE_TOO_LARGE)
    abort();
  if (values > 250 || (values > 0 && (size_t)values > size))
    abort();
  return values;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int values = scan(data, size);
  if (values > 0) {
    int fewer = scan(data, size - 1);
    if (fewer >= 0 && fewer != values - 1)
      abort();
  }
  return 0;
}
