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
#include <unistd.h>

/* TLS 1.2 with keys that are gone with the connection, and ciphers that are
 * authenticated, as 1.3 has them alone. */
#define TLS_1_2_AT_LEAST                                                       \
  "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:"           \
  "+ECDHE-RSA:-CIPHER-ALL:+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM"

/* Bytes of a connection's memory besides a head: what is found in the head, and
 * the head of the answer. */
enum { LEAST_BESIDE = 1024 };

/* Connections beyond the limit that are told so. The next ones are not
 * accepted, or closed without an answer. */
enum { TOLD = 64 };

/* Bytes of a body for which there is always room. */
enum { SHORT = 65536 };

/* ---- Requests ------------------------------------------------------------ */

/* Its bytes count for all from then on, and for no origin. */
static void leave_payer(struct request *r) {
  if (r->payer)
    r->payer->bulk -= r->bulk;
  r->payer = NULL;
}

/* The connection has another request, or none any more. */
static void let_go(struct connection *c) {
  struct request *r = c->request;
  c->request = NULL;
  if (!r)
    return;
  if (r->behind)
    web_forget_parts(r);
  leave_payer(r);
  web_uncount_stream(r);
  r->web->answering -= r->answered;
  r->answered = 0;
  r->live = false;
  r->seen.gone = 1;
  web_free_unowned(r);
}

/* libmicrohttpd tells of the end only of those requests that it has handed
 * over, and not of those that it refuses itself. */
static void *began(void *argument, const char *target,
                   struct MHD_Connection *wire) {
  struct perigee_web *web = argument;
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(wire, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  struct connection *c = info ? info->socket_context : NULL;
  struct request *r = c ? calloc(1, sizeof *r) : NULL;
  if (!r)
    return NULL;
  let_go(c);
  r->web = web;
  r->wire = wire;
  r->connection = c;
  r->payer = c->origin;
  r->target = strdup(target);
  LIST_INSERT_HEAD(&web->all, r, in_all);
  r->live = true;
  c->request = r;
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
  web_wait_in(argument, r->connection, LINE_IDLE);
  let_go(r->connection);
}

/* ---- Connections --------------------------------------------------------- */

static void begin_connection(struct perigee_web *web,
                             struct MHD_Connection *wire, void **context) {
  struct connection *c = calloc(1, sizeof *c);
  *context = NULL; /* without memory its requests are refused */
  if (!c)
    return;
  c->wire = wire;
  if (web_join(web, c))
    *context = c;
  else
    free(c);
}

static void connected(void *argument, struct MHD_Connection *wire,
                      void **context,
                      enum MHD_ConnectionNotificationCode code) {
  struct perigee_web *web = argument;
  struct connection *c = *context;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    begin_connection(web, wire, context);
  } else if (c) {
    let_go(c);
    web_leave(web, c);
    free(c);
    *context = NULL;
  }
}

/* ---- Reading ------------------------------------------------------------- */

static enum MHD_Result web_queue(struct request *r) {
  struct perigee_web *web = r->web;
  web_wait_in(web, r->connection, LINE_NONE);
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
                      .hosts = r->web->hosts,
                      .most = to->head,
                      .body = to->body};
  c->crowding = c->crowding && r->web->connections > to->connections;
  return c->crowding ? &REFUSED_CROWD : refusal_of(&head);
}

static void refuse_body(struct request *r, uint8_t excess) {
  r->seen.excess = excess;
  web_forget_parts(r);
}

/* Returns the oldest body of the origin that has most of them, if it was not
 * queued yet; or NULL. */
static struct request *longest_read(struct perigee_web *web) {
  struct request *r, *longest = NULL;
  for (r = LIST_FIRST(&web->all); r; r = LIST_NEXT(r, in_all)) {
    if (r->payer && r->bulk > 0 && !r->held &&
        (!longest || r->payer->bulk >= longest->payer->bulk))
      longest = r;
  }
  return longest;
}

/* Where there is no room for more, an origin that has more than the others
 * loses a body to one that has less with it, so a crowd takes the room from
 * itself alone. */
static bool has_room_for(struct request *r, uint64_t body) {
  uint64_t bulk = body > SHORT ? body - SHORT : 0;
  uint64_t more = bulk - r->bulk;
  while (bulk > 0 && r->web->bulk + more > web_bulk_most(r->web)) {
    struct request *longest = longest_read(r->web);
    if (!longest || longest->payer->bulk <= r->payer->bulk + more)
      return false;
    refuse_body(longest, 2);
  }
  web_set_bulk(r, bulk);
  return true;
}

static enum MHD_Result take(struct request *r, const char *part,
                            size_t length) {
  uint64_t body = bytes_length(&r->text) + length;
  web_note_progress(r);
  if (!r->seen.excess && body > r->web->to.body)
    refuse_body(r, 1);
  else if (!r->seen.excess && !has_room_for(r, body))
    refuse_body(r, 2);
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
    web_note_progress(r);
    web_wait_in(r->web, r->connection, refusal ? LINE_TAKING : LINE_SENDING);
    return refusal ? refuse(wire, refusal) : MHD_YES;
  }
  if (*length == 0)
    return web_queue(r);
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

/* libmicrohttpd 0.9 answers a Content-Length that is none, and then answers
 * once more. It tells its log before. */
static void end_ambiguous(void *argument, const char *format, va_list values) {
  struct perigee_web *web = argument;
  struct request *r;
  (void)values;
  if (!strstr(format, "Content-Length"))
    return;
  for (r = LIST_FIRST(&web->all); r; r = LIST_NEXT(r, in_all)) {
    if (r->live && !r->seen.method && is_ambiguous(r->wire)) {
      refuse_by_hand(r->wire, !web->is_secure);
      web_hang_up(r->connection);
    }
  }
}

int perigee_web_run(struct perigee_web *web) {
  MHD_UNSIGNED_LONG_LONG wanted;
  MHD_run(web->daemon);
  /* Behind it: what peers sent and took while this server did other work. */
  int slow = web_sooner(web_pass_streams(web), web_pass(web));
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

void perigee_web_address(const struct perigee_web *web, char text[64]) {
  int listening =
      MHD_get_daemon_info(web->daemon, MHD_DAEMON_INFO_LISTEN_FD)->listen_fd;
  listening_address(listening, text);
}

/* Targets are decoded by the program, which knows what their parts mean. */
static size_t leave_as_sent(void *argument, struct MHD_Connection *wire,
                            char *text) {
  (void)argument;
  (void)wire;
  return strlen(text);
}

/* A connection has it for as long as it is there. */
static size_t memory_of(const struct perigee_web_to *to) {
  size_t beside = to->head / 2;
  return to->head + (beside > LEAST_BESIDE ? beside : LEAST_BESIDE);
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
  web->is_secure = to->certificate != NULL;
  return MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_SUSPEND_RESUME | MHD_USE_TURBO |
          MHD_USE_ERROR_LOG | (to->certificate ? MHD_USE_TLS : 0),
      0, NULL, NULL, handle, web, MHD_OPTION_EXTERNAL_LOGGER, end_ambiguous,
      web, MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_CONNECTION_LIMIT,
      to->connections + TOLD, MHD_OPTION_PER_IP_CONNECTION_LIMIT, to->per_host,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory_of(to),
      MHD_OPTION_CONNECTION_TIMEOUT, to->patience, MHD_OPTION_URI_LOG_CALLBACK,
      began, web, MHD_OPTION_NOTIFY_COMPLETED, completed, web,
      MHD_OPTION_NOTIFY_CONNECTION, connected, web,
      MHD_OPTION_UNESCAPE_CALLBACK, leave_as_sent, NULL, MHD_OPTION_ARRAY, tls,
      MHD_OPTION_END);
}

/* Has it listen. Returns a status. */
static int web_begin(struct perigee_web *web, char *why, uint64_t capacity) {
  const struct perigee_web_to *to = &web->to;
  int listening = listening_open(to->host, &web->to.port, why, capacity);
  if (listening < 0)
    return listening;
  if (to->names && !(web->hosts = hosts_new(to, listening))) {
    close(listening);
    return PERIGEE_NO_MEMORY;
  }
  if ((web->daemon = start(web, listening)))
    return PERIGEE_OK;
  snprintf(why, capacity, "%s",
           to->certificate ? "its certificate or key is not taken"
                           : "libmicrohttpd does not start");
  return PERIGEE_SYSTEM;
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
  LIST_INIT(&web->origins);
  for (int line = 0; line < LINES; line++)
    TAILQ_INIT(&web->line[line]);
  TAILQ_INIT(&web->behind);
  int status = web_begin(web, why, capacity);
  web->to.certificate = web->to.key = web->to.host = web->to.names = NULL;
  if (status == PERIGEE_OK) {
    *opened = web;
    return PERIGEE_OK;
  }
  hosts_free(web->hosts);
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
    web_destroy(r);
  }
  hosts_free(web->hosts);
  free(web);
}
