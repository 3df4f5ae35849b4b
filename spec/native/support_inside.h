/* SPDX-License-Identifier: Apache-2.0
 *
 * support_inside.h - what tests ask of the core's inside. Apart from
 * support.h, as cmocka and the core both have a fail().
 */
#ifndef SUPPORT_INSIDE_H
#define SUPPORT_INSIDE_H

#include "perigee.h"

/* Bytes of the session's own arena that are in use: 0 when it is idle. */
uint64_t lent_bytes(const struct perigee_session *session);

#endif
