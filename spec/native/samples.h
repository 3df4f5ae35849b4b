/* SPDX-License-Identifier: Apache-2.0
 *
 * samples.h - a sound frame of each type.
 */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "net/wire.h"

struct frame sample(int type);

#endif
