/* SPDX-License-Identifier: Apache-2.0
 *
 * played.h - an engine that listens, and a session over sockets whose other
 * side is played by hand (hand.c): what it says of records and of payloads, by
 * stream 0 and by further streams.
 */
#ifndef PLAYED_H
#define PLAYED_H

#include "hand.h"
#include "transport/tcp/tcp.h"

enum { SIZE = 8192, BEFORE = 0x5a };

struct played {
  struct perigee_engine *engine;
  struct perigee_region *region; /* SIZE bytes that the peer may write */
  struct hand hand;
  struct perigee_event lost, done;
};

/* Setup and teardown; with: a session that has these features. */
int played_open(void **state);
int played_close(void **state);
int played_open_with(void **state, uint64_t features,
                     int64_t (*clock)(void *context));
/* Polls so often, and notes what has ended. */
void played_look(struct played *, int polls);
/* The session ends by this status, or it goes on. */
void played_lost_by(struct played *, int status);
void played_goes_on(struct played *);

/* A record of the peer with a slice that comes in pieces: a write to the region,
 * or a message. Its operation is 1, of generation 1. */
void played_tell_write(struct played *, uint64_t length);
void played_tell_message(struct played *, uint64_t length);
/* A read of count empty blocks of the region. */
void played_tell_empty_read(struct played *, uint64_t count);
/* A piece of it; tell: of zeros, by stream 0, with that word behind it. */
struct tcp_head played_piece(uint64_t at, uint32_t length);
void played_tell_piece(struct played *, uint64_t at, uint32_t length,
                       uint64_t word);
void played_tell_word(struct played *, struct tcp_head);
/* A receive into memory that no CPU can write. */
void played_post_opaque(struct played *, struct perigee_region **region);

/* Attaches a stream under that number, which has this status. Returns the peer's
 * end; silent: it has not said its first word. */
int played_stream(struct played *, uint32_t number, int status);
int played_silent_stream(struct played *, uint32_t number, int status);
void played_tell_on(int fd, const void *bytes, uint32_t length);

#endif
