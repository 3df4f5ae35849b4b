/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c - connects sockets to other servers without blocking: names and
 * their addresses by c-ares, TLS by OpenSSL.
 *
 *   state      event                                 becomes
 *   reaching   connected                             sealing, or open
 *   sealing    the handshake is over                 open
 *   any        an error                              ended
 */
#include <ares.h>
#include <errno.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "control/control.h"
#include "control/stream.h"
#include "perigee.h"

/* ---- Reaching a host ----------------------------------------------------- */

/* From a host's name to a connected socket, without blocking: the name by
 * c-ares, then its addresses side by side (RFC 8305), each begun a little after
 * the one before it, or when that one has failed. The first that connects is
 * taken.
 *
 *   state     event                               becomes
 *   naming    the name's addresses are there      racing
 *   racing    an address refuses, or STAGGER is   racing, with the next address
 *             over
 *   racing    one is connected                    over: the others are closed
 *   racing    the last one refuses                over
 *
 * All its sockets, those of c-ares too, are in one epoll instance, which is
 * what the caller waits for. */

enum { RUNNERS = 16, STAGGER = 250 }; /* at most; milliseconds */

struct reach {
  int watcher;
  ares_channel names; /* NULL: the addresses are there */
  bool named;
  int names_status;
  struct ares_addrinfo *found;
  struct ares_addrinfo_node *next;
  int runner[RUNNERS]; /* sockets that connect */
  unsigned running;
  int error;                   /* of the one that failed last */
  int64_t given, stagger, due; /* milliseconds; due: of the next address */
};

static int64_t reach_now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * INT64_C(1000) + at.tv_nsec / 1000000;
}

/* ---- Names --------------------------------------------------------------- */

static void names_changed(void *pointer, ares_socket_t fd, int readable,
                          int writable) {
  const struct reach *reach = pointer;
  struct epoll_event event = {.events = (readable ? EPOLLIN : 0U) |
                                        (writable ? EPOLLOUT : 0U),
                              .data.fd = fd};
  if (!event.events)
    epoll_ctl(reach->watcher, EPOLL_CTL_DEL, fd, NULL);
  else if (epoll_ctl(reach->watcher, EPOLL_CTL_MOD, fd, &event) != 0)
    epoll_ctl(reach->watcher, EPOLL_CTL_ADD, fd, &event);
}

static void name_found(void *argument, int status, int timeouts,
                       struct ares_addrinfo *found) {
  struct reach *reach = argument;
  (void)timeouts;
  reach->named = true;
  reach->names_status = status;
  if (status == ARES_SUCCESS)
    reach->found = found;
}

static bool name_begin(struct reach *reach, const char *host, uint16_t port) {
  char service[8];
  struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC,
                                      .ai_socktype = SOCK_STREAM};
  struct ares_options options = {.sock_state_cb = names_changed,
                                 .sock_state_cb_data = reach};
  if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS ||
      ares_init_options(&reach->names, &options, ARES_OPT_SOCK_STATE_CB) !=
          ARES_SUCCESS)
    return false;
  snprintf(service, sizeof service, "%u", port);
  ares_getaddrinfo(reach->names, host, service, &hints, name_found, reach);
  return true;
}

static void name_end(struct reach *reach) {
  if (reach->names)
    ares_destroy(reach->names);
  reach->names = NULL;
}

/* Passes c-ares what is ready, and has it look at the time. */
static void name_process(struct reach *reach) {
  struct epoll_event ready[RUNNERS];
  int n = epoll_wait(reach->watcher, ready, RUNNERS, 0);
  for (int i = 0; i < n && !reach->named; i++) {
    bool writes = ready[i].events & EPOLLOUT;
    bool reads = ready[i].events & ~(uint32_t)EPOLLOUT;
    ares_process_fd(reach->names, reads ? ready[i].data.fd : ARES_SOCKET_BAD,
                    writes ? ready[i].data.fd : ARES_SOCKET_BAD);
  }
  if (!reach->named)
    ares_process_fd(reach->names, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

static int64_t name_due(const struct reach *reach) {
  struct timeval room;
  const struct timeval *due = ares_timeout(reach->names, NULL, &room);
  return due ? due->tv_sec * INT64_C(1000) + due->tv_usec / 1000 + 1 : -1;
}

static unsigned count_nodes(const struct ares_addrinfo_node *node) {
  unsigned n = 0;
  for (; node; node = node->ai_next)
    n++;
  return n;
}

/* Each address has its turn in half of the time that the caller gives. */
static void race_begin(struct reach *reach) {
  unsigned n;
  name_end(reach);
  reach->next = reach->found->nodes;
  n = count_nodes(reach->next);
  reach->stagger = STAGGER;
  if (reach->given && n && reach->given / 2 / n < STAGGER)
    reach->stagger = reach->given / 2 / n;
}

/* Returns 1 once there are addresses. */
static int name_step(struct reach *reach, const char **why) {
  if (!reach->named)
    name_process(reach);
  if (!reach->named)
    return 0;
  if (!reach->found) {
    *why = ares_strerror(reach->names_status);
    return PERIGEE_NOT_FOUND;
  }
  race_begin(reach);
  return 1;
}

/* ---- The race ------------------------------------------------------------ */

/* Takes a socket out of the race. */
static int race_leave(struct reach *reach, unsigned i) {
  int fd = reach->runner[i];
  epoll_ctl(reach->watcher, EPOLL_CTL_DEL, fd, NULL);
  reach->runner[i] = reach->runner[--reach->running];
  return fd;
}

static void race_drop(struct reach *reach, unsigned i) {
  close(race_leave(reach, i));
}

/* Begins to connect to an address. Returns 0, or an errno. */
static int race_run(struct reach *reach, const struct ares_addrinfo_node *to) {
  int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
  if (fd < 0)
    return errno;
  reach->runner[reach->running++] = fd;
  if ((connect(fd, to->ai_addr, to->ai_addrlen) == 0 || errno == EINPROGRESS) &&
      epoll_ctl(reach->watcher, EPOLL_CTL_ADD, fd, &event) == 0)
    return 0;
  int error = errno;
  race_drop(reach, reach->running - 1);
  return error;
}

static void race_next(struct reach *reach) {
  while (reach->next && reach->running < RUNNERS) {
    int error = race_run(reach, reach->next);
    reach->next = reach->next->ai_next;
    reach->due = reach_now() + reach->stagger;
    if (error == 0)
      return;
    reach->error = error;
  }
}

/* Returns 0: it connects; 1: it is connected; or -errno. */
static int connect_result(int fd) {
  int error = 0;
  struct sockaddr_storage peer;
  socklen_t length = sizeof error, peer_length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
    return -errno;
  if (error)
    return -error;
  return getpeername(fd, (struct sockaddr *)&peer, &peer_length) == 0;
}

/* Returns the socket that has connected, which is no runner any more; or -1.
 * Of those that failed the next one follows at once. */
static int race_winner(struct reach *reach) {
  for (unsigned i = 0; i < reach->running;) {
    int state = connect_result(reach->runner[i]);
    if (state > 0)
      return race_leave(reach, i);
    if (state == 0) {
      i++;
      continue;
    }
    reach->error = -state;
    reach->due = 0;
    race_drop(reach, i);
  }
  return -1;
}

static int race_lost(const struct reach *reach, const char **why) {
  *why = strerror(reach->error);
  return reach->error == ECONNREFUSED ? PERIGEE_NOT_FOUND : PERIGEE_PEER_LOST;
}

static int race_step(struct reach *reach, int *descriptor, const char **why) {
  *descriptor = race_winner(reach);
  if (*descriptor < 0 && reach_now() >= reach->due)
    race_next(reach);
  if (*descriptor >= 0)
    return 1;
  return reach->running == 0 ? race_lost(reach, why) : 0;
}

/* ---- Both ---------------------------------------------------------------- */

/* Milliseconds until the time is to be looked at; -1: never. */
static int64_t reach_due(const struct reach *reach) {
  if (reach->names)
    return name_due(reach);
  if (!reach->next || reach->running == RUNNERS)
    return -1;
  int64_t left = reach->due - reach_now();
  return left > 0 ? left : 0;
}

/* Goes on. Returns 1, and *descriptor, which is the caller's; 0: waiting; else
 * a status, and *why. */
static int reach_step(struct reach *reach, struct perigee_stream_wait *wait,
                      int *descriptor, const char **why) {
  int status = reach->names ? name_step(reach, why) : 1;
  if (status == 1)
    status = race_step(reach, descriptor, why);
  if (status == 0)
    *wait =
        (struct perigee_stream_wait){.descriptor = reach->watcher,
                                     .milliseconds = (int32_t)reach_due(reach),
                                     .readable = true};
  return status;
}

/* The descriptor that it waits for, the same for its whole life. */
static int reach_descriptor(const struct reach *reach) {
  return reach->watcher;
}

static void reach_close(struct reach *reach) {
  if (!reach)
    return;
  name_end(reach);
  if (reach->found)
    ares_freeaddrinfo(reach->found);
  while (reach->running > 0)
    race_drop(reach, 0);
  if (reach->watcher >= 0)
    close(reach->watcher);
  free(reach);
}

/* Begins. milliseconds: how long the caller will wait, in which each address
 * gets its turn (0: as long as it takes). NULL without memory or a
 * descriptor. */
static struct reach *reach_open(const char *host, uint16_t port,
                                uint32_t milliseconds) {
  struct reach *reach = calloc(1, sizeof *reach);
  if (!reach)
    return NULL;
  reach->given = milliseconds;
  reach->error = EADDRNOTAVAIL;
  reach->watcher = epoll_create1(EPOLL_CLOEXEC);
  if (reach->watcher >= 0 && name_begin(reach, host, port))
    return reach;
  reach_close(reach);
  return NULL;
}

/* ---- TLS ----------------------------------------------------------------- */

/* A socket under TLS whose end is an error, not a signal.
 *
 * OpenSSL's own writes to sockets raise SIGPIPE where the server has gone,
 * which ends a program that does not expect it. */

static int descriptor_of(BIO *wire) {
  return *(const int *)BIO_get_data(wire);
}

static int wire_write(BIO *wire, const char *from, int length) {
  ssize_t n = send(descriptor_of(wire), from, (size_t)length, MSG_NOSIGNAL);
  BIO_clear_retry_flags(wire);
  if (n < 0 && BIO_sock_should_retry((int)n))
    BIO_set_retry_write(wire);
  return (int)n;
}

static int wire_read(BIO *wire, char *into, int capacity) {
  ssize_t n = recv(descriptor_of(wire), into, (size_t)capacity, 0);
  BIO_clear_retry_flags(wire);
  if (n < 0 && BIO_sock_should_retry((int)n))
    BIO_set_retry_read(wire);
  return (int)n;
}

/* Nothing is kept back here. */
static long wire_control(BIO *wire, int command, long number, void *pointer) {
  (void)wire;
  (void)number;
  (void)pointer;
  return command == BIO_CTRL_FLUSH;
}

/* How it is read and written; freed after what was opened by it. NULL: no
 * memory. */
static BIO_METHOD *wire_method(void) {
  BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "wire");
  if (method && BIO_meth_set_write(method, wire_write) &&
      BIO_meth_set_read(method, wire_read) &&
      BIO_meth_set_ctrl(method, wire_control))
    return method;
  BIO_meth_free(method);
  return NULL;
}

/* Reads and writes *descriptor, which stays the caller's, and where it is. */
static BIO *wire_open(const BIO_METHOD *method, int *descriptor) {
  BIO *wire = BIO_new(method);
  if (!wire)
    return NULL;
  BIO_set_data(wire, descriptor);
  BIO_set_init(wire, 1);
  return wire;
}

/* ---- Streams ------------------------------------------------------------- */

enum state { REACHING, SEALING, OPEN, ENDED };

struct perigee_stream {
  enum state state;
  int descriptor, status;
  char *path, *host, *authorities, *certificate, *key;
  bool tls;
  struct reach *reach; /* NULL: it has reached the host, or dials a path */
  BIO_METHOD *wire;
  SSL_CTX *context;
  SSL *ssl;
  char why[256];
};

int perigee_control_abi(void) {
  return PERIGEE_CONTROL_ABI;
}

static int stream_fail(struct perigee_stream *stream, int status,
                       const char *what, const char *why) {
  snprintf(stream->why, sizeof stream->why, "%s: %s", what, why);
  stream->state = ENDED;
  return stream->status = status;
}

static void wait_for(struct perigee_stream_wait *wait, int descriptor,
                     bool readable, bool writable) {
  *wait = (struct perigee_stream_wait){.descriptor = descriptor,
                                       .milliseconds = -1,
                                       .readable = readable,
                                       .writable = writable};
}

/* ---- Connecting ---------------------------------------------------------- */

/* Returns 1, or -errno: a Unix socket connects at once or not at all. */
static int dial_path(struct perigee_stream *stream) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t length = strlen(stream->path);
  if (length >= sizeof address.sun_path)
    return -ENAMETOOLONG;
  memcpy(address.sun_path, stream->path, length + 1);
  stream->descriptor =
      socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (stream->descriptor < 0)
    return -errno;
  int status =
      connect(stream->descriptor, (struct sockaddr *)&address, sizeof address);
  return status == 0 ? 1 : -errno;
}

static int path_step(struct perigee_stream *stream) {
  int result = dial_path(stream);
  if (result > 0)
    return result;
  bool nobody = result == -ECONNREFUSED || result == -ENOENT;
  return stream_fail(stream, nobody ? PERIGEE_NOT_FOUND : PERIGEE_PEER_LOST,
                     stream->path, strerror(-result));
}

static int host_step(struct perigee_stream *stream,
                     struct perigee_stream_wait *wait) {
  const char *why;
  int status = reach_step(stream->reach, wait, &stream->descriptor, &why);
  if (status < 0)
    return stream_fail(stream, status, stream->host, why);
  if (status == 1) {
    reach_close(stream->reach);
    stream->reach = NULL;
  }
  return status;
}

static int stream_connect_step(struct perigee_stream *stream,
                               struct perigee_stream_wait *wait) {
  int result = stream->path ? path_step(stream) : host_step(stream, wait);
  if (result == 1)
    stream->state = stream->tls ? SEALING : OPEN;
  return result;
}

/* ---- TLS ----------------------------------------------------------------- */

static int tls_failed(struct perigee_stream *stream) {
  char text[160];
  unsigned long code = ERR_get_error();
  long verified = stream->ssl ? SSL_get_verify_result(stream->ssl) : X509_V_OK;
  if (verified != X509_V_OK)
    snprintf(text, sizeof text, "%s", X509_verify_cert_error_string(verified));
  else if (code)
    ERR_error_string_n(code, text, sizeof text);
  else
    snprintf(text, sizeof text, "the connection ended");
  ERR_clear_error();
  return stream_fail(stream,
                     verified != X509_V_OK ? PERIGEE_DENIED : PERIGEE_PEER_LOST,
                     "TLS", text);
}

/* Without it OpenSSL asks the terminal for a key's password, and blocks. */
static int no_password(char *into, int capacity, int writing, void *unused) {
  (void)into;
  (void)capacity;
  (void)writing;
  (void)unused;
  return -1;
}

static bool tls_trust(const struct perigee_stream *stream) {
  SSL_CTX *context = stream->context;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
  SSL_CTX_set_default_passwd_cb(context, no_password);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (stream->authorities
          ? !SSL_CTX_load_verify_file(context, stream->authorities)
          : !SSL_CTX_set_default_verify_paths(context))
    return false;
  if (!stream->certificate)
    return true;
  const char *key = stream->key ? stream->key : stream->certificate;
  return SSL_CTX_use_certificate_chain_file(context, stream->certificate) ==
             1 &&
         SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1;
}

static bool tls_begin(struct perigee_stream *stream) {
  const char *host = stream->host;
  stream->context = SSL_CTX_new(TLS_client_method());
  if (!stream->context || !tls_trust(stream))
    return false;
  stream->ssl = SSL_new(stream->context);
  stream->wire = wire_method();
  BIO *wire =
      stream->wire ? wire_open(stream->wire, &stream->descriptor) : NULL;
  if (!stream->ssl || !wire) {
    BIO_free(wire);
    return false;
  }
  SSL_set_bio(stream->ssl, wire, wire);
  X509_VERIFY_PARAM *wanted = SSL_get0_param(stream->ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, host))
    return true;
  ERR_clear_error();
  return SSL_set1_host(stream->ssl, host) &&
         SSL_set_tlsext_host_name(stream->ssl, host);
}

/* Returns 0 and sets what to wait for, or ends the stream. */
static int tls_wait(struct perigee_stream *stream, int result,
                    struct perigee_stream_wait *wait) {
  int error = SSL_get_error(stream->ssl, result);
  bool reading = error == SSL_ERROR_WANT_READ;
  if (!reading && error != SSL_ERROR_WANT_WRITE)
    return tls_failed(stream);
  wait_for(wait, stream->descriptor, reading, !reading);
  return 0;
}

static int tls_step(struct perigee_stream *stream,
                    struct perigee_stream_wait *wait) {
  ERR_clear_error();
  if (!stream->ssl && !tls_begin(stream))
    return tls_failed(stream);
  int result = SSL_connect(stream->ssl);
  if (result != 1)
    return tls_wait(stream, result, wait);
  stream->state = OPEN;
  return 1;
}

/* ---- Streams ------------------------------------------------------------- */

static char *copy(const char *text, bool *fine) {
  char *copied = text ? strdup(text) : NULL;
  *fine = *fine && (copied || !text);
  return copied;
}

struct perigee_stream *perigee_stream_open(const struct perigee_stream_to *to) {
  struct perigee_stream *stream = calloc(1, sizeof *stream);
  bool fine = true;
  if (!stream)
    return NULL;
  stream->descriptor = -1;
  stream->tls = to->tls;
  stream->path = copy(to->path, &fine);
  stream->host = copy(to->host ? to->host : "localhost", &fine);
  stream->authorities = copy(to->authorities, &fine);
  stream->certificate = copy(to->certificate, &fine);
  stream->key = copy(to->key, &fine);
  if (fine && !stream->path)
    stream->reach = reach_open(stream->host, to->port, to->milliseconds);
  if (fine && (stream->path || stream->reach))
    return stream;
  perigee_stream_close(stream);
  return NULL;
}

int perigee_stream_step(struct perigee_stream *stream,
                        struct perigee_stream_wait *wait) {
  static int (*const steps[])(struct perigee_stream *,
                              struct perigee_stream_wait *) = {
      [REACHING] = stream_connect_step, [SEALING] = tls_step};
  while (stream->state < OPEN) {
    int result = steps[stream->state](stream, wait);
    if (result <= 0)
      return result;
  }
  return stream->state == OPEN ? 1 : stream->status;
}

const char *perigee_stream_why(const struct perigee_stream *stream) {
  return stream->why;
}

int perigee_stream_descriptor(const struct perigee_stream *stream) {
  return stream->reach ? reach_descriptor(stream->reach) : stream->descriptor;
}

void perigee_stream_close(struct perigee_stream *stream) {
  if (!stream)
    return;
  if (stream->ssl && stream->state == OPEN)
    SSL_shutdown(stream->ssl);
  SSL_free(stream->ssl);
  BIO_meth_free(stream->wire);
  SSL_CTX_free(stream->context);
  ERR_clear_error();
  reach_close(stream->reach);
  if (stream->descriptor >= 0)
    close(stream->descriptor);
  free(stream->path);
  free(stream->host);
  free(stream->authorities);
  free(stream->certificate);
  free(stream->key);
  free(stream);
}

/* ---- Bytes --------------------------------------------------------------- */

static int64_t stream_plain(struct perigee_stream *stream, ssize_t n,
                            bool reading, struct perigee_stream_wait *wait) {
  if (n > 0)
    return n;
  if (n == 0)
    return stream_fail(stream, PERIGEE_PEER_LOST, "the server", "it hung up");
  if (errno != EAGAIN && errno != EINTR)
    return stream_fail(stream, PERIGEE_PEER_LOST, "the server",
                       strerror(errno));
  wait_for(wait, stream->descriptor, reading, !reading);
  return 0;
}

int64_t stream_read(struct perigee_stream *stream, void *into, size_t capacity,
                    struct perigee_stream_wait *wait) {
  if (stream->state != OPEN)
    return stream->status;
  if (!stream->ssl)
    return stream_plain(stream, recv(stream->descriptor, into, capacity, 0),
                        true, wait);
  ERR_clear_error();
  int n = SSL_read(stream->ssl, into, (int)capacity);
  return n > 0 ? n : tls_wait(stream, n, wait);
}

int stream_read_later(const struct perigee_stream *stream,
                      struct perigee_stream_wait *wait) {
  wait_for(wait, stream->descriptor, true, false);
  return 0;
}

int64_t stream_write(struct perigee_stream *stream, const void *from,
                     size_t length, struct perigee_stream_wait *wait) {
  enum { MOST = 1 << 20 };
  if (length > MOST)
    length = MOST;
  if (stream->state != OPEN)
    return stream->status;
  if (!stream->ssl)
    return stream_plain(stream,
                        send(stream->descriptor, from, length, MSG_NOSIGNAL),
                        false, wait);
  ERR_clear_error();
  int n = SSL_write(stream->ssl, from, (int)length);
  return n > 0 ? n : tls_wait(stream, n, wait);
}
