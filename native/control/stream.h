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
/* 0: has it wait for what there may be to read already. After a read of at
 * least a TLS record's 16 KiB, so that no rest of one is kept inside. */
int stream_read_later(const struct perigee_stream *stream,
                      struct perigee_stream_wait *wait);
int64_t stream_write(struct perigee_stream *stream, const void *from,
                     size_t length, struct perigee_stream_wait *wait);

#endif
