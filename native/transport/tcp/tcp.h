/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.h - what the files of the transport over sockets share.
 *
 *   tcp.c           the table, set-up, breaking
 *   tcp_marks.c     which operations have ended
 *   tcp_records.c   records and their credits
 *   tcp_send.c      a stream's way out
 *   tcp_receive.c   its way in: heads, and where their bodies go
 *   tcp_landing.c   of those, fragments
 *   tcp_feed.c      payloads at their owner
 *   tcp_fetch.c     payloads at their receiver
 *   tcp_unexpected.c     what came of them before their landing was known
 *   tcp_ranges.c     which of their bytes came
 *   tcp_loans.c     blocks to lend
 *   tcp_sealed.c    the same bytes, sealed
 *
 * A lane has stream 0, the session's own socket, and up to 16 more for
 * payloads that would hold up what is short. All speak the same: heads of 24
 * bytes, each followed by its body.
 *
 *   type      body               which    operation, generation   at
 *   WORD                                                           the first
 *   RECORD    a record           ring
 *   CREDIT                       ring                             bytes taken
 *   BYTES     session's frames
 *   OVER                                  the sender's, ended
 *   CLAIM                        part     the receiver's: send all of it
 *   FRAGMENT  bytes of a payload part     the sender's            offset
 *
 * Records. Each side grants the other `ring` bytes for each ring, of which a
 * record takes its length, rounded up to 64, until it was released. CREDIT tells
 * the sum of what was released, by quarters; so no ring is ever overrun, and
 * whoever sends more lies.
 *
 * Payloads are sent by their owner, behind the record that tells of them: at
 * once as far as the window allows (`eager`, the third kind of credit), the rest
 * when the receiver has claimed it. They are read from the socket straight into
 * their landing. A fragment that has no landing yet holds up its stream for a
 * few polls, then it goes to the unexpected queue, which the window bounds; so no stream is
 * ever held up for long. After each fragment comes a word: GOOD, or GIVEN_UP if
 * its operation ended while it was being sent and the rest of it is zeros. Only
 * what was good counts.
 *
 * A stream for payloads is used once its first word has come; one that ends
 * before is done without. Any other end of a stream is the lane's.
 *
 * Ends. OVER tells that an operation has ended otherwise than by its reply, or
 * that its reply was taken; nothing that comes of it later is delivered, nor of
 * the 2^31 generations before it. Where a number is used for longer than that
 * without such an end, OVER tells of one that is long over. Once
 * it has ended here, nothing of its memory is sent: what a socket has not taken
 * is sent as zeros (of a sealed stream, what is not sealed yet).
 *
 *   out     what a stream has still to send: bytes; in their midst, at
 *           body_at, `left` bytes of a body that lies elsewhere
 *   in      what it has read and not yet looked at; behind it, in the socket,
 *           the rest of the body that `sink` is for
 *
 * Ownership: the lane owns its streams, and they their sockets. Fetches and
 * exposures are the operations'; lists and bodies refer to them until
 * fetch_end and conceal.
 */
#ifndef TCP_H
#define TCP_H

#include "base/blocks.h"
#include "base/list.h"
#include "transport/transport.h"

struct iovec;

enum tcp_type {
  TCP_RECORD = 1,
  TCP_CREDIT,
  TCP_BYTES,
  TCP_ENDED,
  TCP_CLAIM,
  TCP_FRAGMENT,
  TCP_WORD,
  TCP_TYPES
};

enum { WHICH_EAGER = RINGS }; /* of CREDIT; a flag in that of FRAGMENT */
enum { PART_MASK = 1, PART_EAGER = 2 };

struct tcp_head {
  uint32_t length; /* of the body */
  uint8_t type, which;
  uint16_t operation;
  uint32_t generation, zero;
  uint64_t at;
};
enum { TCP_HEAD = 24, TCP_TRAILER = 8 };
_Static_assert(sizeof(struct tcp_head) == TCP_HEAD, "as it is sent");
#define TCP_GOOD UINT64_C(0x646f6f6700000001)
#define TCP_GIVEN_UP UINT64_C(0x656e6f6700000002)

/* What an offer says. */
struct tcp_offer {
  uint64_t ring, window;
};

enum {
  TCP_STREAMS = 17,
  TCP_READ_LARGE = 16 << 10, /* read at once where bodies are short, */
  TCP_READ_SMALL = 256,      /* and where they are long */
  TCP_SHORT = 4096,          /* blocks below this are gathered and scattered */
  TCP_MEDIUM = 128 << 10,    /* payloads up to this go with the records */
  TCP_FRAGMENT_MOST = 512 << 10,
  TCP_WINDOW = 1 << 20,
  TCP_UNEXPECTED = 16384, /* fragments that may lie in the unexpected queue, */
  TCP_UNEXPECTED_EACH = 64, /* and of one operation */
  TCP_AHEAD = 4096,         /* stretches of a payload that came before others */
  TCP_FIRST = 1 << 20,      /* of a long payload, sent before it is claimed */
  TCP_BOUNCE = 64 << 10,
  TCP_FRAMES = 8 << 10,   /* of the session, not yet heard */
  TCP_KEEP = 256 << 10,   /* of room for what waits is kept when none does */
  TCP_WAITING = 1 << 20,  /* bytes that may wait to be sent before no record
                              more is taken (twice as many: no frame), */
  TCP_OUT_MOST = 8 << 20, /* and before the peer is given up */
  TCP_PATIENCE = 32,      /* polls */
  TCP_RUNS = 64,
  TCP_TURN = 1 << 20,           /* bytes that a poll moves at most, each way, */
  TCP_LATENCY_BYTES = 32 << 10, /* and while short requests come and go, */
  TCP_LATENCY_TURNS = 64, /* which is so for that many of them after each */
  TCP_OPERATIONS = 65536
};

/* Bytes in a buffer that grows: [first, end) are there. */
struct bytes {
  uint8_t *at;
  uint32_t first, end, room;
};

/* Generations by number; as long as the highest that was ever set, since most
 * sessions have few operations. What was never set is 0. */
struct generations {
  uint32_t *at, count;
};

/* Which bytes of a payload came: all before `first`, and stretches behind it
 * that came before others. */
struct ranges {
  uint64_t first;
  struct stretch {
    uint64_t at, end;
  } * ahead;
  uint32_t count, room;
};

/* What a fetch has here. */
struct tcp_fetch {
  struct node node; /* of its operation's fetches */
  struct ranges received;
  uint64_t came, told; /* bytes, and those that the core has heard of */
  uint64_t
      unexpected_bytes; /* bytes that were kept because they came too early */
  int status;           /* what went wrong first */
  bool begun;
};
_Static_assert(sizeof(struct tcp_fetch) <= FETCH_OWN, "there is room for it");

static inline struct tcp_fetch *tcp_own(const struct fetch *f) {
  return (struct tcp_fetch *)f->own;
}

/* What is known of an operation of the peer's. They are made when first needed
 * and stay: who looks for one sees no other's. */
struct tcp_peer {
  struct node fetches, unexpected;
  uint32_t unexpected_count; /* in the unexpected queue */
};

/* A fragment that came before its landing was known. */
struct unexpected {
  struct node node; /* of its operation's stash */
  struct tcp_head head;
  struct payload walk; /* while it is put where it belongs */
  uint32_t got, put;
  bool good, walking;
  bool first; /* stream 0 brought it */
  uint8_t bytes[];
};

enum sink {
  SINK_HEAD,
  SINK_WAITING,
  SINK_RECORD,
  SINK_BYTES,
  SINK_FETCH,
  SINK_UNEXPECTED,
  SINK_DROP,
  SINK_TRAILER
};

struct sealed; /* tcp_sealed.c */

struct stream {
  struct lane *lane;
  int fd;
  uint32_t number;
  bool readable,
      full;   /* as far as known: told by socket_ready, and tried out */
  bool ended; /* the peer will send no more */
  bool up;    /* the peer's first word came */
  bool dry;   /* in this poll nothing more was found to read */
  /* Out. */
  struct bytes out;
  uint32_t body_at;          /* offset in out.at */
  uint64_t left;             /* of the body; 0: there is none */
  struct payload body;       /* walk */
  struct exposure *exposure; /* whose it is; NULL: zeros */
  /* In. */
  uint8_t *in;
  uint32_t in_first, in_end;
  struct tcp_head head; /* of what `sink` is for */
  uint8_t sink;
  uint64_t rest;  /* bytes of it that are still to come */
  uint8_t *place; /* SINK_RECORD: where it goes on */
  struct fetch *fetch;
  struct payload walk; /* of its landing */
  struct unexpected *unexpected;
  uint32_t patience;
  uint8_t *bounce; /* for landings that no CPU touches */
  uint32_t bounced, put;
  uint64_t trailer;
  struct sealed *sealed; /* NULL: plain */
};

/* Records that came, in order, each in one piece. */
struct inbox {
  uint8_t *bytes;
  uint32_t size;
  uint32_t write, read; /* offsets */
  uint32_t wrap;        /* what is before it comes first; 0: no wrap */
  uint64_t taken, released, told; /* charges since the start */
  uint64_t charged;               /* came, since the start */
};

struct outbox_ring {
  uint8_t *draft;          /* a record that was reserved */
  uint64_t sent, consumed; /* charges */
};

struct lane {
  struct lane_head head;
  struct lane_options options;
  int status;
  char reason[REASON];
  bool joined, cut, armed;
  bool corked, pushing; /* see tcp_records.c */
  bool flush_deferred;  /* what waits on stream 0 waits for one poll more: what
                           follows it can go with it */
  uint32_t published, latency_turns;
  uint64_t turn;        /* bytes of payloads that this poll may move, */
  uint64_t may_send[2]; /* of them, by stream 0, and by the others */
  uint64_t may_read;
  uint64_t peer_ring, peer_window;
  struct stream *streams[TCP_STREAMS];
  uint32_t stream_count, next_stream, first;
  struct inbox in[RINGS];
  struct outbox_ring out[RINGS];
  uint64_t eager_sent, eager_granted; /* ours to the peer */
  uint64_t eager_got, eager_done, eager_told;
  uint8_t *frames; /* of the session */
  uint32_t frames_first, frames_end;
  struct tcp_peer **peers; /* by the number of the peer's operation */
  uint32_t peer_count, unexpected_count;
  uint64_t counted; /* bytes of what is known of the peer's operations */
  uint64_t unexpected_late;  /* bytes in it that no window bounds */
  struct generations ended;  /* by the peer's operation: the last that ended */
  struct generations told;   /* by our operation: the last end it was told of */
  struct generations claims; /* by our operation and part: the last claimed */
  struct blocks blocks; /* of the arena for loans, made when first needed */
  uint8_t *arena;
  uint64_t arena_length;
  uint64_t bytes_sent, bytes_received;
};

/* The streams of a poll: 0, then the others, another one first each time. */
static inline struct stream *tcp_in_turn(const struct lane *lane, uint32_t i) {
  uint32_t others = lane->stream_count - 1;
  return lane->streams[i == 0 ? 0 : 1 + (i + lane->first) % others];
}

/* ---- tcp.c ------------------------------------------------------------- */
void tcp_break(struct lane *lane, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- tcp_marks.c ------------------------------------------------------- */
/* A generation's place, or NULL: no memory. */
uint32_t *generation_place(struct generations *, uint32_t number);
static inline uint32_t generation_of(const struct generations *g,
                                     uint32_t number) {
  return number < g->count ? g->at[number] : 0;
}
void tcp_mark(struct lane *, uint16_t operation, uint32_t generation);
void tcp_ended(struct lane *, uint16_t operation, uint32_t generation);
/* The peer told of such an end. */
void tcp_ended_told(struct lane *, const struct tcp_head *);
bool tcp_live(struct lane *lane, uint16_t operation, uint32_t generation);

/* ---- tcp_send.c -------------------------------------------------------- */
/* A head and its body, to be sent in order; false: the lane is broken. */
bool tcp_put(struct stream *s, const struct tcp_head *head, const void *body);
/* A fragment whose body lies elsewhere; only while s->left is 0. */
bool tcp_put_fragment(struct stream *s, const struct tcp_head *head,
                      const struct payload *from, struct exposure *exposure);
/* As much as the socket takes, at most limit bytes. */
uint64_t tcp_send(struct stream *s, uint64_t limit);
/* Nothing more of that exposure's memory is looked at. */
void tcp_disown(struct lane *lane, const struct exposure *exposure);
bool tcp_idle(const struct stream *s);
/* Closes a socket of the lane's. */
static inline void tcp_shut(const struct lane *lane, int fd) {
  lane->options.close(lane->options.session, fd);
}

static inline bool tcp_usable(const struct stream *s) {
  return s && s->fd >= 0 && s->up;
}

/* ---- tcp_receive.c ----------------------------------------------------- */
/* As much as there is, at most limit bytes. */
uint64_t tcp_receive(struct stream *s, uint64_t limit);
/* Is there something in what was read that has to wait? */
bool tcp_waits(const struct stream *s);

/* Ends the lane: false. What the rest of a body is for. Bytes of it came. */
bool tcp_protocol_error(struct stream *s, const char *what);
void tcp_sink(struct stream *s, enum sink sink, uint64_t rest);
void tcp_count(struct stream *s, uint64_t n);

/* ---- tcp_landing.c ----------------------------------------------------- */
/* Of a fragment whose head came: its sink; false: its stream waits. */
bool tcp_place(struct stream *s);
/* Its trailer came. */
void tcp_trailed(struct stream *s);
/* Into memory that no CPU touches: how many of the bytes were taken; and is all
 * that was taken there? */
uint64_t tcp_bounced(struct stream *s, const uint8_t *at, uint64_t n);
bool tcp_settled(struct stream *s);

/* ---- tcp_loans.c ------------------------------------------------------- */
int tcp_loan(struct lane *, uint64_t length, uint8_t **, struct source *);
void tcp_unloan(struct lane *, const struct source *);
bool tcp_loaned(struct lane *, const uint8_t *, uint64_t, struct source *);
const uint8_t *tcp_view(struct lane *, const struct source *);
enum trim_left tcp_trim(struct lane *);
uint64_t tcp_kept(const struct lane *);
void tcp_loans_close(struct lane *);

/* ---- tcp_records.c ----------------------------------------------------- */
uint8_t *tcp_reserve(struct lane *, enum ring, uint64_t length);
void tcp_publish(struct lane *, enum ring, uint64_t length);
int tcp_peek(struct lane *, enum ring, const uint8_t **bytes, uint64_t *length);
bool tcp_release(struct lane *);
/* Called for each record; a short request switches the lane to latency mode: its
 * sender is not to wait long for the payloads of others. */
void tcp_latency_mode(struct lane *, enum ring, const uint8_t *record);
void tcp_drafts_close(struct lane *);
/* Where a record that comes is put, or NULL: it may not be. */
uint8_t *tcp_record_room(struct lane *, enum ring, uint32_t length);
void tcp_record_there(struct lane *, enum ring, uint32_t length);
bool tcp_credited(struct lane *, uint8_t which, uint64_t at);
void tcp_eager_done(struct lane *, uint64_t bytes);

/* Where a payload comes from. */
enum { SOURCE_PUSHED = 1 };

/* ---- tcp_feed.c -------------------------------------------------------- */
int tcp_expose(struct lane *, struct exposure *, struct payload *);
int64_t tcp_feed(struct lane *, struct exposure *);
void tcp_conceal(struct lane *, struct exposure *);
bool tcp_claimed(struct lane *, const struct tcp_head *);

/* ---- tcp_fetch.c ------------------------------------------------------- */
int64_t tcp_fetch(struct lane *, struct fetch *);
bool tcp_fetch_end(struct lane *, struct fetch *);
struct fetch *tcp_fetch_of(struct lane *, const struct tcp_head *);
/* Is a fragment of these bytes one of its payload's? All of them count as come
 * from then on; false: the peer lies, or there is no memory. */
bool tcp_fetch_takes(struct lane *, struct fetch *, const struct tcp_head *);
void tcp_fetch_got(struct fetch *, uint32_t length, bool good);

/* Memory that the peer makes the lane keep until its end; false: more than its
 * share. */
bool tcp_count_memory(struct lane *lane, uint64_t bytes);

/* ---- tcp_unexpected.c ------------------------------------------------------- */
/* NULL: nothing is known of that operation. */
struct tcp_peer *tcp_peer(const struct lane *, uint16_t operation);
/* Makes it, or NULL: no memory. */
struct tcp_peer *tcp_peer_new(struct lane *, uint16_t operation);
void tcp_peers_close(struct lane *);
struct unexpected *tcp_unexpected_add(struct lane *, const struct tcp_head *);
bool tcp_unexpected_full(const struct lane *, const struct tcp_head *);
/* Bytes of a fetch that lie in the unexpected queue, or are on their way there; or those
 * of them that stream 0 brought. */
uint64_t tcp_unexpected_bytes(struct lane *, const struct fetch *, bool first);
/* Moves on what is there of a fetch. */
void tcp_unexpected_take(struct lane *, struct fetch *);
/* Of a generation of an operation of the peer; of a fetch, in any case. */
void tcp_unexpected_drop(struct lane *, uint16_t operation,
                         uint32_t generation);
void tcp_unexpected_forget(struct lane *, const struct fetch *);
static inline bool tcp_is_of(const struct tcp_head *h, const struct fetch *f) {
  return h->operation == f->operation && h->generation == f->generation &&
         (h->which & PART_MASK) == f->part;
}

/* ---- tcp_ranges.c ------------------------------------------------------- */
/* The bytes [at, at + length) come; a status where some of them came before. */
int ranges_add(struct ranges *, uint64_t at, uint64_t length);
void ranges_close(struct ranges *);

/* ---- tcp_sealed.c ------------------------------------------------------ */
int sealed_open(struct stream *s);
void sealed_close(struct stream *s);
/* As send(2) and recv(2) on the stream's socket: bytes, 0, or negative with
 * errno. sealed_write takes plain bytes; what it took may still wait in it,
 * which sealed_waiting tells and sealed_flush sends. */
int64_t sealed_write(struct stream *s, const struct iovec *v, int count);
int64_t sealed_flush(struct stream *s);
bool sealed_waiting(const struct stream *s);
int64_t sealed_read(struct stream *s, uint8_t *to, uint64_t room);
/* What was read from the socket before it was the stream's. */
int sealed_given(struct stream *s, const uint8_t *bytes, uint32_t length);

#endif
