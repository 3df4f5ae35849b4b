/* SPDX-License-Identifier: Apache-2.0
 *
 * accounts.c - whose share of what an engine has a session's is (shares.h).
 */
#include "accounts.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "lock.h"

/* ---- Who is who --------------------------------------------------------- */

enum identity { PROCESS = 1, AGENT, SESSION, HOST };

/* Of its address what the peer cannot choose. */
static void host_of(const struct perigee_session *s, uint64_t key[2]) {
  union socket_address at = {0};
  socklen_t length = sizeof at;
  getpeername(s->fd, &at.any, &length);
  address_plain(&at);
  key[0] = HOST + (uint64_t)at.any.sa_family;
  if (at.any.sa_family == AF_INET)
    key[1] = at.in.sin_addr.s_addr;
  else
    memcpy(&key[1], &at.in6.sin6_addr, sizeof key[1]);
}

/* A process is known by the kernel's word also after its session moved from a
 * Unix socket to loopback (migrate.h). */
void accounts_who(const struct perigee_session *s, uint64_t key[2]) {
  if (s->alone) {
    key[0] = SESSION;
    key[1] = s->id;
  } else if (!s->tcp || s->peer_pid) {
    key[0] = PROCESS;
    key[1] = (uint64_t)s->peer_pid;
  } else if (s->here && !s->dialed && s->terms.probe[0]) {
    key[0] = AGENT;
    key[1] = s->terms.probe[0];
  } else if (s->here) {
    key[0] = SESSION;
    key[1] = s->id;
  } else {
    host_of(s, key);
  }
}

/* ---- Sessions ----------------------------------------------------------- */

/* Its socket, and what tells of its process. */
static uint64_t descriptors_of(const struct perigee_session *s) {
  return (s->fd >= 0) + (uint64_t)(s->pidfd >= 0);
}

/* Who was dialed has been asked for. */
static bool may_join(const struct perigee_session *s, const struct share *own) {
  return s->dialed || s->alone ||
         (share_may(own, SHARE_SESSIONS, 1) &&
          share_may(own, SHARE_DESCRIPTORS, descriptors_of(s)));
}

int accounts_join(struct perigee_session *s, char *reason, uint64_t size) {
  struct shares *all = &s->engine->shares;
  uint64_t key[2];
  accounts_leave(s);
  accounts_who(s, key);
  s->share = share_join(all, key);
  if (!s->share)
    return PERIGEE_NO_MEMORY;
  s->descriptors = descriptors_of(s);
  bool may = may_join(s, s->share);
  share_add(s->share, SHARE_SESSIONS, 1);
  share_add(s->share, SHARE_DESCRIPTORS, s->descriptors);
  if (may)
    return PERIGEE_OK;
  all->refused++;
  snprintf(reason, size,
           "this peer has %llu sessions already: what is left is kept for "
           "others (options sessions and descriptors)",
           (unsigned long long)s->share->parent->used[SHARE_SESSIONS] - 1);
  accounts_leave(s);
  return PERIGEE_NO_MEMORY;
}

void accounts_leave(struct perigee_session *s) {
  struct share *share = s->share;
  if (!share)
    return;
  s->share = NULL;
  share_give(share, SHARE_SESSIONS, 1);
  share_give(share, SHARE_DESCRIPTORS, s->descriptors);
  share_leave(share);
}

/* ---- For programs ------------------------------------------------------- */

void perigee_shares(struct perigee_engine *engine,
                    const struct perigee_session *session,
                    struct perigee_shares *out) {
  LOOK(engine);
  const struct shares *all = &engine->shares;
  const struct share *s = session ? session->share : NULL;
  const struct share *whose = session ? s : &all->engine;
  struct perigee_share kept = {0}, lent = {0}, segments = {0};
  struct perigee_share *to[SHARES] = {[SHARE_OPERATIONS] = &out->operations,
                                      [SHARE_KEPT] = &kept,
                                      [SHARE_POOLED] = &out->pooled,
                                      [SHARE_EXPOSED] = &out->exposed,
                                      [SHARE_LENT] = &lent,
                                      [SHARE_MAPPED] = &out->mapped,
                                      [SHARE_SEGMENTS] = &segments,
                                      [SHARE_DESCRIPTORS] = &out->descriptors,
                                      [SHARE_SESSIONS] = &out->sessions};
  *out = (struct perigee_shares){.refused = all->refused};
  for (int i = 0; i < SHARES && whose; i++)
    *to[i] = (struct perigee_share){
        .used = whose->used[i],
        .peer = s ? s->parent->used[i] : whose->used[i],
        .most = s ? share_most(s, i) : all->quota[i].limit};
  out->operations.used += kept.used;
  out->operations.peer += kept.peer;
  out->exposed.used += lent.used;
  out->exposed.peer += lent.peer;
}
