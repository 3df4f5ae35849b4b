/* SPDX-License-Identifier: Apache-2.0
 *
 * nng between two sockets of protocol pair0, over ipc or tcp (the first word).
 * The server sends the message object back that it has received.
 *
 * Version: 1.5.2 (Debian's).
 * Mode: nng_sendmsg and nng_recvmsg, which wait; nng's threads as by default.
 * Copies: the kernel's sockets, in and out; the client its payload into a
 * message (an nng message owns its memory).
 * Sleeping: the program in nng_recvmsg, nng's threads in epoll.
 * Setting: nng_pair(7), nng_ipc(7), nng_tcp(7); room for as many messages as
 * are under way (NNG_OPT_SENDBUF, NNG_OPT_RECVBUF), no limit of their size
 * (NNG_OPT_RECVMAXSZ 0), as in perf/perf.c of nng.
 */
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

#include "peer.h"

struct wire {
  nng_socket socket, sockets[UNDER]; /* the client's, one for each server */
  int servers;
  nng_msg *reply;
  struct peer_client *client;
};

static const char *version(void) {
  static char text[64];
  snprintf(text, sizeof text, "nng %s", nng_version());
  return text;
}

static void must(int status, const char *what) {
  if (status)
    peer_fails("failed", "%s: %s", what, nng_strerror(status));
}

static void open_wire(struct wire *wire, const struct peer *peer) {
  must(nng_pair0_open(&wire->socket), "socket");
  must(nng_socket_set_size(wire->socket, NNG_OPT_RECVMAXSZ, 0), "option");
  must(nng_socket_set_int(wire->socket, NNG_OPT_SENDBUF, peer->under),
       "option");
  must(nng_socket_set_int(wire->socket, NNG_OPT_RECVBUF, peer->under),
       "option");
}

/* Listens; returns the port of TCP, or 0. */
static int listen_at(struct wire *wire, const char *address, bool tcp) {
  nng_listener listener;
  int port = 0;
  must(nng_listen(wire->socket, address, &listener, 0), "listen");
  if (tcp)
    must(nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), "port");
  return port;
}

static void serve(const struct peer *peer) {
  static struct wire wire;
  bool tcp = peer_has_word(peer, "tcp");
  char address[256] = "tcp://127.0.0.1:0";
  open_wire(&wire, peer);
  if (!tcp)
    snprintf(address, sizeof address, "ipc://%s/socket", peer->folder);
  int port = listen_at(&wire, address, tcp);
  if (tcp)
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", port);
  peer_ready(address);
  for (nng_msg *message;;) {
    must(nng_recvmsg(wire.socket, &message, 0), "receive");
    must(nng_sendmsg(wire.socket, message, 0), "send");
  }
}

static void submit(void *context, int slot, size_t length) {
  struct wire *wire = context;
  nng_msg *message;
  must(nng_msg_alloc(&message, length), "message");
  memcpy(nng_msg_body(message), wire->client->buffers[slot], length);
  must(nng_sendmsg(wire->sockets[slot % wire->servers], message, 0), "send");
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct wire *wire = context;
  int slot = peer_oldest(wire->client);
  if (wire->reply)
    nng_msg_free(wire->reply);
  must(nng_recvmsg(wire->sockets[slot % wire->servers], &wire->reply, 0),
       "receive");
  *reply = nng_msg_body(wire->reply);
  *length = nng_msg_len(wire->reply);
  return slot;
}

static void call(const struct peer *peer) {
  static struct wire wire;
  static struct peer_client client;
  for (int i = 0; i < peer->servers; i++) {
    open_wire(&wire, peer);
    must(nng_dial(wire.socket, peer->addresses[i], NULL, 0), "connect");
    wire.sockets[i] = wire.socket;
  }
  wire.servers = peer->servers;
  wire.client = &client;
  client.context = &wire;
  client.submit = submit;
  client.collect = collect;
  peer_rooms(peer, client.buffers);
  peer_bursts(peer, &client);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
