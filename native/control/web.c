/* SPDX-License-Identifier: Apache-2.0
 *
 * web.c - an HTTP server that the program polls, by libmicrohttpd.
 *
 * A complete request goes into a queue, and its connection is suspended until
 * the program has answered it:
 *
 *   state      event                              becomes
 *   reading    the body's end                     waiting: queued, suspended
 *   waiting    perigee_web_answer                 answered: resumed
 *   waiting    perigee_web_stream                 telling: resumed
 *   telling    all parts are written              dozing: suspended
 *   dozing     a part, or the end                 telling: resumed
 *   any        the connection ends                gone
 *
 * A request has up to two owners: the connection, from its first line until
 * libmicrohttpd says that it is over (`live`), and the program, from
 * perigee_web_next until its answer (`held`). The last one frees it.
 *
 * Connections that are to send something are in a list, in the order of the
 * times at which they began to be. So only its head has to be looked at to
 * close those that are too slow, however many there are.
 */
#include "control/bytes.h"
#include "control/control.h"
#include "control/listening.h"
#include "perigee.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define TLS_1_2_AT_LEAST "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
#define PROBLEM "application/problem+json"
#define EXCESS                                                                 \
  "{\"type\":\"about:blank\",\"status\":413,"                                  \
  "\"title\":\"Content Too Large\","                                           \
  "\"detail\":\"the body is larger than this server takes\"}"

struct connection {
  struct connection *before, *after;
  struct MHD_Connection *wire;
  int64_t since; /* milliseconds */
  bool listed;
};

struct request {
  struct perigee_web_request seen; /* the program's part, the first member */
  struct perigee_web *web;
  struct MHD_Connection *wire;
  struct connection *connection;
  struct request *next;           /* in the queue */
  struct request *before, *after; /* of all */
  char *target;
  struct bytes text; /* the body, then a stream's parts */
  bool live, held, suspended, ended;
};

struct perigee_web {
  struct MHD_Daemon *daemon;
  struct perigee_web_to to;
  struct request *oldest, *newest; /* the queue */
  struct request *all;
  struct connection *first, *latest;
};

static struct request *in(const struct perigee_web_request *request) {
  return (struct request *)request;
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* ---- Connections that are to send ---------------------------------------- */

static void unlist(struct perigee_web *web, struct connection *c) {
  if (!c->listed)
    return;
  *(c->before ? &c->before->after : &web->first) = c->after;
  *(c->after ? &c->after->before : &web->latest) = c->before;
  c->listed = false;
}

static void list(struct perigee_web *web, struct connection *c) {
  unlist(web, c);
  c->since = now();
  c->before = web->latest;
  c->after = NULL;
  *(web->latest ? &web->latest->after : &web->first) = c;
  web->latest = c;
  c->listed = true;
}

static void connected(void *argument, struct MHD_Connection *wire,
                      void **context,
                      enum MHD_ConnectionNotificationCode code) {
  struct perigee_web *web = argument;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    struct connection *c = calloc(1, sizeof *c);
    *context = c;
    if (!c)
      return; /* its requests are refused */
    c->wire = wire;
    list(web, c);
  } else if (*context) {
    unlist(web, *context);
    free(*context);
    *context = NULL;
  }
}

/* libmicrohttpd closes a connection whose socket has ended. */
static void hang_up(struct connection *c) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(c->wire, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info)
    shutdown(info->connect_fd, SHUT_RDWR);
}

/* Returns the milliseconds until the next one is too slow, or -1. */
static int hang_up_slow(struct perigee_web *web) {
  const int64_t patience = (int64_t)web->to.patience * 1000, at = now();
  while (web->first && at - web->first->since >= patience) {
    struct connection *c = web->first;
    hang_up(c);
    list(web, c);
  }
  return web->first ? (int)(patience - (at - web->first->since)) : -1;
}

/* ---- Requests ------------------------------------------------------------ */

static void destroy(struct request *r) {
  free(r->target);
  bytes_free(&r->text);
  free(r);
}

static void free_unowned(struct request *r) {
  if (r->live || r->held)
    return;
  *(r->before ? &r->before->after : &r->web->all) = r->after;
  if (r->after)
    r->after->before = r->before;
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
  r->after = web->all;
  if (web->all)
    web->all->before = r;
  web->all = r;
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
  r->live = false;
  r->seen.gone = 1;
  free_unowned(r);
}

static void doze(struct request *r) {
  r->suspended = true;
  MHD_suspend_connection(r->wire);
}

static void awake(struct request *r) {
  if (!r->suspended)
    return;
  r->suspended = false;
  MHD_resume_connection(r->wire);
}

static enum MHD_Result queue(struct request *r) {
  struct perigee_web *web = r->web;
  if (r->connection)
    unlist(web, r->connection);
  r->seen.target = r->target;
  r->seen.body = bytes_begin(&r->text);
  r->seen.length = bytes_length(&r->text);
  r->held = true;
  *(web->newest ? &web->newest->next : &web->oldest) = r;
  web->newest = r;
  doze(r);
  return MHD_YES;
}

static enum MHD_Result refuse(struct MHD_Connection *wire) {
  struct MHD_Response *response = MHD_create_response_from_buffer(
      sizeof EXCESS - 1, (void *)EXCESS, MHD_RESPMEM_PERSISTENT);
  if (!response)
    return MHD_NO;
  MHD_add_response_header(response, "Content-Type", PROBLEM);
  enum MHD_Result queued = MHD_queue_response(wire, 413, response);
  MHD_destroy_response(response);
  return queued;
}

static bool is_announced_too_large(const struct request *r) {
  const char *text = perigee_web_header(&r->seen, "Content-Length");
  return text && strtoull(text, NULL, 10) > r->web->to.body;
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
  (void)version;
  if (!r || !r->target || !r->connection || r->ended)
    return MHD_NO;
  if (!r->seen.method) {
    r->seen.method = method;
    return is_announced_too_large(r) ? refuse(wire) : MHD_YES;
  }
  if (*length == 0)
    return queue(r);
  if (bytes_length(&r->text) + *length > r->web->to.body) {
    r->seen.excess = 1;
    bytes_free(&r->text);
  }
  if (!r->seen.excess && !bytes_add(&r->text, part, *length))
    return MHD_NO;
  *length = 0;
  return MHD_YES;
}

struct perigee_web_request *perigee_web_next(struct perigee_web *web) {
  struct request *r = web->oldest;
  if (!r)
    return NULL;
  web->oldest = r->next;
  if (!web->oldest)
    web->newest = NULL;
  r->next = NULL;
  return &r->seen;
}

const char *perigee_web_header(const struct perigee_web_request *request,
                               const char *name) {
  return MHD_lookup_connection_value(in(request)->wire, MHD_HEADER_KIND, name);
}

/* ---- Answers ------------------------------------------------------------- */

static void give_up(struct request *r) {
  r->held = false;
  awake(r);
  free_unowned(r);
}

/* A response that cannot be queued ends the connection: once it is resumed,
 * libmicrohttpd calls handle() again. */
static bool reply(struct request *r, uint32_t status, const char *const *header,
                  struct MHD_Response *response) {
  bool queued = response;
  for (int i = 0; queued && header[i] && header[i + 1]; i += 2)
    queued =
        MHD_add_response_header(response, header[i], header[i + 1]) == MHD_YES;
  queued = queued && MHD_queue_response(r->wire, status, response) == MHD_YES;
  if (response)
    MHD_destroy_response(response);
  r->ended = !queued;
  return queued;
}

void perigee_web_answer(struct perigee_web_request *request,
                        const struct perigee_web_reply *given) {
  struct request *r = in(request);
  reply(r, given->status, given->header,
        MHD_create_response_from_buffer(given->length, (void *)given->body,
                                        MHD_RESPMEM_MUST_COPY));
  give_up(r);
}

static ssize_t write_parts(void *argument, uint64_t at, char *into,
                           size_t capacity) {
  struct request *r = argument;
  size_t length = bytes_length(&r->text);
  (void)at;
  if (length == 0 && r->ended)
    return MHD_CONTENT_READER_END_OF_STREAM;
  if (length == 0) {
    doze(r);
    return 0;
  }
  if (length > capacity)
    length = capacity;
  memcpy(into, bytes_begin(&r->text), length);
  bytes_drop(&r->text, length);
  return (ssize_t)length;
}

int perigee_web_stream(struct perigee_web_request *request,
                       const struct perigee_web_reply *given) {
  struct request *r = in(request);
  bytes_free(&r->text);
  if (!reply(r, given->status, given->header,
             MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096,
                                               write_parts, r, NULL))) {
    give_up(r);
    return PERIGEE_NO_MEMORY;
  }
  awake(r);
  return PERIGEE_OK;
}

/* One part may be of any length, as what tells all that there is. */
static bool is_behind(const struct request *r, uint64_t more) {
  size_t queued = bytes_length(&r->text);
  return queued > 0 && queued + more > r->web->to.queued;
}

void perigee_web_tell(struct perigee_web_request *request, const char *part,
                      uint64_t length) {
  struct request *r = in(request);
  if (r->seen.gone || r->ended)
    return;
  if (is_behind(r, length) || !bytes_add(&r->text, part, length)) {
    r->ended = true;
    r->seen.gone = 1;
    hang_up(r->connection);
  }
  awake(r);
}

void perigee_web_end(struct perigee_web_request *request) {
  struct request *r = in(request);
  r->ended = true;
  give_up(r);
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
      MHD_OPTION_CONNECTION_LIMIT, to->connections,
      MHD_OPTION_PER_IP_CONNECTION_LIMIT, to->per_host,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)to->head,
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
  if (!web)
    return;
  for (struct request *r = web->all; r; r = r->after) {
    r->ended = true;
    awake(r);
  }
  MHD_stop_daemon(web->daemon);
  for (struct request *r = web->all, *after; r; r = after) {
    after = r->after;
    destroy(r);
  }
  free(web);
}
