/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_life.c - streams for payloads: the places for them, what they owe, when
 * one is lost, and what has to be sent again then. tcp.h tells what the two
 * sides say of it.
 *
 *   stream   becomes
 *   live     doomed   its socket ended, nothing moves on it, or the peer has
 *                     given it up
 *   doomed   lost     by the next poll (tcp.c), so that no function below a
 *                     poll finds its stream gone; the socket is closed
 *   lost     over     both sides have said LOST; another socket may come
 *
 * A side says LOST once no copy reads from the stream's buffers any more.
 * Fragments that a stream owes when it is over join the list of what tcp_feed.c
 * sends again.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "tcp.h"

enum { SUSPECT = 4 };       /* so long a part of its patience */
enum { BETWEEN = 2 };       /* the same: the longest between two looks */
enum { PAUSE = 8 };         /* the same: the shortest between two dials */
enum { PAUSES_MOST = 256 }; /* the longest, in shortest ones */
enum { AGAIN_ROOM = 64 };
enum { OTHER_LIFE = 1 << 15 }; /* apart from one that a stream has, or had */

static int64_t lane_now(const struct lane *lane) {
  return *lane->options.now;
}

/* A peer can have any number of words said, so it has to take them. Records wait,
 * too, the longest of a quarter of the ring. */
static void stream_tell_peer(const struct stream *s, enum tcp_type type,
                             uint32_t came, bool unread) {
  const struct bytes *out = &s->lane->streams[0]->out;
  if (out->end - out->first > 2 * TCP_WAITING + s->lane->options.ring / 4) {
    tcp_break(s->lane, PERIGEE_PEER_LOST,
              "the peer does not take what it is sent");
    return;
  }
  struct tcp_head head = {.type = (uint8_t)type,
                          .which = (uint8_t)s->number,
                          .operation = (uint16_t)s->life,
                          .generation = came,
                          .unread = unread,
                          .at = type == TCP_TAKEN ? s->bytes_received : 0};
  tcp_put(s->lane->streams[0], &head, NULL);
}

/* ---- Places -------------------------------------------------------------- */

/* In seconds, from 1 on. */
static void socket_keep_alive(int fd, int64_t idle) {
  const int on = 1, probes = 3;
  int seconds = idle > 1 ? (int)(idle < 3600 ? idle : 3600) : 1;
  int apart = seconds > probes ? seconds / probes : 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &apart, sizeof apart);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Within a host nothing is shared that could be congested, and the kernel
 * delivers as it sends. A congestion control that paces by its estimate of the
 * path, as BBR does, would only hold bytes back. Reno is part of each kernel,
 * and does nothing where nothing is lost. */
static void socket_stays_here(int fd) {
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", sizeof "reno" - 1);
}

/* Keepalives keep a stream that is idle in the memory of middleboxes, and tell
 * of its end before it is needed. Only the kernel tells what is owed if a peer
 * says no TAKEN. The kernel gives up a peer, too, that acknowledges but reads
 * nothing: so it waits for twice the patience. */
void tcp_socket_options(const struct stream *s) {
  const struct lane_options *o = &s->lane->options;
  const int on = 1;
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (o->here)
    socket_stays_here(s->fd);
  if (s->number == 0 || o->patience == 0)
    return;
  socket_keep_alive(s->fd, o->patience / 1000000000);
  int64_t ms = 2 * (o->patience / 1000000);
  unsigned most = ms < INT32_MAX ? (unsigned)ms : INT32_MAX;
  if (!o->heals)
    setsockopt(s->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
}

static bool stream_is_free(const struct stream *s) {
  return !s || (s->fd < 0 && !s->loss.lost && !s->loss.doomed);
}

static void place_pause(const struct lane *lane, struct stream_place *p) {
  int64_t least = lane->options.patience / PAUSE;
  p->pause = p->pause ? 2 * p->pause : least;
  if (p->pause > PAUSES_MOST * least)
    p->pause = PAUSES_MOST * least;
  p->again_at = lane_now(lane) + p->pause;
}

uint32_t tcp_wants(struct lane *lane, uint32_t place) {
  bool up = lane->stream_count > 0 && lane->streams[0]->up;
  struct stream_place *p = &lane->places[place];
  if (!up || !lane->options.dialed || place > lane->options.streams ||
      lane->status < 0 || !stream_is_free(lane->streams[place]))
    return 0;
  if (!lane->options.heals)
    return lane->streams[place] ? 0 : place;
  if (p->next >= TCP_LIVES || (p->next > 0 && lane_now(lane) < p->again_at))
    return 0;
  place_pause(lane, p);
  return place + (TCP_STREAMS - 1) * p->next++;
}

/* The dialer attaches under the number that was asked for last. */
bool tcp_may_attach(struct lane *lane, uint32_t number) {
  if (number == 0 || lane->stream_count == 0 || lane->cut || lane->status < 0)
    return false;
  uint32_t place = tcp_place_of(number), life = tcp_life_of(number);
  struct stream_place *p = &lane->places[place];
  if (!lane->options.heals)
    return number < TCP_STREAMS && !lane->streams[place];
  if (life >= TCP_LIVES || !stream_is_free(lane->streams[place]))
    return false;
  if (lane->options.dialed)
    return life + 1 == p->next;
  if (life < p->next)
    return false;
  p->next = life + 1;
  return true;
}

/* ---- What is sent again -------------------------------------------------- */

struct owed *tcp_again_first(const struct lane *lane) {
  return &lane->again[lane->again_first];
}

void tcp_again_drop(struct lane *lane) {
  lane->again_first++;
  if (--lane->again_count == 0)
    lane->again_first = 0;
}

static bool again_grow(struct lane *lane) {
  if (lane->again_first > 0)
    memmove(lane->again, tcp_again_first(lane),
            lane->again_count * sizeof *lane->again);
  lane->again_first = 0;
  if (lane->again_count < lane->again_room)
    return true;
  uint32_t room = lane->again_room ? 2 * lane->again_room : AGAIN_ROOM;
  struct owed *more = realloc(lane->again, room * sizeof *more);
  if (!more)
    return false;
  lane->again = more;
  lane->again_room = room;
  return true;
}

/* Takes up a fragment that is to be sent again; false: the lane is broken. */
static bool again_add(struct lane *lane, const struct owed *owed) {
  if (!again_grow(lane)) {
    tcp_break(lane, PERIGEE_NO_MEMORY, "no memory for what is sent again");
    return false;
  }
  lane->again[lane->again_count++] = *owed;
  return true;
}

static bool again_has(const struct lane *lane, const struct exposure *e) {
  for (uint32_t i = 0; i < lane->again_count; i++)
    if (tcp_is_owed(&tcp_again_first(lane)[i], e))
      return true;
  return false;
}

/* ---- What is owed -------------------------------------------------------- */

static bool stream_owes(const struct stream *s) {
  return !s->up || s->owing.sent != s->owing.taken;
}

static void stream_set_suspect(struct stream *s, bool suspect) {
  s->lane->suspects += suspect;
  s->lane->suspects -= s->owing.suspect;
  s->owing.suspect = suspect;
}

bool tcp_may_owe(const struct stream *s) {
  return !s->lane->options.heals ||
         (!s->owing.suspect && s->owing.sent - s->owing.taken < TCP_OWED);
}

void tcp_owe(struct stream *s, const struct tcp_head *h) {
  struct owing *o = &s->owing;
  if (s->number == 0 || !s->lane->options.heals)
    return;
  if (!stream_owes(s))
    o->moved = lane_now(s->lane);
  o->list[o->sent++ % TCP_OWED] = (struct owed){.at = h->at,
                                                .length = h->length,
                                                .generation = h->generation,
                                                .operation = h->operation,
                                                .which = h->which};
}

static bool stream_owes_of(const struct stream *s, const struct exposure *e) {
  for (uint32_t i = s->owing.taken; i != s->owing.sent; i++)
    if (tcp_is_owed(&s->owing.list[i % TCP_OWED], e))
      return true;
  return false;
}

bool tcp_in_doubt(const struct lane *lane, const struct exposure *e) {
  if (lane->suspects == 0 && lane->again_count == 0)
    return false;
  for (uint32_t i = 1; i < lane->stream_count; i++)
    if (lane->streams[i] && lane->streams[i]->owing.suspect &&
        stream_owes_of(lane->streams[i], e))
      return true;
  return again_has(lane, e);
}

/* The peer has taken so many fragments; false: more than it was given. */
static bool owing_settle(struct owing *o, uint32_t taken) {
  if (taken - o->taken > o->sent - o->taken)
    return false;
  o->taken = taken;
  return true;
}

/* ---- Asking -------------------------------------------------------------- */

/* Returns for how long this side did not look. Nothing that it had to send moved
 * meanwhile, which tells nothing of the streams. */
static int64_t look_missed(struct lane *lane) {
  int64_t before = lane->looked, most = lane->options.patience / BETWEEN;
  lane->looked = lane_now(lane);
  return lane->looked - before > most ? lane->looked - before - most : 0;
}

static void stream_ask(struct stream *s) {
  s->owing.asked = true;
  s->owing.asked_at = lane_now(s->lane);
  stream_tell_peer(s, TCP_ASK, 0, false);
}

void tcp_look(struct lane *lane) {
  int64_t absent = look_missed(lane);
  for (uint32_t i = 1; i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->fd < 0 || s->loss.doomed || !stream_owes(s))
      continue;
    s->owing.moved += absent;
    if (s->owing.moved > lane->looked)
      s->owing.moved = lane->looked;
    if (!s->owing.asked)
      stream_ask(s);
  }
}

static void stream_hold(struct stream *s) {
  const struct stream echo = {
      .lane = s->lane, .number = s->number, .life = s->life ^ OTHER_LIFE};
  s->held = true;
  stream_tell_peer(&echo, TCP_ASK, 0, false);
}

/* An end that was not said is none of a write that was given up. */
void tcp_hold(struct lane *lane, const struct exposure *e) {
  bool said = generation_of(&lane->told, e->operation) == e->generation;
  for (uint32_t i = 1; said && i < lane->stream_count; i++) {
    struct stream *s = lane->streams[i];
    if (!s || s->left == 0 || s->exposure != e)
      continue;
    lane->flush_deferred = false;
    if (lane->options.heals)
      stream_hold(s);
  }
}

/* The peer has answered the ASK about that life, and read what was before it. */
static void stream_let_go(const struct lane *lane, const struct tcp_head *h) {
  struct stream *s = lane->streams[h->which];
  if (s && h->operation == (s->life ^ OTHER_LIFE))
    s->held = false;
}

/* Bytes that lie here, as their landing has no room for them or is not known,
 * are none that the way holds back. */
static bool stream_has_unread(const struct stream *s) {
  int bytes = 0;
  return s->fd >= 0 &&
         (tcp_waits(s) || (ioctl(s->fd, FIONREAD, &bytes) == 0 && bytes > 0));
}

/* Returns the stream that the peer speaks of, NULL if it is not in that life;
 * false: there can be none. */
static bool stream_spoken_of(const struct lane *lane, const struct tcp_head *h,
                             struct stream **s) {
  *s = NULL;
  if (!lane->options.heals || h->which == 0 || h->which >= TCP_STREAMS)
    return false;
  struct stream *at = lane->streams[h->which];
  if (at && at->life == h->operation && !stream_is_free(at))
    *s = at;
  return true;
}

bool tcp_asked(struct lane *lane, const struct tcp_head *h) {
  struct stream *s,
      none = {.lane = lane, .number = h->which, .life = h->operation};
  if (!stream_spoken_of(lane, h, &s))
    return false;
  if (s)
    s->told = s->came;
  stream_tell_peer(s ? s : &none, TCP_TAKEN, s ? s->came : 0,
                   s && stream_has_unread(s));
  return true;
}

void tcp_came(struct stream *s) {
  if (s->number == 0 || !s->lane->options.heals)
    return;
  s->came++;
  if (s->came - s->told < TCP_TELL)
    return;
  s->told = s->came;
  stream_tell_peer(s, TCP_TAKEN, s->came, false);
}

/* Nothing had moved when this side asked: its answer may have lain here. */
static void stream_judge(struct stream *s) {
  int64_t patience = s->lane->options.patience,
          silent = s->owing.asked_at - s->owing.moved;
  if (!stream_owes(s))
    return;
  if (silent >= patience)
    tcp_doom(s);
  else if (silent >= patience / SUSPECT)
    stream_set_suspect(s, true);
}

bool tcp_taken(struct lane *lane, const struct tcp_head *h) {
  struct stream *s;
  if (!stream_spoken_of(lane, h, &s))
    return false;
  if (!s)
    stream_let_go(lane, h);
  if (!s || s->loss.lost || s->loss.doomed)
    return true;
  struct owing *o = &s->owing;
  bool moves = h->generation != o->taken || h->at != o->arrived || h->unread;
  if (!owing_settle(o, h->generation))
    return false;
  o->arrived = h->at;
  if (moves) {
    o->moved = lane_now(lane);
    stream_set_suspect(s, false);
  } else if (o->asked) {
    stream_judge(s);
  }
  o->asked = false;
  return true;
}

/* ---- The end ------------------------------------------------------------- */

void tcp_doom(struct stream *s) {
  struct lane *lane = s->lane;
  if (s->loss.doomed || s->loss.lost)
    return;
  s->loss.doomed = true;
  stream_set_suspect(s, true);
  lane->losing++;
  lane->lost++;
  lane->options.activate(lane->options.session);
}

void tcp_say_lost(struct stream *s) {
  s->loss.told = true;
  s->lane->places[s->number].over = s->life + 1;
  stream_tell_peer(s, TCP_LOST, s->came, false);
}

/* A stream that has lived long may be dialed again soon. The pause lets the
 * peer read the LOST before the ATTACH, which comes another way. */
void tcp_is_over(struct stream *s) {
  struct lane *lane = s->lane;
  struct stream_place *p = &lane->places[s->number];
  int64_t lived = lane_now(lane) - s->since;
  if (lived > p->pause * PAUSE)
    p->pause = 0;
  place_pause(lane, p);
  for (struct owing *o = &s->owing; o->taken != o->sent; o->taken++)
    if (!again_add(lane, &o->list[o->taken % TCP_OWED]))
      return;
  stream_set_suspect(s, false);
  s->loss = (struct loss){0};
  lane->losing--;
}

/* The peer gives up a stream that is not attached here, nor will be: its ATTACH
 * was lost, or comes too late. */
static bool stream_never_attached(struct lane *lane, const struct tcp_head *h) {
  struct stream_place *p = &lane->places[h->which];
  struct stream none = {.lane = lane, .number = h->which, .life = h->operation};
  if (h->operation < p->over || !stream_is_free(lane->streams[h->which]) ||
      (lane->options.dialed && h->operation >= p->next))
    return false;
  p->over = h->operation + 1u;
  if (p->next < p->over)
    p->next = p->over;
  stream_tell_peer(&none, TCP_LOST, 0, false);
  return true;
}

bool tcp_lost(struct lane *lane, const struct tcp_head *h) {
  struct stream *s;
  if (!stream_spoken_of(lane, h, &s))
    return false;
  if (!s)
    return stream_never_attached(lane, h);
  if (s->loss.heard || !owing_settle(&s->owing, h->generation))
    return false;
  s->loss.heard = true;
  if (s->loss.told) /* of the next life may be spoken next */
    tcp_is_over(s);
  else
    tcp_doom(s);
  return true;
}
