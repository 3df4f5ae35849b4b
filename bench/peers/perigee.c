/* SPDX-License-Identifier: Apache-2.0
 *
 * Perigee from C: raw calls from a region of private memory into another, which
 * the server answers from where the request lies. Word: shm, tcp or verbs. With
 * "batched" behind it calls are made by perigee_call_batch: the loop's next calls
 * gather until they are half of those under way.
 *
 * Version: this tree's.
 * Mode: one session; both memories are regions (perigee_region_alloc), the
 * methods' loans are not used.
 * Copies: over shared memory the receiver, once each way (the request's
 * bytes out of the caller, the reply's too); over TCP the kernel, in and out;
 * over RDMA nobody.
 * Sleeping: whoever has polled for 20 ms; in modes `paced` and `fanout`, and
 * where both share a core, Perigee's defaults.
 * Setting: perigee.h (spin, dead_after, pool). Over TCP both have a secret and nothing
 * is encrypted.
 */
#include "inbox.h"
#include "peer.h"

static const int64_t SPIN = 20000000, LIMIT = 600 * INT64_C(1000000000);

enum { OPERATIONS = 1 << 16, ATTEMPTS = 8 };

enum { GATHERS = -1, ENDED = -2, BATCHES = 3 };

/* Calls that gather, then are under way, then are read by the loop. */
struct batch {
  int operation; /* or GATHERS, or ENDED */
  uint32_t count, read;
  int slots[UNDER];
  struct perigee_message messages[UNDER];
  struct perigee_answer answers[UNDER];
};
struct side {
  const struct peer *peer;
  bool busy; /* polls in place of sleeping, for one call at a time */
  struct inbox inbox;
  struct perigee_session *sessions[UNDER]; /* one for each server */
  struct perigee_region *region; /* for each slot the request, then the reply */
  uint8_t *bytes;
  struct peer_client *client;
  int operation; /* of the slot, if there is one only */
  struct perigee_message messages[UNDER];
  struct batch
      batches[BATCHES]; /* one gathers, one is under way, one is read */
  int gathers, reads;
  uint16_t slots[OPERATIONS];
};

static void must(int status, const char *what) {
  if (status < 0)
    peer_fails("failed", "%s: %s", what, perigee_status_name(status));
}

static const char *version(void) {
  static char text[64];
  snprintf(text, sizeof text, "Perigee, ABI %d", PERIGEE_ABI);
  return text;
}

/* While others have their turns, neither side may hold the other for dead. Of
 * the pool (1 GiB by default) a caller's requests have half at most. */
static void open_side(struct side *side, const struct peer *peer) {
  struct perigee_options options;
  perigee_options_init(&options, sizeof options);
  options.dead_after = LIMIT;
  bool sleeps = strcmp(peer->mode, "paced") == 0 ||
                strcmp(peer->mode, "fanout") == 0 || getenv("COMPARE_CORES");
  if (!sleeps)
    options.spin = SPIN;
  if (options.pool < 4 * (uint64_t)peer->under * peer->size)
    options.pool = 4 * (uint64_t)peer->under * peer->size;
  side->peer = peer;
  side->busy = !sleeps && peer->under == 1;
  side->inbox.under = peer->under;
  must(perigee_engine_open(&options, &side->inbox.engine), "engine");
}

static const struct perigee_event *next(struct side *side) {
  const struct perigee_event *e = side->inbox.events;
  must(inbox_next(&side->inbox, LIMIT, &e), "wait");
  return e;
}

/* ---- The server --------------------------------------------------------- */

static void serve(const struct peer *peer) {
  static struct side side;
  struct perigee_listener *listener;
  char address[256] = "tcp://127.0.0.1:0";
  open_side(&side, peer);
  if (!peer_has_word(peer, "tcp"))
    snprintf(address, sizeof address, "unix:%s/echo", peer->folder);
  must(perigee_listen(side.inbox.engine, address, &listener), "listen");
  peer_ready(perigee_listener_address(listener));
  for (;;) {
    const struct perigee_event *e = next(&side);
    if (e->kind == PERIGEE_EVENT_LOST)
      break;
    if (e->kind != PERIGEE_EVENT_REQUEST)
      continue;
    struct perigee_message m = {.head = e->pointer, .length = e->length};
    must(perigee_reply(side.inbox.engine, e->operation, &m), "reply");
  }
  perigee_engine_close(side.inbox.engine);
}

/* ---- The client --------------------------------------------------------- */

static uint8_t *reply_of(const struct side *side, int slot) {
  return side->bytes + (2 * (size_t)slot + 1) * side->peer->size;
}

/* The message is used again and again: its other fields stay zero. */
static void fill(struct side *side, struct perigee_message *m, int slot,
                 size_t length) {
  uint64_t from = (uint64_t)(side->client->buffers[slot] - side->bytes);
  uint64_t to = (uint64_t)(reply_of(side, slot) - side->bytes);
  m->slice = (struct perigee_slice){{side->region}, from, length, 1, length};
  m->into = (struct perigee_slice){{side->region}, to, length, 1, length};
  m->timeout = LIMIT;
}

static void submit(void *context, int slot, size_t length) {
  struct side *side = context;
  struct perigee_message *m = &side->messages[slot];
  fill(side, m, slot, length);
  side->operation = perigee_call(side->sessions[slot % side->peer->servers], m);
  must(side->operation, "call");
  side->slots[side->operation] = (uint16_t)slot;
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct side *side = context;
  const struct perigee_event *e =
      side->busy ? inbox_await(&side->inbox, side->operation, SPIN)
                 : next(side);
  must(e->status, "reply");
  int slot = side->slots[e->operation];
  *reply = reply_of(side, slot);
  *length = e->slice;
  return slot;
}

/* ---- The same by batches ------------------------------------------------- */

static void batch_post(struct side *side) {
  struct batch *b = &side->batches[side->gathers];
  b->operation =
      perigee_call_batch(side->sessions[0], b->messages, b->count, b->answers);
  must(b->operation, "batch");
  side->gathers = (side->gathers + 1) % BATCHES;
}

static void submit_batched(void *context, int slot, size_t length) {
  struct side *side = context;
  struct batch *b = &side->batches[side->gathers];
  uint32_t half = (uint32_t)(side->peer->under + 1) / 2;
  fill(side, &b->messages[b->count], slot, length);
  b->slots[b->count++] = slot;
  if (b->count == half)
    batch_post(side);
}

/* The loop's last calls are fewer than half. */
static void batch_await(struct side *side, const struct batch *b) {
  if (b->operation == GATHERS)
    batch_post(side);
  while (b->operation != ENDED) {
    const struct perigee_event *e = next(side);
    must(e->status, "reply");
    for (int i = 0; i < BATCHES; i++)
      if (side->batches[i].operation == e->operation)
        side->batches[i].operation = ENDED;
  }
}

static int collect_batched(void *context, const uint8_t **reply,
                           size_t *length) {
  struct side *side = context;
  struct batch *b = &side->batches[side->reads];
  batch_await(side, b);
  int slot = b->slots[b->read];
  *reply = reply_of(side, slot);
  *length = b->answers[b->read].length;
  if (++b->read == b->count) {
    b->operation = GATHERS;
    b->count = b->read = 0;
    side->reads = (side->reads + 1) % BATCHES;
  }
  return slot;
}

static struct perigee_session *connect_to(struct side *side,
                                          const char *address) {
  const char *way = side->peer->words[0];
  const struct perigee_event *e = NULL;
  for (int tries = 0; tries < ATTEMPTS; tries++) {
    must(perigee_connect(side->inbox.engine, address, way, LIMIT), "connect");
    if ((e = next(side))->status == PERIGEE_OK)
      break; /* a handshake has two seconds, also on a busy machine */
  }
  must(e->status, "connect");
  return perigee_session(side->inbox.engine, e->session);
}

static void call(const struct peer *peer) {
  static struct side side;
  static struct peer_client client;
  size_t all = 2 * (size_t)peer->under * peer->size;
  open_side(&side, peer);
  for (int i = 0; i < peer->servers; i++)
    side.sessions[i] = connect_to(&side, peer->addresses[i]);
  must(perigee_region_alloc(side.inbox.engine, NULL, all, PERIGEE_LOCAL, NULL,
                            &side.region),
       "region");
  side.bytes = perigee_region_pointer(side.region);
  memset(side.bytes, 1, all);
  side.client = &client;
  client.context = &side;
  bool batched = peer_has_word(peer, "batched");
  client.submit = batched ? submit_batched : submit;
  client.collect = batched ? collect_batched : collect;
  for (int i = 0; i < BATCHES; i++)
    side.batches[i].operation = GATHERS;
  for (int i = 0; i < peer->under; i++)
    client.buffers[i] = side.bytes + 2 * (size_t)i * peer->size;
  peer_bursts(peer, &client);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
