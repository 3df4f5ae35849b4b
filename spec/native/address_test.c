/* SPDX-License-Identifier: Apache-2.0
 *
 * address_test.c - texts that are valid addresses, texts that are not and the
 * reasons given, and the system's addresses as texts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "net/address.h"
#include "perigee.h"

static struct address parsed(const char *text) {
  struct address a;
  char reason[ADDRESS_REASON];
  if (address_parse(text, &a, reason) != PERIGEE_OK)
    fail_msg("%s: %s", text, reason);
  return a;
}

static void paths(void **state) {
  (void)state;
  struct address a = parsed("unix:/run/x.sock");
  assert_false(a.tcp);
  assert_string_equal(a.at.un.sun_path, "/run/x.sock");
  assert_int_equal(a.length, sizeof a.at.un);
  a = parsed("unix:@a-name");
  assert_int_equal(a.at.un.sun_path[0], 0);
  assert_string_equal(a.at.un.sun_path + 1, "a-name");
  assert_int_equal(a.length, offsetof(struct sockaddr_un, sun_path) + 7);
}

/* A path of 107 bytes is the longest, a host's name of 255. */
static void lengths(void **state) {
  (void)state;
  char text[400] = "unix:", reason[ADDRESS_REASON];
  struct address a;
  memset(text + 5, 'p', 107);
  assert_int_equal(address_parse(text, &a, reason), PERIGEE_OK);
  text[5 + 107] = 'p';
  assert_int_equal(address_parse(text, &a, reason), PERIGEE_TOO_LARGE);
  assert_non_null(strstr(reason, "108 bytes"));
  memset(text, 0, sizeof text);
  memcpy(text, "tcp://", 7);
  memset(text + 6, 'h', 255);
  memcpy(text + 6 + 255, ":1", 3);
  a = parsed(text);
  assert_int_equal(strlen(a.host), 255);
  memcpy(text + 6 + 255, "h:1", 4);
  assert_int_equal(address_parse(text, &a, reason), PERIGEE_TOO_LARGE);
}

static void numbers(void **state) {
  (void)state;
  static const char texts[][32] = {
      "tcp://127.0.0.1:7471",  "tcp://0.0.0.0:0",
      "tcp://255.1.2.3:65535", "tcp://[::]:0",
      "tcp://[::1]:80",        "tcp://[2001:db8::5]:7471",
      "tcp://[fe80::1%lo]:9",  "tcp://[fe80::1%987654321]:9"};
  char text[ADDRESS_TEXT];
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct address a = parsed(texts[i]);
    assert_int_equal(a.length, address_length(&a.at));
    address_text(&a.at, text);
    assert_string_equal(text, texts[i]);
  }
  assert_int_equal(parsed("tcp://[fe80::1%1]:9").at.in6.sin6_scope_id, 1);
}

static void names(void **state) {
  (void)state;
  struct address a = parsed("tcp://node-7.cluster_a.example:7471");
  assert_true(a.tcp);
  assert_int_equal(a.length, 0);
  assert_int_equal(a.port, 7471);
  assert_string_equal(a.host, "node-7.cluster_a.example");
}

static bool only_here(const char *text) {
  struct address a = parsed(text);
  return address_loopback(&a.at);
}

static void loopback(void **state) {
  (void)state;
  static const char here[][32] = {"tcp://127.0.0.1:1", "tcp://127.9.9.9:1",
                                  "tcp://[::1]:1",
                                  "tcp://[::ffff:127.0.0.1]:1"};
  static const char anywhere[][32] = {
      "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.1:1",
      "tcp://[fe80::1%lo]:1", "tcp://[::ffff:10.0.0.1]:1"};
  for (size_t i = 0; i < 4; i++)
    assert_true(only_here(here[i]));
  for (size_t i = 0; i < 5; i++)
    assert_false(only_here(anywhere[i]));
}

/* 203.0.113.9 is in a range for documents, which no host has. */
static void where_it_leads(void **state) {
  (void)state;
  static const char here[][32] = {"unix:/run/x.sock", "tcp://127.9.9.9:1",
                                  "tcp://[::1]:1", "tcp://0.0.0.0:1",
                                  "tcp://[::]:1"};
  for (size_t i = 0; i < sizeof here / sizeof *here; i++)
    assert_int_equal(perigee_address_leads(here[i]), PERIGEE_LEADS_HERE);
  assert_int_equal(perigee_address_leads("tcp://localhost:1"),
                   PERIGEE_LEADS_NAME);
  assert_int_equal(perigee_address_leads("tcp://203.0.113.9:1"),
                   PERIGEE_LEADS_ELSEWHERE);
  assert_int_equal(perigee_address_leads("tcp://::1:5"), PERIGEE_INVALID);
  assert_non_null(strstr(perigee_detail(NULL), "goes in brackets"));
  assert_int_equal(perigee_address_leads(NULL), PERIGEE_INVALID);
}

/* The reason for each says what to write instead. */
static void what_is_none(void **state) {
  (void)state;
  static const struct {
    const char *text, *said;
  } wrong[] = {{"", "use unix:PATH or tcp://HOST:PORT"},
               {"/run/x.sock", "use unix:PATH or tcp://HOST:PORT"},
               {"udp://a:1", "use unix:PATH or tcp://HOST:PORT"},
               {"unix:", "the socket path is empty"},
               {"unix:@", "the socket path is empty"},
               {"tcp://", "has no port"},
               {"tcp://host", "has no port"},
               {"tcp://[::1]", "has no port"},
               {"tcp://[::1", "has no port"},
               {"tcp://:7471", "names no host"},
               {"tcp://[]:7471", "names no host"},
               {"tcp://::1:7471", "goes in brackets"},
               {"tcp://[::1]x:1", "has no port"},
               {"tcp://[::g]:1", "no IPv6 address"},
               {"tcp://[::1%nosuchif]:1", "no IPv6 address"},
               {"tcp://[::1%1garbage]:1", "no IPv6 address"},
               {"tcp://[::1%4294967297]:1", "no IPv6 address"},
               {"tcp://[::1%0]:1", "no IPv6 address"},
               {"tcp://[fe80::1]:1", "name the interface"},
               {"tcp://*:7471", "all IPv4 or all IPv6 addresses"},
               {"tcp://*:7471", "tcp://0.0.0.0:7471 or tcp://[::]:7471"},
               {"tcp://a b:1", "is no name"},
               {"tcp://a:", "has to be a number"},
               {"tcp://a:x", "has to be a number"},
               {"tcp://a:1/", "has to be a number"},
               {"tcp://a:-1", "has to be a number"},
               {"tcp://a:65536", "has to be a number"},
               {"tcp://a:99999999999999999999", "has to be a number"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    struct address a;
    char reason[ADDRESS_REASON];
    assert_true(address_parse(wrong[i].text, &a, reason) < 0);
    if (!strstr(reason, wrong[i].said))
      fail_msg("%s: %s", wrong[i].text, reason);
  }
}

/* The reason fits its buffer, however long the text is. */
static void texts_without_end(void **state) {
  (void)state;
  static char text[1 << 16];
  static const char starts[][8] = {"unix:", "tcp://", "tcp://[", "x"};
  for (size_t i = 0; i < 4; i++) {
    struct address a;
    char reason[ADDRESS_REASON];
    memset(text, 'y', sizeof text - 1);
    memcpy(text, starts[i], strlen(starts[i]));
    assert_true(address_parse(text, &a, reason) < 0);
    memcpy(text + sizeof text - 6, "]:1", 4);
    assert_true(address_parse(text, &a, reason) < 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(paths),        cmocka_unit_test(lengths),
      cmocka_unit_test(numbers),      cmocka_unit_test(names),
      cmocka_unit_test(loopback),     cmocka_unit_test(where_it_leads),
      cmocka_unit_test(what_is_none), cmocka_unit_test(texts_without_end)};
  return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
