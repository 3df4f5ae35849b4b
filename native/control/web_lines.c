/* SPDX-License-Identifier: Apache-2.0
 *
 * web_lines.c - connections that wait for their peers: for how long, and which
 * of them are given up when others come.
 *
 * A connection stands in one line, behind those that began to wait before it;
 * so only the first of a line has to be looked at to find who is too slow.
 * It stands in none while the program has its request, and as a stream.
 *
 * The origin that has most of the connections that owe a request loses the one
 * that has owed it for longest, if there are more connections than may be; of
 * several such origins the one with the oldest of these. So a crowd takes places
 * from itself alone, and one that has just come is heard first, as long as the
 * others are silent. A connection that was answered, and does not take
 * the answer, loses its place when nobody owes a request. A newcomer is told
 * that there are too many only if all others are being served.
 */
#include "control/web.h"
#include "perigee.h"

#include <malloc.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { HEAD = 5000 }; /* milliseconds for a connection's first head */

/* Memory goes back to the system after MANY connections have ended, and no more
 * within LULL milliseconds. */
enum { MANY = 256, LULL = 100 };

int64_t web_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* ---- Origins ------------------------------------------------------------- */

/* An IPv4 address, also as IPv6 has it, or an IPv6 network of 64 bits. */
static void key_of(const struct sockaddr *from, uint64_t key[2]) {
  const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
  uint32_t four;
  key[0] = from ? from->sa_family : 0;
  key[1] = 0;
  if (key[0] == AF_INET) {
    key[1] = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
  } else if (key[0] == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
    memcpy(&four, six->sin6_addr.s6_addr + 12, sizeof four);
    key[0] = AF_INET;
    key[1] = four;
  } else if (key[0] == AF_INET6) {
    memcpy(&key[1], &six->sin6_addr, sizeof key[1]);
  }
}

static struct origin *origin_of(struct perigee_web *web,
                                struct MHD_Connection *wire) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(wire, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  uint64_t key[2];
  struct origin *o;
  key_of(info ? info->client_addr : NULL, key);
  for (o = LIST_FIRST(&web->origins); o; o = LIST_NEXT(o, in_all)) {
    if (o->key[0] == key[0] && o->key[1] == key[1])
      return o;
  }
  if (!(o = calloc(1, sizeof *o)))
    return NULL;
  memcpy(o->key, key, sizeof key);
  LIST_INSERT_HEAD(&web->origins, o, in_all);
  return o;
}

static void web_lines_release(struct origin *o) {
  if (o->here > 0)
    return;
  LIST_REMOVE(o, in_all);
  free(o);
}

/* ---- Lines --------------------------------------------------------------- */

static bool owes(enum web_line line) {
  return line < LINE_TAKING;
}

static void leave_line(struct perigee_web *web, struct connection *c) {
  if (c->line == LINE_NONE)
    return;
  TAILQ_REMOVE(&web->line[c->line], c, in_line);
  c->origin->owing -= owes(c->line);
  c->line = LINE_NONE;
}

void web_wait_in(struct perigee_web *web, struct connection *c,
                 enum web_line line) {
  leave_line(web, c);
  if (line == LINE_NONE || c->given_up)
    return;
  c->line = line;
  c->since = web_now();
  c->origin->owing += owes(line);
  TAILQ_INSERT_TAIL(&web->line[line], c, in_line);
}

void web_hang_up(struct connection *c) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(c->wire, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info)
    shutdown(info->connect_fd, SHUT_RDWR);
}

/* Its place is free at once; libmicrohttpd closes it when it next looks. */
static void give_up(struct perigee_web *web, struct connection *c) {
  leave_line(web, c);
  c->given_up = true;
  web->connections--;
  web_hang_up(c);
}

static uint32_t most_owing(const struct perigee_web *web) {
  const struct origin *o;
  uint32_t most = 0;
  for (o = LIST_FIRST(&web->origins); o; o = LIST_NEXT(o, in_all)) {
    if (o->owing > most)
      most = o->owing;
  }
  return most;
}

/* Of the origins that owe most, the first in a line; or NULL. */
static struct connection *first_of(struct perigee_web *web, int line,
                                   uint32_t most) {
  struct connection *c = TAILQ_FIRST(&web->line[line]);
  while (c && c->origin->owing != most)
    c = TAILQ_NEXT(c, in_line);
  return c;
}

/* Returns who is to lose its place, or NULL. */
static struct connection *least_worthy(struct perigee_web *web) {
  uint32_t most = most_owing(web);
  struct connection *c, *least = NULL;
  for (int line = 0; most > 0 && line < LINE_TAKING; line++) {
    c = first_of(web, line, most);
    if (c && (!least || c->since < least->since))
      least = c;
  }
  if (least)
    return least;
  c = TAILQ_FIRST(&web->line[LINE_TAKING]);
  return c && web_now() - c->since >= CROWDED ? c : NULL;
}

bool web_join(struct perigee_web *web, struct connection *c) {
  struct connection *least;
  c->line = LINE_NONE;
  if (!(c->origin = origin_of(web, c->wire)))
    return false;
  c->origin->here++;
  if (++web->connections > web->to.connections) {
    if ((least = least_worthy(web)))
      give_up(web, least);
    c->crowding = !least;
  }
  web_wait_in(web, c, LINE_FRESH);
  return true;
}

void web_leave(struct perigee_web *web, struct connection *c) {
  leave_line(web, c);
  web->connections -= !c->given_up;
  c->origin->here--;
  web_lines_release(c->origin);
  web->ended++;
  web->ended_at = web_now();
}

/* ---- Time ---------------------------------------------------------------- */

static int64_t patience_of(const struct perigee_web *web, int line) {
  int64_t most = (int64_t)web->to.patience * 1000;
  bool hurries = line == LINE_TAKING && web->to.answers &&
                 web->answering > web->to.answers / 2;
  int64_t less = line == LINE_FRESH ? HEAD : hurries ? CROWDED : most;
  return less < most ? less : most;
}

/* Gives up who is too slow in a line. Returns the milliseconds until the next
 * one is, or -1. */
static int pass_line(struct perigee_web *web, int line, int64_t at) {
  int64_t patience = patience_of(web, line);
  struct connection *c;
  while ((c = TAILQ_FIRST(&web->line[line])) && at - c->since >= patience)
    give_up(web, c);
  return c ? (int)(patience - (at - c->since)) : -1;
}

/* While one origin has more than half of the room for long bodies, each of its
 * bodies has to go on. Returns as pass_line. */
static int pass_bodies(struct perigee_web *web, int64_t at) {
  struct connection *c, *next;
  uint64_t half = web_bulk_most(web) / 2;
  int wait = -1;
  if (web->bulk <= half)
    return -1;
  for (c = TAILQ_FIRST(&web->line[LINE_SENDING]); c; c = next) {
    next = TAILQ_NEXT(c, in_line);
    if (c->origin->bulk <= half || !c->request)
      continue;
    int64_t left = CROWDED - (at - c->request->since);
    if (left <= 0)
      give_up(web, c);
    else
      wait = web_sooner(wait, (int)left);
  }
  return wait;
}

bool web_is_far_behind(const struct perigee_web *web) {
  return web->to.backlog && web->backlog > web->to.backlog / 2;
}

static int pass_memory(struct perigee_web *web, int64_t at) {
  if (web->ended < MANY)
    return -1;
  if (at - web->ended_at < LULL)
    return LULL;
  malloc_trim(0);
  web->ended = 0;
  return -1;
}

int web_pass(struct perigee_web *web) {
  int64_t at = web_now();
  int wait = pass_memory(web, at);
  for (int line = 0; line < LINES; line++)
    wait = web_sooner(wait, pass_line(web, line, at));
  return web_sooner(wait, pass_bodies(web, at));
}

void web_note_progress(struct request *r) {
  r->since = web_now();
}

/* ---- Shares -------------------------------------------------------------- */

/* Streams leave an eighth of all places to requests. Those of strangers have
 * half of all together, and one origin of these at most as many as are left. */
bool web_has_place(const struct request *r, bool trusted) {
  const struct perigee_web *web = r->web;
  uint32_t all = web->to.connections, half = all / 2;
  if (web->streams >= all - all / 8)
    return false;
  return trusted || r->connection->origin->strangers + web->strangers < half;
}

void web_count_stream(struct request *r, bool trusted) {
  r->streaming = true;
  r->stranger = !trusted;
  r->web->streams++;
  r->web->strangers += r->stranger;
  r->connection->origin->strangers += r->stranger;
}

void web_uncount_stream(struct request *r) {
  if (!r->streaming)
    return;
  r->streaming = false;
  r->web->streams--;
  r->web->strangers -= r->stranger;
  r->connection->origin->strangers -= r->stranger;
}
