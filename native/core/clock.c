/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include "engine.h"

bool engine_alive(const struct perigee_engine *engine) {
  return *(volatile const uint8_t *)engine->alive != 0;
}

int64_t engine_clock(struct perigee_engine *engine) {
  engine->away = false;
  engine->now = engine->options.clock(engine->options.context);
  return engine->now;
}

int64_t perigee_now(const struct perigee_engine *engine) {
  return engine->options.clock(engine->options.context);
}

uint64_t engine_random(struct perigee_engine *engine) {
  uint64_t value = 0;
  engine->options.random(engine->options.context, &value, sizeof value);
  return value;
}
