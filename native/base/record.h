/* SPDX-License-Identifier: Apache-2.0
 *
 * record.h - what travels in a ring: a fixed little-endian header, then
 * optional words, extensions, the head and the slice.
 *
 *   0 u64 word       the transport's (0 in the record as built here)
 *   8 u8  kind       16 u32 generation of the operation
 *   9 u8  flags      20 u32 head: bytes of an inline head
 *  10 u16 method     24 u32 remaining, us; 0xffffffff: no limit
 *  12 u16 status     28 u8  codec
 *  14 u16 operation  29 u8  extensions: length in 8 bytes
 *                    30 u16 zero
 *  32 [u64 code] [u64 capacity] [extensions] [head] [slice]
 *
 * A head is its bytes, padded to 8, or a source (40 bytes) if HEAD_BULK. A
 * slice is u64 length and its bytes, or a source if SLICE_BULK. An extension is
 * u16 type, u16 length in units of 8 bytes (header included, at least 1) and a
 * payload; together they fill their area exactly. Receivers skip extensions of
 * unknown types and refuse unknown flags. The head of a reply that has a status
 * is a text (operations.h); such a reply has no slice.
 *
 *              operation, generation   method            remaining
 *   REQUEST    the caller's operation  the method        us left for it
 *   REPLY      the caller's operation  replier's index   replier's generation
 *   others     the sender's operation  0                 us left for it
 *
 * A reply answers the operation that its request named. It names the replier's
 * own operation in the two fields that replies do not need otherwise: a payload
 * that the caller fetches is exposed under that operation, whose mark tells when
 * it has ended.
 */
#ifndef PERIGEE_RECORD_H
#define PERIGEE_RECORD_H

#include <string.h>

#include "perigee.h"

enum record_kind {
  RECORD_REQUEST = 1,
  RECORD_REPLY = 2,
  RECORD_SEND = 3,  /* slice: the message */
  RECORD_IMM = 4,   /* code: the immediate */
  RECORD_READ = 5,  /* head: struct access */
  RECORD_WRITE = 6, /* head: struct access; slice: the data */
  RECORD_KINDS
};

enum record_flag {
  /* In requests and their replies the head is typed values (typed.h); in a
   * failure it is a text, a zero and typed values. Receivers ignore it on other
   * kinds, where older builds set it if a slice comes with the record. */
  RECORD_TYPED = 1,
  RECORD_SLICE = 2,
  RECORD_HEAD_BULK = 4,
  RECORD_SLICE_BULK = 8,
  RECORD_CODE = 16,
  RECORD_CAPACITY = 32,
  RECORD_FLAGS = 63 /* bit 6 is kept for MORE (streams) */
};

/* Types of extensions; a record has each at most once. TRACE, in requests: a
 * struct perigee_trace, padded with zeros; a later version may append to it.
 * PAD: has the head of a record begin at RECORD_LENT, behind the first line;
 * no receiver looks at its bytes. */
enum record_extension { RECORD_TRACE = 1, RECORD_PAD = 2 };
enum { RECORD_LENT = 64 };
enum { RECORD_EXTENSION = 4, RECORD_TRACE_PAYLOAD = 25, RECORD_TRACED = 32 };

enum { RECORD_HEADER = 32, RECORD_SOURCE = 40 };
#define RECORD_NO_LIMIT UINT32_MAX
#define PAYLOAD_MAX (UINT64_C(1) << 40)

/* Tells the peer where to get a payload. The transport that made it defines
 * what kind and address mean, except the highest byte of kind: the number of
 * the session's lane that has the payload (lanes.h), 0 for the first. */
struct source {
  uint64_t kind, address, block, count, stride;
};
enum { SOURCE_LANE = 56 };

static inline uint32_t source_lane(const struct source *source) {
  return (uint32_t)(source->kind >> SOURCE_LANE);
}
/* As the transport knows it; and as the peer is told. */
static inline struct source source_bare(struct source source) {
  source.kind &= (UINT64_C(1) << SOURCE_LANE) - 1;
  return source;
}
static inline struct source source_of_lane(struct source source,
                                           uint32_t lane) {
  source.kind |= (uint64_t)lane << SOURCE_LANE;
  return source;
}

/* A range of the receiver's region, as the peer names it. */
struct access {
  uint64_t slot, generation, offset, block, count, stride;
};

/* A decoded record: every length has been checked against the record's
 * bytes. */
struct record {
  uint8_t kind, flags, codec;
  uint16_t method, operation;
  int status;
  uint32_t generation, remaining;
  uint64_t code, capacity;
  const uint8_t *head;  /* inline head, in the ring */
  uint64_t head_length; /* of the inline head, or of what the source names */
  struct source head_source; /* if HEAD_BULK */
  const uint8_t *slice;
  uint64_t slice_length;
  struct source slice_source; /* if SLICE_BULK */
  /* Payload of the TRACE extension, in the ring, where the peer may still
   * change it; NULL: there is none. */
  const uint8_t *trace;
};

/* Returns how many bytes stand before the head in a record with these flags. */
static inline uint64_t record_before(uint32_t flags) {
  return RECORD_HEADER + (flags & RECORD_CODE ? 8 : 0) +
         (flags & RECORD_CAPACITY ? 8 : 0);
}
static inline uint64_t record_padded(uint64_t n) {
  return (n + 7) & ~UINT64_C(7);
}
/* Returns the record's size in the ring; bulk parts count as their sources. */
uint64_t record_size(const struct record *record);
/* Return where the inline head and the inline slice of the record at `bytes`
 * belong; NULL if it has none. */
uint8_t *record_head(const struct record *record, uint8_t *bytes);
uint8_t *record_slice(const struct record *record, uint8_t *bytes);
/* Writes everything but the inline head, the inline slice and the transport's
 * word. Call it last: it writes backwards, so that the record's first line,
 * which the peer polls, is written at once together with the word that follows,
 * and moves between the two processors only once. */
void record_encode(const struct record *record, uint8_t *bytes);
/* As record_encode, with a trace context. It takes RECORD_TRACED bytes more, so
 * head and slice stand that much further on. */
void record_encode_traced(const struct record *record, uint8_t *bytes,
                          const struct perigee_trace *trace);
/* As record_encode, of a record that has an inline head alone, at
 * RECORD_LENT. */
void record_encode_lent(const struct record *record, uint8_t *bytes);

static inline void record_word(uint8_t *at, uint64_t word) {
  memcpy(at, &word, sizeof word);
}
/* Those that do not fit have no name either, and are not to arrive as OK. */
static inline uint64_t record_status_word(int status) {
  uint32_t word = -(uint32_t)status;
  return word < UINT16_MAX ? word : UINT16_MAX;
}
/* The last part of record_encode, for records that have only an inline head
 * and so many bytes of extensions, which are in place already. Each word is
 * composed in a register and stored whole: a header composed in memory by
 * narrow stores would have to wait, when it is read again, for those stores and
 * all stores to the ring before them. */
static inline __attribute__((always_inline)) void
record_encode_behind(const struct record *r, uint8_t *bytes,
                     uint64_t extensions) {
  uint8_t *at = bytes + record_before(r->flags);
  uint64_t head = (r->flags & RECORD_HEAD_BULK) ? 0 : r->head_length;
  if (r->flags & RECORD_CAPACITY)
    record_word(at -= 8, r->capacity);
  if (r->flags & RECORD_CODE)
    record_word(at - 8, r->code);
  record_word(bytes + 24,
              r->remaining | (uint64_t)r->codec << 32 | extensions / 8 << 40);
  record_word(bytes + 16, r->generation | head << 32);
  record_word(bytes + 8, r->kind | (uint64_t)r->flags << 8 |
                             (uint64_t)r->method << 16 |
                             record_status_word(r->status) << 32 |
                             (uint64_t)r->operation << 48);
}
static inline __attribute__((always_inline)) void
record_encode_words(const struct record *r, uint8_t *bytes) {
  record_encode_behind(r, bytes, 0);
}
/* The peer may write while this side reads. The checked value must be the used
 * value, so the compiler must not read the ring a second time. */
static inline uint64_t record_once(const uint8_t *at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  __asm__ volatile("" : "+r"(word)); /* in a register, and nowhere else */
  return word;
}
/* Sets single fields: zeroing the sources of each record would cost more than
 * decoding does. They are set later, or never read. */
static inline __attribute__((always_inline)) void
record_take_header(struct record *r, const uint64_t word[3]) {
  r->kind = (uint8_t)word[0];
  r->flags = (uint8_t)(word[0] >> 8);
  r->method = (uint16_t)(word[0] >> 16);
  r->status = -(int)(uint16_t)(word[0] >> 32);
  r->operation = (uint16_t)(word[0] >> 48);
  r->generation = (uint32_t)word[1];
  r->remaining = (uint32_t)word[2];
  r->codec = (uint8_t)(word[2] >> 32);
  r->code = r->capacity = 0;
  r->head = r->slice = r->trace = NULL;
  r->slice_length = 0;
}
/* Takes the parts of a record that has a slice, a source or extensions: so many
 * bytes at `at`, behind the words of the flags. False: the peer broke the
 * protocol. */
bool record_take_parts(const uint8_t *at, uint64_t length, uint64_t extensions,
                       uint32_t inline_length, struct record *record);
/* Copies the header once and checks the copy. Returns 0, PERIGEE_PROTOCOL, or
 * PERIGEE_UNSUPPORTED for a flag or kind of a later version. Mostly there is an
 * inline head and nothing else, so that is not taken step by step. It is inlined,
 * so that the words stay in registers. */
static inline __attribute__((always_inline)) int
record_decode(const uint8_t *bytes, uint64_t length, struct record *r) {
  enum { PARTS = RECORD_SLICE | RECORD_HEAD_BULK | RECORD_SLICE_BULK };
  if (length < RECORD_HEADER)
    return PERIGEE_PROTOCOL;
  uint64_t word[3] = {record_once(bytes + 8), record_once(bytes + 16),
                      record_once(bytes + 24)};
  record_take_header(r, word);
  uint32_t flags = r->flags;
  if ((flags & ~RECORD_FLAGS) || r->kind == 0 || r->kind >= RECORD_KINDS)
    return PERIGEE_UNSUPPORTED;
  uint64_t before = record_before(flags), head = word[1] >> 32;
  uint64_t extensions = 8 * (word[2] >> 40 & 0xff);
  if (before > length)
    return PERIGEE_PROTOCOL;
  if (flags & RECORD_CODE)
    r->code = record_once(bytes + RECORD_HEADER);
  if (flags & RECORD_CAPACITY)
    r->capacity = record_once(bytes + before - 8);
  if (r->capacity > PAYLOAD_MAX)
    return PERIGEE_PROTOCOL;
  if (__builtin_expect(extensions || flags & PARTS, 0)) {
    return record_take_parts(bytes + before, length - before, extensions,
                             (uint32_t)head, r)
               ? PERIGEE_OK
               : PERIGEE_PROTOCOL;
  }
  r->head = bytes + before;
  r->head_length = head;
  return record_padded(head) <= length - before ? PERIGEE_OK : PERIGEE_PROTOCOL;
}
/* Returns block * count, or UINT64_MAX if that exceeds PAYLOAD_MAX. */
uint64_t shape_total(uint64_t block, uint64_t count);

#endif
