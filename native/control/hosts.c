/* SPDX-License-Identifier: Apache-2.0 */
#include "control/hosts.h"
#include "control/listening.h"

#include <arpa/inet.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 255 }; /* characters of a name */

struct hosts {
  X509 *certificate; /* or NULL */
  char *names, *host;
  bool loopback; /* it listens at loopback alone */
};

/* ---- Addresses ----------------------------------------------------------- */

static bool is_address(const struct hosts *hosts, const char *host) {
  struct in_addr four;
  struct in6_addr six;
  if (inet_pton(AF_INET, host, &four) == 1)
    return !hosts->loopback || address_is_loopback(four);
  if (inet_pton(AF_INET6, host, &six) == 1)
    return !hosts->loopback || address_is_loopback6(&six);
  return false;
}

/* ---- Names --------------------------------------------------------------- */

static bool is_listed(const char *names, const char *host) {
  size_t length = strlen(host);
  while (*names) {
    size_t each = strcspn(names, " ");
    if (each == length && strncasecmp(names, host, length) == 0)
      return true;
    names += each + (names[each] == ' ');
  }
  return false;
}

static bool is_certified(const struct hosts *hosts, const char *host) {
  return hosts->certificate &&
         X509_check_host(hosts->certificate, host, strlen(host), 0, NULL) == 1;
}

/* Copies the host without its port, brackets and last dot; false: it is none.
 */
static bool hosts_plain(char into[LONGEST + 1], const char *host) {
  const char *end = host + strcspn(host, ":");
  if (*host == '[') {
    end = strchr(++host, ']');
    if (!end || (end[1] != 0 && end[1] != ':'))
      return false;
  }
  size_t length = (size_t)(end - host);
  if (length > 1 && host[length - 1] == '.')
    length--;
  if (length == 0 || length > LONGEST)
    return false;
  memcpy(into, host, length);
  into[length] = 0;
  return true;
}

bool hosts_have(const struct hosts *hosts, const char *host) {
  char name[LONGEST + 1];
  if (!hosts_plain(name, host))
    return false;
  return is_address(hosts, name) || strcasecmp(name, "localhost") == 0 ||
         strcasecmp(name, hosts->host) == 0 || is_listed(hosts->names, name) ||
         is_certified(hosts, name);
}

bool hosts_are_same(const char *origin, const char *host) {
  const char *at = strstr(origin, "://");
  return at && strcasecmp(at + 3, host) == 0;
}

/* ---- Opening ------------------------------------------------------------- */

static X509 *certificate_of(const char *text) {
  BIO *from = text ? BIO_new_mem_buf(text, -1) : NULL;
  X509 *made = from ? PEM_read_bio_X509(from, NULL, NULL, NULL) : NULL;
  BIO_free(from);
  return made;
}

struct hosts *hosts_new(const struct perigee_web_to *to, int listening) {
  struct hosts *hosts = calloc(1, sizeof *hosts);
  if (!hosts)
    return NULL;
  hosts->certificate = certificate_of(to->certificate);
  hosts->loopback = listening_is_local(listening);
  hosts->names = strdup(to->names);
  hosts->host = strdup(to->host);
  if (hosts->names && hosts->host)
    return hosts;
  hosts_free(hosts);
  return NULL;
}

void hosts_free(struct hosts *hosts) {
  if (!hosts)
    return;
  X509_free(hosts->certificate);
  free(hosts->names);
  free(hosts->host);
  free(hosts);
}
