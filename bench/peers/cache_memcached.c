/* SPDX-License-Identifier: Apache-2.0
 *
 * memcached, by libmemcached: set and get over a Unix socket, for
 * bench/cache.lua (cache_kv.h).
 *
 * Version  memcached 1.6, libmemcached 1.1 (Debian 12)
 * Mode     one connection, one command at a time, the text protocol (memcached's
 *          documentation calls the binary one deprecated); a fetched result is
 *          used again, so that nothing is allocated for each (memcached_fetch_
 *          result(3)). The server has the default of threads
 * Copies   to the kernel and out of it; into libmemcached's buffer, and out of
 *          it into the result
 * Sleeps   the server in epoll, the client in poll(2)
 */
#include "cache_kv.h"

#include <libmemcached/memcached.h>

static memcached_st *cache;
static memcached_result_st *result;

static void checked(memcached_return_t status) {
  if (memcached_success(status))
    return;
  fprintf(stderr, "memcached: %s\n", memcached_strerror(cache, status));
  exit(1);
}

static void open_memcached(const char *socket) {
  cache = memcached_create(NULL);
  if (!cache)
    die("memcached_create");
  checked(memcached_server_add_unix_socket(cache, socket));
  result = memcached_result_create(cache, NULL);
}

static void put(const char *key, const uint8_t *value, size_t length) {
  checked(memcached_set(cache, key, strlen(key), (const char *)value, length, 0,
                        0));
}

static const uint8_t *get(const char *key, size_t *length) {
  size_t key_length = strlen(key);
  memcached_return_t status;
  checked(memcached_mget(cache, &key, &key_length, 1));
  if (!memcached_fetch_result(cache, result, &status))
    checked(status == MEMCACHED_SUCCESS ? MEMCACHED_NOTFOUND : status);
  *length = memcached_result_length(result);
  const uint8_t *value = (const uint8_t *)memcached_result_value(result);
  /* The end of the answer is read, too. */
  if (memcached_fetch_result(cache, NULL, &status))
    checked(MEMCACHED_PROTOCOL_ERROR);
  return value;
}

int main(int argc, char **argv) {
  return kv_main(argc, argv, open_memcached, (struct kv){put, get});
}
