/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of a connect: a Unix-domain connection to a sleeping server, SIZE
 * bytes of fresh shared memory whose descriptor is sent with the first byte,
 * every page touched by both sides, and one byte back.
 */
#include "floor.h"

#include <sys/un.h>

#include "descriptors.h"

struct door {
  struct sockaddr_un address;
  socklen_t length;
  int listener;
};

static void *map(int file, size_t size) {
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED)
    die("mmap");
  return at;
}

static bool serve_one(int listener) {
  size_t size;
  int peer = accept(listener, NULL, NULL);
  int file = receive_descriptor(peer, &size);
  if (file >= 0) {
    char *at = map(file, size);
    touch(at, size);
    if (write(peer, at, 1) != 1)
      die("write");
    munmap(at, size);
    close(file);
  }
  close(peer);
  return file >= 0;
}

static void serve(void *context) {
  struct door *door = context;
  while (serve_one(door->listener))
    ;
}

static int dial(const struct door *door) {
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(fd, (const struct sockaddr *)&door->address, door->length))
    die("connect");
  return fd;
}

static double round_one(const struct door *door, size_t size) {
  char answer;
  int64_t begin = now();
  int fd = dial(door), file = memfd_create("floor", MFD_CLOEXEC);
  if (ftruncate(file, (off_t)size))
    die("ftruncate");
  char *at = map(file, size);
  memset(at, (int)begin & 0xff, size);
  send_descriptor(fd, file, size);
  if (read(fd, &answer, 1) != 1 || answer != at[0])
    wrong_bytes();
  int64_t end = now();
  munmap(at, size);
  close(file);
  close(fd);
  return (double)(end - begin);
}

static void listen_here(struct door *door) {
  door->address.sun_family = AF_UNIX;
  int length = snprintf(door->address.sun_path + 1, 100, "perigee-floor-%d",
                        (int)getpid());
  door->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) +
                 (socklen_t)length;
  door->listener = socket(AF_UNIX, SOCK_STREAM, 0);
  if (bind(door->listener, (struct sockaddr *)&door->address, door->length) ||
      listen(door->listener, 16))
    die("listen");
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  size_t size = largest(argc, argv);
  struct door door = {0};
  pin(options.pins[0]);
  listen_here(&door);
  struct samples samples = samples_new();
  start(&options, serve, &door);
  for (int i = 0; i < 3; i++)
    round_one(&door, size);
  int64_t end = now() + (int64_t)(options.seconds * 1e9);
  while (now() < end && samples.count < SAMPLES)
    samples.ns[samples.count++] = round_one(&door, size);
  report(&options, "connect", argv[optind], &samples);
  ending();
  close(dial(&door));
  return wait(NULL) < 0;
}
