/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c - connects sockets to other servers without blocking: names and
 * their addresses by reach.h, TLS by OpenSSL.
 *
 *   state      event                                 becomes
 *   reaching   connected                             sealing, or open
 *   sealing    the handshake is over                 open
 *   any        an error                              ended
 */
#include "control/stream.h"
#include "control/reach.h"
#include "control/tls.h"
#include "perigee.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
