/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_sysfs.c - see fake_sysfs.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ftw.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "fake_sysfs.h"

#define PORT "/class/infiniband/%s/ports/%d"

char fake_root[64];

int fake_make(void **state) {
  (void)state;
  unsetenv("PERIGEE_NICS");
  unsetenv("PERIGEE_RDMA");
  snprintf(fake_root, sizeof fake_root, "/tmp/perigee-sysfs-XXXXXX");
  return mkdtemp(fake_root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *entry, int kind,
                      struct FTW *place) {
  (void)entry, (void)kind, (void)place;
  return remove(path);
}

int fake_remove(void **state) {
  (void)state;
  return nftw(fake_root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void make_folders(char *path) {
  for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
    *slash = 0;
    mkdir(path, 0755);
    *slash = '/';
  }
}

void fake_put(const char *line, const char *format, ...) {
  char path[512];
  va_list list;
  int used = snprintf(path, sizeof path, "%s", fake_root);
  va_start(list, format);
  vsnprintf(path + used, sizeof path - (size_t)used, format, list);
  va_end(list);
  make_folders(path);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, "%s\n", line);
  fclose(file);
}

void fake_port(const char *name, int port, const char *state, const char *link,
               const char *rate) {
  bool active = strstr(state, "ACTIVE");
  bool routed = strcmp(link, "InfiniBand") != 0;
  fake_put(state, PORT "/state", name, port);
  fake_put(active ? "5: LinkUp" : "3: Disabled", PORT "/phys_state", name,
           port);
  fake_put(link, PORT "/link_layer", name, port);
  fake_put(rate, PORT "/rate", name, port);
  fake_put(routed ? "0x0" : "0x2f", PORT "/lid", name, port);
}

void fake_gid(const char *name, int port, int index, const char *gid,
              const char *type) {
  fake_put(gid, PORT "/gids/%d", name, port, index);
  if (!type)
    return;
  fake_put(type, PORT "/gid_attrs/types/%d", name, port, index);
  fake_put("eth7", PORT "/gid_attrs/ndevs/%d", name, port, index);
}

void fake_roce(const char *name, const char *rate) {
  fake_port(name, 1, "4: ACTIVE", "Ethernet", rate);
  fake_gid(name, 1, 0, LOCAL, V1);
  fake_gid(name, 1, 1, LOCAL, V2);
  fake_gid(name, 1, 2, IPV4, V1);
  fake_gid(name, 1, 3, IPV4, V2);
}
