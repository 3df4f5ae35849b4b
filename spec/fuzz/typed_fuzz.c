/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_fuzz.c - any bytes as a typed payload. What is accepted must be
 * refused as soon as its last byte is missing, or hold one value less.
 */
#include <stdint.h>
#include <stdlib.h>

#include "perigee.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int values = perigee_typed_scan(data, size);
  if (values != PERIGEE_PROTOCOL && (values < 0 || (size_t)values > size))
    abort();
  if (values > 0) {
    int fewer = perigee_typed_scan(data, size - 1);
    if (fewer != PERIGEE_PROTOCOL && fewer != values - 1)
      abort();
  }
  return 0;
}
