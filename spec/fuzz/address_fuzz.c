/* SPDX-License-Identifier: Apache-2.0
 *
 * address_fuzz.c - any text as an address. A refusal comes with a sentence; an
 * address that is a number reads the same after it was written again.
 *
 * decoder: native/net/address.c
 */
#include <stdlib.h>
#include <string.h>

#include "net/address.h"
#include "perigee.h"

static void require(bool holds) {
  if (!holds)
    abort();
}

static bool ends(const char *text, size_t room) {
  return memchr(text, 0, room) != NULL;
}

static void promised(const struct address *a) {
  require(ends(a->host, sizeof a->host));
  require(a->length <= sizeof a->at);
  if (!a->tcp)
    require(a->at.un.sun_family == AF_UNIX && a->length > 2);
  else if (a->length > 0)
    require(a->length == address_length(&a->at));
}

static void reads_again(const struct address *a) {
  struct address again;
  char text[ADDRESS_TEXT], reason[ADDRESS_REASON];
  address_text(&a->at, text);
  require(ends(text, sizeof text));
  require(address_parse(text, &again, reason) == PERIGEE_OK);
  require(again.port == a->port && again.length == a->length);
  require(address_loopback(&again.at) == address_loopback(&a->at));
  if (a->at.any.sa_family == AF_INET)
    require(memcmp(&again.at.in, &a->at.in, sizeof a->at.in) == 0);
  else
    require(memcmp(&again.at.in6.sin6_addr, &a->at.in6.sin6_addr,
                   sizeof a->at.in6.sin6_addr) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct address address;
  char reason[ADDRESS_REASON], *text = malloc(size + 1);
  require(text != NULL);
  if (size > 0)
    memcpy(text, data, size);
  text[size] = 0;
  int status = address_parse(text, &address, reason);
  free(text);
  require(status == PERIGEE_OK || (*reason && ends(reason, sizeof reason)));
  if (status == PERIGEE_OK)
    promised(&address);
  if (status == PERIGEE_OK && address.tcp && address.length > 0)
    reads_again(&address);
  return 0;
}
