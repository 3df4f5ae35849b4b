/* SPDX-License-Identifier: Apache-2.0
 *
 * secret_test.c - where a secret comes from, who may have been able to read
 * it there, and that no message tells it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "perigee.h"
#include "secret.h"

static const char words[] = "correct horse battery staple";
static char folder[] = "/tmp/perigee-secret-XXXXXX";
static char path[64], option[128], reason[256];

static int setup(void **state) {
  (void)state;
  memset(folder + sizeof folder - 7, 'X', 6);
  unsetenv("PERIGEE_SECRET");
  if (!mkdtemp(folder) || !secret_library())
    return -1;
  snprintf(path, sizeof path, "%s/secret", folder);
  snprintf(option, sizeof option, "file:%s", path);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

static void written(const void *bytes, size_t length, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, length), length);
  assert_int_equal(fchmod(fd, mode), 0);
  close(fd);
}

static struct secret loaded(const char *given, const char *scope) {
  struct secret secret;
  int status = secret_load(given, scope, &secret, reason, sizeof reason);
  assert_int_equal(status, PERIGEE_OK);
  return secret;
}

static void refused(const char *given, int status, const char *word) {
  struct secret secret;
  reason[0] = 0;
  assert_int_equal(secret_load(given, NULL, &secret, reason, sizeof reason),
                   status);
  assert_false(secret.set);
  if (!strstr(reason, word))
    fail_msg("\"%s\" does not say \"%s\"", reason, word);
  assert_null(strstr(reason, "horse"));
}

static bool equal(struct secret a, struct secret b) {
  return a.set && b.set && memcmp(a.key, b.key, SECRET_KEY) == 0;
}

static void none_is_none(void **state) {
  (void)state;
  assert_false(loaded(NULL, "x").set);
  assert_false(loaded("", "x").set);
  setenv("PERIGEE_SECRET", "", 1);
  assert_false(loaded(NULL, NULL).set);
}

static void text_file_and_environment_are_one_secret(void **state) {
  (void)state;
  struct secret secret = loaded(words, NULL);
  written(words, sizeof words - 1, 0600);
  assert_true(equal(loaded(option, NULL), secret));
  setenv("PERIGEE_SECRET", words, 1);
  assert_true(equal(loaded(NULL, NULL), secret));
  assert_false(loaded("", NULL).set);
  setenv("PERIGEE_SECRET", option, 1);
  assert_true(equal(loaded(NULL, NULL), secret));
  assert_false(equal(loaded("correct horse battery stapler", NULL), secret));
}

static void one_line_end_is_none_of_it(void **state) {
  (void)state;
  written("correct horse battery staple\n", sizeof words, 0400);
  assert_true(equal(loaded(option, NULL), loaded(words, NULL)));
  written("correct horse battery staple\n\n", sizeof words + 1, 0600);
  assert_false(equal(loaded(option, NULL), loaded(words, NULL)));
}

static void each_scope_has_its_own(void **state) {
  (void)state;
  assert_true(equal(loaded(words, NULL), loaded(words, "")));
  assert_false(equal(loaded(words, "a"), loaded(words, "")));
  assert_false(equal(loaded(words, "a"), loaded(words, "b")));
  assert_true(equal(loaded(words, "a"), loaded(words, "a")));
  /* What ends one may not begin the other. */
  assert_false(equal(loaded("correct horse battery staple", "x"),
                     loaded("orrect horse battery staple", "xc")));
}

static void lengths_are_limited(void **state) {
  (void)state;
  char text[SECRET_MOST + 2];
  memset(text, 'x', sizeof text);
  text[SECRET_LEAST - 1] = 0;
  refused(text, PERIGEE_INVALID, "fewer");
  text[SECRET_LEAST - 1] = 'x';
  text[SECRET_LEAST] = 0;
  assert_true(loaded(text, NULL).set);
  text[SECRET_LEAST] = 'x';
  text[SECRET_MOST] = 0;
  assert_true(loaded(text, NULL).set);
  text[SECRET_MOST] = 'x';
  text[SECRET_MOST + 1] = 0;
  refused(text, PERIGEE_INVALID, "more");
  written(text, SECRET_MOST, 0600);
  assert_true(loaded(option, NULL).set);
  written(text, SECRET_MOST + 1, 0600);
  refused(option, PERIGEE_INVALID, "more");
  written("\n", 1, 0600);
  refused(option, PERIGEE_INVALID, "fewer");
  written("", 0, 0600);
  refused(option, PERIGEE_INVALID, "fewer");
}

static void files_that_others_may_open_are_denied(void **state) {
  (void)state;
  static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0601, 0644};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    written(words, sizeof words, modes[i]);
    refused(option, PERIGEE_DENIED, "chmod 600");
  }
}

static void files_of_other_users_are_denied(void **state) {
  (void)state;
  written(words, sizeof words, 0600);
  if (geteuid() != 0)
    skip();
  assert_int_equal(chown(path, 12345, 12345), 0);
  refused(option, PERIGEE_DENIED, "another user");
}

static void what_is_no_file_is_refused(void **state) {
  (void)state;
  char link[80];
  refused(option, PERIGEE_INVALID, "cannot be read");
  refused("file:", PERIGEE_INVALID, "cannot be read");
  assert_int_equal(mkdir(path, 0700), 0);
  refused(option, PERIGEE_INVALID, "regular");
  rmdir(path);
  assert_int_equal(mkfifo(path, 0600), 0); /* would not end */
  refused(option, PERIGEE_INVALID, "regular");
  unlink(path);
  written(words, sizeof words, 0600);
  snprintf(link, sizeof link, "%s-link", path);
  assert_int_equal(symlink(path, link), 0);
  snprintf(option, sizeof option, "file:%s", link);
  refused(option, PERIGEE_DENIED, "symbolic link");
  unlink(link);
}

static void engines_tell_what_is_wrong_with_theirs(void **state) {
  (void)state;
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options(&o);
  o.secret = "short";
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(NULL), "16 to 4096 bytes"));
  assert_null(strstr(perigee_detail(NULL), "short"));
  written(words, sizeof words, 0644);
  o.secret = option;
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_DENIED);
  assert_non_null(strstr(perigee_detail(NULL), "chmod 600"));
  written(words, sizeof words, 0600);
  assert_int_equal(perigee_engine_open(&o, &engine), PERIGEE_OK);
  perigee_engine_close(engine);
}

int main(void) {
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      test(none_is_none),
      test(text_file_and_environment_are_one_secret),
      test(one_line_end_is_none_of_it),
      test(each_scope_has_its_own),
      test(lengths_are_limited),
      test(files_that_others_may_open_are_denied),
      test(files_of_other_users_are_denied),
      test(what_is_no_file_is_refused),
      test(engines_tell_what_is_wrong_with_theirs),
  };
  return cmocka_run_group_tests_name("secret", tests, NULL, NULL);
}
