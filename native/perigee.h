/* SPDX-License-Identifier: Apache-2.0
 *
 * perigee.h - the whole public interface of libperigee, and the one source of
 * LuaJIT's ffi.cdef (the Makefile runs it through the preprocessor).
 *
 * The shape of everything asynchronous: submit, get a small operation number
 * back, poll a batch of events. C never calls Lua, never blocks except in
 * perigee_wait, starts no thread unless it is asked to (options.progress) and
 * keeps no global state. An engine and all that it owns belong to one thread of
 * the program.
 *
 * Results. A function returns 0 (or a number >= 0 where it says so), or a
 * negative perigee_status; perigee_detail(engine) then tells what was being
 * done, to whom, and what to do about it.
 *
 * Operations. Submitting returns an operation number >= 0. It stays valid,
 * and is not given to anything else, until its event has been polled: exactly
 * one event with event.operation equal to it, within its timeout. From that
 * event on every byte of memory named in it is the caller's again. Submitting
 * may instead return PERIGEE_INLINE: the operation succeeded at once and no
 * event follows.
 *
 * Pointers in events are valid until the next perigee_poll, perigee_await or
 * perigee_wait on the same engine (of requests that are HELD: until the reply).
 *
 * Times are nanoseconds (int64_t, negative: no limit), sizes are bytes.
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
extern "C" {
#endif

/* Raised when anything below changes shape; Lua refuses another core. */
enum { PERIGEE_ABI = 8 };
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
  PERIGEE_FORKED = -21      /* a child process used its parent's engine */
};
enum { PERIGEE_INLINE = 0x7fffffff };
/* "timeout" for PERIGEE_TIMEOUT; "unknown" for what is none. Static. */
PERIGEE_API const char *perigee_status_name(int status);
/* A sentence without a full stop. Static. */
PERIGEE_API const char *perigee_status_text(int status);

/* ---- Engine ------------------------------------------------------------ */

struct perigee_engine;
struct perigee_session;
struct perigee_listener;
struct perigee_endpoint;
struct perigee_region;
struct perigee_remote;    /* a peer's region, as looked up */
struct perigee_prepared;

/* Tables that a program may give to an engine besides the built-in ones:
 * native/transport/transport.h and native/memory/memory.h say what they are. */
struct perigee_transport;
struct perigee_memory;

/* What sockets carry. Of two sides that differ the stronger wins: ALL, then AUTH,
 * then OFF. */
enum perigee_encrypt {
  PERIGEE_ENCRYPT_DEFAULT = 0, /* beyond loopback as ALL where it can be had (RDMA
                                  does not seal), else as OFF */
  PERIGEE_ENCRYPT_ALL = 1,     /* all is sealed */
  PERIGEE_ENCRYPT_AUTH = 2,    /* all can be read, and not be changed */
  PERIGEE_ENCRYPT_OFF = 3      /* who stands between can read and change it */
};

/* All that an engine can be told. perigee_options fills in the defaults. */
struct perigee_options {
  uint32_t operations;      /* in flight at once: 16384, <= 65536; own ones at
                               most 15/16 of it, those of peers 7/8 */
  uint32_t sessions;        /* at once: 1024 */
  uint32_t regions;         /* exported at once: 1024, at most 4096 */
  uint32_t hellos;          /* unauthenticated peers at once: 256; beyond that
                               the oldest of the address (at a path: of the
                               process) that has most is given up */
  uint32_t watched;         /* descriptors of the program's own at once
                               (perigee_watch): 4096, at most 2^20 */
  int64_t hello_timeout;    /* for the peer to finish hello: 2 s */
  uint64_t ring;            /* bytes of each receive ring, a power of two:
                               64 KiB; there are two for each session */
  uint64_t eager;           /* payloads up to this travel in the ring: 8 KiB;
                               at most ring / 4 */
  uint64_t message;         /* largest payload accepted: 2^40 */
  uint64_t typed;           /* largest typed payload accepted: 1 MiB and 4 KiB;
                               to decode takes some 20 ns for each byte at most */
  uint64_t hold;            /* requests and replies with longer typed heads are
                               HELD: 2^64 - 1, so none */
  uint64_t pool;            /* bytes of pooled blocks, and of those that are kept
                               until peers have looked at them, each: 1 GiB; of
                               the latter own requests take half at most */
  uint32_t serving;         /* calls of one session in service at once: 1024 */
  /* Of what peers make the engine hold each has a share that depends on what
   * the others leave: native/base/shares.h. Operations, sessions and pool have their
   * limits above. */
  uint64_t mapped;          /* bytes of address space for memory of peers on this
                               host: 64 TiB */
  uint64_t descriptors;     /* of sessions: 0, which is seven eighths of what the
                               process may open */
  uint64_t untaken;         /* while a session has left so many bytes of replies
                               lie, or all of a peer four times as many, its
                               requests wait: 32 MiB */
  int64_t spin;             /* ns. The longest time that a wait polls before it
                               sleeps; how long is learned from how waits ended
                               (native/base/spin.h). 0: it sleeps at once. -1, which
                               is the default: 50 us, or 200 us once the engine
                               uses an RDMA device, from which to sleep and to
                               be woken takes longer */
  uint64_t epoch;           /* 0: random */
  int32_t pull;             /* 0: never read a peer's memory by process_vm_readv,
                               even where a probe at hello says it may: 1 */
  const char *rdma;         /* "nics=mlx5_0:1,mlx5_1 qps=2 gid=3 ...", as
                               native/devices/devices.h says; outlives the engine. NULL:
                               the environment's PERIGEE_RDMA, else defaults */
  /* Sessions over TCP. The texts outlive the engine. */
  const char *secret;       /* what both sides prove to have: "file:PATH" (owned
                               by this user, closed to others) or the secret
                               itself; NULL: the environment's PERIGEE_SECRET,
                               else none; "": none. A text of the environment is
                               taken out of it; children have only references */
  const char *scope;        /* proofs are good for this scope only; NULL: "" */
  int32_t insecure;         /* 1: listen without a secret beyond loopback: 0 */
  int32_t encrypt;          /* enum perigee_encrypt; ALL and AUTH: no session over
                               TCP without it: 0 */
  int64_t dead_after;       /* a peer on another host that is silent for so long
                               is lost: 3 s */
  int32_t progress;         /* 1: for programs that compute for long: a thread
                               of the engine's own does what a poll does while
                               the program neither polls nor waits. It serves
                               one-sided access and keeps sessions alive; events
                               wait for the program. clock, random and plugins
                               are called by it, too; counters of sessions are
                               a moment old. 0: none */
  int32_t spin_always;      /* 1: it polls that long whether or not that has paid
                               lately, and does not give up the core meanwhile:
                               for threads that have a core of their own. 0 */
  uint32_t streams;         /* connections for payloads of a session that is
                               dialed here: 1, at most 16 */
  const char *faults;       /* to try a program in bad weather: "drop=0.01
                               delay=5ms ...", as native/transport/fault/fault.h
                               says. NULL: the environment's PERIGEE_FAULTS;
                               "": none */
  /* Given to the engine so that a simulation can own them; NULL: the real
   * ones. The clock is monotonic nanoseconds; random fills and returns 0. */
  int64_t (*clock)(void *context);
  int (*random)(void *context, void *bytes, uint64_t length);
  void *context;
  /* Tried before the built-in transports, in this order; NULL-terminated
   * arrays that outlive the engine, or NULL. */
  const struct perigee_transport *const *transports;
  const struct perigee_memory *const *memories;
  const char *features;     /* "-trace ...": turns off what sessions could do
                               where the peer can (perigee_feature_name), to try
                               a program with older peers. Read when the engine
                               is opened. NULL: all are on */
};

/* Fills in all defaults; to be called before anything is set. */
PERIGEE_API void perigee_options(struct perigee_options *options);
/* Makes an engine; options may be NULL. The engine is the caller's until
 * perigee_engine_close. PERIGEE_INVALID: an option, or PERIGEE_FAULTS or
 * PERIGEE_RDMA of the environment, is wrong. Of the secret's file: NOT_FOUND,
 * DENIED (open to others, not this user's, no regular file, too short or too
 * long), SYSTEM. NO_MEMORY. perigee_detail(NULL) tells which and why. A secret
 * that is stretched takes some 0.1 s, once in a process. */
PERIGEE_API int perigee_engine_open(const struct perigee_options *options,
                                    struct perigee_engine **engine);
/* Closes every session, listener and region, and frees the engine with all
 * handles that it gave out. Where sessions are over sockets it waits until their
 * peers have been sent the last word, 50 ms at most for all; and until memory
 * that copies on its own time does not any more. NULL is allowed. */
PERIGEE_API void perigee_engine_close(struct perigee_engine *engine);
/* What went wrong last, as a sentence; "" if nothing did. Engine may be NULL
 * for a failed perigee_engine_open (then per thread). Valid until the next
 * failing call. */
PERIGEE_API const char *perigee_detail(const struct perigee_engine *engine);
/* Nanoseconds of the engine's clock, monotonic. */
PERIGEE_API int64_t perigee_now(const struct perigee_engine *engine);
/* What names this life of the engine to its peers. */
PERIGEE_API uint64_t perigee_epoch(const struct perigee_engine *engine);

/* ---- Events ------------------------------------------------------------ */

enum perigee_kind {
  PERIGEE_EVENT_NONE = 0,
  PERIGEE_EVENT_ACCEPTED = 1,  /* a listener has a new session */
  PERIGEE_EVENT_CONNECTED = 2, /* a connect ended, well or not (status) */
  PERIGEE_EVENT_LOST = 3,      /* an established session ended; once; all its
                                  operations end with events of their own */
  PERIGEE_EVENT_REQUEST = 4,   /* a call to serve, all its bytes here */
  PERIGEE_EVENT_LANDING = 5,   /* a call with a slice: say where it lands with
                                  perigee_land; REQUEST follows, or ABANDONED */
  PERIGEE_EVENT_ABANDONED = 6, /* a call that had LANDING will never have
                                  REQUEST; its operation is over */
  PERIGEE_EVENT_REPLY = 7,     /* an own call ended */
  PERIGEE_EVENT_SENT = 8,      /* the caller has a reply for which perigee_reply
                                  returned 1, or never will (status) */
  PERIGEE_EVENT_DONE = 9,      /* transfer, send, recv, recv_imm, lookup ended */
  PERIGEE_EVENT_REFUSED = 10,  /* unauthenticated peers were refused: code since the
                                  last such event; status and pointer: of one,
                                  why (the last that did not merely hang up, if
                                  any). Only after perigee_tell_refused */
  PERIGEE_EVENT_READY = 11     /* a descriptor that is watched is ready */
};

enum perigee_flag {
  PERIGEE_TYPED = 1,        /* the head is string.buffer data: for received
                               heads, copied to private memory and scanned. Of
                               a perigee_message with a status: a text, a zero,
                               and at most 16 KiB of such data behind it */
  PERIGEE_SLICE = 2,        /* a slice came with it (slice tells its length) */
  PERIGEE_POOLED = 4,       /* .landed is a pooled block, now the caller's:
                               give it back with perigee_pool_free */
  PERIGEE_HELD = 8,         /* REQUEST, LANDING: typed data that is longer than
                               options.hold. It stays where it is until the
                               reply, and what comes after it on its session
                               waits there until perigee_started or the reply:
                               it can be decoded in portions, and no request
                               overtakes it. REPLY: .pointer is a pooled block
                               that is now the caller's (perigee_pool_free), and
                               .remaining tells what is left of the call's time */
  PERIGEE_TRACED = 16,      /* REQUEST, LANDING: a trace context came with it:
                               perigee_served_trace */
  PERIGEE_CARRIED = 32      /* of a call's perigee_message: its trace is that of
                               the call that is being served. It goes on with a
                               new span; without, where the peer has no such
                               feature */
};

/* 64 bytes. Fields not named for a kind are 0. */
struct perigee_event {
  uint8_t kind;             /* enum perigee_kind */
  uint8_t flags;            /* enum perigee_flag; READY: enum
                               perigee_readiness */
  uint16_t method;          /* REQUEST, LANDING */
  uint32_t session;         /* perigee_session_id, never used again; 0: none */
  int32_t status;           /* how it ended; REPLY: also the callee's status */
  int32_t operation;        /* own: what submitting returned. REQUEST, LANDING:
                               the served call, for perigee_reply */
  const uint8_t *pointer;   /* REQUEST, LANDING, REPLY: the head (raw bytes or
                               typed data). REPLY with a status: what failed, a
                               text (no zero ends it), or NULL. DONE of a
                               lookup: the struct perigee_remote. LOST, and DONE
                               and CONNECTED that failed: the text of why, or
                               NULL */
  uint64_t length;          /* of it; DONE of recv and transfers: bytes */
  uint64_t slice;           /* length of the slice part that came; REPLY into
                               a named slice: bytes filled; REPLY with a status:
                               bytes of typed data at pointer + length + 1 that
                               came with the text (Lua's: traceback, code, did
                               a handler run), nothing is in `into` then */
  union {
    uint64_t capacity;      /* REQUEST: what the caller can take in reply */
    uint64_t immediate;     /* DONE of recv_imm */
    uint8_t *landed;        /* where a pooled slice part is (PERIGEE_POOLED) */
  };
  union {
    int64_t remaining;      /* REQUEST, LANDING, HELD REPLY: time left; negative:
                               no limit */
    int64_t descriptor;     /* READY */
  };
  uint64_t code;            /* REPLY, REQUEST: an application's 64 bits; READY:
                               the token */
};

/* Moves things on and fills at most capacity events; the number of them.
 * Never blocks; holds the thread for at most about 1 ms of own work. What is
 * submitted goes out at once, and wakes a peer that sleeps; a peer that falls
 * asleep at that very moment is woken by the next poll, wait or arm. */
PERIGEE_API int perigee_poll(struct perigee_engine *engine,
                             struct perigee_event *events, int capacity);
/* As perigee_poll for up to spin ns (-1: as options.spin says), but only for the
 * one operation: 1 and its event; 0 when that is over or does not pay now
 * (options.spin: wait by perigee_wait), or as soon as anything else has an event
 * (perigee_poll gives it). */
PERIGEE_API int perigee_await(struct perigee_engine *engine, int operation,
                              struct perigee_event *event, int64_t spin);
/* Returns as soon as perigee_poll may have an event on one of the engines: 1,
 * after at most timeout ns and one poll of each (long copies go on meanwhile):
 * 0, or when a signal came: PERIGEE_AGAIN. Polls
 * first, by the first engine's options.spin, then arms, checks again and
 * sleeps in poll(2); a sleeping process uses no CPU. */
PERIGEE_API int perigee_wait(struct perigee_engine *const *engines, int count,
                             int64_t timeout);
/* For another event loop: a descriptor that becomes readable when there may be
 * events. perigee_arm: 1 if there already are some (poll now), else 0, and
 * the descriptor will wake; *timeout (may be NULL) is when to poll at the
 * latest, negative for never. Owned by the engine. */
PERIGEE_API int perigee_fd(const struct perigee_engine *engine);
PERIGEE_API int perigee_arm(struct perigee_engine *engine, int64_t *timeout);

/* ---- The program's own descriptors ------------------------------------- */

enum perigee_readiness {
  PERIGEE_READABLE = 1,     /* read, recv or accept would not block: there is
                               something, or the end, or an error */
  PERIGEE_WRITABLE = 2,     /* write, send or connect would not */
  PERIGEE_HANGUP = 4        /* told, never asked for: the other end is gone, or
                               there is an error; what was asked for is told
                               with it */
};
/* Has the engine watch a descriptor (a socket, a pipe, an eventfd, another
 * engine's perigee_fd) beside its own. READY events tell of it, through
 * perigee_poll, perigee_await, perigee_wait, and perigee_arm with perigee_fd;
 * those that an engine's own thread finds (options.progress) wait for the
 * program's next poll. events: PERIGEE_READABLE, PERIGEE_WRITABLE or both.
 *
 * READY has the descriptor, what it is ready for (flags) and the token (code).
 * One poll gives it at most once, and each later poll of the program gives it
 * again for as long as the descriptor is ready: a program that leaves data unread
 * is told again, and one that is not interested for now unwatches. What the
 * program was told of wakes no thread until the program polls. READY may come
 * for what is not ready any more, so descriptors should not block (O_NONBLOCK).
 * A program that polls without sleeping is told within 0.5 ms.
 *
 * The descriptor stays the program's: perigee_unwatch comes first, then close.
 * One that is closed while it is watched goes unnoticed, or is mistaken for the
 * next one of its number; debug builds of the core abort and say which it was.
 *
 * INVALID: it is not open, is watched already, is the engine's own, or events
 * are wrong. UNSUPPORTED: epoll refuses it (files and folders, which are always
 * ready). NO_MEMORY: options.watched are, or the user has as many as the system
 * allows. FORKED. Does not block. perigee_watch, perigee_unwatch and each READY
 * cost one system call; a thousand that are not ready cost a poll nothing. */
PERIGEE_API int perigee_watch(struct perigee_engine *engine, int fd, int events,
                              uint64_t token);
/* Ends that: no later poll gives its READY, and one that waits is withdrawn.
 * For other events or another token: unwatch, and watch again. Does not block.
 * NOT_FOUND: it is not watched. INVALID: it was closed before; it is not watched
 * any more. FORKED. */
PERIGEE_API int perigee_unwatch(struct perigee_engine *engine, int fd);

/* ---- Regions and slices ------------------------------------------------ */

enum perigee_access {
  PERIGEE_LOCAL = 0,        /* peers get nothing ("denied") */
  PERIGEE_READ = 1,         /* peers may read */
  PERIGEE_WRITE = 2,        /* peers may write */
  PERIGEE_POPULATE = 4      /* of perigee_region_alloc: all of it is there when
                               that returns, or it is NO_MEMORY */
};

/* Memory made by the engine: page aligned, zeroed, memfd-backed where kind is
 * NULL or "host" (huge pages where they can be had); kind names a memory of
 * options.memories, and maybe which of its devices: "gpu" is the first, "gpu:3"
 * the fourth. UNSUPPORTED: no such kind. NOT_FOUND: no such device. NO_MEMORY if it is more than the machine, or the process's
 * control group, could have; else pages are there from their first use on, and a
 * system that has given out more than there is ends whoever touches them then:
 * PERIGEE_POPULATE finds out at once, and takes its time. name: NULL or 1 to 255
 * bytes, unique in the engine
 * (PERIGEE_NAME_TAKEN); by it peers find the region until it is closed. */
PERIGEE_API int perigee_region_alloc(struct perigee_engine *engine,
                                     const char *name, uint64_t length,
                                     int access, const char *kind,
                                     struct perigee_region **region);
/* Memory that somebody else allocated and keeps until the close: accessed for
 * peers by this process only, on their request. kind NULL: of whatever kind
 * knows the pointer, else host memory. INVALID: it is not of the kind named. */
PERIGEE_API int perigee_region_register(struct perigee_engine *engine,
                                        const char *name, void *pointer,
                                        uint64_t length, int access,
                                        const char *kind,
                                        struct perigee_region **region);
/* Its first byte, until the close; and its bytes, as it was made with. */
PERIGEE_API uint8_t *perigee_region_pointer(const struct perigee_region *region);
PERIGEE_API uint64_t perigee_region_length(const struct perigee_region *region);
/* A fence: from the first call on peers get "stale"; PERIGEE_AGAIN while an
 * operation or a peer is inside (poll and call again), PERIGEE_OK when none
 * is: then the handle is gone. With force the handle goes at once and memory
 * that a peer may still touch is kept until that peer has left. */
PERIGEE_API int perigee_region_close(struct perigee_region *region, bool force);
/* Copies between a region (of any kind of memory) and host memory. Of memory that
 * the CPU cannot touch it blocks until the copy has ended. Bounds are checked. */
PERIGEE_API int perigee_region_read(struct perigee_region *region,
                                    uint64_t offset, void *to, uint64_t length);
PERIGEE_API int perigee_region_write(struct perigee_region *region,
                                     uint64_t offset, const void *from,
                                     uint64_t length);

/* Part of a local or a remote region: count blocks of length bytes, their
 * starts stride bytes apart. One contiguous block: count 1. Total is
 * count * length. Checked against the region when it is used. */
struct perigee_slice {
  union {
    struct perigee_region *region;
    struct perigee_remote *remote;
  };
  uint64_t offset;
  uint64_t length;
  uint64_t count;
  uint64_t stride;
};

/* ---- Sessions ---------------------------------------------------------- */

enum { PERIGEE_ADDRESS_MAX = 107 };
/* "unix:PATH", or "tcp://ADDRESS:PORT" with an address of this host: a number
 * ("10.0.0.1", "[::1]"), "localhost", or all of them ("0.0.0.0", "[::]"; each
 * is of its own family only); port 0: any that is free. PERIGEE_NAME_TAKEN if
 * the path or the port is in use, PERIGEE_TOO_LARGE if the path is over 107
 * bytes; PERIGEE_DENIED if other hosts could come and there is no secret, nor
 * options.insecure. Sessions come as ACCEPTED events. */
PERIGEE_API int perigee_listen(struct perigee_engine *engine,
                               const char *address,
                               struct perigee_listener **listener);
/* Stops listening, and frees the handle; sessions that came stay. */
PERIGEE_API void perigee_listener_close(struct perigee_listener *listener);
/* Whoever comes to a listener and is no peer (another secret, another version,
 * another protocol) is refused, and counted. From now on REFUSED events tell of
 * them, at most one in `every` ns; negative: none, as before the first call. */
PERIGEE_API void perigee_tell_refused(struct perigee_engine *engine,
                                      int64_t every);
/* The address with the port that it has; that of the sessions that come. */
PERIGEE_API const char *
perigee_listener_address(const struct perigee_listener *listener);
/* Can any host connect without a secret? To be said where people see it. */
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
enum { PERIGEE_NAME_MAX = 64 };
/* The same, and only if the peer goes by this name (1 to PERIGEE_NAME_MAX bytes;
 * NULL: any): DENIED else. Whoever has the secret may go by any name; who has not,
 * and only passes on what others say, cannot have one peer answer for another. */
PERIGEE_API int perigee_connect_to(struct perigee_engine *engine,
                                   const char *address, const char *expected,
                                   const char *transport, int64_t timeout);
/* The name that the engine goes by, in sessions whose hello follows. NULL: none.
 * INVALID if it is too long. */
PERIGEE_API int perigee_go_by(struct perigee_engine *engine, const char *name);

/* Endpoints: sessions without a socket, for programs with a control plane of
 * their own. Each side opens an endpoint, carries its info to the other side by
 * whatever way it has, and connects to the other's. Both sides do, in any order
 * and as far apart in time as their timeouts allow. From then on the session is
 * like any other, but that
 *  - the peer is who has the info. It is a secret, good for one session: who
 *    reads it can be that peer, and who changes it can come between; there is
 *    no check of the peer's user. The way by which it goes has to be trusted.
 *  - its process id is not known (0), its address is "endpoint".
 *  - a peer that died, or the way to it that is cut, is noticed when its device
 *    stops answering: half a second after the last thing sent, and then all
 *    retries (about 0.5 s by default, up to four times that on devices that
 *    stretch the timeout). A peer that is stopped, or busy, is alive.
 *  - closing waits until the peer has been told, for 50 ms at most.
 *
 * transport: NULL (one that can do without a socket) or a name; UNSUPPORTED
 * if it cannot, or if there is no device for it. An endpoint holds what a
 * session holds, and counts as one (NO_MEMORY). The engine closes those that
 * are left. The first of an engine opens the device, which may block. */
PERIGEE_API int perigee_endpoint_open(struct perigee_engine *engine,
                                      const char *transport,
                                      struct perigee_endpoint **endpoint);
/* A text without blanks, below 4 KiB; lives as long as the endpoint. */
PERIGEE_API const char *
perigee_endpoint_info(const struct perigee_endpoint *endpoint);
/* Returns the operation, whose end is told as that of perigee_connect. info:
 * the peer's. PROTOCOL if it is none (or this endpoint's own), or was changed,
 * and VERSION if it cannot be read: these leave the endpoint as it was.
 * Whatever comes later is its one end; INVALID if it had that already. timeout:
 * ns, negative: none. info is read before the call returns. Does not block. */
PERIGEE_API int perigee_endpoint_connect(struct perigee_endpoint *endpoint,
                                         const char *info, int64_t timeout);
/* Its info is void, unless it was connected: then this has no part in the
 * session or in the connect under way. */
PERIGEE_API void perigee_endpoint_close(struct perigee_endpoint *endpoint);

/* The session of an event, or NULL if it was freed. */
PERIGEE_API struct perigee_session *
perigee_session(struct perigee_engine *engine, uint32_t id);
/* Its number, as in events; no other session of the engine ever has it. */
PERIGEE_API uint32_t perigee_session_id(const struct perigee_session *session);
/* Ends the session in order: own operations end in "closed", the peer's in
 * "peer_lost". Over a socket it waits, 50 ms at most, until the peer has been
 * sent the last word. Idempotent; the handle lives on until
 * perigee_session_free, after which its remaining events are dropped. Memory that
 * is still copied for it on its own time (a GPU's) is in use until that is over,
 * as perigee_region_close tells. */
PERIGEE_API void perigee_session_close(struct perigee_session *session);
PERIGEE_API void perigee_session_free(struct perigee_session *session);

enum perigee_session_state {
  PERIGEE_SESSION_NONE = 0, PERIGEE_SESSION_HELLO = 1, PERIGEE_SESSION_OPEN = 2,
  PERIGEE_SESSION_ENDED = 3, PERIGEE_SESSION_STATES = 4
};

/* One thing that a transport tells of what carries a session: a text, or (text
 * NULL) a number. Names are words with underscores: "queue_pairs". */
struct perigee_fact {
  const char *name;
  const char *text;
  uint64_t number;
};
/* What a session is, for explain(). Texts are valid until it is freed. */
struct perigee_session_info {
  uint32_t id;
  int32_t state;            /* enum perigee_session_state */
  int32_t status;           /* why it ended */
  int32_t pid;              /* the peer's; 0: unknown */
  uint64_t epoch;           /* the peer's */
  uint32_t version;         /* of the protocol, agreed */
  uint32_t pull;            /* 1: payloads are read from the peer's memory */
  uint64_t ring, eager, message, typed; /* limits agreed */
  uint64_t features;        /* bits: what both sides can; perigee_feature_name */
  uint32_t dialed;          /* 1: by this side */
  uint32_t tcp;             /* 1: over TCP, where both sides prove who they are */
  uint32_t same_host;       /* 1: the peer has shown to be on this host */
  uint32_t authenticated;   /* 1: over TCP, and it proved to have the secret, or
                               to be who was met at a path of this host */
  uint32_t encrypted;       /* 1: what the transport carries is sealed, */
  uint32_t aes;             /* 1: with AES-256-GCM; 0: ChaCha20-Poly1305 */
  uint32_t intact;          /* 1: nobody can change what is carried unseen: it is
                               sealed, or each chunk has a MAC by that cipher */
  int64_t dead_after;       /* silent for so long it is lost; 0: the end of its
                               socket tells */
  const char *transport;
  const char *carrier;      /* a line on what carries it, or "": all these */
  const struct perigee_fact *facts; /* facts of the transport's, */
  uint32_t fact_count;              /* so many; 0: it tells none */
  const char *security;     /* a line: how the peer is known, what is encrypted */
  const char *considered;   /* a line for each transport that does not: "shm:
                               the peer is on another host" */
  const char *lanes;        /* a line for each lane that there is, or could be,
                               beside that one: "link: payloads of ...", or "" */
  const char *address;      /* dialed, or the listener's */
  const char *peer;         /* over TCP: the other end's, as a number; or "" */
  const char *reason;       /* why others were not chosen; why it ended */
};
/* Fills in all of info; of a session that is over, too. Its facts stay until
 * info is asked for again, of any session of the engine. */
PERIGEE_API void perigee_session_info(const struct perigee_session *session,
                                      struct perigee_session_info *info);
/* The name of a bit of info.features, 0 to 63; NULL: this build has no such
 * feature. Static. What needs a feature that a session does not have is
 * UNSUPPORTED, before anything is sent. */
PERIGEE_API const char *perigee_feature_name(int bit);

/* Counters since the start, of a session, or (session NULL) of the engine and
 * all its sessions as they are now. They live as long as their owner; a
 * session's can be read again and again without another call. */
struct perigee_counters {
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
  uint64_t spins;           /* waits that polled for longer than a moment (engine) */
  uint64_t stalls;          /* submitted while the peer's ring was full */
  uint64_t sessions;        /* now (engine) */
  uint64_t regions;         /* now (engine) */
  uint64_t operations;      /* now (engine) */
  uint64_t pooled;          /* bytes of pooled blocks now (engine) */
  uint64_t refused;         /* hellos refused (engine) */
  uint64_t polls;           /* (engine) */
  uint64_t kept;            /* bytes of blocks that nobody has now, kept for what
                               comes next; what was not used for half a second
                               goes back to the system */
};
PERIGEE_API const struct perigee_counters *
perigee_counters(struct perigee_engine *engine,
                 const struct perigee_session *session);

/* What peers make the engine hold now, of each kind: used by this session, by all
 * sessions of its peer, and the most that the peer may hold as things are. For
 * session NULL: by all, and the limit. */
struct perigee_share {
  uint64_t used, peer, most;
};
struct perigee_shares {
  struct perigee_share operations;  /* calls in service, messages that wait */
  struct perigee_share pooled;      /* bytes of blocks for what arrives */
  struct perigee_share exposed;     /* bytes of replies and loans that the peer
                                       has not let go of */
  struct perigee_share mapped;      /* bytes of its memory, mapped here */
  struct perigee_share descriptors; /* of its sessions */
  struct perigee_share sessions;
  uint64_t refused;                 /* times that any peer was, for its share */
};
PERIGEE_API void perigee_shares(struct perigee_engine *engine,
                                const struct perigee_session *session,
                                struct perigee_shares *shares);

/* Finds the peer's region by name: DONE with event.pointer, a handle that lives
 * as long as the session; NOT_FOUND or DENIED otherwise. The same name gives
 * the same handle while its generation is the same. */
PERIGEE_API int perigee_lookup(struct perigee_session *session,
                               const char *name, int64_t timeout);
/* Bytes of it, and what its owner grants (enum perigee_access). */
PERIGEE_API uint64_t perigee_remote_length(const struct perigee_remote *remote);
PERIGEE_API int perigee_remote_access(const struct perigee_remote *remote);
/* The same for all handles of one region, in any session, and another for any
 * other region of its name: random 48 bits where an engine begins. */
PERIGEE_API uint64_t
perigee_remote_identity(const struct perigee_remote *remote);

/* ---- One-sided and two-sided operations -------------------------------- */

struct perigee_transfer {
  struct perigee_slice local, remote;  /* equal totals; shapes may differ */
};
enum perigee_operation {
  PERIGEE_OP_READ = 1,      /* remote to local */
  PERIGEE_OP_WRITE = 2,     /* local to remote */
  PERIGEE_OP_WRITE_IMM = 3  /* then the immediate, after all the data */
};
/* A batch is one operation and one event. The list stays the caller's and
 * unchanged until the event. */
PERIGEE_API int perigee_transfer(struct perigee_session *session, int operation,
                                 const struct perigee_transfer *list,
                                 uint32_t count, uint64_t immediate,
                                 int64_t timeout);
/* The same, checked and resolved once, to be posted again and again, one post
 * at a time (PERIGEE_AGAIN). The list is copied. Freed with the session or by
 * perigee_prepared_free (not while posted). */
PERIGEE_API int perigee_prepare(struct perigee_session *session, int operation,
                                const struct perigee_transfer *list,
                                uint32_t count, uint64_t immediate,
                                struct perigee_prepared **prepared);
PERIGEE_API int perigee_post(struct perigee_prepared *prepared, int64_t timeout);
PERIGEE_API void perigee_prepared_free(struct perigee_prepared *prepared);
/* Messages match receives in order. A send waits for its receive. A receive
 * ends with the length (TOO_LARGE if the message was longer, then both do).
 * Where messages that wait leave no room for other peers' requests, those of
 * who has many end in NO_MEMORY. */
PERIGEE_API int perigee_send(struct perigee_session *session,
                             const struct perigee_slice *slice, int64_t timeout);
PERIGEE_API int perigee_recv(struct perigee_session *session,
                             const struct perigee_slice *slice, int64_t timeout);
PERIGEE_API int perigee_recv_imm(struct perigee_session *session,
                                 int64_t timeout);
/* Ends an own operation in "cancelled" unless it has ended already (its event
 * then says how). Needs no ring space; no-op for a number that is not live. */
PERIGEE_API void perigee_cancel(struct perigee_engine *engine, int operation);

/* ---- Calls ------------------------------------------------------------- */

/* Which trace a call belongs to, as W3C's traceparent tells it: its id, the span
 * that the call is made from, flags (1: sampled). An id of zeros is none. */
struct perigee_trace {
  uint8_t id[16];
  uint8_t span[8];          /* zeros: a new one is made for the call */
  uint8_t flags;
};
/* What is sent: a head (raw bytes, or typed data) and at most one slice. A
 * head longer than the eager limit, and a slice, stay the caller's and
 * unchanged until the operation has ended; shorter ones too if submitting
 * says so. A structure may be kept and used again. */
struct perigee_message {
  uint16_t method;          /* of a call */
  uint16_t flags;           /* PERIGEE_TYPED */
  int32_t status;           /* of a reply: PERIGEE_OK or what the caller gets, with
                               a text as the head, and no slice: 128 KiB of it
                               travel, else it is TOO_LARGE */
  const void *head;
  uint64_t length;
  struct perigee_slice slice; /* region NULL: none */
  struct perigee_slice into;  /* of a call: where the reply's slice part (typed)
                               or head (raw) lands; region NULL: pooled */
  uint64_t capacity;        /* of a call: largest reply to an inplace method; at
                               most 2^40 */
  int64_t timeout;          /* of a call */
  uint64_t code;            /* travels with it */
  const struct perigee_trace *trace; /* of a call: what it belongs to, copied;
                               UNSUPPORTED where the session has no feature
                               "trace" (PERIGEE_CARRIED: then it goes without).
                               NULL: nothing */
};
/* Returns the operation; REPLY follows. The head may be referenced until then.*/
PERIGEE_API int perigee_call(struct perigee_session *session,
                             const struct perigee_message *message);
/* Answers a REQUEST (or refuses a LANDING with a status). 0: the message was
 * copied and the served operation is over. 1: head and slice are referenced
 * until SENT comes for the served operation. Negative: it could not be (then
 * the operation is over all the same, and the caller was told if it could). */
PERIGEE_API int perigee_reply(struct perigee_engine *engine, int served,
                              const struct perigee_message *message);
/* Names where the slice of a LANDING goes; slice->region NULL: a pooled block.
 * TOO_LARGE if it is shorter than the slice that comes (not refused yet). */
PERIGEE_API int perigee_land(struct perigee_engine *engine, int served,
                             const struct perigee_slice *slice);
/* What a HELD request asks for has begun: later requests of its session come
 * on. No-op for others, and for one that is over. */
PERIGEE_API void perigee_started(struct perigee_engine *engine, int served);
/* Has the caller given up (or is it gone)? */
PERIGEE_API bool perigee_served_cancelled(const struct perigee_engine *engine,
                                          int served);
/* Time left; negative: no limit. */
PERIGEE_API int64_t perigee_served_remaining(const struct perigee_engine *engine,
                                             int served);
/* 1, and the trace context that came with the call; 0: none did, or the call is
 * over. To carry it on, name it in the messages of calls that are made for this
 * one, with PERIGEE_CARRIED. */
PERIGEE_API int perigee_served_trace(const struct perigee_engine *engine,
                                     int served, struct perigee_trace *trace);

/* A loan is memory to be filled: beyond the eager limit a block that the peer
 * sees in place. One at a time for each session and direction. Who writes
 * beyond its end gets PERIGEE_RANGE when it ends, or a fault, and harms nobody
 * else: native/call/loan.h tells what lies there. */
struct perigee_loan {
  uint8_t *pointer;
  uint64_t length;          /* at least what was asked for */
};
/* TOO_LARGE (half of the pool at most), or NO_MEMORY: none is free, or may be
 * this peer's; poll, and try again. The loan ends with commit or abort. */
PERIGEE_API int perigee_call_begin(struct perigee_session *session,
                                   uint64_t capacity, struct perigee_loan *loan);
/* Sends the first length bytes as the raw head of message (whose head and slice
 * are ignored). Returns the operation. RANGE: more was written than was lent;
 * nothing is sent. */
PERIGEE_API int perigee_call_commit(struct perigee_session *session,
                                    const struct perigee_message *message,
                                    uint64_t length);
/* Gives the loan back; nothing is sent. RANGE: more was written than was lent.
 * OK where there is no loan. */
PERIGEE_API int perigee_call_abort(struct perigee_session *session);
/* Of a raw request whose caller told a capacity beyond the eager limit the block
 * for its reply was taken before REQUEST was given: requests for whose replies
 * there is none wait, until an eighth of their time is left, or for 30 s if they
 * have no limit (NO_MEMORY to the caller). They do not wait for one that cannot
 * be had, or that only requests of this side keep: then none was taken. */
PERIGEE_API int perigee_reply_begin(struct perigee_engine *engine, int served,
                                    uint64_t capacity, struct perigee_loan *loan);
/* 0: over; 1: SENT will follow (the loan went by reference). RANGE: more was
 * written than was lent; the call is still to be answered. */
PERIGEE_API int perigee_reply_commit(struct perigee_engine *engine, int served,
                                     uint64_t length);
/* Gives the loan back; the call is still to be answered. RANGE: more was written
 * than was lent. OK where there is no loan. */
PERIGEE_API int perigee_reply_abort(struct perigee_engine *engine, int served);

/* Gives a pooled block (event.landed) back. NULL is allowed. */
PERIGEE_API void perigee_pool_free(struct perigee_engine *engine,
                                   uint8_t *landed);

/* Walks string.buffer data without building anything: the number of values at
 * its top level, or PERIGEE_PROTOCOL if it is not one that perigee sends (bad
 * tag, depth over 64, counts beyond the bytes, pointers, dictionary tags, nil
 * in pairs). PERIGEE_TOO_LARGE if it is more than a call or a reply takes: 250
 * values (the place of a slice is one); 8 bytes of LuaJIT's memory for each of
 * its own and 64 KiB; or number keys that collide so that to place them 1.5
 * others are passed for each byte and 2,048. NO_MEMORY if it has none to count
 * them. Calls and replies are checked so before they are sent, and where they
 * come. */
PERIGEE_API int perigee_typed_scan(const uint8_t *data, uint64_t length);

/* ---- Names on one host ------------------------------------------------- */

/* Makes (mode 0700) or checks a private folder, with lstat: owned by this
 * user, no access for others. PERIGEE_DENIED otherwise. Every missing folder
 * of the path is made. */
PERIGEE_API int perigee_folder(const char *path);
/* What is there, and whose: PERIGEE_OK, a folder of this user's, whoever may
 * enter it; PERIGEE_NOT_FOUND; PERIGEE_DENIED, another's or no folder. */
PERIGEE_API int perigee_folder_look(const char *path);
/* Holds "folder/name" for this process by a lock kept for life: a descriptor
 * (>= 0), PERIGEE_NAME_TAKEN while a live owner holds it, PERIGEE_SYSTEM. A dead
 * owner's leftovers are taken over. Files of held names are removed at exit. */
PERIGEE_API int perigee_name_hold(const char *folder, const char *name);
/* Gives a held name back, by its descriptor, which is closed. */
PERIGEE_API void perigee_name_release(int descriptor);
/* Removes what dead owners of names with that prefix have left in the folder, of
 * 256 that it looks at: how many. Who is taking such a name meanwhile may find it
 * taken, for a moment. */
PERIGEE_API int perigee_names_sweep(const char *folder, const char *prefix);

enum { PERIGEE_ENTRY_MAX = 1 << 20, PERIGEE_CHANGED_MIN = 4096 };

/* What the holder of a name tells of itself, up to PERIGEE_ENTRY_MAX bytes; it
 * replaces what it told before, and goes with the name. By its descriptor. */
PERIGEE_API int perigee_entry_write(int descriptor, const void *text,
                                    uint64_t length);
/* Its length. NOT_FOUND: nobody alive has the name; AGAIN: who has it has told
 * nothing yet; TOO_LARGE: for capacity; PROTOCOL: that is no such text. */
PERIGEE_API int64_t perigee_entry_read(const char *folder, const char *name,
                                       void *text, uint64_t capacity);
/* The names in a folder, of the living and the dead, each followed by a newline:
 * how many bytes they have, which may be more than capacity; then some are left
 * out. NOT_FOUND: there is no such folder. */
PERIGEE_API int64_t perigee_names(const char *folder, char *into,
                                  uint64_t capacity);
/* A descriptor that is readable when something has changed in a folder: a name
 * was taken, its holder has told something, released it, or died. */
PERIGEE_API int perigee_names_watch(const char *folder);
/* The next of those names, as perigee_names has them, some of them several times;
 * capacity is at least PERIGEE_CHANGED_MIN. 0: none now. CLOSED: the folder has
 * gone, or some were lost; watch again, and look at all. Who has died may still
 * be found for a moment. */
PERIGEE_API int64_t perigee_names_changed(int descriptor, char *into,
                                          uint64_t capacity);
PERIGEE_API void perigee_names_unwatch(int descriptor);

/* ---- Signals ----------------------------------------------------------- */

/* From begin to end the first SIGINT or SIGTERM is only noted: perigee_wait
 * returns and perigee_signals_noted tells its number (0: none); a second one,
 * or 2 s without perigee_signals_end, takes the default action. Nests; the
 * last end puts back what was there before. Handlers, no blocked mask. */
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

/* Fills at most capacity entries, a port each, sorted by name and port: the
 * number that there are, 0 where there is no RDMA device. sysfs: NULL, or
 * where a /sys is ("/host/sys" in a container); then no device is opened, and
 * MTUs stay unknown. The environment's
 * PERIGEE_NICS ("mlx5_0,mlx5_1:2"), if set, hides all ports that it does not
 * name; PERIGEE_INVALID (see perigee_detail(NULL)) if it cannot be read. */
PERIGEE_API int perigee_devices(const char *sysfs, struct perigee_device *list,
                                int capacity);
/* The same for a port's GIDs, by index; empty entries are left out. */
PERIGEE_API int perigee_device_gids(const char *sysfs, const char *name,
                                    uint32_t port, struct perigee_gid *list,
                                    int capacity);

/* ---- For the specs: sizes as C sees them ------------------------------- */
PERIGEE_API uint64_t perigee_sizeof(const char *structure);

#ifdef __cplusplus
}
#endif

#endif
