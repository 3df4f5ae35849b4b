/* SPDX-License-Identifier: Apache-2.0 */
#include "failure.h"

#include <string.h>

int failure_split(const uint8_t *head, uint64_t length, uint64_t *text) {
  const uint8_t *zero = length > 0 ? memchr(head, 0, length) : NULL;
  if (!zero)
    return PERIGEE_PROTOCOL;
  *text = (uint64_t)(zero - head);
  uint64_t more = length - *text - 1;
  if (more > FAILURE_MORE)
    return PERIGEE_PROTOCOL;
  int values = perigee_typed_scan(zero + 1, more);
  return values < 0 ? values : PERIGEE_OK;
}
