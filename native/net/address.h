/* SPDX-License-Identifier: Apache-2.0
 *
 * address.h - addresses of peers, as texts and as the system takes them, and
 * sockets for them:
 *
 *   unix:PATH         a socket in the file system
 *   unix:@NAME        one without a file (abstract namespace); used between
 *                     processes of one host, by engines and not by users
 *   tcp://HOST:PORT   HOST: a name, 10.0.0.1, [::1], [fe80::1%eth0]; to listen
 *                     at all IPv4 or all IPv6 addresses: 0.0.0.0 or [::]
 */
#ifndef ADDRESS_H
#define ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { ADDRESS_HOST = 255, ADDRESS_TEXT = 280, ADDRESS_REASON = 400 };

union socket_address {
  struct sockaddr any;
  struct sockaddr_un un;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
};

struct address {
  bool tcp;
  uint16_t port;
  char host[ADDRESS_HOST + 1]; /* of TCP, without brackets */
  socklen_t length;            /* 0: the host's name has to be resolved */
  union socket_address at;
};

/* PERIGEE_OK, or a status and in reason a sentence that tells what to write. */
int address_parse(const char *text, struct address *out,
                  char reason[ADDRESS_REASON]);
/* Writes an IPv4 or IPv6 address as "tcp://...". */
void address_text(const union socket_address *at, char text[ADDRESS_TEXT]);
/* Is it an address that only processes of this host can reach? */
bool address_loopback(const union socket_address *at);
/* Is it an address of this host? The kernel is asked. */
bool address_here(const union socket_address *at);
/* Turns an IPv4 address that is mapped into IPv6 into plain IPv4. */
void address_plain(union socket_address *at);
socklen_t address_length(const union socket_address *at);

/* A socket of that family that never blocks: a descriptor, or -1 and errno. */
int socket_new(int family);
void socket_no_delay(int fd);

#endif
