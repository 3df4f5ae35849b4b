/* SPDX-License-Identifier: Apache-2.0
 *
 * web.h - what an HTTP server, its requests and their answers share.
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

/* crowding: it came when there were as many connections as there may be. */
struct connection {
  TAILQ_ENTRY(connection) in_slow;
  struct MHD_Connection *wire;
  int64_t since; /* milliseconds */
  bool listed, crowding;
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
  struct bytes text;   /* the body, then a stream's parts */
  struct bytes joined; /* the values of a header that came several times */
  bool live, held, suspended, ended, behind;
};

/* slow: the connections that are to send something, in the order of the times
 * at which they began to be. So only its head has to be looked at to close
 * those that are too slow, however many there are.
 * behind: the streams with parts that were not sent; backlog: these parts'
 * bytes. */
struct perigee_web {
  struct MHD_Daemon *daemon;
  struct perigee_web_to to;
  uint32_t connections;
  uint64_t backlog;
  STAILQ_HEAD(requests, request) queue;
  LIST_HEAD(known, request) all;
  TAILQ_HEAD(slow, connection) slow;
  TAILQ_HEAD(behind, request) behind;
};

static inline struct request *
web_request(const struct perigee_web_request *request) {
  return (struct request *)request;
}

/* Closes a connection: libmicrohttpd does so when its socket has ended. */
void web_hang_up(struct connection *connection);
/* Suspends and resumes a request's connection. */
void web_doze(struct request *request);
void web_awake(struct request *request);
/* The program lets go of a request. */
void web_give_up(struct request *request);
/* Drops what a stream's client was not sent. */
void web_forget_parts(struct request *request);

#endif
