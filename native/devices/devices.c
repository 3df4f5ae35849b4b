/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.c - the RDMA ports of this host: the user's options, which are one
 * line of text that an option, the environment or a command line can hold;
 * listing the ports for programs, without those that the environment hides; and
 * choosing a port and its GID, or saying in one sentence what is missing.
 * devices_sysfs.c reads what the kernel tells of them, devices_library.c loads
 * libibverbs.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "base/versions.h"
#include "devices.h"

/* ---- The options of RDMA ------------------------------------------------- */

enum { WORD = 128 };

/* A numeric key: the field that it sets, and its bounds. */
struct key {
  const char *name;
  size_t offset, size;
  uint64_t least, most;
};

/* clang-format off */
#define KEY(name, field, least, most)                                          \
  { name, offsetof(struct rdma_options, field),                                \
    sizeof(((struct rdma_options *)0)->field), least, most }
static const struct key keys[] = {
    KEY("qps", qps, 1, RDMA_QPS),
    KEY("sl", service_level, 0, 15),
    KEY("tc", traffic_class, 0, 255),
    KEY("hop", hop_limit, 1, 255),
    KEY("pkey", pkey_index, 0, 65535),
    KEY("mtu", mtu, 0, 4096),
    KEY("timeout", timeout, 8, 20),
    KEY("retry", retries, 0, 6),
    KEY("rnr", rnr_retries, 0, 6),
    KEY("stripe", stripe, 4096, 1 << 30),
    KEY("depth", depth, 8, 8192),
    KEY("inline", inline_size, 0, 1024),
    KEY("windows", windows, 0, 1),
};
/* clang-format on */
enum { KEYS = sizeof keys / sizeof *keys, NICS = KEYS, GIDS, KEY_COUNT };
#define KNOWN                                                                  \
  "nics, gid, qps, sl, tc, hop, pkey, mtu, timeout, retry, rnr, stripe, "      \
  "depth, inline and windows"

static const struct rdma_options defaults = {
    .qps = 1,
    .hop_limit = 64,
    .timeout = 14,
    .retries = 6,
    .rnr_retries = 6,
    .stripe = 256 << 10,
    .depth = 128,
    .inline_size = 220,
    .windows = true,
};

/* ---- Words and numbers --------------------------------------------------- */

static bool rdma_parts_words(char c) {
  return c == ',' || c == ' ' || c == '\t' || c == '\n';
}

/* Reads the next word of *text; false: no more. A word that is too long is cut,
 * and then matches nothing. */
static bool rdma_next_word(const char **text, char word[WORD]) {
  const char *from = *text;
  while (rdma_parts_words(*from))
    from++;
  size_t length = 0;
  while (from[length] && !rdma_parts_words(from[length]))
    length++;
  *text = from + length;
  snprintf(word, WORD, "%.*s", (int)(length < WORD ? length : WORD - 1), from);
  return length;
}

/* Parses "64", "64K", "1M": at most 2^40. */
static bool rdma_parse_number(const char *text, uint64_t *out) {
  static const char units[] = "KMG";
  char *end;
  if (!isdigit((uint8_t)*text) || strlen(text) > 13)
    return false;
  uint64_t number = strtoull(text, &end, 10);
  const char *unit = *end ? strchr(units, toupper((uint8_t)*end)) : NULL;
  if (unit) {
    if (number >> 20)
      return false;
    number <<= 10 * (unit - units + 1);
    end++;
  }
  *out = number;
  return *end == 0;
}

static bool rdma_name_is_fine(const char *name, size_t length) {
  if (length < 1 || length >= RDMA_NAME || name[0] == '.')
    return false;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((uint8_t)name[i]) && !strchr("_-.", name[i]))
      return false;
  return true;
}

/* Parses "mlx5_0" or "mlx5_0:1". */
static bool rdma_parse_nic(const char *word, struct rdma_nic *out) {
  uint64_t port = 0;
  size_t length = strcspn(word, ":");
  memset(out, 0, sizeof *out);
  if (!rdma_name_is_fine(word, length))
    return false;
  if (word[length] &&
      (!rdma_parse_number(word + length + 1, &port) || port < 1 || port > 255))
    return false;
  memcpy(out->device, word, length);
  out->port = (uint8_t)port;
  return true;
}

/* ---- Lists --------------------------------------------------------------- */

static int rdma_add_nic(const char *word, struct rdma_nic *list, int count,
                        int capacity, char *reason, size_t size) {
  struct rdma_nic nic;
  if (!rdma_parse_nic(word, &nic)) {
    snprintf(reason, size, "\"%s\" is no NIC: write mlx5_0 or mlx5_0:1", word);
    return PERIGEE_INVALID;
  }
  if (count == capacity) {
    snprintf(reason, size, "%s is one NIC too many: %d are allowed", word,
             capacity);
    return PERIGEE_INVALID;
  }
  for (int i = 0; i < count; i++)
    if (strcmp(list[i].device, nic.device) == 0 && list[i].port == nic.port) {
      snprintf(reason, size, "NIC %s is named twice", word);
      return PERIGEE_INVALID;
    }
  list[count] = nic;
  return count + 1;
}

/* Parses "mlx5_0:1,mlx5_1" into at most capacity NICs. Returns their number, or
 * PERIGEE_INVALID. */
static int rdma_nics_parse(const char *text, struct rdma_nic *out, int capacity,
                           char *reason, size_t size) {
  char word[WORD];
  int count = 0;
  while (count >= 0 && rdma_next_word(&text, word))
    count = rdma_add_nic(word, out, count, capacity, reason, size);
  return count;
}

static int rdma_add_gid(const char *word, struct rdma_options *out,
                        char *reason, size_t size) {
  uint64_t gid;
  if (!rdma_parse_number(word, &gid) || gid >= RDMA_GIDS ||
      out->gid_count == RDMA_NICS) {
    snprintf(reason, size,
             "\"gid=%s\" cannot be: it takes an index, 0 to %d, or one for "
             "each of nics",
             word, RDMA_GIDS - 1);
    return PERIGEE_INVALID;
  }
  out->gids[out->gid_count++] = (int32_t)gid;
  return PERIGEE_OK;
}

/* ---- Pairs --------------------------------------------------------------- */

/* Sets a field of 1, 4 or 8 bytes, on machines of either byte order. */
static void rdma_set_field(struct rdma_options *out, const struct key *key,
                           uint64_t value) {
  uint8_t *to = (uint8_t *)out + key->offset;
  uint32_t word = (uint32_t)value;
  bool flag = value;
  const void *from = key->size == 8   ? (const void *)&value
                     : key->size == 4 ? (const void *)&word
                                      : (const void *)&flag;
  memcpy(to, from, key->size);
}

static bool rdma_mtu_is_fine(uint64_t mtu) {
  return mtu == 0 || (mtu >= 256 && (mtu & (mtu - 1)) == 0);
}

static int rdma_set_number(const struct key *key, const char *word,
                           struct rdma_options *out, char *reason,
                           size_t size) {
  uint64_t value;
  bool is_mtu = key->offset == offsetof(struct rdma_options, mtu);
  if (!rdma_parse_number(word, &value) || value < key->least ||
      value > key->most || (is_mtu && !rdma_mtu_is_fine(value))) {
    snprintf(reason, size, "\"%s=%s\" cannot be: it takes %llu to %llu%s",
             key->name, word, (unsigned long long)key->least,
             (unsigned long long)key->most,
             is_mtu ? ", a power of two from 256, or 0 for the port's" : "");
    return PERIGEE_INVALID;
  }
  rdma_set_field(out, key, value);
  return PERIGEE_OK;
}

static int rdma_find_key(const char *name) {
  if (strcmp(name, "nics") == 0)
    return NICS;
  if (strcmp(name, "gid") == 0 || strcmp(name, "gids") == 0)
    return GIDS;
  for (int i = 0; i < KEYS; i++)
    if (strcmp(keys[i].name, name) == 0)
      return i;
  return -1;
}

static int rdma_set_value(int key, const char *word, struct rdma_options *out,
                          char *reason, size_t size) {
  if (key == GIDS)
    return rdma_add_gid(word, out, reason, size);
  if (key != NICS)
    return rdma_set_number(&keys[key], word, out, reason, size);
  int count = rdma_add_nic(word, out->nics, (int)out->nic_count, RDMA_NICS,
                           reason, size);
  out->nic_count = count < 0 ? out->nic_count : (uint32_t)count;
  return count < 0 ? count : PERIGEE_OK;
}

/* A word with "=" begins a key; one without is a further value of a list. */
static int rdma_read_word(char *word, int *key, uint32_t *seen,
                          struct rdma_options *out, char *reason, size_t size) {
  char *equals = strchr(word, '=');
  if (!equals && *key < KEYS) {
    snprintf(reason, size, "\"%s\" has no key: write key=value", word);
    return PERIGEE_INVALID;
  }
  if (!equals)
    return rdma_set_value(*key, word, out, reason, size);
  *equals = 0;
  *key = rdma_find_key(word);
  if (*key < 0 || (*seen & 1u << *key)) {
    snprintf(reason, size,
             *key < 0 ? "there is no \"%s\"; there are " KNOWN
                      : "\"%s\" is told twice",
             word);
    return PERIGEE_INVALID;
  }
  *seen |= 1u << *key;
  return rdma_set_value(*key, equals + 1, out, reason, size);
}

static int rdma_gids_fit(const struct rdma_options *o, char *reason,
                         size_t size) {
  uint32_t nics = o->nic_count ? o->nic_count : 1;
  if (o->gid_count <= 1 || o->gid_count == nics)
    return PERIGEE_OK;
  snprintf(reason, size, "gid has %u values for %u NICs", o->gid_count, nics);
  return PERIGEE_INVALID;
}

int rdma_options_parse(const char *text, struct rdma_options *out, char *reason,
                       size_t size) {
  struct rdma_options options = defaults;
  char word[WORD];
  int key = -1, status = PERIGEE_OK;
  uint32_t seen = 0;
  const char *from = text ? text : getenv("PERIGEE_RDMA");
  while (from && status == PERIGEE_OK && rdma_next_word(&from, word))
    status = rdma_read_word(word, &key, &seen, &options, reason, size);
  if (status == PERIGEE_OK)
    status = rdma_gids_fit(&options, reason, size);
  if (status == PERIGEE_OK)
    *out = options;
  return status;
}

enum { LISTED = 256 };

/* ---- What the environment hides ------------------------------------------ */

struct visible {
  struct rdma_nic nics[RDMA_LISTED];
  int count; /* 0: all are visible, if there is a filter at all */
  bool hiding;
};

/* Returns the value of PERIGEE_NICS, or NULL if it is not set. */
static const char *rdma_filter(void) {
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

/* Does the user's name select this port? */
static bool rdma_nic_is(const struct rdma_nic *nic,
                        const struct perigee_device *port) {
  return strcmp(nic->device, port->name) == 0 &&
         (!nic->port || nic->port == port->port);
}

static bool device_is_visible(const struct visible *visible,
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
    if (device_is_visible(&visible, &all[i]))
      all[kept++] = all[i];
  *list = all;
  return kept;
}

/* ---- For programs -------------------------------------------------------- */

void *devices_entry(void *list, uint64_t each, int index) {
  return (uint8_t *)list + each * (uint64_t)index;
}

int perigee_devices(const char *sysfs, struct perigee_device *list,
                    uint64_t each, int capacity) {
  char reason[256];
  struct perigee_device *all;
  if (!list && capacity > 0)
    return detail_fail(PERIGEE_INVALID, "there is no list: it is NULL");
  if (!version_size_is_right("perigee_device", each))
    return PERIGEE_INVALID;
  int count = rdma_ports(sysfs ? sysfs : SYSFS, &all, reason, sizeof reason);
  if (count < 0)
    return detail_fail(count, "%s", reason);
  int kept = count < capacity ? count : capacity;
  if (!sysfs)
    verbs_measure(all, kept);
  for (int i = 0; i < kept; i++)
    version_give(devices_entry(list, each, i), each, &all[i], sizeof all[i]);
  free(all);
  return count;
}

static void gid_tell(const struct device_gid *gid, void *to, uint64_t size) {
  struct perigee_gid out = {.index = gid->index};
  memcpy(out.type, gid->type, sizeof out.type);
  memcpy(out.netdev, gid->netdev, sizeof out.netdev);
  inet_ntop(AF_INET6, gid->bytes, out.address, sizeof out.address);
  version_give(to, size, &out, sizeof out);
}

int perigee_device_gids(const char *sysfs, const char *name, uint32_t port,
                        struct perigee_gid *list, uint64_t each, int capacity) {
  char reason[256];
  struct visible visible;
  struct perigee_device device;
  struct device_gid gid;
  int found = 0;
  sysfs = sysfs ? sysfs : SYSFS;
  if (!name || (!list && capacity > 0))
    return detail_fail(PERIGEE_INVALID, "there is no name or no list: NULL");
  if (!version_size_is_right("perigee_gid", each))
    return PERIGEE_INVALID;
  if (visible_read(&visible, reason, sizeof reason))
    return detail_fail(PERIGEE_INVALID, "%s", reason);
  if (!sysfs_port(sysfs, name, port, &device) ||
      !device_is_visible(&visible, &device))
    return 0;
  for (uint32_t index = 0; index < RDMA_GIDS; index++)
    if (sysfs_gid(sysfs, &device, index, &gid) && found++ < capacity)
      gid_tell(&gid, devices_entry(list, each, found - 1), each);
  return found;
}

/* ---- Choosing a port ----------------------------------------------------- */

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
choice_refuse(const struct choice *choice, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(choice->reason, choice->size, format, list);
  va_end(list);
}

static bool port_is_active(const struct perigee_device *port) {
  return strcmp(port->state, "active") == 0;
}

/* Writes "rxe0/1 is down (disabled), rxe1/1 is init", as far as there is room;
 * of one device only if name is given. */
static void choice_tell_states(const struct choice *choice, const char *name,
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

static void choice_tell_names(const struct choice *choice, char *out,
                              size_t size) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < choice->count && used < size; i++) {
    int length = snprintf(out + used, size - used, "%s%s:%u", used ? ", " : "",
                          choice->ports[i].name, choice->ports[i].port);
    used += length > 0 ? (size_t)length : size;
  }
}

/* The advice on a link that is down depends on the kind of link. */
static void choice_refuse_inactive(const struct choice *choice,
                                   const struct perigee_device *port,
                                   const char *name) {
  char states[256], advice[80] = "start a subnet manager";
  choice_tell_states(choice, name, states, sizeof states);
  if (strcmp(port->link, "infiniband") != 0)
    snprintf(advice, sizeof advice, "`ip link set %s up`",
             *port->netdev ? port->netdev : "INTERFACE");
  choice_refuse(choice, "no RDMA port is active: %s; plug in its cable, or %s",
                states, advice);
}

static void choice_refuse_unknown(const struct choice *choice,
                                  const struct rdma_nic *nic) {
  char names[160], asked[80];
  choice_tell_names(choice, names, sizeof names);
  snprintf(asked, sizeof asked, nic->port ? "%s:%u" : "%s", nic->device,
           nic->port);
  choice_refuse(choice, "there is no RDMA port %s; there %s %s%s", asked,
                choice->count == 1 ? "is" : "are",
                choice->count ? names : "none",
                rdma_filter() ? " that PERIGEE_NICS does not hide" : "");
}

static void choice_refuse_nothing(const struct choice *choice) {
  if (rdma_filter() && sysfs_devices(choice->sysfs, NULL, 0))
    choice_refuse(
        choice,
        "PERIGEE_NICS=%.64s in the environment hides all RDMA devices that "
        "there are",
        rdma_filter());
  else
    choice_refuse(
        choice,
        "there is no RDMA device: load the driver of the NIC, or make one "
        "in software by `rdma link add rxe0 type rxe netdev eth0`");
}

/* Returns NULL, with a sentence, if the port does not exist or is not
 * active. */
static const struct perigee_device *
choice_named_port(const struct choice *choice, const struct rdma_nic *nic) {
  const struct perigee_device *found = NULL;
  for (int i = 0; i < choice->count; i++) {
    if (!rdma_nic_is(nic, &choice->ports[i]))
      continue;
    found = &choice->ports[i];
    if (port_is_active(found))
      return found;
  }
  if (found)
    choice_refuse_inactive(choice, found, nic->device);
  else
    choice_refuse_unknown(choice, nic);
  return NULL;
}

/* The same for the best port of all. */
static const struct perigee_device *
choice_any_port(const struct choice *choice) {
  const struct perigee_device *best = NULL;
  for (int i = 0; i < choice->count; i++)
    if (port_is_active(&choice->ports[i]) &&
        (!best || choice->ports[i].rate > best->rate))
      best = &choice->ports[i];
  if (choice->count == 0)
    choice_refuse_nothing(choice);
  else if (!best)
    choice_refuse_inactive(choice, &choice->ports[0], NULL);
  return best;
}

/* Chooses the GID that was asked for, or the best; false, with a sentence, if
 * there is none. */
static bool choice_gid(const struct choice *choice,
                       const struct perigee_device *port, int nth,
                       struct device_gid *gid) {
  const struct rdma_options *options = choice->options;
  bool forced = options->gid_count;
  int index =
      forced ? options->gids[options->gid_count > 1 ? nth : 0] : port->gid;
  if (index >= 0 && sysfs_gid(choice->sysfs, port, (uint32_t)index, gid))
    return true;
  if (forced)
    choice_refuse(choice, "%s/%u has no GID of index %d (gid=%d)", port->name,
                  port->port, index, index);
  else
    choice_refuse(choice,
                  "%s/%u has no GID yet: give its interface an IP address",
                  port->name, port->port);
  return false;
}

static bool choice_fill_port(const struct choice *choice,
                             const struct perigee_device *port, int nth,
                             struct rdma_port *out) {
  struct device_gid gid;
  if (!choice_gid(choice, port, nth, &gid))
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

static int choice_make(const struct choice *choice, struct rdma_port *out,
                       int capacity) {
  const struct rdma_options *options = choice->options;
  int named = (int)options->nic_count, wanted = named ? named : 1;
  for (int i = 0; i < wanted && i < capacity; i++) {
    const struct perigee_device *port =
        named ? choice_named_port(choice, &options->nics[i])
              : choice_any_port(choice);
    if (!port || !choice_fill_port(choice, port, i, &out[i]))
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
  int chosen =
      choice.count < 0 ? choice.count : choice_make(&choice, out, capacity);
  free(choice.ports);
  return chosen;
}

int rdma_choose(const struct rdma_options *options, struct rdma_port *out,
                int capacity, char *reason, size_t size) {
  int chosen = rdma_choose_in(SYSFS, options, out, capacity, reason, size);
  for (int i = 0; i < chosen; i++)
    if (verbs_obstacle(out[i].device, reason, size))
      return PERIGEE_UNSUPPORTED;
  return chosen;
}
