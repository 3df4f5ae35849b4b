# SPDX-License-Identifier: Apache-2.0
"""gRPC for Python, unary calls of plain bytes, without protobuf around them.

Version  1.85.1
Mode     words[0]: "unix" or "tcp" (127.0.0.1); words[1]: "threads" or "aio",
         the API of both sides. No proxy, no size limit, one channel, one worker
         thread. Unary calls are advised over streams for Python; AsyncIO is
         advised over threads, but is the slower one for one call at a time.
Copies   bytes into slices of the core, to the kernel, back into slices, and
         into new bytes; the same for the reply
Sleeps   both sides, in epoll, at each message
Source   grpc.io/docs/guides/performance (Python), grpc/python/grpc_asyncio.html
"""

import asyncio
import concurrent.futures

import peer

METHOD = "/bench/echo"
OPTIONS = [("grpc.max_send_message_length", -1),
           ("grpc.max_receive_message_length", -1),
           ("grpc.enable_http_proxy", 0), ("grpc.so_reuseport", 0)]


def target(job):
    unix = job.words[0] == "unix"
    return f"unix:{job.folder}/grpc.sock" if unix else "127.0.0.1:0"


def listen(job, server, handle):
    import grpc
    methods = {"echo": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", methods),))
    port = server.add_insecure_port(target(job))
    return target(job).replace(":0", f":{port}")


async def serve_aio(job):
    import grpc

    async def echo(request, _context):
        return request

    server = grpc.aio.server(options=OPTIONS)
    address = listen(job, server, echo)
    await server.start()
    job.ready(address)
    await job.ended()
    await server.stop(0)


def serve_threads(job):
    import grpc
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1),
                         options=OPTIONS)
    address = listen(job, server, lambda request, _context: request)
    server.start()
    job.ready(address)
    job.end()
    server.stop(0).wait()


def server(job):
    asyncio.run(serve_aio(job)) if "aio" in job.words else serve_threads(job)


class Aio:
    def __init__(self, job):
        import grpc
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.connect(grpc, job.address))

    async def connect(self, grpc, address):
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.call = self.channel.unary_unary(METHOD)

    def close(self):
        self.loop.run_until_complete(self.channel.close())


class Threads:
    def __init__(self, job):
        import grpc
        self.channel = grpc.insecure_channel(job.address, options=OPTIONS)
        self.call = self.channel.unary_unary(METHOD)
        self.submit = self.call.future
        self.close = self.channel.close

    def finished(self, futures):
        futures[0].result()
        return [(one, one.result()) for one in futures if one.done()]


def client(job):
    return Aio(job) if "aio" in job.words else Threads(job)


if __name__ == "__main__":
    peer.main("gRPC Python", ["grpcio"], server, client)
