/* SPDX-License-Identifier: Apache-2.0
 *
 * hosts.h - which hosts a request may name. A page of the web can have its own
 * name lead to this server's address (DNS rebinding), and is then of the same
 * origin as the server for a browser; but it cannot have another name. So a
 * request has to name an address, localhost, or a name that the server was
 * told: by its option, by the host that it listens at, or by its certificate.
 */
#ifndef PERIGEE_CONTROL_HOSTS_H
#define PERIGEE_CONTROL_HOSTS_H

#include "control/control.h"

#include <stdbool.h>

struct hosts;

/* Those of a server that listens at that descriptor; NULL without memory. */
struct hosts *hosts_new(const struct perigee_web_to *to, int listening);
void hosts_free(struct hosts *hosts);
/* Is a HOST or HOST:PORT one of them? Ports are not looked at: they are
 * forwarded, and no page has one of its own at another's address. */
bool hosts_have(const struct hosts *hosts, const char *host);
/* Is an origin, as SCHEME://HOST[:PORT], that of a request's host? */
bool hosts_are_same(const char *origin, const char *host);

#endif
