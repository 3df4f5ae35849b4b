/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_options_test.c - RDMA options that are right or wrong, with the
 * library installed or not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "devices/devices.h"

static char reason[512];

static int parse(const char *text, struct rdma_options *out) {
  reason[0] = 0;
  return rdma_options_parse(text, out, reason, sizeof reason);
}

static void assert_refused(const char *text, const char *sentence) {
  struct rdma_options options = {.qps = 77};
  assert_int_equal(parse(text, &options), PERIGEE_INVALID);
  assert_int_equal(options.qps, 77);
  if (!strstr(reason, sentence))
    fail_msg("%s: \"%s\" does not say \"%s\"", text, reason, sentence);
}

static void nothing_said_is_the_defaults(void **state) {
  (void)state;
  struct rdma_options o;
  unsetenv("PERIGEE_RDMA");
  for (int i = 0; i < 3; i++) {
    assert_int_equal(parse(i == 0 ? NULL : i == 1 ? "" : " ,, ", &o), 0);
    assert_int_equal(o.nic_count, 0);
    assert_int_equal(o.gid_count, 0);
    assert_int_equal(o.qps, 1);
    assert_int_equal(o.hop_limit, 64);
    assert_int_equal(o.timeout, 14);
    assert_int_equal(o.retries, 6);
    assert_int_equal(o.stripe, 256 << 10);
    assert_true(o.windows);
  }
}

static void everything_can_be_said(void **state) {
  (void)state;
  struct rdma_options o;
  assert_int_equal(
      parse("nics=mlx5_0:1,mlx5_1 qps=2 gid=3,5 sl=4 tc=106 hop=8 pkey=1 "
            "mtu=1024 timeout=16 retry=3 rnr=2 stripe=1m "
            "depth=256 inline=64 windows=0",
            &o),
      PERIGEE_OK);
  assert_int_equal(o.nic_count, 2);
  assert_string_equal(o.nics[0].device, "mlx5_0");
  assert_int_equal(o.nics[0].port, 1);
  assert_string_equal(o.nics[1].device, "mlx5_1");
  assert_int_equal(o.nics[1].port, 0);
  assert_int_equal(o.gid_count, 2);
  assert_int_equal(o.gids[1], 5);
  assert_int_equal(o.qps, 2);
  assert_int_equal(o.service_level, 4);
  assert_int_equal(o.traffic_class, 106);
  assert_int_equal(o.hop_limit, 8);
  assert_int_equal(o.pkey_index, 1);
  assert_int_equal(o.mtu, 1024);
  assert_int_equal(o.timeout, 16);
  assert_int_equal(o.retries, 3);
  assert_int_equal(o.rnr_retries, 2);
  assert_int_equal(o.stripe, 1 << 20);
  assert_int_equal(o.depth, 256);
  assert_int_equal(o.inline_size, 64);
  assert_false(o.windows);
}

static void commas_part_pairs_too(void **state) {
  (void)state;
  struct rdma_options o;
  assert_int_equal(parse("qps=4,nics=a,b:2,gid=1,2,\n stripe=64K", &o), 0);
  assert_int_equal(o.qps, 4);
  assert_int_equal(o.nic_count, 2);
  assert_int_equal(o.nics[1].port, 2);
  assert_int_equal(o.gids[0], 1);
  assert_int_equal(o.stripe, 64 << 10);
}

static void the_environment_is_asked_where_nothing_is_said(void **state) {
  (void)state;
  struct rdma_options o;
  setenv("PERIGEE_RDMA", "qps=3", 1);
  assert_int_equal(parse(NULL, &o), PERIGEE_OK);
  assert_int_equal(o.qps, 3);
  assert_int_equal(parse("", &o), PERIGEE_OK);
  assert_int_equal(o.qps, 1);
  unsetenv("PERIGEE_RDMA");
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  char text[300] = "nics=";
  assert_refused("qbs=2", "there is no \"qbs\"; there are nics, gid, qps");
  assert_refused("qps", "\"qps\" has no key");
  assert_refused("qps=2,3", "\"3\" has no key");
  assert_refused("qps=2 qps=3", "\"qps\" is told twice");
  assert_refused("qps=0", "\"qps=0\" cannot be: it takes 1 to 8");
  assert_refused("qps=9", "it takes 1 to 8");
  assert_refused("qps=-1", "it takes 1 to 8");
  assert_refused("qps=", "it takes 1 to 8");
  assert_refused("qps=2x", "it takes 1 to 8");
  assert_refused("qps=18446744073709551618", "it takes 1 to 8");
  assert_refused("retry=7", "it takes 0 to 6");
  assert_refused("rnr=7", "it takes 0 to 6");
  assert_refused("timeout=0", "it takes 8 to 20");
  assert_refused("mtu=1500", "a power of two from 256");
  assert_refused("mtu=128", "a power of two from 256");
  assert_refused("stripe=9999999999G", "it takes 4096 to 1073741824");
  assert_refused("stripe=1T", "it takes 4096");
  assert_refused("gid=256", "an index, 0 to 255");
  assert_refused("gid=1,2", "gid has 2 values for 1 NICs");
  assert_refused("gid=1,2,3,4,5", "an index");
  assert_refused("nics=a,b,c,d,e", "e is one NIC too many: 4 are allowed");
  assert_refused("nics=a,a", "NIC a is named twice");
  assert_refused("nics=../x", "\"../x\" is no NIC");
  assert_refused("nics=a:0", "\"a:0\" is no NIC");
  assert_refused("nics=a:256", "\"a:256\" is no NIC");
  assert_refused("nics=", "\"\" is no NIC");
  memset(text + 5, 'a', sizeof text - 6);
  assert_refused(text, "is no NIC");
}

static void the_library_is_there_or_says_why(void **state) {
  (void)state;
  const char *why = NULL;
  const struct verbs_library *library = verbs_library(&why);
  assert_non_null(why);
  assert_ptr_equal(verbs_library(NULL), library);
  if (library)
    assert_non_null(library->wc_status_str(IBV_WC_SUCCESS));
  else
    assert_non_null(strstr(why, "libibverbs"));
  assert_ptr_equal(verbs_obstacle("none", reason, sizeof reason), reason);
  assert_true(*reason);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_said_is_the_defaults),
      cmocka_unit_test(everything_can_be_said),
      cmocka_unit_test(commas_part_pairs_too),
      cmocka_unit_test(the_environment_is_asked_where_nothing_is_said),
      cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(the_library_is_there_or_says_why),
  };
  return cmocka_run_group_tests_name("devices_options", tests, NULL, NULL);
}
