/* SPDX-License-Identifier: Apache-2.0 */
#include "between.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "door.h"

enum { BLOCK = 64 << 10 };

static int dial(int port) {
  struct sockaddr_in in = loopback(port);
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, (struct sockaddr *)&in, sizeof in) != 0)
    abort();
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

static void let_through(struct between *b) {
  int n = b->links, on = 1;
  struct link *l = &b->link[n];
  if (n == LINKS)
    abort();
  l->fd[0] = accept(b->door, NULL, NULL);
  setsockopt(l->fd[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  l->fd[1] = b->port ? dial(b->port) : dup(l->fd[0]);
  for (int i = 0; i < 2; i++)
    l->said[i] = malloc(SAID);
  b->links++;
}

static void send_all(int fd, const uint8_t *bytes, size_t length) {
  while (length > 0) {
    ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
    if (n <= 0)
      return;
    bytes += n;
    length -= (size_t)n;
  }
}

static void write_down(struct link *l, int from, const uint8_t *bytes,
                       size_t length) {
  size_t room = SAID - l->length[from];
  length = length < room ? length : room;
  memcpy(l->said[from] + l->length[from], bytes, length);
  l->length[from] += length;
}

static void pass_on(struct between *b, struct link *l, int from, uint8_t *bytes,
                    size_t length) {
  size_t first = 8 * l->length[from], bit = b->flip[from];
  if (l == b->link && bit >= first && bit < first + 8 * length)
    bytes[(bit - first) / 8] ^= (uint8_t)(1 << bit % 8);
  int harm =
      l == b->link ? atomic_exchange(&b->harm[from], HARM_NONE) : HARM_NONE;
  if (harm == HARM_FLIP)
    bytes[length - 1] ^= 1;
  if (harm != HARM_DROP)
    send_all(l->fd[!from], bytes, length);
  if (harm == HARM_REPEAT)
    send_all(l->fd[!from], bytes, length);
}

/* Closing one end closes the other. */
static void hear_side(struct between *b, struct link *l, int from) {
  static uint8_t bytes[BLOCK];
  ssize_t n = recv(l->fd[from], bytes, sizeof bytes, MSG_DONTWAIT);
  if (n > 0) {
    uint8_t copy[BLOCK];
    memcpy(copy, bytes, (size_t)n);
    pass_on(b, l, from, copy, (size_t)n);
    write_down(l, from, bytes, (size_t)n);
    return;
  }
  shutdown(l->fd[!from], SHUT_RDWR);
  for (int i = 0; i < 2; i++) {
    close(l->fd[i]);
    l->fd[i] = -1;
  }
}

static void *stand(void *argument) {
  struct between *b = argument;
  while (!b->over) {
    struct pollfd fds[1 + 2 * LINKS] = {{b->door, POLLIN, 0}};
    for (int i = 0; i < 2 * LINKS; i++)
      fds[1 + i] = (struct pollfd){
          i / 2 < b->links ? b->link[i / 2].fd[i % 2] : -1, POLLIN, 0};
    if (!b->port)
      fds[2].fd = -1;
    poll(fds, 1 + 2 * LINKS, 20);
    for (int i = 0; i < 2 * LINKS; i++)
      if (fds[1 + i].revents && b->link[i / 2].fd[i % 2] >= 0)
        hear_side(b, &b->link[i / 2], i % 2);
    if (fds[0].revents)
      let_through(b);
  }
  return NULL;
}

void between_open(struct between *b, int port) {
  struct sockaddr_in in = loopback(0);
  socklen_t length = sizeof in;
  memset(b, 0, sizeof *b);
  b->port = port;
  b->flip[0] = b->flip[1] = SIZE_MAX;
  b->door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(b->door, (struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(b->door, LINKS), 0);
  getsockname(b->door, (struct sockaddr *)&in, &length);
  snprintf(b->address, sizeof b->address, "tcp://127.0.0.1:%d",
           ntohs(in.sin_port));
  assert_int_equal(pthread_create(&b->thread, NULL, stand, b), 0);
}

void between_close(struct between *b) {
  b->over = 1;
  pthread_join(b->thread, NULL);
  close(b->door);
  for (int i = 0; i < 2 * b->links; i++) {
    if (b->link[i / 2].fd[i % 2] >= 0)
      close(b->link[i / 2].fd[i % 2]);
    free(b->link[i / 2].said[i % 2]);
  }
}

bool between_heard(const struct between *b, int side, const void *bytes,
                   size_t length) {
  for (int i = 0; i < b->links; i++)
    if (memmem(b->link[i].said[side], b->link[i].length[side], bytes, length))
      return true;
  return false;
}
