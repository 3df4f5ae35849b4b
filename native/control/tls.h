/* SPDX-License-Identifier: Apache-2.0
 *
 * tls.h - a socket under TLS whose end is an error, not a signal.
 *
 * OpenSSL's own writes to sockets raise SIGPIPE where the server has gone,
 * which ends a program that does not expect it.
 */
#ifndef PERIGEE_CONTROL_TLS_H
#define PERIGEE_CONTROL_TLS_H

#include <openssl/bio.h>

/* How it is read and written; freed after what was opened by it. NULL: no
 * memory. */
BIO_METHOD *wire_method(void);
/* Reads and writes *descriptor, which stays the caller's, and where it is. */
BIO *wire_open(const BIO_METHOD *method, int *descriptor);

#endif
