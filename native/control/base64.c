/* SPDX-License-Identifier: Apache-2.0
 *
 * base64.c - bytes as text, for protocols that are made of JSON.
 */
#include "control/control.h"

#include <sodium/utils.h>

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
