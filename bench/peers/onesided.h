/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the adapters of one-sided transfers in C (in Python: onesided.py).
 * The server gives its memory away and does nothing more. The client puts from
 * `from` and gets into `into`. What was put is looked at in the server's memory
 * by /proc, and what is to be got is written there in the same way, both
 * outside of the timed part and without the system that is measured. So a put
 * that is told too early is found.
 */
#ifndef BENCH_PEER_ONESIDED_H
#define BENCH_PEER_ONESIDED_H

#include <fcntl.h>
#include <inttypes.h>

#include "peer.h"

struct onesided {
  struct peer_client client; /* an echo puts, then gets */
  const struct peer *peer;
  void *context;
  /* Starts to move bytes that are as far from the beginning of both memories.
   * end() returns when all that was started is where it belongs. */
  void (*begin)(void *context, bool put, size_t at, size_t length);
  void (*end)(void *context);
  uint8_t *from, *into;
  size_t length; /* of each */
  size_t echoed; /* bytes of the last one */
  int file;      /* the server's memory */
  off_t far;     /* where in it */
};

/* ---- The server --------------------------------------------------------- */

static inline void onesided_ready(const void *memory) {
  char text[64];
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  snprintf(text, sizeof text, "%d %" PRIuPTR, getpid(), (uintptr_t)memory);
  peer_ready(text);
}

/* ---- The far memory ----------------------------------------------------- */

static inline uint64_t onesided_address(const struct peer *peer, int *pid) {
  uint64_t address;
  if (sscanf(peer->address, "%d %" SCNu64, pid, &address) != 2)
    peer_fails("failed", "the server's address is %s", peer->address);
  return address;
}

static inline void onesided_open(struct onesided *self,
                                 const struct peer *peer) {
  char path[64];
  int pid;
  self->peer = peer;
  self->far = (off_t)onesided_address(peer, &pid);
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  self->file = open(path, O_RDWR | O_CLOEXEC);
  if (self->file < 0)
    die(path);
  self->length = peer->size * (size_t)peer->under;
  self->from = memory(self->length, MAP_PRIVATE);
  self->into = memory(self->length, MAP_PRIVATE);
}

/* Reads `into` out of the server's memory, or writes `from` there. */
static inline void onesided_far(struct onesided *self, bool reads,
                                size_t length) {
  for (size_t at = 0; at < length;) {
    off_t there = self->far + (off_t)at;
    size_t rest = length - at;
    ssize_t n = reads ? pread(self->file, self->into + at, rest, there)
                      : pwrite(self->file, self->from + at, rest, there);
    if (n <= 0)
      die("the server's memory");
    at += (size_t)n;
  }
}

/* ---- Bursts ------------------------------------------------------------- */

/* So many transfers are timed together, and so hide the clock's own time; each
 * has ended before the next one begins. */
static inline uint32_t onesided_repeats(size_t length) {
  return length <= 4096 ? 64 : length <= 65536 ? 8 : 1;
}

static inline double onesided_time(struct onesided *self, bool put,
                                   size_t length, uint32_t repeats) {
  int64_t begin = now();
  for (uint32_t i = 0; i < repeats; i++) {
    self->begin(self->context, put, 0, length);
    self->end(self->context);
  }
  return (double)(now() - begin) / repeats;
}

static inline double onesided_move(struct onesided *self, bool put,
                                   size_t length, int64_t span) {
  struct peer_client *client = &self->client;
  uint32_t repeats = onesided_repeats(length);
  int64_t until = now() + span;
  do {
    peer_stamp(client, 0, length);
    if (!put)
      onesided_far(self, false, length);
    double ns = onesided_time(self, put, length, repeats);
    spread_count(&client->times, ns, repeats);
    client->calls += repeats;
    if (put)
      onesided_far(self, true, length);
    peer_glance(client, 0, self->into, length);
  } while (now() < until || client->calls < 3);
  peer_look(client, 0, self->into, length);
  return client->times.sum;
}

/* ---- Pieces ------------------------------------------------------------- */

struct onesided_piece {
  size_t at, length, count, stride;
};

/* Takes the pieces of one call from the pair's folder; returns their number. */
static inline size_t onesided_pieces(const struct onesided *self,
                                     struct onesided_piece **pieces) {
  char path[PATH_MAX];
  size_t n = 0;
  struct onesided_piece one;
  snprintf(path, sizeof path, "%s/pieces", self->peer->folder);
  FILE *file = fopen(path, "r");
  if (!file)
    die(path);
  while (fscanf(file, "%zu %zu %zu %zu", &one.at, &one.length, &one.count,
                &one.stride) == 4) {
    if (one.at + (one.count - 1) * one.stride + one.length > self->length)
      peer_fails("failed", "a piece is outside of the memory");
    *pieces = realloc(*pieces, (n + 1) * sizeof **pieces);
    if (!*pieces)
      die("pieces");
    (*pieces)[n++] = one;
  }
  fclose(file);
  return n;
}

static inline double onesided_time_pieces(struct onesided *self, bool put,
                                          const struct onesided_piece *pieces,
                                          size_t n) {
  int64_t begin = now();
  for (const struct onesided_piece *one = pieces; one < pieces + n; one++)
    for (size_t i = 0; i < one->count; i++)
      self->begin(self->context, put, one->at + i * one->stride, one->length);
  self->end(self->context);
  return (double)(now() - begin);
}

static inline void onesided_compare(struct onesided *self,
                                    const struct onesided_piece *one) {
  for (size_t i = 0; i < one->count; i++) {
    size_t at = one->at + i * one->stride;
    self->client.checked += one->length;
    if (memcmp(self->from + at, self->into + at, one->length) != 0)
      peer_fails("wrong", "a piece of %zu bytes at %zu differs", one->length,
                 at);
  }
}

/* A call moves all pieces. Every byte is new in each burst, and is compared
 * behind it. */
static inline double onesided_list(struct onesided *self, bool put,
                                   size_t length, int64_t span) {
  struct peer_client *client = &self->client;
  struct onesided_piece *pieces = NULL;
  size_t n = onesided_pieces(self, &pieces);
  peer_fill(self->from, length, ++client->round);
  if (!put)
    onesided_far(self, false, length);
  int64_t until = now() + span;
  do {
    spread_count(&client->times, onesided_time_pieces(self, put, pieces, n), 1);
  } while (++client->calls < 3 || now() < until);
  if (put)
    onesided_far(self, true, length);
  for (size_t i = 0; i < n; i++)
    onesided_compare(self, &pieces[i]);
  free(pieces);
  return client->times.sum;
}

static inline double onesided_more(struct peer_client *client, const char *mode,
                                   size_t length, int64_t span) {
  struct onesided *self = (struct onesided *)client;
  bool put = strncmp(mode, "put", 3) == 0;
  if (strcmp(mode, "put") == 0 || strcmp(mode, "get") == 0)
    return onesided_move(self, put, length, span);
  if (strcmp(mode, "put-pieces") == 0 || strcmp(mode, "get-pieces") == 0)
    return onesided_list(self, put, length, span);
  return -1;
}

/* ---- An echo ------------------------------------------------------------ */

static inline void onesided_submit(void *context, int slot, size_t length) {
  struct onesided *self = context;
  size_t at = (size_t)slot * self->peer->size;
  self->begin(self->context, true, at, length);
  self->end(self->context);
  self->begin(self->context, false, at, length);
  self->end(self->context);
  self->echoed = length;
}

static inline int onesided_collect(void *context, const uint8_t **reply,
                                   size_t *length) {
  struct onesided *self = context;
  int slot = peer_oldest(&self->client);
  *reply = self->into + (size_t)slot * self->peer->size;
  *length = self->echoed;
  return slot;
}

/* Takes bursts until the end. begin, end and context are set by then. */
static inline void onesided_bursts(struct onesided *self) {
  struct peer_client *client = &self->client;
  client->context = self;
  client->submit = onesided_submit;
  client->collect = onesided_collect;
  client->more = onesided_more;
  for (int i = 0; i < self->peer->under; i++)
    client->buffers[i] = self->from + (size_t)i * self->peer->size;
  peer_bursts(self->peer, client);
}

#endif
