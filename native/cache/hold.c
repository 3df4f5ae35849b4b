/* SPDX-License-Identifier: Apache-2.0
 *
 * hold.c - memory that outlives the process of a cache. A holder is a process
 * that keeps descriptors by names (holder/holder.c). Its program, some KiB, is
 * in this object, and is started from memory: nothing has to be installed, and
 * no library, LD_LIBRARY_PATH or version is in its way. It is given its socket
 * and nothing else, no environment either; the memory of this process is never
 * copied, as it would be by a fork.
 *
 * Nothing here waits for an answer, so a holder that is stopped stops nobody.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/hold.h"
#include "perigee.h"

#ifndef MFD_EXEC /* Linux 6.3 */
#define MFD_EXEC 0x10U
#endif

/* Without the byte at the end: nothing, where holder.c cannot be built. */
static const uint8_t program[] = {
#include "holder.inc"
    0};
enum { PROGRAM = sizeof program - 1 };

/* SHORT: ms that a request waits until the socket has room for it, which it has
 * unless the holder has left many unread. */
enum { SHORT = 5 };

/* ---- Messages ------------------------------------------------------------ */

static bool hold_send(int holder, struct hold_message *m, int fd) {
  struct pollfd room = {.fd = holder, .events = POLLOUT};
  struct hold_packet packet;
  hold_packet_out(&packet, m, fd);
  poll(&room, 1, SHORT);
  return sendmsg(holder, &packet.head, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         (ssize_t)sizeof *m;
}

/* Returns 1: a whole message came; *fd: the descriptor with it, or -1. 0: none
 * has come yet. */
static int hold_receive(int holder, struct hold_message *m, int *fd) {
  struct hold_packet packet;
  hold_packet_in(&packet, m);
  *fd = -1;
  ssize_t n = recvmsg(holder, &packet.head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return 0;
  *fd = hold_packet_fd(&packet, m, n);
  if (n == (ssize_t)sizeof *m)
    return 1;
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  return PERIGEE_PEER_LOST;
}

/* ---- Starting a holder --------------------------------------------------- */

static bool hold_address(const char *path, struct sockaddr_un *at) {
  *at = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof at->sun_path)
    return false;
  memcpy(at->sun_path, path, strlen(path));
  return true;
}

static int hold_listen(const struct sockaddr_un *at) {
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  unlink(at->sun_path);
  mode_t mask = umask(0177);
  bool fine = listener >= 0 &&
              bind(listener, (const struct sockaddr *)at, sizeof *at) == 0 &&
              listen(listener, 8) == 0;
  umask(mask);
  if (fine)
    return listener;
  if (listener >= 0)
    close(listener);
  return PERIGEE_SYSTEM;
}

/* A descriptor beyond those that the holder is given; takes `fd`. */
static int hold_above(int fd) {
  int above = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HOLDER_PROGRAM + 1);
  if (fd >= 0)
    close(fd);
  return above;
}

/* Returns a descriptor of the program. Kernels before 6.3 do not know MFD_EXEC,
 * and take memory as what may be executed. */
static int hold_program(void) {
  int fd = memfd_create(HOLDER_TITLE, MFD_CLOEXEC | MFD_EXEC);
  if (fd < 0 && errno == EINVAL)
    fd = memfd_create(HOLDER_TITLE, MFD_CLOEXEC);
  fd = hold_above(fd);
  if (fd >= 0 && write(fd, program, PROGRAM) == PROGRAM)
    return fd;
  if (fd >= 0)
    close(fd);
  return -1;
}

/* Descriptors 0 to 2 are /dev/null, 3 and 4 these two; there are no others. */
static int hold_descriptors(posix_spawn_file_actions_t *actions, int listener,
                            int executed) {
  int failed =
      posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDWR, 0) ||
      posix_spawn_file_actions_adddup2(actions, 0, 1) ||
      posix_spawn_file_actions_adddup2(actions, 0, 2) ||
      posix_spawn_file_actions_adddup2(actions, listener, HOLDER_LISTENER) ||
      posix_spawn_file_actions_adddup2(actions, executed, HOLDER_PROGRAM) ||
      posix_spawn_file_actions_addclosefrom_np(actions, HOLDER_PROGRAM + 1);
  return failed ? -1 : 0;
}

/* A session of its own; all signals as they are at first. */
static int hold_attributes(posix_spawnattr_t *attributes) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  int failed = posix_spawnattr_setsigmask(attributes, &none) ||
               posix_spawnattr_setsigdefault(attributes, &all) ||
               posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSID |
                                                        POSIX_SPAWN_SETSIGMASK |
                                                        POSIX_SPAWN_SETSIGDEF);
  return failed ? -1 : 0;
}

/* Returns the process, or -1. */
static pid_t hold_spawn(int listener, int executed, char *const *arguments) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  char self[32], *nothing[] = {NULL};
  pid_t child = -1;
  snprintf(self, sizeof self, "/proc/self/fd/%d", HOLDER_PROGRAM);
  if (posix_spawn_file_actions_init(&actions) != 0)
    return -1;
  if (posix_spawnattr_init(&attributes) == 0) {
    if (hold_descriptors(&actions, listener, executed) < 0 ||
        hold_attributes(&attributes) < 0 ||
        posix_spawn(&child, self, &actions, &attributes, arguments, nothing))
      child = -1;
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

/* The child has a child, which is the holder, and ends at once. */
static int hold_start(const struct sockaddr_un *at, int64_t stay) {
  struct sockaddr_un copy = *at;
  char milliseconds[24], title[] = HOLDER_TITLE;
  char *arguments[] = {title, copy.sun_path, milliseconds, NULL};
  if (PROGRAM == 0)
    return PERIGEE_UNSUPPORTED;
  snprintf(milliseconds, sizeof milliseconds, "%lld",
           (long long)(stay / 1000000));
  int listener = hold_above(hold_listen(at)), executed = hold_program();
  pid_t child = listener < 0 || executed < 0
                    ? -1
                    : hold_spawn(listener, executed, arguments);
  if (child > 0)
    waitpid(child, NULL, 0);
  else
    unlink(at->sun_path);
  if (listener >= 0)
    close(listener);
  if (executed >= 0)
    close(executed);
  return child > 0 ? PERIGEE_OK : PERIGEE_SYSTEM;
}

/* ---- The cache's side ---------------------------------------------------- */

static int hold_connect(const struct sockaddr_un *at) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return PERIGEE_SYSTEM;
  if (connect(fd, (const struct sockaddr *)at, sizeof *at) == 0)
    return fd;
  int error = errno;
  close(fd);
  if (error == EAGAIN) /* it accepts nobody, and others wait already */
    return PERIGEE_NAME_TAKEN;
  return error == ECONNREFUSED || error == ENOENT ? PERIGEE_NOT_FOUND
                                                  : PERIGEE_SYSTEM;
}

int perigee_cache_hold(const char *path, int64_t stay) {
  struct sockaddr_un at;
  if (!hold_address(path, &at) || stay <= 0)
    return PERIGEE_INVALID;
  int fd = hold_connect(&at);
  if (fd != PERIGEE_NOT_FOUND)
    return fd;
  int status = hold_start(&at, stay);
  return status < 0 ? status : hold_connect(&at);
}

static int hold_ask(int holder, struct hold_message *m, int fd) {
  return hold_send(holder, m, fd) ? PERIGEE_OK : PERIGEE_PEER_LOST;
}

static bool hold_name(struct hold_message *m, const char *name) {
  size_t length = strlen(name);
  if (length == 0 || length >= NAME)
    return false;
  memcpy(m->name, name, length + 1);
  return true;
}

int perigee_cache_hold_put(int holder, const char *name, int fd) {
  struct hold_message m = {.kind = HELD_PUT};
  if (!hold_name(&m, name) || fd < 0)
    return PERIGEE_INVALID;
  return hold_ask(holder, &m, fd);
}

int perigee_cache_hold_drop(int holder, const char *name) {
  struct hold_message m = {.kind = HELD_DROP};
  if (!hold_name(&m, name))
    return PERIGEE_INVALID;
  return hold_ask(holder, &m, -1);
}

int perigee_cache_hold_take(int holder, uint32_t number) {
  struct hold_message m = {.kind = HELD_TAKE, .number = number};
  return hold_ask(holder, &m, -1);
}

int perigee_cache_hold_end(int holder) {
  struct hold_message m = {.kind = HELD_END};
  return hold_ask(holder, &m, -1);
}

int perigee_cache_hold_answer(int holder, int milliseconds, char *name,
                              int *fd) {
  struct hold_message m = {.kind = 0};
  struct pollfd look = {.fd = holder, .events = POLLIN};
  int came = hold_receive(holder, &m, fd);
  if (came == 0 && milliseconds > 0) {
    poll(&look, 1, milliseconds);
    came = hold_receive(holder, &m, fd);
  }
  if (came <= 0)
    return came < 0 ? came : PERIGEE_AGAIN;
  memcpy(name, m.name, NAME);
  if (m.status == PERIGEE_OK && (m.kind == HELD_TAKE) == (*fd >= 0))
    return PERIGEE_OK;
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  return m.status < 0 ? m.status : PERIGEE_PROTOCOL;
}
