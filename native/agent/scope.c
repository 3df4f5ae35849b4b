/* SPDX-License-Identifier: Apache-2.0
 *
 * scope.c - finds the folder in which the names of a scope are on this host, as
 * Lua does (lua/perigee/registry/folder/where.lua):
 *
 *   the environment               the folder of all scopes
 *   PERIGEE_REGISTRY=folder:/X    /X
 *   XDG_RUNTIME_DIR=/X            /X/perigee
 *   TMPDIR=/X, or else /tmp       /X/perigee-UID; unless home's is chosen
 *   HOME=/X                       /X/.cache/perigee/HOST
 *
 * Any user can write to the directory of temporary files, and may make our
 * folder there first. Nobody else can write to the home directory, but other
 * hosts may share it. All processes of a user choose the same folder at any
 * time:
 *
 *   temporary folder    home's folder   is chosen
 *   is this user's      any state       the temporary one
 *   is missing          is missing      the temporary one, which is made
 *   is missing          is there        home's
 *   is another's        any state       home's
 *
 * So when home's folder exists and the other user's folder is removed,
 * processes stay with home's. Lua has its own copy of this choice, because
 * `perigee doctor` asks for that of a machine which its specs make up. A spec
 * compares the two (spec/lua/scope_spec.lua).
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "host/name.h"
#include "perigee.h"
#include "scope.h"

/* ---- What the environment says ------------------------------------------- */

int scope_choose(const char *given, char name[SCOPE_NAME]) {
  const char *from = given && given[0] ? NULL : getenv("PERIGEE_SCOPE");
  const char *chosen = given && given[0] ? given
                       : from && from[0] ? from
                                         : "default";
  if (!name_is_valid(chosen))
    return detail_fail(PERIGEE_INVALID,
                       "%s \"%.80s\" must be 1 to 64 of letters, digits and . "
                       "_ : - without a leading dot",
                       chosen == from ? "the environment's PERIGEE_SCOPE"
                                      : "the scope",
                       chosen);
  snprintf(name, SCOPE_NAME, "%s", chosen);
  return PERIGEE_OK;
}

void scope_host(char name[SCOPE_HOST]) {
  FILE *file = fopen("/proc/sys/kernel/hostname", "re");
  if (!file || !fgets(name, SCOPE_HOST, file))
    name[0] = '\0';
  name[strcspn(name, "\n")] = '\0';
  if (file)
    fclose(file);
}

/* Writes "path", without slashes at its end, and what follows it. False: that
 * is too long. */
static bool scope_join(char to[PATH_MAX], const char *path, const char *more) {
  int length = (int)strnlen(path, PATH_MAX);
  while (length > 0 && path[length - 1] == '/')
    length--;
  int n = snprintf(to, PATH_MAX, "%.*s%s", length, path, more);
  return n >= 0 && n < PATH_MAX;
}

static const char *scope_absolute(const char *variable) {
  const char *path = getenv(variable);
  return path && path[0] == '/' ? path : NULL;
}

static bool scope_temporary(char path[PATH_MAX]) {
  char name[32];
  const char *folder = scope_absolute("TMPDIR");
  snprintf(name, sizeof name, "/perigee-%u", (unsigned)getuid());
  return scope_join(path, folder ? folder : "/tmp", name);
}

/* What of a host's name is in its folder's, whatever the locale. */
static const char scope_plain[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

/* False: the home directory is missing, or another user's. */
static bool scope_at_home(char path[PATH_MAX]) {
  char host[SCOPE_HOST], more[SCOPE_HOST + 32], inside[PATH_MAX];
  const char *home = scope_absolute("HOME");
  int n = home ? snprintf(inside, sizeof inside, "%s/.", home) : -1;
  if (n < 0 || n >= PATH_MAX || perigee_folder_look(inside) != PERIGEE_OK)
    return false;
  scope_host(host);
  host[strcspn(host, ".")] = '\0';
  for (char *c = host; *(c += strspn(c, scope_plain));)
    *c = '_';
  snprintf(more, sizeof more, "/.cache/perigee/%s", host);
  return scope_join(path, home, more);
}

/* ---- Choosing ------------------------------------------------------------ */

static int scope_too_long(void) {
  return detail_fail(PERIGEE_TOO_LARGE, "the path of the folder of names has "
                                        "more bytes than a path may have");
}

/* The folder of PERIGEE_REGISTRY. NOT_FOUND: it names none. */
static int scope_registry(char path[PATH_MAX]) {
  static const char folder[] = "folder:";
  const char *address = getenv("PERIGEE_REGISTRY");
  if (!address || !address[0])
    return PERIGEE_NOT_FOUND;
  const char *named = address + sizeof folder - 1;
  if (strncmp(address, folder, sizeof folder - 1) != 0)
    return detail_fail(PERIGEE_UNSUPPORTED,
                       "the environment's PERIGEE_REGISTRY names a registry "
                       "that is no folder; perigee lookup NAME --entry asks "
                       "it, and perigee_entry_parse reads what that prints");
  if (named[0] != '/')
    return detail_fail(PERIGEE_INVALID, "the environment's PERIGEE_REGISTRY "
                                        "must be folder: and an absolute path");
  return scope_join(path, named, "") ? PERIGEE_OK : scope_too_long();
}

/* Chooses between the temporary folder, which is in path, and home's. */
static void scope_prefer(char path[PATH_MAX]) {
  char home[PATH_MAX];
  int there = perigee_folder_look(path);
  if (there == PERIGEE_OK || !scope_at_home(home))
    return;
  if (there != PERIGEE_NOT_FOUND || perigee_folder_look(home) == PERIGEE_OK)
    memcpy(path, home, PATH_MAX);
}

/* Writes the folder of all scopes. */
static int scope_base(char path[PATH_MAX]) {
  int status = scope_registry(path);
  if (status != PERIGEE_NOT_FOUND)
    return status;
  const char *runtime = scope_absolute("XDG_RUNTIME_DIR");
  if (runtime) {
    int n = snprintf(path, PATH_MAX, "%s/perigee", runtime);
    return n < PATH_MAX ? PERIGEE_OK : scope_too_long();
  }
  if (!scope_temporary(path))
    return scope_too_long();
  scope_prefer(path);
  return PERIGEE_OK;
}

/* Puts the scope behind the folder of all. */
static int scope_within(const char *base, const char *scope,
                        char path[PATH_MAX]) {
  int n = snprintf(path, PATH_MAX, "%s/%s", base, scope);
  return n < PATH_MAX ? n : scope_too_long();
}

int perigee_scope_folder(const char *scope, char *path, uint64_t capacity) {
  char name[SCOPE_NAME], base[PATH_MAX], whole[PATH_MAX];
  int status = scope_choose(scope, name);
  if (status == PERIGEE_OK)
    status = scope_base(base);
  if (status == PERIGEE_OK)
    status = scope_within(base, name, whole);
  if (status < 0)
    return status;
  if (!path || capacity <= (uint64_t)status)
    return detail_fail(PERIGEE_TOO_LARGE,
                       "the path has %d bytes and a zero behind them", status);
  memcpy(path, whole, (size_t)status + 1);
  return status;
}

/* ---- Making -------------------------------------------------------------- */

static int scope_folder_made(const char *path) {
  int status = perigee_folder(path);
  if (status >= 0)
    return PERIGEE_OK;
  char why[DETAIL];
  snprintf(why, sizeof why, "%s", detail_here());
  return detail_fail(status,
                     "the registry's folder %.100s: %.64s (or name another, by "
                     "XDG_RUNTIME_DIR or PERIGEE_REGISTRY)",
                     path, why);
}

/* Is this the temporary folder, still missing while home's is missing, too?
 * Then home is set to home's. */
static bool scope_is_contested(const char *base, char home[PATH_MAX]) {
  char temporary[PATH_MAX];
  return !scope_absolute("XDG_RUNTIME_DIR") && scope_temporary(temporary) &&
         strcmp(base, temporary) == 0 &&
         perigee_folder_look(base) == PERIGEE_NOT_FOUND && scope_at_home(home);
}

/* Another process may make home's folder while this one makes the temporary
 * folder. Then this one removes its own folder and uses home's, too. *settled:
 * the choice is still the same. */
static int scope_make_base(char base[PATH_MAX], bool *settled) {
  char home[PATH_MAX], after[PATH_MAX];
  *settled = true;
  int status = scope_base(base);
  if (status != PERIGEE_OK)
    return status;
  bool contested = scope_is_contested(base, home);
  status = scope_folder_made(base);
  if (status == PERIGEE_OK && contested &&
      perigee_folder_look(home) == PERIGEE_OK)
    rmdir(base);
  *settled = scope_base(after) == PERIGEE_OK && strcmp(base, after) == 0;
  return status;
}

int scope_make(const char *scope, char path[PATH_MAX]) {
  enum { ATTEMPTS = 10 };
  char base[PATH_MAX];
  bool settled = false;
  int status = PERIGEE_SYSTEM;
  for (int i = 0; i < ATTEMPTS && !settled; i++)
    status = scope_make_base(base, &settled);
  if (status == PERIGEE_OK)
    status = scope_within(base, scope, path);
  return status < 0 ? status : scope_folder_made(path);
}
