/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c - the one program of a bundle that the kernel starts. It is linked
 * statically, so it needs nothing of the host. All other programs are started
 * by the bundle's own loader, with the bundle's own libraries: the host may have
 * other versions of these, or none.
 *
 * It is called by links, whose names say what to run:
 *
 *   luajit       lib/run/luajit
 *   perigee      lib/run/luajit lua/perigee/cli/perigee
 *   check        lib/run/luajit spec/bundle/check.lua
 *   others       lib/run/NAME: floors of benches, C tests
 *
 * Children are found by PATH, and come here, too. The loader is not inherited, so
 * programs of the host are started as ever.
 */
#include <errno.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static char root[PATH_MAX];

__attribute__((noreturn)) static void give_up(const char *what) {
  fprintf(stderr, "the bundle in %s: %s: %s\n", root, what, strerror(errno));
  exit(127);
}

/* Returns a text that is never freed. */
__attribute__((format(printf, 1, 2))) static char *text_of(const char *format,
                                                           ...) {
  char *text;
  va_list list;
  va_start(list, format);
  if (vasprintf(&text, format, list) < 0)
    give_up("no memory");
  va_end(list);
  return text;
}

/* Returns a path below the bundle's folder. */
static char *below(const char *path) {
  return text_of("%s/%s", root, path);
}

/* This program is lib/launch. */
static void find_root(void) {
  ssize_t length = readlink("/proc/self/exe", root, sizeof root - 1);
  if (length < 0) {
    strcpy(root, "?");
    give_up("/proc is needed");
  }
  root[length] = '\0';
  for (int i = 0; i < 2; i++)
    *strrchr(root, '/') = '\0';
}

/* Puts a text in front of a variable, unless it is there from the parent. */
static void put_before(const char *name, const char *text,
                       const char *without) {
  const char *before = getenv(name);
  if (before && strncmp(before, text, strlen(text)) == 0)
    return;
  setenv(name, text_of("%s%s", text, before ? before : without), 1);
}

/* For hosts without a shell: Lua starts commands by the bundle's. */
static void set_shell(void) {
  const char *path = getenv("PATH");
  setenv("LUA_INIT", text_of("@%s/spec/bundle/shell.lua", root), 0);
  if (!strstr(path, "/lib/shell"))
    setenv("PATH", text_of("%s:%s/lib/shell", path, root), 1);
}

static void set_environment(void) {
  const char *own = text_of("%s/lua/?.lua;%s/lua/?/init.lua;"
                            "%s/lib/lua/?.lua;%s/lib/lua/?/init.lua;",
                            root, root, root, root);
  put_before("LUA_PATH", own, ";");
  own = text_of("%s/build/?.so;%s/lib/lua/?.so;", root, root);
  put_before("LUA_CPATH", own, ";");
  put_before("PATH", text_of("%s/bin:", root), "/usr/local/bin:/usr/bin:/bin");
  setenv("PERIGEE_BUILD", below("build"), 0);
  setenv("PERIGEE_FLOORS", below("build/bench"), 0);
  if (access("/bin/sh", X_OK) != 0)
    set_shell();
}

/* Returns the minor number of glibc 2 at the head of a text; 0: none. */
static unsigned glibc_of(const char *text) {
  return strncmp(text, "2.", 2) == 0 ? (unsigned)strtoul(text + 2, NULL, 10)
                                     : 0;
}

/* Reads a whole file. Its bytes are never freed; NULL: it cannot be read. */
static char *contents(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  char *bytes = NULL;
  long end = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (end > 0 && (bytes = malloc((size_t)end + 1))) {
    rewind(file);
    *length = fread(bytes, 1, (size_t)end, file);
    bytes[*length] = '\0';
  }
  if (file)
    fclose(file);
  return bytes;
}

/* Does a library of the host want no later glibc than the bundle's, which this
 * program is linked with? The versions that it wants are among its texts. Its
 * providers, of the same package, want the same. */
static bool library_fits(const char *path) {
  static const char version[] = "GLIBC_";
  size_t length;
  const char *at = contents(path, &length);
  if (!at)
    return false;
  const char *end = at + length;
  while ((at = memmem(at, (size_t)(end - at), version, sizeof version - 1))) {
    at += sizeof version - 1;
    if (glibc_of(at) > glibc_of(gnu_get_libc_version()))
      return false;
  }
  return true;
}

/* Whether the host has a libibverbs for here: its own knows its devices best. */
static bool host_has_verbs(void) {
  static const char *const folders[] = {"/usr/lib/x86_64-linux-gnu",
                                        "/lib/x86_64-linux-gnu",
                                        "/usr/lib64",
                                        "/usr/lib",
                                        "/lib64",
                                        NULL};
  for (int i = 0; folders[i]; i++) {
    const char *path = text_of("%s/libibverbs.so.1", folders[i]);
    if (access(path, R_OK) == 0)
      return library_fits(path);
  }
  return false;
}

/* The host's folders come last: CUDA's driver is often in one of these. */
static char *library_path(void) {
  const char *host = getenv("LD_LIBRARY_PATH");
  char *path = host_has_verbs() ? below("lib")
                                : text_of("%s/lib:%s/lib/rdma", root, root);
  return host && *host ? text_of("%s:%s", path, host) : path;
}

/* The name of the link by which this program was called. */
static const char *called(void) {
  const char *path = (const char *)getauxval(AT_EXECFN);
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

int main(int argc, char **argv) {
  find_root();
  set_environment();
  const char *name = called(), *script = NULL;
  if (strcmp(name, "perigee") == 0)
    script = "lua/perigee/cli/perigee";
  if (strcmp(name, "check") == 0)
    script = "spec/bundle/check.lua";
  char **words = calloc((size_t)argc + 8, sizeof *words), **word = words;
  if (!words)
    give_up("no memory");
  *word++ = below("lib/ld-linux-x86-64.so.2");
  *word++ = "--library-path";
  *word++ = library_path();
  *word++ = "--argv0";
  *word++ = script ? below("bin/luajit") : argv[0];
  *word++ = text_of("%s/lib/run/%s", root, script ? "luajit" : name);
  if (script)
    *word++ = below(script);
  for (int i = 1; i < argc; i++)
    *word++ = argv[i];
  execv(words[0], words);
  give_up(words[0]);
}
