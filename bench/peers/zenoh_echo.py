# SPDX-License-Identifier: Apache-2.0
"""Zenoh, a query answered by a queryable, peer to peer.

Version  1.10.2
Mode     words[0]: "shm" is a Unix socket, beside which payloads from 3072 bytes
         on go through shared memory, as by default, from a pool that is
         large enough; "tcp" is one connection of 127.0.0.1 without that. Two
         sessions in peer mode that are told of each other: no scouting, no
         router. A declared querier; the queryable replies in its callback.
Copies   shm: payload into a ZBytes, into the pool, the query's payload into
         the reply as it is, the reply's payload into bytes. tcp: into
         batches of 64 KiB, to the kernel, and out of it instead
Sleeps   all: tokio's threads in epoll, the client on the reply's channel
Leaves   12 KiB in /dev/shm (*.zenoh), which the next session removes
Source   zenoh DEFAULT_CONFIG.json5 (transport/shared_memory), zenoh-python
         examples z_querier, z_queryable
"""

import json
import time

import peer

KEY = "bench/echo"
POOL = 16 << 20  # as by default
LEASE = 3600_000  # ms: while others have their turns no side is lost
ATTEMPTS = 20
PATIENCE = 20  # seconds until the client knows the queryable


def open_session(job, role, endpoint):
    import zenoh
    shm = "transport/shared_memory"
    config = zenoh.Config()
    for key, value in {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "listen/endpoints": [],
        f"{role}/endpoints": [endpoint],
        "transport/link/tx/lease": LEASE,
        f"{shm}/enabled": "shm" in job.words,
        f"{shm}/transport_optimization/pool_size":
            max(POOL, 4 * job.size * job.under),
    }.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


def listen(job):
    """Opens a session that listens; returns it and its endpoint."""
    if "shm" in job.words:
        endpoint = f"unixsock-stream/{job.folder}/zenoh.sock"
        return open_session(job, "listen", endpoint), endpoint
    for attempt in range(ATTEMPTS):
        endpoint = f"tcp/127.0.0.1:{peer.free_port()}"
        try:
            return open_session(job, "listen", endpoint), endpoint
        except Exception:  # zenoh.ZError: the port was taken meanwhile
            if attempt == ATTEMPTS - 1:
                raise


def server(job):
    session, endpoint = listen(job)
    with session, session.declare_queryable(
            KEY, lambda query: query.reply(KEY, query.payload)):
        job.ready(endpoint)
        job.end()


class Client:
    def __init__(self, job):
        import queue
        import zenoh
        self.session = open_session(job, "connect", job.address)
        self.querier = self.session.declare_querier(
            KEY, timeout=30, congestion_control=zenoh.CongestionControl.BLOCK)
        self.close = self.session.close
        self.answered = queue.SimpleQueue()
        self.begun = 0
        self.meet()

    def meet(self):
        """Waits until the queryable is known here; before, a query ends without
        a reply."""
        limit = time.monotonic() + PATIENCE
        while not list(self.querier.get(payload=b"?")):
            if time.monotonic() > limit:
                raise TimeoutError("the queryable did not become known")
            time.sleep(0.01)

    def call(self, payload):
        return self.querier.get(payload=payload).recv().ok.payload.to_bytes()

    def submit(self, payload):
        self.begun += 1
        token = self.begun
        self.querier.get(lambda reply: self.answered.put((token, reply)),
                         payload=payload)
        return token

    def finished(self, _tokens):
        token, reply = self.answered.get()
        return [(token, reply.ok.payload.to_bytes())]


if __name__ == "__main__":
    peer.main("Zenoh", ["eclipse-zenoh"], server, Client)
