/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_world_clients.c - the clients of a cache's world. Each has some tasks,
 * which are puts, gets, and changes of entries:
 *
 *   a get     IDLE ASKING (FINDING its slab) COPYING, piece by piece, and maybe
 *             RELEASING IDLE; a small value comes with the answer
 *   another   IDLE COPYING, as above, from where the mapped directory says, over
 *             shared memory; the first one is MAPPING it
 *   a put     IDLE PUTTING IDLE
 *   another   IDLE RESERVING WRITING, piece by piece, ENDING by a seal or an
 *             abort
 *   a change  IDLE CHANGING IDLE
 *
 * A task of which a step fails is IDLE.
 */
#include <stdio.h>
#include <string.h>

#include "cache_world.h"
#include "support_inside.h"

enum { EVENTS = 8, PIECES = 4, SMALL = 2 << 10 };
static const int64_t MS = 1000000;

static struct world *world_of(const struct client *c) {
  return c->hand.world;
}

static uint8_t *memory_of(const struct client *c, const struct task *t) {
  return perigee_region_pointer(c->region) + (t - c->tasks) * MOST;
}

/* The part of a value that is the task's next piece. */
static struct perigee_slice piece_slice(const struct client *c,
                                        const struct task *t) {
  uint64_t from = t->length * t->piece / t->pieces;
  uint64_t end = t->length * (t->piece + 1) / t->pieces;
  return (struct perigee_slice){{c->region},
                                (uint64_t)(t - c->tasks) * MOST + from,
                                end - from,
                                1,
                                end - from};
}

/* Late by a little, or, more often in the midst of a copy, stopped until about
 * the end of a lease. */
static int64_t later(struct world *w, const struct task *t) {
  bool stops = roll(w, t->state == COPYING ? 8 : 40) == 0;
  int64_t late = stops ? 270 + (int64_t)roll(w, 60) : (int64_t)roll(w, 6);
  return w->now + late * MS;
}

static void idle(struct client *c, struct task *t) {
  t->state = IDLE;
  t->at = later(world_of(c), t);
}

/* ---- Submitting ---------------------------------------------------------- */

static int64_t some_timeout(struct world *w) {
  return (100 + (int64_t)roll(w, 1500)) * MS;
}

static void task_ended(struct client *c, struct task *t,
                       const struct perigee_event *e);

static void submitted(struct client *c, struct task *t, enum task_state state,
                      int operation) {
  struct perigee_event e = {.kind = PERIGEE_EVENT_DONE};
  t->state = state;
  HOLDS(world_of(c), operation != PERIGEE_INVALID);
  if (operation == PERIGEE_INLINE)
    task_ended(c, t, &e);
  else if (operation < 0)
    idle(c, t);
  else
    t->operation = operation;
}

static void call(struct client *c, struct task *t, enum task_state state,
                 struct perigee_message *m) {
  m->head = t->head;
  m->timeout = some_timeout(world_of(c));
  submitted(c, t, state, perigee_call(c->session, m));
}

static void call_numbers(struct client *c, struct task *t,
                         enum task_state state, enum method method,
                         const uint64_t *numbers, int count) {
  struct perigee_message m = {.method = (uint16_t)method,
                              .flags = PERIGEE_TYPED};
  m.length = numbers_write(t->head, HEAD, numbers, count, false);
  call(c, t, state, &m);
}

static void call_slice(struct client *c, struct task *t, enum task_state state,
                       enum method method, const uint64_t *numbers, int count,
                       struct perigee_slice slice) {
  struct perigee_message m = {
      .method = (uint16_t)method, .flags = PERIGEE_TYPED, .slice = slice};
  m.length = numbers_write(t->head, HEAD, numbers, count, true);
  call(c, t, state, &m);
}

/* Asks by a request of cache.h, of which the item is written up to `end`. */
static uint8_t *ask_begin(struct task *t, int what, int flags) {
  uint8_t *at = t->head;
  number_put(&at, 1, 1);
  number_put(&at, (uint64_t)what, 1);
  number_put(&at, (uint64_t)flags, 2);
  number_put(&at, 1, 4);
  return at;
}

static uint8_t *ask_key(struct task *t, int what, int flags) {
  uint8_t *at = ask_begin(t, what, flags);
  number_put(&at, NAME, 2);
  memcpy(at, name_of(t->key), NAME);
  return at + NAME;
}

static void ask(struct client *c, struct task *t, enum task_state state,
                const uint8_t *end) {
  struct perigee_message m = {.method = ASK,
                              .length = (uint64_t)(end - t->head)};
  call(c, t, state, &m);
}

/* ---- Values -------------------------------------------------------------- */

static void fill(uint8_t *to, const struct task *t) {
  for (uint64_t i = 0; i < t->length / 8; i++) {
    uint64_t word = value_word(t->key, t->stamp, i);
    memcpy(to + 8 * i, &word, 8);
  }
}

/* Is it what was sealed for the key, and no older than it may be? */
static void take(struct client *c, const struct task *t, const uint8_t *from) {
  struct world *w = world_of(c);
  const struct perigee_cache_place *p = &t->place;
  uint64_t version = t->base + p->version;
  HOLDS(w, version < VALUES && p->version >= t->least);
  const struct value *v = &w->values[version];
  HOLDS(w, v->stamp > 0 && v->key == t->key && v->length == p->length);
  HOLDS(w, v->stamp == p->checksum);
  for (uint64_t i = 0; i < v->length / 8; i++) {
    uint64_t word;
    memcpy(&word, from + 8 * i, 8);
    if (word != value_word(v->key, v->stamp, i))
      broken(w, "client %d takes other bytes than %s's from word %llu on",
             c->index, name_of(v->key), (unsigned long long)i);
  }
  w->tally.taken++;
}

/* ---- Gets ---------------------------------------------------------------- */

static void begin_get(struct client *c, struct task *t) {
  struct world *w = world_of(c);
  int small = roll(w, 2) ? SMALL >> 10 : 0;
  t->sent = hand_time(&c->hand);
  t->base = w->base;
  t->least = w->latest[t->key] + w->gone[t->key];
  w->tally.asked++;
  ask(c, t, ASKING, ask_key(t, PERIGEE_CACHE_LOCATE, small));
}

static void begin_copy(struct client *c, struct task *t) {
  memset(memory_of(c, t), 0xee, MOST);
  t->piece = 0;
  t->pieces = 1 + (uint32_t)roll(world_of(c), PIECES);
  t->state = COPYING;
}

static void answered(struct client *c, struct task *t,
                     const struct perigee_event *e) {
  struct world *w = world_of(c);
  const uint8_t *at = e->pointer + 12;
  HOLDS(w, e->length >= 12);
  idle(c, t);
  if (number_get(e->pointer + 8, 4) != 0)
    return;
  HOLDS(w, e->length >= 72);
  t->place = (struct perigee_cache_place){.slab = (uint32_t)number_get(at, 4),
                                          .offset = number_get(at + 8, 8),
                                          .length = number_get(at + 16, 8),
                                          .version = number_get(at + 24, 8),
                                          .checksum = number_get(at + 32, 8),
                                          .lease = number_get(at + 40, 8)};
  t->lease = (int64_t)number_get(at + 48, 8);
  if (!t->place.lease) {
    HOLDS(w, number_get(at + 56, 4) == t->place.length);
    take(c, t, at + 60);
    w->tally.small++;
    return;
  }
  if (w->rule == FROM_THE_ANSWER)
    t->sent = hand_time(&c->hand);
  HOLDS(w, t->place.length <= MOST);
  t->length = t->place.length;
  begin_copy(c, t);
}

static void find_slab(struct client *c, struct task *t) {
  char name[32];
  snprintf(name, sizeof name, "cache.slab.%u", t->place.slab);
  submitted(c, t, FINDING,
            perigee_lookup(c->session, name, some_timeout(world_of(c))));
}

static void copied(struct client *c, struct task *t);

static void copy_mapped(struct client *c, struct task *t,
                        const struct perigee_slice *local,
                        const struct perigee_slice *remote) {
  const uint8_t *from = perigee_remote_pointer(remote->remote);
  HOLDS(world_of(c), from);
  memcpy(perigee_region_pointer(c->region) + local->offset,
         from + remote->offset, local->length);
  t->at = later(world_of(c), t);
  copied(c, t);
}

static void go_on_copying(struct client *c, struct task *t) {
  uint32_t index = t->place.slab & 0xffff;
  HOLDS(world_of(c), index < SLABS);
  if (!c->slabs[index] || c->numbers[index] != t->place.slab) {
    find_slab(c, t);
    return;
  }
  struct perigee_slice local = piece_slice(c, t), remote = local;
  remote.remote = c->slabs[index];
  remote.offset = t->place.offset + t->length * t->piece / t->pieces;
  if (t->mapped) {
    copy_mapped(c, t, &local, &remote);
    return;
  }
  t->item = (struct perigee_transfer){local, remote};
  submitted(c, t, COPYING,
            perigee_transfer(c->session, PERIGEE_OP_READ, &t->item, 1, 0,
                             some_timeout(world_of(c))));
}

static void found(struct client *c, struct task *t,
                  const struct perigee_event *e) {
  uint32_t index = t->place.slab & 0xffff;
  c->slabs[index] = (struct perigee_remote *)(uintptr_t)e->pointer;
  c->numbers[index] = t->place.slab;
  t->state = COPYING;
}

/* The lease is looked at when all is there. Some copy again under it. */
static void copied_leased(struct client *c, struct task *t) {
  struct world *w = world_of(c);
  bool late = hand_time(&c->hand) - t->sent >= t->lease;
  w->tally.late += late;
  if (!late || w->rule == NO_LOOK_AFTERWARD)
    take(c, t, memory_of(c, t));
  if (!late && roll(w, 3) == 0)
    begin_copy(c, t);
  else if (roll(w, 4))
    t->state = RELEASING;
  else
    idle(c, t);
}

/* So is the directory. */
static void copied_mapped(struct client *c, struct task *t) {
  struct world *w = world_of(c);
  bool same =
      perigee_cache_same(c->view, name_of(t->key), NAME, &t->place) == 1;
  if (same || w->rule == NO_SECOND_LOOK)
    take(c, t, memory_of(c, t));
  w->tally.mapped += same;
  w->tally.changed += !same;
  idle(c, t);
}

static void copied(struct client *c, struct task *t) {
  if (++t->piece < t->pieces)
    return;
  if (t->mapped)
    copied_mapped(c, t);
  else
    copied_leased(c, t);
}

static void release(struct client *c, struct task *t) {
  uint8_t *at = ask_begin(t, PERIGEE_CACHE_RELEASE, 0);
  number_put(&at, t->place.lease, 8);
  ask(c, t, RELEASING, at);
}

/* ---- Gets by the mapped directory ---------------------------------------- */

/* If its request is answered at all, then by the cache of now. */
static void map_directory(struct client *c, struct task *t) {
  t->life = world_of(c)->tally.lives;
  submitted(c, t, MAPPING,
            perigee_lookup(c->session, "cache.directory.0",
                           some_timeout(world_of(c))));
}

static void mapped(struct client *c, struct task *t,
                   const struct perigee_event *e) {
  const uint8_t *piece = perigee_remote_pointer(
      (const struct perigee_remote *)(uintptr_t)e->pointer);
  HOLDS(world_of(c), piece);
  if (!c->view)
    c->view = perigee_cache_view_open();
  c->life = t->life;
  HOLDS(world_of(c), perigee_cache_view_piece(c->view, 0, piece) == PERIGEE_OK);
  idle(c, t);
}

/* The directory tells what is there now, unless its cache has died. */
static void look_up(struct client *c, struct task *t) {
  struct world *w = world_of(c);
  int status = perigee_cache_seen(c->view, name_of(t->key), NAME, &t->place);
  idle(c, t);
  if (c->life != w->tally.lives)
    return;
  HOLDS(w, status == PERIGEE_OK || status == PERIGEE_NOT_FOUND);
  HOLDS(w, status == PERIGEE_OK || !w->hard[t->key]);
  w->tally.asked++;
  if (status < 0)
    return;
  HOLDS(w, t->place.version == w->latest[t->key] && !w->gone[t->key]);
  t->mapped = true;
  t->base = w->base;
  t->least = t->place.version;
  t->length = t->place.length;
  begin_copy(c, t);
}

static void begin_mapped(struct client *c, struct task *t) {
  if (c->view)
    look_up(c, t);
  else
    map_directory(c, t);
}

/* ---- Puts ---------------------------------------------------------------- */

/* key, stamp, ttl, pin, if_absent, length. There are two sizes, so that a place
 * is soon another value's. */
static void draw_put(struct client *c, struct task *t, uint64_t *numbers,
                     uint64_t most) {
  struct world *w = world_of(c);
  uint64_t pin = roll(w, 12);
  t->stamp = ++w->stamps;
  t->length = most > SMALL && roll(w, 3) ? most - 8 * roll(w, 256)
                                         : 8 * (1 + roll(w, SMALL / 8));
  numbers[0] = (uint64_t)t->key;
  numbers[1] = t->stamp;
  numbers[2] = roll(w, 4) ? 0 : (1 + roll(w, 600)) * (uint64_t)MS;
  numbers[3] = pin == 0   ? PERIGEE_CACHE_HARD
               : pin == 1 ? PERIGEE_CACHE_SOFT
                          : PERIGEE_CACHE_UNPINNED;
  numbers[4] = roll(w, 5) == 0;
  numbers[5] = t->length;
}

static void begin_put(struct client *c, struct task *t) {
  uint64_t numbers[NUMBERS];
  draw_put(c, t, numbers, MOST);
  fill(memory_of(c, t), t);
  t->piece = 0;
  t->pieces = 1;
  call_slice(c, t, PUTTING, PUT, numbers, 5, piece_slice(c, t));
}

static void begin_small_put(struct client *c, struct task *t) {
  uint64_t numbers[NUMBERS];
  draw_put(c, t, numbers, SMALL);
  uint8_t *at = ask_key(t, PERIGEE_CACHE_PUT, 0);
  number_put(&at, 0, 8);
  number_put(&at, numbers[2], 8);
  number_put(&at, numbers[3], 1);
  number_put(&at, numbers[4], 1);
  number_put(&at, 0, 2);
  number_put(&at, t->stamp, 8);
  number_put(&at, t->length, 4);
  fill(at, t);
  ask(c, t, CHANGING, at + t->length);
}

static void begin_reserve(struct client *c, struct task *t) {
  struct world *w = world_of(c);
  uint64_t numbers[NUMBERS];
  draw_put(c, t, numbers, MOST);
  fill(memory_of(c, t), t);
  t->piece = 0;
  t->pieces = 1 + (uint32_t)roll(w, PIECES);
  call_numbers(c, t, RESERVING, RESERVE, numbers, NUMBERS);
}

static uint32_t pieces_before_seal(const struct client *c,
                                   const struct task *t) {
  bool all = world_of(c)->rule != SEALED_IN_PIECES;
  return all ? t->pieces : t->pieces - 1;
}

/* Some writers give up, and some say so. */
static void go_on_writing(struct client *c, struct task *t) {
  struct world *w = world_of(c);
  if (t->piece >= pieces_before_seal(c, t) || roll(w, 20) == 0) {
    bool seals = t->piece >= pieces_before_seal(c, t) && roll(w, 12);
    if (!seals && roll(w, 4) == 0)
      idle(c, t);
    else
      call_numbers(c, t, ENDING, seals ? SEAL : ABORT, &t->token, 1);
    return;
  }
  uint64_t numbers[] = {t->token, t->length * t->piece / t->pieces};
  call_slice(c, t, WRITING, WRITE, numbers, 2, piece_slice(c, t));
}

/* ---- Steps --------------------------------------------------------------- */

static void begin(struct client *c, struct task *t) {
  static const int changes[] = {PERIGEE_CACHE_DELETE, PERIGEE_CACHE_DELETE,
                                PERIGEE_CACHE_PIN, PERIGEE_CACHE_TOUCH};
  struct world *w = world_of(c);
  uint64_t what = roll(w, 20);
  t->key = (int)roll(w, KEYS);
  t->mapped = false;
  if (what < 5 && strcmp(w->transport, "shm") == 0)
    begin_mapped(c, t);
  else if (what < 10)
    begin_get(c, t);
  else if (what < 14)
    begin_put(c, t);
  else if (what < 16)
    begin_reserve(c, t);
  else if (what < 18)
    begin_small_put(c, t);
  else
    ask(c, t, CHANGING, ask_key(t, changes[roll(w, 4)], (int)roll(w, 3)));
}

static void step(struct client *c, struct task *t) {
  if (t->state == IDLE)
    begin(c, t);
  else if (t->state == COPYING)
    go_on_copying(c, t);
  else if (t->state == RELEASING)
    release(c, t);
  else
    go_on_writing(c, t);
}

static void task_ended(struct client *c, struct task *t,
                       const struct perigee_event *e) {
  enum task_state state = t->state;
  t->operation = -1;
  t->at = later(world_of(c), t);
  if (e->status < 0)
    t->state = IDLE;
  else if (state == MAPPING)
    mapped(c, t, e);
  else if (state == ASKING)
    answered(c, t, e);
  else if (state == FINDING)
    found(c, t, e);
  else if (state == COPYING)
    copied(c, t);
  else if (state == RESERVING) {
    HOLDS(world_of(c), numbers_read(e, &t->token, 1));
    t->state = WRITING;
  } else if (state == WRITING)
    t->piece++;
  else
    t->state = IDLE;
}

/* ---- Sessions ------------------------------------------------------------ */

static void connect_soon(struct client *c) {
  struct world *w = world_of(c);
  if (w->winding_up || c->connecting >= 0 || roll(w, 4))
    return;
  c->connecting =
      perigee_connect(c->engine, w->address, w->transport, 3000 * MS);
  HOLDS(w, c->connecting != PERIGEE_INVALID);
}

static void connected(struct client *c, const struct perigee_event *e) {
  HOLDS(world_of(c), e->operation == c->connecting);
  c->connecting = -1;
  if (e->status < 0)
    return;
  c->session = perigee_session(c->engine, e->session);
  c->lost = false;
  memset(c->slabs, 0, sizeof c->slabs);
}

/* All operations of the session have ended before. */
static void session_over(struct client *c) {
  for (struct task *t = c->tasks; t < c->tasks + TASKS; t++) {
    HOLDS(world_of(c), t->operation < 0);
    idle(c, t);
  }
  perigee_session_free(c->session);
  perigee_cache_view_close(c->view);
  c->session = NULL;
  c->view = NULL;
}

static void happened(struct client *c, const struct perigee_event *e) {
  narrate(world_of(c), "client %d: event %d of %d: %s", c->index, e->kind,
          e->operation, perigee_status_name(e->status));
  if (e->kind == PERIGEE_EVENT_CONNECTED) {
    connected(c, e);
    return;
  }
  if (e->kind == PERIGEE_EVENT_LOST) {
    c->lost = true;
    return;
  }
  struct task *t = c->tasks;
  while (t->operation != e->operation)
    HOLDS(world_of(c), ++t < c->tasks + TASKS);
  task_ended(c, t, e);
}

static bool tasks_are_idle(const struct client *c) {
  for (const struct task *t = c->tasks; t < c->tasks + TASKS; t++)
    if (t->state != IDLE)
      return false;
  return true;
}

static void session_turn(struct client *c) {
  struct world *w = world_of(c);
  if (!c->session)
    connect_soon(c);
  else if (c->lost && perigee_session_settled(c->session))
    session_over(c);
  else if (!c->lost && (w->winding_up ? tasks_are_idle(c) : chance(w, 0.001))) {
    perigee_session_close(c->session);
    c->lost = true;
  }
}

/* ---- Its turn, its life -------------------------------------------------- */

static void tasks_turn(struct client *c) {
  struct world *w = world_of(c);
  for (struct task *t = c->tasks; t < c->tasks + TASKS; t++)
    if (c->session && !c->lost && t->operation < 0 && t->at <= w->now &&
        !(w->winding_up && t->state == IDLE))
      step(c, t);
}

void client_turn(struct client *c) {
  struct world *w = world_of(c);
  struct perigee_event events[EVENTS];
  if (w->now < c->still_until)
    return;
  if (chance(w, w->winding_up ? 0.5 : 0.25))
    look_at_clock(c->engine);
  int n = perigee_poll(c->engine, events, EVENTS);
  HOLDS(w, n >= 0);
  for (int i = 0; i < n; i++)
    happened(c, &events[i]);
  session_turn(c);
  tasks_turn(c);
  if (!w->winding_up && chance(w, 0.005))
    c->still_until = w->now + (int64_t)roll(w, 400) * MS;
}

bool client_busy(const struct client *c) {
  return c->session || c->connecting >= 0;
}

void client_open(struct world *w, int index) {
  struct client *c = &w->clients[index];
  struct perigee_options o;
  *c = (struct client){.hand = c->hand, .index = index, .connecting = -1};
  for (int i = 0; i < TASKS; i++)
    c->tasks[i].operation = -1;
  engine_options(&c->hand, c->faults, sizeof c->faults, &o);
  HOLDS(w, perigee_engine_open(&o, &c->engine) == PERIGEE_OK);
  HOLDS(w, perigee_region_alloc(c->engine, NULL, TASKS * MOST, PERIGEE_LOCAL,
                                NULL, &c->region) == PERIGEE_OK);
}

void client_end(struct client *c) {
  perigee_cache_view_close(c->view);
  perigee_engine_close(c->engine);
}
