/* SPDX-License-Identifier: Apache-2.0
 *
 * redis.c - Redis' protocol over a stream, by hiredis' formatter and reader.
 *
 * Commands are queued in one buffer. The reader gets the bytes that have
 * arrived and makes replies of them, in the order of the commands. The memory
 * that it would take for a server's answer is bounded before it does.
 */
#include "control/bytes.h"
#include "control/stream.h"
#include "perigee.h"

#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <string.h>

/* At most QUEUED bytes wait to be sent; a server that lets more pile up counts
 * as dead. */
enum { QUEUED = 64 << 20 };
/* Bytes that are read at once: others have their turn, whatever a server
 * sends. */
enum { CHUNK = 32 << 10 };
/* The limits of a reply: its bytes, those of a text and of a line in it, and
 * the replies in it. */
enum { REPLY = 64 << 20, TEXT = 2 << 20, LINE = 16 << 10, WITHIN = 1 << 16 };
/* The bytes of a text's head: "$", its length, and the end of the line. */
enum { HEAD = 32 };

#if HIREDIS_MAJOR > 0
typedef size_t count_t;
#else
typedef int count_t;
#endif

struct perigee_redis {
  struct perigee_stream *stream;
  redisReader *reader;
  redisReplyObjectFunctions made; /* what the reader calls to make replies */
  void *(*make_list)(const redisReadTask *, count_t);
  struct bytes out;
  size_t fed;    /* bytes since the last reply */
  size_t within; /* replies in the lists of the next one */
  const char *why;
};

/* A perigee_reply is hiredis' redisReply. */
static const redisReply *redis_reply_in(const struct perigee_reply *reply) {
  return (const redisReply *)reply;
}

/* A list has room for all that its head says is in it. NULL: the reader takes
 * that for no memory. */
static void *make_list(const redisReadTask *task, count_t count) {
  struct perigee_redis *redis = task->privdata;
  if (count > 0 && (size_t)count > WITHIN - redis->within) {
    redis->why = "what it answers is too large";
    return NULL;
  }
  redis->within += count > 0 ? (size_t)count : 0;
  return redis->make_list(task, count);
}

/* Has the reader count before it makes a list. */
static void count_lists(struct perigee_redis *redis) {
  redis->made = *redis->reader->fn;
  redis->make_list = redis->made.createArray;
  redis->made.createArray = make_list;
  redis->reader->fn = &redis->made;
  redis->reader->privdata = redis;
}

struct perigee_redis *perigee_redis_open(struct perigee_stream *stream) {
  struct perigee_redis *redis = calloc(1, sizeof *redis);
  if (!redis)
    return NULL;
  redis->reader = redisReaderCreate();
  if (!redis->reader) {
    free(redis);
    return NULL;
  }
  redis->stream = stream;
  count_lists(redis);
  return redis;
}

void perigee_redis_close(struct perigee_redis *redis) {
  if (!redis)
    return;
  redisReaderFree(redis->reader);
  perigee_stream_close(redis->stream);
  bytes_free(&redis->out);
  free(redis);
}

const char *perigee_redis_why(const struct perigee_redis *redis) {
  return redis->why ? redis->why : perigee_stream_why(redis->stream);
}

/* ---- Commands ------------------------------------------------------------ */

static int redis_queue(struct perigee_redis *redis, const char *text,
                       size_t length) {
  if (bytes_length(&redis->out) + length > QUEUED)
    return PERIGEE_TOO_LARGE;
  return bytes_add(&redis->out, text, length) ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

int perigee_redis_put(struct perigee_redis *redis, int words, const char **word,
                      const uint64_t *length) {
  static_assert(sizeof(size_t) == sizeof(uint64_t), "lengths");
  char *text = NULL;
  int total =
      (int)redisFormatCommandArgv(&text, words, word, (const size_t *)length);
  if (total < 0)
    return PERIGEE_NO_MEMORY;
  int status = redis_queue(redis, text, (size_t)total);
  redisFreeCommand(text);
  return status;
}

int perigee_redis_flush(struct perigee_redis *redis,
                        struct perigee_stream_wait *wait) {
  while (bytes_length(&redis->out) > 0) {
    int64_t n = stream_write(redis->stream, bytes_begin(&redis->out),
                             bytes_length(&redis->out), wait);
    if (n <= 0)
      return (int)n;
    bytes_drop(&redis->out, (size_t)n);
  }
  return 1;
}

/* ---- Replies ------------------------------------------------------------- */

static int redis_refuse(struct perigee_redis *redis) {
  if (redis->why)
    return PERIGEE_TOO_LARGE;
  redis->why = "what it answers is not Redis' protocol";
  return PERIGEE_PROTOCOL;
}

/* Is the reader at a text whose head it knows? The head's first character, a
 * dollar, is taken already then. */
static bool is_in_text(const redisReader *reader) {
#if HIREDIS_MAJOR > 0
  return reader->ridx >= 0 &&
         reader->task[reader->ridx]->type == REDIS_REPLY_STRING;
#else
  return reader->ridx >= 0 &&
         reader->rstack[reader->ridx].type == REDIS_REPLY_STRING;
#endif
}

/* May what the reader has of the next part, which is not whole, become one? It
 * looks through a line from its beginning each time, and reads a text's length
 * before the text. */
static bool may_go_on(const redisReader *reader) {
  if (reader->len - reader->pos <= LINE)
    return true;
  return is_in_text(reader) && memchr(reader->buf + reader->pos, '\n', HEAD) &&
         strtoll(reader->buf + reader->pos, NULL, 10) <= TEXT;
}

static int feed(struct perigee_redis *redis, const char *bytes, size_t length) {
  if (redisReaderFeed(redis->reader, bytes, length) != REDIS_OK)
    return redis_refuse(redis);
  redis->fed += length;
  return PERIGEE_OK;
}

/* The next reply of what was fed: 1; 0: it is not whole. */
static int next_reply(struct perigee_redis *redis,
                      struct perigee_reply **reply) {
  void *made = NULL;
  if (redisReaderGetReply(redis->reader, &made) != REDIS_OK)
    return redis_refuse(redis);
  if (made) {
    *reply = made;
    redis->fed = redis->within = 0;
    return 1;
  }
  if (redis->fed <= REPLY && may_go_on(redis->reader))
    return 0;
  redis->why = "what it answers is too large";
  return PERIGEE_TOO_LARGE;
}

int perigee_redis_get(struct perigee_redis *redis, struct perigee_reply **reply,
                      struct perigee_stream_wait *wait) {
  static _Thread_local char chunk[CHUNK];
  int status = next_reply(redis, reply);
  if (status != 0)
    return status;
  int64_t n = stream_read(redis->stream, chunk, sizeof chunk, wait);
  if (n <= 0)
    return (int)n;
  status = feed(redis, chunk, (size_t)n);
  if (status == PERIGEE_OK)
    status = next_reply(redis, reply);
  return status != 0 ? status : stream_read_later(redis->stream, wait);
}

int perigee_reply_kind(const struct perigee_reply *reply) {
  switch (redis_reply_in(reply)->type) {
  case REDIS_REPLY_STRING:
    return PERIGEE_REPLY_TEXT;
  case REDIS_REPLY_INTEGER:
    return PERIGEE_REPLY_INTEGER;
  case REDIS_REPLY_ARRAY:
    return PERIGEE_REPLY_LIST;
  case REDIS_REPLY_STATUS:
    return PERIGEE_REPLY_STATUS;
  case REDIS_REPLY_ERROR:
    return PERIGEE_REPLY_FAILURE;
  default:
    return PERIGEE_REPLY_NIL;
  }
}

int64_t perigee_reply_integer(const struct perigee_reply *reply) {
  return redis_reply_in(reply)->integer;
}

const char *perigee_reply_text(const struct perigee_reply *reply,
                               uint64_t *length) {
  *length = redis_reply_in(reply)->str ? redis_reply_in(reply)->len : 0;
  return redis_reply_in(reply)->str;
}

uint64_t perigee_reply_count(const struct perigee_reply *reply) {
  return redis_reply_in(reply)->elements;
}

const struct perigee_reply *perigee_reply_at(const struct perigee_reply *reply,
                                             uint64_t index) {
  if (index >= redis_reply_in(reply)->elements)
    return NULL;
  return (const struct perigee_reply *)redis_reply_in(reply)->element[index];
}

void perigee_reply_free(struct perigee_reply *reply) {
  freeReplyObject(reply);
}
