/* SPDX-License-Identifier: Apache-2.0
 *
 * web.h - shared by the files of the HTTP server, of its requests and of their
 * answers.
 *
 * A complete request goes into a queue, and its connection is suspended until
 * the program has answered it:
 *
 *   state      event                              becomes
 *   reading    the body's end                     waiting: queued, suspended
 *   reading    the head is refused                answered (refusal.h)
 *   waiting    perigee_web_answer                 answered: resumed
 *   waiting    perigee_web_stream                 telling: resumed
 *   telling    all parts are written              dozing: suspended
 *   dozing     a part, or the end                 telling: resumed
 *   any        the connection ends                gone
 *
 * A request has up to two owners: the connection, from its first line until
 * libmicrohttpd says that it is over (`live`), and the program, from
 * perigee_web_next until its answer (`held`). The last one frees it.
 */
#ifndef PERIGEE_CONTROL_WEB_H
#define PERIGEE_CONTROL_WEB_H

#include "control/bytes.h"
#include "control/control.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <sys/queue.h>

/* The bytes that all bodies together may have beyond the room that each has, if no
 * single one may have more. Once one origin has more than half of them, its bodies
 * have to come without a pause. */
enum { WEB_BULK = 64 << 20 };

/* Milliseconds for an answer to be taken while places, or memory for answers, are
 * short, and for the next bytes of a body that has to come without a pause. */
enum { CROWDED = 1000 };

/* The action of its peer that a connection waits for (web_lines.c): to send its
 * first head; another one; the rest of a request; to take an answer. */
enum web_line {
  LINE_FRESH,
  LINE_IDLE,
  LINE_SENDING,
  LINE_TAKING,
  LINES,
  LINE_NONE = LINES
};

/* The origin of connections. owing: those of them that are to send something;
 * strangers: streams of clients that are not trusted; bulk: bytes of long
 * bodies. */
struct origin {
  LIST_ENTRY(origin) in_all;
  uint64_t key[2];
  uint64_t bulk;
  uint32_t here, owing, strangers;
};

/* request: the one that libmicrohttpd is at; crowding: there were as many
 * connections as there may be, and none could be given up; given_up: it is to
 * be closed, and counts no more. */
struct connection {
  TAILQ_ENTRY(connection) in_line;
  struct MHD_Connection *wire;
  struct request *request;
  struct origin *origin;
  int64_t since; /* milliseconds */
  enum web_line line;
  bool crowding, given_up;
};

struct request {
  struct perigee_web_request seen; /* the program's part, the first member */
  struct perigee_web *web;
  struct MHD_Connection *wire;
  struct connection *connection;
  STAILQ_ENTRY(request) in_queue;
  LIST_ENTRY(request) in_all;
  TAILQ_ENTRY(request) in_behind;
  char *target;
  struct bytes text;    /* the body, then a stream's parts */
  struct bytes joined;  /* the values of a header that came several times */
  uint64_t answered;    /* bytes that its client has not taken */
  uint64_t bulk;        /* bytes of its body beyond those of a short one, */
  struct origin *payer; /* and whose they are; NULL: the connection has ended */
  int64_t since; /* milliseconds: no part of the body has come since then,
                           and later a stream has told nothing */
  bool live, held, suspended, ended, behind, streaming, stranger;
};

TAILQ_HEAD(web_line_head, connection);

/* behind: the streams with parts that were not sent, who has taken nothing for
 * longest first; backlog: these parts' bytes. answering: the bytes of answers
 * that were not taken; bulk: those of long bodies. */
struct perigee_web {
  struct MHD_Daemon *daemon;
  struct perigee_web_to to;
  struct hosts *hosts; /* or NULL: a request may name any */
  bool is_secure;      /* over TLS */
  uint32_t connections, streams, strangers;
  uint32_t ended;   /* connections since memory was given back */
  int64_t ended_at; /* milliseconds: when the last one has */
  uint64_t backlog, answering, bulk;
  STAILQ_HEAD(requests, request) queue;
  LIST_HEAD(known, request) all;
  LIST_HEAD(origins, origin) origins;
  struct web_line_head line[LINES];
  TAILQ_HEAD(behind, request) behind;
};

static inline uint64_t web_bulk_most(const struct perigee_web *web) {
  return web->to.body > WEB_BULK ? web->to.body : WEB_BULK;
}

static inline struct request *
web_request(const struct perigee_web_request *request) {
  return (struct request *)request;
}

/* A request's body has so many bytes beyond those of a short one. */
static inline void web_set_bulk(struct request *r, uint64_t bulk) {
  r->web->bulk += bulk - r->bulk;
  if (r->payer)
    r->payer->bulk += bulk - r->bulk;
  r->bulk = bulk;
}

/* A connection has come; false without memory. */
bool web_join(struct perigee_web *web, struct connection *connection);
void web_leave(struct perigee_web *web, struct connection *connection);
/* It waits for its peer from now on, or does not (LINE_NONE). */
void web_wait_in(struct perigee_web *web, struct connection *connection,
                 enum web_line line);
/* Gives up connections that are too slow, and streams that take nothing of what
 * they were told. Both return the milliseconds until the next one is due, or
 * -1. */
int web_pass(struct perigee_web *web);
int web_pass_streams(struct perigee_web *web);
/* The sooner of two such times. */
static inline int web_sooner(int one, int other) {
  return one < 0 || (other >= 0 && other < one) ? other : one;
}
/* Milliseconds of the clock by which all of them are given up. */
int64_t web_now(void);
/* Closes a connection: libmicrohttpd does so when its socket has ended. */
void web_hang_up(struct connection *connection);
/* May a request become a stream? `trusted`: it is no stranger's. */
bool web_has_place(const struct request *request, bool trusted);
void web_count_stream(struct request *request, bool trusted);
void web_uncount_stream(struct request *request);
/* A stream has taken something, or has something to take. */
void web_note_progress(struct request *request);
/* Suspends and resumes a request's connection. */
void web_doze(struct request *request);
void web_awake(struct request *request);
/* Drops a body, or what a stream's client was not sent. */
void web_forget_parts(struct request *request);
/* Are all streams together further behind than half of what they may be? */
bool web_is_far_behind(const struct perigee_web *web);
/* Frees a request that neither its connection nor the program has; or any. */
void web_free_unowned(struct request *request);
void web_destroy(struct request *request);

#endif
