/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.h - shared by the files of the transport over sockets.
 *
 *   tcp.c          the table, set-up, streams, polls, loans
 *   tcp_receive.c  the way in: heads and bodies, records, where fragments land
 *   tcp_fetch.c    payloads at their receiver: what of them came, the unexpected
 *                  queue
 *   tcp_feed.c     payloads at their owner: fed, and sent again
 *   tcp_life.c     streams for payloads: what they owe, and their end
 *   tcp_send.c     the way out: the send buffer, records, ends of operations
 *   tcp_ahead.c    payloads that are read in place, where a read put them
 *   tcp_sealed.c   sealed streams
 *
 * Each of them uses those below it.
 *
 * A lane has stream 0, the session's own socket, and up to 16 more for
 * payloads, so that long payloads do not delay short records. All streams have
 * the same format: heads of 24 bytes, each followed by its body.
 *
 *   type      body               which    operation, generation   at
 *   WORD                                                           the first
 *   RECORD    a record           ring
 *   CREDIT                       ring                             bytes taken
 *   BYTES     session's frames
 *   ENDED                                 the sender's, which has ended
 *   CLAIM                        part     the receiver's: send all of it
 *   FRAGMENT  bytes of a payload part     the sender's            offset
 *   ASK                          stream   its life
 *   TAKEN                        stream   its life, fragments     bytes
 *   LOST                         stream   its life, fragments
 *
 * Records. Each side grants the other `ring` bytes of credit for each ring. A
 * record takes its length, rounded up to 64, until it is released. CREDIT tells
 * the sum of what was released: together with a record, after each quarter of a
 * ring, or else by itself, after each half. So no ring is ever overrun; a peer
 * that sends more violates the protocol.
 *
 * Payloads are sent by their owner, behind the record that announces them: as
 * much as the window allows at once (`eager`, the third kind of credit), the
 * rest after the receiver's CLAIM. The receiver reads them from the socket
 * straight into their landing. A fragment whose landing is not known yet stops
 * its stream for a few polls; then it goes to the unexpected queue, which the
 * window bounds, so no stream is stopped for long. A word follows each
 * fragment: GOOD, or GIVEN_UP if its operation ended while it was being sent,
 * so that the rest of it is zeros. Only good fragments count.
 *
 * A stream for payloads is used once its first word has arrived; the lane works
 * without one that ends before that. Any other end of a stream ends the lane,
 * unless both sides have the feature "streams".
 *
 * Life of a stream for payloads, with that feature. A middlebox may forget one
 * connection, and one that was used lately is not proof that another works. So
 * the sender keeps in mind what a stream owes: the fragments that it was given,
 * until the receiver says, by stream 0, how many of them came whole: TAKEN,
 * after each few fragments, and in answer to ASK. The stream is lost if an
 * answer shows that nothing has come for lane_options.patience, and that
 * nothing lies unread. It is lost, too, if its socket ends. Only answers are
 * judged, so a peer that is stopped or slow loses no stream.
 *
 * Each side closes its socket, says LOST once for each life, with the number of
 * fragments that came whole, and counts nothing more of it. Stream 0 sends
 * again whatever the peer's LOST does not count, in order with CLAIM and ENDED,
 * as far as its operation goes on (tcp_feed.c). So each fragment counts exactly
 * once, and never after its operation ended. The dialer attaches another socket
 * at that place when both have said LOST. The stream is then in its next life,
 * whose number is in ATTACH; its keys are derived from that number.
 *
 * Within a host the sockets use no congestion control that paces (tcp_life.c).
 *
 * Ends. ENDED tells the peer that an operation has ended other than by its
 * reply, or that its reply was taken. The peer then delivers nothing more of
 * that generation, nor of the 2^31 generations before it. ENDED names a
 * generation that ended long ago if an operation number is used for longer than
 * that without such an end. Nothing of an operation's memory is sent after its
 * end here: bytes that the socket has not taken are sent as zeros (of a sealed
 * stream, bytes that are not sealed yet).
 *
 * The peer reads a write straight into memory that others see, and learns from
 * the word behind a fragment too late that it read zeros. Nothing keeps order
 * between two sockets, so zeros could overtake ENDED. With the feature "streams"
 * a stream for payloads is therefore held: it sends nothing of the zeros before
 * the peer knows of the end, and then drops them. Behind ENDED goes an ASK about
 * a life that the stream never has at that time; the peer answers it in order,
 * by a TAKEN for that life, and only then the stream goes on. Without the feature
 * ENDED is sent at once, which leaves the peer little time to read zeros. On
 * stream 0 the order is kept anyway.
 *
 *   out     the bytes that a stream has still to send; at body_at in them belong
 *           `left` bytes of a body that stands elsewhere
 *   in      the bytes that were read and not looked at yet; behind them, in the
 *           socket, comes the rest of the body that `sink` takes
 *
 * Ownership: the lane owns its streams, which own their sockets. Fetches and
 * exposures belong to their operations; lists and bodies refer to them until
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
  TCP_ASK,
  TCP_TAKEN,
  TCP_LOST,
  TCP_TYPES
};

enum { WHICH_EAGER = RINGS }; /* in CREDIT: the window; in FRAGMENT: a flag */
enum { PART_MASK = 1, PART_EAGER = 2 };
enum { SOURCE_PUSHED = 1 }; /* the kind of a source: the owner sends it */

struct tcp_head {
  uint32_t length; /* of the body */
  uint8_t type, which;
  uint16_t operation;
  uint32_t generation, unread; /* unread, in TAKEN: 1 if bytes wait for room */
  uint64_t at;
};
enum { TCP_HEAD = 24, TCP_TRAILER = 8 };
_Static_assert(sizeof(struct tcp_head) == TCP_HEAD, "as it is sent");
#define TCP_GOOD UINT64_C(0x646f6f6700000001)
#define TCP_GIVEN_UP UINT64_C(0x656e6f6700000002)

/* The content of an offer. */
struct tcp_offer {
  uint64_t ring, window;
};

enum {
  TCP_STREAMS = 17,
  TCP_UNIT = 64,             /* in which records take credit */
  TCP_READ_LARGE = 32 << 10, /* bytes read at once while bodies are short */
  TCP_READ_SMALL = 256,      /* the same while they are long */
  TCP_COPIED = 28 << 10,     /* most bytes of a fragment that is a short body */
  TCP_SHORT = 4096,          /* shorter blocks are gathered and scattered */
  TCP_AHEAD_MOST = 64 << 10, /* most bytes of a payload that is read in place */
  TCP_AHEADS = 8,            /* most such payloads of a lane at a time */
  TCP_MEDIUM = 128 << 10,    /* payloads up to this use stream 0 */
  TCP_FRAGMENT_MOST = 512 << 10,
  TCP_WINDOW = 1 << 20,
  TCP_UNEXPECTED = 16384,   /* most fragments in the unexpected queue */
  TCP_UNEXPECTED_EACH = 64, /* the same, of one operation */
  TCP_AHEAD = 4096,    /* most ranges of a payload that came out of order */
  TCP_FIRST = 1 << 20, /* bytes of a long payload sent before its CLAIM */
  TCP_BOUNCE = 64 << 10,
  TCP_FRAMES = 8 << 10,   /* most bytes of session frames not yet handled */
  TCP_KEEP = 256 << 10,   /* capacity that an empty send buffer keeps */
  TCP_WAITING = 1 << 20,  /* with more bytes to send, no record is taken; with
                             twice as many, no frame, and beside the longest
                             record no word of a stream: the peer is given up */
  TCP_OUT_MOST = 8 << 20, /* with more bytes to send, the peer is given up */
  TCP_PATIENCE = 32,      /* polls for which a fragment waits for its landing */
  TCP_RUNS = 64,
  TCP_TURN = 1 << 20,           /* most bytes that a poll moves, each way */
  TCP_LATENCY_BYTES = 32 << 10, /* the same in latency mode */
  TCP_LATENCY_TURNS = 64, /* polls for which a short request keeps that mode */
  TCP_OPERATIONS = 65536,
  TCP_OWED = 128,   /* most fragments that a stream owes */
  TCP_TELL = 32,    /* fragments after which TAKEN is said */
  TCP_LIVES = 65536 /* of one stream; then the session does without it */
};

/* A buffer that grows; it holds the bytes [first, end). */
struct bytes {
  uint8_t *at;
  uint32_t first, end, room;
};

/* Generations by number, 0 if never set. The array is only as long as the
 * highest number that was set, as most sessions have few operations. */
struct generations {
  uint32_t *at, count;
};

/* The bytes of a payload that have been received: all before `first`, and
 * ranges behind it that came out of order. The peer chooses how many these are:
 * all but a few count for its share (share; NULL: for nobody's). */
struct ranges {
  uint64_t first;
  struct stretch {
    uint64_t at, end;
  } * ahead;
  struct share *share;
  uint32_t count, room;
  uint32_t moved; /* bytes of the list, by the last range that was added */
};

/* The private part of a fetch. */
struct tcp_fetch {
  struct node node; /* of its operation's fetches */
  struct ranges received;
  uint64_t came, told;       /* bytes received, and of lists moved for them;
                                of these reported to the core */
  uint64_t unexpected_bytes; /* bytes that went through the unexpected queue */
  int status;                /* the first error */
  bool begun;
};
_Static_assert(sizeof(struct tcp_fetch) <= FETCH_OWN, "there is room for it");

static inline struct tcp_fetch *tcp_own(const struct fetch *f) {
  return (struct tcp_fetch *)f->own;
}

/* One operation of the peer. It is made when first needed and stays, so that a
 * look-up passes over no other operation's fragments. */
struct tcp_peer {
  struct node fetches, unexpected;
  uint32_t unexpected_count; /* entries in that queue */
};

/* A fragment that came before its landing was known. */
struct unexpected {
  struct node node; /* in its operation's unexpected queue */
  struct tcp_head head;
  struct payload walk; /* while it is copied into its landing */
  uint32_t got, put;
  bool good, walking;
  bool first; /* it came by stream 0 */
  bool apart; /* it lacks bytes before it, which may come again */
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

/* A block of TCP_AHEAD_MOST bytes into which a payload is read before anybody
 * asks for it. lent: it is read there (view). */
struct ahead_block {
  uint8_t *at;
  uint64_t counted; /* in the peer's share, while it is lent */
  bool lent, used;  /* used: since the last look */
};

/* What stream 0 is expected to bring next, and what of that has come: bytes of
 * a fragment whose head is in `in`, before those in `in` that follow. */
struct ahead {
  uint32_t prefix, length; /* of heads and record; of the payload; 0: nothing */
  uint32_t missed;         /* how often in turn that was wrong */
  struct ahead_block *block; /* of the bytes that have come */
  uint32_t first, end;       /* those that no sink has taken */
};

/* A fragment that a stream was given, or a part of it that is to be sent again.
 * begun: its bytes are being gathered. */
struct owed {
  uint64_t at;
  uint32_t length, generation;
  uint16_t operation;
  uint8_t which;
  bool begun;
};

/* The debt of a stream for payloads, at its sender. */
struct owing {
  struct owed *list; /* fragments taken to sent, at their number % TCP_OWED */
  uint32_t sent, taken; /* fragments so far: given to it; taken by the peer */
  uint64_t arrived;     /* bytes that have arrived, as the peer last said */
  int64_t moved;        /* when that last changed, or nothing was owed */
  int64_t asked_at;     /* when ASK was said last */
  bool asked;           /* it waits for its answer */
  bool suspect;         /* nothing moves: it gets no more fragments */
};

/* The end of a life of a stream, when both sides give it up. */
struct loss {
  bool doomed;      /* the next poll gives it up */
  bool lost;        /* it was given up, and is over once LOST was */
  bool told, heard; /* said by this side, and by the peer */
  uint32_t taken;   /* fragments, as the peer's LOST told */
};

struct stream {
  struct lane *lane;
  int fd;
  uint32_t number; /* its place */
  uint32_t life;
  int64_t since; /* when it was attached */
  struct owing owing;
  struct loss loss;
  uint32_t came, told; /* fragments that came whole; as TAKEN last told */
  uint64_t bytes_sent, bytes_received; /* in this life */
  bool readable,
      full;     /* as far as known: told by socket_ready, and tried out */
  bool ended;   /* the peer will send nothing more */
  bool up;      /* the peer's first word has arrived */
  bool dry;     /* nothing more was found to read in this poll */
  bool emptied; /* the last read found less than there was room for */
  bool brief;   /* bodies are long: little is read at once where heads are */
  /* Out. */
  struct bytes out;
  uint32_t body_at;          /* offset in out.at */
  uint64_t left;             /* bytes of the body; 0: there is none */
  struct payload body;       /* a walk over it */
  struct exposure *exposure; /* owner of the body; NULL: zeros are sent */
  bool held;                 /* until the peer knows of the body's end */
  /* In. */
  uint8_t *in;
  uint32_t in_first, in_end, in_room;
  struct tcp_head head; /* of the body that `sink` takes */
  uint8_t sink;
  uint32_t heads; /* that may be handled in this turn */
  uint64_t rest;  /* bytes of the body that are still to come */
  uint8_t *place; /* SINK_RECORD: where the next byte goes */
  struct fetch *fetch;
  struct payload walk; /* over its landing */
  struct unexpected *unexpected;
  int64_t tires_at; /* of waiting for the peer's share; 0: it does not */
  uint32_t patience;
  uint8_t *bounce; /* for landings that no CPU can write */
  uint32_t bounced, put;
  uint64_t trailer;
  struct ahead ahead;
  struct sealed *sealed; /* NULL: a plain stream */
};

/* The records received, in order, each in one piece. */
struct inbox {
  uint8_t *bytes;
  uint32_t size;
  uint32_t write, read; /* offsets */
  uint32_t wrap; /* records end here and go on at the start; 0: no wrap */
  uint64_t taken, released, told; /* credits since the start */
  uint64_t charged;               /* credits received, since the start */
};

struct outbox_ring {
  uint8_t *draft;          /* the record that was reserved */
  uint64_t sent, consumed; /* credits */
};

/* A place of a stream, whether or not there is one. */
struct stream_place {
  uint32_t next;           /* the life that it begins next */
  uint32_t over;           /* of all lives before this one LOST was said */
  int64_t again_at, pause; /* when it may be dialed, and how long after that */
};

struct lane {
  struct lane_head head;
  struct lane_options options;
  int status;
  char reason[REASON];
  bool joined, cut, armed;
  bool corked, pushing; /* see tcp_send.c */
  /* Stream 0 sends one poll later, so that what follows can go with it. */
  bool flush_deferred;
  uint32_t published, latency_turns;
  uint64_t turn;        /* bytes of payloads that this poll may move */
  uint64_t may_send[2]; /* of them still left, on stream 0 and on the others */
  uint64_t may_read;
  uint64_t peer_ring, peer_window;
  struct stream *streams[TCP_STREAMS];
  struct stream_place places[TCP_STREAMS];
  uint32_t stream_count, next_stream, first;
  uint32_t losing, suspects, lost; /* streams doomed or lost; suspect; so far */
  int64_t looked;                  /* when what streams owe was looked at */
  struct node exposed;             /* exposures, for what is sent again */
  struct owed *again;              /* what is to be sent again, in order */
  uint32_t again_first, again_count, again_room;
  struct inbox in[RINGS];
  struct outbox_ring out[RINGS];
  uint64_t eager_sent, eager_granted; /* window that the peer grants us */
  uint64_t eager_got, eager_done, eager_told;
  struct ahead_block aheads[TCP_AHEADS];
  uint8_t *frames; /* frames of the session */
  uint32_t frames_first, frames_end;
  struct tcp_peer **peers; /* by the peer's operation number */
  uint32_t peer_count, unexpected_count;
  uint64_t counted;         /* bytes of memory kept for the peer's operations */
  uint64_t unexpected_late; /* queued bytes that no window bounds, and that
                               wait for nothing that was lost */
  struct generations ended; /* by the peer's operation: the last that ended */
  struct generations told; /* by our operation: the last end told to the peer */
  struct generations claims; /* by our operation and part: the last claimed */
  struct blocks blocks; /* of the arena for loans, made when first needed */
  uint8_t *arena;
  uint64_t arena_length;
};

/* Returns the i-th stream to poll: 0, then the others, in rotating order. */
static inline struct stream *tcp_in_turn(const struct lane *lane, uint32_t i) {
  uint32_t others = lane->stream_count - 1;
  return lane->streams[i == 0 ? 0 : 1 + (i + lane->first) % others];
}

/* ---- tcp_sealed.c ------------------------------------------------------ */
int sealed_open(struct stream *s);
void sealed_close(struct stream *s);
/* As send(2) and recv(2) on the stream's socket: bytes, 0, or negative with
 * errno, which is EBADMSG if the peer did not seal what came. sealed_write
 * takes plain bytes. Sealed bytes may wait to be sent: sealed_waiting tells so,
 * and sealed_flush sends them. */
int64_t sealed_write(struct stream *s, const struct iovec *v, int count);
int64_t sealed_flush(struct stream *s);
bool sealed_waiting(const struct stream *s);
int64_t sealed_read(struct stream *s, uint8_t *to, uint64_t room);
/* Takes bytes that were read from the socket before the lane took it over. */
int sealed_given(struct stream *s, const uint8_t *bytes, uint32_t length);
/* The memory of its buffers, but for a page of each: how much they keep; and
 * what was not used since the last call goes back, true if some is left. */
uint64_t sealed_kept(const struct stream *s);
bool sealed_trim(struct stream *s);

/* ---- tcp_send.c -------------------------------------------------------- */
void tcp_break(struct lane *lane, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Queues a head and its body; false: the lane is broken. */
bool tcp_put(struct stream *s, const struct tcp_head *head, const void *body);
/* Queues a fragment whose body is sent from where it is. s->left must be 0. */
bool tcp_put_fragment(struct stream *s, const struct tcp_head *head,
                      const struct payload *from, struct exposure *exposure);
/* Sends as much as the socket takes, at most limit bytes; returns the
 * number. */
uint64_t tcp_send(struct stream *s, uint64_t limit);
/* The exposure's memory is not read any more: the rest is sent as zeros. */
void tcp_disown(struct lane *lane, const struct exposure *exposure);
/* Has it nothing to send, or nothing that may be sent now? */
bool tcp_idle(const struct stream *s);
/* Tells the peer's credit, once a share of it is not told. eager_done: the first
 * bytes of a payload need no room any more. */
bool tcp_tell_credit(struct lane *lane, uint8_t which, uint64_t at,
                     uint64_t *told, uint64_t share);
void tcp_eager_done(struct lane *, uint64_t bytes);
/* A fragment was queued, behind which credit for the window may go. */
void tcp_tell_behind(struct lane *);
/* The most of n bytes that are copied in one go (base/budget.h); twice as many,
 * as each call costs something, too. */
static inline uint64_t tcp_piece(const struct lane *lane, uint64_t n) {
  uint64_t most = 2 * *lane->options.piece;
  return n < most ? n : most;
}
/* So many bytes went through a socket in one go. True: the poll has taken its
 * time. Short ones are not worth a call. */
static inline bool tcp_overdue(const struct lane *lane, uint64_t bytes) {
  return bytes >= TCP_SHORT &&
         lane->options.overdue(lane->options.session, bytes);
}

/* Records, and what the peer has granted for them. */
uint8_t *tcp_reserve(struct lane *, enum ring, uint64_t length);
void tcp_publish(struct lane *, enum ring, uint64_t length);
void tcp_drafts_close(struct lane *);
bool tcp_credited(struct lane *, uint8_t which, uint64_t at);
/* The credit that a record takes. */
static inline uint32_t tcp_charge(uint64_t length) {
  return (uint32_t)((length + TCP_UNIT - 1) & ~(uint64_t)(TCP_UNIT - 1));
}
/* Called for each record. A short request switches the lane to latency mode, in
 * which polls move fewer bytes of payloads, so that the request does not wait
 * long for them. */
static inline void tcp_latency_mode(struct lane *lane, enum ring ring,
                                    const uint8_t *record) {
  enum { KIND = 8, FLAGS = 9, BULK = RECORD_HEAD_BULK | RECORD_SLICE_BULK };
  if (ring == RING_REQUEST && record[KIND] != RECORD_READ &&
      !(record[FLAGS] & BULK))
    lane->latency_turns = TCP_LATENCY_TURNS;
}

/* Ends of our operations. */
void tcp_mark(struct lane *, uint16_t operation, uint32_t generation);
void tcp_ended(struct lane *, uint16_t operation, uint32_t generation);
/* Returns the entry of a number, made if needed; NULL without memory. */
uint32_t *generation_place(struct generations *, uint32_t number);
static inline uint32_t generation_of(const struct generations *g,
                                     uint32_t number) {
  return number < g->count ? g->at[number] : 0;
}

/* ---- tcp_life.c -------------------------------------------------------- */
/* A number in ATTACH is that of a place and a life. */
static inline uint32_t tcp_place_of(uint32_t number) {
  return (number - 1) % (TCP_STREAMS - 1) + 1;
}
static inline uint32_t tcp_life_of(uint32_t number) {
  return (number - 1) / (TCP_STREAMS - 1);
}
static inline uint32_t tcp_number_of(const struct stream *s) {
  return s->number + (TCP_STREAMS - 1) * s->life;
}
/* Returns the number under which a socket is to be attached at a place, or
 * 0. */
uint32_t tcp_wants(struct lane *lane, uint32_t place);
/* May a socket be attached under that number? If so, its life begins. */
bool tcp_may_attach(struct lane *lane, uint32_t number);
void tcp_socket_options(const struct stream *s);

/* A stream was given a fragment. Has it room for another? */
void tcp_owe(struct stream *s, const struct tcp_head *head);
bool tcp_may_owe(const struct stream *s);
/* Does the exposure wait for a stream that may be lost, or is some of it to be
 * sent again? */
bool tcp_in_doubt(const struct lane *lane, const struct exposure *e);
static inline bool tcp_is_owed(const struct owed *o, const struct exposure *e) {
  return o->operation == e->operation && o->generation == e->generation &&
         (o->which & PART_MASK) == (e->part & PART_MASK);
}
/* The first that is to be sent again, of lane->again_count. drop: it need not
 * be sent any more. */
struct owed *tcp_again_first(const struct lane *lane);
void tcp_again_drop(struct lane *lane);
/* A fragment came whole. */
void tcp_came(struct stream *s);
/* Asks what has come by streams that owe something. */
void tcp_look(struct lane *lane);
/* Holds the streams that send bytes of the exposure, whose operation has ended,
 * until the peer knows of that. */
void tcp_hold(struct lane *lane, const struct exposure *e);
/* The words of the peer; false: it violates the protocol. */
bool tcp_asked(struct lane *lane, const struct tcp_head *head);
bool tcp_taken(struct lane *lane, const struct tcp_head *head);
bool tcp_lost(struct lane *lane, const struct tcp_head *head);
/* The stream's socket has ended, or it says nothing that such a stream says. The
 * next poll gives it up. */
void tcp_doom(struct stream *s);
/* Says LOST of a stream that was given up. is_over: both sides have said it. */
void tcp_say_lost(struct stream *s);
void tcp_is_over(struct stream *s);

/* Closes a socket that was attached. */
static inline void tcp_detach(const struct lane *lane, int fd) {
  lane->options.detach(lane->options.session, fd);
}
static inline bool tcp_usable(const struct stream *s) {
  return s && s->fd >= 0 && s->up && !s->loss.doomed;
}

/* ---- tcp_feed.c -------------------------------------------------------- */
/* The private part of an exposure. */
struct tcp_exposure {
  uint8_t *block;   /* in which short blocks are gathered, or NULL */
  struct node node; /* in lane->exposed */
};
_Static_assert(sizeof(struct tcp_exposure) <= EXPOSURE_OWN, "there is room");

static inline struct tcp_exposure *tcp_exposed(const struct exposure *e) {
  return (struct tcp_exposure *)e->own;
}
int tcp_expose(struct lane *, struct exposure *, struct payload *);
int64_t tcp_feed(struct lane *, struct exposure *);
void tcp_conceal(struct lane *, struct exposure *);
bool tcp_claimed(struct lane *, const struct tcp_head *);
/* A poll's part of sending again what streams that were lost owed. */
void tcp_send_again(struct lane *lane);

/* ---- tcp_receive.c ----------------------------------------------------- */
/* Reads as much as there is, at most limit bytes; returns the number. */
uint64_t tcp_receive(struct stream *s, uint64_t limit);
static inline uint32_t tcp_unread(const struct stream *s) {
  return s->in_end - s->in_first;
}
/* Do bytes that were read wait for their landing, or to be looked at? */
static inline bool tcp_waits(const struct stream *s) {
  return s->sink == SINK_WAITING || s->ahead.first < s->ahead.end ||
         (tcp_unread(s) > 0 && s->rest > 0) || tcp_unread(s) >= TCP_HEAD;
}

int tcp_peek(struct lane *, enum ring, const uint8_t **bytes, uint64_t *length);
bool tcp_release(struct lane *);

int64_t tcp_fetch(struct lane *, struct fetch *);
bool tcp_fetch_end(struct lane *, struct fetch *);
/* The stream was lost: what has come of a fragment does not count, as all of it
 * comes again. */
void tcp_forget_fragment(struct stream *s);

/* ---- tcp_ahead.c ------------------------------------------------------- */
/* Makes three vectors for what stream 0 is expected to bring next, where it may
 * bring that; false: nothing is expected, or not now. */
bool ahead_vectors(struct stream *s, struct iovec *v);
/* So many bytes were read into these vectors; false: no memory. */
bool ahead_came(struct stream *s, uint64_t got, const struct iovec *v);
/* Bytes for the sink that are before those in `in`; ahead_took: n of them. */
static inline uint32_t ahead_bytes(const struct stream *s) {
  bool body = s->sink == SINK_FETCH || s->sink == SINK_UNEXPECTED ||
              s->sink == SINK_DROP;
  return body ? s->ahead.end - s->ahead.first : 0;
}
void ahead_took(struct stream *s, uint64_t n);
/* As the transport's view and unview. */
const uint8_t *ahead_view(struct lane *lane, const struct source *source,
                          uint16_t operation, uint32_t generation);
void ahead_unview(struct lane *lane, const uint8_t *bytes, uint64_t length);
/* What it keeps, and gives back; as kept and trim. */
uint64_t ahead_kept(const struct lane *lane);
bool ahead_trim(struct lane *lane);
void ahead_close(struct lane *lane);

/* ---- tcp_fetch.c ------------------------------------------------------- */
/* Adds the bytes [at, at + length); a status if some of them came before. */
int ranges_add(struct ranges *, uint64_t at, uint64_t length);
/* Removes bytes that were added; PERIGEE_OK, or PERIGEE_NO_MEMORY. */
int ranges_remove(struct ranges *, uint64_t at, uint64_t length);
void ranges_close(struct ranges *);

/* The peer has sent ENDED. */
void tcp_ended_told(struct lane *, const struct tcp_head *);
bool tcp_live(struct lane *lane, uint16_t operation, uint32_t generation);
void tcp_peers_close(struct lane *);

/* Returns an operation of the peer, made if needed; NULL without memory. */
struct tcp_peer *tcp_peer_new(struct lane *lane, uint16_t operation);
/* Does it have a fetch of that part that goes on? The peer tells the end of one
 * before it uses the operation's number again. So its list of fetches stays
 * short. */
bool tcp_peer_fetches(struct lane *lane, const struct tcp_peer *peer,
                      uint8_t part);
/* Returns the fetch that a fragment belongs to, or NULL. */
struct fetch *tcp_fetch_of(struct lane *lane, const struct tcp_head *h);
/* Is the fragment within its payload, and new? Its bytes count as received from
 * then on. False: the peer violates the protocol, or there is no memory for it,
 * and the fetch fails. */
bool tcp_fetch_takes(struct lane *lane, struct fetch *f,
                     const struct tcp_head *h);
/* Takes that back, as the fragment's stream was lost. */
void tcp_fetch_back(struct lane *lane, struct fetch *f,
                    const struct tcp_head *h);
/* Not all of the payload can be had. */
void tcp_fetch_fails(struct fetch *f, int status);
void tcp_fetch_got(struct fetch *f, uint32_t length, bool good);
/* May bytes from `at` on be put there now, as far as order goes? Memory that
 * copies asynchronously is filled in order only. Nothing goes behind a fragment
 * whose word is still to come: if its stream is lost, it begins anew. */
bool tcp_fetch_is_next(const struct lane *lane, const struct fetch *f,
                       uint64_t at);
bool tcp_unexpected_full(const struct lane *lane, const struct tcp_head *h);
/* apart: it lacks bytes before it, which may come again. */
struct unexpected *tcp_unexpected_add(struct lane *lane,
                                      const struct tcp_head *head, bool apart);
/* Returns how many bytes of the fetch are in the unexpected queue, or on their
 * way there, that came by stream 0. */
uint64_t tcp_unexpected_bytes(struct lane *lane, const struct fetch *f);
/* Has the queue what the fetch can take next? */
bool tcp_unexpected_brings(const struct lane *lane, const struct fetch *f);
void tcp_unexpected_free(struct lane *lane, struct unexpected *e);
/* Moves queued fragments of the fetch into its landing, as far as possible. */
void tcp_unexpected_take(struct lane *lane, struct fetch *f);
/* Removes all fragments of a fetch. */
void tcp_unexpected_forget(struct lane *lane, const struct fetch *f);

#endif
