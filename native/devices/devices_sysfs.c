/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_sysfs.c - reads what the kernel tells about RDMA devices in sysfs:
 * one folder for each device below class/infiniband.
 *
 * Every file holds one short line. A file that is missing, too long or no
 * number leaves its field empty: a device is listed as long as its folder
 * exists, and it may disappear at any moment.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "devices.h"

#define CLASS "class/infiniband"
enum { PATH = 512, LINE = 128, PORTS_LISTED = 255 };

/* ---- Lines and links ----------------------------------------------------- */

__attribute__((format(printf, 2, 0))) static bool
path_print(char out[PATH], const char *format, va_list list) {
  int length = vsnprintf(out, PATH, format, list);
  return length > 0 && length < PATH;
}

/* Reads the first line of a file without trailing blanks; "" if there is
 * none. */
__attribute__((format(printf, 3, 4))) static bool
line_read(char *out, size_t size, const char *format, ...) {
  char path[PATH];
  va_list list;
  va_start(list, format);
  bool fits = path_print(path, format, list);
  va_end(list);
  out[0] = 0;
  int fd = fits ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0)
    return false;
  ssize_t length = read(fd, out, size - 1);
  close(fd);
  out[length > 0 ? length : 0] = 0;
  out[strcspn(out, "\n")] = 0;
  for (size_t end = strlen(out); end && isspace((uint8_t)out[end - 1]); end--)
    out[end - 1] = 0;
  return out[0];
}

/* Reads the last part of a link's target. */
__attribute__((format(printf, 3, 4))) static bool
link_read(char *out, size_t size, const char *format, ...) {
  char path[PATH], target[PATH];
  va_list list;
  va_start(list, format);
  bool fits = path_print(path, format, list);
  va_end(list);
  ssize_t length = fits ? readlink(path, target, sizeof target - 1) : -1;
  out[0] = 0;
  if (length < 0)
    return false;
  target[length] = 0;
  const char *slash = strrchr(target, '/');
  const char *name = slash ? slash + 1 : target;
  if (strlen(name) < size)
    memcpy(out, name, strlen(name) + 1);
  return out[0];
}

bool sysfs_pci_place(const char *sysfs, const char *address,
                     char out[SYSFS_PLACE]) {
  char path[PATH];
  int length =
      snprintf(path, sizeof path, "%s/bus/pci/devices/%s", sysfs, address);
  out[0] = 0;
  if (length >= (int)sizeof path || !*address || strchr(address, '/'))
    return false;
  return realpath(path, out);
}

static int32_t numa_read(const char *folder, const char *file) {
  char line[LINE];
  return line_read(line, sizeof line, "%s/%s", folder, file)
             ? (int32_t)strtol(line, NULL, 10)
             : -1;
}

int32_t sysfs_pci_numa(const char *sysfs, const char *address) {
  char place[SYSFS_PLACE];
  return sysfs_pci_place(sysfs, address, place) ? numa_read(place, "numa_node")
                                                : -1;
}

static void text_lower(char *text) {
  for (; *text; text++)
    *text = (char)tolower((uint8_t)*text);
}

/* Reads "4: ACTIVE" as "active". */
static void state_read(char *out, size_t size, const char *folder,
                       const char *file) {
  char line[LINE];
  line_read(line, sizeof line, "%s/%s", folder, file);
  const char *colon = strchr(line, ':');
  const char *word = colon ? colon + 1 + strspn(colon + 1, " ") : "";
  snprintf(out, size, "%.*s", (int)size - 1, word);
  text_lower(out);
}

/* ---- Ports and devices --------------------------------------------------- */

/* True for "0000:3b:00.0"; false for devices made by software. */
static bool name_is_pci(const char *name) {
  unsigned domain, bus, slot, function;
  return sscanf(name, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4;
}

static void device_read(const char *folder, struct perigee_device *out) {
  if (link_read(out->pci, sizeof out->pci, "%s/device", folder) &&
      !name_is_pci(out->pci))
    out->pci[0] = 0;
  if (!link_read(out->driver, sizeof out->driver, "%s/device/driver", folder))
    line_read(out->driver, sizeof out->driver, "%s/node_desc", folder);
  line_read(out->firmware, sizeof out->firmware, "%s/fw_ver", folder);
  out->numa = numa_read(folder, "device/numa_node");
}

static int sysfs_best_gid(const char *sysfs, const struct perigee_device *port);

static void port_read(const char *sysfs, struct perigee_device *out) {
  char folder[PATH], line[LINE];
  struct device_gid gid;
  snprintf(folder, sizeof folder, "%s/" CLASS "/%s/ports/%u", sysfs, out->name,
           out->port);
  state_read(out->state, sizeof out->state, folder, "state");
  state_read(out->physical, sizeof out->physical, folder, "phys_state");
  line_read(out->link, sizeof out->link, "%s/link_layer", folder);
  text_lower(out->link);
  if (line_read(line, sizeof line, "%s/rate", folder))
    out->rate = strtod(line, NULL);
  if (line_read(line, sizeof line, "%s/lid", folder))
    out->lid = (uint32_t)strtoul(line, NULL, 16) & 0xffff;
  out->gid = sysfs_best_gid(sysfs, out);
  if (sysfs_gid(sysfs, out, out->gid < 0 ? 0 : (uint32_t)out->gid, &gid))
    memcpy(out->netdev, gid.netdev, sizeof out->netdev);
}

static int entry_is_visible(const struct dirent *entry) {
  return entry->d_name[0] != '.' && strlen(entry->d_name) < RDMA_NAME;
}

/* Lists the names in a folder, "2" before "10". Returns their number, or 0. */
static int folder_read(const char *path, struct dirent ***names) {
  int count = scandir(path, names, entry_is_visible, versionsort);
  return count < 0 ? 0 : count;
}

static void folder_free(struct dirent **names, int count) {
  for (int i = 0; i < count; i++)
    free(names[i]);
  if (count)
    free(names);
}

static int ports_read(const char *sysfs, const char *name,
                      struct perigee_device *list, int capacity) {
  char folder[PATH];
  struct dirent **ports = NULL;
  struct perigee_device device = {0};
  snprintf(folder, sizeof folder, "%s/" CLASS "/%s", sysfs, name);
  memcpy(device.name, name, strlen(name) + 1); /* as `visible` bounds it */
  device_read(folder, &device);
  strncat(folder, "/ports", sizeof folder - strlen(folder) - 1);
  int count = folder_read(folder, &ports), kept = 0;
  for (int i = 0; i < count; i++) {
    unsigned long port = strtoul(ports[i]->d_name, NULL, 10);
    if (port < 1 || port > PORTS_LISTED)
      continue;
    if (kept < capacity) {
      list[kept] = device;
      list[kept].port = (uint32_t)port;
      port_read(sysfs, &list[kept]);
    }
    kept++;
  }
  folder_free(ports, count);
  return kept;
}

int sysfs_devices(const char *sysfs, struct perigee_device *list,
                  int capacity) {
  char folder[PATH];
  struct dirent **devices = NULL;
  int count = 0, found = 0;
  if (snprintf(folder, sizeof folder, "%s/" CLASS, sysfs) < PATH / 2)
    count = folder_read(folder, &devices);
  for (int i = 0; i < count; i++)
    found += ports_read(sysfs, devices[i]->d_name,
                        list + (found < capacity ? found : capacity),
                        found < capacity ? capacity - found : 0);
  folder_free(devices, count);
  return found;
}

/* ---- GIDs ---------------------------------------------------------------- */

/* RoCE v2 is better than v1; then routed addresses, IPv4 before IPv6, are
 * better than link-local ones. SCORE_BEST is the highest score. */
enum { SCORE_BEST = 7 };

/* Scores compare GIDs: 0 is unusable, more is better. */
static int gid_score(const struct device_gid *gid, bool ethernet) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  static const uint8_t none[16];
  const uint8_t *b = gid->bytes;
  if (memcmp(b, none, sizeof none) == 0)
    return 0;
  if (!ethernet)
    return gid->index == 0;
  bool ipv4 = memcmp(b, mapped, sizeof mapped) == 0;
  bool local = ipv4 ? b[12] == 169 && b[13] == 254
                    : b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
  bool second = strcmp(gid->type, "RoCE v2") == 0;
  return (second ? 4 : 0) + (local ? 1 : ipv4 ? 3 : 2);
}

static void type_name(char *type, size_t size, bool ethernet) {
  if (strcmp(type, "RoCE v2") != 0)
    snprintf(type, size, "%s", ethernet ? "RoCE v1" : "IB");
}

bool sysfs_port(const char *sysfs, const char *name, uint32_t port,
                struct perigee_device *out) {
  memset(out, 0, sizeof *out);
  if (strlen(name) >= sizeof out->name || strchr(name, '/') || *name == '.')
    return false;
  memcpy(out->name, name, strlen(name) + 1);
  out->port = port;
  bool there =
      line_read(out->link, sizeof out->link,
                "%s/" CLASS "/%s/ports/%u/link_layer", sysfs, name, port);
  text_lower(out->link);
  return there;
}

bool sysfs_gid(const char *sysfs, const struct perigee_device *port,
               uint32_t index, struct device_gid *gid) {
  static const uint8_t none[16];
  char folder[PATH / 2], line[LINE];
  memset(gid, 0, sizeof *gid);
  gid->index = index;
  int length = snprintf(folder, sizeof folder, "%s/" CLASS "/%s/ports/%u",
                        sysfs, port->name, port->port);
  if (length >= (int)sizeof folder ||
      !line_read(line, sizeof line, "%s/gids/%u", folder, index) ||
      inet_pton(AF_INET6, line, gid->bytes) != 1 ||
      memcmp(gid->bytes, none, sizeof none) == 0)
    return false;
  line_read(gid->type, sizeof gid->type, "%s/gid_attrs/types/%u", folder,
            index);
  type_name(gid->type, sizeof gid->type, strcmp(port->link, "ethernet") == 0);
  line_read(gid->netdev, sizeof gid->netdev, "%s/gid_attrs/ndevs/%u", folder,
            index);
  return true;
}

/* Returns the index of the best GID, or -1: none is usable. */
static int sysfs_best_gid(const char *sysfs,
                          const struct perigee_device *port) {
  bool ethernet = strcmp(port->link, "ethernet") == 0;
  int best = -1, best_score = 0;
  struct device_gid gid;
  uint32_t count = ethernet ? RDMA_GIDS : 1;
  for (uint32_t i = 0; i < count && best_score < SCORE_BEST; i++) {
    bool there = sysfs_gid(sysfs, port, i, &gid);
    int score = there ? gid_score(&gid, ethernet) : 0;
    if (score > best_score) {
      best_score = score;
      best = (int)i;
    }
  }
  return best;
}
