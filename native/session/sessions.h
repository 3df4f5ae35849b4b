/* SPDX-License-Identifier: Apache-2.0
 *
 * sessions.h - interface between the files of this folder.
 */
#ifndef SESSIONS_H
#define SESSIONS_H

#include "base/machine.h"
#include "core/engine.h"
#include "net/info.h"
#include "security/handshake.h"
#include "security/secret.h"

/* A session's secrets, in the engine's vault. */
struct keys {
  struct handshake handshake;     /* until the session has its key */
  uint8_t session[HANDSHAKE_KEY]; /* key of the lane's streams (handshake.h) */
  struct secret ticket; /* its key replaces the secret if a ticket was shown */
};
_Static_assert(sizeof(struct keys) <= VAULT_SMALL, "a cell has room for them");
_Static_assert(sizeof(struct seal) <= VAULT_LARGE, "and for a seal");

struct perigee_listener {
  struct node node;
  struct watcher watcher;
  struct perigee_engine *engine;
  int fd;
  bool tcp, open_to_all; /* open_to_all: other hosts, and no secret */
  bool file;             /* its file has to be removed */
  bool tickets;          /* only for sessions that move (migrate.h) */
  char address[ADDRESS_TEXT];
};

struct perigee_endpoint {
  struct node node; /* in engine->endpoints */
  struct perigee_engine *engine;
  struct perigee_session *session; /* NULL once it was connected */
  uint64_t nonce;
  char info[INFO_TEXT];
};

/* Events of session_machine; session.c describes them. */
enum session_event { SESSION_BEGIN, SESSION_OPEN, SESSION_BACK, SESSION_END };

/* Did the session move here, by a ticket? */
static inline bool session_moved(const struct perigee_session *s) {
  return s->migration.state == MIGRATION_MOVED;
}

/* Reasons for which something cannot be sent or received. */
#define NOT_TAKEN "the peer does not take what it is told"
#define IN_FLIGHT                                                              \
  "too many descriptors are on their way between this user's processes "       \
  "(ulimit -n), or the system has no memory to send them"

/* ---- session.c --------------------------------------------------------- */
extern const struct machine session_machine;
/* Of streams_machine: streams.c tells what they do. */
enum streams_event { STREAMS_TAKE, STREAMS_ATTACH };
extern const struct machine streams_machine; /* streams.c */
void session_begun(struct perigee_session *session, int64_t timer);
void session_opened(struct perigee_session *session);
struct perigee_session *session_new(struct perigee_engine *, int fd);
/* Returns NULL if the session does not exist any more. */
struct perigee_session *session_by_id(struct perigee_engine *, uint32_t id);

/* ---- session_poll.c ---------------------------------------------------- */
void session_poll(struct perigee_session *session);
/* May the session be parked? It may if polls would see everything without
 * looking at it, and nothing here waits for room at the peer. */
bool session_rests(const struct perigee_session *session);
/* Ends the session if its lane is broken; returns whether it did. */
bool session_broken(struct perigee_session *session);

/* ---- session_end.c ----------------------------------------------------- */
void session_end(struct perigee_session *session, int status,
                 const char *reason);
/* Sends BYE, if the session is open. */
void session_say_bye(struct perigee_session *session);
void session_destroy(struct perigee_session *session);
/* Destroys one that was freed, if no copy is under way for it any more: in a
 * later poll it has to be asked again. */
bool session_reap(struct perigee_session *session);
void counters_add(struct perigee_counters *to,
                  const struct perigee_counters *from);
void session_close_in_child(struct perigee_session *session);
/* Gives the handshake up, to begin it again at another address. */
void session_back(struct perigee_session *session);

/* ---- choice.c ---------------------------------------------------------- */
/* Lists the transports that this side can use for the session. */
void choice_list(const struct perigee_session *session, struct terms *terms);
/* Over TCP: finds out which transports have their fabric (devices). Their bits
 * are the session's from then on, and it lists only them. */
void choice_fabrics(struct perigee_session *session);
/* Returns the first transport in the dialer's order that both sides have, so
 * that both choose the same; NULL if they have none in common. */
const struct perigee_transport *choice_of(struct perigee_session *session,
                                          const struct terms *own);
/* Explains that there is none: a status and the reason. */
int choice_none(const struct perigee_session *, const struct terms *peer,
                char reason[REASON]);
/* Writes why each other transport does not carry the session, one line each. */
void choice_considered(const struct perigee_session *session, char *text,
                       size_t size);
/* Opens this side's half of the transport. */
int choice_open(struct perigee_session *, struct offer *, char reason[REASON]);
/* Returns this side's transport of that name, or NULL. */
const struct perigee_transport *transport_named(struct perigee_engine *,
                                                const char *name);
/* Fails with what there is. */
int transport_unknown(struct perigee_engine *, const char *name);
/* Is there one of that name here, and does it need such a socket? */
bool transport_needs(struct perigee_engine *, const char *name,
                     enum transport_socket socket);
/* Returns the first transport that works without a socket, or NULL. */
const struct perigee_transport *transport_alone(struct perigee_engine *);

/* ---- lane_offers.c ----------------------------------------------------- */
/* Adds the additional lanes that this side has a transport for; by both sides'
 * terms: which of them the session has (false: no memory). */
void lanes_list(const struct perigee_session *session, struct terms *terms);
bool lanes_agree(struct perigee_session *session, const struct terms *own);
/* Says this side's halves; has the peer said all of its? */
void lanes_offer(struct perigee_session *session);
bool lanes_complete(const struct perigee_session *session);
/* What the peer says of one, by a process that vouches for it or not (peer.c):
 * PERIGEE_OK, or PERIGEE_PROTOCOL. */
int lanes_heard(struct perigee_session *, const struct extra *, bool vouched);
/* A line for each, for people: the session's own text. */
const char *lanes_told(const struct perigee_session *session);

/* ---- proof.c ----------------------------------------------------------- */
/* begin makes the keys that this side's HELLO tells of; false: the session has
 * ended. say sends PROOF; this side's later frames are sealed. flags fills in what
 * its TERMS say of sealing. */
bool proof_begin(struct perigee_session *session);
void proof_say(struct perigee_session *session);
void proof_flags(struct perigee_session *, struct terms *);
/* Adds a frame of either side to the transcript. */
void proof_word(struct perigee_session *, bool ours, const struct frame *);
/* Agrees on keys, after both HELLOs; a status and why if that fails. */
int proof_agree(struct perigee_session *, char reason[REASON]);
/* Checks the peer's proof. If it is right, the peer's later frames are sealed;
 * otherwise a status and why. */
int proof_heard(struct perigee_session *, const uint8_t proof[HANDSHAKE_MAC],
                char reason[REASON]);
/* Decides from both sides' TERMS whether the session is sealed; a status and
 * why if the sides do not agree. */
int proof_terms(struct perigee_session *, char reason[REASON]);
/* The handshake is complete: makes the session's key. If the lane seals, frames
 * are not sealed any more. */
void proof_end(struct perigee_session *session);
/* Wipes and frees the session's keys. */
void proof_forget(struct perigee_session *session);
/* Writes a line on how the peer was authenticated and who can read the
 * session. */
void proof_text(const struct perigee_session *, char text[REASON]);
/* Does this engine refuse sessions over TCP that are not sealed or have no
 * MACs? */
static inline bool proof_strict(const struct perigee_engine *engine) {
  return engine->options.encrypt == PERIGEE_ENCRYPT_ALL ||
         engine->options.encrypt == PERIGEE_ENCRYPT_AUTH;
}
/* From index to unindex, streams may be attached to the session. */
void proof_index(struct perigee_session *session);
void proof_unindex(struct perigee_session *session);
/* Returns the session that an ATTACH belongs to, or NULL. */
struct perigee_session *proof_find(struct perigee_engine *,
                                   const struct attach *);

/* ---- peer.c ------------------------------------------------------------ */
/* Finds the process at the other end of a connected Unix socket, by its pidfd.
 * PERIGEE_OK, or a status and why: another user's process, or it has ended. */
int peer_take(struct perigee_session *, char reason[REASON]);
/* unwatch stops telling the process's end. forget closes its pidfd. lend
 * returns a copy of the pidfd for another session (-1: none), which keeps it by
 * peer_keep. */
void peer_unwatch(struct perigee_session *session);
void peer_forget(struct perigee_session *session);
int peer_lend(struct perigee_session *session);
void peer_keep(struct perigee_session *session, int pid, int pidfd);
void peer_ended(struct watcher *, uint32_t events);
/* For a session over TCP: its peer is the process that listens at the other end
 * of this Unix socket. The pidfd is used only to notice the end of that
 * process. */
void peer_named(struct perigee_session *session, int socket);
/* Was what was read last sent by the very process that the pidfd stands for? */
bool peer_vouches(const struct perigee_session *session);

/* ---- streams.c --------------------------------------------------------- */
/* Gives the session's socket to its lane, if that takes it; false: the session
 * has ended. */
bool streams_take(struct perigee_session *session);
/* For sessions whose frames go through the lane. hear handles the frames that
 * came; say sends one (as wire_send). drain waits until all frames of a session
 * are sent, or a moment has passed; sessions_drain does so for all. */
void session_hear(struct perigee_session *session);
int session_say(struct perigee_session *session, const struct frame *frame);
void session_drain(struct perigee_session *session);
void sessions_drain(struct perigee_engine *engine);

/* ---- attach.c ---------------------------------------------------------- */
/* wanted dials further sockets once the lane wants any; end gives them up. heals:
 * is one that is lost attached anew? look then looks after them. closed closes
 * one for the lane. */
void attach_wanted(struct perigee_session *session);
void attach_end(struct perigee_session *session);
bool attach_heals(const struct perigee_session *session);
void attach_look(struct perigee_session *session);
void attach_closed(struct perigee_session *session, int fd);
/* Gives the lane a socket, which is closed whether or not it is taken. */
int attach_give(struct perigee_session *session, uint32_t number, int fd,
                const uint8_t *bytes, uint32_t length);
/* Handles ATTACH, the first frame of an unauthenticated peer. Unless it returns
 * a status, that peer's session is freed. */
int attach_asked(struct perigee_session *peer, const struct attach *asked);

/* ---- liveness.c -------------------------------------------------------- */
/* ns: the least dead_after; and the least time that a stream for payloads may be
 * silent, as TCP needs 0.2 s to send a lost packet again. */
enum { DEAD_AFTER_LEAST = 10000000, STREAM_PATIENCE = 500000000 };
/* The dead_after that peers are told. */
uint32_t liveness_told(const struct perigee_engine *engine);
void liveness_begin(struct perigee_session *session);
/* The peer's process has ended, but another process has its socket open. */
void liveness_peer_exited(struct perigee_session *session);
bool liveness_wanted(const struct perigee_session *session);
void liveness_heard(struct perigee_session *session); /* looks if it was */
void liveness_tick(struct perigee_session *session);
/* For how long a socket for payloads may be silent; 0: without an end. */
int64_t liveness_of_streams(const struct perigee_session *session);

/* ---- drain.c ----------------------------------------------------------- */
extern const struct machine drain_machine;
/* A word of the peer: PERIGEE_OK, or PERIGEE_PROTOCOL. */
int drain_heard(struct perigee_session *session, const struct drain *word);
/* Tells the peer of an open session, if this side drains. */
void drain_tell(struct perigee_session *session);
/* Answers a peer that drains: part of the polls of sessions that attend. */
void drain_turn(struct perigee_session *session);
/* Waits a peer that drains to hear that no call is under way? */
bool drain_owes(const struct perigee_session *session);

/* ---- lookup.c ---------------------------------------------------------- */
int lookup_asked(struct perigee_session *, const struct lookup *);
/* Takes the descriptors of its keys. */
int lookup_found(struct perigee_session *, struct found *);
void remotes_free(struct perigee_session *session);

/* ---- listen.c ---------------------------------------------------------- */
/* Keeps the last descriptors free of unauthenticated peers: returns fd, or that
 * of another such peer, which is given up. -1: there is none to be had. */
int unauth_place(struct perigee_engine *engine, int fd);
/* As perigee_listen. tickets: accepts only sessions that move. */
int listener_open(struct perigee_engine *, const char *address, bool tickets,
                  struct perigee_listener **listener);

/* ---- dial.c ------------------------------------------------------------ */
extern const struct operation_class connect_class;
/* For a session in state "none". ready: the connecting socket has an event;
 * resolved: the look-up has one; tick: the timer is due; end: stops dialing. */
void dial_ready(struct perigee_session *session);
void dial_resolved(struct watcher *, uint32_t events);
void dial_tick(struct perigee_session *session);
void dial_end(struct perigee_session *session);
/* Dials again after a pause, as the listener is crowded; false: nobody
 * waits. */
bool dial_again(struct perigee_session *session);
/* Begins to dial; an error ends the session. */
void dial_to(struct perigee_session *, const struct address *);

/* ---- handing.c --------------------------------------------------------- */
/* For transports (transport.h): memory that the peer is to map. */
int handing_file(struct perigee_session *, const char **why);
int handing_hand(struct perigee_session *, const void *bytes, uint32_t length,
                 int fd, const char **why);
void handing_later(struct perigee_session *, const char *why);
/* due: the timer of an open session has fired; room: its socket has room. */
void handing_due(struct perigee_session *session);
void handing_room(struct perigee_session *session);
/* The engine's spare descriptor. lend closes it, so that another can be opened
 * in its place (false: it was closed already); keep opens it again, if
 * possible. */
bool spare_lend(struct perigee_engine *engine);
void spare_keep(struct perigee_engine *engine);

/* ---- socket.c ---------------------------------------------------------- */
/* For transports: watch a lane's socket, edge-triggered; close one. */
int lane_watch(struct perigee_session *session, int fd);
void lane_close(struct perigee_session *session, int fd);
/* Called by watchers: of the session's socket, and of a lane's. */
void session_ready(struct watcher *, uint32_t events);
void lane_ready(struct watcher *, uint32_t events);
/* Sends the peer a frame, over the socket or, if there is none, through the
 * lane; returns what wire_send does. */
int session_tell(struct perigee_session *, const struct frame *, const int *fds,
                 uint32_t fd_count);
/* Sends the frames that were posted while the wire was corked. */
void session_uncork(struct perigee_session *session);
/* Reads the socket without waiting for epoll to report it. */
void socket_look(struct perigee_session *session);
/* The peer will send nothing more. */
void session_hang_up(struct perigee_session *session);
/* Handles the frames that were read; anything else ends the session. */
void session_frames(struct perigee_session *session);
/* Sends what waits once the socket has room; also for transports. */
void session_await_room(struct perigee_session *session);
/* Sends a frame or ends the session; returns false if it ended. */
bool session_send(struct perigee_session *, const struct frame *,
                  const int *fds, uint32_t fd_count);

/* ---- refused.c ----------------------------------------------------------- */
/* Counts an unauthenticated peer ("" if unknown) that a listener refused. */
void refusals_add(struct perigee_engine *, const char *peer,
                  const char *address, int status, const char *reason);
/* Fills in an event of refused peers, if there is one to give. */
bool refusals_give(struct perigee_engine *, struct perigee_event *);

#endif
