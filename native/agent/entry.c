/* SPDX-License-Identifier: Apache-2.0
 *
 * entry.c - entries of names: what a registry knows of an agent, read from the
 * folder of names or from a text of `perigee lookup NAME --entry`.
 *
 * Another process has written an entry, so all of it is checked, as Lua does
 * (lua/perigee/registry/entry.lua): it is one table of typed data, with the
 * name and the scope that were asked for, and at least one address. Fields of
 * another type than theirs count as unknown, and fields that are not known here
 * are passed over. So do texts with a zero in them, which no C text can have.
 * The memory of an entry is bounded by its data, of which there are
 * PERIGEE_ENTRY_MAX bytes at most.
 *
 * The text for C programs is
 *
 *   perigee-entry-1:BASE64
 *
 * where BASE64 has 8 bytes of a checksum, the lowest first, and the entry's
 * data. lua/perigee/cli/lookup.lua writes it.
 */
#include <endian.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "host/name.h"
#include "perigee.h"
#include "scope.h"

/* ---- What is read -------------------------------------------------------- */

/* A string of the data takes at least one byte more there than its own, so the
 * texts have as many bytes as the data at most, with their zeros. */
struct entry_owned {
  struct perigee_entry entry;
  char texts[];
};

struct entry_reading {
  struct perigee_decoder in;
  struct perigee_entry *entry;
  char *free;    /* for the next text */
  uint32_t seen; /* bits of the fields that were there */
};

static int entry_odd(const char *what) {
  return detail_fail(PERIGEE_PROTOCOL, "it is no entry: %s", what);
}

static int entry_no_memory(void) {
  return detail_fail(PERIGEE_NO_MEMORY, "there is no memory for an entry");
}

/* Reads a value that has to be there; true, or false at the end or after a
 * failure. */
static bool entry_value(struct entry_reading *r, struct perigee_value *value) {
  return perigee_decode(&r->in, value) == 1;
}

static bool entry_skip(struct entry_reading *r,
                       const struct perigee_value *value) {
  return perigee_decode_skip(&r->in, value) == PERIGEE_OK;
}

/* Keeps a text; NULL: the value is none. */
static const char *entry_text(struct entry_reading *r,
                              const struct perigee_value *value) {
  if (value->kind != PERIGEE_VALUE_STRING ||
      (value->length && memchr(value->string, 0, value->length)))
    return NULL;
  char *text = r->free;
  if (value->length)
    memcpy(text, value->string, value->length);
  text[value->length] = '\0';
  r->free += value->length + 1;
  return text;
}

/* Returns a whole number of at most 2^53 that is no less than 0, or -1. */
static double entry_count(const struct perigee_value *value) {
  if (value->kind != PERIGEE_VALUE_NUMBER || !(value->number >= 0) ||
      value->number > 0x1p53 ||
      value->number != (double)(uint64_t)value->number)
    return -1;
  return value->number;
}

/* ---- Addresses ----------------------------------------------------------- */

/* In the place of values that are no text, and of texts with a zero. */
static const char entry_wrong[] = "no text", entry_unusable[] = "a zero in it";

/* Reads an element of the list of addresses. It skips items of a table. */
static bool entry_element(struct entry_reading *r, const char **place) {
  struct perigee_value value;
  if (!entry_value(r, &value) || !entry_skip(r, &value))
    return false;
  const char *text = entry_text(r, &value);
  if (value.kind != PERIGEE_VALUE_NIL)
    *place = text                                 ? text
             : value.kind == PERIGEE_VALUE_STRING ? entry_unusable
                                                  : entry_wrong;
  return true;
}

/* Reads all items of the list into places, which are numbered from 0. Elements
 * are mostly in its array; LuaJIT may have them among its pairs. */
static bool entry_elements(struct entry_reading *r,
                           const struct perigee_value *list,
                           const char **places, uint64_t count) {
  struct perigee_value key;
  const char *other;
  for (uint64_t i = 0; i < list->length; i++)
    if (!entry_element(r, &places[i + !list->from_zero]))
      return false;
  for (uint64_t i = 0; i < list->pairs; i++) {
    if (!entry_value(r, &key) || !entry_skip(r, &key))
      return false;
    double index = entry_count(&key);
    bool fits = index >= 1 && index <= (double)count;
    if (!entry_element(r, fits ? &places[(uint64_t)index] : &other))
      return false;
  }
  return true;
}

/* Keeps the texts from place 1 on up to the first that is missing. */
static int entry_addresses_keep(struct perigee_entry *entry,
                                const char **places) {
  uint32_t kept = 0;
  for (uint64_t i = 1; places[i]; i++) {
    if (places[i] == entry_wrong)
      return entry_odd("an address is no text");
    if (places[i] != entry_unusable)
      places[kept++] = places[i];
  }
  places[kept] = NULL;
  entry->address_count = kept;
  return kept ? PERIGEE_OK : entry_odd("it has no address");
}

static int entry_addresses(struct entry_reading *r,
                           const struct perigee_value *list) {
  if (list->kind != PERIGEE_VALUE_TABLE)
    return entry_odd("its addresses are no list");
  uint64_t count = list->length + list->pairs;
  const char **places = calloc(count + 2, sizeof *places);
  if (!places)
    return entry_no_memory();
  r->entry->addresses = places;
  if (!entry_elements(r, list, places, count))
    return entry_odd("its data end within its addresses");
  return entry_addresses_keep(r->entry, places);
}

/* ---- Services ------------------------------------------------------------ */

static int entry_service_order(const void *a, const void *b) {
  const struct perigee_entry_service *one = a, *other = b;
  return strcmp(one->name, other->name);
}

/* A version that is no count is unknown, 0. */
static bool entry_service(struct entry_reading *r,
                          struct perigee_entry_service *list) {
  struct perigee_value key, value;
  if (!entry_value(r, &key) || !entry_skip(r, &key) ||
      !entry_value(r, &value) || !entry_skip(r, &value))
    return false;
  const char *name = entry_text(r, &key);
  double version = entry_count(&value);
  if (name)
    list[r->entry->service_count++] = (struct perigee_entry_service){
        name, version < 0 ? 0 : (uint64_t)version};
  return true;
}

static int entry_services(struct entry_reading *r,
                          const struct perigee_value *table) {
  struct perigee_value element;
  if (table->kind != PERIGEE_VALUE_TABLE)
    return PERIGEE_OK;
  struct perigee_entry_service *list = calloc(table->pairs + 1, sizeof *list);
  if (!list)
    return entry_no_memory();
  r->entry->services = list;
  bool fine = true;
  for (uint64_t i = 0; i < table->length && fine; i++)
    fine = entry_value(r, &element) && entry_skip(r, &element);
  for (uint64_t i = 0; i < table->pairs && fine; i++)
    fine = entry_service(r, list);
  if (!fine)
    return entry_odd("its data end within its services");
  qsort(list, r->entry->service_count, sizeof *list, entry_service_order);
  for (uint32_t i = 1; i < r->entry->service_count; i++)
    if (strcmp(list[i - 1].name, list[i].name) == 0)
      return entry_odd("it has a service twice");
  return PERIGEE_OK;
}

/* ---- Fields -------------------------------------------------------------- */

static int entry_pid(struct entry_reading *r,
                     const struct perigee_value *value) {
  double pid = entry_count(value);
  r->entry->pid = pid < 0 ? 0 : (int64_t)pid;
  return PERIGEE_OK;
}

static int entry_term(struct entry_reading *r,
                      const struct perigee_value *value) {
  bool known =
      value->kind == PERIGEE_VALUE_NUMBER && value->number - value->number == 0;
  r->entry->term = known ? value->number : 0;
  return PERIGEE_OK;
}

#define TEXT(name)                                                             \
  { #name, offsetof(struct perigee_entry, name), NULL }
static const struct entry_field {
  const char *name;
  size_t place; /* of a text, which has no function of its own */
  int (*read)(struct entry_reading *r, const struct perigee_value *value);
} entry_fields[] = {
    TEXT(name),
    TEXT(scope),
    TEXT(kind),
    TEXT(state),
    TEXT(host),
    TEXT(epoch),
    {"pid", 0, entry_pid},
    {"term", 0, entry_term},
    {"addresses", 0, entry_addresses},
    {"services", 0, entry_services},
};
enum { ENTRY_FIELDS = sizeof entry_fields / sizeof *entry_fields };

/* Returns the number of the field with this key; ENTRY_FIELDS: none. */
static uint32_t entry_field_of(const struct perigee_value *key) {
  uint32_t i = 0;
  while (i < ENTRY_FIELDS &&
         !(key->kind == PERIGEE_VALUE_STRING &&
           key->length == strlen(entry_fields[i].name) &&
           memcmp(key->string, entry_fields[i].name, key->length) == 0))
    i++;
  return i;
}

static int entry_field_read(struct entry_reading *r, uint32_t number,
                            const struct perigee_value *value) {
  const struct entry_field *field = &entry_fields[number];
  if (r->seen & 1u << number)
    return entry_odd("it has a field twice");
  r->seen |= 1u << number;
  if (field->read)
    return field->read(r, value);
  const char *text = entry_text(r, value);
  memcpy((char *)r->entry + field->place, (void *)&text, sizeof text);
  return PERIGEE_OK;
}

/* Reads a key and its value. */
static int entry_pair(struct entry_reading *r) {
  struct perigee_value key, value;
  if (!entry_value(r, &key) || !entry_skip(r, &key) || !entry_value(r, &value))
    return entry_odd("its data end too early");
  uint32_t number = entry_field_of(&key);
  /* These two read all items of a table by themselves. */
  bool own =
      number < ENTRY_FIELDS && (entry_fields[number].read == entry_addresses ||
                                entry_fields[number].read == entry_services);
  if (!own && !entry_skip(r, &value))
    return entry_odd("its data end within a field");
  return number < ENTRY_FIELDS ? entry_field_read(r, number, &value)
                               : PERIGEE_OK;
}

static int entry_table(struct entry_reading *r) {
  struct perigee_value table, element;
  if (!entry_value(r, &table) || table.kind != PERIGEE_VALUE_TABLE)
    return entry_odd("its data are no table");
  for (uint64_t i = 0; i < table.length; i++)
    if (!entry_value(r, &element) || !entry_skip(r, &element))
      return entry_odd("its data end too early");
  int status = PERIGEE_OK;
  for (uint64_t i = 0; i < table.pairs && status == PERIGEE_OK; i++)
    status = entry_pair(r);
  return status;
}

/* ---- All of it ----------------------------------------------------------- */

void perigee_entry_free(struct perigee_entry *entry) {
  if (!entry)
    return;
  free((void *)(uintptr_t)entry->addresses);
  free((void *)(uintptr_t)entry->services);
  free(entry);
}

/* Is it that of a name in a scope? NULL: of any. */
static bool entry_is_of(const struct perigee_entry *entry, const char *scope,
                        const char *name) {
  return entry->name && entry->scope && name_is_valid(entry->name) &&
         name_is_valid(entry->scope) &&
         (!name || strcmp(entry->name, name) == 0) &&
         (!scope || strcmp(entry->scope, scope) == 0);
}

/* Reads all of it into an entry. */
static int entry_fill(struct entry_reading *r, const char *scope,
                      const char *name) {
  int status = entry_table(r);
  if (status != PERIGEE_OK)
    return status;
  if (!r->entry->addresses)
    return entry_odd("it has no address");
  return entry_is_of(r->entry, scope, name)
             ? PERIGEE_OK
             : entry_odd("its name, or its scope, is none or another");
}

/* Makes the entry of a name in a scope (NULL: any) of data. */
static int entry_decode(const uint8_t *data, uint64_t length, const char *scope,
                        const char *name, struct perigee_entry **entry) {
  struct entry_reading r = {0};
  int status = perigee_decode_begin(&r.in, data, length);
  if (status != PERIGEE_OK)
    return status == PERIGEE_NO_MEMORY ? status
                                       : entry_odd("it is no typed data");
  struct entry_owned *owned = calloc(1, sizeof *owned + length + 1);
  if (!owned)
    return entry_no_memory();
  owned->entry.size = sizeof owned->entry;
  r.entry = &owned->entry;
  r.free = owned->texts;
  status = entry_fill(&r, scope, name);
  if (status == PERIGEE_OK)
    *entry = &owned->entry;
  else
    perigee_entry_free(&owned->entry);
  return status;
}

/* ---- In a folder --------------------------------------------------------- */

/* What is known of a holder that has published nothing, or no entry. */
static int entry_bare(const char *scope, const char *name, const char *address,
                      struct perigee_entry **entry) {
  uint8_t data[512];
  struct perigee_encoder out;
  perigee_encode_begin(&out, data, sizeof data);
  perigee_encode_table(&out, 0, 3);
  perigee_encode_text(&out, "name");
  perigee_encode_text(&out, name);
  perigee_encode_text(&out, "scope");
  perigee_encode_text(&out, scope);
  perigee_encode_text(&out, "addresses");
  perigee_encode_table(&out, 1, 0);
  perigee_encode_text(&out, address);
  int64_t length = perigee_encode_end(&out);
  return length < 0 ? (int)length
                    : entry_decode(data, (uint64_t)length, scope, name, entry);
}

/* Reads what the holder has published into new memory; its length. */
static int64_t entry_published(const char *folder, const char *name,
                               uint8_t **data) {
  static const uint64_t capacities[] = {1 << 14, PERIGEE_ENTRY_MAX};
  int64_t length = PERIGEE_TOO_LARGE;
  *data = NULL;
  for (int i = 0; i < 2 && length == PERIGEE_TOO_LARGE; i++) {
    free(*data);
    *data = malloc(capacities[i]);
    if (!*data)
      return entry_no_memory();
    length = perigee_entry_read(folder, name, *data, capacities[i]);
  }
  return length;
}

static int entry_nobody(const char *scope, const char *name,
                        const char *folder) {
  return detail_fail(PERIGEE_NOT_FOUND,
                     "no agent named %s is in scope %s (asked: %.100s)", name,
                     scope, folder);
}

/* The folder's names are the scope's. */
static int entry_in_folder(const char *folder, const char *scope,
                           const char *name, const char *address,
                           struct perigee_entry **entry) {
  uint8_t *data;
  int64_t length = entry_published(folder, name, &data);
  int status = length < 0 ? (int)length : PERIGEE_PROTOCOL;
  if (length >= 0)
    status = entry_decode(data, (uint64_t)length, scope, name, entry);
  free(data);
  if (status == PERIGEE_NOT_FOUND)
    return entry_nobody(scope, name, folder);
  if (status == PERIGEE_OK || status == PERIGEE_NO_MEMORY)
    return status;
  return entry_bare(scope, name, address, entry);
}

int perigee_entry_find(const char *scope, const char *name,
                       struct perigee_entry **entry) {
  char folder[PATH_MAX], chosen[SCOPE_NAME];
  char address[sizeof "unix:" + PERIGEE_ADDRESS_MAX];
  *entry = NULL;
  if (!name || !name_is_valid(name))
    return detail_fail(PERIGEE_INVALID, "it is no name of an agent");
  int status = scope_choose(scope, chosen);
  if (status == PERIGEE_OK)
    status = perigee_scope_folder(chosen, folder, sizeof folder);
  if (status < 0)
    return status;
  int n = snprintf(address, sizeof address, "unix:%s/%s.sock", folder, name);
  if (n >= (int)sizeof address)
    return detail_fail(PERIGEE_TOO_LARGE,
                       "the path of its socket has more than %d bytes: "
                       "%.120s/%s.sock",
                       PERIGEE_ADDRESS_MAX, folder, name);
  return entry_in_folder(folder, chosen, name, address, entry);
}

/* ---- As a text ----------------------------------------------------------- */

static const char entry_prefix[] = "perigee-entry-1:";
enum { ENTRY_SUM = 8 };

/* Checks the sum before the data. */
static int entry_parse_summed(const uint8_t *bytes, size_t length,
                              struct perigee_entry **entry) {
  uint64_t sum = 0;
  if (length > ENTRY_SUM)
    memcpy(&sum, bytes, ENTRY_SUM);
  if (length <= ENTRY_SUM ||
      le64toh(sum) != entry_sum(bytes + ENTRY_SUM, length - ENTRY_SUM))
    return entry_odd("its text was cut off, or changed");
  return entry_decode(bytes + ENTRY_SUM, length - ENTRY_SUM, NULL, NULL, entry);
}

/* Of length characters behind the prefix. */
static int entry_parse_encoded(const char *text, size_t length,
                               struct perigee_entry **entry) {
  size_t most = ENTRY_SUM + PERIGEE_ENTRY_MAX, got = 0;
  uint8_t *bytes = malloc(most);
  if (!bytes)
    return entry_no_memory();
  int status = sodium_base642bin(bytes, most, text, length, NULL, &got, NULL,
                                 sodium_base64_VARIANT_ORIGINAL) == 0
                   ? entry_parse_summed(bytes, got, entry)
                   : entry_odd("its text was cut off, or changed");
  free(bytes);
  return status;
}

int perigee_entry_parse(const char *text, struct perigee_entry **entry) {
  enum { PREFIX = sizeof entry_prefix - 1 };
  enum { LONGEST = (ENTRY_SUM + PERIGEE_ENTRY_MAX + 2) / 3 * 4 };
  *entry = NULL;
  if (!text)
    return detail_fail(PERIGEE_INVALID, "there is no text");
  size_t length = strnlen(text, PREFIX + LONGEST + 2);
  if (length && text[length - 1] == '\n')
    length--;
  if (length < PREFIX || memcmp(text, entry_prefix, PREFIX) != 0)
    return entry_odd("it does not begin with perigee-entry-1:");
  if (length > PREFIX + LONGEST)
    return detail_fail(PERIGEE_TOO_LARGE, "an entry has %d bytes at most",
                       PERIGEE_ENTRY_MAX);
  return entry_parse_encoded(text + PREFIX, length - PREFIX, entry);
}
