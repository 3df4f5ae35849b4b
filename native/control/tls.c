/* SPDX-License-Identifier: Apache-2.0
 *
 * tls.c - see tls.h.
 */
#include "control/tls.h"

#include <sys/socket.h>
#include <sys/types.h>

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

BIO_METHOD *wire_method(void) {
  BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "wire");
  if (method && BIO_meth_set_write(method, wire_write) &&
      BIO_meth_set_read(method, wire_read) &&
      BIO_meth_set_ctrl(method, wire_control))
    return method;
  BIO_meth_free(method);
  return NULL;
}

BIO *wire_open(const BIO_METHOD *method, int *descriptor) {
  BIO *wire = BIO_new(method);
  if (!wire)
    return NULL;
  BIO_set_data(wire, descriptor);
  BIO_set_init(wire, 1);
  return wire;
}
