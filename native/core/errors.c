/* SPDX-License-Identifier: Apache-2.0 */
#include "errors.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/detail.h"
#include "engine.h"

static bool is_told(const struct perigee_engine *engine) {
  return engine && !engine->aside;
}

int fail(struct perigee_engine *engine, int status, const char *format, ...) {
  va_list list;
  bool told = is_told(engine);
  char *to = told ? engine->detail : detail_here();
  size_t room = told ? sizeof engine->detail : DETAIL;
  va_start(list, format);
  vsnprintf(to, room, format, list);
  va_end(list);
  return status;
}

int fail_missing(struct perigee_engine *engine, const char *what) {
  return fail(engine, PERIGEE_INVALID, "there is no %s: it is NULL", what);
}

const char *fail_detail(const struct perigee_engine *engine) {
  return is_told(engine) ? engine->detail : detail_here();
}

const char *perigee_detail(const struct perigee_engine *engine) {
  return engine ? engine->detail : detail_here();
}
