/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.h - the stats file of an engine: what it counts, its sessions and
 * methods, what is under way, and its last events, in memory that other
 * processes of the same user may read at any time. Nobody asks the engine, and
 * reading costs it nothing. The file outlives a process that is killed. This
 * header is installed as perigee_stats.h.
 *
 * Everything is little-endian, at fixed offsets, and aligned to its size. A
 * reader in any language maps the file, or reads it, and looks at
 *
 *   0         struct perigee_stats_head, PERIGEE_STATS_HEAD bytes
 *   offset    of each table that the head has: `rows` rows of `row` bytes
 *
 * A later version adds fields at the end of rows, which get longer, and tables
 * behind those that there are. So a reader takes row lengths and offsets from the
 * head, and passes over what it does not know. `version` changes if it would read
 * something wrong.
 *
 * One thread at a time writes, and no other process, except for log_asked. Each
 * word of 8 bytes is stored at once, so it is never torn. Two words are of
 * different moments: a reader must not conclude anything from a difference of two
 * counters. A row whose first word is 0 is free. This word is stored last when a
 * row is begun (release fences keep that order), and changes when the
 * row is used for something else. So a reader copies a row, reads the first word
 * again, and drops the copy if it has changed.
 *
 * Texts end in 0, are cut if they are too long, and come from peers and programs:
 * they may have any bytes. Times are nanoseconds of the engine's clock, which is
 * CLOCK_MONOTONIC if the program has given none.
 */
#ifndef PERIGEE_STATS_H
#define PERIGEE_STATS_H

#ifndef PERIGEE_CDEF
#include "perigee.h"
#endif

#define PERIGEE_STATS_MAGIC "perigee\1"

enum {
  PERIGEE_STATS_VERSION = 1,
  PERIGEE_STATS_HEAD = 4096,
  PERIGEE_STATS_SESSIONS = 256,    /* rows; see others */
  PERIGEE_STATS_OPERATIONS = 1024, /* rows, of operations with lower numbers */
  PERIGEE_STATS_EVENTS = 256,
  PERIGEE_STATS_METHODS = 512, /* row 0 has all methods without a row */
  PERIGEE_STATS_COUNTERS = 32,
  PERIGEE_STATS_STEPS = 16, /* of a histogram, in a power of two */
  PERIGEE_STATS_BUCKETS = 504,
  PERIGEE_STATS_STATUSES = 24,
  PERIGEE_STATS_SPANS = 1024
};

/* One of the tables: its place in the file. */
struct perigee_stats_table {
  uint64_t offset;
  uint32_t row, rows; /* bytes of a row; number of rows */
};

struct perigee_stats_head {
  char magic[8];          /* PERIGEE_STATS_MAGIC; zeros: it is being made */
  uint32_t version, head; /* PERIGEE_STATS_VERSION, PERIGEE_STATS_HEAD */
  uint64_t length;        /* of the file, which may be sparse */
  uint64_t pid;           /* of the process, in its own PID namespace */
  /* Field 22 of /proc/PID/stat: is a process of that number still this one? */
  uint64_t pid_started;
  uint64_t epoch;    /* differs between two lives of a name */
  uint64_t began;    /* when the engine opened */
  uint64_t began_at; /* the same, in ns since 1970 */
  /* When the engine last read its clock: it does so in polls that do something,
   * and in each 64th. */
  uint64_t looked;
  /* Since when it waits for events, or may (perigee_arm); 0: it runs, or the
   * program does. */
  uint64_t asleep;
  /* So many; the last is in row (events_given - 1) modulo the rows. The row after
   * that may have a half of the next one, whatever its first word is. */
  uint64_t events_given;
  uint64_t sessions_begun, sessions_without; /* so many; without a row */
  uint64_t methods_without;                  /* named, and without a row */
  struct perigee_stats_table names;          /* of counters: char [24] */
  /* One row: struct perigee_counters of the engine, and of sessions that were
   * freed, but those in `others`. `sessions`, `regions` and `pooled` are what there
   * is now, and so are `operations` and `kept` as of `looked` or `asleep`. Its
   * sessions keep bytes, too: their rows have these as of their last trim. */
  struct perigee_stats_table counters;
  struct perigee_stats_table sessions;   /* struct perigee_stats_session */
  struct perigee_stats_table operations; /* struct perigee_stats_operation */
  struct perigee_stats_table events;     /* struct perigee_stats_event */
  struct perigee_stats_table methods;    /* struct perigee_stats_method */
  /* struct perigee_stats_histogram: row n is of method n. */
  struct perigee_stats_table histograms;
  char name[128];  /* by which others find the engine; "": none */
  char scope[128]; /* where they do */
  char host[64];   /* the host's name */
  /* The first bytes of /proc/self/cmdline, with blanks in place of zeros. */
  char program[256];
  /* When the program last polled an engine that has a thread of its own
   * (`progress`), which looks at the clock, too; 0: it has none. */
  uint64_t polled;
  /* Spans begun; the last is in row (spans_given - 1) modulo the rows. */
  uint64_t spans_given;
  struct perigee_stats_table spans; /* struct perigee_stats_span */
  /* How much the program's log tells, enum perigee_stats_log: what another
   * process asks for, which writes it here, and what the program tells if nobody
   * asks. 0: nobody does; the program has no levels. The engine never writes the
   * first one, and takes other values for 0. */
  uint64_t log_asked, log_own;
  uint64_t others_open; /* sessions without a row that have not ended */
  /* One row: struct perigee_counters of sessions without a row, also of those that
   * were freed; `counters` has none of that. It gets a few sessions' numbers at
   * each look at the clock, and only grows, but for `kept`. */
  struct perigee_stats_table others;
};

enum perigee_stats_log {
  PERIGEE_STATS_ERROR = 1,
  PERIGEE_STATS_WARNING = 2,
  PERIGEE_STATS_INFO = 3,
  PERIGEE_STATS_DEBUG = 4
};

/* A session since it opened, also when it has ended, until its row is used
 * anew. */
struct perigee_stats_session {
  uint64_t id;            /* perigee_session_id; 0: the row is free */
  uint64_t state;         /* enum perigee_session_state */
  uint64_t status;        /* of its end, as a positive number; 0: none yet */
  uint64_t opened, ended; /* when; 0: not yet */
  uint64_t epoch;         /* of the peer */
  char peer[128];         /* the peer's name, or "" */
  char address[128];      /* dialed, or the listener's */
  char transport[16];
  char reason[128]; /* why it ended */
  /* With `size`, as perigee_counters has it, and room for later ones. */
  union {
    struct perigee_counters counters;
    uint64_t room[PERIGEE_STATS_COUNTERS];
  };
  /* Since it opened: why it is over neither shared memory nor RDMA, enum
   * perigee_stats_why. */
  uint8_t not_shm, not_verbs;
  uint8_t dialed; /* 1: by this side; 0: by the peer */
  uint8_t lanes;  /* that were open beside the first */
  uint8_t spare[4];
};

/* Why a transport that is better than the session's does not carry it. */
enum perigee_stats_why {
  PERIGEE_STATS_WHY_NOT = 0,   /* it does, or is no better; or not known */
  PERIGEE_STATS_WHY_ASKED = 1, /* another one was asked for */
  PERIGEE_STATS_WHY_APART = 2, /* the peer is on another host */
  PERIGEE_STATS_WHY_NOT_OFFERED = 3, /* by the peer */
  PERIGEE_STATS_WHY_USER = 4,        /* the peer runs as another user */
  PERIGEE_STATS_WHY_RETURNED = 5,    /* the session could not move to it */
  PERIGEE_STATS_WHY_STAYED = 6,      /* the session did not move to it */
  PERIGEE_STATS_WHY_BARE = 7,      /* it neither encrypts nor has MACs, and that
                                        is asked for */
  PERIGEE_STATS_WHY_NONE_HERE = 8, /* there is none here that can be used */
  PERIGEE_STATS_WHY_NO_SOCKET = 9, /* which it needs */
  PERIGEE_STATS_WHY_SECOND = 10,   /* both sides have it, and this one first */
  PERIGEE_STATS_WHY_UNFIT = 11     /* this system cannot have it */
};

/* An operation that is under way, until the poll after its event. A call of a batch
 * that has no event is there until its end. */
struct perigee_stats_operation {
  uint64_t began;   /* 0: there is none */
  uint32_t session; /* its id */
  uint32_t what;    /* enum perigee_stats_kind, and 2^16 times the row of its
                       method; 0: none, or one without a row */
};

enum perigee_stats_kind {
  PERIGEE_STATS_CALL = 1,
  PERIGEE_STATS_READ = 2,
  PERIGEE_STATS_WRITE = 3,
  PERIGEE_STATS_SEND = 4,
  PERIGEE_STATS_SERVED = 5, /* the peer's, until it is answered */
  PERIGEE_STATS_TRANSFER = 6,
  PERIGEE_STATS_RECV = 7,
  PERIGEE_STATS_RECV_IMM = 8,
  PERIGEE_STATS_LOOKUP = 9,
  PERIGEE_STATS_CONNECT = 10,
  PERIGEE_STATS_BATCH = 11 /* of calls, which have rows of their own */
};

/* An event that a poll gave to the program. */
struct perigee_stats_event {
  uint64_t time;
  uint32_t session;
  uint32_t what; /* enum perigee_kind, and 2^16 times the row of its method */
  int32_t status, operation;
  uint64_t bytes; /* that came with it */
};

/* A method of a peer's service as this engine calls it, or of an own service. */
struct perigee_stats_method {
  uint64_t used; /* 0: the row is free; 1: of a peer; 2: own; 3: row 0 */
  uint64_t bytes_out, bytes_in;
  uint64_t longest; /* ns; of the calls that the histogram has */
  uint64_t ends[PERIGEE_STATS_STATUSES]; /* calls by status: number n has those
                                            that ended in -n */
  char service[64], method[64];
};

/* How long calls took: own ones from their submission to their reply, the peers'
 * from REQUEST to the program's answer. One call in PERIGEE_STATS_SAMPLE is
 * measured, and counts for as many. All that take 100 us or more are measured,
 * and count for one each; but a handler that does not let its engine poll is seen
 * by those which are chosen alone, and so are own calls without a timeout, which
 * count for as many however long they take. Bucket n begins at (STEPS + n % STEPS)
 * << (n / STEPS + 2) ns, and ends where n + 1 begins; bucket 0 has those below 64
 * ns, too, and the last one all that took longer. */
struct perigee_stats_histogram {
  uint64_t count, sum; /* of calls; of their ns */
  uint64_t buckets[PERIGEE_STATS_BUCKETS];
};

enum { PERIGEE_STATS_SAMPLE = 16 };

/* One side of a call of a trace that is sampled (perigee_trace): when each of its
 * phases began. A span is written while the call goes on, so one without an end is
 * under way, or was when the process died.
 *
 *   caller    start     the program submitted it
 *             sent      the request was in the ring; 0: not yet
 *             landing   the reply was there, and its bytes were to be brought;
 *                       0: they came with it
 *             end       the reply was complete, or the call has failed
 *   callee    start     the request was read
 *             service   the program got it: its head and slice were there;
 *                       0: not yet, or never
 *             end       the program answered it, or it was refused
 *
 * So a call waits for room from start to sent (queue); goes both ways in what is
 * left of sent to end without the callee's start to end (wire); lands from start
 * to service, and from landing to end; and is served from service to end.
 *
 * Ids are random bytes, or what a program or peer said. `wire` is the span that
 * the request took along: zeros, none. The callee has it as its `parent`, and so
 * have the calls that its handler makes: these are children of the callee's span in
 * the same file. A caller's `wire` is its `span` unless the program named one,
 * which is then its `parent`, too. A peer says whether its calls are sampled, so it
 * can fill the ring, and no more. */
struct perigee_stats_span {
  uint64_t sequence; /* the n-th of the engine, from 1; 0: the row is free */
  uint8_t trace[16];
  uint8_t span[8];
  uint8_t parent[8]; /* zeros: none, the trace begins here */
  uint8_t wire[8];
  uint32_t session; /* its id */
  uint32_t what; /* PERIGEE_STATS_CALL or SERVED, and 2^16 times the row of its
                       method */
  uint64_t start, sent, landing, service;
  uint64_t end;                 /* 0: not yet; stored behind status and bytes */
  uint64_t bytes_out, bytes_in; /* as this side sees it */
  int64_t status;               /* of its end */
  char peer[72];                /* the peer's name, or "" */
};

#endif
