/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - an engine's options: perigee_options() has their defaults.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "perigee.h"

/* Returns which option has a value that it must not have, and what it may have;
 * NULL: all are right. */
const char *options_wrong(const struct perigee_options *options);

#endif
