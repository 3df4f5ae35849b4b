/* SPDX-License-Identifier: Apache-2.0
 *
 * Cap'n Proto's RPC from C++, as Debian packages it, over a Unix or a TCP
 * socket (the first word).
 *
 * Version: 0.9.2 (Debian's).
 * Mode: one connection with two parties, one method of one object.
 * Copies: a payload up to 4 KiB into the request's message; larger ones
 * are sent from where they lie (Orphanage::referenceExternalData). The kernel's
 * sockets, in and out. The server the request's bytes into the reply's message:
 * what a method was given may go before what it returns has been sent. The
 * client reads the reply where its message is.
 * Sleeping: both, in their event loop's epoll; one thread on each side.
 * Setting: https://capnproto.org/cxxrpc.html (EzRpcServer, EzRpcClient); sizes
 * told beforehand and no traversal limit, as
 * https://capnproto.org/cxx.html#tips-and-best-practices has it. kj sets
 * TCP_NODELAY.
 */
#include <capnp/ez-rpc.h>
#include <memory>
#include <optional>

#include "echo.capnp.h"
#include "peer.h"

namespace {

using Reply = capnp::Response<peers::Echo::EchoResults>;
using Coming = capnp::RemotePromise<peers::Echo::EchoResults>;

constexpr size_t COPIED = 4096;
constexpr unsigned WORD = sizeof(capnp::word), HEAD = 16; /* words */
const capnp::ReaderOptions UNLIMITED = {.traversalLimitInWords = UINT64_MAX};

const char *version() {
  static char text[64];
  snprintf(text, sizeof text, "Cap'n Proto %d.%d.%d", CAPNP_VERSION_MAJOR,
           CAPNP_VERSION_MINOR, CAPNP_VERSION_MICRO);
  return text;
}

/* What a message with that payload takes. */
capnp::MessageSize room(size_t length) {
  return {HEAD + (length + WORD - 1) / WORD, 0};
}

/* ---- The server --------------------------------------------------------- */

class Server final : public peers::Echo::Server {
  kj::Promise<void> echo(EchoContext context) override {
    auto payload = context.getParams().getPayload();
    context.getResults(room(payload.size())).setPayload(payload);
    return kj::READY_NOW;
  }
};

void serve(const struct peer *peer) {
  bool tcp = peer_has_word(peer, "tcp");
  std::string address = std::string("unix:") + peer->folder + "/socket";
  capnp::EzRpcServer server(kj::heap<Server>(),
                            tcp ? "127.0.0.1" : address.c_str(), 0, UNLIMITED);
  auto &scope = server.getWaitScope();
  unsigned port = server.getPort().wait(scope);
  if (tcp)
    address = "127.0.0.1:" + std::to_string(port);
  peer_ready(address.c_str());
  kj::NEVER_DONE.wait(scope);
}

/* ---- The client --------------------------------------------------------- */

struct Wire {
  struct peer_client client = {};
  capnp::EzRpcClient connection;
  peers::Echo::Client echo;
  std::optional<Coming> coming[UNDER];
  std::optional<Reply> reply; /* that was collected last */

  explicit Wire(const char *address)
      : connection(address, 0, UNLIMITED),
        echo(connection.getMain<peers::Echo>()) {}
};

void submit(void *context, int slot, size_t length) {
  auto wire = static_cast<Wire *>(context);
  bool copied = length <= COPIED;
  capnp::Data::Reader bytes(wire->client.buffers[slot], length);
  auto request = wire->echo.echoRequest(room(copied ? length : 0));
  if (copied)
    request.setPayload(bytes);
  else
    request.adoptPayload(capnp::Orphanage::getForMessageContaining(
                             peers::Echo::EchoParams::Builder(request))
                             .referenceExternalData(bytes));
  wire->coming[slot].emplace(request.send());
}

int collect(void *context, const uint8_t **reply, size_t *length) {
  auto wire = static_cast<Wire *>(context);
  int slot = peer_oldest(&wire->client);
  auto &scope = wire->connection.getWaitScope();
  wire->reply.emplace(wire->coming[slot]->wait(scope));
  auto payload = wire->reply->getPayload();
  *reply = payload.begin();
  *length = payload.size();
  return slot;
}

void call(const struct peer *peer) {
  static std::unique_ptr<Wire> wire;
  try {
    wire = std::make_unique<Wire>(peer->address);
    wire->client.context = wire.get();
    wire->client.submit = submit;
    wire->client.collect = collect;
    peer_rooms(peer, wire->client.buffers);
    peer_bursts(peer, &wire->client);
  } catch (const kj::Exception &error) {
    peer_fails("failed", "%s", error.getDescription().cStr());
  }
  _exit(0);
}

} // namespace

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
