/* SPDX-License-Identifier: Apache-2.0 */
#include "tickets.h"

#include <string.h>
#include <unistd.h>

void ticket_clear(struct ticket *t) {
  if (t->id && t->pidfd >= 0)
    close(t->pidfd);
  *t = (struct ticket){.id = 0};
}

void tickets_close(struct tickets *tickets) {
  for (int i = 0; i < TICKETS; i++)
    ticket_clear(&tickets->list[i]);
}

struct ticket *tickets_find(struct tickets *tickets, uint64_t id, bool tcp,
                            int64_t now) {
  for (int i = 0; id != 0 && i < TICKETS; i++) {
    struct ticket *t = &tickets->list[i];
    if (t->id == id && t->tcp == tcp)
      return now < t->due ? t : NULL;
  }
  return NULL;
}

/* ---- Shares -------------------------------------------------------------- */

static int tickets_of(const struct tickets *tickets, const uint64_t holder[2]) {
  int count = 0;
  for (const struct ticket *t = tickets->list; t < tickets->list + TICKETS; t++)
    count += t->id && memcmp(t->holder, holder, sizeof t->holder) == 0;
  return count;
}

/* Returns the oldest ticket of the peer that has most, if that peer has more
 * than this one; otherwise NULL. */
static struct ticket *ticket_of_most(struct tickets *tickets,
                                     const uint64_t holder[2]) {
  int most = tickets_of(tickets, holder);
  struct ticket *found = NULL;
  for (struct ticket *t = tickets->list; t < tickets->list + TICKETS; t++) {
    int count = tickets_of(tickets, t->holder);
    if (count > most || (found && count == most && t->due < found->due)) {
      found = t;
      most = count;
    }
  }
  return found;
}

struct ticket *tickets_place(struct tickets *tickets, const uint64_t holder[2],
                             int64_t now) {
  for (struct ticket *t = tickets->list; t < tickets->list + TICKETS; t++)
    if (!t->id || now >= t->due)
      return t;
  return ticket_of_most(tickets, holder);
}
