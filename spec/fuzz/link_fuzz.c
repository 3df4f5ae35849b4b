/* SPDX-License-Identifier: Apache-2.0
 *
 * link_fuzz.c - a peer of the lane "cuda" that says what it likes, while this
 * side copies and fetches: words of any form, memory that goes under copies,
 * boards, keys and sources of anything. The kind of memory is one of this file:
 * what it opens of the peer is a block of the heap, which is freed when the lane
 * leaves it, and its copies run late. So no byte may be touched outside of the
 * peer's memory, or after it was left; and nothing is held when the lane is
 * closed.
 *
 * decoders: native/transport/cuda/link.c native/transport/cuda/words.c native/transport/cuda/memories.c native/transport/cuda/copies.c native/transport/cuda/fetch.c native/transport/cuda/lists.c
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "transport/cuda/cuda_lane.h"

enum {
  LOCAL = 4096,
  ITEMS = 4,
  WINDOWS = 4,
  ASKED = 6,
  WHOLE = 16,
  PLACES = 8,
  STEPS = 64
};

static const int64_t long_ago = -1;

/* ---- A kind of memory ---------------------------------------------------- */

/* A copy or a batch that was asked for; count 0: none. */
static struct asked {
  struct memory_copy copies[LINK_GATHERED];
  uint32_t count;
} asked[ASKED];
static bool ready; /* those that were asked for may end */

static int toy_open(uint32_t device, void **own, char reason[MEMORY_REASON]) {
  *reason = 0;
  *own = NULL;
  return device < 2 ? PERIGEE_OK : PERIGEE_NOT_FOUND;
}

static int toy_copy_all(const struct memory_context *context,
                        const struct memory_copy *copies, uint32_t count,
                        uint64_t *ticket) {
  (void)context;
  uint64_t i = 0;
  while (i < ASKED && asked[i].count > 0)
    i++;
  if (i == ASKED)
    return PERIGEE_AGAIN;
  require(count > 0 && count <= LINK_GATHERED);
  memcpy(asked[i].copies, copies, count * sizeof *copies);
  asked[i].count = count;
  *ticket = i + 1;
  return PERIGEE_OK;
}

static int toy_copy(const struct memory_context *context,
                    const struct memory_copy *copy, uint64_t *ticket) {
  return toy_copy_all(context, copy, 1, ticket);
}

static void toy_do(const struct memory_copy *c) {
  for (uint64_t i = 0; i < c->count; i++)
    memmove(c->to + i * c->to_stride, c->from + i * c->from_stride, c->block);
}

static int toy_finished(const struct memory_context *context, uint64_t ticket) {
  (void)context;
  struct asked *a = &asked[ticket - 1];
  require(a->count > 0);
  if (!ready)
    return 0;
  for (uint32_t i = 0; i < a->count; i++)
    toy_do(&a->copies[i]);
  a->count = 0;
  return 1;
}

static void toy_drain(const struct memory_context *context) {
  (void)context;
  ready = true;
}

static int toy_whose(const struct memory_key *key) {
  return key->length > 0 ? key->bytes[0] % 3 - 1 : -1;
}

static int own_file; /* of all memory that this side shares */

static int toy_share(const struct memory_context *context, uint8_t *pointer,
                     uint64_t length, void *handle, int access,
                     struct memory_key *key) {
  (void)context, (void)pointer, (void)length, (void)handle, (void)access;
  *key = (struct memory_key){
      .length = 2, .fd_count = 2, .fds = {own_file, own_file}};
  return PERIGEE_OK;
}

/* The second byte of a key tells the size. */
static int toy_adopt(const struct memory_context *context,
                     const struct memory_key *key, uint64_t length, int access,
                     uint8_t **pointer, void **handle) {
  (void)context, (void)access;
  require(key->fd_count == 1 || key->fd_count == 2);
  for (uint32_t i = 0; i < key->fd_count; i++)
    require(fcntl(key->fds[i], F_GETFD) >= 0);
  uint64_t size = key->length == 2 ? UINT64_C(1) << key->bytes[1] % 16 : 0;
  if (size < length)
    return PERIGEE_PROTOCOL;
  *handle = *pointer = calloc(1, size > 0 ? size : 1);
  return PERIGEE_OK;
}

static void toy_leave(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void *handle) {
  (void)context, (void)length;
  require(pointer == handle);
  free(pointer);
}

static const struct memory_copies toy_copies = {.copy = toy_copy,
                                                .copy_all = toy_copy_all,
                                                .finished = toy_finished,
                                                .drain = toy_drain};
static const struct memory_sharing toy_sharing = {.whose = toy_whose,
                                                  .share = toy_share,
                                                  .adopt = toy_adopt,
                                                  .leave = toy_leave};
static const struct perigee_memory toy = {.name = "cuda",
                                          .open = toy_open,
                                          .copies = &toy_copies,
                                          .sharing = &toy_sharing};

/* ---- The scene ----------------------------------------------------------- */

/* An item of a transfer, or a fetch. */
struct item {
  struct job job;
  struct fetch fetch;
  struct payload remote, local;
  struct copies copies;
  const struct window *window; /* NULL: it is not posted, or all of it is */
  bool write, fetches;
};

struct scene {
  struct perigee_options options;
  struct shares shares;
  struct share *share;
  struct contexts memories;
  const struct memory_context *memory[4]; /* host, cuda:0, cuda:1, opaque */
  uint8_t *bytes[4];                      /* LOCAL of each */
  void *handles[4];
  struct area area;    /* of cuda:0 */
  struct board *board; /* the peer's, as the peer has it */
  struct place {
    uint64_t id, offset, block, count, stride;
  } * places; /* its lists, as in lists.c */
  int board_file, other_file;
  struct lane *lane;
  struct window windows[WINDOWS];
  struct item items[ITEMS];
  struct input *in;
  bool full; /* the peer's socket */
};
static struct scene scene;

static int scene_hand(struct perigee_session *session, const void *bytes,
                      uint32_t length, int fd, const char **why) {
  const struct scene *s = (const struct scene *)(void *)session;
  require(length == sizeof(struct word) && *(const uint32_t *)bytes > 0);
  require(fd < 0 || fcntl(fd, F_GETFD) >= 0);
  *why = "";
  return s->full ? PERIGEE_AGAIN : PERIGEE_OK;
}

static int scene_hand_pair(struct perigee_session *session, const void *bytes,
                           uint32_t length, const int fds[2],
                           const char **why) {
  require(fcntl(fds[1], F_GETFD) >= 0);
  return scene_hand(session, bytes, length, fds[0], why);
}

static void scene_memory(struct scene *s, int i, const char *name) {
  char reason[MEMORY_REASON];
  require(contexts_find(&s->memories, name, &s->memory[i], reason) == 0);
  if (s->memory[i]->kind->allocate)
    require(s->memory[i]->kind->allocate(s->memory[i], LOCAL, false,
                                         &s->bytes[i], &s->handles[i]) == 0);
  else
    s->bytes[i] = calloc(1, LOCAL);
}

static int file_new(uint64_t length) {
  int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  require(fd >= 0 && ftruncate(fd, (off_t)length) == 0 &&
          fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

static void scene_open(struct scene *s) {
  static const struct perigee_memory *const kinds[] = {
      &toy, &perigee_memory_opaque, NULL};
  static const char *const names[] = {"host", "cuda:0", "cuda:1", "opaque"};
  static const uint64_t who[2] = {1, 1};
  uint64_t lists = (sizeof(struct board) + WHOLE * 4 + 4095) & ~4095ull;
  uint64_t length = lists + LINK_LISTS;
  perigee_options_init(&s->options, sizeof s->options);
  s->options.mapped = 1 << 30;
  require(shares_open(&s->shares, &s->options) == PERIGEE_OK);
  s->share = share_join(&s->shares, who);
  s->memories.kinds = kinds;
  for (int i = 0; i < 4; i++)
    scene_memory(s, i, names[i]);
  own_file = file_new(4096);
  s->other_file = file_new(4096);
  s->board_file = file_new(length);
  s->board =
      mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, s->board_file, 0);
  require(s->board != MAP_FAILED);
  s->places = (struct place *)(void *)((uint8_t *)s->board + lists);
}

static void lane_begin(struct scene *s) {
  char reason[REASON];
  struct offer offer;
  struct lane_options o = {.operations = WHOLE,
                           .session = (struct perigee_session *)(void *)s,
                           .share = s->share,
                           .hand = scene_hand,
                           .hand_pair = scene_hand_pair,
                           .pairs = true,
                           .memories = &s->memories,
                           .now = &long_ago};
  require(transport_cuda.open(&o, &s->lane, &offer, reason) == PERIGEE_OK);
  memset(s->windows, 0, sizeof s->windows);
  memset(s->items, 0, sizeof s->items);
  memset(s->board, 0, sizeof *s->board);
  memset(s->places, 0, PLACES * sizeof *s->places);
  s->area = (struct area){.memory = s->memory[1],
                          .base = s->bytes[1],
                          .length = LOCAL,
                          .shared = true,
                          .rights = 3};
  ready = s->full = false;
}

/* ---- What the peer says --------------------------------------------------- */

/* A number that is small, or near a limit. */
static uint64_t number(struct scene *s, uint64_t below) {
  uint8_t how = take8(s->in);
  return how < 240 ? how % below : take_edge(s->in);
}

static int some_file(struct scene *s, uint32_t word) {
  uint8_t how = take8(s->in) % 16;
  bool expected = word == BOARD || word == MEMORY;
  int of = word == BOARD ? s->board_file : s->other_file;
  if (how == 0)
    of = open("/dev/null", O_RDWR | O_CLOEXEC);
  else if (how > 1 ? !expected : expected)
    return -1;
  else
    of = fcntl(of, F_DUPFD_CLOEXEC, 0);
  require(of >= 0);
  return of;
}

static void says_pair(struct scene *s, const struct word *w, uint32_t length,
                      int fd) {
  const int fds[] = {fd, fcntl(s->other_file, F_DUPFD_CLOEXEC, 0)};
  require(fds[1] >= 0);
  int status = transport_cuda.heard_pair(s->lane, w, length, fds);
  require(status <= 0);
  for (int i = 0; i < 2; i++)
    require(status == 0 || fcntl(fds[i], F_GETFD) < 0);
}

static void says(struct scene *s) {
  struct word w = {.word = take8(s->in) % (ASK + 2)};
  uint8_t how = take8(s->in);
  w.id = w.word == BOARD ? WHOLE : (uint32_t)number(s, 4);
  w.serial = number(s, 3);
  w.length = how & 1 ? 1 + number(s, LOCAL) : 1 << how % 13;
  if (w.word == BOARD)
    w.length = how & 1 ? LINK_LISTS : number(s, LINK_LISTS);
  w.access = how & 2 ? 3 : take8(s->in) % 4;
  w.key_length = how > 8 ? 2 : (uint32_t)number(s, 4);
  take(s->in, w.key, 2);
  uint32_t length = how == 255 ? take8(s->in) : (uint32_t)sizeof w;
  int fd = some_file(s, w.word);
  if (fd >= 0 && how % 4 == 3) {
    says_pair(s, &w, length, fd);
    return;
  }
  int status = transport_cuda.heard(s->lane, &w, length, fd);
  require(status <= 0 && (fd < 0 || status == 0 || fcntl(fd, F_GETFD) < 0));
}

static void place_is(struct scene *s, uint64_t i, uint64_t total) {
  uint64_t count = 1 + take8(s->in) % 3;
  s->places[i] = (struct place){number(s, 4), number(s, LOCAL),
                                total % count ? total : total / count,
                                total % count ? 1 : count, number(s, 128)};
}

static void scribbles(struct scene *s) {
  uint8_t how = take8(s->in);
  if (how % 8 == 7)
    place_is(s, how / 8 % PLACES, number(s, 256));
  atomic_store(&s->board->regions[how % WINDOWS], how / WINDOWS % 3);
  atomic_store(&s->board->marks[how % 4], how / 4 % 3);
  if (how == 255)
    atomic_store(&s->board->over, take8(s->in) & 1);
}

static void grants(struct scene *s) {
  uint8_t how = take8(s->in);
  struct window w = {.slot = how % WINDOWS,
                     .generation = how / WINDOWS % 3,
                     .access = take8(s->in) % 4,
                     .length = number(s, LOCAL)};
  uint32_t id = (uint32_t)number(s, 4);
  struct region_key key = {.length = how < 250 ? 4 : how % 8};
  memcpy(key.bytes, &id, sizeof id);
  if (how == 249)
    w.slot = (uint32_t)take_edge(s->in);
  if (transport_cuda.access->attach(s->lane, &w, &key) == PERIGEE_OK)
    s->windows[how % WINDOWS] = w;
}

/* ---- What this side does --------------------------------------------------- */

/* A shape of at most that many bytes, from `base` on. */
static struct payload shape(struct scene *s, uint8_t *base, uint64_t room,
                            uint64_t total) {
  uint64_t count = 1 + take8(s->in) % 8;
  struct payload p = {.base = base,
                      .block = total,
                      .count = 1,
                      .stride = total,
                      .total = total};
  if (total % count == 0 && total > 0) {
    p.count = count;
    p.block = total / count;
    uint64_t most = count > 1 ? (room - p.block) / (count - 1) : p.block;
    p.stride = take8(s->in) & 1 ? most : p.block;
  }
  return p;
}

static struct payload local_shape(struct scene *s, struct item *it,
                                  uint64_t total, int memory) {
  struct payload p = shape(s, s->bytes[memory], LOCAL, total);
  p.memory = s->memory[memory];
  it->copies = (struct copies){0};
  p.copies = memory > 0 ? &it->copies : NULL;
  return p;
}

static struct item *item_free(struct scene *s) {
  struct item *it = s->items;
  while (it < s->items + ITEMS &&
         (it->fetches || it->window || it->job.pending > 0))
    it++;
  if (it == s->items + ITEMS)
    return NULL;
  memset(it, 0, sizeof *it);
  return it;
}

static void item_post(struct scene *s, struct item *it) {
  int status = transport_cuda.jobs->post(s->lane, &it->job, it->window,
                                         &it->remote, &it->local, it->write);
  require(status <= 1);
  if (status != 0)
    it->window = NULL;
}

static void posts(struct scene *s) {
  uint8_t how = take8(s->in);
  const struct window *w = &s->windows[how % WINDOWS];
  struct item *it = item_free(s);
  bool write = how & 128;
  if (!it || !(w->access & (write ? PERIGEE_WRITE : PERIGEE_READ)) ||
      w->length == 0 || w->length > LOCAL)
    return;
  uint64_t offset = take16(s->in) % w->length;
  uint64_t total = 1 + take16(s->in) % (w->length - offset);
  it->local = local_shape(s, it, total, how / WINDOWS % 3);
  it->remote =
      shape(s, (uint8_t *)(uintptr_t)offset, w->length - offset, total);
  it->remote.memory = &memory_host;
  it->write = write;
  if (!transport_cuda.jobs->reaches(s->lane, w, &it->local))
    return;
  it->window = w;
  item_post(s, it);
}

/* A list of places of so many bytes in all, mostly. */
static struct source list_source(struct scene *s, uint64_t total) {
  uint8_t how = take8(s->in);
  uint64_t count = 1 + how % PLACES, left = total;
  for (uint64_t i = 0; i < count && how < 200; i++) {
    uint64_t bytes = i + 1 < count ? left / 2 : left;
    place_is(s, i, bytes);
    left -= bytes;
  }
  struct source source = {SOURCE_LIST, 0, total, 1, count};
  if (how > 240) {
    source.address = take_edge(s->in);
    source.stride = take_edge(s->in);
  }
  return source;
}

static void fetch_begins(struct scene *s) {
  struct item *it = item_free(s);
  uint8_t how = take8(s->in);
  if (!it)
    return;
  uint64_t total = 1 + take16(s->in) % LOCAL, count = 1 + how % 5;
  uint64_t address = number(s, 4) << 40 | (number(s, LOCAL) & 0xffff);
  struct source source = {1, address, total / count, count, total / count};
  total = total / count * count;
  if (how & 32)
    source.stride = number(s, 128);
  if (how > 240)
    source = (struct source){how % 3, take_edge(s->in), take_edge(s->in),
                             take_edge(s->in), take_edge(s->in)};
  if (total == 0)
    return;
  if (how % 8 == 7)
    source = list_source(s, total);
  it->local = local_shape(s, it, total, how / 64);
  it->fetch = (struct fetch){.source = source,
                             .into = &it->local,
                             .operation = take8(s->in) % 5,
                             .generation = take8(s->in) % 3,
                             .total = total,
                             .careful = how & 16};
  it->fetches = true;
}

/* Steps it; ends it if it is over, or if asked to. */
static void item_steps(struct scene *s, struct item *it, bool end) {
  const struct transport_payloads *p = transport_cuda.payloads;
  if (it->fetches && !end && it->fetch.done < it->fetch.total) {
    int64_t n = p->fetch(s->lane, &it->fetch);
    require(n <= (int64_t)it->fetch.total);
    end = n < 0;
  }
  end = end || (it->fetches && it->fetch.done == it->fetch.total);
  if (it->fetches && end)
    it->fetches = !p->fetch_end(s->lane, &it->fetch);
  if (it->window && end)
    it->window = NULL;
  else if (it->window)
    item_post(s, it);
  if (!it->fetches && end)
    transport_cuda.jobs->quiesce(s->lane, &it->job);
}

static void exports(struct scene *s) {
  uint8_t how = take8(s->in);
  struct grant grant = {how % WINDOWS, how, &s->area, 3, -1};
  struct region_key key;
  struct exposure e = {.operation = how % 4, .generation = 1};
  struct payload p = shape(s, s->bytes[1], LOCAL, 64);
  p.memory = s->memory[1];
  p.area = &s->area;
  struct extent places[2] = {{s->bytes[1], 64, 1, 64, 0, &s->area},
                             {s->bytes[1] + 64, 8, 2, 64, 64, &s->area}};
  struct payload list = {.memory = s->memory[1],
                         .block = 40,
                         .count = 2,
                         .total = 80,
                         .extents = places};
  s->full = how & 16;
  if (how & 32)
    transport_cuda.access->export(s->lane, &grant, &key);
  else if (how & 64)
    transport_cuda.payloads->expose(s->lane, &e, how & 128 ? &list : &p);
  else if (s->area.told)
    transport_cuda.access->forget(s->lane, &s->area);
  transport_cuda.payloads->conceal(s->lane, &e);
}

static void acts(struct scene *s) {
  uint8_t what = take8(s->in);
  switch (what % 12) {
  case 0:
  case 1:
  case 2:
    says(s);
    break;
  case 3:
    scribbles(s);
    break;
  case 4:
    grants(s);
    break;
  case 5:
  case 6:
    posts(s);
    break;
  case 7:
    fetch_begins(s);
    break;
  case 8:
    exports(s);
    break;
  case 9:
    ready = what & 16;
    transport_cuda.jobs->look(s->lane);
    break;
  case 10:
    transport_cuda.jobs->flush(s->lane);
    break;
  default:
    if (what > 250)
      transport_cuda.cut(s->lane);
    item_steps(s, &s->items[what / 12 % ITEMS], what > 200);
  }
}

static void lane_end(struct scene *s) {
  if (take8(s->in) & 1)
    transport_cuda.cut(s->lane);
  ready = true;
  for (int i = 0; i < ITEMS; i++)
    do
      item_steps(s, &s->items[i], true);
    while (s->items[i].fetches || s->items[i].job.pending > 0);
  transport_cuda.close(s->lane);
  for (int i = 0; i < ASKED; i++)
    require(asked[i].count == 0);
  for (int kind = 0; kind < SHARES; kind++)
    require(s->share->used[kind] == 0);
}

/* Returns the number of the next descriptor. */
static int file_next(void) {
  int fd = dup(own_file);
  close(fd);
  return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data, size};
  if (!scene.share)
    scene_open(&scene);
  int file = file_next();
  int64_t allocated = allocated_here();
  scene.in = &in;
  lane_begin(&scene);
  for (int i = 0; i < STEPS && in.size > 0; i++)
    acts(&scene);
  lane_end(&scene);
  require(allocated_here() <= allocated);
  require(file_next() == file);
  return 0;
}
