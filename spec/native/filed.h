/* SPDX-License-Identifier: Apache-2.0
 *
 * filed.h - files of tests: in a folder that goes with the test, with values
 * that say their key and version.
 */
#ifndef FILED_H
#define FILED_H

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cached.h"

#include "cache/file.h"

enum { FILED_SIZE = 8 << 20, FILED_REASON = 256 };
#define FILED_WALL (INT64_C(1700000000) * SECONDS)

struct filed {
  struct perigee_cache_file *file;
  struct perigee_cache_file_options options;
  int64_t now;
  char folder[64], path[80], reason[FILED_REASON];
};

/* A new folder, and options for a file in it. */
static inline void filed_begin(struct filed *k, bool by_threads) {
  const char *base = getenv("TMPDIR");
  *k = (struct filed){.now = SECONDS};
  snprintf(k->folder, sizeof k->folder, "%s/filed-XXXXXX",
           base && strlen(base) < 40 ? base : "/tmp");
  assert_non_null(mkdtemp(k->folder));
  snprintf(k->path, sizeof k->path, "%s/file", k->folder);
  k->options = (struct perigee_cache_file_options){
      .path = k->path, .size = FILED_SIZE, .by_threads = by_threads};
}

static inline void filed_end(struct filed *k) {
  unlink(k->path);
  assert_int_equal(rmdir(k->folder), 0);
}

static inline int filed_open(struct filed *k) {
  return perigee_cache_file_open(&k->options, NULL, k->now, FILED_WALL + k->now,
                                 &k->file, k->reason, sizeof k->reason);
}

static inline void filed_wait(const struct filed *k) {
  struct pollfd p = {.fd = perigee_cache_file_descriptor(k->file),
                     .events = POLLIN};
  assert_true(poll(&p, 1, 60000) >= 0);
}

static inline int64_t filed_poll(struct filed *k,
                                 struct perigee_cache_file_end *ends,
                                 uint64_t most) {
  return perigee_cache_file_poll(k->file, k->now, FILED_WALL + k->now, ends,
                                 most);
}

/* Returns the status of the next end, whose token it must be. */
static inline int64_t filed_next(struct filed *k, uint64_t token) {
  struct perigee_cache_file_end end;
  while (filed_poll(k, &end, 1) == 0)
    filed_wait(k);
  assert_int_equal(end.token, token);
  return end.status;
}

static inline void filed_ready(struct filed *k) {
  struct perigee_cache_file_state state;
  for (;;) {
    assert_int_equal(filed_poll(k, NULL, 0), 0);
    perigee_cache_file_state(k->file, &state);
    if (state.ready || state.failed)
      return;
    filed_wait(k);
  }
}

static inline void filed_open_ready(struct filed *k) {
  int status = filed_open(k);
  if (status < 0)
    print_message("%d: %s\n", status, k->reason);
  assert_int_equal(status, PERIGEE_OK);
  filed_ready(k);
}

static inline void filed_close(struct filed *k) {
  while (perigee_cache_file_close(k->file) == PERIGEE_AGAIN) {
    filed_wait(k);
    filed_poll(k, NULL, 0);
  }
  k->file = NULL;
}

static inline int filed_tear_down(void **state) {
  struct filed *k = *state;
  if (k->file)
    filed_close(k);
  filed_end(k);
  return 0;
}

/* Until all blocks are written. */
static inline void filed_settle(struct filed *k) {
  filed_poll(k, NULL, 0);
  while (k->file->queued || k->file->flushing) {
    filed_wait(k);
    filed_poll(k, NULL, 0);
  }
}

/* ---- Values ------------------------------------------------------------ */

static inline uint8_t *filed_memory(uint64_t length) {
  uint8_t *p = aligned_alloc(DISK_BLOCK,
                             (length + DISK_BLOCK) / DISK_BLOCK * DISK_BLOCK);
  assert_non_null(p);
  return p;
}

static inline void filed_value(uint8_t *to, uint64_t length, const char *key,
                               uint64_t version) {
  uint64_t dice = perigee_cache_sum(key, strlen(key), version);
  for (uint64_t i = 0; i < length; i++) {
    dice = dice * UINT64_C(6364136223846793005) + 1442695040888963407;
    to[i] = (uint8_t)(dice >> 56);
  }
}

static inline int filed_start(struct filed *k, const char *key,
                              const uint8_t *value, uint64_t length,
                              uint64_t version, int64_t ttl, uint64_t token) {
  return perigee_cache_file_write(
      k->file, key, (uint32_t)strlen(key), value, length, version,
      perigee_cache_sum(value, length, 0), ttl, token);
}

static inline int64_t filed_write_ttl(struct filed *k, const char *key,
                                      uint64_t length, uint64_t version,
                                      int64_t ttl) {
  uint8_t *value = filed_memory(length);
  filed_value(value, length, key, version);
  int64_t status = filed_start(k, key, value, length, version, ttl, version);
  if (status == 0)
    status = filed_next(k, version);
  free(value);
  return status;
}

static inline int64_t filed_write(struct filed *k, const char *key,
                                  uint64_t length, uint64_t version) {
  return filed_write_ttl(k, key, length, version, 0);
}

/* Returns the version of the key's value, whose bytes have their checksum and
 * are that key's and version's; 0: there is none, or its checksum is wrong. */
static inline uint64_t filed_read(struct filed *k, const char *key) {
  struct perigee_cache_place place;
  uint64_t length, version = 0;
  if (perigee_cache_stat(perigee_cache_file_store(k->file), key,
                         (uint32_t)strlen(key), k->now, &place) < 0)
    return 0;
  length = place.length;
  uint8_t *got = filed_memory(length), *wanted = filed_memory(length);
  memset(got, 0xa5, length + 1);
  assert_int_equal(perigee_cache_file_read(k->file, key, (uint32_t)strlen(key),
                                           got, length, 77, &place),
                   0);
  if (filed_next(k, 77) == PERIGEE_OK &&
      perigee_cache_sum(got, length, 0) == place.checksum) {
    filed_value(wanted, length, key, place.version);
    assert_memory_equal(got, wanted, length);
    assert_int_equal(got[length], 0xa5);
    version = place.version;
  }
  free(got);
  free(wanted);
  return version;
}

static inline void filed_forget(struct filed *k, const char *key) {
  int status =
      perigee_cache_file_forget(k->file, key, (uint32_t)strlen(key), 99);
  if (status == 1)
    status = (int)filed_next(k, 99);
  assert_int_equal(status, 0);
}

static inline uint64_t filed_entries(const struct filed *k) {
  struct perigee_cache_counters n;
  perigee_cache_count(perigee_cache_file_store(k->file), &n);
  return n.entries;
}

/* ---- The file as bytes ------------------------------------------------- */

static inline void filed_poke(const struct filed *k, uint64_t at,
                              const void *bytes, size_t length) {
  int file = open(k->path, O_WRONLY);
  assert_int_equal(pwrite(file, bytes, length, (off_t)at), (ssize_t)length);
  close(file);
}

static inline uint8_t *filed_bytes(const struct filed *k) {
  uint64_t size = k->options.size;
  uint8_t *bytes = malloc(size);
  int file = open(k->path, O_RDONLY);
  assert_int_equal(read(file, bytes, size), size);
  close(file);
  return bytes;
}

#endif
