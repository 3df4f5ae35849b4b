/* SPDX-License-Identifier: Apache-2.0
 *
 * floor_http.c - an HTTP server by libmicrohttpd that answers each GET with so
 * many bytes, and does nothing else: what a look-up at the control server costs
 * at least, as that server has the same library, and polls it in the same way.
 *
 *   floor_http [--pin A,B] SIZE
 *
 * It prints its port, runs on the second core, and ends with its input.
 */
#include "floor.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { CONNECTIONS = 12000 };

static struct MHD_Response *hello;

/* libmicrohttpd calls it twice for each request. */
static enum MHD_Result answer(void *argument, struct MHD_Connection *wire,
                              const char *path, const char *method,
                              const char *version, const char *part,
                              size_t *length, void **context) {
  static char seen;
  (void)argument, (void)path, (void)method, (void)version, (void)part;
  if (!*context) {
    *context = &seen;
    return MHD_YES;
  }
  *length = 0;
  return MHD_queue_response(wire, MHD_HTTP_OK, hello);
}

static struct MHD_Daemon *listening(void) {
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct MHD_Daemon *daemon = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_TURBO, 0, NULL, NULL, answer, NULL,
      MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&at, MHD_OPTION_CONNECTION_LIMIT,
      CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)3072,
      MHD_OPTION_END);
  if (!daemon)
    die("libmicrohttpd");
  return daemon;
}

static void serve(struct MHD_Daemon *daemon) {
  int epoll = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  struct pollfd fds[] = {{epoll, POLLIN, 0}, {STDIN_FILENO, 0, 0}};
  while (!fds[1].revents) {
    MHD_UNSIGNED_LONG_LONG wait;
    MHD_run(daemon);
    bool bounded = MHD_get_timeout(daemon, &wait) == MHD_YES;
    poll(fds, 2, bounded && wait < 1000 ? (int)wait : 1000);
  }
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  size_t size = largest(argc, argv);
  char *body = malloc(size + 1);
  if (!body)
    die("malloc");
  memset(body, 'x', size);
  pin(options.pins[1]);
  hello = MHD_create_response_from_buffer(size, body, MHD_RESPMEM_MUST_FREE);
  struct MHD_Daemon *daemon = listening();
  printf("port %u\n",
         MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
  fflush(stdout);
  serve(daemon);
  MHD_stop_daemon(daemon);
  MHD_destroy_response(hello);
  return 0;
}
