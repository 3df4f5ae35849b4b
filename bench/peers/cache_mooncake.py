# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store, put and get of values between two processes over TCP, for
mode peers of bench/cache.lua:

  cache_mooncake.py server MASTER BYTES           has the memory of the store
  cache_mooncake.py client MASTER SIZE            as bench/peers/cache_kv.h

Version  0.3.13.post1 (the wheel without CUDA)
Mode     protocol "tcp", P2PHANDSHAKE in place of a metadata server; the client
         has no segment of its own, so all is kept in the server's memory. Its
         memory is registered, put_from and get_into move it without a copy
         beside (the Python API's zero-copy interface); upsert_from replaces a
         value
Copies   to the kernel and out of it
Sleeps   the threads of both sides, in epoll. Both sides may use both cores:
         they move bytes in threads of their own
Source   kvcache-ai.github.io/Mooncake: Store, Python API reference
"""

import ctypes
import os
import signal
import sys
import time

KEYS = 3
PAGE = 4096


def open_store(master, segment, local):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "",
                       master)
    if code != 0:
        sys.exit(f"setup failed with {code}")
    return store


def server(master, size):
    store = open_store(master, int(size), 16 << 20)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


def offset_of(size, which):
    return which % min(size, PAGE)


class Client:
    def __init__(self, master, size):
        self.size = size
        self.store = open_store(master, 0, 64 << 20)
        self.memory = bytearray(2 * size)
        self.array = (ctypes.c_char * (2 * size)).from_buffer(self.memory)
        self.start = ctypes.addressof(self.array)
        view = memoryview(self.memory)
        self.value, self.into = view[:size], view[size:]
        self.value[:] = b"\1" * size
        if self.store.register_buffer(self.start, 2 * size) != 0:
            sys.exit("the memory cannot be registered")
        self.marks = [bytes((which + page) & 255
                            for page in range(-(-size // PAGE)))
                      for which in range(256)]

    def stamp(self, which):
        self.value[offset_of(self.size, which)::PAGE] = \
            self.marks[which & 255][:self.pages(which)]

    def pages(self, which):
        return -(-(self.size - offset_of(self.size, which)) // PAGE)

    def put(self, round_):
        key = f"bench.{round_ % KEYS}"
        self.stamp(round_)
        begin = time.perf_counter_ns()
        code = self.store.upsert_from(key, self.start, self.size)
        took = time.perf_counter_ns() - begin
        if code != 0:
            sys.exit(f"put failed with {code}")
        return took

    def get(self, round_):
        which = round_ % KEYS
        key = f"bench.{which}"
        begin = time.perf_counter_ns()
        got = self.store.get_into(key, self.start + self.size, self.size)
        took = time.perf_counter_ns() - begin
        if got != self.size:
            sys.exit(f"get failed with {got}")
        return took

    def check(self, which):
        part = self.into[offset_of(self.size, which)::PAGE]
        if bytes(part) != self.marks[which & 255][:self.pages(which)]:
            sys.exit("wrong bytes")

    def burst(self, puts, seconds):
        if not puts:
            for which in range(KEYS):
                self.value[:] = b"\1" * self.size
                self.put(which)
        counts, round_, end = {}, 0, time.perf_counter() + seconds
        while round_ < KEYS + 3 or time.perf_counter() < end:
            took = self.put(round_) if puts else self.get(round_)
            if not puts:
                self.check(round_ % KEYS)
            if round_ >= KEYS:
                counts[took] = counts.get(took, 0) + 1
            round_ += 1
        if puts:
            self.get(round_ - 1)
            if self.into != self.value:
                sys.exit("wrong bytes")
        return counts


def client(master, size):
    one = Client(master, int(size))
    print("ready", flush=True)
    for line in sys.stdin:
        what, seconds = line.split()
        for ns, count in one.burst(what == "put", float(seconds)).items():
            print(f"sample {what} {size} {ns} {count}")
        print("end", flush=True)
    one.store.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
