/* SPDX-License-Identifier: Apache-2.0
 *
 * lists_fuzz.c - lists of slices over memory that the CPU may touch, and over
 * memory that it must not touch, beside a model that knows where each byte is.
 * Exactly those lists are accepted that lie inside of their regions and, where
 * bytes are written, do not overlap. Payloads, cuts, transfers and blocks by
 * numbers copy exactly the bytes that the model copies. A list of places that
 * the owner of a payload tells, truly or not, is read from this process itself:
 * a true one is copied as it says, and one that is wrong ends in a failure.
 *
 * decoders: native/operation/spread.c native/memory/payload.c native/call/items.c native/transport/shm/shm_payload.c
 */
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuzz.h"

#include "call/items.h"
#include "operation/operations.h"
#include "transport/shm/shm.h"

enum { SIZE = 4096, SLICES = 40, TOTAL = 32 << 10 };
enum { HOST, OPAQUE, KINDS };
enum { FROM, TO, ENDS, TWO = 2, REGIONS = KINDS * ENDS * TWO };

struct scene {
  struct perigee_engine *engine;
  struct perigee_session *session;
  struct world world;
  struct perigee_region *regions[REGIONS];
  struct perigee_remote remotes[REGIONS];
  uint8_t bytes[REGIONS][SIZE]; /* what should be in them */
};

static struct scene scene;

/* ---- The model ----------------------------------------------------------- */

/* Slices, and where each of their bytes is. */
struct list {
  struct perigee_slice slices[SLICES];
  int where[SLICES]; /* their regions; -1: none */
  uint32_t n, total;
  uint32_t at[TOTAL]; /* the region times SIZE, and the offset */
};

typedef unsigned __int128 wide;

static bool slice_fits(const struct perigee_slice *s) {
  if (s->offset > SIZE)
    return false;
  if (s->count == 0 || s->length == 0)
    return true;
  wide total = (wide)s->length * s->count;
  wide end = (wide)(s->count - 1) * s->stride + s->length;
  return total <= PAYLOAD_MAX && end <= SIZE - s->offset;
}

static uint32_t slice_byte(const struct list *l, uint32_t i, uint64_t at) {
  const struct perigee_slice *s = &l->slices[i];
  uint64_t offset = s->offset + at / s->length * s->stride + at % s->length;
  return (uint32_t)((uint64_t)l->where[i] * SIZE + offset);
}

/* Adds a slice unless it is of too many bytes for the model. */
static void list_add(struct list *l, struct perigee_slice s, int where) {
  bool whole = !slice_is_list(&s) && where >= 0 && slice_fits(&s);
  uint64_t bytes = whole ? s.length * s.count : 0;
  if (l->n == SLICES || bytes > TOTAL - l->total)
    return;
  l->slices[l->n] = s;
  l->where[l->n++] = where;
  for (uint64_t i = 0; i < bytes; i++)
    l->at[l->total++] = slice_byte(l, l->n - 1, i);
}

/* What an entry is refused with, or PERIGEE_OK. */
static int entry_verdict(const struct list *l, uint32_t i, bool written) {
  const struct perigee_slice *s = &l->slices[i];
  if (slice_is_list(s) || l->where[i] < 0 ||
      l->where[i] / (ENDS * TWO) != l->where[0] / (ENDS * TWO))
    return PERIGEE_INVALID;
  if (!slice_fits(s))
    return PERIGEE_RANGE;
  return written && s->count > 1 && s->stride < s->length ? PERIGEE_INVALID
                                                          : PERIGEE_OK;
}

static int entries_verdict(const struct list *l, bool written) {
  int status = PERIGEE_OK;
  for (uint32_t i = 0; i < l->n && status == PERIGEE_OK; i++)
    status = entry_verdict(l, i, written);
  return status;
}

static bool list_overlaps(const struct list *l) {
  static uint8_t uses[REGIONS * SIZE];
  bool any = false;
  memset(uses, 0, sizeof uses);
  for (uint32_t i = 0; i < l->total; i++)
    any |= uses[l->at[i]]++ > 0;
  return any;
}

static uint64_t slice_end(const struct perigee_slice *s) {
  return s->offset + (s->count - 1) * s->stride + s->length;
}

/* Blocks that lie between the blocks of another slice with another stride may
 * be refused though they do not overlap. */
static bool slices_are_odd(const struct list *l, uint32_t a, uint32_t b) {
  const struct perigee_slice *s = &l->slices[a], *t = &l->slices[b];
  return s->count > 1 && t->count > 1 && s->length > 0 && t->length > 0 &&
         s->stride != t->stride && l->where[a] == l->where[b] &&
         s->offset < slice_end(t) && t->offset < slice_end(s);
}

static bool list_is_odd(const struct list *l) {
  for (uint32_t a = 0; a < l->n; a++)
    for (uint32_t b = a + 1; b < l->n; b++)
      if (slices_are_odd(l, a, b))
        return true;
  return false;
}

static bool slices_share(const struct list *l, uint32_t a, uint32_t b) {
  const struct perigee_slice *s = &l->slices[a], *t = &l->slices[b];
  for (uint64_t i = 0; i < s->length * s->count; i++)
    for (uint64_t k = 0; k < t->length * t->count; k++)
      if (slice_byte(l, a, i) == slice_byte(l, b, k))
        return true;
  return false;
}

/* ---- Lists that the input describes -------------------------------------- */

/* One that lies behind the slice before, or between its blocks. */
static void slice_beside(struct list *l, struct perigee_slice *s,
                         bool between) {
  const struct perigee_slice *before = l->n ? &l->slices[l->n - 1] : NULL;
  if (!before || slice_is_list(before))
    return;
  if (between)
    *s = *before;
  s->offset = before->offset + before->length;
}

static struct perigee_slice take_shape(struct input *in, struct list *l,
                                       uint8_t how) {
  struct perigee_slice s = {{NULL}, take16(in) % SIZE, take8(in), 1, 0};
  s.stride = s.length;
  if (how % 4 == 1) {
    s.count = take8(in) % 17;
    s.stride = s.length + take8(in) % 70 - (how & 64 ? 3 : 0);
  } else if (how % 4 > 1) {
    slice_beside(l, &s, how % 4 == 3);
  }
  return s;
}

static struct perigee_slice take_wild(struct input *in) {
  struct perigee_slice s = {
      {NULL}, take_edge(in), take_edge(in), take_edge(in), take_edge(in)};
  return s;
}

static void slice_name(struct perigee_slice *s, int where, bool remote) {
  if (remote)
    s->remote = where < 0 ? NULL : &scene.remotes[where];
  else
    s->region = where < 0 ? NULL : scene.regions[where];
}

/* Takes slices of memory of a kind, or lets some be wrong. */
static void take_list(struct input *in, struct list *l, int kind, int end,
                      bool remote) {
  uint32_t n = 1 + take8(in) % SLICES;
  l->n = l->total = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint8_t how = take8(in);
    int where = (kind * ENDS + end) * TWO + (how >> 5 & 1);
    struct perigee_slice s =
        how >= 0xfc ? take_wild(in) : take_shape(in, l, how);
    if (how == 0xf8 && !remote)
      where = REGIONS - 1 - where;
    if (how == 0xf9)
      where = -1;
    if (how == 0xfa)
      s.count = PERIGEE_LIST + 1;
    slice_name(&s, where, remote);
    list_add(l, s, where);
  }
  if (l->n == 0) {
    struct perigee_slice s = {{NULL}, 0, 0, 1, 0};
    slice_name(&s, (kind * ENDS + end) * TWO, remote);
    list_add(l, s, (kind * ENDS + end) * TWO);
  }
}

static struct perigee_slice list_of(const struct list *l) {
  return perigee_list(l->slices, l->n);
}

/* ---- Memory -------------------------------------------------------------- */

static void scene_fill(uint8_t seed) {
  for (int r = 0; r < REGIONS; r++) {
    for (uint32_t i = 0; i < SIZE; i++)
      scene.bytes[r][i] =
          (uint8_t)(i * 167 + (i >> 8) * 13 + (uint32_t)r * 57 + seed);
    require(perigee_region_write(scene.regions[r], 0, scene.bytes[r], SIZE) ==
            PERIGEE_OK);
  }
}

static void scene_check(void) {
  static uint8_t bytes[SIZE];
  for (int r = 0; r < REGIONS; r++) {
    require(perigee_region_read(scene.regions[r], 0, bytes, SIZE) ==
            PERIGEE_OK);
    require(memcmp(bytes, scene.bytes[r], SIZE) == 0);
  }
}

static uint8_t *model_byte(uint32_t at) {
  return &scene.bytes[at / SIZE][at % SIZE];
}

static void model_copy(const struct list *to, const struct list *from,
                       uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; i++)
    *model_byte(to->at[i]) = *model_byte(from->at[i]);
}

static uint8_t *address(uint32_t at) {
  return scene.regions[at / SIZE]->pointer + at % SIZE;
}

/* ---- Lists that are checked ----------------------------------------------- */

/* The payload has exactly these bytes of the list, in this order. */
static void expect_bytes(struct payload p, const struct list *l,
                         uint64_t begin) {
  uint64_t length;
  for (p.done = 0; p.done < p.total; p.done += length) {
    const uint8_t *run = payload_run(&p, &length);
    require(length > 0 && length <= p.total - p.done);
    for (uint64_t i = 0; i < length; i++)
      require(run + i == address(l->at[begin + p.done + i]));
  }
}

static void expect_refused(const struct list *l, int status) {
  uint32_t a, b;
  require(status == PERIGEE_INVALID);
  require(list_overlaps(l) || list_is_odd(l));
  require(sscanf(perigee_detail(scene.engine), "slices %u and %u of a list", &a,
                 &b) == 2);
  require(a > 0 && a < b && b <= l->n);
  require(slices_share(l, a - 1, b - 1) || slices_are_odd(l, a - 1, b - 1));
}

/* Makes a spread; NULL if it is refused, as it should be. */
static struct spread *spread_try(const struct list *l, bool written) {
  struct perigee_slice list = list_of(l);
  struct spread *s = NULL;
  int status = spread_make(scene.engine, &list, written, &s);
  int verdict = entries_verdict(l, written);
  if (verdict < 0) {
    require(status == verdict && !s);
    return NULL;
  }
  if (status < 0) {
    require(written && !s);
    expect_refused(l, status);
    return NULL;
  }
  require(s && s->payload.total == l->total);
  require(!written || !list_overlaps(l));
  expect_bytes(s->payload, l, 0);
  return s;
}

/* ---- Payloads ------------------------------------------------------------ */

static void move_all(struct payload to, struct payload from, uint64_t step) {
  struct copies copies[2] = {{.asked = to.done}, {.asked = from.done}};
  to.copies = &copies[0];
  from.copies = &copies[1];
  while (to.done < to.total) {
    bool busy = payload_busy(&to) || payload_busy(&from);
    require(payload_move(&to, &from, busy ? to.total : step) >= 0);
  }
  require(payload_quiet(&to) && payload_quiet(&from));
  require(from.done == from.total);
}

/* The same through other memory. */
static void move_through(struct payload to, struct payload from) {
  static uint8_t bytes[TOTAL];
  struct copies copies[2] = {{.asked = 0}, {.asked = 0}};
  to.copies = &copies[0];
  from.copies = &copies[1];
  while (from.done < from.total)
    require(payload_take(&from, bytes + from.done, from.total - from.done) >=
            0);
  while (to.done < to.total)
    require(payload_put(&to, bytes + to.done, to.total - to.done) >= 0);
  require(payload_quiet(&to) && payload_quiet(&from));
}

/* Both sides' bytes from one number to another, moved as they are or cut. */
static void spreads_move(struct input *in, const struct spread *to,
                         const struct spread *from, const struct list *l,
                         const struct list *k, uint64_t begin, uint64_t end) {
  struct spread *cut[2];
  uint8_t how = take8(in);
  struct payload a = to->payload, b = from->payload;
  a.done = b.done = begin;
  a.total = b.total = end;
  if (how & 1) {
    require(spread_cut(scene.engine, to, begin, end, true, &cut[0]) == 0);
    require(spread_cut(scene.engine, from, begin, end, false, &cut[1]) == 0);
    a = cut[0]->payload;
    b = cut[1]->payload;
    require(a.total == end - begin && b.total == end - begin);
    expect_bytes(a, l, begin);
    expect_bytes(b, k, begin);
  }
  if ((how & 3) == 3)
    move_through(a, b);
  else
    move_all(a, b, 1 + (how & 4 ? take8(in) : take16(in)));
  if (how & 1) {
    spread_free(cut[0]);
    spread_free(cut[1]);
  }
}

static struct list lists[4];

static void lists_are_moved(struct input *in) {
  struct list *to = &lists[0], *from = &lists[1];
  uint8_t how = take8(in);
  take_list(in, to, how & 1, TO, false);
  take_list(in, from, how >> 1 & 1, FROM, false);
  struct spread *a = spread_try(to, true), *b = spread_try(from, false);
  uint64_t both = least(to->total, from->total);
  if (a && b && both > 0) {
    uint64_t begin = take16(in) % both;
    uint64_t end = begin + 1 + take16(in) % (both - begin);
    scene_fill(how);
    model_copy(to, from, begin, end);
    spreads_move(in, a, b, to, from, begin, end);
    scene_check();
  }
  if (a)
    spread_free(a);
  if (b)
    spread_free(b);
}

/* ---- Transfers ----------------------------------------------------------- */

/* Makes both sides equally long, as far as one slice does. */
static void lists_level(struct input *in, struct list *a, struct list *b) {
  struct list *less = a->total < b->total ? a : b;
  bool remote = less == b;
  uint32_t more = less == a ? b->total - a->total : a->total - b->total;
  int where = less->where[0];
  if (more == 0 || more > SIZE || where < 0)
    return;
  struct perigee_slice s = {
      {NULL}, take16(in) % (SIZE - more + 1), more, 1, more};
  slice_name(&s, where, remote);
  list_add(less, s, where);
}

/* Moves what was made of items, one move after the other. */
static void moves_carry_out(struct input *in, int operation,
                            const struct moves *m) {
  bool widen = take8(in) & 1;
  uint64_t step = 1 + take16(in);
  struct payload remote, local;
  for (uint32_t i = 0; i < m->count; i++) {
    require(move_payloads(scene.session, operation, m, i, &remote, &local) ==
            PERIGEE_OK);
    if (widen) {
      move_widen(m, i, &remote, &local);
      i = m->move[i].last;
    }
    if (operation == PERIGEE_OP_READ)
      move_all(local, remote, step);
    else
      move_all(remote, local, step);
  }
}

/* What an item is refused with, or PERIGEE_OK; both sides are lists. */
static int item_verdict(const struct list *local, const struct list *remote,
                        bool read) {
  int status = entries_verdict(local, read);
  if (status == PERIGEE_OK && read && list_overlaps(local))
    status = PERIGEE_INVALID;
  if (status == PERIGEE_OK)
    status = entries_verdict(remote, !read);
  if (status == PERIGEE_OK && local->total != remote->total)
    status = PERIGEE_INVALID;
  return status == PERIGEE_OK && !read && list_overlaps(remote)
             ? PERIGEE_INVALID
             : status;
}

/* Makes the moves of an item; NULL if it is refused, as it should be. */
static struct moves *moves_try(int operation, const struct list *local,
                               const struct list *remote) {
  bool read = operation == PERIGEE_OP_READ;
  struct perigee_transfer item = {list_of(local), list_of(remote)};
  struct moves *m = NULL;
  int status = moves_make(scene.session, operation, &item, 1, &m);
  bool odd = list_is_odd(read ? local : remote);
  require(status == item_verdict(local, remote, read) ||
          (status == PERIGEE_INVALID && odd));
  require((status == PERIGEE_OK) == (m != NULL));
  return m;
}

static void moves_end(struct input *in, int operation, struct moves *m,
                      const struct list *local, const struct list *remote) {
  bool read = operation == PERIGEE_OP_READ;
  scene_fill(take8(in));
  model_copy(read ? local : remote, read ? remote : local, 0, local->total);
  moves_carry_out(in, operation, m);
  moves_free(m);
  scene_check();
}

static void items_are_moved(struct input *in) {
  struct list *local = &lists[0], *remote = &lists[1];
  uint8_t how = take8(in);
  int operation = how & 2 ? PERIGEE_OP_READ : PERIGEE_OP_WRITE;
  take_list(in, local, how & 1, FROM, false);
  take_list(in, remote, HOST, TO, true);
  lists_level(in, local, remote);
  struct moves *m = moves_try(operation, local, remote);
  if (m)
    moves_end(in, operation, m, local, remote);
}

/* ---- Blocks by numbers ---------------------------------------------------- */

enum { COMB = 6 }; /* slices, and blocks of each, at most */

static void take_comb(struct input *in, struct list *l, int kind, int end,
                      bool remote, uint64_t block) {
  uint8_t how = take8(in);
  uint32_t n = 1 + take8(in) % COMB, gap = take8(in) % 24;
  uint64_t count = 1 + take8(in) % COMB;
  l->n = l->total = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t k = how & 1 ? n - 1 - i : i;
    int where = (kind * ENDS + end) * TWO + (how & 2 ? (int)(i & 1) : 0);
    uint64_t row = count * (block + gap);
    struct perigee_slice s = {{NULL}, k * row, block, count, block + gap};
    if (how & 4) { /* between each other's blocks */
      s.offset = k * block;
      s.stride = n * block + gap;
    }
    if (how >= 0xe0 && i == how % n)
      s.length += take8(in) % 3;
    slice_name(&s, where, remote);
    list_add(l, s, where);
  }
}

static bool comb_is_even(const struct list *l) {
  bool even = l->slices[0].length > 0;
  for (uint32_t i = 1; i < l->n; i++)
    even &= l->slices[i].length == l->slices[0].length;
  return even;
}

static void block_add(struct list *out, const struct list *l, uint32_t i,
                      uint32_t number) {
  struct perigee_slice s = l->slices[i];
  s.offset += number * s.stride;
  s.count = 1;
  list_add(out, s, l->where[i]);
}

/* Names the blocks of these numbers; false: there is no such number. */
static bool blocks_pick(struct list *out, const struct list *l,
                        const uint32_t *numbers, uint32_t n, bool by_number) {
  uint32_t outer = by_number ? n : l->n, inner = by_number ? l->n : n;
  out->n = out->total = 0;
  for (uint32_t i = 0; i < l->n; i++)
    for (uint32_t k = 0; k < n; k++)
      if (numbers[k] >= l->slices[i].count)
        return false;
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t k = 0; k < inner; k++)
      block_add(out, l, by_number ? k : i, numbers[by_number ? i : k]);
  return n > 0;
}

static void blocks_post(struct input *in, int operation,
                        const struct numbered *b, const struct list *local,
                        const struct list *remote) {
  uint32_t here[COMB], there[COMB], n = take8(in) % (COMB + 1);
  const uint32_t *const numbers[SIDES] = {here, there};
  struct list *from = &lists[2], *to = &lists[3];
  struct moves *m = NULL;
  for (uint32_t i = 0; i < COMB; i++) {
    here[i] = take8(in) % (COMB + 1);
    there[i] = take8(in) % (COMB + 1);
  }
  bool by_number = local->n == remote->n &&
                   local->slices[0].length == remote->slices[0].length;
  bool good = blocks_pick(from, local, here, n, by_number);
  good &= blocks_pick(to, remote, there, n, by_number);
  good = good && from->total == to->total &&
         !list_overlaps(operation == PERIGEE_OP_READ ? from : to);
  int status = moves_of_blocks(scene.session, operation, b, numbers, n, &m);
  require(status == (good ? PERIGEE_OK : PERIGEE_INVALID));
  if (good)
    moves_end(in, operation, m, from, to);
}

static void blocks_are_moved(struct input *in) {
  struct list *local = &lists[0], *remote = &lists[1];
  uint8_t how = take8(in);
  int operation = how & 2 ? PERIGEE_OP_READ : PERIGEE_OP_WRITE;
  uint64_t block = 1 + take8(in) % 64;
  take_comb(in, local, how & 1, FROM, false, how & 4 ? 2 * block : block);
  take_comb(in, remote, HOST, TO, true, block);
  struct moves *m = moves_try(operation, local, remote);
  if (!m)
    return;
  moves_free(m);
  struct perigee_transfer item = {list_of(local), list_of(remote)};
  struct numbered *b = blocks_make(&item);
  require((b != NULL) == (comb_is_even(local) && comb_is_even(remote)));
  if (b)
    blocks_post(in, operation, b, local, remote);
  free(b);
}

/* ---- Places that an owner tells ------------------------------------------- */

enum { ARENA = 16 << 10, PLACES_MOST = 80, FETCHED = 64 << 10 };

/* A lane that reads this process as its peer's. */
struct reader {
  struct lane lane;
  uint64_t piece;
  uint8_t *arena, *table; /* what is behind them cannot be read */
};

static struct reader reader;

static uint8_t *guarded(uint64_t length) {
  uint8_t *bytes = mmap(NULL, length + SIZE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(bytes != MAP_FAILED);
  require(mprotect(bytes + length, SIZE, PROT_NONE) == 0);
  return bytes;
}

static void reader_open(void) {
  struct lane *lane = &reader.lane;
  lane->pulls = true;
  lane->options.peer_pid = getpid();
  lane->options.peer_pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
  lane->options.piece = &reader.piece;
  lane->peer = lane->own = (struct outbox *)(void *)guarded(
      (sizeof *lane->own + SIZE - 1) / SIZE * SIZE);
  memset(lane->peer_known, 0xff, sizeof lane->peer_known);
  reader.arena = guarded(ARENA);
  reader.table = guarded(2 * SIZE);
  for (uint32_t i = 0; i < ARENA; i++)
    reader.arena[i] = (uint8_t)(i * 167 + (i >> 8) * 13);
}

/* What an owner tells: n places, of which it says that they are `number`. */
struct telling {
  struct extent *list; /* at the end of what can be read */
  uint32_t n;
  uint64_t number, total;
  bool live; /* it has not given the payload up */
};

/* Makes places that are true. */
static void take_places(struct input *in, struct telling *t) {
  for (uint32_t i = 0; i < t->n; i++) {
    uint64_t block = 1 + take8(in), count = 1;
    uint64_t at = take16(in) % ARENA, stride = block;
    if (block % 4 == 0) {
      count = 1 + take8(in) % 4;
      stride = take8(in) * UINT64_C(2);
    }
    t->list[i] = (struct extent){reader.arena + at, block, count, stride,
                                 t->total,          NULL};
    t->total += block * count;
  }
}

/* Changes a word of a place to any number, or by little. */
static void take_lie(struct input *in, struct telling *t) {
  uint64_t value = take_edge(in);
  uint8_t which = take8(in) % t->n, field = take8(in) % 5, near = take8(in);
  uint8_t *word = (uint8_t *)&t->list[which] + 8 * field;
  if (near & 1) {
    memcpy(&value, word, 8);
    value += (uint64_t)near - 128;
  }
  memcpy(word, &value, 8);
}

static struct telling take_telling(struct input *in, uint8_t how) {
  struct telling t = {.n = 1 + take8(in) % PLACES_MOST, .live = !(how & 32)};
  t.list = (struct extent *)(void *)(reader.table + 2 * SIZE) - t.n;
  take_places(in, &t);
  for (uint8_t lies = take8(in) % 4; lies > 1; lies--)
    take_lie(in, &t);
  t.number = t.n;
  if (how & 1)
    t.number = how & 2 ? take_edge(in) : t.n + take8(in) % 3 - 1;
  if (how & 4)
    t.total = 1 + (t.total + take16(in)) % (how & 8 ? SIZE : FETCHED);
  t.total = least(t.total, FETCHED);
  return t;
}

/* What is certain: so many bytes are those of the arena; and no more can be had
 * (refused). open: more places are told than the table has, and a step may come
 * to its end before it is to. */
struct certain {
  uint64_t bytes;
  bool refused, open;
  uint8_t content[FETCHED];
};

/* Takes over the bytes of a place, as far as they are in the arena. */
static bool place_take(struct certain *c, const struct extent *p,
                       uint64_t total) {
  for (uint64_t i = 0; i < p->block * p->count && c->bytes < total; i++) {
    uint64_t at = (uint64_t)(uintptr_t)p->base + i / p->block * p->stride +
                  i % p->block - (uint64_t)(uintptr_t)reader.arena;
    if (at >= ARENA)
      return false;
    c->content[c->bytes++] = reader.arena[at];
  }
  return true;
}

static void certain_find(struct certain *c, const struct telling *t) {
  uint64_t n = least(t->number, t->n);
  c->bytes = 0;
  c->open = t->number > t->n;
  for (uint64_t i = 0; i < n && c->bytes < t->total; i++) {
    const struct extent *p = &t->list[i];
    wide length = (wide)p->block * p->count;
    c->refused = p->begin > c->bytes || length == 0 || length > PAYLOAD_MAX ||
                 p->count > PAYLOAD_MAX || p->stride > PAYLOAD_MAX;
    if (c->refused || p->begin != c->bytes || !place_take(c, p, t->total))
      return;
  }
  c->refused = c->bytes < t->total;
}

/* Brings what can be had. Returns its end: 1, or a status. */
static int64_t fetch_all(struct fetch *f) {
  int64_t got = 1;
  for (int i = 0; got >= 0 && f->done < f->total; i++) {
    require(i < 100000);
    got = shm_fetch(&reader.lane, f);
  }
  while (!shm_fetch_end(&reader.lane, f))
    payload_quiet(f->into);
  return got;
}

static void expect_fetched(const struct telling *t, const struct fetch *f,
                           int64_t end, const uint8_t *bytes) {
  static struct certain c;
  certain_find(&c, t);
  require(f->done <= t->total);
  require(end >= 0 || end == (t->live ? PERIGEE_PROTOCOL : PERIGEE_CANCELLED));
  if (c.bytes == t->total && !c.open)
    require(end >= 0);
  if (c.refused)
    require(end < 0 && f->done <= c.bytes);
  require(memcmp(bytes, c.content, least(f->done, c.bytes)) == 0);
}

static struct fetch fetch_of(const struct telling *t, struct payload *into) {
  reader.lane.own->marks[3] = t->live ? 7 : 0;
  return (struct fetch){
      .source = {SOURCE_PLACES, (uintptr_t)t->list, t->total, 1, t->number},
      .into = into,
      .operation = 3,
      .generation = 7,
      .total = t->total};
}

/* Into memory of exactly that length, or of a region that the CPU must not
 * touch. */
static void places_are_read(struct input *in) {
  uint8_t how = take8(in);
  struct telling t = take_telling(in, how);
  bool opaque = how & 16 && t.total <= SIZE;
  struct perigee_region *r = scene.regions[OPAQUE * ENDS * TWO];
  uint8_t *bytes = malloc(t.total);
  struct copies copies = {0};
  struct payload into;
  payload_bytes(&into, opaque ? r->pointer : bytes, t.total);
  into.memory = opaque ? r->memory : &memory_host;
  into.copies = &copies;
  struct fetch f = fetch_of(&t, &into);
  reader.piece = how & 128 ? 1 + take16(in) : 1 << 20;
  int64_t end = fetch_all(&f);
  if (opaque)
    require(perigee_region_read(r, 0, bytes, t.total) == PERIGEE_OK);
  expect_fetched(&t, &f, end, bytes);
  free(bytes);
}

/* ---- The scene ------------------------------------------------------------ */

static void scene_open(void) {
  scene.engine = engine_of(&scene.world, "", false);
  scene.session = calloc(1, sizeof *scene.session);
  scene.session->engine = scene.engine;
  for (int i = 0; i < REGIONS; i++) {
    bool host = i / (ENDS * TWO) == HOST;
    require(perigee_region_alloc(scene.engine, NULL, SIZE, 3,
                                 host ? "host" : "opaque",
                                 &scene.regions[i]) == PERIGEE_OK);
    scene.remotes[i] = (struct perigee_remote){
        .session = scene.session,
        .users = 1,
        .number = (uint64_t)i + 1,
        .window = {.slot = (uint32_t)i,
                   .access = 3,
                   .length = SIZE,
                   .pointer = host ? scene.regions[i]->pointer : NULL}};
  }
  reader_open();
}

/* Nothing is kept, and no region is in use. */
static int64_t scene_rest(void) {
  for (int i = 0; i < REGIONS; i++)
    require(scene.regions[i]->users == 0 && scene.regions[i]->prepared == 0);
  spares_close(&scene.engine->spares);
  free(reader.lane.spare);
  reader.lane.spare = NULL;
  return allocated_by(scene.engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const parts[])(struct input *) = {
      lists_are_moved, items_are_moved, blocks_are_moved, places_are_read};
  struct input in = {data, size};
  if (!scene.engine)
    scene_open();
  int64_t before = scene_rest();
  parts[take8(&in) % 4](&in);
  require(scene_rest() == before);
  return 0;
}
