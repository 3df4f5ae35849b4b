/* SPDX-License-Identifier: Apache-2.0 */
#include "victim.h"

#include <stdlib.h>

static const int64_t PATIENCE = 100 * MS;
enum { LOOKS = 32 }; /* a session */

/* {7} as string.buffer writes it. */
static const uint8_t seven[] = {7, 0, 0, 0, 0, 0, 0, 28, 64};

/* ---- What the victim wants of its peer ------------------------------------ */

static void began(struct victim *v, struct perigee_session *s, int op) {
  if (op < 0 || op == PERIGEE_INLINE)
    return;
  assert_int_equal(v->pending[op], 0);
  v->pending[op] = 1;
  v->open[perigee_session_id(s) % SESSIONS]++;
}

static void call(struct victim *v, struct perigee_session *s) {
  bool typed = rand() % 2, slice = rand() % 2;
  uint64_t length = (uint64_t)rand() % (rand() % 2 ? 100 : 3 * MIB);
  struct perigee_message m = {.timeout = PATIENCE};
  if (typed)
    m = (struct perigee_message){.flags = PERIGEE_TYPED,
                                 .head = seven,
                                 .length = sizeof seven,
                                 .timeout = PATIENCE};
  if (slice)
    m.slice = all_of(v->own, length);
  if (rand() % 2)
    m.into = all_of(v->own, SIZE);
  else if (rand() % 2)
    m.flags |= PERIGEE_ASKS;
  began(v, s, perigee_call(s, &m));
}

static void loan(struct victim *v, struct perigee_session *s) {
  struct perigee_message m = {.timeout = PATIENCE, .capacity = 100};
  struct perigee_loan loan;
  uint64_t length = (uint64_t)rand() % (rand() % 2 ? 100 : MIB);
  if (perigee_call_begin(s, length, &loan) == PERIGEE_OK)
    began(v, s, perigee_call_commit(s, &m, length));
}

static void move(struct victim *v, struct perigee_session *s) {
  struct perigee_remote *bait = v->bait[perigee_session_id(s) % SESSIONS];
  static struct perigee_transfer lists[16];
  static int next;
  if (!bait)
    return;
  struct perigee_transfer *t = &lists[next++ % 16];
  uint64_t length = perigee_remote_length(bait); /* as the liar says: even 0 */
  length = length > 0 ? (uint64_t)rand() % length : 0;
  if (length > SIZE)
    length = SIZE;
  *t = (struct perigee_transfer){
      .local = all_of(v->own, length),
      .remote = {{.remote = bait}, 0, length, 1, length}};
  began(v, s, perigee_transfer(s, 1 + rand() % 3, t, 1, 7, -1));
}

/* Looks up the region "bait"; look_again() repeats that some times. */
static void look(struct victim *v, struct perigee_session *s) {
  int op = perigee_lookup(s, "bait", PATIENCE);
  began(v, s, op);
  if (op >= 0)
    v->looks[op] = true;
}

static void look_again(struct victim *v, struct perigee_session *s, int op) {
  bool looked = v->looks[op];
  uint32_t id = perigee_session_id(s) % SESSIONS;
  v->looks[op] = false;
  if (looked && !v->over[id] && v->looked[id]++ < LOOKS)
    look(v, s);
}

static void want(struct victim *v, struct perigee_session *s) {
  struct perigee_slice all = all_of(v->own, SIZE);
  switch (rand() % 8) {
  case 0:
    began(v, s, perigee_send(s, &all, PATIENCE));
    break;
  case 1:
    began(v, s, perigee_recv(s, &all, PATIENCE));
    break;
  case 2:
    began(v, s, perigee_recv_imm(s, PATIENCE));
    break;
  case 3:
    look(v, s);
    break;
  case 4:
    move(v, s);
    break;
  case 5:
    loan(v, s);
    break;
  default:
    call(v, s);
  }
}

/* ---- What it is asked ----------------------------------------------------- */

static void serve(struct victim *v, const struct perigee_event *e) {
  struct perigee_message r = {.head = e->pointer, .length = e->length};
  /* All memory that the event refers to can be read. */
  volatile uint8_t sum = 0;
  for (uint64_t i = 0; i < e->length; i += 512)
    sum ^= e->pointer[i];
  if (rand() % 3 == 0)
    r = (struct perigee_message){.flags = PERIGEE_TYPED,
                                 .slice = all_of(v->exported, SIZE)};
  perigee_reply(v->p.engine[1], e->operation, &r);
}

static void land(struct victim *v, const struct perigee_event *e) {
  struct perigee_slice all = all_of(v->own, SIZE), none = {0};
  bool fits = e->slice <= SIZE && rand() % 2;
  int status = perigee_land(v->p.engine[1], e->operation, fits ? &all : &none);
  if (status == PERIGEE_OK)
    return;
  struct perigee_message r = {.status = PERIGEE_NO_MEMORY};
  perigee_reply(v->p.engine[1], e->operation, &r);
}

/* Where the reply to its own call lands; or it gives up. */
static void land_reply(struct victim *v, const struct perigee_event *e) {
  struct perigee_slice all = all_of(v->own, SIZE);
  volatile uint8_t sum = 0;
  for (uint64_t i = 0; i < e->length; i += 512)
    sum ^= e->pointer[i];
  assert_int_equal(v->pending[e->operation], 1);
  if (perigee_land_reply(v->p.engine[1], e->operation,
                         rand() % 2 ? &all : NULL) != PERIGEE_OK ||
      rand() % 4 == 0)
    perigee_cancel(v->p.engine[1], e->operation);
}

/* After a session's loss it asks nothing of it, except for earlier requests. */
static void let_go(struct victim *v, uint32_t id) {
  if (v->over[id % SESSIONS] && v->open[id % SESSIONS] == 0)
    perigee_session_free(perigee_session(v->p.engine[1], id));
}

static void ended_here(struct victim *v, const struct perigee_event *e) {
  assert_int_equal(v->pending[e->operation], 1);
  v->pending[e->operation] = 0;
  v->open[e->session % SESSIONS]--;
  assert_string_not_equal(perigee_status_name(e->status), "unknown");
}

static void lost(struct victim *v, const struct perigee_event *e) {
  assert_true(e->status < 0);
  assert_string_not_equal(perigee_status_name(e->status), "unknown");
  v->lost++;
  v->protocol += e->status != PERIGEE_PEER_LOST;
  v->over[e->session % SESSIONS] = true;
  let_go(v, e->session);
}

void victim_handle(struct victim *v, const struct perigee_event *e) {
  struct perigee_session *s = perigee_session(v->p.engine[1], e->session);
  if (e->flags & PERIGEE_POOLED)
    perigee_pool_free(v->p.engine[1], e->landed);
  switch (e->kind) {
  case PERIGEE_EVENT_ACCEPTED:
    v->met++;
    v->bait[e->session % SESSIONS] = NULL;
    v->over[e->session % SESSIONS] = false;
    v->looked[e->session % SESSIONS] = 0;
    assert_int_equal(v->open[e->session % SESSIONS], 0);
    look(v, s);
    for (int i = 0; i < 8; i++)
      want(v, s);
    break;
  case PERIGEE_EVENT_LOST:
    lost(v, e);
    break;
  case PERIGEE_EVENT_REQUEST:
    serve(v, e);
    break;
  case PERIGEE_EVENT_LANDING:
    land(v, e);
    break;
  case PERIGEE_EVENT_REPLY_LANDING:
    land_reply(v, e);
    break;
  case PERIGEE_EVENT_REPLY:
  case PERIGEE_EVENT_DONE:
    ended_here(v, e);
    if (e->kind == PERIGEE_EVENT_DONE && e->status == 0 && e->pointer && s)
      v->bait[e->session % SESSIONS] = (void *)(uintptr_t)e->pointer;
    look_again(v, s, e->operation);
    if (!v->over[e->session % SESSIONS])
      want(v, s);
    let_go(v, e->session);
    break;
  default:
    break;
  }
}
