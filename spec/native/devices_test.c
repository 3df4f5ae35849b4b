/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_test.c - RDMA devices of a made-up sysfs: which of them are chosen
 * and by which GID, and the options for that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "devices/devices.h"
#include "fake_sysfs.h"

enum {
  DEVICE = sizeof(struct perigee_device),
  GID = sizeof(struct perigee_gid)
};

static char reason[512];

static int choose(const char *text, struct rdma_port *out) {
  struct rdma_options options;
  int status = rdma_options_parse(text, &options, reason, sizeof reason);
  assert_int_equal(status, PERIGEE_OK);
  return rdma_choose_in(fake_root, &options, out, RDMA_NICS, reason,
                        sizeof reason);
}

static void assert_says(const char *text) {
  if (!strstr(reason, text))
    fail_msg("\"%s\" does not say \"%s\"", reason, text);
}

/* ---- Listing ---------------------------------------------------------------- */

static void ports_are_listed_by_name_and_number(void **state) {
  (void)state;
  struct perigee_device list[8];
  fake_roce("mlx5_10", "100 Gb/sec (4X EDR)");
  fake_roce("mlx5_2", "100 Gb/sec (4X EDR)");
  fake_port("mlx5_2", 2, "1: DOWN", "Ethernet", "40 Gb/sec (4X QDR)");
  assert_int_equal(perigee_devices(fake_root, list, DEVICE, 8), 3);
  assert_string_equal(list[0].name, "mlx5_2");
  assert_int_equal(list[0].port, 1);
  assert_string_equal(list[1].name, "mlx5_2");
  assert_int_equal(list[1].port, 2);
  assert_string_equal(list[1].state, "down");
  assert_string_equal(list[1].physical, "disabled");
  assert_int_equal(list[1].gid, -1);
  assert_string_equal(list[2].name, "mlx5_10");
  assert_int_equal(perigee_devices(fake_root, list, DEVICE, 1), 3);
}

static void a_port_is_described(void **state) {
  (void)state;
  char bus[128], link[160];
  struct perigee_device d;
  fake_roce("mlx5_0", "100 Gb/sec (4X EDR)");
  fake_put("20.31.1014", "/class/infiniband/mlx5_0/fw_ver");
  fake_put("1", "/bus/0000:3b:00.0/numa_node");
  fake_put("", "/drivers/mlx5_core/bind");
  snprintf(bus, sizeof bus, "%s/bus/0000:3b:00.0", fake_root);
  snprintf(link, sizeof link, "%s/driver", bus);
  assert_int_equal(symlink("../../drivers/mlx5_core", link), 0);
  snprintf(link, sizeof link, "%s/class/infiniband/mlx5_0/device", fake_root);
  assert_int_equal(symlink("../../../bus/0000:3b:00.0", link), 0);
  assert_int_equal(perigee_devices(fake_root, &d, DEVICE, 1), 1);
  assert_string_equal(d.pci, "0000:3b:00.0");
  assert_string_equal(d.driver, "mlx5_core");
  assert_string_equal(d.firmware, "20.31.1014");
  assert_string_equal(d.netdev, "eth7");
  assert_string_equal(d.link, "ethernet");
  assert_int_equal(d.numa, 1);
  assert_true(d.rate == 100);
  assert_int_equal(d.gid, 3);
  assert_int_equal(d.mtu, 0);
}

static void nonsense_in_files_is_bounded(void **state) {
  (void)state;
  char text[4096];
  struct perigee_device d;
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = 0;
  fake_port("odd", 1, text, text, text);
  fake_put(text, "/class/infiniband/odd/fw_ver");
  fake_put(text, "/class/infiniband/odd/node_desc");
  fake_put("0xffffffffffff", "/class/infiniband/odd/ports/1/lid");
  fake_gid("odd", 1, 0, text, text);
  fake_gid("odd", 1, 1, IPV4, text);
  fake_put("", "/class/infiniband/odd/ports/0/state");
  fake_put("", "/class/infiniband/odd/ports/99999/state");
  fake_put("", "/class/infiniband/odd/ports/README");
  fake_put("a file", "/class/infiniband/a-file");
  assert_int_equal(perigee_devices(fake_root, &d, DEVICE, 1), 1);
  assert_string_equal(d.state, "");
  assert_true(d.rate == 0);
  assert_int_equal(d.lid, 0xffff);
  assert_true(strlen(d.firmware) < sizeof d.firmware);
  assert_true(strlen(d.link) < sizeof d.link);
  assert_int_equal(choose("", &(struct rdma_port){0}), PERIGEE_UNSUPPORTED);
}

static void gids_are_listed(void **state) {
  (void)state;
  struct perigee_gid list[8];
  fake_roce("mlx5_0", "100 Gb/sec");
  fake_gid("mlx5_0", 1, 4, EMPTY, NULL);
  fake_gid("mlx5_0", 1, 200, GLOBAL, V2);
  assert_int_equal(perigee_device_gids(fake_root, "mlx5_0", 1, list, GID, 8),
                   5);
  assert_int_equal(perigee_device_gids(fake_root, "mlx5_0", 2, list, GID, 8),
                   0);
  assert_int_equal(perigee_device_gids(fake_root, "mlx5_0", 1, list, GID, 1),
                   5);
  assert_int_equal(perigee_device_gids(fake_root, "../mlx5_0", 1, list, GID, 1),
                   0);
  assert_string_equal(list[0].type, "RoCE v1");
  assert_string_equal(list[3].type, "RoCE v2");
  assert_string_equal(list[3].address, "::ffff:10.77.0.1");
  assert_string_equal(list[4].address, "2001:db8::1");
  assert_int_equal(list[4].index, 200);
  assert_string_equal(list[4].netdev, "eth7");
}

/* ---- The GID by rule --------------------------------------------------------- */

/* Each of them is better than the ones after it. */
static void gids_have_an_order(void **state) {
  (void)state;
  static const struct {
    const char *gid, *type;
  } order[] = {
      {IPV4, V2}, {GLOBAL, V2}, {LOCAL, V2},
      {IPV4, V1}, {GLOBAL, V1}, {LOCAL, V1},
  };
  struct perigee_device d;
  int count = sizeof order / sizeof *order;
  for (int first = count - 1; first >= 0; first--) {
    fake_port("d", 1, "4: ACTIVE", "Ethernet", "1 Gb/sec");
    for (int i = first; i < count; i++)
      fake_gid("d", 1, count - 1 - i, order[i].gid, order[i].type);
    assert_int_equal(perigee_devices(fake_root, &d, DEVICE, 1), 1);
    assert_int_equal(d.gid, count - 1 - first);
  }
  fake_gid("d", 1, count - 1, IPV4_LOCAL, V2);
  assert_int_equal(perigee_devices(fake_root, &d, DEVICE, 1), 1);
  assert_int_equal(d.gid, count - 2);
}

static void infiniband_takes_the_first_and_its_lid(void **state) {
  (void)state;
  struct rdma_port port;
  fake_port("ib0", 1, "4: ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)");
  fake_gid("ib0", 1, 0, LOCAL, NULL);
  fake_gid("ib0", 1, 1, GLOBAL, NULL);
  assert_int_equal(choose("", &port), 1);
  assert_int_equal(port.gid_index, 0);
  assert_int_equal(port.lid, 0x2f);
  assert_false(port.ethernet);
  assert_false(port.global);
  assert_int_equal(choose("gid=1", &port), 1);
  assert_int_equal(port.gid_index, 1);
  assert_true(port.global);
}

static void a_gid_can_be_forced(void **state) {
  (void)state;
  struct rdma_port ports[RDMA_NICS];
  fake_roce("a", "1 Gb/sec");
  fake_roce("b", "1 Gb/sec");
  assert_int_equal(choose("nics=b,a", ports), 2);
  assert_int_equal(ports[1].gid_index, 3);
  assert_int_equal(choose("nics=b,a gid=2", ports), 2);
  assert_int_equal(ports[0].gid_index, 2);
  assert_int_equal(ports[1].gid_index, 2);
  assert_int_equal(choose("nics=b,a gid=1,2", ports), 2);
  assert_string_equal(ports[0].device, "b");
  assert_int_equal(ports[0].gid_index, 1);
  assert_int_equal(ports[1].gid_index, 2);
  assert_int_equal(choose("nics=a gid=9", ports), PERIGEE_UNSUPPORTED);
  assert_says("a/1 has no GID of index 9");
}

/* ---- Choosing ----------------------------------------------------------------- */

static void the_fastest_active_port_is_chosen(void **state) {
  (void)state;
  struct rdma_port port;
  fake_roce("a", "10 Gb/sec (1X)");
  fake_roce("c", "100 Gb/sec (4X EDR)");
  fake_roce("b", "100 Gb/sec (4X EDR)");
  fake_port("d", 1, "1: DOWN", "Ethernet", "400 Gb/sec (4X NDR)");
  assert_int_equal(choose("", &port), 1);
  assert_string_equal(port.device, "b");
  assert_string_equal(port.netdev, "eth7");
  assert_true(port.ethernet && port.global);
  assert_true(port.rate == 100);
  assert_int_equal(port.numa, -1);
}

static void named_ports_keep_their_order(void **state) {
  (void)state;
  struct rdma_port ports[RDMA_NICS];
  fake_roce("a", "10 Gb/sec");
  fake_port("b", 1, "1: DOWN", "Ethernet", "10 Gb/sec");
  fake_port("b", 2, "4: ACTIVE", "Ethernet", "10 Gb/sec");
  fake_gid("b", 2, 0, IPV4, V2);
  assert_int_equal(choose("nics=b,a:1", ports), 2);
  assert_string_equal(ports[0].device, "b");
  assert_int_equal(ports[0].port, 2);
  assert_string_equal(ports[1].device, "a");
  assert_int_equal(choose("nics=b:1", ports), PERIGEE_UNSUPPORTED);
  assert_says("b/1 is down (disabled), b/2 is active");
}

static void what_is_missing_is_said(void **state) {
  (void)state;
  struct rdma_port port;
  assert_int_equal(choose("", &port), PERIGEE_UNSUPPORTED);
  assert_says("there is no RDMA device: load the driver");
  assert_int_equal(choose("nics=mlx5_0", &port), PERIGEE_UNSUPPORTED);
  assert_says("there is no RDMA port mlx5_0; there are none");
  fake_port("a", 1, "1: DOWN", "Ethernet", "1 Gb/sec");
  fake_gid("a", 1, 0, LOCAL, V2);
  assert_int_equal(choose("", &port), PERIGEE_UNSUPPORTED);
  assert_says("no RDMA port is active: a/1 is down (disabled); plug in its "
              "cable, or `ip link set eth7 up`");
  fake_port("b", 1, "4: ACTIVE", "Ethernet", "1 Gb/sec");
  assert_int_equal(choose("nics=b", &port), PERIGEE_UNSUPPORTED);
  assert_says("b/1 has no GID yet");
  assert_int_equal(choose("nics=b:2", &port), PERIGEE_UNSUPPORTED);
  assert_says("there is no RDMA port b:2; there are a:1, b:1");
}

static void many_ports_do_not_overflow_a_sentence(void **state) {
  (void)state;
  struct rdma_options options;
  struct rdma_port port;
  char name[64], small[16] = "";
  for (int i = 0; i < 40; i++) {
    snprintf(name, sizeof name, "a_device_of_a_really_long_name_%d", i);
    fake_port(name, 1, "2: INIT", "InfiniBand", "1 Gb/sec");
  }
  assert_int_equal(choose("", &port), PERIGEE_UNSUPPORTED);
  assert_says("start a subnet manager");
  assert_int_equal(choose("nics=x", &port), PERIGEE_UNSUPPORTED);
  rdma_options_parse("", &options, reason, sizeof reason);
  rdma_choose_in(fake_root, &options, &port, 1, small, sizeof small);
  assert_int_equal(strlen(small), sizeof small - 1);
}

static void the_environment_hides(void **state) {
  (void)state;
  struct rdma_port port;
  struct perigee_device list[4];
  fake_roce("a", "100 Gb/sec");
  fake_roce("b", "10 Gb/sec");
  setenv("PERIGEE_NICS", "b:1 c", 1);
  assert_int_equal(perigee_devices(fake_root, list, DEVICE, 4), 1);
  assert_int_equal(perigee_device_gids(fake_root, "a", 1, NULL, GID, 0), 0);
  assert_int_equal(perigee_device_gids(fake_root, "b", 1, NULL, GID, 0), 4);
  assert_int_equal(choose("", &port), 1);
  assert_string_equal(port.device, "b");
  assert_int_equal(choose("nics=a", &port), PERIGEE_UNSUPPORTED);
  assert_says("there is b:1 that PERIGEE_NICS does not hide");
  setenv("PERIGEE_NICS", "z", 1);
  assert_int_equal(choose("", &port), PERIGEE_UNSUPPORTED);
  assert_says("PERIGEE_NICS=z in the environment hides");
  setenv("PERIGEE_NICS", "../a", 1);
  assert_int_equal(choose("", &port), PERIGEE_INVALID);
  assert_says("PERIGEE_NICS in the environment: \"../a\" is no NIC");
  assert_int_equal(perigee_devices(fake_root, list, DEVICE, 4),
                   PERIGEE_INVALID);
  setenv("PERIGEE_NICS", "", 1);
  assert_int_equal(perigee_devices(fake_root, list, DEVICE, 4), 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_make, fake_remove)
      TEST(ports_are_listed_by_name_and_number),
      TEST(a_port_is_described),
      TEST(nonsense_in_files_is_bounded),
      TEST(gids_are_listed),
      TEST(gids_have_an_order),
      TEST(infiniband_takes_the_first_and_its_lid),
      TEST(a_gid_can_be_forced),
      TEST(the_fastest_active_port_is_chosen),
      TEST(named_ports_keep_their_order),
      TEST(what_is_missing_is_said),
      TEST(many_ports_do_not_overflow_a_sentence),
      TEST(the_environment_hides),
  };
  return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
