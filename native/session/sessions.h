/* SPDX-License-Identifier: Apache-2.0
 *
 * sessions.h - the interface of this folder's modules, to each other and to the
 * folders above. They are listed from those that others use to those that use
 * others: unauth, lane_offers, drain, lookup, peer and dial use none of these;
 * socket uses them; then streams, choice, session, session_poll, listen,
 * migrate. A module asks the session for what it needs of one above it (struct
 * upward). Those above say session_end() for an end, and those below up->end().
 * A session that cannot be opened where it is may go back to another address:
 * up->fail() says that, and ends it if it was open.
 */
#ifndef SESSIONS_H
#define SESSIONS_H

#include "base/machine.h"
#include "core/engine.h"
#include "net/address.h"
#include "net/wire.h"
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
  bool tickets;          /* only for sessions that move (migrate.c) */
  bool listens;          /* so the address is no other listener's */
  char address[ADDRESS_TEXT];
};

struct perigee_endpoint {
  struct node node; /* in engine->endpoints */
  struct perigee_engine *engine;
  struct perigee_session *session; /* NULL once it was connected */
  uint64_t nonce;
  char info[INFO_TEXT];
};

/* Did the session move here, by a ticket? */
static inline bool session_moved(const struct perigee_session *s) {
  return s->migration.state == MIGRATION_MOVED;
}

/* May it move yet? Then shared memory may be asked for over TCP. */
static inline bool session_may_move(const struct perigee_session *s) {
  return s->dialed && !session_moved(s) &&
         s->migration.state != MIGRATION_RETURNED;
}

/* Reasons for which something cannot be sent or received. */
#define NOT_TAKEN "the peer does not take what it is told"
#define IN_FLIGHT                                                              \
  "too many descriptors are on their way between this user's processes "       \
  "(ulimit -n), or the system has no memory to send them"

/* ---- unauth.c ------------------------------------------------------------ */
/* The reason told to unauthenticated peers that are given up. */
#define CROWDED "too many come at once; try again"

struct origin_key {
  uint64_t family, bits;
};

struct origin {
  struct node node;
  struct origin_key key;
  uint32_t here, waiting; /* sessions; those that wait for their turn */
};

struct unauth {
  struct node all;     /* sessions, the oldest first */
  struct node origins; /* with sessions; the last one served is last */
  uint32_t waiting;
  int64_t paid; /* time up to which turns have used their share */
};

/* open: PERIGEE_NO_MEMORY without memory. Close when no session is left. */
int unauth_open(struct perigee_engine *engine);
void unauth_close(struct perigee_engine *engine);
/* Adds a session that was accepted, over TCP from that address. False without
 * memory. The session may be given up at once. */
bool unauth_join(struct perigee_session *, const union socket_address *from);
/* The session's peer is authenticated, or will not be let in. */
void unauth_leave(struct perigee_session *session);
/* Gives up the oldest session of the origin that has most; false: there is
 * none. */
bool unauth_give_up(struct perigee_engine *engine);
/* Keeps the last descriptors free of unauthenticated peers: returns fd, or that
 * of another such peer, which is given up. -1: there is none to be had. */
int unauth_place(struct perigee_engine *engine, int fd);
/* The next step is expensive: the session waits for its turn (wireup_class).
 * False: the peer is authenticated, and the session goes on at once. */
bool unauth_wait(struct perigee_session *session);
/* Gives one session its turn, if one waits and it is time. */
void unauth_turn(struct perigee_engine *engine);
/* Are there so many that a dialer must come back with a cookie? */
bool unauth_crowded(const struct perigee_engine *engine);
/* Counts an unauthenticated peer ("" if unknown) that a listener refused. */
void refusals_add(struct perigee_engine *, const char *peer,
                  const char *address, int status, const char *reason);
/* Fills in an event of refused peers, if there is one to give. */
bool refusals_give(struct perigee_engine *, struct perigee_event *);

/* ---- lane_offers.c ------------------------------------------------------- */
/* Looks which transports could be beside a first lane. */
void additional_look(struct perigee_engine *engine);
/* Adds the additional lanes that this side has a transport for; by both sides'
 * terms: which of them the session has (false: no memory). */
void lanes_list(const struct perigee_session *session, struct terms *terms);
bool lanes_agree(struct perigee_session *session, const struct terms *own);
/* offer says this side's halves. complete: has the peer said all of its? */
void lanes_offer(struct perigee_session *session);
bool lanes_complete(const struct perigee_session *session);
/* Handles what the peer says of one, by a process that vouches for it or not
 * (peer.c): PERIGEE_OK, or PERIGEE_PROTOCOL. */
int lanes_heard(struct perigee_session *, const struct extra *, bool vouched);
/* A line for each, for people: the session's own text. */
const char *lanes_told(const struct perigee_session *session);
/* Do the terms name this transport? */
bool terms_offer(const struct terms *terms, const char *name);

/* ---- drain.c ------------------------------------------------------------- */
extern const struct machine drain_machine;
/* A word of the peer: PERIGEE_OK, or PERIGEE_PROTOCOL. */
int drain_heard(struct perigee_session *session, const struct drain *word);
/* Tells the peer of an open session, if this side drains. */
void drain_tell(struct perigee_session *session);
/* Answers a peer that drains: part of the polls of sessions that attend. */
void drain_turn(struct perigee_session *session);
/* Must a peer that drains still be told that no call is under way? */
bool drain_owes(const struct perigee_session *session);

/* ---- lookup.c ------------------------------------------------------------ */
int lookup_asked(struct perigee_session *, const struct lookup *);
/* Takes the descriptors of its keys. */
int lookup_found(struct perigee_session *, struct found *);

/* ---- peer.c -------------------------------------------------------------- */
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
/* For a session over TCP: its peer is the process that listens at the other end
 * of this Unix socket. The pidfd is used only to notice the end of that
 * process. */
void peer_named(struct perigee_session *session, int socket);
/* Was what was read last sent by the very process that the pidfd stands for? */
bool peer_vouches(const struct perigee_session *session);

/* begin makes the keys that this side's HELLO tells of; false: the session has
 * ended. say sends PROOF; this side's later frames are sealed. flags fills in
 * what its TERMS say of sealing. */
bool proof_begin(struct perigee_session *session);
void proof_say(struct perigee_session *session);
void proof_flags(struct perigee_session *, struct terms *);
/* Adds a frame of either side to the transcript. */
void proof_word(struct perigee_session *, bool ours, const struct frame *);
/* Agrees on keys, after both HELLOs; a status and why if that fails. */
int proof_agree(struct perigee_session *, char reason[REASON]);
/* Checks the peer's proof. The peer's later frames are sealed if it is right;
 * otherwise a status and why. */
int proof_heard(struct perigee_session *, const uint8_t proof[HANDSHAKE_MAC],
                char reason[REASON]);
/* Decides from both sides' TERMS whether the session is sealed; a status and
 * why if the sides do not agree. */
int proof_terms(struct perigee_session *, char reason[REASON]);
/* The handshake is complete: makes the session's key. Frames are not sealed any
 * more if the lane seals. */
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

/* ---- dial.c -------------------------------------------------------------- */
/* For a session in state "none". new returns NULL without memory. to begins to
 * dial, and later does so after a pause, as the listener is crowded; an error
 * fails the session. again tries a Unix socket once more whose backlog was
 * full. ready: the connecting socket has an event; resolved: the look-up has
 * one. end stops dialing. */
struct dial *dial_new(const struct address *address);
void dial_to(struct perigee_session *, const struct address *);
void dial_later(struct perigee_session *, struct dial *);
void dial_again(struct perigee_session *session);
void dial_ready(struct perigee_session *session);
void dial_resolved(struct watcher *, uint32_t events);
void dial_end(struct perigee_session *session);

/* ---- socket.c ------------------------------------------------------------ */
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
/* For sessions whose frames go through the lane: handles those that came. */
void session_hear(struct perigee_session *session);
/* Adds the bytes of the session's sockets so far. */
void socket_traffic(const struct perigee_session *, uint64_t *sent,
                    uint64_t *received);
/* Does the peer have to be heard for the session to last (streams.c)? */
bool liveness_wanted(const struct perigee_session *session);
/* Notes it if the peer was heard. */
void liveness_heard(struct perigee_session *session);
/* For transports (transport.h): memory that the peer is to map. */
int handing_file(struct perigee_session *, const char **why);
int handing_hand(struct perigee_session *, const void *bytes, uint32_t length,
                 int fd, const char **why);
void handing_later(struct perigee_session *, const char *why);
/* The engine's spare descriptor. lend closes it, so that another can be opened
 * in its place (false: it was closed already); keep opens it again, if
 * possible. */
bool spare_lend(struct perigee_engine *engine);
void spare_keep(struct perigee_engine *engine);

/* ---- streams.c ----------------------------------------------------------- */
enum streams_event { STREAMS_TAKE, STREAMS_ATTACH };
extern const struct machine streams_machine;
/* Gives the session's socket to its lane, if that takes it; false: the session
 * has ended. */
bool streams_take(struct perigee_session *session);
/* For sessions whose frames go through the lane: drain waits until all frames
 * of a session are sent, or a moment has passed; sessions_drain does so for
 * all. */
void session_drain(struct perigee_session *session);
void sessions_drain(struct perigee_engine *engine);

/* wanted dials further sockets once the lane wants any; end gives them up.
 * heals: is one that is lost attached anew? closed closes one for the lane. */
void attach_wanted(struct perigee_session *session);
void attach_end(struct perigee_session *session);
bool attach_heals(const struct perigee_session *session);
void attach_closed(struct perigee_session *session, int fd);
/* Gives the lane a socket, which is closed whether or not it is taken. */
int attach_give(struct perigee_session *session, uint32_t number, int fd,
                const uint8_t *bytes, uint32_t length);
/* Handles ATTACH, the first frame of an unauthenticated peer. The function
 * frees that peer's session, unless it returns a status. */
int attach_asked(struct perigee_session *peer, const struct attach *asked);

/* ns: the least dead_after; and the least time that a stream for payloads may
 * be silent, as TCP needs 0.2 s to send a lost packet again. */
enum { DEAD_AFTER_LEAST = 10000000, STREAM_PATIENCE = 500000000 };
/* The dead_after that peers are told. */
uint32_t liveness_told(const struct perigee_engine *engine);
void liveness_begin(struct perigee_session *session);
/* The peer's process has ended, but another process has its socket open. */
void liveness_peer_exited(struct perigee_session *session);
/* For how long a socket for payloads may be silent; 0: without an end. */
int64_t liveness_of_streams(const struct perigee_session *session);

/* ---- choice.c ------------------------------------------------------------ */
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
/* Notes why a session that opens is over nothing better (stats.h). */
void choice_note(struct perigee_session *session);
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

/* ---- session.c ----------------------------------------------------------- */
extern const struct machine session_machine;
extern const struct operation_class connect_class;
struct perigee_session *session_new(struct perigee_engine *, int fd);
/* Returns NULL if the session does not exist any more. */
struct perigee_session *session_by_id(struct perigee_engine *, uint32_t id);
/* The peer has said by what name others find it; what can be no agent's name is
 * passed over. The name of the handshake, which the peer goes by, comes first. */
void session_named(struct perigee_session *, const char *name, uint64_t length);
/* Steps of its life: the handshake begins; both sides are ready. */
void session_begun(struct perigee_session *session);
void session_opened(struct perigee_session *session);
/* Gives the handshake up, to begin it again at another address. */
void session_back(struct perigee_session *session);
/* Dials again after a pause, as the listener is crowded; false: nobody
 * waits. */
bool session_dial_again(struct perigee_session *session);
/* Ends the session, for good. */
void session_end(struct perigee_session *session, int status,
                 const char *reason);
/* Sends BYE, if the session is open. */
void session_say_bye(struct perigee_session *session);
/* Destroys one that was freed, if no copy is under way for it any more: in a
 * later poll it has to be asked again. */
bool session_reap(struct perigee_session *session);
void session_destroy(struct perigee_session *session);
void session_close_in_child(struct perigee_session *session);

/* ---- session_poll.c ------------------------------------------------------ */
void session_poll(struct perigee_session *session);
/* Did requests of this poll ask for so many bytes of long replies that no more of
 * them are read in it? Filling fresh memory takes 0.7 ns a byte. */
static inline bool engine_is_asked_enough(const struct perigee_engine *engine) {
  return engine->asked >= 1 << 20;
}
/* May the session be parked? It may if polls would see everything without
 * looking at it, and nothing here waits for room at the peer. */
bool session_rests(const struct perigee_session *session);
/* Ends the session if its lane is broken; returns whether it did. */
bool session_broken(struct perigee_session *session);

/* ---- listen.c ------------------------------------------------------------ */
/* As perigee_listen. tickets: accepts only sessions that move. */
int listener_open(struct perigee_engine *, const char *address, bool tickets,
                  struct perigee_listener **listener);

/* ---- migrate.c ----------------------------------------------------------- */
extern const struct machine migration_machine;
/* Fill in the fields of HELLO and TERMS that are about moving. */
void migrate_hello(const struct perigee_session *, struct hello *);
void migrate_terms(struct perigee_session *, struct terms *);
/* Returns PERIGEE_OK if the sender of this HELLO may come in here, else a
 * status and the reason. */
int migrate_admits(struct perigee_session *, const struct hello *,
                   char reason[REASON]);
/* Finds out from the peer's TERMS whether it is on this host. */
void migrate_met(struct perigee_session *, const struct terms *);
/* Takes the step to agreed if the session may move. Both sides compute the same
 * answer. */
void migrate_agree(struct perigee_session *, const struct terms *dialer,
                   const struct terms *dialed);
/* Takes the step back if a move was agreed: the session stays where it is. */
void migrate_stays(struct perigee_session *session);
/* Sends MOVE; false if it cannot. */
bool migrate_call(struct perigee_session *session);
/* Called when the peer has sent MOVE. */
int migrate_called(struct perigee_session *, const struct move *);
/* Called when a session that is not open fails. Returns true if it had moved
 * and now goes back to the address that was dialed first. */
bool migrate_returns(struct perigee_session *session, int status);
/* A listener is closed: who was sent on from its address is not let in. */
void migrate_forget(struct perigee_engine *engine, const char *address);
void migrate_close(struct perigee_engine *engine);

/* ---- dial.c: resolving a host's name ------------------------------------- */

enum { ADDRESSES_MAX = 16 };

/* Addresses in the order in which they are to be tried. */
struct addresses {
  union socket_address at[ADDRESSES_MAX];
  uint32_t count;
};

struct resolve;

/* Begins a look-up. The watcher is called when another step is due. NULL
 * without memory. */
struct resolve *resolve_begin(struct perigee_engine *engine,
                              const struct address *address,
                              struct watcher *watcher);
/* Continues: returns 1 and the addresses, 0, or a status and a sentence. */
int resolve_step(struct resolve *resolve, struct addresses *found,
                 char reason[ADDRESS_REASON]);
/* Ends the look-up; the watcher is not called any more. */
void resolve_end(struct resolve *resolve);

#endif
