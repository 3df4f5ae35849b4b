/* SPDX-License-Identifier: Apache-2.0
 *
 * kinds.h - engines with the kinds of memory that only specs have.
 */
#ifndef KINDS_H
#define KINDS_H

#include "core/engine.h"
#include "support.h"

extern const struct perigee_memory perigee_memory_twin;

static inline struct perigee_engine *engine_with_kinds(void) {
  static const struct perigee_memory *const kinds[] = {
      &perigee_memory_opaque, &perigee_memory_twin, NULL};
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options_init(&o, sizeof o);
  o.memories = kinds;
  assert_int_equal(perigee_engine_open(&o, &engine), 0);
  return engine;
}

static inline int open_engine(void **state) {
  *state = engine_with_kinds();
  return 0;
}

static inline int close_engine(void **state) {
  perigee_engine_close(*state);
  return 0;
}

#define WITH_ENGINE(test)                                                      \
  cmocka_unit_test_setup_teardown(test, open_engine, close_engine)

#endif
