/* SPDX-License-Identifier: Apache-2.0
 *
 * secret_test.c - the sources of a secret, who could have read it there, and
 * that no message contains it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "perigee.h"
#include "security/secret.h"
#include "security/vault.h"

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
  /* The end of one must not be taken for the beginning of the other. */
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
  refused(option, PERIGEE_DENIED, "more");
  written("\n", 1, 0600);
  refused(option, PERIGEE_DENIED, "fewer");
  written("", 0, 0600);
  refused(option, PERIGEE_DENIED, "fewer");
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
  refused(option, PERIGEE_NOT_FOUND, "cannot be read");
  refused("file:", PERIGEE_NOT_FOUND, "cannot be read");
  assert_int_equal(mkdir(path, 0700), 0);
  refused(option, PERIGEE_DENIED, "regular");
  rmdir(path);
  assert_int_equal(mkfifo(path, 0600), 0); /* would not end */
  refused(option, PERIGEE_DENIED, "regular");
  unlink(path);
  written(words, sizeof words, 0600);
  snprintf(link, sizeof link, "%s-link", path);
  assert_int_equal(symlink(path, link), 0);
  snprintf(option, sizeof option, "file:%s", link);
  refused(option, PERIGEE_DENIED, "symbolic link");
  unlink(link);
}

/* "words\r\n" is not the secret of who wrote "words\n", and none says so. */
static void files_of_windows_are_denied(void **state) {
  static const char crlf[] = "correct horse battery\r\n",
                    marked[] = "\xef\xbb\xbf"
                               "correct horse battery\n",
                    wide[] = "\xff\xfe"
                             "c\0o\0r\0r\0e\0c\0t\0 \0h\0o\0r\0s\0e\0",
                    fine[] = "correct\r\nhorse battery\n";
  (void)state;
  written(crlf, sizeof crlf - 1, 0600);
  refused(option, PERIGEE_DENIED, "CR LF");
  written(marked, sizeof marked - 1, 0600);
  refused(option, PERIGEE_DENIED, "byte order mark");
  written(wide, sizeof wide - 1, 0600);
  refused(option, PERIGEE_DENIED, "byte order mark");
  written(fine, sizeof fine - 1, 0600);
  loaded(option, "");
  refused("correct horse battery\r", PERIGEE_INVALID, "ends in CR");
}

/* ---- Stretched, or not ------------------------------------------------------ */

static void bytes_that_nobody_chose_are_told_by_their_form(void **state) {
  (void)state;
  static const char *const drawn[] = {
      "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
      "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08",
      "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
      "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg",
      ("\x9f\x86\xd0\x81\x88\x4c\x7d\x65\x9a\x2f\xea\xa0\xc5\x5a\xd0\x15"
       "\xa3\xbf\x4f\x1b\x2b\x0b\x82\x2c\xd1\x5d\x6c\x15\xb0\xf0\x0a\x08")};
  for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
    assert_true(stretch_random(drawn[i], strlen(drawn[i])));
}

static void what_somebody_may_have_chosen_is_not_of_it(void **state) {
  (void)state;
  static const char *const chosen[] = {
      words,
      "0000000000000000000000000000000000000000000000000000000000000001",
      "1234567890123456789012345678901234567890123", /* of base64's length, */
      "correcthorsebatterystaplecorrecthorsebatter",
      "Correcthorsebatterystaplecorrecthorsebatter=",
      "abababababababababababababababA1abababababab",
      "thirty-two letters and no random", /* and of 32 bytes */
      ("\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6"
       "\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4")};
  for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
    assert_false(stretch_random(chosen[i], strlen(chosen[i])));
}

static int64_t worked(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Stretching takes milliseconds; the second use, or a drawn secret, does
 * not. */
static void a_guess_costs_and_the_second_time_nothing(void **state) {
  (void)state;
  static const char drawn[] = "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=";
  int64_t start = worked();
  struct secret first = loaded("chosen by somebody", "once");
  int64_t stretched = worked() - start;
  assert_true(stretched > 10000000);
  start = worked();
  assert_true(equal(loaded("chosen by somebody", "once"), first));
  assert_true(worked() - start < stretched / 10);
  start = worked();
  assert_true(loaded(drawn, "once").set);
  assert_true(worked() - start < stretched / 10);
}

static void what_is_remembered_is_of_one_text_and_scope(void **state) {
  (void)state;
  char text[32];
  struct secret first = loaded(words, "a");
  for (int i = 0; i < 20; i++) { /* more than are remembered */
    snprintf(text, sizeof text, "secret number %06d", i);
    assert_false(equal(loaded(text, "a"), first));
  }
  assert_true(equal(loaded(words, "a"), first));
}

/* ---- The environment ---------------------------------------------------------- */

static void the_environments_text_is_taken_out(void **state) {
  (void)state;
  setenv("PERIGEE_SECRET", words, 1);
  const char *value = getenv("PERIGEE_SECRET");
  static const char zeros[sizeof words];
  assert_non_null(value);
  struct secret secret = loaded(NULL, "a");
  assert_string_equal(getenv("PERIGEE_SECRET"), STRETCH_TAKEN);
  assert_memory_equal(value + 1, zeros, sizeof words - 1);
  assert_true(equal(loaded(NULL, "a"), secret)); /* for other engines, */
  assert_true(equal(loaded(NULL, "b"), loaded(words, "b"))); /* of any scope */
  setenv("PERIGEE_SECRET", "another one, set by the program", 1);
  assert_false(equal(loaded(NULL, "a"), secret));
  setenv("PERIGEE_SECRET", "", 1);
  assert_false(loaded(NULL, "a").set);
}

static void a_reference_stays(void **state) {
  (void)state;
  written(words, sizeof words - 1, 0600);
  setenv("PERIGEE_SECRET", option, 1);
  assert_true(loaded(NULL, NULL).set);
  assert_string_equal(getenv("PERIGEE_SECRET"), option);
}

/* The child has no secret of its own, and does not use its parent's. */
static void a_child_is_told_that_it_was_taken(void **state) {
  (void)state;
  setenv("PERIGEE_SECRET", STRETCH_TAKEN, 1);
  refused(NULL, PERIGEE_DENIED, "file:PATH");
}

/* Runs this program once more with a secret in its environment. */
static int runs_with_a_secret(void) {
  static char bytes[1 << 16];
  struct secret secret;
  if (!secret_library() ||
      secret_load(NULL, NULL, &secret, reason, sizeof reason) < 0 ||
      !secret.set)
    return 1;
  int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
  ssize_t length = read(fd, bytes, sizeof bytes);
  close(fd);
  if (length <= 0 || memmem(bytes, (size_t)length, words, 8))
    return 2;
  return memmem(bytes, (size_t)length, "PERIGEE_SECRET=*", 16) ? 0 : 3;
}

static void the_system_shows_it_no_more(void **state) {
  (void)state;
  setenv("PERIGEE_SECRET", words, 1);
  pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "secret_test", "again", NULL);
    _exit(9);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

/* ---- Locked memory ------------------------------------------------------------ */

static void cells_are_blank_and_used_again(void **state) {
  (void)state;
  static const uint8_t blank[VAULT_LARGE];
  struct vault vault;
  vault_open(&vault);
  size_t lengths[] = {1, VAULT_SMALL, VAULT_SMALL + 1, VAULT_LARGE};
  for (size_t i = 0; i < 4; i++) {
    uint8_t *cell = vault_take(&vault, lengths[i]);
    assert_int_equal((uintptr_t)cell % 16, 0);
    assert_memory_equal(cell, blank, lengths[i]);
    memset(cell, 0xff, lengths[i]);
    vault_give(&vault, cell, lengths[i]);
    assert_ptr_equal(vault_take(&vault, lengths[i]), cell);
    assert_memory_equal(cell, blank, lengths[i]);
    vault_give(&vault, cell, lengths[i]);
  }
  assert_null(vault_take(&vault, VAULT_LARGE + 1));
  vault_close(&vault);
}

/* As many as there may be sessions: keys beyond the limit of locked memory
 * are allocated anyway, and this is reported. */
static void keys_beyond_what_may_be_locked_are_had(void **state) {
  (void)state;
  enum { SESSIONS = 10000 };
  struct rlimit before, none = {0, 0};
  struct vault vault;
  vault_open(&vault);
  uint8_t **cells = calloc(SESSIONS, sizeof *cells);
  getrlimit(RLIMIT_MEMLOCK, &before);
  none.rlim_max = before.rlim_max;
  for (int i = 0; i < SESSIONS; i++) {
    if (i == SESSIONS / 2)
      setrlimit(RLIMIT_MEMLOCK, &none);
    assert_non_null(cells[i] = vault_take(&vault, VAULT_SMALL));
    memset(cells[i], i, VAULT_SMALL);
  }
  setrlimit(RLIMIT_MEMLOCK, &before);
  for (int i = 0; i < SESSIONS; i++)
    assert_int_equal(cells[i][VAULT_SMALL - 1], (uint8_t)i);
  if (geteuid() != 0) /* who may lock all it likes */
    assert_true(vault.refused);
  vault_close(&vault);
  free(cells);
}

static uint64_t resident(void) {
  unsigned long all = 0, resident = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%lu %lu", &all, &resident), 2);
  fclose(f);
  return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Every second one first, so that all chunks are half empty for a while. */
static void what_keys_took_is_given_back(void **state) {
  (void)state;
  enum { SESSIONS = 10000, MOST = 1 << 20 };
  struct vault vault;
  vault_open(&vault);
  uint8_t **cells = calloc(SESSIONS, sizeof *cells);
  memset(cells, 1, SESSIONS * sizeof *cells);
  uint64_t before = resident();
  for (int i = 0; i < SESSIONS; i++)
    assert_non_null(cells[i] = vault_take(&vault, VAULT_LARGE));
  assert_true(resident() > before + SESSIONS * VAULT_LARGE / 2);
  for (int i = 0; i < SESSIONS; i += 2)
    vault_give(&vault, cells[i], VAULT_LARGE);
  for (int i = 1; i < SESSIONS; i += 2)
    vault_give(&vault, cells[i], VAULT_LARGE);
  assert_true(resident() < before + MOST);
  vault_close(&vault);
  free(cells);
}

static void engines_tell_what_is_wrong_with_theirs(void **state) {
  (void)state;
  struct perigee_options o;
  struct perigee_engine *engine;
  perigee_options_init(&o, sizeof o);
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

int main(int count, char **arguments) {
  (void)arguments;
  if (count > 1)
    return runs_with_a_secret();
#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      test(none_is_none),
      test(text_file_and_environment_are_one_secret),
      test(one_line_end_is_none_of_it),
      test(each_scope_has_its_own),
      test(lengths_are_limited),
      test(files_that_others_may_open_are_denied),
      test(files_of_windows_are_denied),
      test(files_of_other_users_are_denied),
      test(what_is_no_file_is_refused),
      test(bytes_that_nobody_chose_are_told_by_their_form),
      test(what_somebody_may_have_chosen_is_not_of_it),
      test(a_guess_costs_and_the_second_time_nothing),
      test(what_is_remembered_is_of_one_text_and_scope),
      test(the_environments_text_is_taken_out),
      test(a_reference_stays),
      test(a_child_is_told_that_it_was_taken),
      test(the_system_shows_it_no_more),
      test(cells_are_blank_and_used_again),
      test(keys_beyond_what_may_be_locked_are_had),
      test(what_keys_took_is_given_back),
      test(engines_tell_what_is_wrong_with_theirs),
  };
  return cmocka_run_group_tests_name("secret", tests, NULL, NULL);
}
