/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp.c - the transport over sockets: its table, the life of a lane and of its
 * streams, polls, sleeping, and blocks to lend. tcp.h explains how it works and
 * lists the files.
 *
 * Ordering needs no atomics: there is one thread, and each socket delivers in
 * order. An operation's ENDED goes by stream 0 before anything that is sent
 * later. Fragments of the operation that other streams deliver afterwards name
 * its generation and are dropped. Of a fragment that is half sent by then, the
 * rest waits until the peer has read ENDED (tcp_hold).
 *
 * Sleeping. Every socket is watched edge-triggered. While the lane is armed,
 * only streams with an edge are read: an edge before the arming is found by the
 * look at the descriptors that follows it, a later one ends the sleep.
 */
#include "tcp.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <unistd.h>

#include "memory/backing.h"

enum { RING_MIN = 4096, RING_MAX = 16 << 20 };

/* ---- Streams ------------------------------------------------------------- */

/* Closes a socket of the lane's: the session's own, or one that was
 * attached. */
static void stream_shut(const struct lane *lane, uint32_t place, int fd) {
  if (place > 0)
    tcp_detach(lane, fd);
  else
    lane->options.close(lane->options.session, fd);
}

/* The stream is without a socket from then on, which the caller has closed. */
static void stream_end(struct stream *s) {
  s->fd = -1;
  if (s->sealed)
    sealed_close(s);
}

static void stream_free(struct stream *s) {
  if (!s)
    return;
  if (s->fd >= 0)
    stream_shut(s->lane, s->number, s->fd);
  stream_end(s);
  free(s->owing.list);
  free(s->out.at);
  free(s->in);
  free(s->bounce);
  free(s);
}

/* Returns a stream with its buffers, those of the stream that was lost at this
 * place: a copy of an operation that has ended may still read from them. */
static struct stream *stream_make(struct lane *lane, uint32_t place) {
  struct stream *s = lane->streams[place], old = {0};
  if (s)
    old = *s;
  else if (!(s = calloc(1, sizeof *s)))
    return NULL;
  bool owes = place > 0 && lane->options.heals;
  *s = (struct stream){.lane = lane,
                       .fd = -1,
                       .number = place,
                       .readable = true,
                       .brief = place > 0,
                       .since = *lane->options.now,
                       .in = old.in,
                       .in_room = old.in_room,
                       .out = old.out,
                       .bounce = old.bounce,
                       .owing = {.list = old.owing.list}};
  lane->streams[place] = s;
  if (!s->in) {
    s->in = malloc(TCP_READ_LARGE);
    s->in_room = TCP_READ_LARGE;
  }
  if (owes && !s->owing.list)
    s->owing.list = malloc(TCP_OWED * sizeof *s->owing.list);
  s->owing.moved = s->since;
  return s->in && (!owes || s->owing.list) ? s : NULL;
}

/* Begins a life of the stream, over a socket that is the stream's from then
 * on. */
static int stream_begin(struct stream *s, uint32_t life, int fd) {
  const struct lane *lane = s->lane;
  s->life = life;
  s->fd = fd;
  tcp_socket_options(s);
  if (lane->options.seal && sealed_open(s) < 0)
    return PERIGEE_NO_MEMORY;
  return lane->options.watch(lane->options.session, fd) == 0
             ? PERIGEE_OK
             : PERIGEE_NO_MEMORY;
}

static int stream_given(struct stream *s, const uint8_t *bytes,
                        uint32_t length) {
  if (s->sealed)
    return sealed_given(s, bytes, length);
  if (length > TCP_READ_LARGE)
    return PERIGEE_PROTOCOL;
  if (length > 0)
    memcpy(s->in, bytes, length);
  s->in_end = length;
  return PERIGEE_OK;
}

/* Another socket, whose stream begins with a word. */
static int stream_add(struct lane *lane, uint32_t place, uint32_t life, int fd,
                      const uint8_t *bytes, uint32_t length) {
  const struct tcp_head word = {.type = TCP_WORD};
  struct stream *s = stream_make(lane, place);
  int status = s ? stream_begin(s, life, fd) : PERIGEE_NO_MEMORY;
  if (status < 0) {
    stream_shut(lane, place, fd);
    if (s)
      stream_end(s);
    return status;
  }
  if (lane->stream_count <= place)
    lane->stream_count = place + 1;
  if (tcp_put(s, &word, NULL))
    tcp_send(s, TCP_TURN);
  status = stream_given(s, bytes, length);
  if (status < 0 && place > 0 && lane->options.heals)
    tcp_doom(s);
  return status;
}

static int tcp_take(struct lane *lane, int fd, const uint8_t *bytes,
                    uint32_t length) {
  return stream_add(lane, 0, 0, fd, bytes, length);
}

static int tcp_attach(struct lane *lane, uint32_t number, int fd,
                      const uint8_t *bytes, uint32_t length) {
  if (tcp_may_attach(lane, number))
    return stream_add(lane, tcp_place_of(number), tcp_life_of(number), fd,
                      bytes, length);
  tcp_detach(lane, fd);
  return PERIGEE_PROTOCOL;
}

static void tcp_socket_ready(struct lane *lane) {
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i]) {
      lane->streams[i]->readable = true;
      lane->streams[i]->full = false;
    }
}

static __attribute__((noinline)) void
streams_traffic(const struct lane *lane, uint64_t *sent, uint64_t *received) {
  *sent = *received = 0;
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i]) {
      *sent += lane->streams[i]->bytes_sent;
      *received += lane->streams[i]->bytes_received;
    }
}

/* Segments, with or without bytes, that the connection has brought; 0 once it
 * has ended, in one direction or in both. */
static uint64_t stream_segments(const struct stream *s) {
  enum { ESTABLISHED = 1 }; /* netinet/tcp.h, which has no tcpi_segs_in */
  struct tcp_info info = {0};
  socklen_t length = sizeof info;
  bool told = getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
  return told && info.tcpi_state == ESTABLISHED ? info.tcpi_segs_in : 0;
}

/* A stream that waits for room reads nothing, neither bytes nor their end. Then
 * it counts what the peer's kernel sends: it acknowledges the keepalives of this
 * side. */
static void tcp_traffic(const struct lane *lane, uint64_t *sent,
                        uint64_t *received) {
  const struct stream *first = lane->streams[0];
  if (!lane->options.heals || !first) {
    streams_traffic(lane, sent, received);
    return;
  }
  *sent = first->bytes_sent;
  *received = first->bytes_received;
  if (first->sink == SINK_WAITING && first->fd >= 0)
    *received += stream_segments(first);
}

/* ---- Streams that were lost ---------------------------------------------- */

/* Closes the socket, and forgets what is on its way there. */
static void stream_give_up_socket(struct stream *s) {
  tcp_detach(s->lane, s->fd);
  s->fd = -1;
  s->up = false;
  s->loss.doomed = false;
  s->loss.lost = true;
  s->left = 0;
  s->exposure = NULL;
  s->out.first = s->out.end = 0;
  if (s->sealed)
    sealed_close(s);
}

/* Do copies still read from the stream's buffers, for a landing that no CPU can
 * write? */
static bool stream_is_quiet(const struct stream *s) {
  return !s->fetch || payload_quiet(s->fetch->into);
}

static void stream_give_up(struct stream *s) {
  if (s->loss.doomed && !s->loss.lost)
    stream_give_up_socket(s);
  if (s->loss.lost && !s->loss.told && stream_is_quiet(s)) {
    tcp_forget_fragment(s);
    tcp_say_lost(s);
  }
  if (s->loss.told && s->loss.heard)
    tcp_is_over(s);
}

/* A poll's part of giving up streams. */
static void streams_give_up(struct lane *lane) {
  for (uint32_t i = 1; i < lane->stream_count && !lane->head.ending; i++)
    if (lane->streams[i])
      stream_give_up(lane->streams[i]);
}

/* Does what is left to do for streams that were lost. */
static __attribute__((noinline)) void tcp_mend(struct lane *lane) {
  if (lane->losing > 0)
    streams_give_up(lane);
  tcp_send_again(lane);
}

/* ---- Polls --------------------------------------------------------------- */

static bool stream_defers(struct stream *s) {
  struct lane *lane = s->lane;
  bool deferred = lane->flush_deferred && s->number == 0;
  lane->flush_deferred &= s->number != 0;
  return deferred && s->left == 0 && !lane->armed;
}

static bool stream_poll(struct stream *s) {
  struct lane *lane = s->lane;
  bool armed = lane->armed;
  uint64_t moved = 0;
  s->dry = false;
  if (!stream_defers(s) && !tcp_idle(s) && !(armed && s->full))
    moved +=
        tcp_send(s, s->left > 0 ? lane->may_send[s->number > 0] : TCP_TURN);
  if (s->sink == SINK_WAITING && s->patience > 0)
    s->patience--;
  /* Streams for payloads are read only while somebody waits for them. */
  if (s->readable || (s->number == 0 && !armed))
    moved += tcp_receive(s, s->number > 0 ? lane->may_read : TCP_TURN);
  else if (s->in_end > s->in_first || s->sink == SINK_WAITING)
    moved += tcp_receive(s, 0);
  return moved > 0;
}

/* Latency mode is counted in polls that moved payloads. Polls that wait for a
 * reply or for room in a socket are many and are not counted: the bytes that
 * gather meanwhile would then be moved all at once. */
static void tcp_begin_turn(struct lane *lane) {
  bool used = lane->may_send[0] < lane->turn ||
              lane->may_send[1] < lane->turn || lane->may_read < lane->turn;
  lane->latency_turns -= used && lane->latency_turns > 0;
  lane->turn = lane->latency_turns ? TCP_LATENCY_BYTES : TCP_TURN;
  lane->may_send[0] = lane->may_send[1] = lane->may_read = lane->turn;
}

static bool tcp_poll(struct lane *lane) {
  bool moved = false;
  lane->corked = lane->published > 1;
  lane->published = 0;
  tcp_begin_turn(lane);
  lane->first++;
  if (lane->losing | lane->again_count)
    tcp_mend(lane);
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = tcp_in_turn(lane, i);
    if (s)
      moved |= stream_poll(s);
  }
  return moved;
}

/* ---- Loans, and memory that is given back -------------------------------- */

static int loans_open(struct lane *lane) {
  uint64_t length = 2 * lane->options.pool;
  void *p = guarded_map(length, -1);
  if (!p)
    return PERIGEE_NO_MEMORY;
  int status = blocks_open(&lane->blocks, length, lane->options.pool);
  if (status < 0) {
    guarded_unmap(p, length);
    return status;
  }
  lane->arena = p;
  lane->arena_length = length;
  return PERIGEE_OK;
}

static int tcp_loan(struct lane *lane, uint64_t length, uint8_t **pointer,
                    struct source *source) {
  int status = lane->arena ? PERIGEE_OK : loans_open(lane);
  int64_t offset =
      status < 0 ? status : blocks_take(&lane->blocks, length ? length : 1);
  if (offset < 0)
    return (int)offset;
  lane->options.keeps(lane->options.session);
  *pointer = lane->arena + offset;
  *source = (struct source){.address = (uint64_t)offset,
                            .block = length,
                            .count = 1,
                            .stride = length};
  return PERIGEE_OK;
}

static void tcp_unloan(struct lane *lane, const struct source *source,
                       bool seen) {
  (void)seen;
  blocks_give(&lane->blocks, source->address);
}

/* A loan has no source of its own: it is exposed as any other memory. */
static bool tcp_loaned(struct lane *lane, const uint8_t *pointer,
                       uint64_t length, struct source *source) {
  (void)lane, (void)pointer, (void)length, (void)source;
  return false;
}

/* The most blocks, and bytes, that one step gives back. */
enum { TRIM_BLOCKS = 256, TRIM_BYTES = 4 << 20 };

/* Gives one block's pages back: returns its size, or 0 if enough are given. */
static uint64_t loans_give_back(struct lane *lane, uint64_t keep) {
  uint64_t offset, size = blocks_idle(&lane->blocks, keep, &offset);
  if (size > 0)
    madvise(lane->arena + offset, size, MADV_DONTNEED);
  return size;
}

static bool streams_trim(struct lane *lane) {
  bool left = false;
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->sealed)
      left |= sealed_trim(lane->streams[i]);
  return left;
}

static enum trim_left tcp_trim(struct lane *lane) {
  uint64_t keep = blocks_keep(&lane->blocks, *lane->options.look);
  uint64_t size = 1, done = 0;
  for (int n = 0; n < TRIM_BLOCKS && size > 0 && done < TRIM_BYTES; n++)
    done += size = loans_give_back(lane, keep);
  if (size > 0)
    return TRIM_MORE;
  bool some = lane->blocks.warm + lane->blocks.live > 0;
  some |= ahead_trim(lane);
  return streams_trim(lane) || some ? TRIM_SOME : TRIM_NOTHING;
}

static uint64_t tcp_kept(const struct lane *lane) {
  uint64_t kept = lane->blocks.warm + ahead_kept(lane);
  for (uint32_t i = 0; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->sealed)
      kept += sealed_kept(lane->streams[i]);
  return kept;
}

static void tcp_loans_close(struct lane *lane) {
  if (!lane->arena)
    return;
  guarded_unmap(lane->arena, lane->arena_length);
  blocks_close(&lane->blocks);
}

/* ---- Set-up -------------------------------------------------------------- */

static void tcp_close(struct lane *lane) {
  if (!lane)
    return;
  for (int i = 0; i < TCP_STREAMS; i++)
    stream_free(lane->streams[i]);
  tcp_drafts_close(lane);
  ahead_close(lane);
  for (int i = 0; i < RINGS; i++)
    free(lane->in[i].bytes);
  tcp_loans_close(lane);
  tcp_peers_close(lane);
  free(lane->again);
  free(lane->frames);
  free(lane->ended.at);
  free(lane->told.at);
  free(lane->claims.at);
  free(lane);
}

static int tcp_open(const struct lane_options *options, struct lane **out,
                    struct offer *offer, char reason[REASON]) {
  (void)reason;
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane)
    return PERIGEE_NO_MEMORY;
  lane_by(lane, &transport_tcp);
  lane->options = *options;
  list_open(&lane->exposed);
  lane->frames = malloc(TCP_FRAMES);
  if (!lane->frames) {
    tcp_close(lane);
    return PERIGEE_NO_MEMORY;
  }
  const struct tcp_offer said = {options->ring, TCP_WINDOW};
  memcpy(offer->bytes, &said, sizeof said);
  offer->length = sizeof said;
  offer->fd_count = 0;
  *out = lane;
  return PERIGEE_OK;
}

static int tcp_join(struct lane *lane, const struct offer *offer,
                    char reason[REASON]) {
  struct tcp_offer said;
  (void)reason;
  for (uint32_t i = 0; i < offer->fd_count; i++)
    close(offer->fds[i]);
  if (offer->length != sizeof said || offer->fd_count > 0)
    return PERIGEE_PROTOCOL;
  memcpy(&said, offer->bytes, sizeof said);
  if (said.ring < RING_MIN || said.ring > RING_MAX)
    return PERIGEE_PROTOCOL;
  lane->peer_ring = said.ring;
  lane->peer_window = said.window < TCP_WINDOW ? said.window : TCP_WINDOW;
  lane->joined = true;
  return PERIGEE_OK;
}

static int tcp_broken(const struct lane *lane, const char **reason) {
  *reason = lane->reason;
  return lane->status;
}

/* The peer learns of the end when its streams end. */
static void tcp_cut(struct lane *lane) {
  lane->cut = true;
  lane->head.ending = true;
  for (uint32_t i = 0; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (s && s->fd >= 0)
      stream_shut(lane, i, s->fd);
    if (s)
      s->fd = -1;
  }
}

static void tcp_describe(const struct lane *lane, struct lane_facts *facts) {
  uint32_t streams = 0;
  for (uint32_t i = 1; i < lane->stream_count; i++)
    streams += tcp_usable(lane->streams[i]);
  fact_number(facts, "payload_sockets", streams);
  if (lane->lost > 0)
    fact_number(facts, "payload_sockets_lost", lane->lost);
  if (lane->options.seal)
    fact_text(facts, "chunks", lane->options.bare ? "with a MAC" : "sealed");
}

/* ---- Frames of the session ----------------------------------------------- */

static int tcp_say(struct lane *lane, const uint8_t *bytes, uint32_t length) {
  struct tcp_head head = {.length = length, .type = TCP_BYTES};
  struct stream *s = lane->streams[0];
  if (lane->status < 0 || lane->cut || !s)
    return PERIGEE_PEER_LOST;
  if (s->out.end - s->out.first > 2 * TCP_WAITING)
    return PERIGEE_AGAIN;
  return tcp_put(s, &head, bytes) ? PERIGEE_OK : PERIGEE_PEER_LOST;
}

static uint32_t tcp_hear(struct lane *lane, uint8_t *bytes, uint32_t room) {
  uint32_t n = lane->frames_end - lane->frames_first;
  if (n > room)
    n = room;
  memcpy(bytes, lane->frames + lane->frames_first, n);
  lane->frames_first += n;
  return n;
}

/* True once the peer's kernel has acknowledged everything. */
static bool tcp_drained(struct lane *lane) {
  struct stream *s = lane->streams[0];
  int unsent = 0;
  if (!s || s->fd < 0 || lane->status < 0)
    return true;
  tcp_send(s, TCP_TURN);
  return s->ended ||
         (tcp_idle(s) && (ioctl(s->fd, SIOCOUTQ, &unsent) != 0 || unsent == 0));
}

/* ---- Sleeping ------------------------------------------------------------ */

static void tcp_arm(struct lane *lane) {
  lane->armed = true;
}

static void tcp_disarm(struct lane *lane) {
  lane->armed = false;
}

static bool tcp_wanted(struct lane *lane) {
  (void)lane;
  return false; /* a socket wakes the peer by itself */
}

/* Can the stream wait for an edge, which tells of bytes and of room to send? */
static bool stream_rests(const struct stream *s) {
  bool own_time = s->fetch && !s->fetch->into->memory->direct;
  return s->fd < 0 || (!s->readable && (s->full || tcp_idle(s)) &&
                       !tcp_waits(s) && !own_time);
}

/* A stream that is lost waits for the peer's LOST, which wakes. */
static __attribute__((noinline)) bool
streams_lost_rest(const struct lane *lane) {
  bool rests = lane->again_count == 0 || lane->streams[0]->full;
  for (uint32_t i = 1; rests && lane->losing > 0 && i < lane->stream_count;
       i++) {
    const struct stream *s = lane->streams[i];
    rests = !s || (!s->loss.doomed && (!s->loss.lost || s->loss.told) &&
                   !(s->loss.told && s->loss.heard));
  }
  return rests;
}

static bool tcp_rests(struct lane *lane) {
  bool rests = lane->status == 0 && lane->frames_first == lane->frames_end;
  if (lane->losing | lane->again_count)
    rests = rests && streams_lost_rest(lane);
  for (uint32_t i = 0; rests && i < lane->stream_count; i++)
    rests = !lane->streams[i] || stream_rests(lane->streams[i]);
  return rests;
}

/* ---- The table ----------------------------------------------------------- */

static const struct transport_records tcp_records_table = {
    .reserve = tcp_reserve,
    .publish = tcp_publish,
    .peek = tcp_peek,
    .release = tcp_release,
};

static const struct transport_payloads tcp_payloads_table = {
    .pushes = true,
    .mark = tcp_mark,
    .ended = tcp_ended,
    .live = tcp_live,
    .expose = tcp_expose,
    .feed = tcp_feed,
    .conceal = tcp_conceal,
    .fetch = tcp_fetch,
    .fetch_end = tcp_fetch_end,
};

static const struct transport_loans tcp_loans_table = {
    .loan = tcp_loan,
    .unloan = tcp_unloan,
    .loaned = tcp_loaned,
    .view = ahead_view,
    .unview = ahead_unview,
    .arrived = true,
};

static const struct transport_kept tcp_kept_table = {
    .trim = tcp_trim,
    .bytes = tcp_kept,
};

static const struct transport_sleep tcp_sleep_table = {
    .arm = tcp_arm,
    .disarm = tcp_disarm,
    .wanted = tcp_wanted,
};

static const struct transport_frames tcp_frames_table = {
    .say = tcp_say,
    .hear = tcp_hear,
    .drained = tcp_drained,
};

static const struct transport_sockets tcp_sockets_table = {
    .take = tcp_take,
    .wants = tcp_wants,
    .attach = tcp_attach,
    .socket_ready = tcp_socket_ready,
    .look = tcp_look,
    .traffic = tcp_traffic,
};

const struct perigee_transport transport_tcp = {
    .name = "tcp",
    .socket = SOCKET_TCP,
    .seals = true,
    .records = &tcp_records_table,
    .payloads = &tcp_payloads_table,
    .loans = &tcp_loans_table,
    .kept = &tcp_kept_table,
    .sleep = &tcp_sleep_table,
    .frames = &tcp_frames_table,
    .sockets = &tcp_sockets_table,
    .open = tcp_open,
    .join = tcp_join,
    .close = tcp_close,
    .poll = tcp_poll,
    .rests = tcp_rests,
    .broken = tcp_broken,
    .cut = tcp_cut,
    .forked = tcp_cut, /* which only closes sockets */
    .describe = tcp_describe,
};
