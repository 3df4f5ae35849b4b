/* SPDX-License-Identifier: Apache-2.0
 *
 * typed_costs_fuzz.c - values that the input chooses, as a typed payload. The
 * costs that the scanner computes are compared with the actual ones: the memory
 * with a sum made here, the steps with a simulation of LuaJIT's insertion of
 * keys.
 *
 * decoder: native/base/typed.c
 */
#include "fuzz.h"

#include "base/typed.h"

enum { ROOM = 1 << 18, NODES = 1024, DEEP = 6, STRINGS = 4096, FEW = 32 };
#define NONE UINT32_MAX

struct made {
  struct input in;
  uint8_t bytes[ROOM];
  size_t length;
  int values;
  uint64_t least, most;   /* memory, if equal strings are one, or all new */
  uint64_t steps, others; /* of tables that are counted, and of others */
  bool seen[STRINGS];
};

/* ---- A table's nodes ------------------------------------------------------ */

struct nodes {
  uint32_t size, free;
  uint32_t home[NODES], next[NODES];
  uint64_t steps;
};

static void nodes_begin(struct nodes *t, uint32_t pairs) {
  t->size = 2;
  while (t->size < pairs)
    t->size *= 2;
  t->free = t->size;
  t->steps = 0;
  for (uint32_t i = 0; i < t->size; i++)
    t->home[i] = t->next[i] = NONE;
}

/* A key in the home of another chain's key: the latter moves to a free node. */
static void evict(struct nodes *t, uint32_t from, uint32_t to) {
  uint32_t before = t->home[from];
  for (; t->next[before] != from; before = t->next[before])
    t->steps++;
  t->next[before] = to;
  t->home[to] = t->home[from];
  t->next[to] = t->next[from];
  t->next[from] = NONE;
}

/* lj_tab_set and lj_tab_newkey: searches the chain, then extends it. */
static void nodes_add(struct nodes *t, uint32_t home) {
  if (t->home[home] != NONE) {
    for (uint32_t i = home; i != NONE; i = t->next[i])
      t->steps++;
    do
      t->free--;
    while (t->home[t->free] != NONE);
    if (t->home[home] == home) {
      t->home[t->free] = home;
      t->next[t->free] = t->next[home];
      t->next[home] = t->free;
      return;
    }
    evict(t, home, t->free);
  }
  t->home[home] = home;
}

static uint32_t turned(uint64_t value, int bits) {
  return (uint32_t)(value << bits | value >> (32 - bits));
}

static uint32_t home_of(int32_t key, uint32_t size) {
  union {
    double number;
    uint32_t words[2];
  } as = {.number = key};
  uint32_t b = as.words[1] * 2, a = as.words[0] ^ b;
  b = turned(b, 14);
  a -= b;
  b = turned(b, 5) ^ a;
  return (b - turned(a, 13)) & (size - 1);
}

/* ---- Values -------------------------------------------------------------- */

static void put(struct made *m, const void *bytes, size_t length) {
  memcpy(m->bytes + m->length, bytes, length);
  m->length += length;
}

static void put_number(struct made *m, uint32_t value) {
  uint8_t two[] = {(uint8_t)(0xe0 | (value - 0xe0) >> 8),
                   (uint8_t)(value - 0xe0)};
  if (value < 0xe0)
    put(m, &(uint8_t){(uint8_t)value}, 1);
  else
    put(m, two, 2);
}

/* One of 4096 strings, of 1 to 40 bytes. */
static void put_string(struct made *m) {
  uint32_t which = take16(&m->in) % STRINGS, length = 1 + which % 40;
  uint8_t text[40] = {(uint8_t)which, (uint8_t)(which >> 8)};
  uint64_t memory = 24 + (length / 4 + 1) * 4 + 6;
  if (length == 1)
    text[0] = (uint8_t)(which / 40);
  put_number(m, 32 + length);
  put(m, text, length);
  m->most += memory;
  m->least += m->seen[which] ? 0 : memory;
  m->seen[which] = true;
}

/* A whole number whose home node is the one that the input chooses. */
static void put_key(struct made *m, struct nodes *t) {
  uint32_t home = take16(&m->in) % t->size;
  int32_t key = take16(&m->in);
  double number;
  while (home_of(key, t->size) != home)
    key++;
  number = key;
  put(m, key % 2 ? "\6" : "\7", 1);
  put(m, key % 2 ? (void *)&key : (void *)&number, key % 2 ? 4 : 8);
  nodes_add(t, home);
}

static void put_value(struct made *m, int depth, bool some);

static void put_pairs(struct made *m, uint32_t pairs, int depth) {
  struct nodes t;
  uint8_t numbers = take8(&m->in);
  nodes_begin(&t, pairs);
  for (uint32_t i = 0; i < pairs; i++) {
    if (m->in.size && take8(&m->in) <= numbers)
      put_key(m, &t);
    else
      put_string(m);
    put_value(m, depth, true);
  }
  *(pairs > FEW ? &m->steps : &m->others) += t.steps;
  require(pairs > FEW || t.steps <= FEW * FEW / 2);
}

static uint32_t take_count(struct input *in) {
  uint32_t count = take8(in);
  return count < 192 ? count / 16 : (count - 191) * 8;
}

static void put_table(struct made *m, int depth) {
  uint32_t slots = take_count(&m->in), pairs = take_count(&m->in), nodes = 0;
  put_number(m, 8 + (slots ? 2 : 0) + (pairs ? 1 : 0));
  if (slots)
    put_number(m, slots);
  if (pairs)
    put_number(m, pairs);
  while (pairs > nodes)
    nodes = nodes ? nodes * 2 : 2;
  m->least += 64 + 8 * slots + 24 * nodes;
  m->most += 64 + 8 * slots + 24 * nodes;
  for (; slots; slots--)
    put_value(m, depth, false);
  if (pairs)
    put_pairs(m, pairs, depth);
}

/* A simple value once the input or the room has run out. */
static void put_value(struct made *m, int depth, bool some) {
  uint8_t kind = take8(&m->in) % 8;
  bool room = m->in.size && m->length < ROOM / 2 && depth < DEEP;
  if (kind >= 5 && room) {
    put_table(m, depth + 1);
  } else if (kind == 4) {
    put(m, "\x10Perigee", 9);
    m->least += 24;
    m->most += 24;
  } else if (kind == 3) {
    put_string(m);
  } else {
    put_number(m, some ? 1 : kind % 3);
  }
}

/* ---- What is said of them ------------------------------------------------- */

/* In portions of so many bytes the result is the same. A portion is larger
 * only by the longest string. */
static void in_portions(const struct made *m, uint64_t bytes, int status,
                        const struct typed_costs *costs) {
  struct typed_costs sum;
  struct typed_scan *scan = typed_scan_begin(m->bytes, m->length);
  require(scan != NULL);
  while (!typed_scan_over(scan))
    require(typed_scan_step(scan, bytes) <= bytes + 64);
  require(typed_scan_end(scan, &sum) == status);
  require(sum.values == costs->values && sum.memory == costs->memory &&
          sum.steps == costs->steps);
}

static void check(const struct made *m) {
  struct typed_costs costs;
  int status = typed_scan(m->bytes, m->length, &costs);
  uint64_t results = 32 * (uint64_t)m->values;
  bool fine = m->values <= TYPED_VALUES &&
              costs.memory <= 8 * m->length + 65536 &&
              costs.steps <= m->length * 3 / 2 + 2048;
  require(costs.values == m->values);
  require(status == (fine ? m->values : PERIGEE_TOO_LARGE));
  if (m->length <= TYPED_FEW)
    require(m->most + results <= 65536);
  else
    require(costs.memory >= m->least + results &&
            costs.memory <= m->most + results);
  require(costs.steps >= m->steps);
  in_portions(m, 1 + m->length % 97, status, &costs);
  in_portions(m, 4096, status, &costs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct made m;
  m = (struct made){.in = {data, size < 4096 ? size : 4096}};
  do {
    put_value(&m, 0, false);
    m.values++;
  } while (m.in.size && m.length < ROOM / 2);
  check(&m);
  return 0;
}
