/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_options.c - parses the user's RDMA options: one line of text that an
 * option, the environment or a command line can hold.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "devices.h"

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
    KEY("receives", receives, 512, 65536),
    KEY("stripe", stripe, 4096, 1 << 30),
    KEY("depth", depth, 8, 8192),
    KEY("inline", inline_size, 0, 1024),
    KEY("windows", windows, 0, 1),
};
/* clang-format on */
enum { KEYS = sizeof keys / sizeof *keys, NICS = KEYS, GIDS, KEY_COUNT };
#define KNOWN                                                                  \
  "nics, gid, qps, sl, tc, hop, pkey, mtu, timeout, retry, rnr, receives, "    \
  "stripe, depth, inline and windows"

static const struct rdma_options defaults = {
    .qps = 1,
    .hop_limit = 64,
    .timeout = 14,
    .retries = 6,
    .rnr_retries = 6,
    .receives = 8192,
    .stripe = 256 << 10,
    .depth = 128,
    .inline_size = 220,
    .windows = true,
};

/* ---- Words and numbers --------------------------------------------------- */

static bool parts_words(char c) {
  return c == ',' || c == ' ' || c == '\t' || c == '\n';
}

/* Reads the next word of *text; false: no more. A word that is too long is cut,
 * and then matches nothing. */
static bool next_word(const char **text, char word[WORD]) {
  const char *from = *text;
  while (parts_words(*from))
    from++;
  size_t length = 0;
  while (from[length] && !parts_words(from[length]))
    length++;
  *text = from + length;
  snprintf(word, WORD, "%.*s", (int)(length < WORD ? length : WORD - 1), from);
  return length;
}

/* Parses "64", "64K", "1M": at most 2^40. */
static bool number_parse(const char *text, uint64_t *out) {
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

static bool name_is_fine(const char *name, size_t length) {
  if (length < 1 || length >= RDMA_NAME || name[0] == '.')
    return false;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((uint8_t)name[i]) && !strchr("_-.", name[i]))
      return false;
  return true;
}

/* Parses "mlx5_0" or "mlx5_0:1". */
static bool nic_parse(const char *word, struct rdma_nic *out) {
  uint64_t port = 0;
  size_t length = strcspn(word, ":");
  memset(out, 0, sizeof *out);
  if (!name_is_fine(word, length))
    return false;
  if (word[length] &&
      (!number_parse(word + length + 1, &port) || port < 1 || port > 255))
    return false;
  memcpy(out->device, word, length);
  out->port = (uint8_t)port;
  return true;
}

/* ---- Lists --------------------------------------------------------------- */

static int nic_add(const char *word, struct rdma_nic *list, int count,
                   int capacity, char *reason, size_t size) {
  struct rdma_nic nic;
  if (!nic_parse(word, &nic)) {
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

int rdma_nics_parse(const char *text, struct rdma_nic *out, int capacity,
                    char *reason, size_t size) {
  char word[WORD];
  int count = 0;
  while (count >= 0 && next_word(&text, word))
    count = nic_add(word, out, count, capacity, reason, size);
  return count;
}

static int gid_add(const char *word, struct rdma_options *out, char *reason,
                   size_t size) {
  uint64_t gid;
  if (!number_parse(word, &gid) || gid >= RDMA_GIDS ||
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
static void field_set(struct rdma_options *out, const struct key *key,
                      uint64_t value) {
  uint8_t *to = (uint8_t *)out + key->offset;
  uint32_t word = (uint32_t)value;
  bool flag = value;
  const void *from = key->size == 8   ? (const void *)&value
                     : key->size == 4 ? (const void *)&word
                                      : (const void *)&flag;
  memcpy(to, from, key->size);
}

static bool mtu_is_fine(uint64_t mtu) {
  return mtu == 0 || (mtu >= 256 && (mtu & (mtu - 1)) == 0);
}

static int number_set(const struct key *key, const char *word,
                      struct rdma_options *out, char *reason, size_t size) {
  uint64_t value;
  bool is_mtu = key->offset == offsetof(struct rdma_options, mtu);
  if (!number_parse(word, &value) || value < key->least || value > key->most ||
      (is_mtu && !mtu_is_fine(value))) {
    snprintf(reason, size, "\"%s=%s\" cannot be: it takes %llu to %llu%s",
             key->name, word, (unsigned long long)key->least,
             (unsigned long long)key->most,
             is_mtu ? ", a power of two from 256, or 0 for the port's" : "");
    return PERIGEE_INVALID;
  }
  field_set(out, key, value);
  return PERIGEE_OK;
}

static int key_find(const char *name) {
  if (strcmp(name, "nics") == 0)
    return NICS;
  if (strcmp(name, "gid") == 0 || strcmp(name, "gids") == 0)
    return GIDS;
  for (int i = 0; i < KEYS; i++)
    if (strcmp(keys[i].name, name) == 0)
      return i;
  return -1;
}

static int value_set(int key, const char *word, struct rdma_options *out,
                     char *reason, size_t size) {
  if (key == GIDS)
    return gid_add(word, out, reason, size);
  if (key != NICS)
    return number_set(&keys[key], word, out, reason, size);
  int count =
      nic_add(word, out->nics, (int)out->nic_count, RDMA_NICS, reason, size);
  out->nic_count = count < 0 ? out->nic_count : (uint32_t)count;
  return count < 0 ? count : PERIGEE_OK;
}

/* A word with "=" begins a key; one without is a further value of a list. */
static int word_read(char *word, int *key, uint32_t *seen,
                     struct rdma_options *out, char *reason, size_t size) {
  char *equals = strchr(word, '=');
  if (!equals && *key < KEYS) {
    snprintf(reason, size, "\"%s\" has no key: write key=value", word);
    return PERIGEE_INVALID;
  }
  if (!equals)
    return value_set(*key, word, out, reason, size);
  *equals = 0;
  *key = key_find(word);
  if (*key < 0 || (*seen & 1u << *key)) {
    snprintf(reason, size,
             *key < 0 ? "there is no \"%s\"; there are " KNOWN
                      : "\"%s\" is told twice",
             word);
    return PERIGEE_INVALID;
  }
  *seen |= 1u << *key;
  return value_set(*key, equals + 1, out, reason, size);
}

static int gids_fit(const struct rdma_options *o, char *reason, size_t size) {
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
  while (from && status == PERIGEE_OK && next_word(&from, word))
    status = word_read(word, &key, &seen, &options, reason, size);
  if (status == PERIGEE_OK)
    status = gids_fit(&options, reason, size);
  if (status == PERIGEE_OK)
    *out = options;
  return status;
}
