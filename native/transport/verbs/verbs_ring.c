/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_ring.c - records and notes: what goes through the control pair.
 *
 * An inbox is a ring of notes and two rings of records. Each of them arrives as
 * one RDMA write with an immediate, which tells the ring, whether the record
 * wrapped to the ring's start, and its length. So memory is not polled: a
 * record is there when its completion is.
 *
 * Credits. Each record and note begins with a word that tells how far the
 * sender has emptied its own inbox: units of both rings (20 bits each), records
 * and notes (12 bits each). A word that tells more than was sent is old or
 * wrong, and is ignored. If there is nothing else to send, a note is sent when
 * a quarter of something can be given back.
 *
 * Notes are handled as they complete and never wait for the program. Records
 * wait in their ring until the core peeks. A record is sent after all notes
 * before it, as it may rely on a grant that one of them revokes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "verbs.h"

enum { UNITS_BITS = 20, COUNT_BITS = 12 };
enum { SKIP = 1 << 29, NOTE_SPACE = NOTES * NOTE };
static const uint64_t UNITS_MASK = (1 << UNITS_BITS) - 1;
static const uint64_t COUNT_MASK = (1 << COUNT_BITS) - 1;

/* ---- Set-up ------------------------------------------------------------- */

static void *map(uint64_t length) {
  void *p = mmap(NULL, length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return NULL;
  madvise(p, length, MADV_DONTFORK);
  return p;
}

static uint64_t words_length(void) {
  return OPERATIONS * (sizeof(uint32_t) + 4 * sizeof(uint64_t));
}

int ring_set_up(struct lane *lane) {
  const uint64_t ring = lane->options.ring;
  lane->inbox_length = NOTE_SPACE + RINGS * ring;
  lane->inbox = map(lane->inbox_length);
  lane->words = map(words_length());
  if (!lane->inbox || !lane->words)
    return PERIGEE_NO_MEMORY;
  lane->staged = (void *)lane->words;
  lane->acked = lane->staged + OPERATIONS;
  lane->ended = (void *)(lane->acked + OPERATIONS);
  lane->in[FLOW_NOTE] = (struct inflow){.bytes = lane->inbox};
  for (int i = 0; i < RINGS; i++)
    lane->in[i] = (struct inflow){
        .bytes = lane->inbox + NOTE_SPACE + (uint64_t)i * ring, .size = ring};
  return inbox_open(lane);
}

static int register_outbox(struct lane *lane) {
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
  lane->outbox = map(lane->outbox_length);
  if (!lane->outbox)
    return PERIGEE_NO_MEMORY;
  int status = register_outbox(lane);
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
    munmap(lane->words, words_length());
  free(lane->waiting);
}

/* ---- Credits ------------------------------------------------------------ */

/* Notes whose room is free; one with session frames only after they were
 * taken. */
static uint32_t heard(const struct lane *lane) {
  return lane->heard - (lane->frames ? lane->frames->count : 0);
}

static uint64_t word_to_tell(struct lane *lane) {
  uint64_t word = 0;
  for (int i = 0; i < RINGS; i++) {
    struct inflow *in = &lane->in[i];
    word = word << UNITS_BITS | (in->freed / UNIT & UNITS_MASK);
    in->told = in->freed;
  }
  word = word << COUNT_BITS | (lane->taken_freed & COUNT_MASK);
  lane->taken_told = lane->taken_freed;
  lane->heard_told = heard(lane);
  word = word << COUNT_BITS | (lane->heard_told & COUNT_MASK);
  return word;
}

static void count_told(uint32_t *known, uint32_t sent, uint64_t told) {
  uint64_t more = (told - *known) & COUNT_MASK;
  if (more <= sent - *known)
    *known += (uint32_t)more;
}

static void word_heard(struct lane *lane, uint64_t word) {
  count_told(&lane->notes_known, lane->notes, word);
  count_told(&lane->sent_known, lane->sent, word >> COUNT_BITS);
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
         heard(lane) - lane->heard_told >= NOTES / 4;
}

/* ---- Sending ------------------------------------------------------------ */

/* Posts one RDMA write with immediate of the bytes at the offset. */
static void write_out(struct lane *lane, const struct outflow *out,
                      uint64_t offset, uint64_t length, uint32_t immediate) {
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
  uint64_t word = word_to_tell(lane);
  memcpy(out->bytes + offset, &word, sizeof word);
  out->head = out->at + units * UNIT;
  lane->sent++;
  write_out(lane, out, offset, length,
            (uint32_t)ring << FLOW_SHIFT | skip | (uint32_t)units);
}

/* ---- Notes -------------------------------------------------------------- */

static bool note_room(const struct lane *lane, bool credit) {
  uint32_t room = credit ? NOTES : NOTES - NOTES_KEPT;
  return lane->status == 0 && lane->notes - lane->notes_known < room &&
         pair_room(&lane->pairs[0]) > 0;
}

/* Returns how many bytes of a note have to be sent. */
static uint64_t span(const struct note *note) {
  if (note->kind == NOTE_FRAME)
    return offsetof(struct note, bytes) + note->part;
  return note->kind == NOTE_GRANT
             ? offsetof(struct note, rkey) + sizeof note->rkey
             : offsetof(struct note, base);
}

static void emit(struct lane *lane, const struct note *note) {
  struct outflow *out = &lane->out[FLOW_NOTE];
  uint64_t offset = (uint64_t)(lane->notes++ % NOTES) * NOTE;
  struct note *to = (void *)(out->bytes + offset);
  *to = *note;
  to->word = word_to_tell(lane);
  write_out(lane, out, offset, span(note), (uint32_t)FLOW_NOTE << FLOW_SHIFT);
}

static void keep(struct lane *lane, const struct note *note) {
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

bool notes_flush(struct lane *lane) {
  uint32_t n = 0;
  while (n < lane->waiting_count && note_room(lane, false))
    emit(lane, &lane->waiting[n++]);
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
    emit(lane, note);
  else
    keep(lane, note);
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

static void note_heard(struct lane *lane, const struct note *note) {
  uint32_t op = note->operation;
  uint64_t word = tagged(note->generation, note->value);
  word_heard(lane, note->word);
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

/* ---- Receiving ---------------------------------------------------------- */

static void note_arrived(struct lane *lane) {
  struct note note;
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
  word_heard(lane, word);
}

void ring_arrived(struct lane *lane, uint32_t immediate) {
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
    emit(lane, &(struct note){.kind = NOTE_CREDIT});
  return false; /* the completion wakes the peer */
}

/* ---- Marks -------------------------------------------------------------- */

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
