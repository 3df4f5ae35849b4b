/* SPDX-License-Identifier: Apache-2.0
 *
 * sessions.h - what the files of sessions and of their sockets share.
 */
#ifndef SESSIONS_H
#define SESSIONS_H

#include "base/machine.h"
#include "core/engine.h"
#include "net/info.h"
#include "security/handshake.h"
#include "security/secret.h"

/* What nobody else may know of a session: in the engine's vault. */
struct keys {
  struct handshake handshake;     /* until the session has its key: */
  uint8_t session[HANDSHAKE_KEY]; /* of the lane's streams (handshake.h) */
  struct secret ticket; /* whose key is the secret where a ticket was shown */
};
_Static_assert(sizeof(struct keys) <= VAULT_SMALL, "a cell has room for them");
_Static_assert(sizeof(struct seal) <= VAULT_LARGE, "and for a seal");

struct perigee_listener {
  struct node node;
  struct watcher watcher;
  struct perigee_engine *engine;
  int fd;
  bool tcp, open_to_all; /* reachable from other hosts, without a secret */
  bool file;             /* to be removed */
  bool tickets;          /* for sessions that move (migrate.h), no others */
  char address[ADDRESS_TEXT];
};

struct perigee_endpoint {
  struct node node; /* in engine->endpoints */
  struct perigee_engine *engine;
  struct perigee_session *session; /* NULL: it was connected */
  uint64_t nonce;
  char info[INFO_TEXT];
};

/* Of session_machine: session.c tells what they do. */
enum session_event { SESSION_BEGIN, SESSION_OPEN, SESSION_BACK, SESSION_END };

/* Why something does not go, or come. */
#define NOT_TAKEN "the peer does not take what it is told"
#define IN_FLIGHT                                                              \
  "too many descriptors are on their way between this user's processes "       \
  "(ulimit -n), or the system has no memory to send them"
#define NO_DESCRIPTORS "there are too few descriptors left (ulimit -n)"

/* ---- session.c --------------------------------------------------------- */
extern const struct machine session_machine;
void session_poll(struct perigee_session *session);
/* Would a poll of it look at all that there may be, and does nothing wait here
 * for the peer to make room? */
bool session_rests(const struct perigee_session *session);
void session_begun(struct perigee_session *session, int64_t timer);
void session_opened(struct perigee_session *session);
/* Ends the session if its lane is broken; returns whether it did. */
bool session_broken(struct perigee_session *session);
struct perigee_session *session_new(struct perigee_engine *, int fd);
/* NULL: there is none of that number any more. */
struct perigee_session *session_by_id(struct perigee_engine *, uint32_t id);

/* ---- session_end.c ----------------------------------------------------- */
void session_end(struct perigee_session *session, int status,
                 const char *reason);
/* Tells the peer, of one that is open, that it will. */
void session_say_bye(struct perigee_session *session);
void session_destroy(struct perigee_session *session);
void counters_add(struct perigee_counters *to,
                  const struct perigee_counters *from);
void session_close_in_child(struct perigee_session *session);
/* Its hello is given up, to be said anew elsewhere. */
void session_back(struct perigee_session *session);

/* ---- choice.c ---------------------------------------------------------- */
/* The transports that this side can use for the session. */
void choice_list(const struct perigee_session *session, struct terms *terms);
/* Are there RDMA devices that may be used? Opens them, the first time. */
bool choice_devices(struct perigee_engine *engine);
/* Of what both have (here: own) the first in the dialer's order, so that both
 * choose the same; NULL: nothing. */
const struct perigee_transport *choice_of(struct perigee_session *session,
                                          const struct terms *own);
/* There is nothing: a status and why. */
int choice_none(const struct perigee_session *, const struct terms *peer,
                char reason[REASON]);
/* Why none of the other transports carries the session, a line each. */
void choice_considered(const struct perigee_session *session, char *text,
                       size_t size);
/* This side's half of the transport. */
int wireup_open(struct perigee_session *, struct offer *, char reason[REASON]);
/* Does this side have a transport of that name? */
const struct perigee_transport *transport_named(struct perigee_engine *,
                                                const char *name);
/* The first that can do without a socket, or NULL. */
const struct perigee_transport *transport_alone(struct perigee_engine *);

/* ---- proof.c ----------------------------------------------------------- */
/* Says HELLO, over TCP; PROOF, after which what this side says is sealed. Fills
 * in what its TERMS say of sealing. */
void proof_say_hello(struct perigee_session *session);
void proof_say(struct perigee_session *session);
void proof_flags(struct perigee_session *, struct terms *);
/* What either side says, or has said, of what the session's key is made. */
void proof_word(struct perigee_session *, bool ours, const struct frame *);
/* After both HELLOs: what proofs are made of, or a status and why. */
int proof_agree(struct perigee_session *, char reason[REASON]);
/* Is it right? Then what the peer says is sealed from here on; else a status and
 * why. */
int proof_heard(struct perigee_session *, const uint8_t proof[HANDSHAKE_MAC],
                char reason[REASON]);
/* By the peer's terms and ours: is all to be sealed? A status and why if it
 * cannot be. */
int proof_terms(struct perigee_session *, char reason[REASON]);
/* All was said: the session has its key, and frames are sealed no more if the
 * lane seals them. */
void proof_end(struct perigee_session *session);
/* Nothing is left of it. */
void proof_forget(struct perigee_session *session);
/* A line on how well the peer is known, and who else can read what is said. */
void proof_text(const struct perigee_session *, char text[REASON]);
/* Does this side take no session over TCP that is not sealed, or has no MACs? */
static inline bool proof_strict(const struct perigee_engine *engine) {
  return engine->options.encrypt == PERIGEE_ENCRYPT_ALL ||
         engine->options.encrypt == PERIGEE_ENCRYPT_AUTH;
}
/* Streams may be attached to the session from here on; and none any more. */
void proof_index(struct perigee_session *session);
void proof_unindex(struct perigee_session *session);
/* The session that was dialed and that a new stream belongs to, or NULL. */
struct perigee_session *proof_find(struct perigee_engine *,
                                   const struct attach *);

/* ---- cookie.c ---------------------------------------------------------- */
/* That of a HELLO of the session's peer; has it shown the right one? */
bool cookie_make(struct perigee_session *, const struct hello *,
                 uint8_t cookie[COOKIE]);
bool cookie_shown(struct perigee_session *, const struct hello *);

/* ---- wireup.c ----------------------------------------------------------- */
void wireup_begin(struct perigee_session *session);
/* It has waited for what comes now (unauth.h). */
void wireup_turn(struct perigee_session *session);
/* Its steps, for who hears the peer's hello and offer by other ways. What this
 * side says; does the peer's hello fit, and its half of the transport (false:
 * the session has ended); and that all is in place. */
void wireup_own(struct perigee_session *session, struct hello *hello);
void terms_own(struct perigee_session *session, struct terms *terms);
bool wireup_common(struct perigee_session *, const struct hello *);
bool wireup_fits(struct perigee_session *session, const struct terms *terms);
bool wireup_joins(struct perigee_session *session, const struct offer *offer);
void wireup_ready(struct perigee_session *session);
int wireup_frame(struct perigee_session *, const struct frame *);
void wireup_timeout(struct perigee_session *session);

/* ---- peer.c ------------------------------------------------------------ */
/* Of a Unix socket that is connected: takes hold of the process at its other
 * end. PERIGEE_OK, or a status and why: it is of another user, or has ended. */
int peer_take(struct perigee_session *, char reason[REASON]);
/* Its end is told no more; it is let go; another session will have it, by its
 * pidfd (-1: none), and has it. */
void peer_unwatch(struct perigee_session *session);
void peer_forget(struct perigee_session *session);
int peer_lend(struct perigee_session *session);
void peer_keep(struct perigee_session *session, int pid, int pidfd);
void peer_ended(struct watcher *, uint32_t events);
/* Of one over TCP: who listens at that Unix socket is its peer, as that says. Its
 * end is the peer's, and it is good for nothing else. */
void peer_named(struct perigee_session *session, int socket);
/* Did the very process that is held on to say what was read last? */
bool peer_vouches(const struct perigee_session *session);

/* ---- endpoint.c -------------------------------------------------------- */
/* Parts of sessions without a socket: of a poll, and when their timer is due. */
void endpoint_poll(struct perigee_session *session);
void endpoint_tick(struct perigee_session *session);

/* ---- streams.c --------------------------------------------------------- */
/* Gives the session's socket to its lane, if that takes it; false: the session
 * has ended. */
bool streams_take(struct perigee_session *session);
/* Of sessions whose frames go through the lane: those that came, and one for the
 * peer (as wire_send). Until the last has gone, or a moment has passed: of one
 * session, of all of them. */
void session_hear(struct perigee_session *session);
int session_say(struct perigee_session *session, const struct frame *frame);
void session_drain(struct perigee_session *session);
void sessions_drain(struct perigee_engine *engine);

/* ---- attach.c ---------------------------------------------------------- */
/* Dials them once the lane wants any; none is wanted any more. */
void attach_wanted(struct perigee_session *session);
void attach_end(struct perigee_session *session);
/* A stranger's first word: the stranger is gone, unless with a status. */
int attach_asked(struct perigee_session *stranger, const struct attach *asked);

/* ---- liveness.c -------------------------------------------------------- */
enum { DEAD_AFTER_LEAST = 10000000 }; /* ns, of the option dead_after */
/* What a peer is told of it. */
uint32_t liveness_told(const struct perigee_engine *engine);
void liveness_begin(struct perigee_session *session);
/* The peer's process has ended, and somebody has its socket still. */
void liveness_peer_exited(struct perigee_session *session);
bool liveness_wanted(const struct perigee_session *session);
void liveness_heard(struct perigee_session *session); /* looks if it was */
void liveness_tick(struct perigee_session *session);

/* ---- lookup.c ---------------------------------------------------------- */
int lookup_asked(struct perigee_session *, const struct lookup *);
/* Takes the descriptors of its keys. */
int lookup_found(struct perigee_session *, struct found *);
void remotes_free(struct perigee_session *session);

/* ---- listen.c ---------------------------------------------------------- */
/* A stranger's descriptor is none of the last: he has that of one who is given
 * up instead. -1: there is none to be had. */
int unauth_place(struct perigee_engine *engine, int fd);
/* As perigee_listen; tickets: only for sessions that move. */
int listener_open(struct perigee_engine *, const char *address, bool tickets,
                  struct perigee_listener **listener);

/* ---- dial.c ------------------------------------------------------------ */
extern const struct operation_class connect_class;
/* Of a session in state "none": the connecting socket tells something, or one
 * of the look-up; its timer is due; nobody is looked for any more. */
void dial_ready(struct perigee_session *session);
void dial_resolved(struct watcher *, uint32_t events);
void dial_tick(struct perigee_session *session);
void dial_end(struct perigee_session *session);
/* After a pause, as the listener is crowded; false: nobody waits for it. */
bool dial_again(struct perigee_session *session);
/* Begins; what goes wrong ends the session. */
void dial_to(struct perigee_session *, const struct address *);
int socket_new(int family);
void socket_no_delay(int fd);

/* ---- handing.c --------------------------------------------------------- */
/* For transports (transport.h): what the peer is to map. */
int handing_file(struct perigee_session *, const char **why);
int handing_hand(struct perigee_session *, const void *bytes, uint32_t length,
                 int fd, const char **why);
void handing_later(struct perigee_session *, const char *why);
/* The timer of one that is open is due; its socket has room. */
void handing_due(struct perigee_session *session);
void handing_room(struct perigee_session *session);
/* The engine's spare descriptor: another may be had in its place, as it is
 * closed (false: it was already); there is one again, if there can be. */
bool spare_lend(struct perigee_engine *engine);
void spare_keep(struct perigee_engine *engine);

/* ---- socket.c ---------------------------------------------------------- */
/* For transports: a socket of a lane is watched, for edges; and closed. */
int lane_watch(struct perigee_session *session, int fd);
void lane_close(struct perigee_session *session, int fd);
/* Of watchers: the session's socket, and one of its lane's. */
void session_ready(struct watcher *, uint32_t events);
void lane_ready(struct watcher *, uint32_t events);
/* Tells the peer, over the socket or, where there is none, through the lane: as
 * wire_send. */
int session_tell(struct perigee_session *, const struct frame *, const int *fds,
                 uint32_t fd_count);
/* What was posted while the wire was corked goes. */
void session_uncork(struct perigee_session *session);
/* Reads what there is, though no descriptor was looked at. */
void socket_look(struct perigee_session *session);
/* Nothing more will come from the peer. */
void session_hang_up(struct perigee_session *session);
/* Takes the frames that have come; what is none of them ends the session. */
void session_frames(struct perigee_session *session);
/* For transports, too: what waits goes once the socket has room. */
void session_await_room(struct perigee_session *session);
/* Tells or ends the session; false if it was ended. */
bool session_send(struct perigee_session *, const struct frame *,
                  const int *fds, uint32_t fd_count);

/* ---- refused.c ------------------------------------------------------------ */
/* A stranger was refused: whoever that is ("": unknown), at a listener. */
void refusals_add(struct perigee_engine *, const char *peer,
                  const char *address, int status, const char *reason);
/* Is there an event of them? */
bool refusals_give(struct perigee_engine *, struct perigee_event *);

#endif
