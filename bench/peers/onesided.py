# SPDX-License-Identifier: Apache-2.0
"""What the adapters of one-sided transfers share: the memory of both sides.

The server gives its memory and its address away and does nothing more. The
client puts from the first half of its memory and gets into the second; slot
number i has the i-th part of each. What was put is looked at in the server's
memory by /proc, and what is to be got is put there in the same way, both
outside of the timed part and without the system that is measured. So a put
that is told too early is found.
"""

import ctypes
import mmap
import os
from time import monotonic_ns as clock
from time import thread_time_ns as spent

import peer

PR_SET_PTRACER, ANY = 0x59616d61, -1


class Memory:
    def __init__(self, length):
        self.map = mmap.mmap(-1, length,
                             mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_HUGEPAGE)  # as Perigee does
        self.length = length
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.map[:] = bytes(length)  # so that every page is there


def give(job, details):
    """Serves until the end. details: what the client needs to know more."""
    memory = Memory(job.size * job.under)
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANY), 0, 0, 0)
    job.ready(f"{os.getpid()} {memory.address} {details(memory)}")
    job.end()


class Client:
    """Its subclass has put(slot) and get(slot), and submit_ and finished for
    more than one at a time; each moves slot.size bytes between self.local(mode,
    slot) and self.remote(slot)."""

    def __init__(self, job):
        pid, address, self.details = job.address.split(" ", 2)
        self.far = int(address)
        self.part, self.half = job.size, job.size * job.under
        self.memory = Memory(2 * self.half)
        self.file = os.open(f"/proc/{pid}/mem", os.O_RDWR)
        self.folder = job.folder

    # ---- Lists of blocks ----------------------------------------------------

    def listed(self):
        """What a call moves, from the file "pieces": (offset, length, count,
        stride) of each."""
        with open(self.folder + "/pieces") as file:
            return [tuple(map(int, line.split())) for line in file]

    @staticmethod
    def blocks(pieces):
        """The (offset, length) of each block of the pieces."""
        return [(at + i * stride, length)
                for at, length, count, stride in pieces for i in range(count)]

    def fill(self, mode, size):
        """New bytes where they come from; returns what they are."""
        some = os.urandom(2**20 + 1)  # odd, so that no two blocks are alike
        fresh = (some * (size // len(some) + 1))[:size]
        if mode == "put":
            self.memory.map[:size] = fresh
        else:
            self.far_write(fresh)
        return memoryview(fresh)

    def far_write(self, content):
        view, at = memoryview(content), 0
        while at < len(view):
            at += os.pwrite(self.file, view[at:], self.far + at)

    def far_read(self, size):
        parts, at = [], 0
        while at < size:
            parts.append(os.pread(self.file, size - at, self.far + at))
            at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self, mode, size, burst):
        """Calls that move all pieces, by the subclass's prepare_list(mode,
        pieces), post_list(what that returned) and end_list(what that
        returned). Every byte is new in each burst and compared behind it."""
        pieces, wanted = self.listed(), self.fill(mode, size)
        job = self.prepare_list(mode, pieces)
        while burst.goes_on():
            start, begin = clock(), spent()
            posted = self.post_list(job)
            post = spent() - begin
            self.end_list(posted)
            burst.add(clock() - start)
            burst.caller(post, spent() - begin)
        there = memoryview(
            self.far_read(size) if mode == "put" else
            self.memory.map[self.half:self.half + size])
        for at, length in self.blocks(pieces):
            if there[at:at + length] != wanted[at:at + length]:
                raise peer.Wrong(f"{length} bytes at {at} differ")
            burst.checked += length

    def here(self, mode):
        """The address of the block at offset 0 in this process."""
        return self.memory.address + (self.half if mode == "get" else 0)

    # ---- One block -----------------------------------------------------------

    def offset(self, mode, slot):
        return slot.index * self.part + (self.half if mode == "get" else 0)

    def local(self, mode, slot):
        return self.memory.address + self.offset(mode, slot)

    def remote(self, slot):
        return self.far + slot.index * self.part

    def payload(self, slot):
        return slot

    def stage(self, mode, slot):
        if mode == "get":
            os.pwrite(self.file, slot.bytes, self.remote(slot))
        else:
            at = self.offset(mode, slot)
            self.memory.map[at:at + slot.size] = bytes(slot.bytes)

    def seen(self, mode, slot):
        if mode == "put":
            return os.pread(self.file, slot.size, self.remote(slot))
        at = self.offset(mode, slot)
        return self.memory.map[at:at + slot.size]

    def call(self, slot):
        """There and back, for "verify"."""
        self.put(slot)
        self.get(slot)
        return self.seen("get", slot)
