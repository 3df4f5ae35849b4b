/* SPDX-License-Identifier: Apache-2.0
 *
 * steps.c - records the instructions of a program, one by one
 *
 *   steps FILE COMMAND [ARGUMENT...]
 *
 * Runs COMMAND at full speed until it sends itself SIGUSR1, and from then on in
 * single steps until it ends. It writes a line to FILE for each instruction
 * between the first and the second call of getppid, between the third and the
 * fourth, and so on: "OFFSET OBJECT", or "system NUMBER OBJECT" for a system
 * call; and "end" after each such stretch. Offsets are in the object's file.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 512, NAME = 256 };

struct object {
  unsigned long from, to, offset;
  char name[NAME];
};

struct steps {
  pid_t pid;
  FILE *out;
  struct object objects[OBJECTS];
  int count, last;
  bool inside;
};

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void read_maps(struct steps *s) {
  char path[64], line[NAME + 128];
  snprintf(path, sizeof path, "/proc/%d/maps", (int)s->pid);
  FILE *f = fopen(path, "r");
  if (!f)
    die(path);
  s->count = s->last = 0;
  while (s->count < OBJECTS && fgets(line, sizeof line, f)) {
    struct object *o = &s->objects[s->count];
    char rights[8] = "";
    o->name[0] = 0;
    if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %255s", &o->from, &o->to, rights,
               &o->offset, o->name) >= 4 &&
        rights[2] == 'x')
      s->count++;
  }
  fclose(f);
}

static const struct object *find(struct steps *s, unsigned long at) {
  for (int i = 0; i < s->count; i++, s->last++) {
    if (s->last >= s->count)
      s->last = 0;
    if (at >= s->objects[s->last].from && at < s->objects[s->last].to)
      return &s->objects[s->last];
  }
  return NULL;
}

/* Lua's compiler maps memory as it goes, so an unknown address reads the maps
 * again. */
static const struct object *object_of(struct steps *s, unsigned long at) {
  const struct object *o = find(s, at);
  if (!o) {
    read_maps(s);
    o = find(s, at);
  }
  if (!o)
    die("an instruction that is nowhere");
  return o;
}

/* Writes the instruction that is about to run. */
static void tell(struct steps *s) {
  struct user_regs_struct regs;
  if (ptrace(PTRACE_GETREGS, s->pid, NULL, &regs) != 0)
    die("PTRACE_GETREGS");
  long code = ptrace(PTRACE_PEEKTEXT, s->pid, (void *)regs.rip, NULL);
  bool system = (code & 0xffff) == 0x050f;
  if (system && regs.rax == SYS_getppid) {
    if (s->inside)
      fprintf(s->out, "end\n");
    s->inside = !s->inside;
  } else if (s->inside) {
    const struct object *o = object_of(s, regs.rip);
    const char *name = o->name[0] == '/' ? o->name : "compiled";
    if (system)
      fprintf(s->out, "system %llu %s\n", regs.rax, name);
    else
      fprintf(s->out, "%lx %s\n", (unsigned long)regs.rip - o->from + o->offset,
              name);
  }
}

/* Returns the exit status. */
static int follow(struct steps *s) {
  bool stepping = false;
  int status, signal = 0;
  for (;;) {
    if (stepping)
      tell(s);
    if (ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, s->pid, NULL,
               (void *)(long)signal) != 0 ||
        waitpid(s->pid, &status, 0) != s->pid)
      die("ptrace");
    if (!WIFSTOPPED(status))
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    signal = WSTOPSIG(status);
    if (signal == SIGUSR1)
      stepping = true;
    if (signal == SIGTRAP || signal == SIGUSR1)
      signal = 0;
  }
}

int main(int argc, char **argv) {
  static struct steps s;
  if (argc < 3) {
    fprintf(stderr, "usage: steps FILE COMMAND [ARGUMENT...]\n");
    return 2;
  }
  s.out = fopen(argv[1], "w");
  if (!s.out)
    die(argv[1]);
  s.pid = fork();
  if (s.pid == 0) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    execvp(argv[2], argv + 2);
    _exit(127);
  }
  int status;
  if (s.pid < 0 || waitpid(s.pid, &status, 0) != s.pid || !WIFSTOPPED(status))
    die(argv[2]);
  status = follow(&s);
  return fclose(s.out) == 0 ? status : 1;
}
