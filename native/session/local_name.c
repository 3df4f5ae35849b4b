/* SPDX-License-Identifier: Apache-2.0 */
#include "local_name.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host/adopted.h"
#include "net/address.h"

/* How many connections may wait, and how many are accepted in one go before
 * other descriptors have their turn. */
enum { WAITING = 64 };

void name_text(const uint8_t name[HELLO_LOCAL], char text[NAME_TEXT]) {
  int n = snprintf(text, NAME_TEXT, "@perigee-");
  for (int i = 0; i < HELLO_LOCAL; i++)
    n += snprintf(text + n, NAME_TEXT - (size_t)n, "%02x", name[i]);
}

socklen_t name_address(const uint8_t name[HELLO_LOCAL],
                       struct sockaddr_un *un) {
  char text[NAME_TEXT];
  name_text(name, text);
  *un = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(un->sun_path + 1, text + 1, strlen(text + 1));
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(text));
}

static socklen_t door_address(const uint8_t name[HELLO_LOCAL],
                              struct sockaddr_un *un) {
  socklen_t length = name_address(name, un);
  *((char *)un + length) = '?';
  return length + 1;
}

/* Closes the connections at once: a peer that could connect has seen that the
 * engine is here. */
static void accept_ready(struct watcher *watcher, uint32_t events) {
  const struct local_name *n = CONTAINER(watcher, struct local_name, watcher);
  int fd;
  (void)events;
  for (int i = 0; i < WAITING; i++)
    if ((fd = accept(n->fd, NULL, NULL)) >= 0) {
      adopted_drain(fd);
      close(fd);
    } else {
      return;
    }
}

void name_open(struct perigee_engine *engine, struct local_name *n) {
  const struct perigee_options *o = &engine->options;
  struct sockaddr_un un;
  n->watcher.ready = accept_ready;
  n->fd = -1;
  if (o->random(o->context, n->bytes, sizeof n->bytes) != 0)
    return;
  socklen_t length = door_address(n->bytes, &un);
  n->fd = socket_new(AF_UNIX);
  if (n->fd >= 0 && (bind(n->fd, (struct sockaddr *)&un, length) != 0 ||
                     listen(n->fd, WAITING) != 0 ||
                     watch_add(engine, n->fd, &n->watcher, EPOLLIN) != 0)) {
    close(n->fd);
    n->fd = -1;
  }
}

void name_close(struct perigee_engine *engine, struct local_name *n) {
  if (n->fd >= 0)
    watch_close(engine, n->fd);
}

bool name_reach(const struct local_name *own, const uint8_t name[HELLO_LOCAL],
                int *fd) {
  static const uint8_t none[HELLO_LOCAL];
  struct sockaddr_un un;
  *fd = -1;
  if (memcmp(name, none, HELLO_LOCAL) == 0 ||
      memcmp(name, own->bytes, HELLO_LOCAL) == 0)
    return false;
  socklen_t length = door_address(name, &un);
  *fd = socket_new(AF_UNIX);
  if (*fd < 0 || connect(*fd, (struct sockaddr *)&un, length) == 0)
    return *fd >= 0;
  bool full = errno == EAGAIN;
  close(*fd);
  *fd = -1;
  return full;
}
