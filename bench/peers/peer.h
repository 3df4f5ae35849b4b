/* SPDX-License-Identifier: Apache-2.0
 *
 * What the adapters in C share (README.md has their protocol): the command
 * line, the server's word that it is ready, its end with its standard input,
 * and the caller's side: bursts of calls that are timed and checked, whatever
 * carries them. An adapter gives a client two functions, to send a slot's
 * buffer and to wait for any reply.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>

#include "floor.h"
#include "spread.h"

enum { UNDER = 1024, PEER_WORDS = 4 };

struct peer {
  const char *words[PEER_WORDS]; /* in front of the role; NULL: no more */
  const char *folder;            /* the pair's own */
  size_t size;                   /* no payload is larger */
  int under;                     /* no more calls are under way */
  const char *address;           /* of the server; NULL in the server */
  char *const *addresses;        /* of all servers, if it is a fan-out */
  int servers;
  const char *mode; /* of the row, or "" */
};

struct peer_client {
  void *context;
  uint8_t *buffers[UNDER]; /* one for each slot, with the bytes to go out */
  void (*submit)(void *context, int slot, size_t length);
  /* Waits for any reply: returns its slot, where its bytes are, and how many.
   * They stay until the next call of submit for that slot, or of collect. */
  int (*collect)(void *context, const uint8_t **reply, size_t *length);
  /* Runs a burst of a mode of the adapter's own; returns ns, or -1 if it has no
   * such mode. NULL: it has none. */
  double (*more)(struct peer_client *client, const char *mode, size_t length,
                 int64_t span);
  int order[UNDER]; /* the slots as they were submitted, by number % UNDER */
  unsigned submitted, oldest;
  uint64_t round, rounds[UNDER]; /* the next round, and that of each slot */
  int64_t begun[UNDER];
  long calls;
  size_t checked; /* bytes compared */
  struct spread times;
};

struct peer_kind {
  const char *(*version)(void); /* one line */
  void (*serve)(const struct peer *peer);
  /* Opens the client. Calls peer_bursts() when it is connected. */
  void (*call)(const struct peer *peer);
};

/* Ends a client for a reason that the harness puts into the table. */
static inline void peer_fails(const char *kind, const char *format, ...) {
  va_list values;
  va_start(values, format);
  printf("%s ", kind);
  vprintf(format, values);
  va_end(values);
  printf("\n");
  fflush(stdout);
  _exit(1);
}

/* ---- The server --------------------------------------------------------- */

static inline void *peer_watch_stdin(void *nothing) {
  char byte;
  (void)nothing;
  while (read(STDIN_FILENO, &byte, 1) > 0)
    ;
  _exit(0);
}

static inline void peer_ends_with_stdin(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, peer_watch_stdin, NULL) ||
      pthread_detach(thread))
    die("pthread_create");
}

static inline void peer_ready(const char *address) {
  printf("ready %s\n", address);
  fflush(stdout);
}

/* ---- The client --------------------------------------------------------- */

static inline void peer_submit(struct peer_client *client, int slot,
                               size_t length, int64_t at) {
  client->order[client->submitted++ % UNDER] = slot;
  client->begun[slot] = at ? at : now();
  client->submit(client->context, slot, length);
}

/* The slot of the next reply, where replies come in the order of requests. */
static inline int peer_oldest(struct peer_client *client) {
  return client->order[client->oldest++ % UNDER];
}

static inline void peer_stamp(struct peer_client *client, int slot,
                              size_t length) {
  client->rounds[slot] = client->round++;
  stamp(client->buffers[slot], length, client->rounds[slot]);
}

/* Compares all bytes of the reply with those that went out. */
static inline void peer_look(struct peer_client *client, int slot,
                             const uint8_t *reply, size_t length) {
  const uint8_t *sent = client->buffers[slot];
  client->checked += length;
  if (memcmp(reply, sent, length) == 0)
    return;
  size_t i = 0;
  while (reply[i] == sent[i])
    i++;
  peer_fails("wrong", "the reply to call %ld differs at byte %zu of %zu",
             client->calls, i, length);
}

/* Waits for a reply of that length; returns its slot. */
static inline int peer_collect(struct peer_client *client, size_t length,
                               const uint8_t **reply) {
  size_t got = 0;
  int slot = client->collect(client->context, reply, &got);
  if (got != length)
    peer_fails("wrong", "the reply to call %ld has %zu bytes of %zu",
               client->calls, got, length);
  return slot;
}

/* Looks at the bytes of a reply that its round has changed. */
static inline void peer_glance(struct peer_client *client, int slot,
                               const uint8_t *reply, size_t length) {
  if (check(reply, length, client->rounds[slot]))
    peer_look(client, slot, reply, length);
  client->checked += (length + PAGE - 1) / PAGE;
}

/* Keeps `under` calls under way for a time; the last replies of all slots are
 * compared whole. Returns the ns that it took, with one under way without what
 * is done between two calls. */
static inline double peer_keep(struct peer_client *client, size_t length,
                               int under, int64_t span) {
  int64_t begin = now(), at = begin;
  long most = LONG_MAX, begun = 0;
  for (; begun < under; begun++) {
    peer_stamp(client, (int)begun, length);
    peer_submit(client, (int)begun, length, under > 1 ? now() : 0);
  }
  while (client->calls < begun) {
    const uint8_t *reply;
    int slot = peer_collect(client, length, &reply);
    at = now();
    spread_add(&client->times, at - client->begun[slot]);
    client->calls++;
    peer_glance(client, slot, reply, length);
    if (begun < most && at - begin > span && begun >= 3)
      most = begun;
    if (begun == most) {
      peer_look(client, slot, reply, length);
      continue;
    }
    peer_stamp(client, slot, length);
    peer_submit(client, slot, length, under > 1 ? at : 0);
    begun++;
  }
  return under > 1 ? (double)(at - begin) : client->times.sum;
}

static inline void peer_sleep_until(int64_t at) {
  struct timespec when = {at / 1000000000, at % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
    ;
}

/* So many calls each second, from the times at which they are due. */
static inline double peer_pace(struct peer_client *client, size_t length,
                               int rate, int64_t span) {
  int64_t begin = now(), gap = 1000000000 / rate, at = begin;
  while (at - begin < span || client->calls < 3) {
    const uint8_t *reply;
    int64_t due = begin + client->calls * gap;
    peer_stamp(client, 0, length);
    peer_sleep_until(due);
    peer_submit(client, 0, length, due);
    peer_collect(client, length, &reply);
    at = now();
    spread_add(&client->times, at - due);
    client->calls++;
    peer_glance(client, 0, reply, length);
  }
  return (double)(at - begin);
}

/* Sends one payload to each server and waits for all replies, again and again;
 * slot i is that of server i. A reply is looked at when it has come, and each
 * of the last ones whole. */
static inline double peer_fan(struct peer_client *client, size_t length,
                              int servers, int64_t span) {
  int64_t begin = now(), at = begin;
  uint8_t *buffers[UNDER];
  bool last = false;
  memcpy(buffers, client->buffers, sizeof buffers);
  for (int i = 1; i < servers; i++)
    client->buffers[i] = buffers[0];
  while (!last) {
    peer_stamp(client, 0, length);
    int64_t first = now();
    last = first - begin >= span && client->calls >= 2;
    for (int i = 0; i < servers; i++) {
      client->rounds[i] = client->rounds[0];
      peer_submit(client, i, length, first);
    }
    for (int i = 0; i < servers; i++) {
      const uint8_t *reply;
      int slot = peer_collect(client, length, &reply);
      at = now();
      peer_glance(client, slot, reply, length);
      if (last)
        peer_look(client, slot, reply, length);
    }
    spread_add(&client->times, at - first);
    client->calls++;
  }
  memcpy(client->buffers, buffers, sizeof buffers);
  return client->times.sum;
}

/* Bytes of which none is as it was in the call before. */
static inline void peer_fill(uint8_t *at, size_t length, uint64_t seed) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < length; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    at[i] = (uint8_t)(at[i] + 1 + x % 255);
  }
}

/* Calls in rounds of `under`, of which every byte is new and compared. */
static inline double peer_verify(struct peer_client *client, size_t length,
                                 int under, long calls) {
  int64_t begin = now();
  while (client->calls < calls) {
    for (int slot = 0; slot < under; slot++) {
      peer_fill(client->buffers[slot], length, ++client->round);
      peer_submit(client, slot, length, 0);
    }
    for (int i = 0; i < under; i++, client->calls++) {
      const uint8_t *reply;
      int slot = peer_collect(client, length, &reply);
      spread_add(&client->times, now() - client->begun[slot]);
      peer_look(client, slot, reply, length);
    }
  }
  return (double)(now() - begin);
}

/* Does what the line asks for; returns ns, or -1 if that is unknown here. */
static inline double peer_burst(const struct peer *peer,
                                struct peer_client *client, const char *line) {
  char mode[16];
  size_t size;
  int under;
  double limit;
  if (sscanf(line, "%15s %zu %d %lf", mode, &size, &under, &limit) != 4 ||
      size == 0 || size > peer->size || under < 1)
    return -1;
  client->calls = 0;
  client->checked = 0;
  spread_clear(&client->times);
  if (strcmp(mode, "paced") == 0)
    return peer_pace(client, size, under, (int64_t)(limit * 1e9));
  if (under > peer->under)
    return -1;
  if (strcmp(mode, "fanout") == 0 && under == peer->servers)
    return peer_fan(client, size, under, (int64_t)(limit * 1e9));
  if (strcmp(mode, "echo") == 0 || strcmp(mode, "pipelined") == 0)
    return peer_keep(client, size, under, (int64_t)(limit * 1e9));
  if (strcmp(mode, "verify") == 0)
    return peer_verify(client, size, under, (long)limit);
  if (client->more && under == 1)
    return client->more(client, mode, size, (int64_t)(limit * 1e9));
  return -1;
}

/* Takes bursts until standard input ends. All slots have buffers by then. */
static inline void peer_bursts(const struct peer *peer,
                               struct peer_client *client) {
  static char line[256];
  peer_verify(client, peer->size, 1, 1);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    double ns = peer_burst(peer, client, line);
    if (ns < 0)
      peer_fails("failed", "no such burst: %.*s", (int)strcspn(line, "\n"),
                 line);
    printf("ok calls=%ld seconds=%.9f checked=%zu ns=", client->calls, ns / 1e9,
           client->checked);
    spread_print(&client->times, stdout);
    printf("\n");
    fflush(stdout);
  }
}

/* Puts a file into the pair's folder; it has its name when it is whole. */
static inline void peer_write_file(const struct peer *peer, const char *name,
                                   const void *bytes, size_t length) {
  char path[PATH_MAX], fresh[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", peer->folder, name);
  snprintf(fresh, sizeof fresh, "%s/%s~", peer->folder, name);
  FILE *file = fopen(fresh, "w");
  if (!file || fwrite(bytes, 1, length, file) != length || fclose(file) ||
      rename(fresh, path))
    die("a file for the other side");
}

/* Waits for a file of the other side; returns the bytes that were read. */
static inline size_t peer_read_file(const struct peer *peer, const char *name,
                                    void *bytes, size_t room) {
  char path[PATH_MAX];
  FILE *file;
  snprintf(path, sizeof path, "%s/%s", peer->folder, name);
  while (!(file = fopen(path, "r")))
    usleep(1000);
  size_t length = fread(bytes, 1, room, file);
  if (fclose(file) || length == 0)
    die("a file of the other side");
  return length;
}

/* Gives each slot a buffer of private memory, touched; returns the bytes of
 * all, which lie in a row. */
static inline size_t peer_rooms(const struct peer *peer, uint8_t **buffers) {
  size_t stride = (peer->size + LINE - 1) / LINE * LINE;
  uint8_t *all = (uint8_t *)memory((size_t)peer->under * stride, MAP_PRIVATE);
  for (int i = 0; i < peer->under; i++)
    buffers[i] = all + (size_t)i * stride;
  return (size_t)peer->under * stride;
}

/* ---- Both --------------------------------------------------------------- */

static inline bool peer_has_word(const struct peer *peer, const char *word) {
  for (int i = 0; i < PEER_WORDS && peer->words[i]; i++)
    if (strcmp(peer->words[i], word) == 0)
      return true;
  return false;
}

static inline int peer_usage(const char *program) {
  fprintf(stderr,
          "usage: %s [WORD...] version | server FOLDER SIZE UNDER | "
          "client FOLDER SIZE UNDER ADDRESS...\n",
          program);
  return 2;
}

static inline int peer_main(int argc, char **argv,
                            const struct peer_kind *kind) {
  struct peer peer = {.mode = getenv("COMPARE_MODE")};
  int at = 1, words = 0;
  for (; at < argc && words < PEER_WORDS; at++, words++) {
    if (strcmp(argv[at], "version") == 0)
      return puts(kind->version()) < 0;
    if (strcmp(argv[at], "server") == 0 || strcmp(argv[at], "client") == 0)
      break;
    peer.words[words] = argv[at];
  }
  bool serves = at < argc && strcmp(argv[at], "server") == 0;
  peer.servers = argc - at - 4;
  if (argc < at + 4 || (peer.servers != 0) == serves)
    return peer_usage(argv[0]);
  peer.folder = argv[at + 1];
  peer.size = strtoull(argv[at + 2], NULL, 10);
  peer.under = (int)strtol(argv[at + 3], NULL, 10);
  peer.address = argv[at + 4];
  peer.addresses = argv + at + 4;
  if (!peer.mode)
    peer.mode = "";
  if (peer.size < 1 || peer.under < 1 || peer.under > UNDER ||
      peer.servers > (peer.under > 1 ? peer.under : 1))
    return peer_usage(argv[0]);
  if (serves)
    peer_ends_with_stdin();
  (serves ? kind->serve : kind->call)(&peer);
  return 0;
}

#endif
