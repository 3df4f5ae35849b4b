/* SPDX-License-Identifier: Apache-2.0
 *
 * agents.h - what the tests of agents share.
 */
#ifndef AGENTS_H
#define AGENTS_H

#include "perigee.h"

/* An engine without a secret, whatever the environment says. */
static inline struct perigee_engine *engine_of(void) {
  struct perigee_engine *made;
  struct perigee_options options;
  perigee_options_init(&options, sizeof options);
  options.secret = "";
  assert_int_equal(perigee_engine_open(&options, &made), PERIGEE_OK);
  return made;
}

#endif
