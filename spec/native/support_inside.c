/* SPDX-License-Identifier: Apache-2.0
 *
 * support_inside.c - what test helpers read and change inside the core.
 */
#include "support_inside.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "call/calls.h"
#include "core/pool.h"
#include "core/stats_file.h"
#include "engine/polling.h"
#include "session/sessions.h"
#include "transport/shm/shm.h"

/* Bytes of blocks that hold rings (shm_moves.c). */
static uint64_t moved_bytes(const struct lane *lane) {
  uint64_t bytes = 0;
  for (int i = 0; i < RINGS; i++)
    if (lane->moves[i].state != MOVE_HOME)
      bytes += blocks_size(&lane->blocks, lane->moves[i].block);
  return bytes;
}

uint64_t lent_bytes(const struct perigee_session *session) {
  if (session->state != PERIGEE_SESSION_OPEN ||
      strcmp(session->transport->name, "shm") != 0)
    return 0;
  const struct lane *lane = session->lane;
  return lane->blocks.live - lane->rests.bytes - moved_bytes(lane) -
         (lane->turns.count == 0 ? lane->turns.size : 0);
}

uint32_t stretch_bytes(const struct perigee_session *session) {
  return session->lane->turns.size;
}

uint64_t dropped_bytes(const struct perigee_session *session) {
  return least(session->lane->dropped, 2 << 20);
}

uint64_t lendable(const struct perigee_session *session) {
  const struct lane *lane = session->lane;
  return lane->blocks.limit - lane->turns.size - moved_bytes(lane);
}

bool turns_is_short(const struct perigee_session *session) {
  return session->lane->turns.next <= least(session->lane->dropped, 4 << 20);
}

uint32_t turns_live(const struct perigee_session *session) {
  return session->lane->turns.count;
}

bool is_far(const struct perigee_session *session) {
  return session->lane->distance.far;
}

bool writes_are_far(const struct perigee_session *session) {
  return session->lane->writes.far;
}

bool streams_records(const struct perigee_session *session) {
  const struct ring_out *out = session->lane->out;
  return out[RING_REQUEST].streams && out[RING_REPLY].streams;
}

void be_far(struct perigee_session *session) {
  distance_learn(&session->lane->distance, INT64_MAX);
  distance_learn(&session->lane->distance, INT64_MAX);
}

void stream_records(struct perigee_session *session) {
  session->lane->records = (struct shm_distance){
      .far = true, .wait = UINT32_MAX, .tried = INT64_MAX};
  for (int i = 0; i < RINGS; i++)
    session->lane->out[i].streams = true;
}

void hurry_records(struct perigee_session *session) {
  session->lane->records.tried = INT64_MAX;
}

void hear_record(struct perigee_session *session, uint64_t length) {
  struct lane *lane = session->lane;
  distance_try_ring(lane, &lane->out[RING_REQUEST], length);
}

void learn_no_ways(struct perigee_session *session) {
  for (int i = 0; i < SHM_LENGTHS; i++)
    session->lane->ways[i] =
        (struct shm_ways){.best = SHM_STAGED, .left = UINT32_MAX};
}

void say_ways(struct perigee_session *session, uint32_t word) {
  atomic_store(&session->lane->own->ways, word);
}

uint64_t ring_left(const struct perigee_session *session) {
  const struct ring_out *out = &session->lane->out[RING_REQUEST];
  return out->size - (out->head - atomic_load(out->consumed));
}

void lie_of_taking(struct perigee_session *liar, int operation,
                   uint32_t generation, uint64_t bytes) {
  atomic_store(&liar->lane->own->acks[operation][0],
               shm_ack_tag(generation) | bytes);
}

static struct shm_stage_head *
youngest_stage(const struct perigee_session *session) {
  const struct lane *lane = session->lane;
  const struct shm_turns *t = &lane->turns;
  uint64_t at = t->blocks[(t->first + t->count - 1) % SHM_TURNS].at;
  return (struct shm_stage_head *)(void *)(lane->arena + t->stretch + at);
}

void lie_of_window(struct perigee_session *liar, uint64_t fed, uint64_t base) {
  struct shm_stage_head *head = youngest_stage(liar);
  atomic_store(&head->base, base);
  atomic_store(&head->fed, fed);
}

uint64_t window_fed(const struct perigee_session *session) {
  return atomic_load(&youngest_stage(session)->fed);
}

uint64_t bytes_taken(const struct perigee_session *session, int operation,
                     uint32_t generation) {
  uint64_t ack = atomic_load(&session->lane->own->acks[operation][0]);
  uint64_t taken = ack ^ shm_ack_tag(generation);
  return taken >> SHM_ACK_SHIFT ? 0 : taken;
}

uint64_t longest_call(const struct perigee_engine *engine) {
  return engine->stats.at->methods[0].longest;
}

uint8_t *take_block(struct perigee_session *session, uint64_t length) {
  return pool_take(session, length);
}

void limit_staging(struct perigee_engine *engine, uint64_t most) {
  engine->shares.quota[SHARE_STAGED].limit = most;
}

uint64_t resting_bytes(const struct perigee_session *session) {
  return session->lane->rests.bytes;
}

bool lends(const struct perigee_session *session, uint64_t length) {
  struct source source;
  uint8_t *at;
  return lane_table(session->lane)
             ->loans->loan(session->lane, length, &at, &source) == PERIGEE_OK;
}

uint64_t kept_bytes(const struct perigee_session *session) {
  return lane_table(session->lane)->kept->bytes(session->lane);
}

void timers_begin(struct perigee_engine *engine) {
  engine_start_timers(engine);
  engine->sockets_due = true;
}

static const char *state_name(const struct operation *op) {
  const struct machine *m = op->kind == OP_SERVED ? &served_machine
                            : op->kind <= OP_SEND ? &call_machine
                                                  : &operation_machine;
  return op->kind ? m->states[op->state] : "free";
}

const char *state_of(struct perigee_engine *engine, int operation) {
  return state_name(&engine->table[operation]);
}

bool serves_in(struct perigee_engine *engine, const char *state) {
  for (uint32_t i = 0; i < engine->table_used; i++) {
    const struct operation *op = &engine->table[i];
    if (op->kind == OP_SERVED && strcmp(state_name(op), state) == 0)
      return true;
  }
  return false;
}

void operations_age(struct perigee_engine *engine, uint32_t uses) {
  for (uint32_t i = 0; i < engine->table_used; i++)
    if (!engine->table[i].kind)
      engine->table[i].generation += uses;
}

uint32_t session_of(struct perigee_engine *engine, int operation) {
  return engine->table[operation].session->id;
}

void look_at_clock(struct perigee_engine *engine) {
  engine->sockets_due = true;
}

const char *what_is_left(struct perigee_engine *engine) {
  static char text[128];
  text[0] = 0;
  for (uint32_t i = 0; i < engine->table_used && !text[0]; i++) {
    const struct operation *op = &engine->table[i];
    if (op->kind)
      snprintf(text, sizeof text, ", operation %u of kind %u, %s", i, op->kind,
               state_name(op));
  }
  return text;
}

struct perigee_listener *moved_to(struct perigee_engine *engine, bool tcp) {
  struct node *n, *head = &engine->listeners;
  for (n = head->next; n != head; n = n->next) {
    struct perigee_listener *l = CONTAINER(n, struct perigee_listener, node);
    if (l->tickets && l->tcp == tcp)
      return l;
  }
  return NULL;
}

void deafen(struct perigee_listener *listener) {
  int nobody = socket_new(AF_UNIX);
  dup2(nobody, listener->fd);
  close(nobody);
}

void set_hello_timeout(struct perigee_engine *engine, int64_t timeout) {
  engine->options.hello_timeout = timeout;
}

bool on_same_host(const struct perigee_session *session) {
  return session->peer.same_host;
}

bool looked_up(struct perigee_engine *engine, const char *text, int family) {
  struct address address;
  struct addresses found = {.count = 0};
  char reason[ADDRESS_REASON];
  bool there = false;
  if (address_parse(text, &address, reason) != PERIGEE_OK)
    return false;
  struct resolve *r = resolve_begin(engine, &address, NULL);
  while (resolve_step(r, &found, reason) == 0)
    usleep(1000);
  resolve_end(r);
  for (uint32_t i = 0; i < found.count; i++)
    there |= found.at[i].any.sa_family == family;
  return there;
}

bool say_segment(struct perigee_session *session, uint32_t segment,
                 uint32_t there, int fd) {
  const uint32_t word[] = {segment, there};
  const char *why;
  int copy = fd < 0 ? -1 : dup(fd);
  if (session->lane->options.hand(session, word, sizeof word, copy, &why) == 0)
    return true;
  close(copy);
  return false;
}

bool say_to_lane(struct perigee_session *session, int fd) {
  struct frame f = {.type = FRAME_LANE, .lane = {.length = 1, .fds = 1}};
  return session_tell(session, &f, &fd, 1) == PERIGEE_OK;
}

int fill_socket(struct perigee_session *session) {
  struct frame wake = {.type = FRAME_WAKE};
  int count = 0;
  while (session_tell(session, &wake, NULL, 0) == PERIGEE_OK)
    count++;
  return count;
}

void limit_segments(struct perigee_engine *engine, uint64_t most) {
  engine->shares.quota[SHARE_SEGMENTS].limit = most;
  engine->shares.quota[SHARE_SEGMENTS].reserve = most / 16;
}

uint32_t segments_said(const struct perigee_session *session) {
  return session->lane->said;
}

uint32_t segments_heard(const struct perigee_session *session) {
  return session->lane->peer_arena.heard;
}

uint32_t segments_shown(const struct perigee_session *session) {
  return session->lane->peer_arena.count;
}

void refer(struct perigee_session *session, bool reply, uint16_t said,
           uint64_t offset, uint64_t length) {
  const struct transport_records *t = lane_records(session->lane);
  struct record r = {.kind = reply ? RECORD_REPLY : RECORD_REQUEST,
                     .flags = RECORD_HEAD_BULK,
                     .generation = 1,
                     .remaining = RECORD_NO_LIMIT,
                     .head_length = length,
                     .head_source = {.kind = SOURCE_LOAN,
                                     .address = (uint64_t)said << 48 | offset,
                                     .block = length,
                                     .count = 1,
                                     .stride = length}};
  enum ring ring = reply ? RING_REPLY : RING_REQUEST;
  uint8_t *at = t->reserve(session->lane, ring, record_size(&r));
  lane_payloads(session->lane)->mark(session->lane, r.operation, r.generation);
  record_encode(&r, at);
  t->publish(session->lane, ring, record_size(&r));
}

void refer_unheard(struct perigee_session *session, bool reply) {
  refer(session, reply, 1000, 0, 100);
}

const uint8_t *peer_inbox_of(const struct perigee_session *session,
                             uint64_t *length) {
  *length = RINGS * session->lane->peer_ring;
  return session->lane->peer_inbox;
}

const uint8_t *inbox_of(const struct perigee_session *session,
                        uint64_t *length) {
  *length = RINGS * session->lane->options.ring;
  return session->lane->inbox;
}

uint64_t segment_bytes(const struct perigee_session *session) {
  return session->lane->segment;
}

void forget_bits(struct perigee_session *session, uint64_t segments) {
  const struct shm_arena *a = &session->lane->peer_arena;
  memset(a->known, 0, segments * (a->segment / SHM_PAGE / 8));
}

uint32_t table_touched(const struct perigee_engine *engine) {
  return engine->table_used;
}

uint32_t generation_at(const struct perigee_engine *engine, uint32_t index) {
  return index < engine->table_used ? engine->table[index].generation
                                    : engine->generations[index];
}

void sessions_ended(struct perigee_engine *engine, int count) {
  while (count-- > 0)
    trim_ended(engine);
}

bool heap_waits(const struct perigee_engine *engine) {
  return engine->trim.ended > 0;
}
