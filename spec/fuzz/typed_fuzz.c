/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_fuzz.c - any bytes as a typed payload. Accepted bytes without their
 * last one must be refused or hold one value less (or cost too much for what is
 * left). Scanning in portions gives the same result.
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/typed.h"
#include "perigee.h"

static int scan(const uint8_t *data, size_t size) {
  int values = perigee_typed_scan(data, size);
  if (values < 0 && values != PERIGEE_PROTOCOL && values != PERIGEE_TOO_LARGE)
    abort();
  if (values > 250 || (values > 0 && (size_t)values > size))
    abort();
  return values;
}

/* Scans in portions of any size, and may give up in the middle. */
static void in_portions(const uint8_t *data, size_t size, int values) {
  struct typed_scan *scan = typed_scan_begin(data, size);
  uint64_t steps = size > 0 ? data[0] : 1, bytes = size > 1 ? data[1] : 1;
  if (!scan)
    abort();
  while (!typed_scan_over(scan) && steps-- > 0)
    typed_scan_step(scan, bytes);
  bool over = typed_scan_over(scan);
  int status = typed_scan_end(scan, NULL);
  if (over && status != values)
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int values = scan(data, size);
  in_portions(data, size, values);
  if (values > 0) {
    int fewer = scan(data, size - 1);
    if (fewer >= 0 && fewer != values - 1)
      abort();
  }
  return 0;
}
