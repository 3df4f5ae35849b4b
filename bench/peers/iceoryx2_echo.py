# SPDX-License-Identifier: Apache-2.0
"""iceoryx2, request and response through shared memory.

Version  0.10.0
Mode     a request-response service of byte slices. words[0]: "copy": from and
         to private memory; "loan": the request is filled before the timed part,
         in the memory that it is sent in, and the reply is read where it is.
         In the harness's mode "loan" a service of its own: both sides touch one
         byte of each page, and nobody copies
Copies   copy: private memory to request, request to response, response to
         private memory. loan: request to response (an answer is sent from
         memory of the server's own)
Sleeps   nobody: both poll (waiting is left to the user; the authors' benchmarks
         poll, too)
Source   iceoryx2-book; examples/python/request_response_dynamic_data;
         benchmarks/request-response
"""

import contextlib
import ctypes
import os
import struct
import threading

import peer

BYTE = ctypes.c_uint8
HEAD = struct.Struct("<qq")  # in front of what is lent
PREFIX = "perigee_peer_"  # of its files in /dev/shm; the server's id follows
SHM = "/dev/shm"


def sweep(ended):
    """Removes what that server left, and others that were killed."""
    for name in os.listdir(SHM):
        if name.startswith(PREFIX):
            owner = name[len(PREFIX):].split("_")[0]
            if owner == str(ended) or not os.path.exists(f"/proc/{owner}"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{SHM}/{name}")


def service(job, owner, name="echo"):
    import iceoryx2 as iox2
    iox2.set_log_level(iox2.LogLevel.Error)
    config = iox2.config.default()
    config.global_cfg.root_path = iox2.Path.new(job.folder)
    config.global_cfg.prefix = iox2.FileName.new(f"{PREFIX}{owner}_")
    node = (iox2.NodeBuilder.new().config(config)
            .signal_handling_mode(iox2.SignalHandlingMode.Disabled)
            .create(iox2.ServiceType.Ipc))
    factory = (node.service_builder(iox2.ServiceName.new(name))
               .request_response(iox2.Slice[BYTE], iox2.Slice[BYTE])
               .max_active_requests_per_client(max(job.under, 4))
               .max_loaned_requests(2)
               .open_or_create())
    return node, factory


def echo(request):
    """Answers one request."""
    payload = request.payload()
    length = payload.len()
    response = request.loan_slice_uninit(length)
    ctypes.memmove(response.payload().as_ptr(), payload.as_ptr(), length)
    response.assume_init().send()


def view(payload):
    """The bytes of a request or response, where they are."""
    there = (BYTE * payload.len()).from_address(payload.as_ptr())
    return memoryview(there).cast("B")


def lend(request):
    """Answers with one byte of each page, and with the time that touching took.
    The request begins with the round and the offset of the bytes."""
    length = request.payload().len()
    response = request.loan_slice_uninit(length)
    start = peer.clock()
    source, target = view(request.payload()), view(response.payload())
    offset = HEAD.unpack_from(source)[1]
    target[offset::peer.PAGE] = source[offset::peer.PAGE]
    HEAD.pack_into(target, 0, peer.clock() - start, offset)
    response.assume_init().send()


def serve(job):
    kinds = {"echo": echo}
    if os.environ.get("COMPARE_MODE") == "loan":
        kinds["lend"] = lend
    nodes, servers = [], []
    for name, answer in kinds.items():
        node, factory = service(job, os.getpid(), name)
        nodes.append(node)
        servers.append((factory.server_builder()
                        .initial_max_slice_len(job.size).create(), answer))
    job.ready(str(os.getpid()))
    over = threading.Thread(target=job.end, daemon=True)
    over.start()
    while over.is_alive():
        for _ in range(1000):
            for server, answer in servers:
                request = server.receive()
                if request is not None:
                    answer(request)
                    request = None  # lets the request's memory go


def server(job):
    server = os.getpid()
    job.guard(lambda: sweep(server))
    serve(job)


class Kept:
    """Private memory of a slot: what is sent, and where the reply goes."""

    def __init__(self, slot):
        self.size, self.into = slot.size, bytearray(slot.size)
        self.source = (BYTE * slot.size).from_buffer(slot.bytes)
        self.target = (BYTE * slot.size).from_buffer(self.into)


class Client:
    def __init__(self, job):
        self.job, self.lending = job, None
        self.loaned = "loan" in job.words
        self.node, factory = service(job, job.address)
        self.client = (factory.client_builder()
                       .initial_max_slice_len(job.size).create())
        self.pending = {}  # token: what waits for the reply, and its Kept

    def lender(self):
        """The client of the service that copies nothing."""
        if self.lending is None:
            self.lending = service(self.job, self.job.address, "lend")
            self.lending += (self.lending[1].client_builder()
                             .initial_max_slice_len(self.job.size).create(),)
        return self.lending[2]

    def lend(self, slot, burst):
        client, clock = self.lender(), peer.clock
        while burst.goes_on():
            slot.stamp_behind(HEAD.size)
            start = clock()
            request = client.loan_slice_uninit(slot.size)
            filling = clock()
            target = view(request.payload())
            HEAD.pack_into(target, 0, slot.round, slot.offset)
            target[slot.offset::peer.PAGE] = slot.mark
            sending = clock()
            pending = request.assume_init().send()
            response = None
            while response is None:
                response = pending.receive()
            reading = clock()
            source = view(response.payload())
            spent = HEAD.unpack_from(source)[0]
            burst.checked += slot.look(source)
            spent += clock() - reading + sending - filling
            del source, target, response, pending
            burst.add(clock() - start - spent)

    def fill(self, kept):
        request = self.client.loan_slice_uninit(kept.size)
        ctypes.memmove(request.payload().as_ptr(), kept.source, kept.size)
        return request.assume_init()

    def payload(self, slot):
        if not slot.kept:
            slot.kept = Kept(slot)
        return slot.kept, self.fill(slot.kept) if self.loaned else None

    def submit(self, payload):
        kept, request = payload
        pending = (request or self.fill(kept)).send()
        token = id(pending)
        self.pending[token] = pending, kept
        return token

    def read(self, response, kept):
        view = response.payload()
        if self.loaned:
            reply = (BYTE * view.len()).from_address(view.as_ptr())
            reply.response = response  # which it keeps in place
            return reply
        if view.len() != kept.size:
            return bytes(view.len())  # which is then said to be wrong
        ctypes.memmove(kept.target, view.as_ptr(), kept.size)
        return kept.into

    def finished(self, tokens):
        while True:
            for token in tokens:
                pending, kept = self.pending[token]
                response = pending.receive()
                if response is not None:
                    del self.pending[token]
                    return [(token, self.read(response, kept))]

    def call(self, payload):
        kept, request = payload
        pending = (request or self.fill(kept)).send()
        while True:
            response = pending.receive()
            if response is not None:
                return self.read(response, kept)


if __name__ == "__main__":
    peer.main("iceoryx2", ["iceoryx2"], server, Client)
