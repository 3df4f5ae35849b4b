/* SPDX-License-Identifier: Apache-2.0
 *
 * scope_test.c - which folder the names of a scope are in, in real environments
 * and with real folders.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/scope.h"
#include "perigee.h"

static const char *const variables[] = {"PERIGEE_REGISTRY", "PERIGEE_SCOPE",
                                        "XDG_RUNTIME_DIR", "TMPDIR", "HOME"};
enum { VARIABLES = sizeof variables / sizeof *variables };

static char root[64], before[VARIABLES][PATH_MAX];
static bool was_set[VARIABLES];

/* A path below the folder of the test; four are valid at once. */
static const char *at(const char *rest) {
  static char buffers[4][PATH_MAX];
  static int turn;
  char *buffer = buffers[turn++ % 4];
  snprintf(buffer, PATH_MAX, "%s%s", root, rest);
  return buffer;
}

static void folder(const char *rest) {
  assert_int_equal(perigee_folder(at(rest)), PERIGEE_OK);
}

static int setup(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/perigee-scope-test-XXXXXX");
  if (!mkdtemp(root))
    return -1;
  for (int i = 0; i < VARIABLES; i++) {
    const char *value = getenv(variables[i]);
    was_set[i] = value != NULL;
    snprintf(before[i], PATH_MAX, "%s", value ? value : "");
    unsetenv(variables[i]);
  }
  return 0;
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  for (int i = 0; i < VARIABLES; i++)
    if (was_set[i])
      setenv(variables[i], before[i], 1);
    else
      unsetenv(variables[i]);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void set(const char *variable, const char *value) {
  assert_int_equal(setenv(variable, value, 1), 0);
}

/* The folder of a scope; its length is checked. */
static const char *chosen(const char *scope) {
  static char path[PATH_MAX];
  int length = perigee_scope_folder(scope, path, sizeof path);
  if (length < 0)
    fail_msg("%s: %s", perigee_status_name(length), perigee_detail(NULL));
  assert_int_equal(length, strlen(path));
  return path;
}

/* The temporary folder of this user, with the scope "s" behind it. */
static const char *temporary(const char *more) {
  char rest[128];
  snprintf(rest, sizeof rest, "/tmp/perigee-%u%s", (unsigned)getuid(), more);
  return at(rest);
}

static const char *home(const char *more) {
  char host[SCOPE_HOST], rest[2 * SCOPE_HOST];
  scope_host(host);
  assert_true(strlen(host) > 0);
  host[strcspn(host, ".")] = '\0';
  snprintf(rest, sizeof rest, "/home/.cache/perigee/%s%s", host, more);
  return at(rest);
}

/* A world without a runtime folder. */
static void wander(void) {
  folder("/tmp");
  folder("/home");
  set("TMPDIR", at("/tmp///"));
  set("HOME", at("/home/"));
}

static void make(const char *path) {
  assert_int_equal(perigee_folder(path), PERIGEE_OK);
}

/* ---- The scope ----------------------------------------------------------- */

static void the_scope_is_the_environments_by_default(void **state) {
  (void)state;
  set("XDG_RUNTIME_DIR", "/x");
  assert_string_equal(chosen(NULL), "/x/perigee/default");
  assert_string_equal(chosen(""), "/x/perigee/default");
  set("PERIGEE_SCOPE", "");
  assert_string_equal(chosen(NULL), "/x/perigee/default");
  set("PERIGEE_SCOPE", "lab:1");
  assert_string_equal(chosen(NULL), "/x/perigee/lab:1");
  assert_string_equal(chosen("other"), "/x/perigee/other");
}

static void a_scope_has_a_names_letters(void **state) {
  (void)state;
  char path[PATH_MAX], longest[66];
  const char *const wrong[] = {".",   ".hidden", "a/b",      "..",
                               "a b", "\xc3",    "../other", "a\n"};
  set("XDG_RUNTIME_DIR", "/x");
  memset(longest, 'a', sizeof longest);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(perigee_scope_folder(wrong[i], path, sizeof path),
                     PERIGEE_INVALID);
    set("PERIGEE_SCOPE", wrong[i]);
    assert_int_equal(perigee_scope_folder(NULL, path, sizeof path),
                     PERIGEE_INVALID);
    assert_non_null(strstr(perigee_detail(NULL), "PERIGEE_SCOPE"));
  }
  longest[65] = '\0';
  assert_int_equal(perigee_scope_folder(longest, path, sizeof path),
                   PERIGEE_INVALID);
  longest[64] = '\0';
  assert_int_equal(perigee_scope_folder(longest, path, sizeof path),
                   strlen("/x/perigee/") + 64);
}

static void a_path_needs_its_room(void **state) {
  (void)state;
  char path[64] = "untouched";
  static char longest[2 * PATH_MAX] = "/";
  set("XDG_RUNTIME_DIR", "/x");
  assert_int_equal(perigee_scope_folder("s", NULL, 0), PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_scope_folder("s", path, 12), PERIGEE_TOO_LARGE);
  assert_string_equal(path, "untouched");
  assert_int_equal(perigee_scope_folder("s", path, 13), 12);
  assert_string_equal(path, "/x/perigee/s");
  memset(longest + 1, 'a', sizeof longest - 2);
  set("XDG_RUNTIME_DIR", longest);
  assert_int_equal(perigee_scope_folder("s", path, sizeof path),
                   PERIGEE_TOO_LARGE);
  unsetenv("XDG_RUNTIME_DIR");
  set("TMPDIR", longest);
  assert_int_equal(perigee_scope_folder("s", path, sizeof path),
                   PERIGEE_TOO_LARGE);
}

/* ---- The folder ---------------------------------------------------------- */

static void a_runtime_folder_comes_first(void **state) {
  (void)state;
  wander();
  make(temporary(""));
  set("XDG_RUNTIME_DIR", at("/run"));
  assert_string_equal(chosen("s"), at("/run/perigee/s"));
  set("XDG_RUNTIME_DIR", "run");
  assert_string_equal(chosen("s"), temporary("/s"));
  set("XDG_RUNTIME_DIR", "");
  assert_string_equal(chosen("s"), temporary("/s"));
}

static void a_registrys_folder_comes_before_that(void **state) {
  (void)state;
  char path[PATH_MAX];
  const char *const servers[] = {"redis://host", "http://host", "folder",
                                 "etcd://a,b"};
  set("XDG_RUNTIME_DIR", "/x");
  set("PERIGEE_REGISTRY", "");
  assert_string_equal(chosen("s"), "/x/perigee/s");
  set("PERIGEE_REGISTRY", "folder:/names//");
  assert_string_equal(chosen("s"), "/names/s");
  set("PERIGEE_REGISTRY", "folder:///");
  assert_string_equal(chosen("s"), "/s");
  set("PERIGEE_REGISTRY", "folder:names");
  assert_int_equal(perigee_scope_folder("s", path, sizeof path),
                   PERIGEE_INVALID);
  for (size_t i = 0; i < sizeof servers / sizeof *servers; i++) {
    set("PERIGEE_REGISTRY", servers[i]);
    assert_int_equal(perigee_scope_folder("s", path, sizeof path),
                     PERIGEE_UNSUPPORTED);
    assert_non_null(strstr(perigee_detail(NULL), "perigee lookup"));
  }
}

static void the_temporary_folder_is_this_users(void **state) {
  (void)state;
  wander();
  assert_string_equal(chosen("s"), temporary("/s"));
  make(temporary(""));
  make(home(""));
  assert_string_equal(chosen("s"), temporary("/s"));
  unsetenv("TMPDIR");
  char expected[80], own[64];
  snprintf(own, sizeof own, "/tmp/perigee-%u", (unsigned)getuid());
  snprintf(expected, sizeof expected, "%s/s", own);
  if (perigee_folder_look(own) == PERIGEE_OK)
    assert_string_equal(chosen("s"), expected);
}

static void homes_folder_stays_where_it_was_chosen(void **state) {
  (void)state;
  wander();
  make(home(""));
  assert_string_equal(chosen("s"), home("/s"));
  unsetenv("HOME");
  assert_string_equal(chosen("s"), temporary("/s"));
  set("HOME", at("/nothing"));
  assert_string_equal(chosen("s"), temporary("/s"));
  set("HOME", "home");
  assert_string_equal(chosen("s"), temporary("/s"));
}

static void what_is_anothers_is_left(void **state) {
  (void)state;
  wander();
  assert_int_equal(symlink("home", temporary("")), 0);
  assert_string_equal(chosen("s"), home("/s"));
  unsetenv("HOME");
  assert_string_equal(chosen("s"), temporary("/s"));
  if (geteuid() != 0)
    return;
  set("HOME", at("/home"));
  assert_int_equal(unlink(temporary("")), 0);
  make(temporary(""));
  assert_string_equal(chosen("s"), temporary("/s"));
  assert_int_equal(chown(temporary(""), 12345, 12345), 0);
  assert_string_equal(chosen("s"), home("/s"));
  assert_int_equal(chown(at("/home"), 12345, 12345), 0);
  assert_string_equal(chosen("s"), temporary("/s"));
}

/* ---- Making it ----------------------------------------------------------- */

static void made_folders_are_private(void **state) {
  (void)state;
  char path[PATH_MAX];
  struct stat entry;
  wander();
  assert_int_equal(scope_make("s", path), PERIGEE_OK);
  assert_string_equal(path, temporary("/s"));
  assert_int_equal(stat(path, &entry), 0);
  assert_int_equal(entry.st_mode & 07777, 0700);
  assert_int_equal(scope_make("s", path), PERIGEE_OK);
  assert_int_equal(chmod(path, 0755), 0);
  assert_int_equal(scope_make("s", path), PERIGEE_DENIED);
  assert_non_null(strstr(perigee_detail(NULL), path));
}

static void a_folder_at_home_is_made_too(void **state) {
  (void)state;
  char path[PATH_MAX];
  wander();
  assert_int_equal(symlink("home", temporary("")), 0);
  assert_int_equal(scope_make("s", path), PERIGEE_OK);
  assert_string_equal(path, home("/s"));
  unsetenv("HOME");
  assert_int_equal(scope_make("s", path), PERIGEE_DENIED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_scope_is_the_environments_by_default),
      TEST(a_scope_has_a_names_letters),
      TEST(a_path_needs_its_room),
      TEST(a_runtime_folder_comes_first),
      TEST(a_registrys_folder_comes_before_that),
      TEST(the_temporary_folder_is_this_users),
      TEST(homes_folder_stays_where_it_was_chosen),
      TEST(what_is_anothers_is_left),
      TEST(made_folders_are_private),
      TEST(a_folder_at_home_is_made_too),
  };
  return cmocka_run_group_tests_name("scopes", tests, NULL, NULL);
}
