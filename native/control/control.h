/* SPDX-License-Identifier: Apache-2.0
 *
 * control.h - the whole interface of perigee/control.so: other servers'
 * protocols, by their libraries. It is a second object so that the core needs
 * none of them, and the one source of its ffi.cdef.
 *
 * Nothing here blocks, and nothing calls back. A stream is stepped whenever the
 * descriptor that it names is ready; the program waits for that by the means
 * that it has (perigee_watch). Statuses are perigee_status.
 */
#ifndef PERIGEE_CONTROL_H
#define PERIGEE_CONTROL_H

#ifdef PERIGEE_CDEF
#define PERIGEE_API
#else
#include <stdint.h>
#define PERIGEE_API __attribute__((visibility("default")))
#endif

/* Raised when anything below changes shape; Lua refuses another object. */
enum { PERIGEE_CONTROL_ABI = 1 };
PERIGEE_API int perigee_control_abi(void);

/* ---- Streams ------------------------------------------------------------- */

struct perigee_stream;

/* Where to. path: of a Unix socket, or NULL: host (a name is looked up) and
 * port. tls: 1 seals, and checks the server's certificate for host against
 * authorities (a file; NULL: the system's); certificate and key: files of ours,
 * or NULL. */
struct perigee_stream_to {
  const char *path, *host;
  uint16_t port;
  uint8_t tls;
  const char *authorities, *certificate, *key;
};

/* What a stream waits for: the descriptor that it names is readable, writable,
 * or so many milliseconds have passed, whatever is first. */
struct perigee_stream_wait {
  int32_t descriptor, milliseconds; /* each -1: none */
  uint8_t readable, writable;
};

/* Begins to connect. NULL: no memory. What to says is copied. */
PERIGEE_API struct perigee_stream *
perigee_stream_open(const struct perigee_stream_to *to);
/* Goes on connecting: 1: connected; 0: it waits; else why it cannot. */
PERIGEE_API int perigee_stream_step(struct perigee_stream *stream,
                                    struct perigee_stream_wait *wait);
/* What went wrong, in words. */
PERIGEE_API const char *perigee_stream_why(const struct perigee_stream *stream);
/* The descriptor changes while it connects. Before it is closed the program
 * stops waiting for it: this tells which one there is now. */
PERIGEE_API int perigee_stream_descriptor(const struct perigee_stream *stream);
PERIGEE_API void perigee_stream_close(struct perigee_stream *stream);

/* ---- Redis --------------------------------------------------------------- */

struct perigee_redis;
struct perigee_reply;

/* Speaks to the server at the other end of a connected stream, which is its
 * own from now on. NULL: no memory. */
PERIGEE_API struct perigee_redis *
perigee_redis_open(struct perigee_stream *stream);
PERIGEE_API void perigee_redis_close(struct perigee_redis *redis);

/* Queues a command of so many words. */
PERIGEE_API int perigee_redis_put(struct perigee_redis *redis, int words,
                                  const char **word, const uint64_t *length);
/* Sends what is queued: 1: all; 0: it waits; else the stream has ended. */
PERIGEE_API int perigee_redis_flush(struct perigee_redis *redis,
                                    struct perigee_stream_wait *wait);
/* The next reply: 1, and *reply is to be freed; 0: it waits; else the stream has
 * ended, or the other side is no Redis. */
PERIGEE_API int perigee_redis_get(struct perigee_redis *redis,
                                  struct perigee_reply **reply,
                                  struct perigee_stream_wait *wait);
PERIGEE_API const char *perigee_redis_why(const struct perigee_redis *redis);

enum perigee_reply_kind {
  PERIGEE_REPLY_NIL,
  PERIGEE_REPLY_TEXT,
  PERIGEE_REPLY_INTEGER,
  PERIGEE_REPLY_LIST,
  PERIGEE_REPLY_STATUS, /* a text */
  PERIGEE_REPLY_FAILURE /* a text */
};
PERIGEE_API int perigee_reply_kind(const struct perigee_reply *reply);
PERIGEE_API int64_t perigee_reply_integer(const struct perigee_reply *reply);
PERIGEE_API const char *perigee_reply_text(const struct perigee_reply *reply,
                                           uint64_t *length);
PERIGEE_API uint64_t perigee_reply_count(const struct perigee_reply *reply);
/* Part of its list, which ends with it. */
PERIGEE_API const struct perigee_reply *
perigee_reply_at(const struct perigee_reply *reply, uint64_t index);
PERIGEE_API void perigee_reply_free(struct perigee_reply *reply);

#endif
