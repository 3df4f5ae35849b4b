/* SPDX-License-Identifier: Apache-2.0 */
#include "flood.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "raw_peer.h"

/* ---- The server ------------------------------------------------------------ */

struct report {
  uint64_t refused;
  int64_t spent;
};

static volatile sig_atomic_t over;

static void on_term(int signal) {
  (void)signal;
  over = 1;
}

static int64_t spent(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return ((int64_t)u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 * MS +
         ((int64_t)u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

static void answer(struct perigee_engine *engine,
                   const struct perigee_event *e) {
  struct perigee_message m = {.head = e->pointer, .length = e->length};
  if (e->kind == PERIGEE_EVENT_REQUEST)
    perigee_reply(engine, e->operation, &m);
  if (e->kind == PERIGEE_EVENT_LOST)
    perigee_session_free(perigee_session(engine, e->session));
}

static _Noreturn void serve(struct server *s, int out) {
  struct perigee_options o;
  struct perigee_engine *engine;
  struct perigee_listener *tcp, *local;
  struct perigee_event e[16];
  struct report r;
  signal(SIGTERM, on_term);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  perigee_options_init(&o, sizeof o);
  o.secret = FLOOD_SECRET;
  if (perigee_engine_open(&o, &engine) != 0 ||
      perigee_listen(engine, "tcp://127.0.0.1:0", &tcp) != 0 ||
      perigee_listen(engine, s->path, &local) != 0)
    _exit(1);
  snprintf(s->tcp, sizeof s->tcp, "%s", perigee_listener_address(tcp));
  if (write(out, s->tcp, sizeof s->tcp) != sizeof s->tcp)
    _exit(1);
  int64_t before = spent(); /* a secret's stretching is none of theirs */
  while (!over) {
    perigee_wait(&engine, 1, 100 * MS);
    int n = perigee_poll(engine, e, 16);
    for (int i = 0; i < n; i++)
      answer(engine, &e[i]);
  }
  r.refused = perigee_counters(engine, NULL)->refused;
  r.spent = spent() - before;
  perigee_engine_close(engine);
  if (write(out, &r, sizeof r) != sizeof r)
    _exit(1);
  _exit(0);
}

void server_start(struct server *s) {
  int ends[2];
  snprintf(s->path, sizeof s->path, "unix:%s-flood", pair_path_next());
  unlink(s->path + strlen("unix:"));
  assert_int_equal(pipe(ends), 0);
  s->told = ends[0];
  s->pid = fork();
  if (s->pid == 0)
    serve(s, ends[1]);
  close(ends[1]);
  assert_int_equal(read(s->told, s->tcp, sizeof s->tcp), sizeof s->tcp);
}

void server_end(struct server *s, uint64_t *refused, int64_t *time) {
  struct report r = {0, 0};
  kill(s->pid, SIGTERM);
  assert_int_equal(read(s->told, &r, sizeof r), sizeof r);
  waitpid(s->pid, NULL, 0);
  close(s->told);
  *refused = r.refused;
  *time = r.spent;
}

/* ---- The crowd ------------------------------------------------------------- */

/* Each side goes on when so many more connections were made. */
enum { CROWD = 512, LATER = 16 };

static int *came; /* shared with the crowd */

static int call_at(const struct server *s, const char *from) {
  struct sockaddr_un un = {.sun_family = AF_UNIX};
  struct sockaddr_in to = {.sin_family = AF_INET}, own = to;
  int fd = socket(from ? AF_INET : AF_UNIX,
                  SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (!from) {
    snprintf(un.sun_path, sizeof un.sun_path, "%s", s->path + 5);
    (void)!connect(fd, (struct sockaddr *)&un, sizeof un); /* or in time */
    return fd;
  }
  inet_pton(AF_INET, from, &own.sin_addr);
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  to.sin_port = htons((uint16_t)atoi(strrchr(s->tcp, ':') + 1));
  (void)!bind(fd, (struct sockaddr *)&own, sizeof own);
  (void)!connect(fd, (struct sockaddr *)&to, sizeof to);
  return fd;
}

static void say_hello_to(int fd, const uint8_t cookie[COOKIE]) {
  struct frame hello = good_hello();
  memset(hello.hello.public_key, 9, HANDSHAKE_KEY);
  if (cookie)
    memcpy(hello.hello.cookie, cookie, COOKIE);
  say_frame(fd, &hello, NULL, 0);
}

static void misbehave(int fd, enum crowd crowd, bool tcp) {
  if (crowd == CROWD_SILENT)
    return;
  if (tcp)
    say_hello_to(fd, NULL);
  else
    say_hello(fd);
}

/* Connects again with a cookie, if that is asked for, and sends a wrong
 * proof. */
static void go_on(int fd) {
  static struct wire wire;
  struct frame f, proof = {.type = FRAME_PROOF};
  wire.length = 0;
  if (fd < 0 || wire_read(fd, &wire) <= 0 || wire_next(&wire, &f) <= 0)
    return;
  if (f.type == FRAME_RETRY)
    say_hello_to(fd, f.retry.cookie);
  say_frame(fd, &proof, NULL, 0);
}

static _Noreturn void flood(const struct server *s, enum crowd crowd,
                            const char *from, int rate) {
  int fds[CROWD];
  int64_t start = clock_now();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  memset(fds, -1, sizeof fds);
  for (int i = 0;; i++) {
    int64_t due = start + (int64_t)i * 1000 * MS / rate - clock_now();
    if (due > 0)
      usleep((useconds_t)(due / 1000));
    if (fds[i % CROWD] >= 0)
      close(fds[i % CROWD]);
    fds[i % CROWD] = call_at(s, from);
    misbehave(fds[i % CROWD], crowd, from != NULL);
    if (crowd == CROWD_WRONG)
      go_on(fds[(i + CROWD - LATER) % CROWD]);
    *came = i + 1;
  }
}

pid_t flood_start(const struct server *s, enum crowd crowd, const char *from,
                  int rate) {
  if (!came)
    came = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
  *came = 0;
  pid_t pid = fork();
  if (pid == 0)
    flood(s, crowd, from, rate);
  return pid;
}

int flood_end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  return *came;
}
