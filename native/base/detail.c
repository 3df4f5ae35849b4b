/* SPDX-License-Identifier: Apache-2.0 */
#include "detail.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char here[DETAIL];

char *detail_here(void) {
  return here;
}

int detail_fail(int status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(here, sizeof here, format, list);
  va_end(list);
  return status;
}
