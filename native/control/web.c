/* SPDX-License-Identifier: Apache-2.0
 *
 * web.c - an HTTP server that the program polls, by libmicrohttpd: its
 * connections, and how requests are read. web.h has the states of a request.
 */
#include "control/web.h"
#include "control/listening.h"
#include "control/refusal.h"
#include "perigee.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define TLS_1_2_AT_LEAST "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

/* Connections beyond the limit that are told so. The next ones are not
 * accepted, or closed without an answer. */
enum { TOLD = 64 };

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* ---- Connections that are to send ---------------------------------------- */

static void unlist(struct perigee_web *web, struct connection *c) {
  if (c->listed)
    TAILQ_REMOVE(&web->slow, c, in_slow);
  c->listed = false;
}

static void list(struct perigee_web *web, struct connection *c) {
  unlist(web, c);
  c->since = now();
  TAILQ_INSERT_TAIL(&web->slow, c, in_slow);
  c->listed = true;
}

static void begin_connection(struct perigee_web *web,
                             struct MHD_Connection *wire, void **context) {
  struct connection *c = calloc(1, sizeof *c);
  *context = c;
  if (!c)
    return; /* its requests are refused */
  c->wire = wire;
  c->crowding = ++web->connections > web->to.connections;
  list(web, c);
}

static void connected(void *argument, struct MHD_Connection *wire,
                      void **context,
                      enum MHD_ConnectionNotificationCode code) {
  struct perigee_web *web = argument;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    begin_connection(web, wire, context);
  } else if (*context) {
    web->connections--;
    unlist(web, *context);
    free(*context);
    *context = NULL;
  }
}

void web_hang_up(struct connection *c) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(c->wire, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info)
    shutdown(info->connect_fd, SHUT_RDWR);
}

/* Returns the milliseconds until the next one is too slow, or -1. */
static int hang_up_slow(struct perigee_web *web) {
  const int64_t patience = (int64_t)web->to.patience * 1000, at = now();
  struct connection *c;
  while ((c = TAILQ_FIRST(&web->slow)) && at - c->since >= patience) {
    web_hang_up(c);
    list(web, c);
  }
  return c ? (int)(patience - (at - c->since)) : -1;
}

/* ---- Requests ------------------------------------------------------------ */

static void destroy(struct request *r) {
  web_forget_parts(r);
  bytes_free(&r->joined);
  free(r->target);
  free(r);
}

static void free_unowned(struct request *r) {
  if (r->live || r->held)
    return;
  LIST_REMOVE(r, in_all);
  destroy(r);
}

static void *began(void *argument, const char *target,
                   struct MHD_Connection *wire) {
  struct perigee_web *web = argument;
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(wire, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  struct request *r = calloc(1, sizeof *r);
  if (!r)
    return NULL;
  r->web = web;
  r->wire = wire;
  r->connection = info ? info->socket_context : NULL;
  r->target = strdup(target);
  LIST_INSERT_HEAD(&web->all, r, in_all);
  r->live = true;
  return r;
}

static void completed(void *argument, struct MHD_Connection *wire,
                      void **context, enum MHD_RequestTerminationCode code) {
  struct request *r = *context;
  (void)wire;
  (void)code;
  *context = NULL;
  if (!r)
    return;
  if (r->connection)
    list(argument, r->connection);
  if (r->behind)
    web_forget_parts(r);
  r->live = false;
  r->seen.gone = 1;
  free_unowned(r);
}

void web_doze(struct request *r) {
  r->suspended = true;
  MHD_suspend_connection(r->wire);
}

void web_awake(struct request *r) {
  if (!r->suspended)
    return;
  r->suspended = false;
  MHD_resume_connection(r->wire);
}

void web_give_up(struct request *r) {
  r->held = false;
  web_awake(r);
  free_unowned(r);
}

static enum MHD_Result queue(struct request *r) {
  struct perigee_web *web = r->web;
  unlist(web, r->connection);
  r->seen.target = r->target;
  r->seen.body = bytes_begin(&r->text);
  r->seen.length = bytes_length(&r->text);
  r->held = true;
  STAILQ_INSERT_TAIL(&web->queue, r, in_queue);
  web_doze(r);
  return MHD_YES;
}

static const struct refusal *refusal_for(struct request *r,
                                         const char *version) {
  const struct perigee_web_to *to = &r->web->to;
  struct connection *c = r->connection;
  struct head head = {.wire = r->wire,
                      .version = version,
                      .target = r->target,
                      .most = to->head,
                      .body = to->body};
  c->crowding = c->crowding && r->web->connections > to->connections;
  return c->crowding ? &REFUSED_CROWD : refusal_of(&head);
}

static enum MHD_Result take(struct request *r, const char *part,
                            size_t length) {
  if (bytes_length(&r->text) + length > r->web->to.body) {
    r->seen.excess = 1;
    bytes_free(&r->text);
  }
  return r->seen.excess || bytes_add(&r->text, part, length) ? MHD_YES : MHD_NO;
}

/* libmicrohttpd calls this with the head alone, then for each part of the body,
 * and at last without a part. */
static enum MHD_Result handle(void *argument, struct MHD_Connection *wire,
                              const char *path, const char *method,
                              const char *version, const char *part,
                              size_t *length, void **context) {
  struct request *r = *context;
  (void)argument;
  (void)path;
  if (!r || !r->target || !r->connection || r->ended)
    return MHD_NO;
  if (!r->seen.method) {
    const struct refusal *refusal = refusal_for(r, version);
    r->seen.method = method;
    return refusal ? refuse(wire, refusal) : MHD_YES;
  }
  if (*length == 0)
    return queue(r);
  enum MHD_Result taken = take(r, part, *length);
  *length = 0;
  return taken;
}

struct perigee_web_request *perigee_web_next(struct perigee_web *web) {
  struct request *r = STAILQ_FIRST(&web->queue);
  if (!r)
    return NULL;
  STAILQ_REMOVE_HEAD(&web->queue, in_queue);
  return &r->seen;
}

/* ---- Running ------------------------------------------------------------- */

int perigee_web_run(struct perigee_web *web) {
  MHD_UNSIGNED_LONG_LONG wanted;
  int slow = hang_up_slow(web);
  MHD_run(web->daemon);
  if (MHD_get_timeout(web->daemon, &wanted) != MHD_YES)
    return slow;
  if (slow >= 0 && wanted > (unsigned)slow)
    return slow;
  return wanted > 1000000 ? 1000000 : (int)wanted;
}

int perigee_web_descriptor(const struct perigee_web *web) {
  return MHD_get_daemon_info(web->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

uint16_t perigee_web_port(const struct perigee_web *web) {
  return web->to.port;
}

/* Targets are decoded by the program, which knows what their parts mean. */
static size_t leave_as_sent(void *argument, struct MHD_Connection *wire,
                            char *text) {
  (void)argument;
  (void)wire;
  return strlen(text);
}

/* libmicrohttpd owns `listening` from here on, and closes it also if it fails.
 */
static struct MHD_Daemon *start(struct perigee_web *web, int listening) {
  const struct perigee_web_to *to = &web->to;
  struct MHD_OptionItem tls[] = {
      {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)to->certificate},
      {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)to->key},
      {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)TLS_1_2_AT_LEAST},
      {MHD_OPTION_END, 0, NULL},
  };
  if (!to->certificate)
    tls[0].option = MHD_OPTION_END;
  return MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_SUSPEND_RESUME | MHD_USE_TURBO |
          (to->certificate ? MHD_USE_TLS : 0),
      0, NULL, NULL, handle, web, MHD_OPTION_LISTEN_SOCKET, listening,
      MHD_OPTION_CONNECTION_LIMIT, to->connections + TOLD,
      MHD_OPTION_PER_IP_CONNECTION_LIMIT, to->per_host,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)to->head * 2,
      MHD_OPTION_CONNECTION_TIMEOUT, to->patience, MHD_OPTION_URI_LOG_CALLBACK,
      began, web, MHD_OPTION_NOTIFY_COMPLETED, completed, web,
      MHD_OPTION_NOTIFY_CONNECTION, connected, web,
      MHD_OPTION_UNESCAPE_CALLBACK, leave_as_sent, NULL, MHD_OPTION_ARRAY, tls,
      MHD_OPTION_END);
}

int perigee_web_open(struct perigee_web **opened,
                     const struct perigee_web_to *to, char *why,
                     uint64_t capacity) {
  struct perigee_web *web = calloc(1, sizeof *web);
  if (!web)
    return PERIGEE_NO_MEMORY;
  web->to = *to;
  STAILQ_INIT(&web->queue);
  LIST_INIT(&web->all);
  TAILQ_INIT(&web->slow);
  TAILQ_INIT(&web->behind);
  int listening = listening_open(to->host, &web->to.port, why, capacity);
  int status = listening < 0 ? listening : PERIGEE_OK;
  if (listening >= 0 && !(web->daemon = start(web, listening))) {
    snprintf(why, capacity, "%s",
             to->certificate ? "its certificate or key is not taken"
                             : "libmicrohttpd does not start");
    status = PERIGEE_SYSTEM;
  }
  web->to.certificate = web->to.key = web->to.host = NULL;
  if (status == PERIGEE_OK)
    *opened = web;
  else
    free(web);
  return status;
}

/* libmicrohttpd must not be stopped while connections are suspended. */
void perigee_web_close(struct perigee_web *web) {
  struct request *r;
  if (!web)
    return;
  for (r = LIST_FIRST(&web->all); r; r = LIST_NEXT(r, in_all)) {
    r->ended = true;
    web_awake(r);
  }
  MHD_stop_daemon(web->daemon);
  while ((r = LIST_FIRST(&web->all))) {
    LIST_REMOVE(r, in_all);
    destroy(r);
  }
  free(web);
}
