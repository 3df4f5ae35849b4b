/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC from C++, as Debian packages it: unary calls over a Unix socket or TCP
 * (the first word) of a protobuf message or, with the word `bytes`, of byte
 * buffers by generic stubs.
 *
 * Version: 1.51.1 (Debian's).
 * Mode: the asynchronous API with one completion queue a side.
 * Copies: protobuf: the payload into the message, the message into slices,
 * and back into a message; the server moves the request's bytes into its reply.
 * bytes: the client's slice refers to the payload where it lies, the server
 * sends back the slices that it received, and the client joins those of the
 * reply if there are several. Beside that the kernel's sockets, in and out, and
 * what gRPC does to its slices on the way.
 * Sleeping: both, in their completion queue's epoll, one thread on each side
 * (beside gRPC's own for timers and such).
 * Setting: https://grpc.io/docs/guides/performance (C++: not the synchronous
 * API; few queues and threads; generic stubs with ByteBuffer where messages
 * need not be parsed); the asynchronous server of gRPC's own benchmarks
 * (test/cpp/qps/server_async.cc). One channel, no proxy, no limit of size.
 */
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "echo.grpc.pb.h"
#include "peer.h"

namespace {

using grpc::ByteBuffer;
using peers::Echo;
using peers::Payload;

constexpr char METHOD[] = "/peers.Echo/Echo";

const char *version() {
  static std::string text = "gRPC " + grpc::Version();
  return text.c_str();
}

/* ---- The server --------------------------------------------------------- */

/* Takes a request and answers it, again and again. */
template <class Service, class Message> struct Answer {
  Service *service;
  grpc::ServerCompletionQueue *queue;
  std::unique_ptr<grpc::ServerContext> context;
  std::unique_ptr<grpc::ServerAsyncResponseWriter<Message>> writer;
  Message message;
  bool answered = false;

  void listen() {
    context = std::make_unique<grpc::ServerContext>();
    writer = std::make_unique<grpc::ServerAsyncResponseWriter<Message>>(
        context.get());
    service->RequestEcho(context.get(), &message, writer.get(), queue, queue,
                         this);
    answered = false;
  }

  void go_on() {
    if (answered)
      return listen();
    answered = true;
    writer->Finish(message, grpc::Status::OK, this);
  }
};

template <class Service, class Message> void serve_as(const peer &peer) {
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  bool tcp = peer_has_word(&peer, "tcp");
  std::string address =
      tcp ? "127.0.0.1:0" : std::string("unix:") + peer.folder + "/socket";
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  auto queue = builder.AddCompletionQueue();
  auto server = builder.BuildAndStart();
  if (!server)
    die("listen");
  std::vector<Answer<Service, Message>> answers(peer.under);
  for (auto &answer : answers) {
    answer.service = &service;
    answer.queue = queue.get();
    answer.listen();
  }
  if (tcp)
    address = "127.0.0.1:" + std::to_string(port);
  peer_ready(address.c_str());
  void *tag;
  for (bool fine; queue->Next(&tag, &fine);)
    static_cast<Answer<Service, Message> *>(tag)->go_on();
}

void serve(const struct peer *peer) {
  if (peer_has_word(peer, "bytes"))
    serve_as<Echo::WithRawMethod_Echo<Echo::Service>, ByteBuffer>(*peer);
  else
    serve_as<Echo::AsyncService, Payload>(*peer);
}

/* ---- The client --------------------------------------------------------- */

/* The two kinds of messages: how one is made, how a call is prepared, and where
 * a reply's bytes are. */
struct Typed {
  using Message = Payload;
  Echo::Stub stub;
  explicit Typed(const std::shared_ptr<grpc::Channel> &to) : stub(to) {}

  void fill(Message &message, const uint8_t *bytes, size_t length) {
    message.set_body(bytes, length);
  }

  auto prepare(grpc::ClientContext *context, const Message &message,
               grpc::CompletionQueue *queue) {
    return stub.PrepareAsyncEcho(context, message, queue);
  }

  const uint8_t *read(const Message &reply, size_t *length) {
    *length = reply.body().size();
    return reinterpret_cast<const uint8_t *>(reply.body().data());
  }
};

struct Bytes {
  using Message = ByteBuffer;
  grpc::TemplatedGenericStub<Message, Message> stub;
  grpc::Slice whole; /* of the reply that was read last */
  explicit Bytes(const std::shared_ptr<grpc::Channel> &to) : stub(to) {}

  void fill(Message &message, const uint8_t *bytes, size_t length) {
    grpc::Slice slice(bytes, length, grpc::Slice::STATIC_SLICE);
    message = ByteBuffer(&slice, 1);
  }

  auto prepare(grpc::ClientContext *context, const Message &message,
               grpc::CompletionQueue *queue) {
    return stub.PrepareUnaryCall(context, METHOD, message, queue);
  }

  const uint8_t *read(const Message &reply, size_t *length) {
    if (!reply.TrySingleSlice(&whole).ok() &&
        !reply.DumpToSingleSlice(&whole).ok())
      peer_fails("failed", "a reply without bytes");
    *length = whole.size();
    return whole.begin();
  }
};

template <class Kind> struct Client {
  struct Slot {
    std::unique_ptr<grpc::ClientContext> context;
    typename Kind::Message request, reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<typename Kind::Message>>
        reader;
  };

  struct peer_client bursts = {};
  std::vector<std::unique_ptr<Kind>> servers;
  grpc::CompletionQueue queue;
  Slot slots[UNDER];

  Kind &kind(int slot) { return *servers[slot % servers.size()]; }

  static void submit(void *context, int index, size_t length) {
    auto self = static_cast<Client *>(context);
    Slot &slot = self->slots[index];
    Kind &kind = self->kind(index);
    kind.fill(slot.request, self->bursts.buffers[index], length);
    slot.context = std::make_unique<grpc::ClientContext>();
    slot.reader = kind.prepare(slot.context.get(), slot.request, &self->queue);
    slot.reader->StartCall();
    slot.reader->Finish(&slot.reply, &slot.status, &slot);
  }

  static int collect(void *context, const uint8_t **reply, size_t *length) {
    auto self = static_cast<Client *>(context);
    void *tag;
    bool fine;
    if (!self->queue.Next(&tag, &fine))
      peer_fails("failed", "the queue has ended");
    auto slot = static_cast<Slot *>(tag);
    if (!slot->status.ok())
      peer_fails("failed", "%s", slot->status.error_message().c_str());
    int index = static_cast<int>(slot - self->slots);
    *reply = self->kind(index).read(slot->reply, length);
    return index;
  }
};

template <class Kind>
void call_as(const struct peer *peer, const grpc::ChannelArguments &arguments) {
  static Client<Kind> client;
  for (int i = 0; i < peer->servers; i++)
    client.servers.push_back(std::make_unique<Kind>(grpc::CreateCustomChannel(
        peer->addresses[i], grpc::InsecureChannelCredentials(), arguments)));
  client.bursts.context = &client;
  client.bursts.submit = client.submit;
  client.bursts.collect = client.collect;
  peer_rooms(peer, client.bursts.buffers);
  peer_bursts(peer, &client.bursts);
  _exit(0);
}

void call(const struct peer *peer) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (peer_has_word(peer, "bytes"))
    call_as<Bytes>(peer, arguments);
  else
    call_as<Typed>(peer, arguments);
}

} // namespace

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  return peer_main(argc, argv, &kind);
}
