/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h - what protocols do with a connected stream.
 */
#ifndef PERIGEE_CONTROL_STREAM_H
#define PERIGEE_CONTROL_STREAM_H

#include "control/control.h"

#include <stddef.h>

/* How many bytes; 0: it waits; else it has ended (stream_why). */
int64_t stream_read(struct perigee_stream *stream, void *into, size_t capacity,
                    struct perigee_stream_wait *wait);
int64_t stream_write(struct perigee_stream *stream, const void *from,
                     size_t length, struct perigee_stream_wait *wait);

#endif
