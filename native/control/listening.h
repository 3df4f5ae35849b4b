/* SPDX-License-Identifier: Apache-2.0
 *
 * listening.h - a socket that listens.
 */
#ifndef PERIGEE_CONTROL_LISTENING_H
#define PERIGEE_CONTROL_LISTENING_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

/* Listens at host and *port, and sets *port to the one that it got. A name is
 * looked up, which may block. Returns the descriptor; or a status, and why. */
int listening_open(const char *host, uint16_t *port, char *why,
                   uint64_t capacity);
/* Writes the address of a socket that listens, in numbers. */
void listening_address(int descriptor, char text[64]);
bool address_is_loopback(struct in_addr four);
bool address_is_loopback6(const struct in6_addr *six);
/* Does it listen at loopback alone? */
bool listening_is_local(int descriptor);

#endif
