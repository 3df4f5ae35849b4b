/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_choice.c - chooses RDMA ports and their GIDs, or says in one sentence
 * what is missing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "devices.h"

/* A choice in progress: the candidates, and where the sentence goes. */
struct choice {
  const char *sysfs;
  const struct rdma_options *options;
  struct perigee_device *ports;
  int count;
  char *reason;
  size_t size;
};

__attribute__((format(printf, 2, 3))) static void
refuse(const struct choice *choice, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(choice->reason, choice->size, format, list);
  va_end(list);
}

static bool is_active(const struct perigee_device *port) {
  return strcmp(port->state, "active") == 0;
}

/* Writes "rxe0/1 is down (disabled), rxe1/1 is init", as far as there is room;
 * of one device only if name is given. */
static void states_tell(const struct choice *choice, const char *name,
                        char *out, size_t size) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < choice->count && used < size; i++) {
    const struct perigee_device *port = &choice->ports[i];
    if (name && strcmp(name, port->name) != 0)
      continue;
    int length = snprintf(out + used, size - used, "%s%s/%u is %s (%s)",
                          used ? ", " : "", port->name, port->port,
                          *port->state ? port->state : "without a state",
                          *port->physical ? port->physical : "unknown");
    used += length > 0 ? (size_t)length : size;
  }
}

static void names_tell(const struct choice *choice, char *out, size_t size) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < choice->count && used < size; i++) {
    int length = snprintf(out + used, size - used, "%s%s:%u", used ? ", " : "",
                          choice->ports[i].name, choice->ports[i].port);
    used += length > 0 ? (size_t)length : size;
  }
}

/* The advice on a link that is down depends on the kind of link. */
static void refuse_inactive(const struct choice *choice,
                            const struct perigee_device *port,
                            const char *name) {
  char states[256], advice[80] = "start a subnet manager";
  states_tell(choice, name, states, sizeof states);
  if (strcmp(port->link, "infiniband") != 0)
    snprintf(advice, sizeof advice, "`ip link set %s up`",
             *port->netdev ? port->netdev : "INTERFACE");
  refuse(choice, "no RDMA port is active: %s; plug in its cable, or %s", states,
         advice);
}

static void refuse_unknown(const struct choice *choice,
                           const struct rdma_nic *nic) {
  char names[160], asked[80];
  names_tell(choice, names, sizeof names);
  snprintf(asked, sizeof asked, nic->port ? "%s:%u" : "%s", nic->device,
           nic->port);
  refuse(choice, "there is no RDMA port %s; there %s %s%s", asked,
         choice->count == 1 ? "is" : "are", choice->count ? names : "none",
         rdma_filter() ? " that PERIGEE_NICS does not hide" : "");
}

static void refuse_nothing(const struct choice *choice) {
  if (rdma_filter() && sysfs_devices(choice->sysfs, NULL, 0))
    refuse(choice,
           "PERIGEE_NICS=%.64s in the environment hides all RDMA devices that "
           "there are",
           rdma_filter());
  else
    refuse(choice,
           "there is no RDMA device: load the driver of the NIC, or make one "
           "in software by `rdma link add rxe0 type rxe netdev eth0`");
}

/* Returns NULL, with a sentence, if the port does not exist or is not
 * active. */
static const struct perigee_device *named_port(const struct choice *choice,
                                               const struct rdma_nic *nic) {
  const struct perigee_device *found = NULL;
  for (int i = 0; i < choice->count; i++) {
    if (!rdma_nic_is(nic, &choice->ports[i]))
      continue;
    found = &choice->ports[i];
    if (is_active(found))
      return found;
  }
  if (found)
    refuse_inactive(choice, found, nic->device);
  else
    refuse_unknown(choice, nic);
  return NULL;
}

/* The same for the best port of all. */
static const struct perigee_device *any_port(const struct choice *choice) {
  const struct perigee_device *best = NULL;
  for (int i = 0; i < choice->count; i++)
    if (is_active(&choice->ports[i]) &&
        (!best || choice->ports[i].rate > best->rate))
      best = &choice->ports[i];
  if (choice->count == 0)
    refuse_nothing(choice);
  else if (!best)
    refuse_inactive(choice, &choice->ports[0], NULL);
  return best;
}

/* Chooses the GID that was asked for, or the best; false, with a sentence, if
 * there is none. */
static bool gid_choose(const struct choice *choice,
                       const struct perigee_device *port, int nth,
                       struct device_gid *gid) {
  const struct rdma_options *options = choice->options;
  bool forced = options->gid_count;
  int index =
      forced ? options->gids[options->gid_count > 1 ? nth : 0] : port->gid;
  if (index >= 0 && sysfs_gid(choice->sysfs, port, (uint32_t)index, gid))
    return true;
  if (forced)
    refuse(choice, "%s/%u has no GID of index %d (gid=%d)", port->name,
           port->port, index, index);
  else
    refuse(choice, "%s/%u has no GID yet: give its interface an IP address",
           port->name, port->port);
  return false;
}

static bool port_fill(const struct choice *choice,
                      const struct perigee_device *port, int nth,
                      struct rdma_port *out) {
  struct device_gid gid;
  if (!gid_choose(choice, port, nth, &gid))
    return false;
  memset(out, 0, sizeof *out);
  memcpy(out->device, port->name, sizeof out->device);
  memcpy(out->netdev, gid.netdev, sizeof out->netdev);
  memcpy(out->gid, gid.bytes, sizeof out->gid);
  out->port = (uint8_t)port->port;
  out->gid_index = (uint8_t)gid.index;
  out->ethernet = strcmp(port->link, "ethernet") == 0;
  out->global = out->ethernet || choice->options->gid_count;
  out->lid = (uint16_t)port->lid;
  out->numa = port->numa;
  out->rate = port->rate;
  return true;
}

static int choose(const struct choice *choice, struct rdma_port *out,
                  int capacity) {
  const struct rdma_options *options = choice->options;
  int named = (int)options->nic_count, wanted = named ? named : 1;
  for (int i = 0; i < wanted && i < capacity; i++) {
    const struct perigee_device *port =
        named ? named_port(choice, &options->nics[i]) : any_port(choice);
    if (!port || !port_fill(choice, port, i, &out[i]))
      return PERIGEE_UNSUPPORTED;
  }
  return wanted < capacity ? wanted : capacity;
}

int rdma_choose_in(const char *sysfs, const struct rdma_options *options,
                   struct rdma_port *out, int capacity, char *reason,
                   size_t size) {
  struct choice choice = {
      .sysfs = sysfs, .options = options, .reason = reason, .size = size};
  choice.count = rdma_ports(sysfs, &choice.ports, reason, size);
  int chosen = choice.count < 0 ? choice.count : choose(&choice, out, capacity);
  free(choice.ports);
  return chosen;
}

int rdma_choose(const struct rdma_options *options, struct rdma_port *out,
                int capacity, char *reason, size_t size) {
  int chosen = rdma_choose_in("/sys", options, out, capacity, reason, size);
  for (int i = 0; i < chosen; i++)
    if (verbs_obstacle(out[i].device, reason, size))
      return PERIGEE_UNSUPPORTED;
  return chosen;
}
