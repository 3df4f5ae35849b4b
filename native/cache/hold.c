/* SPDX-License-Identifier: Apache-2.0
 *
 * hold.c - memory that outlives the process of a cache. A holder is a process
 * that keeps descriptors by names, for one process of its user at a time. It is
 * a fork that runs nothing of the program's: it closes all that it inherited,
 * and unmaps what is shared, allocates nothing, and ends by itself if nobody
 * came for long.
 *
 * A request is one message: its kind, and a name or a number; the answer is a
 * status, and maybe a name. A descriptor goes beside either.
 *
 *   the holder   event                               becomes
 *   waits        a process of the user connects      serves it; others wait
 *   waits        nobody comes for its time           ended
 *   serves       that process hangs up, or dies      waits
 *   serves       END                                 ended
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/cache.h"
#include "perigee.h"

enum { HELD = 4096, NAME = PERIGEE_CACHE_HELD_NAME, PATIENCE = 1 };
#define TITLE "perigee-hold"
enum held_kind { HELD_PUT = 1, HELD_DROP, HELD_TAKE, HELD_END };

/* fd: -1, none. */
struct hold_message {
  uint32_t kind, number;
  int32_t status;
  char name[NAME];
};

/* ---- Messages ----------------------------------------------------------- */

union hold_control {
  struct cmsghdr head;
  char room[CMSG_SPACE(sizeof(int))];
};

static bool hold_send(int socket, struct hold_message *m, int fd) {
  union hold_control control = {.room = {0}};
  struct iovec bytes = {m, sizeof *m};
  struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
  if (fd >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control.room;
    control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd),
                                    .cmsg_level = SOL_SOCKET,
                                    .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *m;
}

/* Returns whether a whole message came; *fd: the descriptor with it, or -1. */
static bool hold_receive(int socket, struct hold_message *m, int *fd) {
  union hold_control control = {.room = {0}};
  struct iovec bytes = {m, sizeof *m};
  struct msghdr message = {.msg_iov = &bytes,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control.room};
  *fd = -1;
  ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (head && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(sizeof *fd))
    memcpy(fd, CMSG_DATA(head), sizeof *fd);
  m->name[NAME - 1] = 0;
  if (n == (ssize_t)sizeof *m)
    return true;
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  return false;
}

/* ---- The holder's side --------------------------------------------------- */

static struct held {
  char name[NAME];
  int fd;
} held[HELD];
static uint32_t held_count;

static uint32_t held_find(const char *name) {
  uint32_t i = 0;
  while (i < held_count && strcmp(held[i].name, name) != 0)
    i++;
  return i;
}

static int held_put(const struct hold_message *m, int fd) {
  uint32_t i = held_find(m->name);
  if (fd < 0 || !m->name[0])
    return PERIGEE_INVALID;
  if (i == HELD)
    return PERIGEE_NO_MEMORY;
  if (i < held_count)
    close(held[i].fd);
  held_count += i == held_count;
  memcpy(held[i].name, m->name, NAME);
  held[i].fd = fd;
  return PERIGEE_OK;
}

static int held_drop(const struct hold_message *m) {
  uint32_t i = held_find(m->name);
  if (i == held_count)
    return PERIGEE_NOT_FOUND;
  close(held[i].fd);
  held[i] = held[--held_count];
  return PERIGEE_OK;
}

/* Returns whether the holder goes on. */
static bool holder_answer(int client, struct hold_message *m, int fd) {
  bool end = m->kind == HELD_END;
  int give = -1;
  if (m->kind == HELD_PUT)
    m->status = held_put(m, fd);
  else if (m->kind == HELD_DROP)
    m->status = held_drop(m);
  else if (m->kind == HELD_TAKE && m->number < held_count)
    give = held[m->number].fd;
  else if (!end)
    m->status = PERIGEE_NOT_FOUND;
  if (fd >= 0 && (m->kind != HELD_PUT || m->status < 0))
    close(fd);
  if (give >= 0)
    memcpy(m->name, held[m->number].name, NAME);
  hold_send(client, m, give);
  return !end;
}

static bool holder_knows(int client) {
  struct ucred who;
  socklen_t length = sizeof who;
  return getsockopt(client, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 &&
         who.uid == getuid();
}

static bool holder_serve(int client) {
  struct hold_message m = {.kind = 0};
  int fd;
  bool on = holder_knows(client);
  while (on && hold_receive(client, &m, &fd)) {
    m.status = PERIGEE_OK;
    on = holder_answer(client, &m, fd);
    if (!on)
      return false;
  }
  return true;
}

static void holder_run(int listener, int milliseconds) {
  struct pollfd look = {.fd = listener, .events = POLLIN};
  bool on = true;
  while (on && poll(&look, 1, milliseconds) != 0) {
    int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
      continue;
    on = holder_serve(client);
    close(client);
  }
}

/* The socket becomes descriptor 3, and all others go. */
static void holder_leave_all(int listener) {
  struct rlimit limit;
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; null >= 0 && fd < 3; fd++)
    dup2(null, fd);
  dup2(listener, 3);
  close_range(4, ~0U, 0);
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/* Returns field number n of /proc/self/stat from its 3rd on, behind the name. */
static unsigned long holder_stat(const char *stat, int n) {
  const char *at = strrchr(stat, ')');
  for (int i = 2; at && i < n; i++)
    at = strchr(at + 1, ' ');
  return at ? strtoul(at + 1, NULL, 10) : 0;
}

/* Takes the place of the program's arguments, so that who kills processes by
 * these does not mean the holder. */
static void holder_rename(void) {
  enum { ARGUMENTS = 48, ARGUMENTS_END = 49 };
  char stat[2048] = "";
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  ssize_t n = read(fd, stat, sizeof stat - 1);
  close(fd);
  unsigned long from = n > 0 ? holder_stat(stat, ARGUMENTS) : 0,
                end = n > 0 ? holder_stat(stat, ARGUMENTS_END) : 0;
  prctl(PR_SET_NAME, TITLE);
  if (from == 0 || end - from < sizeof TITLE || end < from)
    return;
  char *arguments = (char *)from; // NOLINT(performance-no-int-to-ptr)
  memset(arguments, 0, end - from);
  memcpy(arguments, TITLE, sizeof TITLE);
}

/* A line of /proc/self/maps: "from-to rwxs ...", of which field 2 ends in s if
 * it is shared. */
struct map_line {
  uintptr_t at[2];
  int field;
};

static void map_character(struct map_line *line, char c) {
  if (c == '\n') {
    *line = (struct map_line){.field = 0};
  } else if (c == (line->field == 0 ? '-' : ' ')) {
    line->field++;
  } else if (line->field < 2) {
    uintptr_t digit = (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    line->at[line->field] = line->at[line->field] * 16 + digit;
  } else if (line->field == 2 && c == 's') {
    void *from = (void *)line->at[0]; // NOLINT(performance-no-int-to-ptr)
    munmap(from, line->at[1] - line->at[0]);
  }
}

/* Memory that the program shares, as that of slabs, ends when others have done
 * with it. */
static void holder_unmap(void) {
  struct map_line line = {.field = 0};
  char bytes[4096];
  ssize_t n;
  int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  while ((n = read(fd, bytes, sizeof bytes)) > 0)
    for (ssize_t i = 0; i < n; i++)
      map_character(&line, bytes[i]);
  close(fd);
}

static _Noreturn void holder_main(int listener, const char *path,
                                  int milliseconds) {
  sigset_t none;
  setsid();
  if (fork() != 0) /* nobody's child waits to be waited for */
    _exit(0);
  holder_rename();
  for (int number = 1; number < NSIG; number++)
    signal(number, SIG_DFL);
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  holder_unmap();
  holder_leave_all(listener);
  holder_run(3, milliseconds);
  unlink(path);
  _exit(0);
}

/* ---- The cache's side ---------------------------------------------------- */

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

static int hold_start(const struct sockaddr_un *at, const char *path,
                      int64_t stay) {
  int listener = hold_listen(at), status = PERIGEE_OK;
  int64_t most = stay / 1000000 < INT32_MAX ? stay / 1000000 : INT32_MAX;
  if (listener < 0)
    return listener;
  pid_t child = fork();
  if (child == 0)
    holder_main(listener, path, (int)most);
  if (child < 0)
    status = PERIGEE_SYSTEM;
  else
    waitpid(child, NULL, 0);
  close(listener);
  return status;
}

static int hold_connect(const struct sockaddr_un *at) {
  struct timeval patience = {.tv_sec = PATIENCE};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return PERIGEE_SYSTEM;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd, (const struct sockaddr *)at, sizeof *at) == 0)
    return fd;
  bool nobody = errno == ECONNREFUSED || errno == ENOENT;
  close(fd);
  return nobody ? PERIGEE_NOT_FOUND : PERIGEE_SYSTEM;
}

/* Asks, and takes the answer; *fd: the descriptor that came, which is closed if
 * nobody wants it. */
static int hold_ask(int holder, struct hold_message *m, int give, int *fd) {
  int came = -1;
  if (!hold_send(holder, m, give) || !hold_receive(holder, m, &came))
    return PERIGEE_PEER_LOST;
  if (fd)
    *fd = came;
  else if (came >= 0)
    close(came);
  return m->status;
}

static bool hold_name(struct hold_message *m, const char *name) {
  size_t length = strlen(name);
  if (length == 0 || length >= NAME)
    return false;
  memcpy(m->name, name, length + 1);
  return true;
}

/* A holder that serves another process answers nothing. */
static int hold_is_free(int fd) {
  struct hold_message m = {.kind = HELD_TAKE, .number = HELD};
  int status = hold_ask(fd, &m, -1, NULL);
  if (status == PERIGEE_NOT_FOUND)
    return fd;
  close(fd);
  return PERIGEE_NAME_TAKEN;
}

int perigee_cache_hold(const char *path, int64_t stay) {
  struct sockaddr_un at;
  if (!hold_address(path, &at) || stay <= 0)
    return PERIGEE_INVALID;
  int fd = hold_connect(&at), status = PERIGEE_OK;
  if (fd == PERIGEE_NOT_FOUND) {
    status = hold_start(&at, path, stay);
    fd = status < 0 ? status : hold_connect(&at);
  }
  return fd < 0 ? fd : hold_is_free(fd);
}

int perigee_cache_hold_put(int holder, const char *name, int fd) {
  struct hold_message m = {.kind = HELD_PUT};
  if (!hold_name(&m, name) || fd < 0)
    return PERIGEE_INVALID;
  return hold_ask(holder, &m, fd, NULL);
}

int perigee_cache_hold_drop(int holder, const char *name) {
  struct hold_message m = {.kind = HELD_DROP};
  if (!hold_name(&m, name))
    return PERIGEE_INVALID;
  return hold_ask(holder, &m, -1, NULL);
}

int perigee_cache_hold_take(int holder, uint32_t number, char *name, int *fd) {
  struct hold_message m = {.kind = HELD_TAKE, .number = number};
  int status = hold_ask(holder, &m, -1, fd);
  if (status == PERIGEE_OK && *fd < 0)
    return PERIGEE_PROTOCOL;
  if (status == PERIGEE_OK)
    memcpy(name, m.name, NAME);
  return status;
}

int perigee_cache_hold_end(int holder) {
  struct hold_message m = {.kind = HELD_END};
  return hold_ask(holder, &m, -1, NULL);
}
