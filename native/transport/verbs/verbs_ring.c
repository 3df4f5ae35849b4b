/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_ring.c - records and notes, which go through the control pair;
 * completions; the peer's memory, as notes tell of it; and sessions without a
 * socket.
 *
 * An inbox is a ring of notes and two rings of records. Each of them arrives as
 * one RDMA write with an immediate, which tells the ring, whether the record
 * wrapped to the ring's start, and its length. So memory is not polled: a
 * record is there when its completion is.
 *
 * Credits. Each record and note begins with a word that tells how far the
 * sender has emptied its own inbox: units of both rings (20 bits each), records
 * and notes (12 bits each). A word that tells more than was sent is old or
 * wrong, and is ignored. A note is sent when a quarter of something can be
 * given back, if there is nothing else to send.
 *
 * Notes are handled as they complete and never wait for the program. Records
 * wait in their ring until the core peeks. A record is sent after all notes
 * before it, as it may rely on a grant that one of them revokes.
 *
 * The peer tells of its memory by notes, or by the keys of regions
 * (verbs_attach). This side uses that only as numbers: a wrong key or range
 * fails at the peer's own device. Generations of an id grow. Keys of regions
 * come over the session's socket and may overtake notes, so anything of an
 * older generation than the one known here is dropped.
 *
 * Without a socket, session frames travel as bytes in notes, in order with all
 * other notes. Notes with frames wait here until the session takes their bytes;
 * only then their room is given back to the peer, so there is room for all that
 * can arrive.
 *
 * A probe is an RDMA write with immediate of no bytes, for which no key is
 * checked: the peer's inbox may not be open yet. The probe is lost, and the
 * retries run out, if no pair is connected at the peer. The pair is then
 * rebuilt with the sequence numbers that it had, so the next probe has the same
 * number: if the first was delivered and only its acknowledgement was lost, the
 * second is a duplicate, which is acknowledged and has no effect.
 *
 * That is right only as long as nothing of the peer has arrived, as that would
 * arrive again, too. Nothing arrives after the pair's error, as a pair in error
 * receives nothing; but a completion may be found after that of the error. So
 * the pair rests for a while, and is rebuilt only if the queue is then found
 * empty. A failure ends the lane as usual once something has arrived.
 *
 * The inbox's window stays bound to its pair when that is rebuilt, as windows
 * of other pairs do when those are fenced.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "verbs.h"

enum { BATCH = 16, BATCHES = 4 };
enum { UNITS_BITS = 20, COUNT_BITS = 12 };
enum { SKIP = 1 << 29, NOTE_SPACE = NOTES * NOTE };
static const uint64_t UNITS_MASK = (1 << UNITS_BITS) - 1;
static const uint64_t COUNT_MASK = (1 << COUNT_BITS) - 1;

/* Notes that may wait for room before frames are refused; polls in which an
 * empty completion queue must be found. */
enum { FRAMES_WAITING = 4096, RENEW_TURNS = 64 };
static const int64_t AWAITED = 1000 * 1000000; /* ns */

/* ---- Set-up -------------------------------------------------------------- */

static void *ring_map(uint64_t length) {
  void *p = mmap(NULL, length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return NULL;
  madvise(p, length, MADV_DONTFORK);
  return p;
}

static uint64_t ring_words_length(void) {
  return OPERATIONS * (sizeof(uint32_t) + 4 * sizeof(uint64_t));
}

int ring_set_up(struct lane *lane) {
  const uint64_t ring = lane->options.ring;
  lane->inbox_length = NOTE_SPACE + RINGS * ring;
  lane->inbox = ring_map(lane->inbox_length);
  lane->words = ring_map(ring_words_length());
  if (!lane->inbox || !lane->words)
    return PERIGEE_NO_MEMORY;
  lane->staged = (void *)lane->words;
  lane->acked = lane->staged + OPERATIONS;
  lane->ended = (void *)(lane->acked + OPERATIONS);
  lane->in[FLOW_NOTE] = (struct inflow){.bytes = lane->inbox};
  for (int i = 0; i < RINGS; i++)
    lane->in[i] = (struct inflow){
        .bytes = lane->inbox + NOTE_SPACE + (uint64_t)i * ring, .size = ring};
  return PERIGEE_OK;
}

static int outbox_register(struct lane *lane) {
  struct fabric *f = lane->fabric;
  for (uint32_t i = 0; i < f->rail_count; i++) {
    lane->outbox_mr[i] =
        f->lib->reg_mr(f->rails[i].pd, lane->outbox, lane->outbox_length,
                       IBV_ACCESS_LOCAL_WRITE);
    if (!lane->outbox_mr[i])
      return PERIGEE_NO_MEMORY;
  }
  return PERIGEE_OK;
}

int ring_join(struct lane *lane) {
  const uint64_t ring = lane->peer_ring;
  uint64_t seen = NOTE_SPACE + RINGS * ring;
  lane->outbox_length = seen;
  for (uint32_t i = 0; i < lane->pair_count; i++)
    lane->outbox_length += lane->pairs[i].depth * sizeof(uint32_t);
  lane->outbox = ring_map(lane->outbox_length);
  if (!lane->outbox)
    return PERIGEE_NO_MEMORY;
  int status = outbox_register(lane);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < lane->pair_count; i++) {
    struct pair *p = &lane->pairs[i];
    p->seen = (void *)(lane->outbox + seen);
    p->seen_key = lane->outbox_mr[p->rail->index]->lkey;
    seen += p->depth * sizeof(uint32_t);
  }
  lane->out[FLOW_NOTE] =
      (struct outflow){.bytes = lane->outbox, .remote = lane->peer_inbox};
  for (int i = 0; i < RINGS; i++) {
    uint64_t at = NOTE_SPACE + (uint64_t)i * ring;
    lane->out[i] = (struct outflow){.bytes = lane->outbox + at,
                                    .remote = lane->peer_inbox + at,
                                    .size = ring};
  }
  return PERIGEE_OK;
}

void ring_close(struct lane *lane) {
  for (uint32_t i = 0; i < RAILS; i++)
    if (lane->outbox_mr[i])
      lane->fabric->lib->dereg_mr(lane->outbox_mr[i]);
  if (lane->outbox)
    munmap(lane->outbox, lane->outbox_length);
  if (lane->inbox)
    munmap(lane->inbox, lane->inbox_length);
  if (lane->words)
    munmap(lane->words, ring_words_length());
  free(lane->waiting);
}

int alone_open(struct lane *lane) {
  lane->frames = calloc(1, sizeof *lane->frames);
  return lane->frames ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

/* ---- Credits ------------------------------------------------------------- */

/* Notes whose room is free; one with session frames only after they were
 * taken. */
static uint32_t notes_to_tell(const struct lane *lane) {
  return lane->heard - (lane->frames ? lane->frames->count : 0);
}

static uint64_t credits_to_tell(struct lane *lane) {
  uint64_t word = 0;
  for (int i = 0; i < RINGS; i++) {
    struct inflow *in = &lane->in[i];
    word = word << UNITS_BITS | (in->freed / UNIT & UNITS_MASK);
    in->told = in->freed;
  }
  word = word << COUNT_BITS | (lane->taken_freed & COUNT_MASK);
  lane->taken_told = lane->taken_freed;
  lane->heard_told = notes_to_tell(lane);
  word = word << COUNT_BITS | (lane->heard_told & COUNT_MASK);
  return word;
}

static void credit_count(uint32_t *known, uint32_t sent, uint64_t told) {
  uint64_t more = (told - *known) & COUNT_MASK;
  if (more <= sent - *known)
    *known += (uint32_t)more;
}

static void credits_heard(struct lane *lane, uint64_t word) {
  credit_count(&lane->notes_known, lane->notes, word);
  credit_count(&lane->sent_known, lane->sent, word >> COUNT_BITS);
  word >>= 2 * COUNT_BITS;
  for (int i = RINGS - 1; i >= 0; i--, word >>= UNITS_BITS) {
    struct outflow *out = &lane->out[i];
    uint64_t more = ((word - out->known / UNIT) & UNITS_MASK) * UNIT;
    if (more <= out->head - out->known)
      out->known += more;
  }
}

static bool credits_due(const struct lane *lane) {
  for (int i = 0; i < RINGS; i++)
    if (lane->in[i].freed - lane->in[i].told >= lane->in[i].size / 4)
      return true;
  return lane->taken_freed - lane->taken_told >= RECORDS / 4 ||
         notes_to_tell(lane) - lane->heard_told >= NOTES / 4;
}

/* ---- Sending ------------------------------------------------------------- */

/* Posts one RDMA write with immediate of the bytes at the offset. */
static void outflow_write(struct lane *lane, const struct outflow *out,
                          uint64_t offset, uint64_t length,
                          uint32_t immediate) {
  struct pair *p = &lane->pairs[0];
  struct slot *slot = pair_slot(p, NULL);
  slot->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  slot->remote = out->remote + offset;
  slot->rkey = lane->peer_inbox_key;
  slot->immediate = immediate;
  slot->inlined = length <= p->inline_max;
  slot->sges = 1;
  slot->sge[0] =
      (struct ibv_sge){(uintptr_t)(out->bytes + offset), (uint32_t)length,
                       lane->outbox_mr[p->rail->index]->lkey};
  pair_post(p);
}

uint8_t *verbs_reserve(struct lane *lane, enum ring ring, uint64_t length) {
  struct outflow *out = &lane->out[ring];
  uint64_t padded = (length + UNIT - 1) / UNIT * UNIT;
  uint64_t left = out->size - (out->head & (out->size - 1));
  out->at = padded <= left ? out->head : out->head + left;
  if (lane->status < 0 || lane->waiting_count > 0 ||
      out->at + padded - out->known > out->size ||
      lane->sent - lane->sent_known >= RECORDS ||
      pair_room(&lane->pairs[0]) < 2)
    return NULL;
  return out->bytes + (out->at & (out->size - 1));
}

void verbs_publish(struct lane *lane, enum ring ring, uint64_t length) {
  struct outflow *out = &lane->out[ring];
  uint64_t units = (length + UNIT - 1) / UNIT;
  uint64_t offset = out->at & (out->size - 1);
  uint32_t skip = out->at != out->head ? SKIP : 0;
  uint64_t word = credits_to_tell(lane);
  memcpy(out->bytes + offset, &word, sizeof word);
  out->head = out->at + units * UNIT;
  lane->sent++;
  outflow_write(lane, out, offset, length,
                (uint32_t)ring << FLOW_SHIFT | skip | (uint32_t)units);
}

/* ---- Notes --------------------------------------------------------------- */

static bool note_room(const struct lane *lane, bool credit) {
  uint32_t room = credit ? NOTES : NOTES - NOTES_KEPT;
  return lane->status == 0 && lane->notes - lane->notes_known < room &&
         pair_room(&lane->pairs[0]) > 0;
}

/* Returns how many bytes of a note have to be sent. */
static uint64_t note_span(const struct note *note) {
  if (note->kind == NOTE_FRAME)
    return offsetof(struct note, bytes) + note->part;
  return note->kind == NOTE_GRANT
             ? offsetof(struct note, rkey) + sizeof note->rkey
             : offsetof(struct note, base);
}

static void note_write(struct lane *lane, const struct note *note) {
  struct outflow *out = &lane->out[FLOW_NOTE];
  uint64_t offset = (uint64_t)(lane->notes++ % NOTES) * NOTE;
  struct note *to = (void *)(out->bytes + offset);
  *to = *note;
  to->word = credits_to_tell(lane);
  outflow_write(lane, out, offset, note_span(note),
                (uint32_t)FLOW_NOTE << FLOW_SHIFT);
}

static void note_queue(struct lane *lane, const struct note *note) {
  if (lane->waiting_count == lane->waiting_room) {
    uint32_t room = lane->waiting_room ? 2 * lane->waiting_room : 64;
    struct note *more = realloc(lane->waiting, room * sizeof *more);
    if (!more) {
      lane_break(lane, PERIGEE_NO_MEMORY, "no memory for notes to the peer");
      return;
    }
    lane->waiting = more;
    lane->waiting_room = room;
  }
  lane->waiting[lane->waiting_count++] = *note;
  lane->options.activate(lane->options.session); /* a poll will send it */
}

/* Sends waiting notes as far as there is room; false if some still wait. */
static bool notes_flush(struct lane *lane) {
  uint32_t n = 0;
  while (n < lane->waiting_count && note_room(lane, false))
    note_write(lane, &lane->waiting[n++]);
  lane->waiting_count -= n;
  if (n > 0)
    memmove(lane->waiting, lane->waiting + n,
            lane->waiting_count * sizeof *lane->waiting);
  return lane->waiting_count == 0;
}

void note_send(struct lane *lane, const struct note *note) {
  if (lane->status < 0 || lane->cut || !lane->joined)
    return;
  if (lane->waiting_count == 0 && note_room(lane, false))
    note_write(lane, note);
  else
    note_queue(lane, note);
}

void note_bytes(struct lane *lane, enum note_kind kind, uint32_t operation,
                uint8_t part, uint32_t generation, uint64_t bytes) {
  const struct note note = {.kind = (uint8_t)kind,
                            .part = part,
                            .operation = operation,
                            .generation = generation,
                            .value = bytes};
  note_send(lane, &note);
}

/* ---- Memory of the peer -------------------------------------------------- */

static struct remote_key *remote_key_make(struct lane *lane, uint32_t id) {
  if (!lane->remote_keys)
    lane->remote_keys = calloc(IDS / ID_PAGE, sizeof *lane->remote_keys);
  if (!lane->remote_keys)
    return NULL;
  struct remote_key **page = &lane->remote_keys[id / ID_PAGE];
  if (!*page)
    *page = calloc(ID_PAGE, sizeof **page);
  return *page ? &(*page)[id % ID_PAGE] : NULL;
}

static bool remote_note_plausible(const struct note *note) {
  return note->operation < IDS && note->value != 0 && note->length != 0 &&
         note->length <= GRANT_MOST && note->base <= UINT64_MAX - note->length;
}

static int remote_key_remember(struct lane *lane, const struct note *note) {
  struct remote_key *key = remote_key_make(lane, note->operation);
  if (!key)
    return PERIGEE_NO_MEMORY;
  if (key->generation > note->value)
    return PERIGEE_OK;
  *key = (struct remote_key){
      .generation = note->value, .base = note->base, .length = note->length};
  memcpy(key->rkey, note->rkey, sizeof key->rkey);
  return PERIGEE_OK;
}

static void remote_grant_heard(struct lane *lane, const struct note *note) {
  if (!remote_note_plausible(note))
    lane_break(lane, PERIGEE_PROTOCOL, "the peer granted impossible memory");
  else if (remote_key_remember(lane, note) < 0)
    lane_break(lane, PERIGEE_NO_MEMORY, "no memory for the peer's grants");
}

/* The memory may be unknown here: it was revoked before it was open. */
static void remote_revoke_heard(struct lane *lane, const struct note *note) {
  struct remote_key *key =
      note->operation < IDS ? remote_key_make(lane, note->operation) : NULL;
  if (!key || key->generation > note->value)
    return;
  key->generation = note->value;
  key->revoked = true;
}

void grant_heard(struct lane *lane, const struct note *note) {
  if (note->kind == NOTE_GRANT)
    remote_grant_heard(lane, note);
  else
    remote_revoke_heard(lane, note);
}

const struct remote_key *remote_key_find(const struct lane *lane, uint32_t id) {
  if (id >= IDS || !lane->remote_keys || !lane->remote_keys[id / ID_PAGE])
    return NULL;
  const struct remote_key *key = &lane->remote_keys[id / ID_PAGE][id % ID_PAGE];
  return key->generation != 0 ? key : NULL;
}

/* A key without bytes: a note will come. If one of that generation has come, it
 * was no older than the key, and it may have been revoked since. */
int verbs_attach(struct lane *lane, struct window *window,
                 const struct region_key *key) {
  struct verbs_key said;
  if (window->slot >= ID_PAYLOAD - ID_REGION || key->fd_count != 0 ||
      (key->length != 0 && key->length != sizeof said))
    return PERIGEE_PROTOCOL;
  if (key->length == 0)
    return PERIGEE_OK;
  memcpy(&said, key->bytes, sizeof said);
  struct note note = {.operation = ID_REGION + window->slot,
                      .value = window->generation,
                      .base = said.base,
                      .length = window->length};
  memcpy(note.rkey, said.rkey, sizeof note.rkey);
  if (said.zero != 0 || !remote_note_plausible(&note))
    return PERIGEE_PROTOCOL;
  const struct remote_key *known = remote_key_find(lane, note.operation);
  if (known && known->generation == note.value)
    return PERIGEE_OK;
  return remote_key_remember(lane, &note);
}

void remote_keys_close(struct lane *lane) {
  for (uint32_t i = 0; lane->remote_keys && i < IDS / ID_PAGE; i++)
    free(lane->remote_keys[i]);
  free(lane->remote_keys);
  lane->remote_keys = NULL;
}

/* ---- Frames of a session without a socket -------------------------------- */

int verbs_say(struct lane *lane, const uint8_t *bytes, uint32_t length) {
  struct note note = {.kind = NOTE_FRAME};
  if (lane->status < 0 || lane->cut || !lane->joined)
    return PERIGEE_PEER_LOST;
  if (lane->waiting_count >= FRAMES_WAITING)
    return PERIGEE_AGAIN;
  for (uint32_t at = 0; at < length; at += note.part) {
    uint32_t left = length - at;
    note.part = (uint8_t)(left < FRAME_PART ? left : FRAME_PART);
    memcpy(note.bytes, bytes + at, note.part);
    note_send(lane, &note);
  }
  return PERIGEE_OK;
}

/* Takes a note with bytes of session frames. */
static void alone_heard(struct lane *lane, const struct note *note) {
  struct frames *f = lane->frames;
  if (!f || f->count == NOTES || note->part > FRAME_PART) {
    lane_break(lane, PERIGEE_PROTOCOL,
               "the peer said more than it was given room for");
    return;
  }
  uint32_t at = (f->first + f->count++) % NOTES;
  f->length[at] = note->part;
  memcpy(f->bytes[at], note->bytes, note->part);
}

uint32_t verbs_hear(struct lane *lane, uint8_t *bytes, uint32_t room) {
  struct frames *f = lane->frames;
  uint32_t done = 0;
  while (f->count > 0 && done < room) {
    uint32_t left = f->length[f->first] - f->taken;
    uint32_t n = left < room - done ? left : room - done;
    memcpy(bytes + done, f->bytes[f->first] + f->taken, n);
    done += n;
    f->taken += n;
    if (n == left) {
      f->first = (f->first + 1) % NOTES;
      f->count--;
      f->taken = 0;
    }
  }
  return done;
}

/* ---- Receiving ----------------------------------------------------------- */

static void note_heard(struct lane *lane, const struct note *note) {
  uint32_t op = note->operation;
  uint64_t word = tagged(note->generation, note->value);
  credits_heard(lane, note->word);
  if (note->kind == NOTE_GRANT || note->kind == NOTE_REVOKE)
    grant_heard(lane, note);
  else if (note->kind == NOTE_FRAME)
    alone_heard(lane, note);
  else if (op >= OPERATIONS || note->part > 1)
    lane_break(lane, PERIGEE_PROTOCOL, "the peer sent a note of nothing");
  else if (note->kind == NOTE_ENDED)
    lane->ended[op] = note->generation;
  else if (note->kind == NOTE_STAGED)
    lane->staged[op][note->part] = word;
  else if (note->kind == NOTE_TAKEN)
    lane->acked[op][note->part] = word;
  /* Unknown kinds are of a later version, and may be ignored. */
}

static void note_arrived(struct lane *lane) {
  struct note note;
  if (lane->heard - lane->heard_told >= NOTES) {
    lane_break(lane, PERIGEE_PROTOCOL,
               "the peer sent more notes than it was given room for");
    return;
  }
  const uint8_t *at = lane->in[FLOW_NOTE].bytes;
  memcpy(&note, at + (uint64_t)(lane->heard++ % NOTES) * NOTE, sizeof note);
  note_heard(lane, &note);
}

static void record_arrived(struct lane *lane, struct inflow *in,
                           uint32_t immediate) {
  uint64_t length = (uint64_t)(immediate & (SKIP - 1)) * UNIT, word;
  uint64_t at = in->arrived;
  if (immediate & SKIP)
    at = (at + in->size - 1) & ~(in->size - 1);
  if (length == 0 || length > in->size / RING_SHARE || in->count == RECORDS ||
      (at & (in->size - 1)) + length > in->size ||
      at + length - in->freed > in->size) {
    lane_break(lane, PERIGEE_PROTOCOL,
               "the peer wrote beyond the room that it was given");
    return;
  }
  in->units[(in->first + in->count++) % RECORDS] =
      (immediate & SKIP) | (uint32_t)(length / UNIT);
  in->arrived = at + length;
  memcpy(&word, in->bytes + (at & (in->size - 1)), sizeof word);
  credits_heard(lane, word);
}

/* Handles an immediate that arrived on the control pair. */
static void ring_arrived(struct lane *lane, uint32_t immediate) {
  uint32_t flow = immediate >> FLOW_SHIFT;
  lane->met = true;
  if (lane->status < 0 || !lane->joined)
    return;
  if (flow == FLOW_NOTE)
    note_arrived(lane);
  else if (flow < RINGS)
    record_arrived(lane, &lane->in[flow], immediate);
  else if (!lane->frames)
    lane_break(lane, PERIGEE_PROTOCOL, "the peer wrote to no ring");
  lane->options.activate(lane->options.session);
}

int verbs_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
               uint64_t *length) {
  struct inflow *in = &lane->in[ring];
  if (in->count == 0)
    return 0;
  uint32_t units = in->units[in->first];
  if (units & SKIP)
    in->tail = (in->tail + in->size - 1) & ~(in->size - 1);
  in->first = (in->first + 1) % RECORDS;
  in->count--;
  lane->taken++;
  *bytes = in->bytes + (in->tail & (in->size - 1));
  *length = (uint64_t)(units & (SKIP - 1)) * UNIT;
  in->tail += *length;
  return 1;
}

bool ring_rests(const struct lane *lane) {
  return lane->waiting_count == 0 && !credits_due(lane);
}

bool verbs_release(struct lane *lane) {
  for (int i = 0; i < RINGS; i++)
    lane->in[i].freed = lane->in[i].tail;
  lane->taken_freed = lane->taken;
  if (lane->waiting_count > 0)
    notes_flush(lane);
  if (credits_due(lane) && note_room(lane, true))
    note_write(lane, &(struct note){.kind = NOTE_CREDIT});
  return false; /* the completion wakes the peer */
}

/* ---- Marks --------------------------------------------------------------- */

/* Clearing a mark: what is written to the operation's memory afterwards must
 * not become visible before the cleared mark; the peer's device reads the mark
 * last. */
void verbs_mark(struct lane *lane, uint16_t operation, uint32_t generation) {
  atomic_store_explicit(&lane->fabric->marks[operation], generation,
                        memory_order_release);
  if (generation == 0)
    atomic_thread_fence(memory_order_seq_cst);
}

void verbs_ended(struct lane *lane, uint16_t operation, uint32_t generation) {
  struct note note = {
      .kind = NOTE_ENDED, .operation = operation, .generation = generation};
  note_send(lane, &note);
}

bool verbs_live(struct lane *lane, uint16_t operation, uint32_t generation) {
  uint32_t over = lane->ended[operation];
  return lane->status == 0 && (over == 0 || (int32_t)(over - generation) < 0);
}

/* ---- Completions --------------------------------------------------------- */

static void queues_received(struct pair *p, const struct ibv_wc *wc) {
  if (wc->status != IBV_WC_SUCCESS)
    return;
  if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
    ring_arrived(p->lane, be32toh(wc->imm_data));
  pair_received(p);
}

static void queues_completed(struct queues *q, const struct ibv_wc *wc) {
  struct pair *p = pair_by_number(q->rail, wc->qp_num);
  /* The opcode of a failed completion is undefined; receives have no id. */
  if (p && wc->wr_id == RECEIVE_ID)
    queues_received(p, wc);
  else if (p)
    pair_completed(p, wc);
}

static bool queues_turn(struct queues *q) {
  struct ibv_wc wc[BATCH];
  bool any = false;
  for (int i = 0; i < BATCHES && !q->rail->failed; i++) {
    int n = ibv_poll_cq(q->cq, BATCH, wc);
    for (int k = 0; k < n; k++)
      queues_completed(q, &wc[k]);
    any = any || n > 0;
    q->rail->fabric->found += n > 0;
    if (n < BATCH)
      break;
  }
  return any;
}

bool rails_poll(struct fabric *f) {
  bool any = false;
  for (uint32_t i = 0; i < f->rail_count; i++)
    for (uint32_t q = 0; q < f->rails[i].queue_count && !f->rails[i].failed;
         q++)
      any = queues_turn(&f->rails[i].queues[q]) || any;
  return any;
}

void lane_await(struct lane *lane, const struct job *job) {
  const struct fabric_options *o = &lane->fabric->engine;
  int64_t end = o->clock(o->context) + AWAITED;
  while (job->pending > 0 && o->clock(o->context) < end)
    rails_poll(lane->fabric);
  if (job->pending > 0)
    lane_break(lane, PERIGEE_PEER_LOST, "%s does not do what it was given",
               lane->pairs[0].rail->port.device);
}

/* ---- Probes, keepalives, the last message -------------------------------- */

/* Posts a write of no bytes on the control pair. */
static void control_post_nothing(struct lane *lane, struct job *job,
                                 int opcode) {
  struct pair *p = &lane->pairs[0];
  struct slot *slot = pair_slot(p, job);
  slot->opcode = (uint8_t)opcode;
  slot->remote = lane->peer_inbox;
  slot->rkey = lane->peer_inbox_key;
  slot->immediate = (uint32_t)FLOW_PROBE << FLOW_SHIFT;
  pair_post(p);
}

static bool queues_found_empty(struct fabric *fabric) {
  for (int i = 0; i < RENEW_TURNS; i++)
    if (!rails_poll(fabric))
      return true;
  return false;
}

static void probe_renew(struct lane *lane) {
  if (!queues_found_empty(lane->fabric) || lane->status < 0)
    return;
  if (lane->met)
    lane_break(lane, PERIGEE_PEER_LOST, "the peer was there and is gone");
  else if (pair_renew(&lane->pairs[0]))
    lane->probe = PROBE_NONE;
}

void verbs_probe(struct lane *lane) {
  if (lane->status < 0)
    return;
  if (lane->probe == PROBE_FAILED)
    lane->probe = PROBE_RESTS;
  else if (lane->probe == PROBE_RESTS)
    probe_renew(lane);
  if (lane->probe != PROBE_NONE || lane->status < 0)
    return;
  lane->probe = PROBE_OUT;
  control_post_nothing(lane, NULL, IBV_WR_RDMA_WRITE_WITH_IMM);
}

bool verbs_met(const struct lane *lane) {
  return lane->met;
}

void verbs_keepalive(struct lane *lane) {
  struct pair *p = &lane->pairs[0];
  if (p->posted == lane->keepalive_posted && pair_room(p) > 0)
    control_post_nothing(lane, NULL, IBV_WR_RDMA_WRITE);
  lane->keepalive_posted = p->posted;
}

bool verbs_drained(struct lane *lane) {
  if (lane->status < 0 || lane->cut || !lane->joined)
    return true;
  if (!notes_flush(lane) ||
      (!lane->bye_posted && pair_room(&lane->pairs[0]) == 0))
    return false;
  if (!lane->bye_posted)
    control_post_nothing(lane, &lane->last, IBV_WR_RDMA_WRITE);
  lane->bye_posted = true;
  return lane->last.pending == 0;
}
