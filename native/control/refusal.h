/* SPDX-License-Identifier: Apache-2.0
 *
 * refusal.h - what is refused of a request as soon as its head is there, before
 * its body, by a problem (RFC 9457). The connection is closed after it, so that
 * nothing of a body is taken for another request.
 */
#ifndef PERIGEE_CONTROL_REFUSAL_H
#define PERIGEE_CONTROL_REFUSAL_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#include "control/control.h"

/* ---- The hosts that a request may name ----------------------------------- */

/* A page of the web can have its own name lead to this server's address (DNS
 * rebinding), and is then of the same origin as the server for a browser; but it
 * cannot have another name. So a request has to name an address, localhost, or a
 * name that the server was told: by its option, by the host that it listens at, or
 * by its certificate. */
struct hosts;

/* Those of a server that listens at that descriptor; NULL without memory. */
struct hosts *hosts_new(const struct perigee_web_to *to, int listening);
void hosts_free(struct hosts *hosts);

/* ---- Refusals ------------------------------------------------------------ */

struct refusal;

extern const struct refusal REFUSED_CROWD; /* there are too many connections */

/* The limits and names that a head is checked for. */
struct head {
  struct MHD_Connection *wire;
  const char *version, *target;
  const struct hosts *hosts; /* that it may name; NULL: any */
  uint64_t most, body;       /* bytes of the head, and of the body, at most */
};

/* Returns why a request is refused; NULL if it is not. */
const struct refusal *refusal_of(const struct head *head);
enum MHD_Result refuse(struct MHD_Connection *wire,
                       const struct refusal *refusal);
/* Is the length of a body, that a head tells, none? */
bool is_ambiguous(struct MHD_Connection *wire);
/* Refuses that without libmicrohttpd: at a connection without TLS (plain), in
 * words. */
void refuse_by_hand(struct MHD_Connection *wire, bool plain);

#endif
