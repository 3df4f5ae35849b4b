/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis, by hiredis: SET and GET over a Unix socket, for bench/cache.lua
 * (cache_kv.h).
 *
 * Version  Redis 7.0, hiredis 0.14 (Debian 12)
 * Mode     one connection, one command at a time; the reader keeps its buffer
 *          (maxbuf 0: hiredis' README, "Reader max buffer"). The server writes no
 *          file, and listens at no port (redis.io: "Diagnosing latency issues"
 *          advises Unix sockets on one host)
 * Copies   to the kernel and out of it; into the reader's buffer, and out of it
 *          into the reply
 * Sleeps   the server in epoll, the client in read(2)
 */
#include "cache_kv.h"

#include <hiredis/hiredis.h>

static redisContext *context;
static redisReply *kept;

static void fail(const char *why) {
  fprintf(stderr, "redis: %s\n", why);
  exit(1);
}

static redisReply *checked(redisReply *reply, int type) {
  if (!reply)
    fail(context->errstr);
  if (reply->type != type)
    fail(reply->str ? reply->str : "an answer of another kind");
  return reply;
}

static void open_redis(const char *socket) {
  context = redisConnectUnix(socket);
  if (!context || context->err)
    fail(context ? context->errstr : "no memory");
  context->reader->maxbuf = 0;
}

static redisReply *command(int count, const char **words,
                           const size_t *lengths) {
  return redisCommandArgv(context, count, words, lengths);
}

static void put(const char *key, const uint8_t *value, size_t length) {
  const char *words[] = {"SET", key, (const char *)value};
  const size_t lengths[] = {3, strlen(key), length};
  freeReplyObject(checked(command(3, words, lengths), REDIS_REPLY_STATUS));
}

static const uint8_t *get(const char *key, size_t *length) {
  const char *words[] = {"GET", key};
  const size_t lengths[] = {3, strlen(key)};
  if (kept)
    freeReplyObject(kept);
  kept = checked(command(2, words, lengths), REDIS_REPLY_STRING);
  *length = (size_t)kept->len;
  return (const uint8_t *)kept->str;
}

int main(int argc, char **argv) {
  return kv_main(argc, argv, open_redis, (struct kv){put, get});
}
