/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h - reads and writes of a connected stream, for protocols.
 */
#ifndef PERIGEE_CONTROL_STREAM_H
#define PERIGEE_CONTROL_STREAM_H

#include "control/control.h"

#include <stddef.h>

/* Both return the number of bytes; 0: waiting; else the stream has ended, and
 * perigee_stream_why tells why. */
int64_t stream_read(struct perigee_stream *stream, void *into, size_t capacity,
                    struct perigee_stream_wait *wait);
/* 0: has it wait for what there may be to read already. After a read of at
 * least a TLS record's 16 KiB, so that no rest of one is kept inside. */
int stream_read_later(const struct perigee_stream *stream,
                      struct perigee_stream_wait *wait);
int64_t stream_write(struct perigee_stream *stream, const void *from,
                     size_t length, struct perigee_stream_wait *wait);

#endif
