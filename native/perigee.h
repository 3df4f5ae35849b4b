/* SPDX-License-Identifier: Apache-2.0
 *
 * perigee.h - the whole public interface of libperigee, and the one source of
 * LuaJIT's ffi.cdef (the Makefile runs it through the preprocessor).
 *
 * All asynchronous work has the same form: submit it, get a small operation
 * number back, and poll batches of events. C never calls Lua, never blocks
 * except in perigee_wait and in functions whose comments say so (perigee_join,
 * perigee_call_wait). It starts no thread unless asked to (options.progress),
 * but to free long memory and to try how a GPU copies: these end by themselves.
 * State outside of an engine is what a process or a thread has once
 * (native/README.md). An engine and all that it owns belong to one thread of the
 * program. If a standard descriptor (0, 1, 2) is closed, an engine or a name that
 * is opened puts /dev/null there, so that nothing that is printed goes to a peer.
 *
 * Results. A function returns 0 (or a number >= 0 where its comment says so),
 * or a negative perigee_status. perigee_detail(engine) then tells what failed,
 * for which peer, and what to do about it.
 *
 * Operations. Submitting returns an operation number >= 0. The number stays
 * valid, and is not given to another operation, until its event has been
 * polled. Every operation has exactly one event, with event.operation equal to
 * its number, within its timeout. From that event on the caller owns every byte
 * of memory named in the operation again. Submitting may instead return
 * PERIGEE_INLINE: the operation succeeded at once and no event follows. Only two
 * have more events, before that one: a call with PERIGEE_ASKS may have
 * REPLY_LANDING, which ends nothing, and a batch of calls has REPLY for each call
 * that failed (perigee_call_batch).
 *
 * Pointers in events are valid until the next perigee_poll, perigee_await,
 * perigee_wait, perigee_join or perigee_call_wait on the same engine (of
 * requests that are HELD: until the reply; of a REPLY_LANDING: until REPLY).
 *
 * NULL. A text, list, slice, region of a slice, or head that is NULL where its
 * comment does not allow that is PERIGEE_INVALID. Handles, messages, and places
 * for results, are never NULL.
 *
 * Times are nanoseconds (int64_t, negative: no limit), sizes are bytes.
 *
 * Versions. A program works with a newer libperigee.so.0 than the one whose
 * header it was built with, and with an older one:
 *  - No function changes its meaning; what has to change gets a new name.
 *  - perigee_options, perigee_session_info, perigee_shares, perigee_failure,
 *    perigee_method, perigee_agent_options, perigee_device, perigee_gid and
 *    perigee_gpu grow at their end. The program says how many bytes its
 *    structure has. Nothing is written beyond that; fields that one side does not have are zero, and
 *    options that the program does not have are at their defaults.
 *    perigee_counters and perigee_entry grow, too, and have their own size.
 *  - All other structures stay as they are. A new field of perigee_message
 *    would be read only with a flag that older programs do not set.
 *  - A program that uses a function of a newer version needs that version.
 *  - New statuses, kinds of events and flags may come; programs pass over those
 *    that they do not know.
 * Tables of options.transports and options.memories are not covered: they are
 * built with the version that they are used with (perigee_abi).
 */
#ifndef PERIGEE_H
#define PERIGEE_H

#ifdef PERIGEE_CDEF
#define PERIGEE_API
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define PERIGEE_API __attribute__((visibility("default")))
#endif
#ifdef __cplusplus
/* A function hides a structure of its name, which in C++ is then no type by
 * itself. So there these functions have other names, for the same symbols, and
 * are called through macros. */
#define perigee_session(...) perigee_session_(__VA_ARGS__)
#define perigee_counters(...) perigee_counters_(__VA_ARGS__)
#define perigee_transfer(...) perigee_transfer_(__VA_ARGS__)
#pragma redefine_extname perigee_session_ perigee_session
#pragma redefine_extname perigee_counters_ perigee_counters
#pragma redefine_extname perigee_transfer_ perigee_transfer
extern "C" {
#endif

/* Raised when a declaration below changes; Lua refuses a core with another
 * number. */
enum { PERIGEE_ABI = 12 };
PERIGEE_API int perigee_abi(void);

/* ---- Statuses ---------------------------------------------------------- */

/* The names are those of err.kind in Lua; status.c has their sentences. */
enum perigee_status {
  PERIGEE_OK = 0,
  PERIGEE_TIMEOUT = -1,
  PERIGEE_CANCELLED = -2,
  PERIGEE_PEER_LOST = -3,
  PERIGEE_REMOTE = -4,      /* the remote handler failed: REPLY has its text */
  PERIGEE_DENIED = -5,
  PERIGEE_RANGE = -6,
  PERIGEE_STALE = -7,
  PERIGEE_NO_SERVICE = -8,
  PERIGEE_NO_METHOD = -9,
  PERIGEE_VERSION = -10,
  PERIGEE_TOO_LARGE = -11,
  PERIGEE_UNSUPPORTED = -12,
  PERIGEE_PROTOCOL = -13,
  PERIGEE_NO_MEMORY = -14,
  PERIGEE_CLOSED = -15,
  PERIGEE_NAME_TAKEN = -16,
  PERIGEE_NOT_FOUND = -17,
  PERIGEE_AGAIN = -18,      /* not now: poll, then try again */
  PERIGEE_INVALID = -19,    /* the caller's mistake */
  PERIGEE_SYSTEM = -20,     /* the operating system said no; errno in detail */
  PERIGEE_FORKED = -21,     /* a child process used its parent's engine */
  PERIGEE_DRAINING = -22    /* the peer drains (perigee_drain): no handler ran
                               for the call, which may be made elsewhere */
};
enum { PERIGEE_INLINE = 0x7fffffff };
/* Returns "timeout" for PERIGEE_TIMEOUT and so on; "unknown" for a number that
 * is no status. Static. */
PERIGEE_API const char *perigee_status_name(int status);
/* Returns a sentence without a full stop. Static. */
PERIGEE_API const char *perigee_status_text(int status);

/* ---- Engine ------------------------------------------------------------ */

struct perigee_engine;
struct perigee_session;
struct perigee_listener;
struct perigee_endpoint;
struct perigee_region;
struct perigee_remote;    /* a peer's region, as looked up */
struct perigee_prepared;

/* Tables that a program may give to an engine besides the built-in ones.
 * native/transport/transport.h and native/memory/memory.h describe them. */
struct perigee_transport;
struct perigee_memory;

/* How what sockets carry is protected. If the two sides differ, the stronger
 * setting applies: ALL before AUTH before OFF. */
enum perigee_encrypt {
  PERIGEE_ENCRYPT_DEFAULT = 0, /* beyond loopback ALL where possible (RDMA does
                                  not seal), else OFF */
  PERIGEE_ENCRYPT_ALL = 1,     /* everything is encrypted */
  PERIGEE_ENCRYPT_AUTH = 2,    /* readable, but protected against changes */
  PERIGEE_ENCRYPT_OFF = 3      /* an intermediary can read and change it */
};

/* The options of an engine. perigee_options_init fills in the defaults. */
struct perigee_options {
  uint64_t size;            /* of this structure, as perigee_options_init was
                               told */
  uint32_t operations;      /* in flight at once: 16384, of 16 to 65536; own
                               ones at most 15/16 of it, those of peers 7/8 */
  uint32_t sessions;        /* at once: 1024 */
  uint32_t regions;         /* that peers may reach, as they have a name or
                               rights for peers, at once: 1024, at most 4096 */
  uint32_t hellos;          /* unauthenticated peers at once: 256. Beyond that
                               the engine drops the oldest peer of the address
                               (at a path: of the process) that has most of
                               them */
  uint32_t watched;         /* descriptors of the program's own at once
                               (perigee_watch): 4096, at most 2^20 */
  int64_t hello_timeout;    /* time for the peer's handshake: 2 s, at least 1
                               ns */
  uint64_t ring;            /* bytes of each receive ring, a power of two:
                               64 KiB; there are two for each session. Over
                               shared memory a ring through which many payloads
                               of 2 KiB and more pass is replaced by 1 or 2 MiB of
                               its writer's memory until it is quiet */
  uint64_t eager;           /* payloads up to this travel in the ring: 16 KiB,
                               at most ring / 4. Over other transports than
                               shared memory, at most an eighth of the shorter
                               ring of both sides */
  uint64_t message;         /* largest payload accepted: 2^40 */
  uint64_t typed;           /* largest typed payload accepted: 1 MiB and 4 KiB;
                               decoding takes at most some 20 ns for each
                               byte */
  uint64_t hold;            /* requests and replies with longer typed heads are
                               HELD: 2^64 - 1, so none */
  uint64_t pool;            /* bytes of pooled blocks, and as many of blocks
                               that are kept until peers have read them: 1 GiB
                               each. This side's own requests take at most half
                               of the latter */
  uint32_t serving;         /* calls of one session in service at once: 1024 */
  /* Limits of what the engine holds for peers. Each peer has a share that
   * depends on what the other peers leave (native/base/shares.h). Operations,
   * sessions and pool have their limits above. */
  uint64_t mapped;          /* bytes of address space to map memory of peers on
                               this host: 64 TiB */
  uint64_t descriptors;     /* descriptors of sessions: 0, which means seven
                               eighths of what the process may open */
  uint64_t untaken;         /* bytes of replies that one session may leave
                               unread, or all sessions of a peer four times as
                               many, before its requests wait: 32 MiB */
  int64_t spin;             /* ns. The longest time that a wait polls before it
                               sleeps. The engine learns from past waits how
                               long polling pays (native/base/spin.h). 0: it
                               sleeps at once. -1 (the default): 50 us, or 200
                               us once the engine uses an RDMA device, which
                               takes longer to sleep and to wake */
  uint64_t epoch;           /* 0: random */
  int32_t pull;             /* 0: never read a peer's memory by
                               process_vm_readv, even if a probe at hello says
                               that it works: 1. A peer whose memory this
                               process may read (as a rule, of the same user)
                               can name memory that is never filled (FUSE,
                               userfaultfd): the read, and with it the engine,
                               then waits without end. If the main thread of a
                               peer has ended, nobody can read its memory: its
                               large payloads end their calls in NO_MEMORY */
  const char *rdma;         /* "nics=mlx5_0:1,mlx5_1 qps=2 gid=3 ..."
                               (native/devices/devices.h); outlives the engine.
                               NULL: the environment's PERIGEE_RDMA, else
                               defaults */
  /* Sessions over TCP. The texts outlive the engine. */
  const char *secret;       /* the secret that both sides prove to have:
                               "file:PATH" (owned by this user, closed to
                               others) or the secret itself; NULL: the
                               environment's PERIGEE_SECRET, else none; "":
                               none. A text of the environment is removed from
                               it; child processes get only "file:"
                               references. What is read is in no core dump; a
                               text that is given here stays the program's,
                               and is */
  const char *scope;        /* proofs are valid in this scope only: both sides
                               have the same one. Lua's agents have theirs here
                               ("default" if they were given none). NULL: "" */
  int32_t insecure;         /* 1: may listen without a secret beyond loopback:
                               0 */
  int32_t encrypt;          /* enum perigee_encrypt. With ALL or AUTH, sessions
                               over TCP that cannot have it are refused: 0 */
  int64_t dead_after;       /* how long a peer on another host may be silent
                               before it counts as lost: 3 s, at least 10 ms.
                               A connection for payloads is replaced after the
                               shorter of both sides' times, but not before
                               0.5 s */
  int32_t progress;         /* 1: for programs that compute for long. A thread
                               of the engine does the work of a poll while the
                               program neither polls nor waits. It serves
                               one-sided access and keeps sessions alive; events
                               wait for the program. It also calls clock, random
                               and plugins; counters of sessions lag a moment
                               behind. 0: no thread */
  int32_t spin_always;      /* 1: a wait polls for all of `spin`, whether or not
                               that has paid lately, and does not yield the core
                               meanwhile: for threads that have a core of their
                               own. 0 */
  uint32_t streams;         /* connections for payloads of a session dialed
                               here: 1, at most 16 */
  const char *faults;       /* injected faults, to test a program: "drop=0.01
                               delay=5ms ..." (native/transport/fault/fault.h).
                               NULL: the environment's PERIGEE_FAULTS; "":
                               none */
  /* Given to the engine so that a simulation can own them; NULL: the real
   * ones. The clock is monotonic nanoseconds; random fills and returns 0. */
  int64_t (*clock)(void *context);
  int (*random)(void *context, void *bytes, uint64_t length);
  void *context;
  /* Tried before the built-in transports, in this order; NULL-terminated
   * arrays that outlive the engine, or NULL. */
  const struct perigee_transport *const *transports;
  const struct perigee_memory *const *memories;
  const char *features;     /* "-trace ...": turns off features that sessions
                               would use if the peer has them
                               (perigee_feature_name), to test a program with
                               older peers. Read when the engine is opened.
                               NULL: all are on */
};

/* Fills in all defaults; call it before setting any field. size:
 * sizeof(struct perigee_options); PERIGEE_INVALID if no version has so few (8)
 * or so many bytes (64 KiB). */
PERIGEE_API int perigee_options_init(struct perigee_options *options,
                                     uint64_t size);
/* Makes an engine; options may be NULL. The engine is the caller's until
 * perigee_engine_close. PERIGEE_INVALID: an option is wrong, or PERIGEE_FAULTS
 * or PERIGEE_RDMA of the environment. PERIGEE_UNSUPPORTED: the program is of a
 * newer version, and has set an option that this one does not have. For the
 * secret's file: NOT_FOUND, DENIED (open to others, not this user's, no regular
 * file, too short or too long, with CR LF or a byte order mark) or SYSTEM.
 * NO_MEMORY. perigee_detail(NULL) tells which and why. Stretching a secret
 * takes some 0.1 s, once in a process. */
PERIGEE_API int perigee_engine_open(const struct perigee_options *options,
                                    struct perigee_engine **engine);
/* Closes every session, listener and region, and frees the engine with all
 * handles that it gave out. If sessions are over sockets, it waits at most 50
 * ms, for all together, until the last frames have been sent to their peers. It
 * also waits until no asynchronous copy of memory is under way. NULL is
 * allowed. */
PERIGEE_API void perigee_engine_close(struct perigee_engine *engine);
/* Returns what went wrong last, as a sentence; "" if nothing did. With engine
 * NULL it is what failed last in this thread without an engine, such as
 * perigee_engine_open. Valid until the next failing call. */
PERIGEE_API const char *perigee_detail(const struct perigee_engine *engine);
/* Returns a byte that is 1, and 0 in a child process that was forked since: the
 * engine and its memory are the parent's. Valid until the engine is closed. */
PERIGEE_API const uint8_t *perigee_alive(const struct perigee_engine *engine);
/* Returns the nanoseconds of the engine's clock, which is monotonic. */
PERIGEE_API int64_t perigee_now(const struct perigee_engine *engine);
/* Returns the number by which peers tell this engine from earlier ones. */
PERIGEE_API uint64_t perigee_epoch(const struct perigee_engine *engine);

/* ---- Events ------------------------------------------------------------ */

enum perigee_kind {
  PERIGEE_EVENT_NONE = 0,
  PERIGEE_EVENT_ACCEPTED = 1,  /* a listener has a new session */
  PERIGEE_EVENT_CONNECTED = 2, /* a connect succeeded or failed (status) */
  PERIGEE_EVENT_LOST = 3,      /* an established session ended; comes once. All
                                  its operations end with events of their own */
  PERIGEE_EVENT_REQUEST = 4,   /* a call to serve, all its bytes here */
  PERIGEE_EVENT_LANDING = 5,   /* a call with a slice: perigee_land says where
                                  it lands; REQUEST follows, or ABANDONED */
  PERIGEE_EVENT_ABANDONED = 6, /* a call that had LANDING will never have
                                  REQUEST; its operation is over */
  PERIGEE_EVENT_REPLY = 7,     /* a call of this side ended */
  PERIGEE_EVENT_SENT = 8,      /* the caller has received a reply for which
                                  perigee_reply returned 1, or never will
                                  (status) */
  PERIGEE_EVENT_DONE = 9,      /* transfer, send, recv, recv_imm, lookup, batch
                                  of calls ended */
  PERIGEE_EVENT_REFUSED = 10,  /* unauthenticated peers were refused. code: how
                                  many since the last such event; status and
                                  pointer: why one of them was (the last that
                                  did not merely hang up, if any). Only after
                                  perigee_tell_refused */
  PERIGEE_EVENT_READY = 11,    /* a descriptor that is watched is ready */
  PERIGEE_EVENT_REPLY_LANDING = 12 /* the reply to a call with PERIGEE_ASKS has
                                  come: perigee_land_reply says where its slice,
                                  or its raw bytes, land; REPLY follows. It is
                                  not given if the call ends before */
};

enum perigee_flag {
  PERIGEE_TYPED = 1,        /* the head is string.buffer data. Received heads
                               are copied to private memory and scanned. A
                               perigee_message with a status has a text, a zero,
                               and at most 16 KiB of such data behind it
                               (perigee_fail_call) */
  PERIGEE_SLICE = 2,        /* a slice came with it (slice tells its length) */
  PERIGEE_POOLED = 4,       /* .landed is a pooled block, now the caller's:
                               give it back with perigee_pool_free */
  PERIGEE_HELD = 8,         /* REQUEST, LANDING: typed data that is longer than
                               options.hold. The data stay in place until the
                               reply. Later data of the session wait until
                               perigee_started or the reply. So the data can be
                               decoded in portions, and no request overtakes
                               them. REPLY: .pointer is a pooled block that is
                               now the caller's (perigee_pool_free), and
                               .remaining is the time left of the call.
                               REPLY_LANDING: .pointer is the library's until a
                               REPLY that is OK, which is HELD */
  PERIGEE_TRACED = 16,      /* REQUEST, LANDING: a trace context came with it:
                               perigee_served_trace */
  PERIGEE_CARRIED = 32,     /* of a call's perigee_message: its trace is that of
                               the call being served. The call gets a new span.
                               If the peer does not have the feature, the call
                               goes without a trace */
  PERIGEE_CHECKED = 64,     /* of a perigee_message that is TYPED: the program
                               has made sure of its form (perigee_typed_scan,
                               or LuaJIT's own encoder), which is not checked
                               again if it is short */
  PERIGEE_ASKS = 256        /* of a call's perigee_message without `into`: when
                               a reply with a slice, or with raw bytes, has come,
                               the program is asked where they land
                               (REPLY_LANDING). Other replies, and failures, are
                               given at once. Without effect if `into` is
                               named */
};

/* 64 bytes. Fields not named for a kind are 0. */
struct perigee_event {
  uint8_t kind;             /* enum perigee_kind */
  uint8_t flags;            /* enum perigee_flag; READY: enum
                               perigee_readiness */
  uint16_t method;          /* REQUEST, LANDING */
  uint32_t session;         /* perigee_session_id, never used again; 0: none */
  int32_t status;           /* how the operation ended; REPLY: also the callee's
                               status */
  int32_t operation;        /* of own operations: what submitting returned,
                               which may be 0 as in events of none.
                               REQUEST, LANDING: the served call, for
                               perigee_reply */
  const uint8_t *pointer;   /* REQUEST, LANDING, REPLY: the head (raw bytes or
                               typed data). REPLY_LANDING: the typed head, which
                               stays there until REPLY; NULL: the reply is raw
                               bytes. REPLY with a status: a text of what
                               failed (not NUL-terminated), or NULL. DONE of a
                               lookup: the struct perigee_remote. LOST, and
                               CONNECTED and DONE with a status: a text of why,
                               or NULL */
  uint64_t length;          /* bytes at pointer; DONE of recv, transfers and
                               batches of calls that is OK: bytes moved */
  uint64_t slice;           /* length of the slice part that came.
                               REPLY_LANDING: of that, or of the raw bytes.
                               REPLY into a named slice: bytes filled. REPLY with
                               a status:
                               nothing is in `into`, and this is the length of
                               typed data at pointer + length + 1 that came with
                               the text (perigee_failure_read) */
  union {
    uint64_t capacity;      /* REQUEST: the largest reply that the caller
                               takes. REPLY of a batch: which call has failed */
    uint64_t immediate;     /* DONE of recv_imm */
    uint8_t *landed;        /* where a pooled slice part is (PERIGEE_POOLED) */
  };
  union {
    int64_t remaining;      /* REQUEST, LANDING, REPLY_LANDING, REPLY that is
                               HELD or has a status: time left; negative: no
                               limit. Of REQUEST and LANDING: or one of 2^32 us
                               (71 minutes) and more, as a request tells less
                               than that */
    int64_t descriptor;     /* READY */
  };
  uint64_t code;            /* REPLY, REPLY_LANDING, REQUEST: 64 bits of the
                               application; READY: the token */
};

/* Moves operations on and fills at most capacity events; returns their number.
 * Never blocks; holds the thread for at most about 1 ms of own work. What was
 * submitted is sent at once and wakes a peer that sleeps; a peer that falls
 * asleep at that very moment is woken by the next poll, wait or arm. */
PERIGEE_API int perigee_poll(struct perigee_engine *engine,
                             struct perigee_event *events, int capacity);
/* Polls for up to spin ns (-1: as options.spin says), but only for the one own
 * operation. Returns 1 and its event, also if a wait has found that before. The event
 * of a call with PERIGEE_ASKS may be REPLY_LANDING, that of a batch of calls REPLY.
 * Returns 0 when the time is over, when polling does not pay now (options.spin; then
 * use perigee_wait), or as soon as there is any other event (perigee_poll gives it). */
PERIGEE_API int perigee_await(struct perigee_engine *engine, int operation,
                              struct perigee_event *event, int64_t spin);
/* count: 1 to 64, else INVALID (without an engine: perigee_detail(NULL)).
 * Returns 1 as soon as perigee_poll may have an event on one of the engines; 0
 * after at most timeout ns and one poll of each engine (long copies go on
 * meanwhile); PERIGEE_AGAIN when a signal came. It polls first, by the first
 * engine's options.spin, then arms, checks again and sleeps in poll(2). A
 * sleeping process uses no CPU. */
PERIGEE_API int perigee_wait(struct perigee_engine *const *engines, int count,
                             int64_t timeout);
/* For programs that do one thing after another: waits until an own operation
 * has ended, and gives its event. operation: the number that a submitting
 * function returned. Returns the status of the event, of whose text
 * perigee_detail(engine) then has the first 255 bytes, as the peer may have
 * said them. If that number is a negative status, it is returned, and for
 * PERIGEE_INLINE 0; the event is then all zeros. INVALID: no own operation of
 * that number is under way, or its event was given before. NO_MEMORY: an event
 * that perigee_wait has found could not be kept; poll, then try again. FORKED.
 * With these three there is no event (PERIGEE_EVENT_NONE), and the operation is
 * as it was.
 *
 * Blocks: it polls by options.spin, then sleeps, and a sleep uses no CPU. It has
 * no limit of its own beside the operation's timeout. A signal does not end it;
 * perigee_signals_noted tells of it afterwards.
 *
 * Events of everything else that comes meanwhile wait for perigee_poll, which
 * gives them in their order: ends of other operations, requests of peers, new and
 * lost sessions, descriptors that are ready. Requests are taken as long as the
 * options operations, serving and pool allow, and their bytes are copied. The
 * library goes on to serve one-sided access and look-ups, brings messages to
 * receives and keeps sessions alive. Nobody serves calls of peers meanwhile. So
 * two programs that call each other and only wait for the replies both time
 * out, and a message behind a call with a slice waits until the program has
 * named that call's landing.
 *
 * A join asks nothing. What comes for a joined call with PERIGEE_ASKS goes to a
 * pooled block, as without that flag, also if the program was asked already.
 *
 * What earlier polls and joins gave is over with it, as with a poll: a program
 * that joins while it handles a batch of events takes one event at a time, or
 * copies first what the others point to. After a join, perigee_arm has to be
 * asked again before the program sleeps by perigee_fd. */
PERIGEE_API int perigee_join(struct perigee_engine *engine, int operation,
                             struct perigee_event *event);
/* For another event loop: perigee_fd returns a descriptor that becomes readable
 * when there may be events. The engine owns it. perigee_arm returns 1 if there
 * may be events already (poll now), else 0, and the descriptor will become
 * readable; *timeout (may be NULL) is when to poll at the latest, negative for
 * never. */
PERIGEE_API int perigee_fd(const struct perigee_engine *engine);
PERIGEE_API int perigee_arm(struct perigee_engine *engine, int64_t *timeout);

/* ---- The program's own descriptors ------------------------------------- */

enum perigee_readiness {
  PERIGEE_READABLE = 1,     /* read, recv or accept would not block: there are
                               data, the end, or an error */
  PERIGEE_WRITABLE = 2,     /* write, send or connect would not block */
  PERIGEE_HANGUP = 4        /* reported without being asked for: the other end
                               is gone, or there is an error; what was asked for
                               is reported as well */
};
/* Has the engine watch a descriptor (a socket, a pipe, an eventfd, another
 * engine's perigee_fd) beside its own. READY events report it, through
 * perigee_poll, perigee_await, perigee_wait, and perigee_arm with perigee_fd.
 * READY events that an engine's own thread finds (options.progress) wait for
 * the program's next poll. events: PERIGEE_READABLE, PERIGEE_WRITABLE or both.
 *
 * READY has the descriptor, what it is ready for (flags) and the token (code).
 * One poll gives it at most once, and each later poll gives it again for as
 * long as the descriptor is ready. So a program that leaves data unread gets it
 * again; a program that is not interested for now unwatches. A READY that the
 * program has got wakes no thread until the program polls again. READY may come
 * for a descriptor that is not ready any more, so descriptors should be
 * non-blocking (O_NONBLOCK). A program that polls without sleeping gets READY
 * within 0.5 ms.
 *
 * The program keeps owning the descriptor, and unwatches it before it closes
 * it. The engine does not notice a watched descriptor that is closed, or takes
 * the next one with its number for it; debug builds of the core abort and name
 * it.
 *
 * INVALID: the descriptor is not open, is watched already, or is the engine's
 * own, or events are wrong. UNSUPPORTED: epoll refuses it (files and folders,
 * which are always ready). NO_MEMORY: options.watched descriptors are watched
 * already, or the user has as many as the system allows. FORKED. Does not
 * block. perigee_watch, perigee_unwatch and each READY cost one system call; a
 * thousand descriptors that are not ready cost a poll nothing. Watching another
 * epoll costs the kernel time for each descriptor that is in that one: it is
 * better watched once, and then by perigee_rewatch. */
PERIGEE_API int perigee_watch(struct perigee_engine *engine, int fd, int events,
                              uint64_t token);
/* Changes the events and the token of a descriptor that is watched. A READY that
 * waits is withdrawn; the next one is by these. events 0: there is no READY, not
 * even of its end, until the next perigee_rewatch; of a descriptor whose READY
 * the program has got that costs no system call, else one. Does not block.
 * A READY that a poll has given already has the old token. NOT_FOUND: it is not
 * watched. INVALID: events are wrong; or, where it costs a system call, it was
 * closed before, and is not watched any more. FORKED. */
PERIGEE_API int perigee_rewatch(struct perigee_engine *engine, int fd,
                                int events, uint64_t token);
/* Ends the watching: no later poll gives READY for it, and one that waits is
 * withdrawn. Does not block. NOT_FOUND: it is not watched. INVALID: it was
 * closed before; it is not watched any more. FORKED. */
PERIGEE_API int perigee_unwatch(struct perigee_engine *engine, int fd);

/* ---- Regions and slices ------------------------------------------------ */

enum perigee_access {
  PERIGEE_LOCAL = 0,        /* peers get nothing ("denied") */
  PERIGEE_READ = 1,         /* peers may read */
  PERIGEE_WRITE = 2,        /* peers may write */
  PERIGEE_POPULATE = 4,     /* for perigee_region_alloc: all pages exist when it
                               returns, or it returns NO_MEMORY */
  PERIGEE_SHARED = 8,       /* memory of a device may be mapped by processes of
                               this host that are told of it, also if they may
                               not read or write it */
  PERIGEE_HUGE = 16,        /* for perigee_region_alloc: the same as POPULATE, and
                               all pages are huge ones of 2 MiB (what the length
                               leaves beyond is in small ones), or it returns
                               UNSUPPORTED */
  PERIGEE_NODE = 65536      /* for perigee_region_alloc, times 1 + n: pages are of
                               NUMA node n, at most 1023, while it has some, or
                               it returns NOT_FOUND */
};

/* Makes a region of new memory: page aligned, zeroed, and memfd-backed if kind
 * is NULL or "host" (with huge pages if possible). kind names a memory of
 * options.memories, or "cuda" (of NVIDIA's GPUs, by their driver), and maybe one
 * of its devices: "cuda" is the first, "cuda:3" the fourth. UNSUPPORTED: no such
 * kind, or no driver for it; or, with PERIGEE_HUGE, the system makes no huge
 * pages of it: that takes Linux 6.1 and free memory in one piece, maybe some ms
 * a page, and a region of less than 2 MiB has none. NOT_FOUND: no such device;
 * or this process can have no memory of the NUMA node. Neither PERIGEE_HUGE nor
 * PERIGEE_NODE means anything to a device's memory. NO_MEMORY:
 * more than the machine, or the process's control group, could have. Pages are
 * taken at their first use, and a system that has promised more memory than it
 * has kills the process that then touches them; PERIGEE_POPULATE takes all
 * pages at once, which takes time, and finds out.
 *
 * Memory of a device that grants PERIGEE_READ and PERIGEE_WRITE is shared: a
 * process of this host, of a session over a Unix socket, maps it, and copies
 * without this one. A driver cannot withhold the right to write from who maps
 * it, nor a part of the region, so other regions are shared only if access has
 * PERIGEE_SHARED, which says that peers are trusted to keep to their rights: for
 * one-sided access, and for slices that are sent to them. What is not shared is
 * copied through host memory by the owner. Host memory is shared as its rights
 * allow, and PERIGEE_SHARED changes nothing.
 *
 * name: NULL or 1 to 255 bytes,
 * unique in the engine (PERIGEE_NAME_TAKEN); peers find the region by it until
 * it is closed. */
PERIGEE_API int perigee_region_alloc(struct perigee_engine *engine,
                                     const char *name, uint64_t length,
                                     int access, const char *kind,
                                     struct perigee_region **region);
/* Makes a region of memory that the program allocated and keeps until the
 * region is closed. Only this process accesses it, on requests of peers; but
 * memory of a device may be shared by PERIGEE_SHARED, which shows processes of
 * this host the whole allocation that it is of. Such a region closes once they
 * have let go of it. Memory that the program frees before the close, and what
 * is allocated at its address then, is PERIGEE_STALE. kind
 * NULL: the kind that recognizes the pointer, else host memory. INVALID: the
 * memory is not of the kind named, ends before `length` bytes, or is managed by
 * CUDA (cudaMallocManaged). */
PERIGEE_API int perigee_region_register(struct perigee_engine *engine,
                                        const char *name, void *pointer,
                                        uint64_t length, int access,
                                        const char *kind,
                                        struct perigee_region **region);
/* Makes a region of a memfd whose size is sealed (F_SEAL_SHRINK, F_SEAL_GROW),
 * as perigee_region_file gives of another region, maybe of a process that has
 * ended: its bytes are there as they were. access: PERIGEE_READ or 0; peers map
 * the same pages, and from now on nobody else can begin to write to them. It is
 * for reading: what this process writes to the region only this process sees.
 * The descriptor stays the caller's. INVALID: it is no such file, or shorter, or
 * peers are to read one that others may go on to write, as they may that of a
 * region with PERIGEE_WRITE. */
PERIGEE_API int perigee_region_adopt(struct perigee_engine *engine,
                                     const char *name, int fd, uint64_t length,
                                     int access,
                                     struct perigee_region **region);
/* Returns the descriptor of the memfd that peers of this host map, which is the
 * region's; UNSUPPORTED: it has none (peers may not read it, or its memory is
 * not the host's, or the program's own). */
PERIGEE_API int perigee_region_file(const struct perigee_region *region);
/* Return the region's first byte, valid until the close, and its length as
 * given when it was made. Of memory that is not the host's it is an address of
 * its device: the CPU must not touch it. */
PERIGEE_API uint8_t *perigee_region_pointer(const struct perigee_region *region);
PERIGEE_API uint64_t perigee_region_length(const struct perigee_region *region);
/* Returns the kind of the region's memory: "host", "cuda", or the name of one of
 * options.memories. Its device's number goes to *device, which may be NULL. Lives
 * as long as the engine. */
PERIGEE_API const char *perigee_region_kind(const struct perigee_region *region,
                                            uint32_t *device);
/* A fence: from the first call on peers get "stale". Returns PERIGEE_AGAIN
 * while an operation or a peer is inside (poll and call again), and PERIGEE_OK
 * when none is, which frees the handle. With force the handle is freed at once,
 * and memory that a peer may still touch is kept until that peer has left. */
PERIGEE_API int perigee_region_close(struct perigee_region *region, bool force);
/* Copies between a region (of any kind of memory) and host memory. If the CPU
 * cannot touch the region's memory, it blocks until the copy has ended. Bounds
 * are checked. */
PERIGEE_API int perigee_region_read(struct perigee_region *region,
                                    uint64_t offset, void *to, uint64_t length);
PERIGEE_API int perigee_region_write(struct perigee_region *region,
                                     uint64_t offset, const void *from,
                                     uint64_t length);

/* Copies n bytes, as memcpy does, for programs that fill loans: in a way that is
 * quick on this processor. From a quarter of its last cache on (8 MiB at least, at
 * most 16) each thread learns whether copies are faster past the caches; 4 KiB and
 * more to a loan whose reader's core shares no cache with this one go past them. A
 * commit of the loan publishes it as any other store. Both must be memory that the CPU may
 * touch, and must not overlap; with n = 0 they may be NULL. Returns when all is
 * copied, cannot fail, needs no engine, and may be called by any thread. */
PERIGEE_API void perigee_copy(void *to, const void *from, uint64_t n);

/* Part of a local or a remote region: count blocks of length bytes, their
 * starts stride bytes apart. One contiguous block: count 1. Total is
 * count * length. Checked against the region when it is used.
 *
 * Or a list of 1 to PERIGEE_LIST_MOST slices (perigee_list): wherever a slice
 * may stand, a list may. Its slices are parts of local regions of one device's
 * memory, or of remote regions of one session, and are no lists themselves. Bytes
 * fill their places in order. The array is read before the function returns to
 * which it was given. It is checked then, before anything moves, and what is
 * wrong is told with the number of the slice, from 1. Where bytes are written,
 * places that overlap are refused (INVALID); so are blocks that lie between the
 * blocks of another slice with another stride. */
struct perigee_slice {
  union {
    struct perigee_region *region;
    struct perigee_remote *remote;
    const struct perigee_slice *list; /* count: PERIGEE_LIST + number */
  };
  uint64_t offset;
  uint64_t length;
  uint64_t count;
  uint64_t stride;
};
enum { PERIGEE_LIST_MOST = 4096 };
#ifndef PERIGEE_CDEF
#define PERIGEE_LIST (UINT64_C(1) << 52)
/* Returns a list of the slices of an array. */
static inline struct perigee_slice
perigee_list(const struct perigee_slice *slices, uint64_t number) {
  struct perigee_slice list = {{NULL}, 0, 0, PERIGEE_LIST + number, 0};
  list.list = slices;
  return list;
}
#endif

/* ---- Sessions ---------------------------------------------------------- */

enum { PERIGEE_ADDRESS_MAX = 107 };
/* "unix:PATH", or "tcp://ADDRESS:PORT" with an address of this host: a number
 * ("10.0.0.1", "[::1]"), "localhost", or all of them ("0.0.0.0", "[::]"; each
 * is of its own family only); port 0: any that is free. PERIGEE_NAME_TAKEN if
 * the path or the port is in use, PERIGEE_TOO_LARGE if the path is over 107
 * bytes; PERIGEE_DENIED if other hosts could come and there is no secret, nor
 * options.insecure, or if the folder or the port is not for this process;
 * PERIGEE_NOT_FOUND if there is no such folder or address. Sessions come as
 * ACCEPTED events. */
PERIGEE_API int perigee_listen(struct perigee_engine *engine,
                               const char *address,
                               struct perigee_listener **listener);
/* Has the listener leave its file where it is when it is closed: the file is
 * that of a name, and goes with the name (perigee_name_hold). */
PERIGEE_API void perigee_listener_named(struct perigee_listener *listener);
/* Stops listening, and frees the handle. Sessions that are open stay; those
 * whose handshake is under way end. */
PERIGEE_API void perigee_listener_close(struct perigee_listener *listener);
/* A listener refuses and counts connections that are no peer's (another secret,
 * another version, another protocol). After this call REFUSED events report
 * them, at most one in `every` ns; negative: no events, as before the first
 * call. */
PERIGEE_API void perigee_tell_refused(struct perigee_engine *engine,
                                      int64_t every);
/* Returns the listener's address with its real port, which is also the address
 * of its sessions. */
PERIGEE_API const char *
perigee_listener_address(const struct perigee_listener *listener);
/* Returns whether any host can connect without a secret. Programs should show
 * that to people. */
PERIGEE_API bool
perigee_listener_insecure(const struct perigee_listener *listener);
/* Dials "unix:PATH" or "tcp://HOST:PORT". A host's name is looked up without
 * blocking, and its addresses are tried in turn. NOT_FOUND: nobody listens
 * there, there is no way there, or no host of that name. CONNECTED with
 * event.operation tells the end and event.session the session. transport: NULL,
 * "auto" or a name that must be used. Returns the operation. */
PERIGEE_API int perigee_connect(struct perigee_engine *engine,
                                const char *address, const char *transport,
                                int64_t timeout);
/* Where an address leads: NAME, the name of a host that was not looked up, and
 * may lead anywhere; HERE, to this host; ELSEWHERE, to another one. */
enum perigee_leads {
  PERIGEE_LEADS_NAME,
  PERIGEE_LEADS_HERE,
  PERIGEE_LEADS_ELSEWHERE
};
/* Returns where "unix:PATH" or "tcp://HOST:PORT" leads (enum perigee_leads): of
 * a number the kernel is asked for its route. Dials nothing and does not block.
 * INVALID, TOO_LARGE or UNSUPPORTED: it is no address; perigee_detail(NULL)
 * tells what to write. */
PERIGEE_API int perigee_address_leads(const char *address);
enum { PERIGEE_NAME_MAX = 64 };
/* The same, but ends in DENIED unless the peer goes by this name (1 to
 * PERIGEE_NAME_MAX bytes; NULL: any). A peer with the secret may go by any
 * name. A process without the secret, which only relays messages, cannot make
 * one peer answer for another. */
PERIGEE_API int perigee_connect_to(struct perigee_engine *engine,
                                   const char *address, const char *expected,
                                   const char *transport, int64_t timeout);
/* Sets the name that the engine goes by in sessions whose handshake follows;
 * NULL: none. INVALID if it is too long. */
PERIGEE_API int perigee_go_by(struct perigee_engine *engine, const char *name);

/* Endpoints: sessions without a socket, for programs with a control plane of
 * their own. Each side opens an endpoint, sends its info to the other side by
 * its own means, and connects to the info of the other. The sides may do so in
 * any order, and as far apart in time as their timeouts allow. The session is
 * then like any other, except that
 *  - the process that has the info is the peer. The info is a secret, valid for
 *    one session: a process that reads it can act as the peer, and one that
 *    changes it can act as an intermediary. The peer's user is not checked, so
 *    the way by which the info goes has to be trusted.
 *  - the peer's process id is not known (0), and its address is "endpoint".
 *  - a dead peer, or a network that is cut, is noticed when the peer's device
 *    stops answering: half a second after the last message sent, plus all
 *    retries (about 0.5 s by default, up to four times that on devices that
 *    stretch the timeout). A peer that is stopped, or busy, counts as alive.
 *  - closing waits until the peer has been told, for 50 ms at most.
 *
 * transport: NULL (one that can do without a socket) or a name; UNSUPPORTED
 * if it cannot, or if there is no device for it. An endpoint holds what a
 * session holds, and counts as one (NO_MEMORY). The engine closes those that
 * are left. The first of an engine opens the device, which may block. */
PERIGEE_API int perigee_endpoint_open(struct perigee_engine *engine,
                                      const char *transport,
                                      struct perigee_endpoint **endpoint);
/* Returns a text without blanks, below 4 KiB, that lives as long as the
 * endpoint. */
PERIGEE_API const char *
perigee_endpoint_info(const struct perigee_endpoint *endpoint);
/* Returns the operation, which ends like that of perigee_connect. info: the
 * peer's. PROTOCOL if the text is no info, was changed, or is this endpoint's
 * own, and VERSION if its version is unknown: these leave the endpoint as it
 * was. Any other result is the endpoint's only one; INVALID if it had one
 * already. timeout: ns, negative: none. info is read before the call returns.
 * Does not block. */
PERIGEE_API int perigee_endpoint_connect(struct perigee_endpoint *endpoint,
                                         const char *info, int64_t timeout);
/* Closes the endpoint and makes its info void. If it was connected, the session
 * or the connect under way goes on. */
PERIGEE_API void perigee_endpoint_close(struct perigee_endpoint *endpoint);

/* Returns the session of an event, or NULL if it was freed. */
PERIGEE_API struct perigee_session *
perigee_session(struct perigee_engine *engine, uint32_t id);
/* Returns its number, as in events; no other session of the engine ever has
 * it. */
PERIGEE_API uint32_t perigee_session_id(const struct perigee_session *session);
/* Ends the session in order: own operations end in "closed", the peer's in
 * "peer_lost". Over a socket it waits, at most 50 ms, until the last frames
 * have been sent. Idempotent; the handle lives until perigee_session_free,
 * which drops the remaining events (counted as dropped). A program that wants
 * the end of each operation closes the session, and frees it once it has
 * settled. Memory in an asynchronous copy (a GPU's) stays in use until the copy
 * has ended, as with perigee_region_close. */
PERIGEE_API void perigee_session_close(struct perigee_session *session);
PERIGEE_API void perigee_session_free(struct perigee_session *session);
/* Returns 1 if freeing the session now would drop nothing: it has ended, no
 * event of it waits, the events that were given are over (perigee_poll), and no
 * copy of memory is under way. Else 0; the polls that follow bring it there.
 * Calls of the peer that the program has not answered yet do not count: they
 * outlive the session, and are answered as before. Walks the session's
 * operations; does not block. */
PERIGEE_API int
perigee_session_settled(const struct perigee_session *session);

enum perigee_session_state {
  PERIGEE_SESSION_NONE = 0, PERIGEE_SESSION_HELLO = 1, PERIGEE_SESSION_OPEN = 2,
  PERIGEE_SESSION_ENDED = 3, PERIGEE_SESSION_STATES = 4
};

/* One fact that a transport reports about a session: a text, or (text NULL) a
 * number. Names are words with underscores: "queue_pairs". */
struct perigee_fact {
  const char *name;
  const char *text;
  uint64_t number;
};
/* Describes a session, for explain(). Texts are valid until it is freed. */
struct perigee_session_info {
  uint32_t id;
  int32_t state;            /* enum perigee_session_state */
  int32_t status;           /* why it ended */
  int32_t pid;              /* the peer's; 0: unknown */
  uint64_t epoch;           /* the peer's */
  uint32_t version;         /* of the protocol, agreed */
  uint32_t pull;            /* 1: payloads are read from the peer's memory */
  uint64_t ring, eager, message, typed; /* agreed limits */
  uint64_t features;        /* bits of the features that both sides have;
                               perigee_feature_name */
  uint32_t dialed;          /* 1: by this side */
  uint32_t tcp;             /* 1: over TCP, where both sides prove who they are */
  uint32_t same_host;       /* 1: the peer has proved to be on this host */
  uint32_t authenticated;   /* 1: over TCP, and the peer has proved to have the
                               secret, or to be the process met at a path of
                               this host */
  uint32_t encrypted;       /* 1: what the transport carries is encrypted */
  uint32_t aes;             /* 1: by AES-256-GCM; 0: by ChaCha20-Poly1305 */
  uint32_t intact;          /* 1: a change of what is carried is noticed: it is
                               encrypted, or each chunk has a MAC by that
                               cipher */
  int64_t dead_after;       /* how long the peer may be silent before it counts
                               as lost; 0: the end of its socket tells */
  const char *transport;
  const char *carrier;      /* a line on the transport, made of these facts, or
                               "" */
  const struct perigee_fact *facts; /* facts of the transport */
  uint32_t fact_count;              /* number of facts */
  const char *security;     /* a line: how the peer is known, what is encrypted */
  const char *considered;   /* a line for each transport that was not chosen:
                               "shm: the peer is on another host" */
  const char *lanes;        /* a line for each additional lane that the session
                               has or could have: "link: payloads of ...", or
                               "" */
  const char *address;      /* dialed, or the listener's */
  const char *peer;         /* over TCP: the other end's address in numbers; or
                               "" */
  const char *reason;       /* why others were not chosen; why it ended */
  const char *name;         /* by which others find the peer, as it says: in the
                               handshake (perigee_go_by; perigee_connect_to has
                               compared it), or when it asked this side's agent
                               for a service; "": it has not said any */
};
/* Fills in all of info, also for a session that has ended. The facts stay valid
 * until info is asked for again, for any session of the engine. size:
 * sizeof(struct perigee_session_info), else PERIGEE_INVALID. */
PERIGEE_API int perigee_session_describe(const struct perigee_session *session,
                                         struct perigee_session_info *info,
                                         uint64_t size);
/* Returns 1 if an open session's peer is there still, as the system says now: its
 * process lives, and has not closed the session's socket; else 0, and a later
 * poll tells of the end. One system call; nothing is polled. For programs that
 * read a peer's memory for long and do not poll meanwhile. A process that is
 * stopped is there; so is a host that has fallen silent; and of a process of
 * another host, over the transport "tcp", only polls tell. */
PERIGEE_API int
perigee_session_alive(const struct perigee_session *session);
/* Returns the name of a bit of info.features, 0 to 63; NULL: this build has no
 * such feature. Static. An operation that needs a feature which the session
 * does not have is UNSUPPORTED, and nothing is sent. */
PERIGEE_API const char *perigee_feature_name(int bit);

/* Returns the counters since the start, of a session, or (session NULL) of the
 * engine and all its present sessions. They live as long as their owner; a
 * session's can be read again and again without another call. */
struct perigee_counters {
  uint64_t size;            /* of this structure, as the library has it: fields
                               beyond it are not there */
  uint64_t calls;           /* own, submitted */
  uint64_t served;          /* requests delivered */
  uint64_t replies;         /* own calls ended */
  uint64_t failures;        /* operations ended with a status */
  uint64_t timeouts;
  uint64_t transfers;       /* one-sided, own */
  uint64_t messages;        /* sends, receives and immediates */
  uint64_t bytes_sent;      /* payload of calls and messages, and of own writes */
  uint64_t bytes_received;  /* the same, and of own reads */
  uint64_t wakes;           /* sent to a sleeping peer */
  uint64_t sleeps;          /* own */
  uint64_t spins;           /* waits that polled for long (engine) */
  uint64_t stalls;          /* operations and replies that had to wait for room
                               in the peer's ring, or for a block; each once */
  uint64_t sessions;        /* now (engine) */
  uint64_t regions;         /* now (engine) */
  uint64_t operations;      /* now (engine) */
  uint64_t pooled;          /* bytes of pooled blocks now (engine) */
  uint64_t refused;         /* hellos refused (engine) */
  uint64_t polls;           /* (engine) */
  uint64_t kept;            /* bytes of free blocks and of sealed sockets' buffers
                               kept for later use; those not used for half a
                               second go back to the system */
  uint64_t dropped;         /* events that never came, because their session was
                               freed before (engine) */
};
PERIGEE_API const struct perigee_counters *
perigee_counters(struct perigee_engine *engine,
                 const struct perigee_session *session);

/* Has the engine write what it counts, its sessions, what is under way and its
 * last events to a file that other processes of the user read at any time, also
 * after this one was killed: stats.h. The engine always keeps all of that; the
 * file costs it nothing more. path: of the file, which is made for this user
 * alone (mode 0600), in a folder in which nobody else may write. What a former
 * owner left there becomes PATH.last, in place of what that was. scope: where
 * others find the engine's name (perigee_go_by), or NULL. The engine removes the
 * file when it closes, or path is NULL. INVALID: it has one already. TOO_LARGE:
 * this process may make no file that long (RLIMIT_FSIZE). After a failure, such as a
 * full disk, it goes on without. The process gets a handler of SIGBUS, so that it
 * does not end if somebody cuts the file short: the handler passes on what is not
 * its own. */
PERIGEE_API int perigee_stats_publish(struct perigee_engine *engine,
                                      const char *path, const char *scope);
/* Names a method, so that its calls are counted by themselves (stats.h): the
 * number of a method of a session's peer, or (session NULL) of an own one. Others
 * count together. Texts are copied. NO_MEMORY; otherwise PERIGEE_OK, also if there
 * is no row left for it. */
PERIGEE_API int perigee_stats_method(struct perigee_engine *engine,
                                     struct perigee_session *session,
                                     uint16_t number, const char *service,
                                     const char *method);
/* Returns how much the program's log is to tell, as another process asks by the
 * engine's stats file: 1, errors, to 4, debug (enum perigee_stats_log); 0: nobody
 * asks. own: what it tells if nobody asks, which others read there. It costs a few
 * loads, and is for programs that make a message. */
PERIGEE_API int perigee_log_level(struct perigee_engine *engine, int own);

/* What the engine holds for peers now, of each kind: used by this session, by
 * all sessions of its peer, and the most that the peer may have at present. For
 * session NULL: used by all, and the limit. */
struct perigee_share {
  uint64_t used, peer, most;
};
struct perigee_shares {
  struct perigee_share operations;  /* calls in service, messages that wait */
  struct perigee_share pooled;      /* bytes of blocks for what arrives */
  struct perigee_share exposed;     /* bytes of replies and loans that the peer
                                       still reads */
  struct perigee_share mapped;      /* bytes of the peer's memory mapped here */
  struct perigee_share descriptors; /* of its sessions */
  struct perigee_share sessions;
  uint64_t refused;                 /* how often peers were refused more than
                                       their share */
};
/* size: sizeof(struct perigee_shares), else PERIGEE_INVALID. */
PERIGEE_API int perigee_shares_read(struct perigee_engine *engine,
                                    const struct perigee_session *session,
                                    struct perigee_shares *shares,
                                    uint64_t size);

/* Finds the peer's region by name. DONE has a handle in event.pointer that
 * lives as long as the session, unless perigee_remote_close lets it go before;
 * else it is NOT_FOUND or DENIED. The same name gives the same handle while its
 * generation is the same. */
PERIGEE_API int perigee_lookup(struct perigee_session *session,
                               const char *name, int64_t timeout);
/* Undoes one look-up that was DONE and gave this handle. When each of them is
 * undone, the program may not use the handle any more, nor what
 * perigee_remote_pointer has returned: the memory is unmapped, the handle is
 * freed, and the name is looked up anew. Transfers that are under way, and
 * prepared ones until they are freed, may go on, and keep both until then.
 * Memory that a peer of this host has closed stays in use as long as it is
 * mapped here. To undo more than was looked up, or in a session that was freed,
 * is misuse. Does not block. */
PERIGEE_API void perigee_remote_close(struct perigee_remote *remote);
/* Return the region's bytes, and what its owner grants (enum
 * perigee_access). */
PERIGEE_API uint64_t perigee_remote_length(const struct perigee_remote *remote);
PERIGEE_API int perigee_remote_access(const struct perigee_remote *remote);
/* Returns where this process has the peer's region mapped, or NULL if only
 * transfers reach it: over a network, and where the owner registered memory of
 * its own. The program may read there, and write if it was granted that, without
 * any transfer. Nobody orders or checks such an access: the owner may close the
 * region and use the memory for something else meanwhile. Valid until the
 * session ends, perigee_lookup gives another handle for the name, or the handle
 * was closed (perigee_remote_close). */
PERIGEE_API uint8_t *
perigee_remote_pointer(const struct perigee_remote *remote);
/* Returns a number that is the same for all handles of one region, in any
 * session, and differs for any other region of that name: each engine starts
 * from 48 random bits. */
PERIGEE_API uint64_t
perigee_remote_identity(const struct perigee_remote *remote);

/* ---- One-sided and two-sided operations -------------------------------- */

struct perigee_transfer {
  struct perigee_slice local, remote;  /* equal totals; shapes may differ */
};
enum perigee_operation {
  PERIGEE_OP_READ = 1,      /* remote to local */
  PERIGEE_OP_WRITE = 2,     /* local to remote */
  PERIGEE_OP_WRITE_IMM = 3  /* local to remote, and then the immediate, after
                               all data */
};
/* A batch is one operation with one event. The list stays the caller's,
 * unchanged until the event. */
PERIGEE_API int perigee_transfer(struct perigee_session *session, int operation,
                                 const struct perigee_transfer *list,
                                 uint32_t count, uint64_t immediate,
                                 int64_t timeout);
/* A transfer that is checked and resolved once, to be posted again and again,
 * one post at a time (else PERIGEE_AGAIN). The list is copied. It is freed with
 * the session or by perigee_prepared_free (not while posted). */
PERIGEE_API int perigee_prepare(struct perigee_session *session, int operation,
                                const struct perigee_transfer *list,
                                uint32_t count, uint64_t immediate,
                                struct perigee_prepared **prepared);
PERIGEE_API int perigee_post(struct perigee_prepared *prepared, int64_t timeout);
/* Posts some of the blocks of a prepared transfer of one item, of which a side is
 * a list. All slices of one side have blocks of one length. Of each slice of the
 * local side these are the blocks local[0] to local[count - 1], counted from 0,
 * and likewise of the remote side. If both sides have as many slices, and blocks
 * of one length, block local[i] of each slice is paired with block remote[i] of
 * the slice at the same place in the other list; else pairs are made by bytes,
 * slice by slice. INVALID: a number is too large, or is named twice where bytes
 * are written; or count is not 1 to PERIGEE_LIST_MOST. TOO_LARGE: more than 2^20
 * blocks of a side. STALE: a region was closed. NO_MEMORY. Returns the operation,
 * or PERIGEE_INLINE; does not block. The arrays are read before it returns.
 * Several such posts may be under way. timeout: ns, negative: none. */
PERIGEE_API int perigee_post_blocks(struct perigee_prepared *prepared,
                                    const uint32_t *local,
                                    const uint32_t *remote, uint32_t count,
                                    int64_t timeout);
PERIGEE_API void perigee_prepared_free(struct perigee_prepared *prepared);
/* Messages match receives in order. A send waits for its receive. A receive
 * ends with the length; TOO_LARGE, for both sides, if the message was longer.
 * If the sender gives a message up that is on its way, the receive is for the
 * next one again, but CANCELLED if a later receive has had that already.
 * If waiting messages leave no room for requests of other peers, those of peers
 * that have many end in NO_MEMORY. */
PERIGEE_API int perigee_send(struct perigee_session *session,
                             const struct perigee_slice *slice, int64_t timeout);
PERIGEE_API int perigee_recv(struct perigee_session *session,
                             const struct perigee_slice *slice, int64_t timeout);
PERIGEE_API int perigee_recv_imm(struct perigee_session *session,
                                 int64_t timeout);
/* Takes the next immediate that has come and that no receive waits for: also of
 * a session that has ended, until it is freed. AGAIN: there is none. Does not
 * block. */
PERIGEE_API int perigee_take_imm(struct perigee_session *session,
                                 uint64_t *immediate);
/* Ends an own operation with "cancelled" unless it has ended already (then its
 * event says how). Needs no ring space; does nothing for a number that is not
 * live. */
PERIGEE_API void perigee_cancel(struct perigee_engine *engine, int operation);
/* For diagnosis: writes what the engine knows of an operation of that number, a
 * peer's or an own one, as a text that ends with a zero, into `room` bytes.
 * States are those of the core's tables. Returns its length, as snprintf. */
PERIGEE_API int perigee_operation_text(struct perigee_engine *engine,
                                       int operation, char *text,
                                       uint64_t room);

/* ---- Calls ------------------------------------------------------------- */

/* The trace that a call belongs to, as in W3C's traceparent: its id, the span
 * that makes the call, and flags (1: sampled, which has both sides keep a span of the
 * call in their stats, see stats.h). An id of zeros is none. */
struct perigee_trace {
  uint8_t id[16];
  uint8_t span[8];          /* zeros: a new one is made for the call */
  uint8_t flags;
};
/* What is sent: typed data as the head and at most one slice; or raw bytes, as
 * the head or as a slice, which is sent in place of a head. The slice, and a head
 * longer than the eager limit, stay the caller's, unchanged until the operation
 * has ended. So does a shorter head if the submitting function says so. A
 * structure may be kept and used again. */
struct perigee_message {
  uint16_t method;          /* of a call */
  uint16_t flags;           /* PERIGEE_TYPED, CHECKED, CARRIED, ASKS */
  int32_t status;           /* of a reply: PERIGEE_OK, or the status for the
                               caller, with a text as the head (at most 128 KiB,
                               else TOO_LARGE) and no slice */
  const void *head;
  uint64_t length;
  struct perigee_slice slice; /* region NULL: none */
  struct perigee_slice into;  /* of a call: where the reply's slice part (typed)
                               or head (raw) lands; region NULL: pooled, or as
                               the program says then (PERIGEE_ASKS) */
  uint64_t capacity;        /* of a call: the largest reply to an inplace
                               method; at most 2^40 */
  int64_t timeout;          /* of a call */
  uint64_t code;            /* travels with it */
  const struct perigee_trace *trace; /* of a call: its trace, copied.
                                        UNSUPPORTED if the session has no
                                        feature "trace" (with PERIGEE_CARRIED
                                        the call goes without). NULL: none */
};
/* Returns the operation; REPLY follows. The head may be referenced until
 * then. */
PERIGEE_API int perigee_call(struct perigee_session *session,
                             const struct perigee_message *message);
/* Calls, and waits for the reply: perigee_call and perigee_join in one. Returns
 * the status of the reply, or why there was no call (the event is then all
 * zeros): that of perigee_call, or NO_MEMORY as for perigee_join. The text of a
 * failure is in perigee_detail(engine), and all of it in the reply
 * (perigee_failure_read). */
PERIGEE_API int perigee_call_wait(struct perigee_session *session,
                                  const struct perigee_message *message,
                                  struct perigee_event *reply);
/* How one call of a batch has ended. */
struct perigee_answer {
  int32_t status;           /* of the reply, or why there is none */
  uint64_t length;          /* bytes filled of its `into`; 0 with a status */
};
/* Makes `count` raw calls, in order, and tells by one event that all have ended. So
 * many short calls under way together take less time than by perigee_call. Each is a
 * call of its own, with its own timeout; one that fails stops no other. Every message
 * names `into`, and none is TYPED. There are at most options.operations. Else INVALID,
 * and none is made.
 *
 * Returns the operation. DONE follows when all calls have ended. Its status is OK,
 * and event.length the bytes that came in all; or it is the status of the call that
 * failed first, or that with which the whole batch was ended: perigee_cancel ends
 * all calls that are under way, and so does the end of the session.
 *
 * answers[i] tells how the call of messages[i] has ended. They are the library's
 * from the submission until DONE, or until perigee_session_free or
 * perigee_engine_close; without DONE some may not have been written. The messages
 * are read during the submission only. What they name stays the caller's, unchanged,
 * until DONE.
 *
 * A call that ended well has no event, and the code of its reply is lost. One that
 * perigee_call would refuse has that status as its answer. Of one that fails later,
 * REPLY tells before DONE, as of any call, with the batch's number, and the place of
 * its message in event.capacity. Calls that end because the whole batch was ended have
 * no REPLY. A call that gets a typed reply ends in PROTOCOL. A batch cannot be joined
 * (perigee_join: INVALID, or NO_MEMORY as of any join). Does not block. */
PERIGEE_API int perigee_call_batch(struct perigee_session *session,
                                   const struct perigee_message *messages,
                                   uint32_t count,
                                   struct perigee_answer *answers);
/* Answers a REQUEST (or refuses a LANDING with a status). 0: the message was
 * copied and the served operation is over. 1: head and slice are referenced
 * until SENT comes for the served operation. Negative: the message could not be
 * sent; the operation is over all the same, and the caller was told if
 * possible. The head may be the request's, where it lies: that stays as long as
 * it is referenced. A loan of perigee_reply_begin that is open for the call ends
 * unsent, before the message is read (RANGE: more was written than was lent). */
PERIGEE_API int perigee_reply(struct perigee_engine *engine, int served,
                              const struct perigee_message *message);
/* Names where the slice of a LANDING goes; slice->region NULL: a pooled block.
 * TOO_LARGE if that is shorter than the slice; the LANDING is then still to be
 * answered. */
PERIGEE_API int perigee_land(struct perigee_engine *engine, int served,
                             const struct perigee_slice *slice);
/* Names where the slice, or the raw bytes, of a REPLY_LANDING go: a slice or a
 * list; NULL, or region NULL: a pooled block. REPLY follows, as if the place had
 * been the call's `into`. Until the place is named the bytes wait: short ones in
 * a pooled block, others with the peer, which keeps the memory of its reply:
 * beyond its options.untaken it serves no more requests of the session. The call's
 * timeout goes on meanwhile. Nothing is written to the place from REPLY on.
 *
 * TOO_LARGE: the place is too short. RANGE, STALE, INVALID: it is none.
 * NO_MEMORY. PEER_LOST: the lane of the bytes is lost. After each of these the
 * call still waits, for another place or for perigee_cancel. INVALID, too: no own
 * call of that number waits for this. A call that has ended meanwhile, of which
 * REPLY was not polled yet: the status with which it ended. Does not block. */
PERIGEE_API int perigee_land_reply(struct perigee_engine *engine, int operation,
                                   const struct perigee_slice *slice);
/* Tells that the work of a HELD request has begun: later requests of its
 * session are delivered again. Does nothing for other requests, and for one
 * that is over. */
PERIGEE_API void perigee_started(struct perigee_engine *engine, int served);
/* Returns whether the caller has given up or is gone. */
PERIGEE_API bool perigee_served_cancelled(const struct perigee_engine *engine,
                                          int served);
/* Returns the time left, as event.remaining of the request; 0: none, or the
 * call is over. */
PERIGEE_API int64_t perigee_served_remaining(const struct perigee_engine *engine,
                                             int served);
/* Makes a trace context of a new trace that is sampled: an id which no other trace
 * has, no span, flags 1. Calls whose messages name it belong to the trace. Both sides
 * of a call of a sampled trace keep a span of it in their stats (stats.h), with times
 * of its phases. Does not block. */
PERIGEE_API void perigee_trace_begin(struct perigee_engine *engine,
                                     struct perigee_trace *trace);
/* Returns 1 and the trace context that came with the call; 0: none came, or the
 * call is over. To continue the trace, name it in the messages of calls that
 * are made for this one, with PERIGEE_CARRIED. */
PERIGEE_API int perigee_served_trace(const struct perigee_engine *engine,
                                     int served, struct perigee_trace *trace);

/* While on, requests of peers are not read: they wait where they are, and their
 * callers with them. Sessions are opened and everything else goes on. For
 * programs that listen before they may serve. */
PERIGEE_API void perigee_withhold(struct perigee_engine *engine, bool on);
/* Takes no more calls of peers. Peers whose sessions have the feature
 * "drain" are told, those of later sessions, too. What was read until then is
 * delivered and answered as ever; all other calls of these peers end in
 * DRAINING, with them, and no REQUEST is given for them. Calls of method 0, by
 * which a program may describe itself, are still delivered, and so are all calls
 * of other peers, for the program to refuse. Sessions, transfers, messages and
 * own calls go on. Idempotent. */
PERIGEE_API void perigee_drain(struct perigee_engine *engine);
/* Takes calls of peers again, after perigee_drain: in sessions whose peers were
 * not told. Close the others when perigee_session_drained says so. */
PERIGEE_API void perigee_resume(struct perigee_engine *engine);
/* Returns 1 if the peer was told of perigee_drain and neither side has a call of
 * its own under way in the session any more; PERIGEE_AGAIN: one has, or the peer
 * has not answered yet; 0: it was not told. */
PERIGEE_API int perigee_session_drained(const struct perigee_session *session);
/* Returns how many of the peers with the feature "drain" have not answered yet
 * that no call of theirs is under way, since perigee_drain. Once it is 0, and
 * every REQUEST was answered, closing the engine loses no call of theirs. A peer
 * answers only while it
 * polls; if it reads later that it was told, nothing is lost over shared memory,
 * and over a network nothing that has reached its host. */
PERIGEE_API uint32_t perigee_drain_waits(const struct perigee_engine *engine);

/* A loan is memory that the caller fills: beyond the eager limit a block that
 * the peer reads in place. The peer can read it while it is filled, and over
 * shared memory some shorter loans, too. There is one at a time for each session
 * and direction. The memory is there until the loan ends, or its session is freed.
 * A program that writes beyond its end gets PERIGEE_RANGE when the loan ends, or a
 * fault, and damages no data but this session's: native/operation/loan.h tells what
 * lies there. */
struct perigee_loan {
  uint8_t *pointer;
  uint64_t length;          /* at least what was asked for */
};
/* TOO_LARGE: more than half of the pool. NO_MEMORY: no block is free, or this
 * peer may have no more; poll, and try again. The loan ends with commit or
 * abort; that of a reply also with perigee_reply. */
PERIGEE_API int perigee_call_begin(struct perigee_session *session,
                                   uint64_t capacity, struct perigee_loan *loan);
/* Sends the first length bytes as the raw head of message (whose head and slice
 * are ignored). Returns the operation. RANGE: more was written than was lent;
 * nothing is sent. */
PERIGEE_API int perigee_call_commit(struct perigee_session *session,
                                    const struct perigee_message *message,
                                    uint64_t length);
/* Gives the loan back; nothing is sent. RANGE: more was written than was lent.
 * OK if there is no loan. */
PERIGEE_API int perigee_call_abort(struct perigee_session *session);
/* If the caller of a raw request gave a capacity beyond the eager limit, the
 * block for its reply was taken before REQUEST was given. A request for which
 * no block is free waits until an eighth of its time is left, or for 30 s if it
 * has no limit (NO_MEMORY to the caller). It does not wait for a block that can
 * never be had, or that only requests of this side occupy: then no block was
 * taken. PEER_LOST: the caller is gone. INVALID: the call is a LANDING, or a loan
 * of its session is open. After each of these the call is still to be answered, by
 * perigee_reply. */
PERIGEE_API int perigee_reply_begin(struct perigee_engine *engine, int served,
                                    uint64_t capacity, struct perigee_loan *loan);
/* Returns 0: the call is over; 1: SENT will follow (the loan is sent by
 * reference). RANGE: more was written than was lent; the call is still to be
 * answered. PEER_LOST: the caller is gone; the call is over. */
PERIGEE_API int perigee_reply_commit(struct perigee_engine *engine, int served,
                                     uint64_t length);
/* Gives the loan back; the call is still to be answered. RANGE: more was
 * written than was lent. OK if there is no loan. */
PERIGEE_API int perigee_reply_abort(struct perigee_engine *engine, int served);

/* Gives a pooled block (event.landed) back. NULL is allowed. */
PERIGEE_API void perigee_pool_free(struct perigee_engine *engine,
                                   uint8_t *landed);

/* Checks string.buffer data without building values. Returns the number of
 * values at its top level, or PERIGEE_PROTOCOL if Perigee would not send such
 * data (bad tag, depth over 64, counts beyond the bytes, pointers, dictionary
 * tags, nil in pairs). PERIGEE_TOO_LARGE if it is more than a call or a reply
 * takes: 250 values (the place of a slice is one); 8 bytes of LuaJIT's memory
 * for each of its own and 64 KiB; or number keys with so many collisions that
 * inserting them passes more than 1.5 others for each byte and 2,048. NO_MEMORY
 * if there is none to count them. Calls and replies are checked in this way
 * before they are sent (with PERIGEE_CHECKED only those that are long) and when
 * they arrive. */
PERIGEE_API int perigee_typed_scan(const uint8_t *data, uint64_t length);

/* ---- Typed values ------------------------------------------------------ */

/* The arguments and results of Lua's typed methods are data (PERIGEE_TYPED) in
 * the encoding of LuaJIT's string.buffer: values, one behind the other. These
 * functions write and read such data.
 *
 * They need no engine, allocate nothing, and do not block. Encoders and decoders
 * are structures of the program. They hold nothing that has to be given back,
 * may be copied at any time, and belong to one thread at a time.
 * perigee_detail(NULL) tells what is wrong, with the number of the value, from
 * 1. */

enum perigee_value_kind {
  PERIGEE_VALUE_NIL = 0,
  PERIGEE_VALUE_BOOLEAN = 1,
  PERIGEE_VALUE_NUMBER = 2, /* Lua's own: a double */
  PERIGEE_VALUE_INT64 = 3,  /* in Lua cdata, as 1LL */
  PERIGEE_VALUE_UINT64 = 4, /* in Lua cdata, as 1ULL */
  PERIGEE_VALUE_STRING = 5, /* any bytes */
  PERIGEE_VALUE_TABLE = 6,  /* its elements follow, and then its pairs, each a
                               key and a value. They may be tables, whose items
                               follow them in turn */
  PERIGEE_VALUE_SLICE = 7   /* stands where the slice of the message is among
                               the values, in Lua a slice */
};
/* One value. Fields that are not of its kind are 0 when it was decoded. */
struct perigee_value {
  uint32_t kind;            /* enum perigee_value_kind */
  uint32_t from_zero;       /* TABLE: 1 if its first element has index 0; 0 if
                               it has index 1, as Lua's lists */
  union {
    uint64_t uint64;
    int64_t int64;
    double number;
    bool boolean;
    const char *string;     /* no zero behind it. Decoded: lies in the data */
    uint64_t pairs;         /* TABLE */
  };
  uint64_t length;          /* STRING: bytes. TABLE: elements, of which some may
                               be nil (holes). SLICE: its bytes, when decoded
                               from an event */
};

/* Writes values into memory of the program. Begin, encode each value, end; no
 * result has to be looked at before the end. So the arguments of a call are
 * encoded in their order, and so are results.
 *
 * A table is told first, with the numbers of its elements and pairs; these are
 * encoded next. No element, key or value is counted as a value of the message.
 * Keys are no nil and no NaN, values of pairs no nil. Keys differ from each other
 * and from the indices of elements, which is not checked here: Lua cannot decode
 * such a table, and a call with it ends in PROTOCOL before any handler runs. */
struct perigee_encoder {
  uint8_t *bytes;
  uint64_t capacity;
  uint64_t length;          /* of what was encoded, which may be beyond capacity:
                               then nothing more is written, only counted */
  uint64_t owed;            /* elements, keys and values that tables still lack */
  uint32_t values;          /* not in tables; after the end with the place */
  uint32_t place;           /* of the slice, from 1; 0: none */
  int32_t status;           /* PERIGEE_OK, or why it has failed: then it takes
                               no more values */
  uint32_t flags;           /* the library's own */
  const char *why;          /* a sentence on the failure; static */
};
/* bytes: where the data go, which stay the program's. NULL: they are only
 * counted. Sets all fields, and cannot fail. */
PERIGEE_API void perigee_encode_begin(struct perigee_encoder *encoder,
                                      void *bytes, uint64_t capacity);
PERIGEE_API void perigee_encode_nil(struct perigee_encoder *encoder);
PERIGEE_API void perigee_encode_boolean(struct perigee_encoder *encoder,
                                        bool value);
PERIGEE_API void perigee_encode_number(struct perigee_encoder *encoder,
                                       double value);
PERIGEE_API void perigee_encode_int64(struct perigee_encoder *encoder,
                                      int64_t value);
PERIGEE_API void perigee_encode_uint64(struct perigee_encoder *encoder,
                                       uint64_t value);
/* Copies length bytes; text may be NULL if there are none. */
PERIGEE_API void perigee_encode_string(struct perigee_encoder *encoder,
                                       const char *text, uint64_t length);
/* Copies a text that ends in a zero, without the zero. */
PERIGEE_API void perigee_encode_text(struct perigee_encoder *encoder,
                                     const char *text);
/* So many elements, from index 1, and pairs follow; {} if there are none. */
PERIGEE_API void perigee_encode_table(struct perigee_encoder *encoder,
                                      uint64_t elements, uint64_t pairs);
/* The place of the slice that the message names; once, and in no table. */
PERIGEE_API void perigee_encode_slice(struct perigee_encoder *encoder);
/* Any of these, as its kind says: also a table whose elements begin with index
 * 0. What was decoded can be encoded by it, value by value. */
PERIGEE_API void perigee_encode_value(struct perigee_encoder *encoder,
                                      const struct perigee_value *value);
/* Returns the length of the data, which are then a message's head, with
 * PERIGEE_TYPED and PERIGEE_CHECKED. With a slice its place is put behind the
 * values; the message has to name the slice. Calling it again gives the same.
 * INVALID: tables lack items; a nil or NaN is a key, a nil is the value of a
 * pair, tables are more than 64 deep; a second slice, or one in a table; a text
 * is NULL; there is no such kind. TOO_LARGE: capacity is too small, and
 * encoder->length is the capacity that is needed; or it is more than a call
 * takes (perigee_typed_scan), as 250 values with the place. NO_MEMORY to check
 * it. Costs as much as perigee_typed_scan if there are tables, else nothing that
 * depends on the data. */
PERIGEE_API int64_t perigee_encode_end(struct perigee_encoder *encoder);

/* Reads typed data, value by value. Every byte is checked, so the data may come
 * from anybody. They stay where they are, unchanged, for as long as the decoder
 * and the strings that it gave are used; data of an event are valid as long as
 * its pointer.
 *
 * An error that a Lua handler returned behind a nil comes as a table with the
 * field "perigee_error" (1), and "kind", "message" and maybe "code"; such a
 * table becomes an error in Lua. */
struct perigee_decoder {
  const uint8_t *data;
  uint64_t length;          /* without the slice's place */
  uint64_t at;              /* where the next value begins */
  uint64_t owed;            /* elements, keys and values of tables that are still
                               to come before the next value of none */
  uint64_t slice;           /* length of the slice that came */
  uint32_t values;          /* given so far, those in tables not counted */
  uint32_t place;           /* of the slice, from 1; 0: none */
  int32_t status;           /* PERIGEE_OK, or why it failed; then it gives no
                               more values */
  int32_t reserved;
};
/* Begins to read any data that perigee_typed_scan accepts, else its status:
 * PROTOCOL, TOO_LARGE, NO_MEMORY, INVALID. Walks over the data once. The place
 * of a slice is a number like any other here. */
PERIGEE_API int perigee_decode_begin(struct perigee_decoder *decoder,
                                     const void *data, uint64_t length);
/* Begins to read the head of a REQUEST, LANDING, REPLY_LANDING or REPLY, which
 * the engine has scanned. If a slice came, walks over the data once, to find its
 * place. PROTOCOL: the head is not typed, or does not tell the place of the
 * slice. The status of a REPLY that has one (perigee_failure_read reads that).
 * INVALID: an event of another kind. */
PERIGEE_API int perigee_decode_event(struct perigee_decoder *decoder,
                                     const struct perigee_event *event);
/* Returns 1 and the next value; 0 at the end; or a status, PROTOCOL for data
 * that are no typed values. Items of a table come right behind it: its elements,
 * then a key and a value for each pair, in no order. So a program that does not
 * know the table passes over it by perigee_decode_skip. */
PERIGEE_API int perigee_decode(struct perigee_decoder *decoder,
                               struct perigee_value *value);
/* Passes over the items of a table that was given last. Does nothing for other
 * values. Returns PERIGEE_OK or a status; INVALID: it cannot be that table. */
PERIGEE_API int perigee_decode_skip(struct perigee_decoder *decoder,
                                    const struct perigee_value *value);
/* Finds the text key, which ends in a zero, in a table that was given last.
 * Returns 1 and its value, behind which the decoder goes on: at the items of
 * that value, or the table's next key. NOT_FOUND: the table has no such key, and
 * was passed over; or it is no table. Keys come in no order, so a program copies
 * the decoder before, for the next key, and to skip the table. Takes time for
 * each item of the table. Statuses as perigee_decode_skip. */
PERIGEE_API int perigee_decode_field(struct perigee_decoder *decoder,
                                     const struct perigee_value *table,
                                     const char *key,
                                     struct perigee_value *value);

/* What an event with a status tells. It is made by perigee_failure_read; texts
 * have no zero behind them. Those of the peer lie in the event's memory, and may
 * have any bytes in them; those of the library are static. */
struct perigee_failure {
  int32_t status;           /* the event's. Of a REPLY that is REMOTE, the status
                               that the handler gave for itself, if it did: of a
                               Lua handler the kind of the error that it
                               returned */
  int32_t ran;              /* of a REPLY: 1: a handler ran; 0: none did, so the
                               call may be made again; -1: that is not known, so
                               one may have run */
  const char *text;         /* what failed, as the peer or the engine says it,
                               or else the sentence of the status; never NULL */
  uint64_t text_length;
  const char *traceback;    /* of the handler, as text; NULL: none came */
  uint64_t traceback_length;
  struct perigee_value code; /* of the error that the handler raised: a string, a
                               number, or nil. "draining" of a call that was
                               refused because the peer drains, whatever the
                               status */
};
/* Reads an event with a status: a REPLY, or any other (of which it gives the
 * status and the text). size: sizeof(struct perigee_failure). INVALID: the event
 * has no status. Needs no engine, allocates nothing, does not block. */
PERIGEE_API int perigee_failure_read(const struct perigee_event *event,
                                     struct perigee_failure *failure,
                                     uint64_t size);
/* Answers a REQUEST, or refuses a LANDING, with a failure, as Lua agents do.
 * ran: a handler has run. Then the caller gets REMOTE, and reads `status` as the
 * handler's own (perigee_failure.status, err.kind in Lua): PERIGEE_REMOTE for
 * one without a kind, as that of a handler that raises; so are AGAIN, INVALID,
 * SYSTEM, FORKED and DRAINING, which are no kinds in Lua. Else the caller gets
 * `status` itself, and knows that nothing was done. text ends in a zero; NULL:
 * the sentence of the status. code: NULL, or nil, a string or a number. The text
 * is cut where it does not fit into the caller's ring (8 KiB at most, with all
 * the rest), a code after 1 KiB; a ring too small for a code and a text gets the
 * text. Nothing is referenced after it returns. Returns as perigee_reply: 1,
 * and SENT follows, only if the ring is full now. INVALID: status is none of a
 * failure, or code is of another kind; then the call is still to be answered.
 * Does not block. */
PERIGEE_API int perigee_fail_call(struct perigee_engine *engine, int served,
                                  int status, const char *text,
                                  const struct perigee_value *code, bool ran);

/* ---- Names on one host ------------------------------------------------- */

/* Makes (mode 0700) or checks a private folder, with lstat: owned by this
 * user, no access for others. PERIGEE_DENIED otherwise, and where this user may
 * not make it or look at it; SYSTEM or NO_MEMORY where that fails for another
 * reason. perigee_detail(NULL) tells why. Every missing folder of the path is
 * made. */
PERIGEE_API int perigee_folder(const char *path);
/* Returns whose folder it is: PERIGEE_OK, this user's, whatever its mode;
 * PERIGEE_NOT_FOUND; PERIGEE_DENIED, another user's or no folder. */
PERIGEE_API int perigee_folder_look(const char *path);
/* Holds "folder/name" for this process by a lock that is kept until its end.
 * Returns a descriptor (>= 0), PERIGEE_NAME_TAKEN while a live owner holds it,
 * PERIGEE_SYSTEM, or NO_MEMORY, of which perigee_detail(NULL) tells what is used
 * up. It takes over what a dead owner left. Files of held names are removed at
 * exit, stats files among them (perigee_stats_publish). A child by fork holds
 * nothing: there the descriptor is one of /dev/null. */
PERIGEE_API int perigee_name_hold(const char *folder, const char *name);
/* Gives a held name back, by its descriptor, which is closed. */
PERIGEE_API void perigee_name_release(int descriptor);
/* Lets another process take a held name from now on; until one does, its holder
 * is found by it as before. NOT_FOUND: no name of this process has that
 * descriptor. */
PERIGEE_API int perigee_name_yield(int descriptor);
/* Removes what dead owners of names with that prefix have left in the folder,
 * looking at 256 names; returns how many. A process that takes such a name at
 * that moment may find it taken. */
PERIGEE_API int perigee_names_sweep(const char *folder, const char *prefix);
/* Removes a folder in which nobody has a name, with the stats files of processes
 * that were killed (perigee_stats_publish). Nothing happens while somebody has
 * one, or there are other files. */
PERIGEE_API void perigee_names_end(const char *folder);

enum { PERIGEE_ENTRY_MAX = 1 << 20, PERIGEE_CHANGED_MIN = 4096 };

/* Publishes a text of the holder of a name, up to PERIGEE_ENTRY_MAX bytes, by
 * the name's descriptor. It replaces the text before, and disappears with the
 * name. */
PERIGEE_API int perigee_entry_write(int descriptor, const void *text,
                                    uint64_t length);
/* Reads that text and returns its length. NOT_FOUND: no live process has the
 * name; AGAIN: its holder has published nothing yet, or is of an older build,
 * which publishes nothing; TOO_LARGE: capacity is too small; PROTOCOL: the file
 * has no such text; NO_MEMORY as above. */
PERIGEE_API int64_t perigee_entry_read(const char *folder, const char *name,
                                       void *text, uint64_t capacity);
/* Lists the names in a folder, of live and dead holders, each followed by a
 * newline. Returns their bytes, which may be more than capacity; then some
 * names are left out. NOT_FOUND: there is no such folder; NO_MEMORY as above. */
PERIGEE_API int64_t perigee_names(const char *folder, char *into,
                                  uint64_t capacity);
/* Lists the scopes that have a folder in the folder of all (that of any scope
 * without its last part): in the same form, and with the same errors, as
 * perigee_names. */
PERIGEE_API int64_t perigee_scopes(const char *folder, char *into,
                                   uint64_t capacity);
/* Returns a descriptor that is readable when something has changed in a folder:
 * a name was taken or released, or its holder published a text or died. */
PERIGEE_API int perigee_names_watch(const char *folder);
/* Reads the names that changed, in the form of perigee_names; a name may come
 * several times. capacity is at least PERIGEE_CHANGED_MIN. 0: none now. CLOSED:
 * the folder is gone, or changes were lost; watch again, and list all names. A
 * holder that died may still be found for a moment. */
PERIGEE_API int64_t perigee_names_changed(int descriptor, char *into,
                                          uint64_t capacity);
PERIGEE_API void perigee_names_unwatch(int descriptor);

/* Writes the path of the folder in which the names of a scope are on this host,
 * and a zero; returns the path's length. It is the one that Lua chooses in the
 * same environment: below XDG_RUNTIME_DIR, or else a folder that
 * native/agent/scope.c describes, or that PERIGEE_REGISTRY names (folder:/PATH).
 * Nothing is made: it may not exist. scope: NULL or "": the environment's
 * PERIGEE_SCOPE, or else "default". INVALID: it cannot be a scope's name, which
 * has 1 to 64 letters, digits and . _ : - without a leading dot. TOO_LARGE:
 * capacity is too small. UNSUPPORTED: PERIGEE_REGISTRY names a registry that is
 * no folder, which C programs do not ask (perigee_entry_parse). */
PERIGEE_API int perigee_scope_folder(const char *scope, char *path,
                                     uint64_t capacity);

struct perigee_entry_service {
  const char *name;
  uint64_t version;         /* 0: unknown */
};
/* What a registry knows of an agent. The library makes it, and may be newer than
 * this header: programs only read it. Texts are NULL where they are not known;
 * name and scope are always there, and so is an address. */
struct perigee_entry {
  uint64_t size;            /* of this structure, as the library has it */
  const char *name, *scope;
  const char *kind;         /* "agent", if its program has not said another */
  const char *state;        /* "up"; "draining": it takes no more calls, and
                               another may take the name */
  const char *host;
  const char *epoch;        /* 16 hexadecimal digits: its perigee_epoch */
  const char *const *addresses;
  const struct perigee_entry_service *services; /* sorted by name */
  uint32_t address_count, service_count;
  int64_t pid;              /* of its process, on its host; 0: unknown */
  double term;              /* raised at each taking of the name; 0: unknown */
};
/* Finds the entry of a name in the folder of a scope (perigee_scope_folder), and
 * makes *entry, which is the program's until perigee_entry_free; NULL after a
 * failure. What a holder wrote is checked; of one that has written no entry (yet)
 * the address of its socket is known. NOT_FOUND: no live process of this host
 * has the name. INVALID: it is no name, or no scope. TOO_LARGE: the path of its
 * socket has more than 107 bytes. NO_MEMORY; statuses of perigee_scope_folder.
 * perigee_detail(NULL) tells more. Reads a file. */
PERIGEE_API int perigee_entry_find(const char *scope, const char *name,
                                   struct perigee_entry **entry);
/* Makes an entry of the text that `perigee lookup NAME --entry` prints, by which
 * programs find agents in any registry, on any host. A newline may be behind it.
 * PROTOCOL: it is no such text, was cut off or changed. TOO_LARGE: an entry has
 * PERIGEE_ENTRY_MAX bytes at most. Else as perigee_entry_find. Whoever gives the
 * text says where to connect, and no more: over TCP peers prove that they have
 * the secret. */
PERIGEE_API int perigee_entry_parse(const char *text,
                                    struct perigee_entry **entry);
/* Frees it, with all its texts. NULL is allowed. */
PERIGEE_API void perigee_entry_free(struct perigee_entry *entry);
/* Opens a session with the agent of an entry, which has to go by the entry's
 * name. Sockets that are on this host come first, then all other addresses, 16
 * at most, one after the other; each may take an equal share of the time that is
 * left (without a limit, 3 s, but for the last one). Blocks, as perigee_join:
 * events of other operations that come meanwhile are kept. transport: as for
 * perigee_connect. Returns PERIGEE_OK and the session; or the failure of the
 * first address, or of the first that may pass (NOT_FOUND, PEER_LOST, TIMEOUT),
 * of which perigee_detail(engine) tells. DENIED over TCP with a secret: mostly
 * the engine's options.scope is not entry->scope. */
PERIGEE_API int perigee_entry_connect(struct perigee_engine *engine,
                                      const struct perigee_entry *entry,
                                      const char *transport, int64_t timeout,
                                      struct perigee_session **session);

/* ---- Agents ------------------------------------------------------------ */

/* A service of a peer, as it has described it: what Lua calls a proxy. */
struct perigee_service;
enum perigee_method_kind {
  PERIGEE_METHOD_TYPED = 0, /* arguments and results are typed values */
  PERIGEE_METHOD_RAW = 1,   /* they are bytes */
  PERIGEE_METHOD_INPLACE = 2 /* bytes, and the reply is filled in place: the
                                caller offers a capacity */
};
enum perigee_method_flag {
  PERIGEE_METHOD_LANDING = 1, /* of a typed one: it chooses where slices land */
  PERIGEE_METHOD_IDEMPOTENT = 2 /* it may be called again if the peer was lost */
};
struct perigee_method {
  const char *name;         /* 1 to 255 bytes; not with, async or close */
  uint16_t id;              /* perigee_message.method */
  uint16_t kind;            /* enum perigee_method_kind */
  uint32_t flags;           /* enum perigee_method_flag */
  uint64_t capacity;        /* of INPLACE: the least that a caller offers */
};
/* Asks the peer for a service; blocks as perigee_join. The peer is told the name
 * that the engine goes by. *service is the program's until perigee_service_close
 * and lives on after its session; NULL after a failure. Numbers of methods are
 * valid for this life of the peer (perigee_session_info.epoch). NO_SERVICE: the
 * detail names those that there are. PROTOCOL: the peer answered no description.
 * INVALID: the name has not 1 to 255 bytes. Else why the call failed.
 * perigee_detail(engine) tells more. timeout: ns, negative: none. */
PERIGEE_API int perigee_service_open(struct perigee_session *session,
                                     const char *service, int64_t timeout,
                                     struct perigee_service **out);
/* Returns the service's version, as the peer has told it. */
PERIGEE_API uint64_t
perigee_service_version(const struct perigee_service *service);
/* Finds a method by its name. size: sizeof(struct perigee_method). NO_METHOD:
 * perigee_detail(NULL) names those that there are. method->name lives as long as
 * the service. */
PERIGEE_API int perigee_service_method(const struct perigee_service *service,
                                       const char *name,
                                       struct perigee_method *method,
                                       uint64_t size);
/* Fills at most capacity entries, sorted by name; each: sizeof(struct
 * perigee_method). Returns how many methods there are. Methods of a kind that
 * this version does not know are left out. */
PERIGEE_API int perigee_service_methods(const struct perigee_service *service,
                                        struct perigee_method *list,
                                        uint64_t each, uint32_t capacity);
/* NULL is allowed. */
PERIGEE_API void perigee_service_close(struct perigee_service *service);

/* An engine that others find by a name, as they find agents of Lua programs: by
 * perigee_entry_find, `perigee agents`, and Lua's agents with their proxies,
 * lists and watches. Its name is in the folder of a scope, on this host; other
 * hosts reach it by its further addresses, and by the text of its entry
 * (perigee_entry_parse). */
struct perigee_agent;
/* Fields that are 0 have their defaults. */
struct perigee_agent_options {
  uint64_t size;            /* of this structure, as the program has it */
  const char *name;         /* 1 to 64 letters, digits and . _ : - without a
                               leading dot; NULL: one that no other agent has */
  const char *scope;        /* NULL or "": as for perigee_scope_folder. For
                               sessions over TCP with a secret the engine's
                               options.scope has to be the same: Lua's agents
                               give theirs to their engines */
  const char *kind;         /* which others list it as; NULL: "agent" */
  const char *const *listen; /* addresses where it listens, too, as for
                                perigee_listen ("tcp://0.0.0.0:0"); copied */
  uint32_t listen_count;    /* number of these */
  uint32_t reserved;        /* 0 */
};
/* Holds the name, listens at the name's socket and at the further addresses, and
 * publishes the entry: with these addresses (one that stands for all of this
 * host's gets the host's name), the services, and the regions that have names at
 * that time. The engine goes by the name from then on (perigee_go_by). options
 * may be NULL. *agent is the program's until perigee_agent_close, which comes
 * before the engine's close; NULL after a failure, when everything is as it was.
 * The name is free as soon as the process has ended, however it ended. The
 * engine's stats file is beside the socket (perigee_stats_publish), unless the
 * program has it publish another already, which stays as it is.
 *
 * NAME_TAKEN: a live agent has the name, or something else an address. INVALID:
 * a name, a kind or an address is wrong, or the engine goes by a name already.
 * TOO_LARGE: the path of the socket has more than 107 bytes. DENIED: the folder
 * is not this user's alone, or a secret is needed to listen. UNSUPPORTED: the
 * environment's PERIGEE_REGISTRY names a registry that is no folder.
 * perigee_detail(engine) tells more. Reads and writes files; does not wait. */
PERIGEE_API int perigee_agent_open(struct perigee_engine *engine,
                                   const struct perigee_agent_options *options,
                                   struct perigee_agent **agent);
/* Returns its name; valid until the close. */
PERIGEE_API const char *perigee_agent_name(const struct perigee_agent *agent);
/* Adds a service. Its methods get numbers, which are written to their fields id
 * and come as event.method; everything is copied. The entry is published again.
 * methods: sizeof(struct perigee_method) is `each`. INVALID: a name, a kind, a
 * capacity or a flag is wrong, a name is there twice, or the agent has such a
 * service; more than 1,024 methods, or 65,534 in all. TOO_LARGE: the entry would
 * be too long. FORKED: the agent is the parent's. perigee_detail(engine) tells
 * more. After a failure nothing has changed. */
PERIGEE_API int perigee_agent_serve(struct perigee_agent *agent,
                                    const char *service, uint64_t version,
                                    struct perigee_method *methods,
                                    uint64_t each, uint32_t count);
/* Has the agent answer what is for no method of the program's; to be asked of
 * each REQUEST and LANDING. 0: it is for the program, which answers it. 1: it was
 * answered: the agent has described a service, or refused the call (no method has
 * that number; typed data came for a method that is not typed, or other data for
 * one that is; the reply has less room than the method needs), or a slice for a
 * method without LANDING goes to a pooled block, and REQUEST follows. A negative
 * status: that could not be sent, as for perigee_reply; the call is over. SENT
 * may follow for a call that the agent answered. Other events: 0. */
PERIGEE_API int perigee_agent_answer(struct perigee_agent *agent,
                                     const struct perigee_event *event);
/* Gives the name back, stops listening, and frees the agent with its services.
 * The engine goes by no name any more. Sessions that came stay. NULL is
 * allowed. */
PERIGEE_API void perigee_agent_close(struct perigee_agent *agent);

/* ---- Signals ----------------------------------------------------------- */

/* From begin to end the first SIGINT or SIGTERM is only noted: perigee_wait
 * returns, and perigee_signals_noted returns its number (0: none). A second
 * one, or 2 s without perigee_signals_end, takes the default action. Calls
 * nest; the last end restores what was there before. It uses handlers and
 * blocks no signal. */
PERIGEE_API int perigee_signals_begin(void);
PERIGEE_API void perigee_signals_end(void);
PERIGEE_API int perigee_signals_noted(void);

/* ---- RDMA devices ------------------------------------------------------ */

/* One port of an RDMA device. Texts end in NUL, "" where unknown. */
struct perigee_device {
  char name[64];            /* "mlx5_0" */
  char netdev[16];          /* the network interface behind it */
  char pci[16];             /* "0000:3b:00.0"; "" for a device in software */
  char driver[32];          /* "mlx5_core"; of software its description */
  char firmware[32];
  char state[16];           /* "active", "down", "init", "armed" */
  char physical[24];        /* "linkup", "disabled", "polling" and so on */
  char link[16];            /* "ethernet", "infiniband" */
  uint32_t port;            /* from 1 */
  uint32_t lid;             /* 0: none, as on Ethernet */
  uint32_t mtu, max_mtu;    /* of packets' payload; 0: the device could not be
                               asked (no libibverbs, no access) */
  int32_t gid;              /* index of the GID that would be used, -1: none */
  int32_t numa;             /* node, -1: unknown */
  double rate;              /* Gb/s */
};
struct perigee_gid {
  uint32_t index;
  char address[40];         /* "::ffff:10.0.0.1" */
  char type[16];            /* "RoCE v2", "RoCE v1", "IB" */
  char netdev[16];
};

/* Fills at most capacity entries, one for each port, sorted by name and port.
 * each: sizeof(struct perigee_device), the distance of two entries.
 * Returns how many ports there are, 0 without an RDMA device. sysfs: NULL, or
 * the path of a /sys ("/host/sys" in a container); then no device is opened,
 * and MTUs stay unknown. The environment's PERIGEE_NICS ("mlx5_0,mlx5_1:2"), if
 * set, hides all ports that it does not name; PERIGEE_INVALID (see
 * perigee_detail(NULL)) if it cannot be parsed. */
PERIGEE_API int perigee_devices(const char *sysfs, struct perigee_device *list,
                                uint64_t each, int capacity);
/* Fills in a port's GIDs by index; empty entries are left out. each:
 * sizeof(struct perigee_gid). */
PERIGEE_API int perigee_device_gids(const char *sysfs, const char *name,
                                    uint32_t port, struct perigee_gid *list,
                                    uint64_t each, int capacity);

/* ---- GPUs -------------------------------------------------------------- */

/* One device that CUDA shows this process. Texts end in NUL, "" where unknown. */
struct perigee_gpu {
  char name[96];            /* "NVIDIA H100 80GB HBM3" */
  char uuid[48];            /* "GPU-8f2b0c1d-...", by which CUDA_VISIBLE_DEVICES
                               can name it */
  char pci[24];             /* "0000:3b:00.0" */
  char nics[4][64];         /* the RDMA devices that are nearest to it, by name;
                               "" behind the last */
  uint32_t index;           /* 3: its memory is of kind "cuda:3" */
  uint32_t major, minor;    /* its compute capability, 9 and 0 of 9.0; 0: unknown */
  int32_t numa;             /* node, -1: unknown */
  uint64_t memory;          /* bytes, all of them; 0: unknown */
  uint64_t reaches;         /* bit N: it can access memory of the device with
                               index N by itself (N below 64, never its own) */
};

/* Fills at most capacity entries, one for each GPU, by index. each:
 * sizeof(struct perigee_gpu). sysfs: NULL, or the path of a /sys, which tells the
 * NUMA nodes, the NICs, and how near these are: those are nearest that share most
 * of their way on the PCI bus with the GPU, and among equals those of its NUMA
 * node; the first four by name. PERIGEE_NICS hides NICs, as of perigee_devices.
 *
 * Returns how many there are; 0 without CUDA's driver, and without a GPU that the
 * driver shows: perigee_detail(NULL) then has the reason. UNSUPPORTED: there is a
 * driver, and it does not work. SYSTEM: the driver has failed since.
 *
 * The first call in a process opens and initializes the driver, which may take
 * seconds; a child process that is forked afterwards cannot use CUDA. No context
 * is made, so no memory of a GPU is taken. */
PERIGEE_API int perigee_gpus(const char *sysfs, struct perigee_gpu *list,
                             uint64_t each, int capacity);

/* ---- For the specs: sizes as C sees them ------------------------------- */
PERIGEE_API uint64_t perigee_sizeof(const char *structure);

#ifdef __cplusplus
}
#endif

#endif
