/* SPDX-License-Identifier: Apache-2.0
 *
 * lane_fuzz.c - a peer that has proven who it is, and then sends what it likes
 * on the streams of its session: records, fragments of operations that live or
 * do not, credits, claims, ends, frames, and bytes that are none of these,
 * whole or in pieces, plain or sealed. No byte may be written outside of a
 * pending landing, each operation ends once, and when the session is over
 * nothing is left of it.
 *
 * decoders: native/transport/tcp/tcp_receive.c native/transport/tcp/tcp_fetch.c native/transport/tcp/tcp_send.c native/transport/tcp/tcp_feed.c native/transport/tcp/tcp_sealed.c native/transport/tcp/tcp_ahead.c
 */
#include "lane_scene.h"

#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp/tcp.h"

enum {
  STREAMS = 3,
  TOLD = 4,
  LEAST = 100, /* bytes of a chunk: sealing each byte is slow */
  LEAN = 4 << 20,
  TALK = 64,
  PATIENT = TALK * (TCP_PATIENCE + 2),
  ALIKE = 0x51a7e000 /* generation of the first of says_alike */
};

/* A payload that a record has announced. */
struct told {
  uint16_t operation;
  uint8_t part;
  uint32_t generation;
  uint64_t total, sent;
};

struct talk {
  struct scene *scene;
  struct told told[TOLD];
  int tellings;
  struct input *in;
  int fds[STREAMS];
  int stream;            /* the stream that is used */
  uint32_t alike, calls; /* says_alike: bytes of each; how many there were */
  struct seal seals[STREAMS];
  uint32_t chunk; /* sealed: the most bytes of a chunk */
  bool stuck;     /* the engine has stopped reading it */
};

/* ---- Saying ---------------------------------------------------------------- */

static void push(struct talk *t, const uint8_t *bytes, size_t length) {
  for (int tries = 0; length > 0 && !t->stuck; tries++) {
    ssize_t n =
        send(t->fds[t->stream], bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      bytes += n;
      length -= (size_t)n;
      continue;
    }
    lives(t->scene);
    t->stuck = tries > 8;
  }
}

static void say(struct talk *t, const uint8_t *bytes, size_t length) {
  static uint8_t chunk[SEAL_CHUNK_MOST];
  if (!t->scene->hand.sealed)
    push(t, bytes, length);
  else
    for (uint32_t n; length > 0; bytes += n, length -= n) {
      n = length < t->chunk ? (uint32_t)length : t->chunk;
      push(t, chunk, seal_close(&t->seals[t->stream], chunk, bytes, n));
    }
}

static void say_head(struct talk *t, const struct tcp_head *head) {
  say(t, (const uint8_t *)head, sizeof *head);
}

/* ---- Operations ------------------------------------------------------------ */

/* An operation of the engine, live or not. */
static void of_engine(struct talk *t, uint16_t *operation,
                      uint32_t *generation) {
  uint8_t which = take8(t->in);
  const struct perigee_engine *e = t->scene->engine;
  const struct own *own = &t->scene->own[which % OWN];
  *operation = own->operation >= 0 ? (uint16_t)own->operation : which % 64;
  *generation = e->table[*operation % 64].generation - (which / 64 == 3);
}

/* An operation of the peer's own: one of few, so that they collide. */
static void of_peer(struct talk *t, uint16_t *operation, uint32_t *generation) {
  uint8_t which = take8(t->in);
  *operation = which % 4;
  *generation = 1 + which / 4 % 4;
  if (which >= 250) {
    *operation = take16(t->in);
    *generation = (uint32_t)take_edge(t->in);
  }
}

static uint32_t some_length(struct talk *t) {
  static const uint32_t lengths[] = {64,    512,  1024, PLACE / 2,
                                     PLACE, 3000, 8192, PLACE - 64};
  uint8_t which = take8(t->in);
  return which < 8 ? (uint32_t)take_edge(t->in) : lengths[which % 8];
}

/* ---- Heads and bodies -------------------------------------------------------- */

/* The next fragment of an announced payload; some are left out or repeated. */
static void of_told(struct talk *t, struct tcp_head *h, uint8_t how) {
  struct told *told = &t->told[how / 4 % TOLD];
  uint64_t left = told->total - told->sent;
  h->operation = told->operation;
  h->generation = told->generation;
  h->which = (uint8_t)(told->part | (how & 2));
  h->at = told->sent;
  h->length = some_length(t);
  uint8_t odd = take8(t->in);
  if (left > 0 && h->length > left && odd < 240)
    h->length = (uint32_t)left;
  if (odd >= 240 && odd < 248)
    h->at += told->total;
  told->sent += how < 240 ? h->length : 0;
}

static void of_any(struct talk *t, struct tcp_head *h, uint8_t how) {
  of_peer(t, &h->operation, &h->generation);
  h->which = how & 3;
  h->length = some_length(t);
  h->at = how & 4 ? some_length(t) : how & 8 ? take_edge(t->in) : 0;
}

static void says_fragment(struct talk *t) {
  static uint8_t body[TCP_FRAGMENT_MOST];
  static const uint64_t words[] = {TCP_GOOD, TCP_GOOD, TCP_GIVEN_UP, 7};
  struct tcp_head h = {.type = TCP_FRAGMENT};
  uint8_t how = take8(t->in), end = take8(t->in);
  if (how & 1)
    of_any(t, &h, how / 2);
  else
    of_told(t, &h, how);
  say_head(t, &h);
  if (h.length > TCP_FRAGMENT_MOST)
    return;
  memset(body, STRANGE, h.length);
  say(t, body, end & 4 ? h.length / 2 : h.length);
  if (end & 4)
    lives(t->scene);
  if ((end & 12) == 4)
    say(t, body, h.length - h.length / 2);
  if ((end & 12) != 12)
    say(t, (const uint8_t *)&words[end / 16 % 4], TCP_TRAILER);
}

static struct source pushed(struct talk *t, uint64_t total) {
  struct source s = {1, total, total, 1, total};
  uint8_t how = take8(t->in);
  if (how & 1)
    s.address = some_length(t);
  if (how > 240)
    s = (struct source){how & 3, take_edge(t->in), take_edge(t->in),
                        take_edge(t->in), take_edge(t->in)};
  return s;
}

static void aim(struct talk *t, struct record *r) {
  if (r->kind != RECORD_REPLY) {
    of_peer(t, &r->operation, &r->generation);
    r->remaining = RECORD_NO_LIMIT;
    return;
  }
  of_engine(t, &r->operation, &r->generation);
  of_peer(t, &r->method, &r->remaining);
  r->status = take8(t->in) < 32 ? -1 : 0;
}

static void describe(struct talk *t, struct record *r) {
  uint8_t how = take8(t->in);
  r->flags = how & (RECORD_TYPED | RECORD_SLICE | RECORD_HEAD_BULK |
                    RECORD_SLICE_BULK | RECORD_CODE);
  if (!(r->flags & RECORD_SLICE))
    r->flags &= ~(unsigned)RECORD_SLICE_BULK;
  r->head_length = r->flags & RECORD_HEAD_BULK ? some_length(t) : how >> 7;
  r->slice_length =
      r->flags & RECORD_SLICE_BULK ? some_length(t) : take8(t->in);
  r->head_source = pushed(t, r->head_length);
  r->slice_source = pushed(t, r->slice_length);
}

/* READ and WRITE: an access to the engine's exported region. */
static struct access accesses(struct talk *t, uint64_t total) {
  const struct perigee_region *r = t->scene->exported;
  struct access a = {r->slot, r->generation, 0, total, 1, total};
  uint8_t how = take8(t->in);
  if (how & 1)
    a.offset = some_length(t);
  if (how & 2)
    a = (struct access){r->slot, r->generation, 64, total / 8, 8, total / 4};
  if (how > 240)
    a = (struct access){how & 3,          r->generation,    take_edge(t->in),
                        take_edge(t->in), take_edge(t->in), take_edge(t->in)};
  return a;
}

static void tells(struct talk *t, const struct record *r, uint8_t part,
                  uint64_t total) {
  bool reply = r->kind == RECORD_REPLY;
  if (r->flags & (part ? RECORD_SLICE_BULK : RECORD_HEAD_BULK))
    t->told[t->tellings++ % TOLD] =
        (struct told){reply ? r->method : r->operation, part,
                      reply ? r->remaining : r->generation, total, 0};
}

static void says_record(struct talk *t) {
  struct record r = {.kind = 1 + take8(t->in) % RECORD_KINDS};
  uint8_t bytes[1024] = {0}, *head, spoil;
  struct access a;
  aim(t, &r);
  describe(t, &r);
  if (r.kind == RECORD_READ || r.kind == RECORD_WRITE) {
    r.flags &= ~(unsigned)RECORD_HEAD_BULK;
    r.head_length = sizeof a;
    a = accesses(t, r.slice_length);
  }
  struct tcp_head h = {.type = TCP_RECORD,
                       .which = r.kind == RECORD_REPLY ? RING_REPLY : 0,
                       .length = (uint32_t)record_size(&r)};
  if (h.length > sizeof bytes)
    return;
  record_encode(&r, bytes);
  head = record_head(&r, bytes);
  if (head && r.head_length == sizeof a)
    memcpy(head, &a, sizeof a);
  tells(t, &r, 0, r.head_length);
  tells(t, &r, 1, r.slice_length);
  spoil = take8(t->in);
  if (spoil > 248)
    bytes[take8(t->in) % h.length] = take8(t->in);
  say_head(t, &h);
  say(t, bytes, h.length);
}

/* Writes a request and its payload behind each other; returns their bytes. */
static size_t put_alike(struct talk *t, uint8_t *at, uint64_t word) {
  struct record r = {.kind = RECORD_REQUEST,
                     .flags = RECORD_HEAD_BULK,
                     .operation = (uint16_t)(t->calls % 4),
                     .generation = ALIKE + t->calls++,
                     .remaining = RECORD_NO_LIMIT,
                     .head_length = t->alike,
                     .head_source = {1, t->alike, t->alike, 1, t->alike}};
  struct tcp_head record = {.type = TCP_RECORD,
                            .length = (uint32_t)record_size(&r)};
  struct tcp_head fragment = {.type = TCP_FRAGMENT,
                              .length = t->alike,
                              .which = PART_EAGER,
                              .operation = r.operation,
                              .generation = r.generation};
  uint8_t *begin = at;
  memcpy(at, &record, TCP_HEAD);
  record_encode(&r, at + TCP_HEAD);
  at += TCP_HEAD + record.length;
  memcpy(at, &fragment, TCP_HEAD);
  memset(at + TCP_HEAD, (uint8_t)t->calls, t->alike);
  at += TCP_HEAD + t->alike;
  memcpy(at, &word, TCP_TRAILER);
  return (size_t)(at + TCP_TRAILER - begin);
}

/* Requests that are expected, as each is like the one before it (tcp_ahead.c):
 * one or several, which come whole, in pieces, or in part. */
static void says_alike(struct talk *t) {
  static const uint32_t lengths[] = {4096,  4096,  5000,     9000,
                                     16384, 28672, 64 << 10, (64 << 10) + 1};
  static uint8_t bytes[3 * (66 << 10)];
  static const uint64_t words[] = {TCP_GOOD, TCP_GOOD, TCP_GOOD, TCP_GIVEN_UP};
  uint8_t how = take8(t->in), cut = take8(t->in);
  size_t n = 0, first;
  if (t->alike == 0 || how >= 224)
    t->alike = lengths[how % 8];
  for (int i = 0; i <= (how & 32 ? how % 3 : 0); i++)
    n += put_alike(t, bytes + n, words[cut % 4]);
  first = cut >= 192 ? n * (cut - 191) / 65 : n;
  say(t, bytes, first);
  for (int i = 0; i < 1 + how / 8 % 4; i++)
    lives(t->scene);
  if (how % 8 < 7)
    say(t, bytes + first, n - first);
  if (cut / 4 % 8 == 7 && t->scene->lost == 0)
    lane_table(t->scene->hand.session->lane)
        ->kept->trim(t->scene->hand.session->lane);
}

static void says_word(struct talk *t) {
  struct tcp_head h = {.type = 1 + take8(t->in) % (TCP_TYPES + 1)};
  const struct lane *lane = t->scene->hand.session->lane;
  if (h.type == TCP_CLAIM)
    of_engine(t, &h.operation, &h.generation);
  else
    of_peer(t, &h.operation, &h.generation);
  h.which = take8(t->in) % 4;
  h.at = take_edge(t->in);
  if (h.type == TCP_CREDIT && h.which < RINGS && take8(t->in) < 200)
    h.at = lane->out[h.which].sent;
  if (h.type == TCP_RECORD || h.type == TCP_BYTES)
    h.length = some_length(t);
  say_head(t, &h);
}

/* Keys for any lane, with any bytes. Descriptors are never claimed truly. */
static void says_keys(struct talk *t, struct found *found, uint8_t how) {
  found->keys = how / 2 % 8 > 4 ? how / 2 % 4 : 0;
  for (uint32_t i = 0; i < found->keys; i++) {
    struct found_key *k = &found->key[i];
    k->lane = how > 200 ? take8(t->in) : i;
    k->key.fd_count = how > 250;
    k->key.length = take8(t->in) % (KEY_MAX + 1);
    take(t->in, k->key.bytes, k->key.length);
    found->fds += k->key.fd_count;
  }
}

static void says_frame(struct talk *t) {
  struct frame f = {.type = 1 + take8(t->in) % (FRAME_TYPES - 1)};
  uint8_t bytes[FRAME_HEAD + FRAME_BODY], how = take8(t->in);
  if (f.type == FRAME_FOUND) {
    uint16_t operation;
    of_engine(t, &operation, &f.found.generation);
    f.found.operation = operation;
    f.found.length = how & 1 ? PLACE : take_edge(t->in);
    f.found.access = 3;
    says_keys(t, &f.found, how);
  } else if (f.type == FRAME_LOOKUP) {
    memcpy(f.lookup.name, how & 1 ? "exported" : "elsewhere", 9);
  } else if (f.type != FRAME_OFFER) {
    take(t->in, &f.refuse, how % 64);
  }
  struct tcp_head h = {.type = TCP_BYTES, .length = wire_encode(&f, bytes)};
  say_head(t, &h);
  say(t, bytes, h.length);
}

static void says_bytes(struct talk *t, bool sealed) {
  uint8_t bytes[64];
  size_t n = take(t->in, bytes, take8(t->in) % sizeof bytes);
  if (sealed)
    say(t, bytes, n);
  else
    push(t, bytes, n);
}

/* ---- Streams ------------------------------------------------------------------ */

static void seals(struct talk *t, int number) {
  const struct hand *h = &t->scene->hand;
  uint8_t key[SEAL_KEY];
  handshake_seal(h->key, (uint32_t)number, h->dials, key);
  seal_end(&t->seals[number]);
  seal_begin(&t->seals[number], key, seal_has_aes());
}

static void attaches(struct talk *t, int number) {
  struct perigee_session *s = t->scene->hand.session;
  int pair[2];
  if (t->fds[number] >= 0 || !s || s->state != PERIGEE_SESSION_OPEN)
    return;
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
  seals(t, number);
  t->fds[number] = pair[0];
  lane_table(s->lane)->sockets->attach(s->lane, (uint32_t)number, pair[1], NULL,
                                       0);
}

static void turns_to(struct talk *t, uint8_t how) {
  int number = how % STREAMS;
  if (number > 0)
    attaches(t, number);
  if (t->fds[number] >= 0)
    t->stream = number;
  t->chunk =
      how & 128 ? LEAST + take16(t->in) % (SEAL_MOST - LEAST) : SEAL_MOST;
}

static void reads(struct talk *t) {
  static uint8_t bytes[64 << 10];
  for (int i = 0; i < STREAMS; i++)
    while (t->fds[i] >= 0 &&
           recv(t->fds[i], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
      ;
}

/* ---- One session --------------------------------------------------------------- */

static void act(struct talk *t) {
  struct scene *s = t->scene;
  uint8_t what = take8(t->in), how;
  switch (what % 16) {
  case 0:
  case 1:
    says_fragment(t);
    break;
  case 2:
    says_alike(t);
    break;
  case 3:
  case 4:
  case 5:
    says_record(t);
    break;
  case 6:
    says_word(t);
    break;
  case 7:
    says_frame(t);
    break;
  case 8:
    says_bytes(t, what & 16);
    break;
  case 9:
    turns_to(t, take8(t->in));
    break;
  case 10:
    reads(t);
    break;
  case 11:
    perigee_cancel(s->engine, s->own[take8(t->in) % OWN].operation);
    break;
  case 12:
    how = take8(t->in);
    wants(s, what / 16, how);
    break;
  case 13:
    s->mood = take8(t->in);
    answers_all(s);
    break;
  case 14:
    if (perigee_arm(s->engine, NULL) == 0)
      break; /* fall through */
  default:
    for (int i = 0; i < 1 + what / 64; i++)
      lives(s);
  }
}

static void begins(struct talk *t, uint8_t how) {
  struct scene *s = t->scene;
  hand_come(&s->hand, s->engine, (how & 2) == 0);
  require(hand_open(&s->hand, s->engine->secret));
  for (int i = 0; i < 4; i++)
    lives(s);
  t->fds[0] = s->hand.fd;
  t->fds[1] = t->fds[2] = -1;
  t->chunk = SEAL_MOST;
  seals(t, 0);
  for (int i = 0; i < 8; i++)
    wants(s, (uint8_t)i, (uint8_t)(how + i * 8));
}

static void ends(struct talk *t) {
  struct scene *s = t->scene;
  for (int i = 1; i < STREAMS; i++)
    if (t->fds[i] >= 0)
      close(t->fds[i]);
  for (int i = 0; i < STREAMS; i++)
    seal_end(&t->seals[i]);
  hand_close(&s->hand);
  for (int i = 0; i < PATIENT && (i < 4 || s->lost == 0); i++)
    lives(s);
  require(s->lost == 1);
  for (int i = 0; i < 16; i++)
    lives(s);
  answers_all(s);
  for (int i = 0; i < OWN; i++)
    require(s->own[i].operation < 0);
  perigee_session_free(s->hand.session);
  lives(s);
  const struct perigee_counters *c = perigee_counters(s->engine, NULL);
  require(c->sessions == 0 && c->operations == 0 && c->pooled == 0);
  require(s->host->users == 0 && s->exported->users == 0);
}

static void talks(struct scene *s, struct input *in) {
  int64_t allocated = allocated_by(s->engine);
  struct talk t = {.scene = s, .in = in};
  s->lost = s->mood = 0;
  s->remote = NULL;
  begins(&t, take8(in));
  for (int i = 0; i < TALK && in->size > 0 && !t.stuck && s->lost == 0; i++) {
    act(&t);
    require(allocated_by(s->engine) < allocated + LEAN);
  }
  for (int i = 0; i < 4; i++)
    lives(s);
  ends(&t);
  require(!s->warm || allocated_by(s->engine) <= allocated);
  s->warm = true;
}

/* ---- The stage ------------------------------------------------------------------ */

static void open_scene(struct scene *s, bool encrypt) {
  s->world.seed = 1;
  s->engine = engine_of(&s->world, "sixteen letters of secret", encrypt);
  s->memory = malloc(MEMORY);
  s->expected = malloc(MEMORY);
  uint8_t *exported = malloc(EXPORTED);
  require(s->memory && s->expected && exported);
  memset(s->memory, PATTERN, MEMORY);
  memset(s->expected, PATTERN, MEMORY);
  memset(exported, PATTERN, EXPORTED);
  for (int i = 0; i < OWN; i++)
    s->own[i].operation = -1;
  for (int i = 0; i < HELD_MOST; i++)
    s->landings[i].operation = -1;
  require(perigee_region_register(s->engine, NULL, s->memory, MEMORY, 0, NULL,
                                  &s->host) == PERIGEE_OK);
  require(perigee_region_register(s->engine, "exported", exported, EXPORTED, 3,
                                  NULL, &s->exported) == PERIGEE_OK);
  require(perigee_region_alloc(s->engine, NULL, MEMORY, 0, "opaque",
                               &s->opaque) == PERIGEE_OK);
  require(perigee_region_write(s->opaque, 0, s->memory, MEMORY) == PERIGEE_OK);
  talks(s, &(struct input){NULL, 0});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct scene scenes[2];
  struct input in = {data, size};
  struct scene *s = &scenes[take8(&in) & 1];
  if (!s->engine)
    open_scene(s, s == &scenes[1]);
  talks(s, &in);
  guards_are_intact(s);
  return 0;
}
