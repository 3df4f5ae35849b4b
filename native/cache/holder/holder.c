/* SPDX-License-Identifier: Apache-2.0
 *
 * holder.c - a program that keeps descriptors by names, for one process of its
 * user at a time, and ends by itself if nobody came for long. hold.c has its
 * bytes, and starts it: so it is there wherever perigee/cache.so is, and has
 * nothing of the memory of who started it. It is linked with no library, so it
 * needs none, of whatever version: it asks the system by itself.
 *
 *   holder PATH MILLISECONDS      PATH: of its socket, which is descriptor 3
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
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "cache/hold.h"
#include "perigee.h"

/* ---- The system ---------------------------------------------------------- */

/* Returns what the system does: below 0, an error. */
#if defined(__x86_64__)
__asm__(".globl _start\n"
        "_start:\n"
        "  xor %ebp, %ebp\n"
        "  mov %rsp, %rdi\n"
        "  and $-16, %rsp\n"
        "  call holder_begin\n");
static long ask(long what, long a, long b, long c, long d, long e) {
  long result;
  register long fourth __asm__("r10") = d;
  register long fifth __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(what), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n"
        "_start:\n"
        "  mov x29, xzr\n"
        "  mov x0, sp\n"
        "  bl holder_begin\n");
static long ask(long what, long a, long b, long c, long d, long e) {
  register long number __asm__("x8") = what;
  register long first __asm__("x0") = a;
  register long second __asm__("x1") = b;
  register long third __asm__("x2") = c;
  register long fourth __asm__("x3") = d;
  register long fifth __asm__("x4") = e;
  __asm__ volatile("svc 0"
                   : "+r"(first)
                   : "r"(number), "r"(second), "r"(third), "r"(fourth),
                     "r"(fifth)
                   : "memory");
  return first;
}
#else
// cppcheck-suppress preprocessorErrorDirective
#error "holder.c: this processor's system calls are not known"
#endif

#define ASK(what, a, b, c, d, e)                                               \
  ask(SYS_##what, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

static void shut(int fd) {
  ASK(close, fd, 0, 0, 0, 0);
}

/* The compiler calls these by itself. */
__attribute__((used)) void *memset(void *to, int byte, size_t length) {
  for (size_t i = 0; i < length; i++)
    ((char *)to)[i] = (char)byte;
  return to;
}

__attribute__((used)) void *memcpy(void *restrict to, const void *restrict from,
                                   size_t length) {
  for (size_t i = 0; i < length; i++)
    ((char *)to)[i] = ((const char *)from)[i];
  return to;
}

static bool is_same(const char *a, const char *b) {
  while (*a && *a == *b)
    a++, b++;
  return *a == *b;
}

/* ---- What is held -------------------------------------------------------- */

static struct held {
  char name[NAME];
  int fd;
} held[HELD];
static uint32_t held_count;

static uint32_t held_find(const char *name) {
  uint32_t i = 0;
  while (i < held_count && !is_same(held[i].name, name))
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
    shut(held[i].fd);
  held_count += i == held_count;
  memcpy(held[i].name, m->name, NAME);
  held[i].fd = fd;
  return PERIGEE_OK;
}

static int held_drop(const struct hold_message *m) {
  uint32_t i = held_find(m->name);
  if (i == held_count)
    return PERIGEE_NOT_FOUND;
  shut(held[i].fd);
  held[i] = held[--held_count];
  return PERIGEE_OK;
}

/* ---- Messages ------------------------------------------------------------ */

static void answer(int client, struct hold_message *m, int fd) {
  struct hold_packet packet;
  hold_packet_out(&packet, m, fd);
  ASK(sendmsg, client, &packet.head, MSG_NOSIGNAL, 0, 0);
}

/* Returns whether a whole message came; *fd: the descriptor with it, or -1. Who
 * has ended with answers unread leaves an error in front of his requests. */
static bool receive(int client, struct hold_message *m, int *fd) {
  struct hold_packet packet;
  long n;
  hold_packet_in(&packet, m);
  do
    n = ASK(recvmsg, client, &packet.head, MSG_CMSG_CLOEXEC, 0, 0);
  while (n == -ECONNRESET);
  *fd = hold_packet_fd(&packet, m, n);
  if (n == (long)sizeof *m)
    return true;
  if (*fd >= 0)
    shut(*fd);
  return false;
}

/* ---- Serving ------------------------------------------------------------- */

/* Returns whether the holder goes on. */
static bool serve_one(int client, struct hold_message *m, int fd) {
  bool end = m->kind == HELD_END;
  int give = -1;
  m->status = PERIGEE_OK;
  if (m->kind == HELD_PUT)
    m->status = held_put(m, fd);
  else if (m->kind == HELD_DROP)
    m->status = held_drop(m);
  else if (m->kind == HELD_TAKE && m->number < held_count)
    give = held[m->number].fd;
  else if (!end)
    m->status = PERIGEE_NOT_FOUND;
  if (fd >= 0 && (m->kind != HELD_PUT || m->status < 0))
    shut(fd);
  if (give >= 0)
    memcpy(m->name, held[m->number].name, NAME);
  answer(client, m, give);
  return !end;
}

static bool is_known(int client) {
  struct ucred who = {0};
  socklen_t length = sizeof who;
  return ASK(getsockopt, client, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 &&
         who.uid == (uid_t)ASK(getuid, 0, 0, 0, 0, 0);
}

static bool serve(int client) {
  struct hold_message m = {.kind = 0};
  int fd;
  bool on = true;
  while (on && receive(client, &m, &fd))
    on = serve_one(client, &m, fd);
  return on;
}

/* Returns whether somebody came within so many milliseconds. */
static bool await(long milliseconds) {
  struct pollfd look = {.fd = HOLDER_LISTENER, .events = POLLIN};
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  return ASK(ppoll, &look, 1, &time, 0, 0) != 0;
}

static void run(long milliseconds) {
  bool on = true;
  while (on && await(milliseconds)) {
    long client = ASK(accept4, HOLDER_LISTENER, NULL, NULL, SOCK_CLOEXEC, 0);
    if (client < 0)
      continue;
    on = !is_known((int)client) || serve((int)client);
    shut((int)client);
  }
}

/* ---- Its life ------------------------------------------------------------ */

static __attribute__((noreturn)) void leave(void) {
  for (;;)
    ASK(exit_group, 0, 0, 0, 0, 0);
}

/* As the kernel has it; no handler, so nothing returns from one. */
static void ignore(int number) {
  struct {
    void (*handler)(int);
    unsigned long flags, restorer, mask;
  } action = {.handler = SIG_IGN};
  ASK(rt_sigaction, number, &action, NULL, sizeof action.mask, 0);
}

static void want_descriptors(void) {
  struct rlimit limit = {0};
  if (ASK(prlimit64, 0, RLIMIT_NOFILE, NULL, &limit, 0) < 0)
    return;
  limit.rlim_cur = limit.rlim_max;
  ASK(prlimit64, 0, RLIMIT_NOFILE, &limit, NULL, 0);
}

static long number_of(const char *text) {
  long number = 0;
  while (*text >= '0' && *text <= '9')
    number = 10 * number + *text++ - '0';
  return number;
}

/* from: where the count of arguments is, and these behind it. */
__attribute__((used, noreturn)) void holder_begin(const long *from) {
  const char *const *arguments = (const char *const *)(from + 1);
  if (*from != 3 || ASK(clone, SIGCHLD, 0, 0, 0, 0) != 0)
    leave(); /* nobody's child waits to be waited for */
  shut(HOLDER_PROGRAM);
  ASK(prctl, PR_SET_NAME, HOLDER_TITLE, 0, 0, 0);
  ignore(SIGINT);
  ignore(SIGHUP);
  want_descriptors();
  run(number_of(arguments[2]));
  ASK(unlinkat, AT_FDCWD, arguments[1], 0, 0, 0);
  leave();
}
