/* SPDX-License-Identifier: Apache-2.0
 *
 * accounts.c - the share of the engine's resources that a session has
 * (shares.h).
 */
#include "accounts.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/versions.h"
#include "lock.h"

/* ---- Identities ---------------------------------------------------------- */

enum identity { PROCESS = 1, AGENT, SESSION, HOST };

/* The part of its address that the peer cannot choose. */
static void accounts_host(const struct perigee_session *s, uint64_t key[2]) {
  union socket_address at = {0};
  socklen_t length = sizeof at;
  getpeername(s->socket.fd, &at.any, &length);
  address_plain(&at);
  key[0] = HOST + (uint64_t)at.any.sa_family;
  if (at.any.sa_family == AF_INET)
    key[1] = at.in.sin_addr.s_addr;
  else
    memcpy(&key[1], &at.in6.sin6_addr, sizeof key[1]);
}

/* The kernel's identity of a process stays valid after its session moved from a
 * Unix socket to loopback (migrate.c). */
void accounts_who(const struct perigee_session *s, uint64_t key[2]) {
  if (s->alone) {
    key[0] = SESSION;
    key[1] = s->id;
  } else if (!s->tcp || s->process.pid) {
    key[0] = PROCESS;
    key[1] = (uint64_t)s->process.pid;
  } else if (s->peer.here && !s->dialed && s->peer.terms.alias[0]) {
    key[0] = AGENT;
    key[1] = s->peer.terms.alias[0];
  } else if (s->peer.here) {
    key[0] = SESSION;
    key[1] = s->id;
  } else {
    accounts_host(s, key);
  }
}

/* ---- Sessions ----------------------------------------------------------- */

/* Counts the session's socket and its peer's pidfd. */
static uint64_t accounts_descriptors(const struct perigee_session *s) {
  return (s->socket.fd >= 0) + (uint64_t)(s->process.pidfd >= 0);
}

/* Sessions that this side dialed are not limited. */
static bool accounts_may_join(const struct perigee_session *s,
                              const struct share *own) {
  return s->dialed || s->alone ||
         (share_may(own, SHARE_SESSIONS, 1) &&
          share_may(own, SHARE_DESCRIPTORS, accounts_descriptors(s)));
}

int accounts_join(struct perigee_session *s, char *reason, uint64_t size) {
  struct shares *all = &s->engine->shares;
  uint64_t key[2];
  accounts_leave(s);
  accounts_who(s, key);
  s->account.share = share_join(all, key);
  if (!s->account.share)
    return PERIGEE_NO_MEMORY;
  s->account.descriptors = accounts_descriptors(s);
  bool may = accounts_may_join(s, s->account.share);
  share_add(s->account.share, SHARE_SESSIONS, 1);
  share_add(s->account.share, SHARE_DESCRIPTORS, s->account.descriptors);
  if (may)
    return PERIGEE_OK;
  all->refused++;
  snprintf(reason, size,
           "this peer has %llu sessions already: what is left is kept for "
           "others (options sessions and descriptors)",
           (unsigned long long)s->account.share->parent->used[SHARE_SESSIONS] -
               1);
  accounts_leave(s);
  return PERIGEE_NO_MEMORY;
}

void accounts_leave(struct perigee_session *s) {
  struct share *share = s->account.share;
  if (!share)
    return;
  s->account.share = NULL;
  share_give(share, SHARE_SESSIONS, 1);
  share_give(share, SHARE_DESCRIPTORS, s->account.descriptors);
  share_leave(share);
}

/* ---- For programs ------------------------------------------------------- */

static void shares_tell(const struct perigee_engine *engine,
                        const struct perigee_session *session,
                        struct perigee_shares *out) {
  const struct shares *all = &engine->shares;
  const struct share *s = session ? session->account.share : NULL;
  const struct share *whose = session ? s : &all->engine;
  struct perigee_share kept = {0}, lent = {0}, segments = {0}, staged = {0},
                       filled = {0};
  struct perigee_share *to[SHARES] = {[SHARE_OPERATIONS] = &out->operations,
                                      [SHARE_KEPT] = &kept,
                                      [SHARE_POOLED] = &out->pooled,
                                      [SHARE_EXPOSED] = &out->exposed,
                                      [SHARE_LENT] = &lent,
                                      [SHARE_MAPPED] = &out->mapped,
                                      [SHARE_SEGMENTS] = &segments,
                                      [SHARE_FILLED] = &filled,
                                      [SHARE_STAGED] = &staged,
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

int perigee_shares_read(struct perigee_engine *engine,
                        const struct perigee_session *session,
                        struct perigee_shares *shares, uint64_t size) {
  struct perigee_shares known;
  LOOK(engine);
  if (!version_size_is_right("perigee_shares", size))
    return PERIGEE_INVALID;
  shares_tell(engine, session, &known);
  version_give(shares, size, &known, sizeof known);
  return PERIGEE_OK;
}
