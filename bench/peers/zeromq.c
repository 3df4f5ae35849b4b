/* SPDX-License-Identifier: Apache-2.0
 *
 * ZeroMQ between two DEALER sockets, over ipc or tcp (the first word). The
 * server sends the message object back that it has received.
 *
 * Version: 4.3.4 (Debian's).
 * Mode: one context, one I/O thread and one socket a side (of a fan-out one
 * for each server).
 * Copies: the kernel's sockets, in and out; ZeroMQ a payload up to 4 KiB
 * into its message; larger ones are sent from where they lie and received into
 * its own memory (zmq_msg_init_data, https://zeromq.org/messages/).
 * Sleeping: the program in zmq_msg_recv, the I/O thread (one on each side, as
 * by default) in epoll.
 * Setting: zmq_ipc(7), zmq_tcp(7); no limit of messages (ZMQ_SNDHWM, ZMQ_RCVHWM)
 * as in perf/remote_lat.cpp and perf/remote_thr.cpp of libzmq.
 */
#include <zmq.h>

#include "peer.h"

enum { COPIED = 4096 };

struct wire {
  void *context, *socket;
  void *sockets[UNDER]; /* of the client, one for each server */
  int servers;
  zmq_msg_t reply;
  struct peer_client *client;
};

static const char *version(void) {
  static char text[64];
  int major, minor, patch;
  zmq_version(&major, &minor, &patch);
  snprintf(text, sizeof text, "ZeroMQ %d.%d.%d", major, minor, patch);
  return text;
}

static void must(int result, const char *what) {
  if (result < 0)
    peer_fails("failed", "%s: %s", what, zmq_strerror(zmq_errno()));
}

static void open_wire(struct wire *wire) {
  int none = 0;
  if (!wire->context)
    wire->context = zmq_ctx_new();
  wire->socket = zmq_socket(wire->context, ZMQ_DEALER);
  if (!wire->socket)
    must(-1, "socket");
  zmq_setsockopt(wire->socket, ZMQ_LINGER, &none, sizeof none);
  zmq_setsockopt(wire->socket, ZMQ_SNDHWM, &none, sizeof none);
  zmq_setsockopt(wire->socket, ZMQ_RCVHWM, &none, sizeof none);
  zmq_msg_init(&wire->reply);
}

static void serve(const struct peer *peer) {
  static struct wire wire;
  char address[256];
  size_t room = sizeof address;
  open_wire(&wire);
  if (peer_has_word(peer, "tcp"))
    snprintf(address, sizeof address, "tcp://127.0.0.1:*");
  else
    snprintf(address, sizeof address, "ipc://%s/socket", peer->folder);
  must(zmq_bind(wire.socket, address), "bind");
  must(zmq_getsockopt(wire.socket, ZMQ_LAST_ENDPOINT, address, &room), "bind");
  peer_ready(address);
  for (;;) {
    must(zmq_msg_recv(&wire.reply, wire.socket, 0), "receive");
    must(zmq_msg_send(&wire.reply, wire.socket, 0), "send");
  }
}

/* The bytes stay as they are until the reply has come. */
static void submit(void *context, int slot, size_t length) {
  struct wire *wire = context;
  uint8_t *bytes = wire->client->buffers[slot];
  void *socket = wire->sockets[slot % wire->servers];
  zmq_msg_t message;
  if (length <= COPIED) {
    must(zmq_send(socket, bytes, length, 0), "send");
    return;
  }
  must(zmq_msg_init_data(&message, bytes, length, NULL, NULL), "message");
  must(zmq_msg_send(&message, socket, 0), "send");
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct wire *wire = context;
  int slot = peer_oldest(wire->client);
  must(zmq_msg_recv(&wire->reply, wire->sockets[slot % wire->servers], 0),
       "receive");
  *reply = zmq_msg_data(&wire->reply);
  *length = zmq_msg_size(&wire->reply);
  return slot;
}

static void call(const struct peer *peer) {
  static struct wire wire;
  static struct peer_client client;
  for (int i = 0; i < peer->servers; i++) {
    open_wire(&wire);
    must(zmq_connect(wire.socket, peer->addresses[i]), "connect");
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
