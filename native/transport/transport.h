/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.h - the table that a transport fills in: perigee_transport.
 * groups.h has those for each group of things that it does, lane.h what a lane
 * is opened with, and what it moves. A transport carries the records,
 * payloads and one-sided copies of one session in a lane that it makes; it
 * knows nothing of calls. No function blocks. Functions that move bytes are
 * steps, which the core's poll repeats until they are done; so a copy by the
 * CPU and a NIC's work queue look the same.
 *
 * Ordering: a record becomes visible after everything that was done on the lane
 * before it was published.
 */
#ifndef PERIGEE_TRANSPORT_H
#define PERIGEE_TRANSPORT_H

#include "base/least.h"
#include "transport/groups.h"

/* The facts that a lane tells of itself, in order, with room for its texts.
 * Facts that do not fit are left out. */
enum { FACTS = 24 };
struct lane_facts {
  struct perigee_fact list[FACTS];
  uint32_t count, used;
  char texts[2 * REASON];
};
/* Names are static. */
void fact_number(struct lane_facts *, const char *name, uint64_t number);
void fact_text(struct lane_facts *, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* All of them as one line, cut off where there is no more room. */
void facts_line(const struct lane_facts *, char *text, uint64_t size);

/* The socket that a lane needs between the two processes. A session that was
 * dialed at one of the other kind moves to such a socket to use the transport
 * (migrate.c), if it can. SOCKET_UNIX: a Unix socket, as the lane shares memory
 * by descriptors; both processes are on one host. SOCKET_TCP: a TCP
 * connection. */
enum transport_socket { SOCKET_ANY, SOCKET_UNIX, SOCKET_TCP };

struct perigee_transport {
  const char *name;
  uint8_t socket; /* enum transport_socket */
  /* Over TCP: is everything that the lane sends sealed, or has MACs, if
   * lane_options.seal says so? Otherwise sessions that ask for that do not use
   * the transport. */
  bool seals;
  /* Its rings become longer while much passes through them. So payloads up to
   * options.eager travel there. Through other rings at most an eighth of them
   * does: with more, few calls would be under way at a time. */
  bool grows;
  /* Returns why this system cannot have it, or NULL. NULL: any can. */
  const char *(*unfit)(void);
  const struct transport_fabric *fabric;
  const struct transport_records *records;
  const struct transport_payloads *payloads;
  const struct transport_loans *loans;
  const struct transport_kept *kept;
  const struct transport_access *access;
  const struct transport_copies *copies;
  const struct transport_jobs *jobs;
  const struct transport_sleep *sleep;
  const struct transport_frames *frames;
  const struct transport_sockets *sockets;
  const struct transport_alone *alone;
  const struct transport_additional *additional;

  /* The lane. open makes this side's half and describes it; join takes the
   * peer's half. The transport keeps or closes the descriptors of a received
   * offer. A status comes with a reason, or "". */
  int (*open)(const struct lane_options *options, struct lane **lane,
              struct offer *offer, char reason[REASON]);
  int (*join)(struct lane *lane, const struct offer *offer,
              char reason[REASON]);
  void (*close)(struct lane *lane);
  /* Handles a frame from the peer's half; the lane owns the descriptor (or -1).
   * NULL: the transport sends none. */
  int (*heard)(struct lane *lane, const void *bytes, uint32_t length, int fd);
  /* The same, with two descriptors. NULL: they come with no frame. */
  int (*heard_pair)(struct lane *lane, const void *bytes, uint32_t length,
                    const int fds[2]);
  /* Called at each poll of the session, before its records: sends what was
   * published and receives what came; true if there was anything. NULL:
   * needless. */
  bool (*poll)(struct lane *lane);
  /* Once armed, may the lane be left alone (no poll, peek or release) until the
   * peer wakes this side, a watched descriptor has an event, or the lane calls
   * activate()? Not while it has something to do that none of these tells.
   * NULL: never. */
  bool (*rests)(struct lane *lane);
  /* Returns the status of a broken lane, and why. NULL: it never breaks. */
  int (*broken)(const struct lane *lane, const char **reason);
  /* Returns why memory could not be had lately, or "". NULL: unknown. */
  const char *(*trouble)(const struct lane *lane);
  /* The program closes the session, of which the peer is not told yet: what was
   * peeked and not released can be read until close, whatever the peer does.
   * NULL: the peer cannot change it. */
  void (*retain)(struct lane *lane);
  /* The session has ended: from the return on no device touches anybody's
   * memory for it, every job has ended, and the peer reaches no region any more
   * (access). NULL: no device ever does, nor does the peer. */
  void (*cut)(struct lane *lane);
  /* In a child process after fork: closes the lane's descriptors, and says and
   * changes nothing that the parent or the peer could notice. It may be called
   * again. NULL: the lane has no descriptors. */
  void (*forked)(struct lane *lane);
  /* Tells what carries the session, and limits, for users (fact_text,
   * fact_number). NULL: nothing. */
  void (*describe)(const struct lane *lane, struct lane_facts *facts);
};

extern const struct perigee_transport transport_shm, transport_verbs,
    transport_tcp, transport_cuda;

/* Gives a lane its table: its transport's, or one that wraps it. */
void lane_by(struct lane *lane, const struct perigee_transport *transport);

static inline const struct perigee_transport *lane_table(struct lane *lane) {
  return ((struct lane_head *)lane)->transport;
}

static inline const struct transport_records *lane_records(struct lane *lane) {
  return ((struct lane_head *)lane)->records;
}

/* The functions of transport_records. */
static inline int lane_peek(struct lane *lane, enum ring ring,
                            const uint8_t **bytes, uint64_t *length) {
  struct ring_in *in = ((struct lane_head *)lane)->in;
  return in ? ring_peek(&in[ring], bytes, length)
            : lane_records(lane)->peek(lane, ring, bytes, length);
}
static inline uint8_t *lane_reserve(struct lane *lane, enum ring ring,
                                    uint64_t length) {
  struct ring_out *out = ((struct lane_head *)lane)->out;
  return out ? ring_reserve(&out[ring], length)
             : lane_records(lane)->reserve(lane, ring, length);
}
static inline void lane_publish(struct lane *lane, enum ring ring,
                                uint64_t length) {
  struct ring_out *out = ((struct lane_head *)lane)->out;
  if (out)
    ring_publish(&out[ring], length);
  else
    lane_records(lane)->publish(lane, ring, length);
}
static inline bool lane_release(struct lane *lane) {
  struct ring_in *in = ((struct lane_head *)lane)->in;
  if (!in)
    return lane_records(lane)->release(lane);
  bool requests = ring_release(&in[RING_REQUEST]);
  return ring_release(&in[RING_REPLY]) || requests;
}
/* Returns the ring to write to, or NULL: only the table's functions write. */
static inline struct ring_out *lane_out(struct lane *lane, enum ring ring) {
  struct ring_out *out = ((struct lane_head *)lane)->out;
  return out ? &out[ring] : NULL;
}
/* May a record be there, in either ring? */
static inline bool lane_busy(const struct lane *lane) {
  const struct ring_in *in = ((const struct lane_head *)lane)->in;
  return !in || ring_has(&in[RING_REQUEST]) || ring_has(&in[RING_REPLY]);
}
/* Can the rings be looked at? */
static inline bool lane_shows(const struct lane *lane) {
  return ((const struct lane_head *)lane)->in != NULL;
}
/* False: peek would return 0. */
static inline bool lane_has(struct lane *lane, enum ring ring) {
  const struct ring_in *in = ((struct lane_head *)lane)->in;
  return !in || ring_has(&in[ring]);
}

/* Peek would return a record, and more may be behind it: fetches one of these. */
static inline void lane_ahead(const struct lane *lane, enum ring ring) {
  const struct ring_in *in = ((const struct lane_head *)lane)->in;
  if (in)
    ring_ahead(&in[ring]);
}

static inline const struct transport_payloads *
lane_payloads(struct lane *lane) {
  return ((struct lane_head *)lane)->payloads;
}

static inline const struct transport_sleep *lane_sleep(struct lane *lane) {
  return ((struct lane_head *)lane)->sleep;
}

/* Are the peer's payloads pulled from where they are? */
static inline bool lane_pulls(struct lane *lane) {
  const struct transport_payloads *p = lane_payloads(lane);
  return p->pulls ? p->pulls(lane) : !p->pushes;
}

#endif
