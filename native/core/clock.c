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

bool engine_overdue(struct perigee_engine *engine, uint64_t bytes) {
  return budget_counts(&engine->budget, bytes) &&
         budget_is_over(&engine->budget, engine_clock(engine));
}

void engine_spend(struct perigee_engine *engine, uint64_t bytes) {
  uint64_t *left = &engine->budget.left;
  *left -= bytes < *left ? bytes : *left;
  if (engine_overdue(engine, bytes))
    *left = 0;
}

int64_t perigee_now(const struct perigee_engine *engine) {
  return engine->options.clock(engine->options.context);
}

uint64_t engine_random(struct perigee_engine *engine) {
  uint64_t value = 0;
  engine->options.random(engine->options.context, &value, sizeof value);
  return value;
}
