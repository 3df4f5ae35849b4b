/* SPDX-License-Identifier: Apache-2.0
 *
 * tickets.h - the tickets of an engine, each of which lets one session in at
 * another socket, once (migrate.h). If all entries are in use, peers get equal
 * shares.
 */
#ifndef TICKETS_H
#define TICKETS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/address.h"

enum { TICKETS = 64 };

struct ticket {
  uint64_t id;        /* 0: the entry is free */
  uint64_t holder[2]; /* the peer that has the ticket (shares.h) */
  uint32_t session;   /* the session that moves by it */
  int64_t due;
  bool tcp;       /* for loopback; otherwise for the Unix socket */
  int pid, pidfd; /* of the peer */
  char address[ADDRESS_TEXT];
};

struct tickets {
  struct ticket list[TICKETS];
};

/* Frees an entry, and closes its pidfd. */
void ticket_clear(struct ticket *ticket);
void tickets_close(struct tickets *tickets);
/* Returns a ticket that can be used, or NULL. */
struct ticket *tickets_find(struct tickets *, uint64_t id, bool tcp,
                            int64_t now);
/* Returns the entry for a further ticket of that peer: a free one, that of a
 * ticket that was not used in time, or one of the peer that has most. Whoever
 * has it is to be dropped first. NULL if this peer has its share. */
struct ticket *tickets_place(struct tickets *, const uint64_t holder[2],
                             int64_t now);

#endif
