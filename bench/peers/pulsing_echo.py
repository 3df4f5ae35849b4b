# SPDX-License-Identifier: Apache-2.0
"""Pulsing, an actor in another process, resolved by the address of its node.

Version  0.1.2
Mode     an Actor whose receive() returns the bytes that it was asked with; the
         client joins the server's node as a seed, resolves the actor's name
         and asks. This version hands a reply of another process on without
         unpickling it (calls of @remote classes fail on that), which is done
         here; with a Message, which is not pickled, it is slower from 1 MiB
         on. words[0]: "plain" is as installed: the client's sockets have
         TCP_NODELAY, those that the server accepts do not; "nodelay" sets it
         on the server's listening socket, from which Linux hands it on
Copies   payload pickled, into HTTP/2 frames, to the kernel, out of it, and
         unpickled into new bytes; the same for the reply
Sleeps   all: tokio's workers in epoll, and asyncio's loop, to which they hand
         each reply
Source   the package's README; pulsing.core (Actor: "any Python object"). The
         reference's rpc_bench_pulsing asks an actor of its own process
"""

import asyncio
import os
import pickle
import socket

import peer

ACTOR = "bench/echo"


def without_delay():
    """Sets TCP_NODELAY on this process's listening TCP sockets."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # gone since
        try:
            one = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # no socket
            continue
        with one:
            if one.family == socket.AF_INET and one.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def serve(job):
    import pulsing

    class Echo(pulsing.Actor):
        async def receive(self, payload):
            return payload

    system = await pulsing.actor_system("127.0.0.1:0")
    await system.spawn(Echo(), name=ACTOR, public=True)
    if "nodelay" in job.words:
        without_delay()
    job.ready(system.addr)
    await job.ended()
    await system.shutdown()


def server(job):
    asyncio.run(serve(job))


class Client:
    def __init__(self, job):
        import pulsing
        self.message = pulsing.Message
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.connect(pulsing, job.address))

    async def connect(self, pulsing, address):
        self.system = await pulsing.actor_system("127.0.0.1:0",
                                                 seeds=[address])
        self.actor = await self.system.resolve_named(ACTOR, timeout=20)

    async def call(self, payload):
        reply = await self.actor.ask(payload)
        if isinstance(reply, self.message):
            return pickle.loads(reply.payload)
        return reply

    def close(self):
        async def shutdown():
            await self.system.shutdown()

        self.loop.run_until_complete(shutdown())


if __name__ == "__main__":
    peer.main("Pulsing", ["pulsing"], server, Client)
