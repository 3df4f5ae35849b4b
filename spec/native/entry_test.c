/* SPDX-License-Identifier: Apache-2.0
 *
 * entry_test.c - entries of names, as other processes write them, and worse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <endian.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <unistd.h>

#include <cmocka.h>

#include "host/name.h"
#include "perigee.h"

enum { DATA = PERIGEE_ENTRY_MAX };

static char root[64], folder[PATH_MAX];
static int held = -1;
static struct perigee_entry *entry;

/* ---- Data ---------------------------------------------------------------- */

static uint8_t data[2 * DATA];
static struct perigee_encoder out;

static void begin(uint64_t pairs) {
  perigee_encode_begin(&out, data, sizeof data);
  perigee_encode_table(&out, 0, pairs);
}

static void text(const char *key, const char *value) {
  perigee_encode_text(&out, key);
  perigee_encode_text(&out, value);
}

static void number(const char *key, double value) {
  perigee_encode_text(&out, key);
  perigee_encode_number(&out, value);
}

static void list(const char *key, uint64_t elements, uint64_t pairs) {
  perigee_encode_text(&out, key);
  perigee_encode_table(&out, elements, pairs);
}

/* The three fields that have to be there, and so many more, which follow. */
static void begin_with(uint64_t more) {
  begin(3 + more);
  text("name", "one");
  text("scope", "s");
  list("addresses", 1, 0);
  perigee_encode_text(&out, "tcp://10.0.0.1:7");
}

static uint64_t length(void) {
  if (perigee_encode_end(&out) < 0)
    fail_msg("the data of a test: %s", perigee_detail(NULL));
  return out.length;
}

/* ---- In a folder --------------------------------------------------------- */

static int setup(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/perigee-entry-test-XXXXXX");
  if (!mkdtemp(root) || setenv("XDG_RUNTIME_DIR", root, 1) != 0)
    return -1;
  unsetenv("PERIGEE_REGISTRY");
  unsetenv("PERIGEE_SCOPE");
  if (perigee_scope_folder("s", folder, sizeof folder) < 0)
    return -1;
  return perigee_folder(folder);
}

static int teardown(void **state) {
  (void)state;
  char command[128];
  perigee_entry_free(entry);
  entry = NULL;
  perigee_name_release(held);
  held = -1;
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void publish(const void *bytes, uint64_t count) {
  if (held < 0)
    held = perigee_name_hold(folder, "one");
  assert_true(held >= 0);
  assert_int_equal(perigee_entry_write(held, bytes, count), PERIGEE_OK);
}

static int find(void) {
  perigee_entry_free(entry);
  return perigee_entry_find("s", "one", &entry);
}

/* What was encoded is found as an entry. */
static void found(void) {
  publish(data, length());
  int status = find();
  if (status < 0)
    fail_msg("%s: %s", perigee_status_name(status), perigee_detail(NULL));
}

/* Only the address of its socket is known. */
static void found_bare(void) {
  char address[PATH_MAX + 64];
  snprintf(address, sizeof address, "unix:%s/one.sock", folder);
  assert_int_equal(find(), PERIGEE_OK);
  assert_string_equal(entry->name, "one");
  assert_string_equal(entry->scope, "s");
  assert_int_equal(entry->address_count, 1);
  assert_string_equal(entry->addresses[0], address);
  assert_null(entry->addresses[1]);
  assert_null(entry->state);
  assert_int_equal(entry->service_count, 0);
}

static void refused(void) {
  publish(data, length());
  found_bare();
}

/* ---- What is found ------------------------------------------------------- */

static void all_fields_are_told(void **state) {
  (void)state;
  begin_with(11);
  text("kind", "worker");
  text("state", "up");
  text("host", "h");
  text("epoch", "00ff");
  text("machine", "m");
  number("pid", 77);
  number("term", 12.5);
  number("weight", 1);
  list("services", 0, 2);
  number("store", 0x1p53);
  number("calc", 3);
  list("metadata", 0, 1);
  list("deep", 2, 0);
  perigee_encode_nil(&out);
  perigee_encode_table(&out, 0, 0);
  list("later", 0, 0);
  found();
  assert_int_equal(entry->size, sizeof *entry);
  assert_string_equal(entry->kind, "worker");
  assert_string_equal(entry->state, "up");
  assert_string_equal(entry->host, "h");
  assert_string_equal(entry->epoch, "00ff");
  assert_int_equal(entry->pid, 77);
  assert_true(entry->term == 12.5);
  assert_int_equal(entry->address_count, 1);
  assert_string_equal(entry->addresses[0], "tcp://10.0.0.1:7");
  assert_int_equal(entry->service_count, 2);
  assert_string_equal(entry->services[0].name, "calc");
  assert_int_equal(entry->services[0].version, 3);
  assert_string_equal(entry->services[1].name, "store");
  assert_int_equal(entry->services[1].version, UINT64_C(1) << 53);
}

static void fields_of_other_types_are_unknown(void **state) {
  (void)state;
  begin_with(8);
  number("kind", 1);
  list("state", 1, 1);
  perigee_encode_number(&out, 1);
  text("a", "b");
  perigee_encode_text(&out, "host");
  perigee_encode_string(&out, "a\0b", 3);
  perigee_encode_text(&out, "epoch");
  perigee_encode_boolean(&out, true);
  text("pid", "7");
  perigee_encode_text(&out, "term");
  perigee_encode_int64(&out, 7);
  text("services", "calc");
  perigee_encode_number(&out, 7);
  perigee_encode_text(&out, "of a number");
  found();
  assert_null(entry->kind);
  assert_null(entry->state);
  assert_null(entry->host);
  assert_null(entry->epoch);
  assert_int_equal(entry->pid, 0);
  assert_true(entry->term == 0);
  assert_int_equal(entry->service_count, 0);
  const double odd[] = {-1, 0.5, 0x1p54, 1e300};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    begin_with(2);
    number("pid", odd[i]);
    list("services", 0, 1);
    number("calc", odd[i]);
    found();
    assert_int_equal(entry->pid, 0);
    assert_int_equal(entry->services[0].version, 0);
  }
}

static void addresses_are_read_as_lua_reads_lists(void **state) {
  (void)state;
  begin(3);
  text("name", "one");
  text("scope", "s");
  list("addresses", 3, 4);
  perigee_encode_text(&out, "a");
  perigee_encode_text(&out, "b");
  perigee_encode_nil(&out);
  perigee_encode_number(&out, 3);
  perigee_encode_text(&out, "c");
  perigee_encode_number(&out, 5);
  perigee_encode_text(&out, "behind a hole");
  perigee_encode_number(&out, 0x1p40);
  perigee_encode_table(&out, 0, 0);
  perigee_encode_text(&out, "x");
  perigee_encode_text(&out, "of a word");
  found();
  assert_int_equal(entry->address_count, 3);
  assert_string_equal(entry->addresses[2], "c");
  begin(3);
  text("name", "one");
  text("scope", "s");
  perigee_encode_text(&out, "addresses");
  struct perigee_value from_zero = {PERIGEE_VALUE_TABLE, 1, {.pairs = 0}, 2};
  perigee_encode_value(&out, &from_zero);
  perigee_encode_boolean(&out, true);
  perigee_encode_text(&out, "a");
  found();
  assert_int_equal(entry->address_count, 1);
  assert_string_equal(entry->addresses[0], "a");
}

static void texts_with_a_zero_are_left_out(void **state) {
  (void)state;
  begin(4);
  text("name", "one");
  text("scope", "s");
  list("addresses", 3, 0);
  perigee_encode_text(&out, "a");
  perigee_encode_string(&out, "b\0", 2);
  perigee_encode_text(&out, "c");
  list("services", 1, 3);
  perigee_encode_text(&out, "an element");
  perigee_encode_string(&out, "\0", 1);
  perigee_encode_number(&out, 1);
  number("", 4);
  number("ok", 5);
  found();
  assert_int_equal(entry->address_count, 2);
  assert_string_equal(entry->addresses[1], "c");
  assert_int_equal(entry->service_count, 2);
  assert_string_equal(entry->services[0].name, "");
  assert_string_equal(entry->services[1].name, "ok");
}

static void an_entry_may_be_long(void **state) {
  (void)state;
  enum { SERVICES = 40000 };
  char name[32];
  begin_with(1);
  list("services", 0, SERVICES);
  for (int i = SERVICES; i > 0; i--) {
    snprintf(name, sizeof name, "%08d", i);
    number(name, i);
  }
  found();
  assert_int_equal(entry->service_count, SERVICES);
  for (int i = 0; i < SERVICES; i++)
    assert_int_equal(entry->services[i].version, i + 1);
}

/* ---- What is no entry ---------------------------------------------------- */

static void nobody_is_not_found(void **state) {
  (void)state;
  assert_int_equal(find(), PERIGEE_NOT_FOUND);
  assert_null(entry);
  assert_non_null(strstr(perigee_detail(NULL), folder));
  assert_int_equal(perigee_entry_find("nowhere", "one", &entry),
                   PERIGEE_NOT_FOUND);
  begin_with(0);
  publish(data, length());
  assert_int_equal(find(), PERIGEE_OK);
  perigee_name_release(held);
  held = -1;
  assert_int_equal(find(), PERIGEE_NOT_FOUND);
}

static void wrong_names_are_invalid(void **state) {
  (void)state;
  const char *const wrong[] = {"", "a/b", "..", ".", "a b"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(perigee_entry_find("s", wrong[i], &entry),
                     PERIGEE_INVALID);
    if (i > 0)
      assert_int_equal(perigee_entry_find(wrong[i], "one", &entry),
                       PERIGEE_INVALID);
  }
  assert_int_equal(perigee_entry_find("s", NULL, &entry), PERIGEE_INVALID);
  perigee_entry_free(NULL);
}

static void a_long_path_is_too_large(void **state) {
  (void)state;
  char name[65];
  memset(name, 'n', 64);
  name[64] = '\0';
  assert_int_equal(perigee_entry_find(name, name, &entry), PERIGEE_TOO_LARGE);
  assert_int_equal(perigee_entry_find("s", name + 24, &entry),
                   PERIGEE_NOT_FOUND);
}

static void who_has_published_nothing_is_found(void **state) {
  (void)state;
  held = perigee_name_hold(folder, "one");
  found_bare();
  publish("", 0);
  found_bare();
}

static void entries_of_others_are_none(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++) {
    begin(3);
    perigee_encode_text(&out, "name");
    perigee_encode_string(&out, "one\0two", i == 0 ? 7 : i == 1 ? 2 : 3);
    perigee_encode_text(&out, "scope");
    perigee_encode_string(&out, "s\0", i == 2 ? 2 : i == 3 ? 0 : 1);
    list("addresses", 1, 0);
    if (i == 4)
      perigee_encode_number(&out, 7);
    else
      perigee_encode_text(&out, "tcp://10.0.0.1:7");
    if (i < 5)
      refused();
    else
      found();
  }
}

static void addresses_have_to_be_there(void **state) {
  (void)state;
  begin(2);
  text("name", "one");
  text("scope", "s");
  refused();
  for (int i = 0; i < 6; i++) {
    begin(3);
    text("scope", "s");
    text("name", "one");
    if (i == 0)
      text("addresses", "tcp://10.0.0.1:7");
    else
      list("addresses", (uint64_t)(i < 4), (uint64_t)(i >= 4));
    if (i == 1)
      perigee_encode_nil(&out);
    else if (i == 2)
      perigee_encode_table(&out, 0, 0);
    else if (i == 3)
      perigee_encode_string(&out, "\0", 1);
    else if (i == 4)
      number("a", 1);
    else if (i == 5) {
      perigee_encode_number(&out, 2);
      perigee_encode_text(&out, "tcp://10.0.0.1:7");
    }
    refused();
  }
}

/* LuaJIT refuses a key that comes twice. */
static void nothing_comes_twice(void **state) {
  (void)state;
  begin_with(2);
  text("kind", "a");
  text("kind", "a");
  refused();
  begin_with(1);
  text("name", "one");
  refused();
  begin_with(1);
  list("services", 0, 2);
  number("a", 1);
  number("a", 2);
  refused();
}

static void other_values_are_no_entry(void **state) {
  (void)state;
  perigee_encode_begin(&out, data, sizeof data);
  perigee_encode_text(&out, "one");
  refused();
  perigee_encode_begin(&out, data, sizeof data);
  perigee_encode_nil(&out);
  begin(0);
  refused();
  perigee_encode_begin(&out, data, sizeof data);
  perigee_encode_table(&out, 2, 0);
  perigee_encode_table(&out, 0, 1);
  text("name", "one");
  perigee_encode_number(&out, 1);
  refused();
}

/* A table's tag with a count of 2^26 and no more; deep tables; bad tags. */
static void hostile_bytes_are_no_entry(void **state) {
  (void)state;
  static const uint8_t counts[][6] = {
      {0x09, 0xff, 0x00, 0x00, 0x00, 0x04},
      {0x0a, 0xff, 0xff, 0xff, 0xff, 0x03},
      {0x0c, 0xff, 0x00, 0x00, 0x00, 0x04},
      {0x0d, 0xff, 0xff, 0xff, 0xff, 0xff},
      {0x04, 0, 0, 0, 0, 0},
      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
  };
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    for (size_t n = 1; n <= sizeof counts[i]; n++) {
      publish(counts[i], n);
      found_bare();
    }
  memset(data, 0x0c, 2000);
  for (size_t i = 1; i < 2000; i += 2)
    data[i] = 1;
  publish(data, 2000);
  found_bare();
}

/* Each cut and each changed byte of an entry gives an entry or none. */
static void broken_entries_are_read_to_their_end(void **state) {
  (void)state;
  begin_with(4);
  number("pid", 77);
  list("services", 1, 2);
  perigee_encode_nil(&out);
  number("calc", 3);
  number("store", 4);
  list("metadata", 1, 0);
  perigee_encode_table(&out, 0, 0);
  text("state", "up");
  uint64_t whole = length();
  for (uint64_t n = 0; n < whole; n++) {
    publish(data, n);
    found_bare();
  }
  for (uint64_t n = 0; n < whole; n++)
    for (int bit = 0; bit < 8; bit++) {
      data[n] ^= (uint8_t)(1 << bit);
      publish(data, whole);
      assert_int_equal(find(), PERIGEE_OK);
      assert_string_equal(entry->name, "one");
      assert_true(entry->address_count >= 1);
      data[n] ^= (uint8_t)(1 << bit);
    }
}

/* ---- As a text ----------------------------------------------------------- */

static const char prefix[] = "perigee-entry-1:";
enum { LONGEST = sizeof prefix + (DATA + 64) / 3 * 4 + 8 };
static char line[2 * LONGEST];

/* Writes the text of so many bytes of data. */
static void encode(uint64_t count) {
  uint8_t *summed = malloc(8 + count);
  uint64_t sum = htole64(entry_sum(data, count));
  assert_non_null(summed);
  memcpy(summed, &sum, 8);
  memcpy(summed + 8, data, count);
  memcpy(line, prefix, sizeof prefix);
  sodium_bin2base64(line + sizeof prefix - 1, sizeof line - sizeof prefix,
                    summed, 8 + count, sodium_base64_VARIANT_ORIGINAL);
  free(summed);
}

static int parse(const char *from) {
  perigee_entry_free(entry);
  return perigee_entry_parse(from, &entry);
}

static void parsed(const char *from) {
  int status = parse(from);
  if (status < 0)
    fail_msg("%s: %s", perigee_status_name(status), perigee_detail(NULL));
  assert_string_equal(entry->name, "one");
  assert_string_equal(entry->addresses[0], "tcp://10.0.0.1:7");
}

static void a_text_has_an_entry(void **state) {
  (void)state;
  for (uint64_t more = 0; more < 4; more++) {
    begin_with(1);
    text("kind", &"kind"[more]);
    encode(length());
    parsed(line);
    assert_string_equal(entry->kind, &"kind"[more]);
    size_t whole = strlen(line);
    memcpy(line + whole, "\n", 2);
    parsed(line);
    memcpy(line + whole, "\n\n", 3);
    assert_int_equal(parse(line), PERIGEE_PROTOCOL);
    assert_null(entry);
  }
  assert_int_equal(parse(NULL), PERIGEE_INVALID);
}

static void a_text_of_another_scope_is_an_entry(void **state) {
  (void)state;
  begin(3);
  text("name", "two");
  text("scope", "elsewhere");
  list("addresses", 1, 0);
  perigee_encode_text(&out, "tcp://10.0.0.1:7");
  encode(length());
  assert_int_equal(parse(line), PERIGEE_OK);
  assert_string_equal(entry->scope, "elsewhere");
  for (int i = 0; i < 2; i++) {
    begin(3);
    text(i == 0 ? "nome" : "name", i == 1 ? "no name" : "two");
    text("scope", "elsewhere");
    list("addresses", 1, 0);
    perigee_encode_text(&out, "tcp://10.0.0.1:7");
    encode(length());
    assert_int_equal(parse(line), PERIGEE_PROTOCOL);
  }
}

static void cut_texts_are_found(void **state) {
  (void)state;
  char cut[512];
  for (uint64_t more = 0; more < 3; more++) {
    begin_with(1);
    text("kind", &"kind"[more]);
    encode(length());
    for (size_t n = 0; n < strlen(line); n++) {
      snprintf(cut, sizeof cut, "%.*s", (int)n, line);
      assert_int_equal(parse(cut), PERIGEE_PROTOCOL);
      snprintf(cut, sizeof cut, "%.400s", line + n + 1);
      assert_int_equal(parse(cut), PERIGEE_PROTOCOL);
    }
  }
}

static void changed_texts_are_found(void **state) {
  (void)state;
  static const char blanks[] = " \t\n\r\f\v=%.-_\x80\xff";
  begin_with(0);
  encode(length());
  size_t whole = strlen(line);
  for (size_t n = 0; n < whole; n++) {
    char was = line[n];
    for (int bit = 0; bit < 8; bit++) {
      line[n] = (char)(was ^ 1 << bit);
      assert_int_equal(parse(line), PERIGEE_PROTOCOL);
    }
    for (const char *blank = blanks; *blank; blank++) {
      line[n] = *blank;
      if (line[n] != was)
        assert_int_equal(parse(line), PERIGEE_PROTOCOL);
    }
    line[n] = was;
  }
  parsed(line);
}

static void blanks_in_texts_are_found(void **state) {
  (void)state;
  char wide[600];
  begin_with(0);
  encode(length());
  for (size_t n = 0; n <= strlen(line); n++)
    for (const char *blank = " \n\t="; *blank; blank++) {
      snprintf(wide, sizeof wide, "%.*s%c%.400s", (int)n, line, *blank,
               line + n);
      if (line[n] || *blank != '\n')
        assert_int_equal(parse(wide), PERIGEE_PROTOCOL);
    }
}

static void a_text_is_bounded(void **state) {
  (void)state;
  static char long_name[DATA];
  begin_with(1);
  memset(long_name, 'k', sizeof long_name - 1);
  text("kind", long_name);
  perigee_encode_end(&out);
  uint64_t over = out.length - DATA;
  begin_with(1);
  long_name[sizeof long_name - 1 - over] = '\0';
  text("kind", long_name);
  assert_int_equal(length(), DATA);
  encode(DATA);
  parsed(line);
  begin_with(1);
  long_name[sizeof long_name - 1 - over] = 'k';
  text("kind", long_name);
  encode(out.length);
  int status = parse(line);
  assert_true(status == PERIGEE_TOO_LARGE || status == PERIGEE_PROTOCOL);
  memset(line + sizeof prefix - 1, 'A', sizeof line - sizeof prefix);
  line[sizeof line - 1] = '\0';
  assert_int_equal(parse(line), PERIGEE_TOO_LARGE);
}

static void hostile_texts_are_no_entry(void **state) {
  (void)state;
  static const uint8_t counts[] = {0x09, 0xff, 0x00, 0x00, 0x00, 0x04};
  const char *const wrong[] = {
      "", "\n", prefix, "perigee-entry-2:AAAA", "perigee-entry-1:AAAAAAAAAAA=",
      "x"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(parse(wrong[i]), PERIGEE_PROTOCOL);
  memcpy(data, counts, sizeof counts);
  for (uint64_t n = 0; n <= sizeof counts; n++) {
    encode(n);
    assert_int_equal(parse(line), PERIGEE_PROTOCOL);
  }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(all_fields_are_told),
      TEST(fields_of_other_types_are_unknown),
      TEST(addresses_are_read_as_lua_reads_lists),
      TEST(texts_with_a_zero_are_left_out),
      TEST(an_entry_may_be_long),
      TEST(nobody_is_not_found),
      TEST(wrong_names_are_invalid),
      TEST(a_long_path_is_too_large),
      TEST(who_has_published_nothing_is_found),
      TEST(entries_of_others_are_none),
      TEST(addresses_have_to_be_there),
      TEST(nothing_comes_twice),
      TEST(other_values_are_no_entry),
      TEST(hostile_bytes_are_no_entry),
      TEST(broken_entries_are_read_to_their_end),
      TEST(a_text_has_an_entry),
      TEST(a_text_of_another_scope_is_an_entry),
      TEST(cut_texts_are_found),
      TEST(changed_texts_are_found),
      TEST(blanks_in_texts_are_found),
      TEST(a_text_is_bounded),
      TEST(hostile_texts_are_no_entry),
  };
  return cmocka_run_group_tests_name("entries", tests, NULL, NULL);
}
