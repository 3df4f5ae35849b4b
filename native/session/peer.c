/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.c - who the peer is. Over a Unix socket the kernel tells the process.
 * Over TCP everybody can connect, and the peer has to prove that it has the
 * secret.
 *
 * The process. The kernel records who connected, or who listens. A pid is only
 * valid while its process lives, so a pidfd of the process is opened as soon as
 * there is a socket, and no frame is exchanged with a process that has ended by
 * then. SO_PEERPIDFD (Linux 6.5) gives exactly the process that the kernel
 * recorded. On older kernels the pid is looked up, and may belong to another
 * process by now, if the peer died while a third process kept the socket open.
 * There the kernel is asked for the sender of each message: a message that was
 * sent after the pidfd was opened, and that names this pid, proves that the
 * pidfd is right. No memory of the process is read until then (shm_probe).
 *
 * The pidfd is watched while the session lasts, also over TCP on one host: a
 * child made by plain fork keeps its parent's socket open, so the socket does
 * not tell that the parent has ended.
 *
 * The proof (handshake.h). The listener proves first that it has the secret, so
 * a listener that only pretends gets nothing to try secrets on. A dialer does
 * get that; this is why a secret that a person may have chosen is stretched
 * (secret.c).
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/lock.h"
#include "sessions.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* ---- The process: finding it --------------------------------------------- */

/* A signal that comes meanwhile has poll fail, which tells nothing of fd. */
static bool peer_tells(int fd, short what) {
  struct pollfd p = {.fd = fd, .events = what};
  int n;
  do
    n = poll(&p, 1, 0);
  while (n < 0 && errno == EINTR);
  return n != 0;
}

/* Is the process with this pid of the recorded user, and the socket still
 * open? */
static bool peer_is_plausible(int socket, const struct ucred *peer) {
  char path[32];
  struct stat entry;
  snprintf(path, sizeof path, "/proc/%d", peer->pid);
  return stat(path, &entry) == 0 && entry.st_uid == peer->uid &&
         !peer_tells(socket, POLLRDHUP);
}

static int peer_by_number(struct perigee_session *s, const struct ucred *peer) {
  int pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
  int on = 1, there = INT_MAX; /* unknown: no later byte counts as proof */
  if (pidfd < 0 || peer_is_plausible(s->socket.fd, peer)) {
    setsockopt(s->socket.fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    ioctl(s->socket.fd, FIONREAD, &there);
    s->process.by_number = true;
    s->process.before = s->socket.wire.received + (uint64_t)there;
    return pidfd;
  }
  close(pidfd);
  errno = ESRCH;
  return -1;
}

/* Returns a pidfd, or -1 with errno. */
static int peer_open_pidfd(struct perigee_session *s,
                           const struct ucred *peer) {
  int pidfd;
  socklen_t length = sizeof pidfd;
  if (getsockopt(s->socket.fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    return pidfd;
  return errno == ENOPROTOOPT ? peer_by_number(s, peer) : -1;
}

/* Compares with the last byte of the frame, which was just decoded. */
bool peer_vouches(const struct perigee_session *s) {
  return !s->process.by_number ||
         (s->socket.wire.sender == s->process.pid &&
          s->socket.wire.received - s->socket.wire.length > s->process.before);
}

static bool peer_watch(struct perigee_session *s) {
  return s->process.pidfd < 0 || watch_add(s->engine, s->process.pidfd,
                                           &s->process.watcher, EPOLLIN) == 0;
}

int peer_take(struct perigee_session *s, char reason[REASON]) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  if (getsockopt(s->socket.fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != geteuid()) {
    snprintf(reason, REASON, "the peer runs as another user");
    return PERIGEE_DENIED;
  }
  peer_forget(s);
  s->process.by_number = false;
  s->process.pid = peer.pid;
  s->process.pidfd = peer_open_pidfd(s, &peer);
  bool ended = s->process.pidfd < 0 ? errno == ESRCH
                                    : peer_tells(s->process.pidfd, POLLIN);
  if (!ended && peer_watch(s))
    return PERIGEE_OK;
  snprintf(reason, REASON, "%s",
           ended ? "the process at the other end of the socket has ended"
                 : "epoll failed");
  return ended ? PERIGEE_PEER_LOST : PERIGEE_SYSTEM;
}

/* ---- The process: its pidfd ---------------------------------------------- */

void peer_unwatch(struct perigee_session *s) {
  if (s->process.pidfd >= 0)
    watch_remove(s->engine, s->process.pidfd);
}

void peer_forget(struct perigee_session *s) {
  peer_unwatch(s);
  if (s->process.pidfd >= 0)
    close(s->process.pidfd);
  s->process.pidfd = -1;
}

int peer_lend(struct perigee_session *s) {
  int pidfd = s->process.pidfd;
  peer_unwatch(s);
  s->process.pidfd = -1;
  return pidfd;
}

void peer_named(struct perigee_session *s, int socket) {
  struct ucred peer;
  int pidfd;
  socklen_t size = sizeof peer, length = sizeof pidfd;
  if (s->process.pidfd >= 0)
    return;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0)
    s->process.pidfd = pidfd;
  else if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.pid > 0)
    s->process.pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
  peer_watch(s);
}

void peer_keep(struct perigee_session *s, int pid, int pidfd) {
  peer_forget(s);
  s->process.pid = pid;
  s->process.pidfd = pidfd;
  peer_watch(s); /* if it fails, the socket will tell the end in most cases */
}

/* poll passes over descriptors that are -1. If it cannot tell, a poll will. */
int perigee_session_alive(const struct perigee_session *s) {
  LOOK(s->engine);
  struct pollfd ends[] = {{.fd = s->socket.fd, .events = POLLRDHUP},
                          {.fd = s->process.pidfd, .events = POLLIN}};
  return s->state == PERIGEE_SESSION_OPEN && poll(ends, 2, 0) <= 0;
}

/* ---- The proof ----------------------------------------------------------- */

static struct handshake *proof_handshake(const struct perigee_session *s) {
  return &s->security.keys->handshake;
}

static const struct secret *proof_secret(const struct perigee_session *s) {
  return session_moved(s) ? &s->security.keys->ticket : s->engine->secret;
}

/* ---- The proof: the transcript ------------------------------------------- */

static bool proof_is_word(int type) {
  return type == FRAME_HELLO || type == FRAME_PROOF || type == FRAME_TERMS ||
         type == FRAME_OFFER || type == FRAME_READY;
}

void proof_word(struct perigee_session *s, bool ours, const struct frame *f) {
  uint8_t bytes[FRAME_HEAD + FRAME_BODY];
  if (!s->tcp || !proof_is_word(f->type))
    return;
  uint32_t length = wire_encode(f, bytes);
  if (f->type == FRAME_HELLO)
    handshake_hello(proof_handshake(s), ours == s->dialed, bytes, length);
  else
    handshake_word(proof_handshake(s), ours == s->dialed, bytes, length);
}

/* Seals the frames of one side from here on, by a cipher that every machine
 * has, as it is not known yet whether the peer has AES. */
static int proof_seal_words(struct perigee_session *s, bool by_dialer,
                            struct seal **seal) {
  uint8_t key[HANDSHAKE_KEY];
  *seal = vault_take(&s->engine->vault, sizeof **seal);
  if (!*seal)
    return PERIGEE_NO_MEMORY;
  handshake_seal_words(proof_handshake(s), by_dialer, key);
  seal_begin(*seal, key, false);
  explicit_bzero(key, sizeof key);
  return PERIGEE_OK;
}

static void proof_unseal(struct perigee_session *s) {
  struct seal **seals[] = {&s->socket.wire.seal_in, &s->socket.wire.seal_out};
  for (int i = 0; i < 2; i++) {
    vault_give(&s->engine->vault, *seals[i], sizeof(struct seal));
    *seals[i] = NULL;
  }
}

/* ---- The proof: this side's ---------------------------------------------- */

/* Also called after a RETRY; the keys are the same then. */
bool proof_begin(struct perigee_session *s) {
  const struct perigee_options *o = &s->engine->options;
  if (s->handshake.step != WIREUP_RETRIED &&
      handshake_begin(proof_handshake(s), s->dialed, o->random, o->context,
                      s->security.challenge, s->security.public_key) < 0) {
    s->up->fail(s, PERIGEE_SYSTEM, "there is no randomness to be had");
    return false;
  }
  return true;
}

void proof_say(struct perigee_session *s) {
  struct frame f = {.type = FRAME_PROOF};
  handshake_prove(proof_handshake(s), f.proof);
  proof_word(s, true, &f);
  s->up->send(s, &f, NULL, 0);
  if (proof_seal_words(s, s->dialed, &s->socket.wire.seal_out) < 0)
    s->up->fail(s, PERIGEE_NO_MEMORY, VAULT_FULL);
}

/* Can others read what this session sends? Loopback never leaves the host. */
static bool proof_leaves_host(const struct perigee_session *s) {
  union socket_address at = {0};
  socklen_t length = sizeof at;
  return getpeername(s->socket.fd, &at.any, &length) == 0 &&
         at.any.sa_family != AF_UNIX && !address_loopback(&at);
}

void proof_flags(struct perigee_session *s, struct terms *t) {
  int32_t wish = s->engine->options.encrypt;
  s->security.beyond = proof_leaves_host(s);
  if (wish == PERIGEE_ENCRYPT_AUTH)
    t->flags |= TERMS_AUTH | TERMS_STRICT;
  if (wish == PERIGEE_ENCRYPT_ALL)
    t->flags |= TERMS_ENCRYPT | TERMS_STRICT;
  if (wish == PERIGEE_ENCRYPT_DEFAULT && s->security.beyond)
    t->flags |= TERMS_ENCRYPT;
  if (seal_has_aes())
    t->flags |= TERMS_AES;
  s->security.own_flags = t->flags;
}

/* ---- The proof: the peer's ----------------------------------------------- */

int proof_agree(struct perigee_session *s, char reason[REASON]) {
  if (s->peer.hello.nonce == s->handshake.nonce) {
    snprintf(reason, REASON, "what this side said came back to it");
    return PERIGEE_DENIED;
  }
  int status = handshake_agree(proof_handshake(s), proof_secret(s),
                               s->peer.hello.public_key);
  if (status < 0)
    snprintf(reason, REASON, "the peer's public key is none");
  return status;
}

static const char how[] = "give it the same one, by option secret or the "
                          "environment's PERIGEE_SECRET";

/* The text goes to a peer that is not authenticated, so it tells only that the
 * peer does not have the same secret. */
static void proof_wrong(const struct perigee_session *s,
                        const uint8_t proof[HANDSHAKE_MAC],
                        char reason[REASON]) {
  bool ours = s->engine->secret->set;
  bool theirs = !handshake_bare(proof_handshake(s), proof);
  if (!session_moved(s) && ours != theirs)
    snprintf(reason, REASON, "who %s has a secret and who %s has none: %s",
             s->dialed == ours ? "dials" : "listens",
             s->dialed == ours ? "listens" : "dials", how);
  else
    snprintf(reason, REASON, "%s",
             "the secret, or the scope, is another, or what was said was "
             "changed on the way");
}

int proof_heard(struct perigee_session *s, const uint8_t proof[HANDSHAKE_MAC],
                char reason[REASON]) {
  if (!handshake_proven(proof_handshake(s), proof)) {
    proof_wrong(s, proof, reason);
    return PERIGEE_DENIED;
  }
  int status = proof_seal_words(s, !s->dialed, &s->socket.wire.seal_in);
  if (status < 0)
    snprintf(reason, REASON, "%s", VAULT_FULL);
  return status;
}

/* The stronger wish of the two sides wins. A side that did not ask for
 * encryption by name does without if the lane cannot do it. */
int proof_terms(struct perigee_session *s, char reason[REASON]) {
  uint32_t flags = s->security.own_flags | s->peer.terms.flags;
  bool can = !s->transport || s->transport->sockets;
  s->security.sealed = can && (flags & TERMS_ENCRYPT);
  s->security.intact = can && (flags & (TERMS_ENCRYPT | TERMS_AUTH));
  s->security.aes = s->security.own_flags & s->peer.terms.flags & TERMS_AES;
  if (can || !(flags & TERMS_STRICT))
    return PERIGEE_OK;
  snprintf(reason, REASON,
           "encryption, or MACs, are wanted, and %s cannot do "
           "that",
           s->transport->name);
  return PERIGEE_UNSUPPORTED;
}

/* ---- The proof: after the handshake -------------------------------------- */

/* A lane that does not take over the socket has keys of its own or none, and
 * the session's frames stay sealed. */
void proof_end(struct perigee_session *s) {
  handshake_end(proof_handshake(s), s->security.keys->session);
  if (s->transport->sockets)
    proof_unseal(s);
  else
    explicit_bzero(s->security.keys->session, HANDSHAKE_KEY);
}

void proof_forget(struct perigee_session *s) {
  proof_unseal(s);
  handshake_forget(proof_handshake(s));
  explicit_bzero(s->security.keys->session, HANDSHAKE_KEY);
}

static struct perigee_session **proof_by_nonce(struct perigee_engine *engine,
                                               uint64_t nonce) {
  return &engine->by_nonce[nonce & (engine->id_slots - 1)];
}

void proof_index(struct perigee_session *s) {
  struct perigee_session **chain =
      proof_by_nonce(s->engine, s->handshake.nonce);
  if (!s->tcp || s->dialed ||
      s->streams.state == STREAMS_SOCKET) /* otherwise the key is wiped */
    return;
  s->security.next_nonce = *chain;
  *chain = s;
}

void proof_unindex(struct perigee_session *s) {
  struct perigee_session **at = proof_by_nonce(s->engine, s->handshake.nonce);
  while (*at && *at != s)
    at = &(*at)->security.next_nonce;
  if (*at)
    *at = s->security.next_nonce;
}

struct perigee_session *proof_find(struct perigee_engine *engine,
                                   const struct attach *a) {
  struct perigee_session *s = *proof_by_nonce(engine, a->session);
  while (s && s->handshake.nonce != a->session)
    s = s->security.next_nonce;
  return s && handshake_attached(s->security.keys->session, a->index, a->mac)
             ? s
             : NULL;
}

/* ---- The proof: for people ----------------------------------------------- */

static const char *proof_protection(const struct perigee_session *s) {
  static const char *const texts[2][2] = {
      {"not encrypted: each chunk has a MAC by ChaCha20-Poly1305",
       "not encrypted: each chunk has a MAC by AES-256-GCM"},
      {"sealed with ChaCha20-Poly1305", "sealed with AES-256-GCM"}};
  return s->security.intact ? texts[s->security.sealed][s->security.aes]
                            : "not encrypted: who stands between can change it";
}

/* Tells which side asked for it. */
static const char *proof_why_protected(const struct perigee_session *s) {
  uint32_t what = s->security.sealed ? TERMS_ENCRYPT : TERMS_AUTH;
  bool ours = s->security.own_flags & what;
  bool asked =
      (ours ? s->security.own_flags : s->peer.terms.flags) & TERMS_STRICT;
  if (!s->security.intact)
    return "";
  if (!asked)
    return " (by default, beyond loopback)";
  return ours ? " (asked for here)" : " (asked for by the peer)";
}

/* Tells how the peer over TCP was identified. Tickets were given at a path. */
static const char *proof_who_it_is(const struct perigee_session *s) {
  if (session_moved(s))
    return "the same user, as the kernel told at the path that was dialed";
  return s->engine->secret->set ? "both sides proved the secret"
                                : "not authenticated (there is no secret)";
}

void proof_text(const struct perigee_session *s, char text[REASON]) {
  if (s->alone)
    snprintf(text, REASON,
             "the peer is who had the endpoint's information, "
             "not encrypted");
  else if (!s->tcp)
    snprintf(text, REASON,
             "the same user, as the kernel tells; encryption is off for shared "
             "memory and all else on one host");
  else
    snprintf(text, REASON, "%s, %s%s%s", proof_who_it_is(s),
             proof_protection(s), proof_why_protected(s),
             s->engine->vault.refused
                 ? ", keys in memory that could not be locked"
                 : "");
}
