/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.c - lists the RDMA ports of this host for programs, without those
 * that the environment hides.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/detail.h"
#include "devices.h"

#define SYSFS "/sys"
enum { LISTED = 256 };

/* ---- What the environment hides ------------------------------------------ */

struct visible {
  struct rdma_nic nics[RDMA_LISTED];
  int count; /* 0: all are visible, if there is a filter at all */
  bool hiding;
};

const char *rdma_filter(void) {
  const char *text = getenv("PERIGEE_NICS");
  return text && *text ? text : NULL;
}

static int visible_read(struct visible *out, char *reason, size_t size) {
  char why[160];
  const char *text = rdma_filter();
  out->hiding = text;
  out->count = 0;
  if (!out->hiding)
    return PERIGEE_OK;
  out->count = rdma_nics_parse(text, out->nics, RDMA_LISTED, why, sizeof why);
  if (out->count >= 0)
    return PERIGEE_OK;
  snprintf(reason, size, "PERIGEE_NICS in the environment: %s", why);
  return PERIGEE_INVALID;
}

bool rdma_nic_is(const struct rdma_nic *nic,
                 const struct perigee_device *port) {
  return strcmp(nic->device, port->name) == 0 &&
         (!nic->port || nic->port == port->port);
}

static bool is_visible(const struct visible *visible,
                       const struct perigee_device *port) {
  for (int i = 0; i < visible->count; i++)
    if (rdma_nic_is(&visible->nics[i], port))
      return true;
  return !visible->hiding;
}

int rdma_ports(const char *sysfs, struct perigee_device **list, char *reason,
               size_t size) {
  struct visible visible;
  *list = NULL;
  int status = visible_read(&visible, reason, size);
  if (status)
    return status;
  struct perigee_device *all = calloc(LISTED, sizeof *all);
  if (!all) {
    snprintf(reason, size, "no memory for a list of devices");
    return PERIGEE_NO_MEMORY;
  }
  int found = sysfs_devices(sysfs, all, LISTED), kept = 0;
  for (int i = 0; i < found && i < LISTED; i++)
    if (is_visible(&visible, &all[i]))
      all[kept++] = all[i];
  *list = all;
  return kept;
}

/* ---- For programs -------------------------------------------------------- */

int perigee_devices(const char *sysfs, struct perigee_device *list,
                    int capacity) {
  char reason[256];
  struct perigee_device *all;
  if (!list && capacity > 0)
    return detail_fail(PERIGEE_INVALID, "there is no list: it is NULL");
  int count = rdma_ports(sysfs ? sysfs : SYSFS, &all, reason, sizeof reason);
  if (count < 0)
    return detail_fail(count, "%s", reason);
  int kept = count < capacity ? count : capacity;
  if (list && kept > 0)
    memcpy(list, all, (size_t)kept * sizeof *list);
  free(all);
  if (!sysfs)
    verbs_measure(list, kept);
  return count;
}

static void gid_tell(const struct device_gid *gid, struct perigee_gid *out) {
  memset(out, 0, sizeof *out);
  out->index = gid->index;
  memcpy(out->type, gid->type, sizeof out->type);
  memcpy(out->netdev, gid->netdev, sizeof out->netdev);
  inet_ntop(AF_INET6, gid->bytes, out->address, sizeof out->address);
}

int perigee_device_gids(const char *sysfs, const char *name, uint32_t port,
                        struct perigee_gid *list, int capacity) {
  char reason[256];
  struct visible visible;
  struct perigee_device device;
  struct device_gid gid;
  int found = 0;
  sysfs = sysfs ? sysfs : SYSFS;
  if (!name || (!list && capacity > 0))
    return detail_fail(PERIGEE_INVALID, "there is no name or no list: NULL");
  if (visible_read(&visible, reason, sizeof reason))
    return detail_fail(PERIGEE_INVALID, "%s", reason);
  if (!sysfs_port(sysfs, name, port, &device) || !is_visible(&visible, &device))
    return 0;
  for (uint32_t index = 0; index < RDMA_GIDS; index++)
    if (sysfs_gid(sysfs, &device, index, &gid) && found++ < capacity)
      gid_tell(&gid, &list[found - 1]);
  return found;
}
