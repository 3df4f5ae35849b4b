/* SPDX-License-Identifier: Apache-2.0
 *
 * cache_world_clients.c - the clients of a cache's world. Each has some tasks,
 * which are puts, gets, and changes of entries:
 *
 *   a get     IDLE ASKING (FINDING its slab) COPYING, piece by piece, and maybe
 *             RELEASING IDLE; a small value comes with the answer
 *   another   IDLE COPYING, as above, from where the mapped directory says: over
 *             shared memory, when one was MAPPING it
 *   a put     IDLE PUTTING IDLE
 *   another   IDLE RESERVING WRITING, piece by piece, ENDING by a seal or an abort
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

static uint8_t *memory_of(const struct client *c, const struct task *j) {
  return perigee_region_pointer(c->region) + (j - c->tasks) * MOST;
}

/* The part of a value that is the task's next piece. */
static struct perigee_slice piece_slice(const struct client *c,
                                        const struct task *j) {
  uint64_t from = j->length * j->piece / j->pieces;
  uint64_t end = j->length * (j->piece + 1) / j->pieces;
  return (struct perigee_slice){{c->region},
                                (uint64_t)(j - c->tasks) * MOST + from,
                                end - from,
                                1,
                                end - from};
}

/* Late by a little, or, more often in the midst of a copy, stopped until about
 * the end of a lease. */
static int64_t later(struct world *w, const struct task *j) {
  bool stops = roll(w, j->state == COPYING ? 8 : 40) == 0;
  int64_t late = stops ? 270 + (int64_t)roll(w, 60) : (int64_t)roll(w, 6);
  return w->now + late * MS;
}

static void idle(struct client *c, struct task *j) {
  j->state = IDLE;
  j->at = later(world_of(c), j);
}

/* ---- Submitting ------------------------------------------------------------- */

static int64_t some_timeout(struct world *w) {
  return (100 + (int64_t)roll(w, 1500)) * MS;
}

static void task_ended(struct client *c, struct task *j,
                       const struct perigee_event *e);

static void submitted(struct client *c, struct task *j, enum task_state state,
                      int operation) {
  struct perigee_event e = {.kind = PERIGEE_EVENT_DONE};
  j->state = state;
  HOLDS(world_of(c), operation != PERIGEE_INVALID);
  if (operation == PERIGEE_INLINE)
    task_ended(c, j, &e);
  else if (operation < 0)
    idle(c, j);
  else
    j->operation = operation;
}

static void call(struct client *c, struct task *j, enum task_state state,
                 struct perigee_message *m) {
  m->head = j->head;
  m->timeout = some_timeout(world_of(c));
  submitted(c, j, state, perigee_call(c->session, m));
}

static void call_numbers(struct client *c, struct task *j,
                         enum task_state state, enum method method,
                         const uint64_t *numbers, int count) {
  struct perigee_message m = {.method = (uint16_t)method,
                              .flags = PERIGEE_TYPED};
  m.length = numbers_write(j->head, HEAD, numbers, count, false);
  call(c, j, state, &m);
}

static void call_slice(struct client *c, struct task *j, enum task_state state,
                       enum method method, const uint64_t *numbers, int count,
                       struct perigee_slice slice) {
  struct perigee_message m = {
      .method = (uint16_t)method, .flags = PERIGEE_TYPED, .slice = slice};
  m.length = numbers_write(j->head, HEAD, numbers, count, true);
  call(c, j, state, &m);
}

/* Asks by a request of cache.h, of which the item is written up to `end`. */
static uint8_t *ask_begin(struct task *j, int what, int flags) {
  uint8_t *at = j->head;
  number_put(&at, 1, 1);
  number_put(&at, (uint64_t)what, 1);
  number_put(&at, (uint64_t)flags, 2);
  number_put(&at, 1, 4);
  return at;
}

static uint8_t *ask_key(struct task *j, int what, int flags) {
  uint8_t *at = ask_begin(j, what, flags);
  number_put(&at, NAME, 2);
  memcpy(at, name_of(j->key), NAME);
  return at + NAME;
}

static void ask(struct client *c, struct task *j, enum task_state state,
                const uint8_t *end) {
  struct perigee_message m = {.method = ASK,
                              .length = (uint64_t)(end - j->head)};
  call(c, j, state, &m);
}

/* ---- Values ------------------------------------------------------------------ */

static void fill(uint8_t *to, const struct task *j) {
  for (uint64_t i = 0; i < j->length / 8; i++) {
    uint64_t word = value_word(j->key, j->stamp, i);
    memcpy(to + 8 * i, &word, 8);
  }
}

/* Is it what was sealed for the key, and no older than it may be? */
static void accept(struct client *c, const struct task *j,
                   const uint8_t *from) {
  struct world *w = world_of(c);
  const struct perigee_cache_place *p = &j->place;
  uint64_t version = j->base + p->version;
  HOLDS(w, version < VALUES && p->version >= j->least);
  const struct value *v = &w->values[version];
  HOLDS(w, v->stamp > 0 && v->key == j->key && v->length == p->length);
  HOLDS(w, v->stamp == p->checksum);
  for (uint64_t i = 0; i < v->length / 8; i++) {
    uint64_t word;
    memcpy(&word, from + 8 * i, 8);
    if (word != value_word(v->key, v->stamp, i))
      broken(w, "client %d accepts other bytes than %s's from word %llu on",
             c->index, name_of(v->key), (unsigned long long)i);
  }
  w->tally.accepted++;
}

/* ---- Gets -------------------------------------------------------------------- */

static void begin_get(struct client *c, struct task *j) {
  struct world *w = world_of(c);
  int small = roll(w, 2) ? SMALL >> 10 : 0;
  j->sent = hand_time(&c->hand);
  j->base = w->base;
  j->least = w->latest[j->key] + w->gone[j->key];
  w->tally.asked++;
  ask(c, j, ASKING, ask_key(j, PERIGEE_CACHE_LOCATE, small));
}

static void begin_copy(struct client *c, struct task *j) {
  memset(memory_of(c, j), 0xee, MOST);
  j->piece = 0;
  j->pieces = 1 + (uint32_t)roll(world_of(c), PIECES);
  j->state = COPYING;
}

static void answered(struct client *c, struct task *j,
                     const struct perigee_event *e) {
  struct world *w = world_of(c);
  const uint8_t *at = e->pointer + 12;
  HOLDS(w, e->length >= 12);
  idle(c, j);
  if (number_get(e->pointer + 8, 4) != 0)
    return;
  HOLDS(w, e->length >= 72);
  j->place = (struct perigee_cache_place){.slab = (uint32_t)number_get(at, 4),
                                          .offset = number_get(at + 8, 8),
                                          .length = number_get(at + 16, 8),
                                          .version = number_get(at + 24, 8),
                                          .checksum = number_get(at + 32, 8),
                                          .lease = number_get(at + 40, 8)};
  j->lease = (int64_t)number_get(at + 48, 8);
  if (!j->place.lease) {
    HOLDS(w, number_get(at + 56, 4) == j->place.length);
    accept(c, j, at + 60);
    w->tally.small++;
    return;
  }
  if (w->rule == FROM_THE_ANSWER)
    j->sent = hand_time(&c->hand);
  HOLDS(w, j->place.length <= MOST);
  j->length = j->place.length;
  begin_copy(c, j);
}

static void find_slab(struct client *c, struct task *j) {
  char name[32];
  snprintf(name, sizeof name, "cache.slab.%u", j->place.slab);
  submitted(c, j, FINDING,
            perigee_lookup(c->session, name, some_timeout(world_of(c))));
}

static void copied(struct client *c, struct task *j);

static void copy_mapped(struct client *c, struct task *j,
                        const struct perigee_slice *local,
                        const struct perigee_slice *remote) {
  const uint8_t *from = perigee_remote_pointer(remote->remote);
  HOLDS(world_of(c), from);
  memcpy(perigee_region_pointer(c->region) + local->offset,
         from + remote->offset, local->length);
  j->at = later(world_of(c), j);
  copied(c, j);
}

static void go_on_copying(struct client *c, struct task *j) {
  uint32_t index = j->place.slab & 0xffff;
  HOLDS(world_of(c), index < SLABS);
  if (!c->slabs[index] || c->numbers[index] != j->place.slab) {
    find_slab(c, j);
    return;
  }
  struct perigee_slice local = piece_slice(c, j), remote = local;
  remote.remote = c->slabs[index];
  remote.offset = j->place.offset + j->length * j->piece / j->pieces;
  if (j->mapped) {
    copy_mapped(c, j, &local, &remote);
    return;
  }
  j->item = (struct perigee_transfer){local, remote};
  submitted(c, j, COPYING,
            perigee_transfer(c->session, PERIGEE_OP_READ, &j->item, 1, 0,
                             some_timeout(world_of(c))));
}

static void found(struct client *c, struct task *j,
                  const struct perigee_event *e) {
  uint32_t index = j->place.slab & 0xffff;
  c->slabs[index] = (struct perigee_remote *)(uintptr_t)e->pointer;
  c->numbers[index] = j->place.slab;
  j->state = COPYING;
}

/* The lease is looked at when all is there. Some copy again under it. */
static void copied_leased(struct client *c, struct task *j) {
  struct world *w = world_of(c);
  bool late = hand_time(&c->hand) - j->sent >= j->lease;
  w->tally.late += late;
  if (!late || w->rule == NO_LOOK_AFTERWARD)
    accept(c, j, memory_of(c, j));
  if (!late && roll(w, 3) == 0)
    begin_copy(c, j);
  else if (roll(w, 4))
    j->state = RELEASING;
  else
    idle(c, j);
}

/* So is the directory. */
static void copied_mapped(struct client *c, struct task *j) {
  struct world *w = world_of(c);
  bool same =
      perigee_cache_same(c->view, name_of(j->key), NAME, &j->place) == 1;
  if (same || w->rule == NO_SECOND_LOOK)
    accept(c, j, memory_of(c, j));
  w->tally.mapped += same;
  w->tally.changed += !same;
  idle(c, j);
}

static void copied(struct client *c, struct task *j) {
  if (++j->piece < j->pieces)
    return;
  if (j->mapped)
    copied_mapped(c, j);
  else
    copied_leased(c, j);
}

static void release(struct client *c, struct task *j) {
  uint8_t *at = ask_begin(j, PERIGEE_CACHE_RELEASE, 0);
  number_put(&at, j->place.lease, 8);
  ask(c, j, RELEASING, at);
}

/* ---- Gets by the mapped directory --------------------------------------------- */

/* If its request is answered at all, then by the cache of now. */
static void map_directory(struct client *c, struct task *j) {
  c->life = world_of(c)->tally.lives;
  submitted(c, j, MAPPING,
            perigee_lookup(c->session, "cache.directory.0",
                           some_timeout(world_of(c))));
}

static void mapped(struct client *c, struct task *j,
                   const struct perigee_event *e) {
  const uint8_t *piece = perigee_remote_pointer(
      (const struct perigee_remote *)(uintptr_t)e->pointer);
  HOLDS(world_of(c), piece);
  if (!c->view)
    c->view = perigee_cache_view_open();
  HOLDS(world_of(c), perigee_cache_view_piece(c->view, 0, piece) == PERIGEE_OK);
  idle(c, j);
}

/* The directory tells what is there now; that of a cache that has died, nothing.
 */
static void look_up(struct client *c, struct task *j) {
  struct world *w = world_of(c);
  int status = perigee_cache_seen(c->view, name_of(j->key), NAME, &j->place);
  idle(c, j);
  if (c->life != w->tally.lives)
    return;
  HOLDS(w, status == PERIGEE_OK || status == PERIGEE_NOT_FOUND);
  HOLDS(w, status == PERIGEE_OK || !w->hard[j->key]);
  w->tally.asked++;
  if (status < 0)
    return;
  HOLDS(w, j->place.version == w->latest[j->key] && !w->gone[j->key]);
  j->mapped = true;
  j->base = w->base;
  j->least = j->place.version;
  j->length = j->place.length;
  begin_copy(c, j);
}

static void begin_mapped(struct client *c, struct task *j) {
  if (c->view)
    look_up(c, j);
  else
    map_directory(c, j);
}

/* ---- Puts -------------------------------------------------------------------- */

/* key, stamp, ttl, pin, if_absent, length. There are two sizes, so that a place
 * is soon another value's. */
static void draw_put(struct client *c, struct task *j, uint64_t *numbers,
                     uint64_t most) {
  struct world *w = world_of(c);
  uint64_t pin = roll(w, 12);
  j->stamp = ++w->stamps;
  j->length = most > SMALL && roll(w, 3) ? most - 8 * roll(w, 256)
                                         : 8 * (1 + roll(w, SMALL / 8));
  numbers[0] = (uint64_t)j->key;
  numbers[1] = j->stamp;
  numbers[2] = roll(w, 4) ? 0 : (1 + roll(w, 600)) * (uint64_t)MS;
  numbers[3] = pin == 0   ? PERIGEE_CACHE_HARD
               : pin == 1 ? PERIGEE_CACHE_SOFT
                          : PERIGEE_CACHE_UNPINNED;
  numbers[4] = roll(w, 5) == 0;
  numbers[5] = j->length;
}

static void begin_put(struct client *c, struct task *j) {
  uint64_t numbers[NUMBERS];
  draw_put(c, j, numbers, MOST);
  fill(memory_of(c, j), j);
  j->piece = 0;
  j->pieces = 1;
  call_slice(c, j, PUTTING, PUT, numbers, 5, piece_slice(c, j));
}

static void begin_small_put(struct client *c, struct task *j) {
  uint64_t numbers[NUMBERS];
  draw_put(c, j, numbers, SMALL);
  uint8_t *at = ask_key(j, PERIGEE_CACHE_PUT, 0);
  number_put(&at, 0, 8);
  number_put(&at, numbers[2], 8);
  number_put(&at, numbers[3], 1);
  number_put(&at, numbers[4], 1);
  number_put(&at, 0, 2);
  number_put(&at, j->stamp, 8);
  number_put(&at, j->length, 4);
  fill(at, j);
  ask(c, j, CHANGING, at + j->length);
}

static void begin_reserve(struct client *c, struct task *j) {
  struct world *w = world_of(c);
  uint64_t numbers[NUMBERS];
  draw_put(c, j, numbers, MOST);
  fill(memory_of(c, j), j);
  j->piece = 0;
  j->pieces = 1 + (uint32_t)roll(w, PIECES);
  call_numbers(c, j, RESERVING, RESERVE, numbers, NUMBERS);
}

static uint32_t pieces_before_seal(const struct client *c,
                                   const struct task *j) {
  bool all = world_of(c)->rule != SEALED_IN_PIECES;
  return all ? j->pieces : j->pieces - 1;
}

/* Some writers give up, and some say so. */
static void go_on_writing(struct client *c, struct task *j) {
  struct world *w = world_of(c);
  if (j->piece >= pieces_before_seal(c, j) || roll(w, 20) == 0) {
    bool seals = j->piece >= pieces_before_seal(c, j) && roll(w, 12);
    if (!seals && roll(w, 4) == 0)
      idle(c, j);
    else
      call_numbers(c, j, ENDING, seals ? SEAL : ABORT, &j->token, 1);
    return;
  }
  uint64_t numbers[] = {j->token, j->length * j->piece / j->pieces};
  call_slice(c, j, WRITING, WRITE, numbers, 2, piece_slice(c, j));
}

/* ---- Steps ------------------------------------------------------------------- */

static void begin(struct client *c, struct task *j) {
  static const int changes[] = {PERIGEE_CACHE_DELETE, PERIGEE_CACHE_DELETE,
                                PERIGEE_CACHE_PIN, PERIGEE_CACHE_TOUCH};
  struct world *w = world_of(c);
  uint64_t what = roll(w, 20);
  j->key = (int)roll(w, KEYS);
  j->mapped = false;
  if (what < 5 && strcmp(w->transport, "shm") == 0)
    begin_mapped(c, j);
  else if (what < 10)
    begin_get(c, j);
  else if (what < 14)
    begin_put(c, j);
  else if (what < 16)
    begin_reserve(c, j);
  else if (what < 18)
    begin_small_put(c, j);
  else
    ask(c, j, CHANGING, ask_key(j, changes[roll(w, 4)], (int)roll(w, 3)));
}

static void step(struct client *c, struct task *j) {
  if (j->state == IDLE)
    begin(c, j);
  else if (j->state == COPYING)
    go_on_copying(c, j);
  else if (j->state == RELEASING)
    release(c, j);
  else
    go_on_writing(c, j);
}

static void task_ended(struct client *c, struct task *j,
                       const struct perigee_event *e) {
  enum task_state state = j->state;
  j->operation = -1;
  j->at = later(world_of(c), j);
  if (e->status < 0)
    j->state = IDLE;
  else if (state == MAPPING)
    mapped(c, j, e);
  else if (state == ASKING)
    answered(c, j, e);
  else if (state == FINDING)
    found(c, j, e);
  else if (state == COPYING)
    copied(c, j);
  else if (state == RESERVING) {
    HOLDS(world_of(c), numbers_read(e, &j->token, 1));
    j->state = WRITING;
  } else if (state == WRITING)
    j->piece++;
  else
    j->state = IDLE;
}

/* ---- Sessions ---------------------------------------------------------------- */

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
  for (struct task *j = c->tasks; j < c->tasks + TASKS; j++) {
    HOLDS(world_of(c), j->operation < 0);
    idle(c, j);
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
  struct task *j = c->tasks;
  while (j->operation != e->operation)
    HOLDS(world_of(c), ++j < c->tasks + TASKS);
  task_ended(c, j, e);
}

static bool tasks_are_idle(const struct client *c) {
  for (const struct task *j = c->tasks; j < c->tasks + TASKS; j++)
    if (j->state != IDLE)
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

/* ---- Its turn, its life ------------------------------------------------------- */

static void tasks_turn(struct client *c) {
  struct world *w = world_of(c);
  for (struct task *j = c->tasks; j < c->tasks + TASKS; j++)
    if (c->session && !c->lost && j->operation < 0 && j->at <= w->now &&
        !(w->winding_up && j->state == IDLE))
      step(c, j);
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
