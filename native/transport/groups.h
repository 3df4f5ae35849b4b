/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.h - the tables that a transport fills in, one for each group of things
 * that it does.
 */
#ifndef TRANSPORT_GROUPS_H
#define TRANSPORT_GROUPS_H

#include "transport/lane.h"

/* ---- What a transport may do ---------------------------------------------
 *
 * Each group of functions is a table of its own. A transport that does not do
 * what a group is for has NULL in its place; the core asks for the group, not
 * for its functions. Within a group all functions must be there, except those
 * whose comment tells what NULL means. */

/* Fabric: what all lanes of an engine share, such as devices, queues and
 * registered memory. It is made when a session first needs it and stopped with
 * the engine. look tells, before each session that may use it, whether it can
 * carry one now, or gives a status and a reason (NULL: it always can). turn
 * handles at each poll, for all lanes, what the hardware has done; true if there
 * was anything. descriptors returns at most `capacity` descriptors to be watched; ready is called when one of them has an event. arm
 * is called before the engine sleeps: what turn does not find afterwards, a
 * descriptor reports. dead tells why the fabric can carry nothing more, or
 * NULL, and then all its lanes are broken; a dead fabric's descriptors are not
 * watched any more, and it is stopped as soon as no lane uses it. forget is
 * called before a range of an area is unmapped, and returns false while the
 * device still uses it. forked, in a child process after fork, closes what the
 * child has of the fabric, so that it ends with the parent; it says and changes
 * nothing that the parent or a peer could notice.
 * Absent: lanes share nothing. */
struct transport_fabric {
  int (*start)(const struct fabric_options *options, struct fabric **fabric,
               char reason[REASON]);
  void (*stop)(struct fabric *fabric);
  int (*look)(struct fabric *fabric, char reason[REASON]);
  bool (*turn)(struct fabric *fabric);
  const char *(*dead)(const struct fabric *fabric, bool *used);
  int (*descriptors)(struct fabric *fabric, int *fds, int capacity);
  void (*ready)(struct fabric *fabric);
  void (*arm)(struct fabric *fabric);
  bool (*forget)(struct fabric *fabric, struct area *area, uint64_t offset,
                 uint64_t length);
  void (*forked)(struct fabric *fabric);
};

/* Records: requests and replies, in order, in one ring for each. reserve
 * returns contiguous room in the peer's ring, or NULL (try again after a poll);
 * publish sends at most what was reserved; there is one reservation a ring at a
 * time. peek returns 1 and the next record, 0, or a status. A record's bytes
 * stay until release, which frees all that peek has returned so far, and tells
 * whether the peer was told of room that it may wait for. lend returns room for a
 * record that the program fills before it is published (ring_lend), or NULL. The
 * program may write there until unlend, even if that became no record. (Both NULL:
 * none is lent.)
 * Absent: the lane cannot be the first lane of a session. */
struct transport_records {
  uint8_t *(*reserve)(struct lane *lane, enum ring ring, uint64_t length);
  void (*publish)(struct lane *lane, enum ring ring, uint64_t length);
  int (*peek)(struct lane *lane, enum ring ring, const uint8_t **bytes,
              uint64_t *length);
  bool (*release)(struct lane *lane);
  uint8_t *(*lend)(struct lane *lane, enum ring ring, uint64_t length);
  void (*unlend)(struct lane *lane, enum ring ring);
};

/* Payloads: what does not fit into a record goes from the owner's memory to the
 * receiver's in steps, as long as the operation that it belongs to is marked.
 *
 * mark writes the generation of an operation of ours (0: it is not live) into a
 * word that the peer can read at any time, even while this process is stopped;
 * live reads the peer's word. Bytes that were fetched before live returned true
 * belong to the operation. ended tells the peer, which may wait for it, that a
 * mark is gone (NULL: the peer looks by itself).
 *
 * The owner: expose makes a payload reachable and fills in the source for the
 * record, or returns PERIGEE_AGAIN while all resources for that are in use;
 * feed is a step; conceal ends it. stages: would expose rather have a payload of
 * so many bytes staged now, also if it lies in a block that the peer can read?
 * (NULL: it never does.) The receiver: fetch is a step; fetch_end returns false
 * while something may still write to the destination. Steps return the bytes
 * moved, 0 if there is nothing to do now, or a status.
 *
 * pushes: the owner sends payloads, lent blocks included, and the receiver
 * reads no memory of the peer. pulls, after join: may this side read the peer's
 * private memory? set_peer_pulls gives the peer's answer. Both NULL: it makes
 * no difference.
 * Absent: the lane cannot be the first lane of a session. */
struct transport_payloads {
  bool pushes;
  void (*mark)(struct lane *lane, uint16_t operation, uint32_t generation);
  void (*ended)(struct lane *lane, uint16_t operation, uint32_t generation);
  bool (*live)(struct lane *lane, uint16_t operation, uint32_t generation);
  int (*expose)(struct lane *lane, struct exposure *exposure,
                struct payload *payload);
  int64_t (*feed)(struct lane *lane, struct exposure *exposure);
  void (*conceal)(struct lane *lane, struct exposure *exposure);
  bool (*stages)(struct lane *lane, uint64_t bytes);
  int64_t (*fetch)(struct lane *lane, struct fetch *fetch);
  bool (*fetch_end)(struct lane *lane, struct fetch *fetch);
  bool (*pulls)(const struct lane *lane);
  void (*set_peer_pulls)(struct lane *lane, bool pulls);
};

/* Loans: blocks that one side fills and the peer reads in place. loan lends
 * one, or returns PERIGEE_AGAIN while all are lent or exposed; unloan gives it
 * back; seen: the peer has read it, or may have. loaned makes the source of bytes within a block, or returns false. view
 * returns where a loan of the peer, of its operation of that number and
 * generation, can be read, or NULL if it has to be fetched; unview tells that
 * nobody reads it there any more. (NULL: needless.)
 * knows: is the memory of such a source known here, or does the frame
 * that tells of it still have to arrive? (NULL: it is always known.) looks:
 * a step of what view will need to know of a loan, of at most *work, which becomes
 * what it took; both as bytes that take as long to copy. False: it is to be called
 * again in the next poll, and view in none before. (NULL: view needs no such
 * time.) lacks: is it a loan that view does not show because memory of it is not
 * there? It is fetched to private memory, as the peer may keep what it is lent.
 * (NULL: none is.) arrived: what view shows is private memory that all bytes have
 * come to, so the peer need not keep them, and it is shown once for each loan.
 * Absent: the lane cannot be the first lane of a session. */
struct transport_loans {
  int (*loan)(struct lane *lane, uint64_t length, uint8_t **pointer,
              struct source *source);
  void (*unloan)(struct lane *lane, const struct source *source, bool seen);
  bool (*loaned)(struct lane *lane, const uint8_t *pointer, uint64_t length,
                 struct source *source);
  const uint8_t *(*view)(struct lane *lane, const struct source *source,
                         uint16_t operation, uint32_t generation);
  void (*unview)(struct lane *lane, const uint8_t *bytes, uint64_t length);
  bool (*knows)(struct lane *lane, const struct source *source);
  bool (*looks)(struct lane *lane, const struct source *source, uint64_t *work);
  bool (*lacks)(struct lane *lane, const struct source *source);
  bool arrived;
};

/* Kept memory: blocks that nobody has now, and buffers of the lane's own. trim
 * gives some of what was not used between the last two looks back to the system,
 * in a short step; bytes tells how much is kept. lane_options.keeps asks for trim to
 * be called. Absent: the lane keeps nothing, or never gives it back. */
struct transport_kept {
  enum trim_left (*trim)(struct lane *lane);
  uint64_t (*bytes)(const struct lane *lane);
};

/* Access: one-sided access to regions without help of their owner, by keys.
 *
 * The owner's lane: export opens a region of ours to the peer, with its rights
 * and no more, and writes the key, or gives a status: the peer has to ask for
 * each access. It may be exported again; the key's descriptors stay the
 * owner's. revoke ends that: a copy by such a key from then on ends in
 * PERIGEE_STALE, whichever region has the slot. inside, after revoke, tells
 * whether a copy that began before may still be under way. A lane that is cut
 * ends all that: a copy from then on ends in PERIGEE_PEER_LOST; its regions
 * may be closed without another revoke.
 *
 * The peer's lane: attach makes a window, of which slot, generation, length and
 * access are filled in, reachable by its key. A key is the peer's word, and each
 * byte and descriptor of it is checked. PERIGEE_PROTOCOL: no lane of this kind
 * writes such a key for such a window; PERIGEE_NO_MEMORY: there is no room for
 * it, here or in the peer's share, where all that attach takes counts. The
 * descriptors are the caller's to close. detach, before the lane is closed, lets
 * go of all that attach took (NULL: that is nothing).
 *
 * forget: the memory of an area of ours that the lane told the peer of (area.told)
 * goes. No copy of ours is under way there, and its region was revoked. False:
 * the peer cannot be told now; it is called again in a later poll, and the memory
 * stays until then. (NULL: the lane tells of none.)
 * Absent: this side reads and writes for the peer, on request. */
struct transport_access {
  int (*export)(struct lane *lane, const struct grant *grant,
                struct region_key *key);
  void (*revoke)(struct lane *lane, uint32_t slot);
  bool (*inside)(struct lane *lane, uint32_t slot);
  int (*attach)(struct lane *lane, struct window *window,
                const struct region_key *key);
  void (*detach)(struct lane *lane, struct window *window);
  bool (*forget)(struct lane *lane, const struct area *area);
};

/* Copies: the CPU copies between local memory and a window, over which `remote`
 * walks. A step returns the bytes moved, at most limit; 0 while a copy is in
 * progress (call again with the same arguments); or a status, such as
 * PERIGEE_STALE. immediate: a step moves all that it is asked for, up to 64
 * KiB.
 * there: may a device of this side read what `remote`, of one shape and not
 * empty, walks over, where the window is mapped? 1; 0: not all of it is there,
 * and reading would make it; or PERIGEE_AGAIN: a part was looked at, ask
 * again. *whole: so is the whole window. NULL: no device may read there.
 * Absent: windows are reached by jobs, or by the peer on request. */
struct transport_copies {
  bool immediate;
  int64_t (*copy)(struct lane *lane, const struct window *window,
                  struct payload *remote, struct payload *local, uint64_t limit,
                  bool write);
  int (*there)(struct lane *lane, const struct window *window,
               const struct payload *remote, bool *whole);
};

/* Jobs: a device copies between local memory and a window. reaches: can it, for
 * this local memory? post returns 1 if all of the item is posted as part of the
 * job, 0 if some of it is (call again with the same payloads), or a status;
 * remote's base is an offset. Once post has returned 1, both payloads are the
 * caller's again, which posts the next item with them while this one is under
 * way; so the transport copies what it still needs of them. flush starts what
 * was posted. look finds out what has ended, if neither poll nor turn do (NULL:
 * they do). A job has ended when its pending is 0.
 * quiesce ends one early: it returns true once nothing of the job is in
 * progress; call it again until then, which takes a bounded time.
 * only_copies: does all that goes on wait for copies that kinds of memory have
 * under way, and that they may tell the end of (memory_copies.tell)? NULL: no.
 * Absent: no device copies. */
struct transport_jobs {
  bool (*reaches)(struct lane *lane, const struct window *window,
                  const struct payload *local);
  int (*post)(struct lane *lane, struct job *job, const struct window *window,
              struct payload *remote, struct payload *local, bool write);
  void (*flush)(struct lane *lane);
  void (*look)(struct lane *lane);
  bool (*quiesce)(struct lane *lane, struct job *job);
  bool (*only_copies)(const struct lane *lane);
};

/* Sleeping. After arm the peer wakes this side, over the session's socket, for
 * whatever it does; what it did before is found by a poll after arm. disarm
 * ends that. wanted tells, once for each time that the peer armed, that it has
 * to be woken; it is asked after each thing done for the peer. unwoken: there was
 * no memory to tell it so, and wanted is asked once more (NULL: wanted is never
 * true). Absent: whatever the peer does wakes this side, by a watched descriptor. */
struct transport_sleep {
  void (*arm)(struct lane *lane);
  void (*disarm)(struct lane *lane);
  bool (*wanted)(struct lane *lane);
  void (*unwoken)(struct lane *lane);
};

/* Frames: the lane carries the session's frames in place of a socket: from take
 * on (sockets), or from the beginning (alone). say sends a frame's bytes to the
 * peer, in order: 0, PERIGEE_AGAIN or PERIGEE_PEER_LOST. hear returns bytes of
 * frames that arrived, at most room. drained returns false while any that were
 * said are still in transit; nothing is said after drained was called.
 * Absent: the session keeps its socket. */
struct transport_frames {
  int (*say)(struct lane *lane, const uint8_t *bytes, uint32_t length);
  uint32_t (*hear)(struct lane *lane, uint8_t *bytes, uint32_t room);
  bool (*drained)(struct lane *lane);
};

/* Sockets: the lane works over sockets of the session. take gives it the
 * session's socket, with the bytes that were already read from it. wants tells
 * whether one more to the peer would be useful at a place, from 1 on: the number
 * under which to attach it, which is not asked for again, or 0. attach gives it
 * one, with that number. Taken or not, they are the lane's to close: the
 * session's by close, those that attach was given by detach. socket_ready: a
 * watched descriptor has an event. look is called a few times in each
 * lane_options.patience, if the lane heals. traffic: bytes sent and received so
 * far, by the session's socket if the lane heals, by all if not; the second
 * number changes with every sign of life of the peer, also while bytes that have
 * come wait there until there is room for them. Comes with frames. Absent: the
 * lane does not use sockets. */
struct transport_sockets {
  int (*take)(struct lane *lane, int fd, const uint8_t *bytes, uint32_t length);
  uint32_t (*wants)(struct lane *lane, uint32_t place);
  int (*attach)(struct lane *lane, uint32_t number, int fd,
                const uint8_t *bytes, uint32_t length);
  void (*socket_ready)(struct lane *lane);
  void (*look)(struct lane *lane);
  void (*traffic)(const struct lane *lane, uint64_t *sent, uint64_t *received);
};

/* Alone: sessions without any socket. Neither side knows when the other has
 * joined: the active side calls probe until met is true, the passive side stays
 * silent until met is true. keepalive sends something to the peer unless
 * something was sent since the last call; if it cannot be delivered, the lane
 * breaks. Comes with frames.
 * Absent: the transport needs a socket. */
struct transport_alone {
  void (*probe)(struct lane *lane);
  bool (*met)(const struct lane *lane);
  void (*keepalive)(struct lane *lane);
};

/* Additional: its lane is one that a session has beside the first. It carries no
 * records, but payloads and one-sided copies of kinds of memory that the first
 * lane cannot reach by itself (lanes.h tells who chooses, and when).
 * memories: the names of these kinds, and NULL. least: bytes of a payload, or of
 * one item of a transfer, from which on the lane is used. could: might this
 * process have such memory? It is asked when an engine opens, and opens nothing.
 * (NULL: yes.) note: what users have to know of it, or "".
 * distant: the transport that has its place, and its name, in sessions over TCP,
 * which take no descriptors; `could` of it is asked at each handshake. (NULL:
 * none; a transport that needs a Unix socket is not there then.) needs: of a
 * distant one, what lacks if it could not.
 *
 * The transport has payloads, or access and jobs, or all three; and a name of at
 * most 14 bytes. All is as for a first lane, but:
 * - lane_options: fabric, operations, key, dialed, share, session, activate,
 *   tell, hand, memories, now
 *   and what is said of the peer's process are there; the rest is 0, or NULL.
 *   hand does what tell does, but for a full socket, which ends a session if
 *   tell finds it so. The descriptor stays the lane's. A session without a Unix
 *   socket takes none.
 * - payloads: mark and live have to be there, pushes is false. mark is called
 *   before an operation's payload is exposed here, and before it is concealed. A
 *   fetch brings bytes into memory of any kind. A source's kind fits in
 *   56 bits. expose may return PERIGEE_UNSUPPORTED: the first lane has the
 *   payload then.
 * - access: grant is called for regions of these kinds, before the peer hears of
 *   the region; what is told to the peer's half there arrives before that.
 * - jobs: remote's base is an offset. A window whose pointer is not NULL is one
 *   of the first lane, of host memory, which is mapped there: it is only written
 *   to, and the core has asked whether it is granted still.
 * - tell is called once open has returned, not earlier.
 * - broken ends no session: cut is called, and the lane is used no more. A lane
 *   with neither poll nor broken costs a session's polls nothing.
 * Absent: its lane is one that a session begins with. */
struct transport_additional {
  const char *const *memories;
  uint64_t least;
  bool (*could)(void);
  const char *note;
  const struct perigee_transport *distant;
  const char *needs;
};

#endif
