# SPDX-License-Identifier: Apache-2.0
"""What the adapters in Python share: the protocol of README.md in this folder,
the loops of the bursts, their clock and histogram, and the checks of bytes.

An adapter calls main() with a function for each side:

    server(job)  gets ready, calls job.ready(ADDRESS), waits with job.end() or
                 await job.ended(), and cleans up.
    client(job)  returns an object with call(payload), which returns the reply:
                 anything with the buffer protocol. It may have
                   loop             an asyncio loop: call is a coroutine then
                   payload(slot)    what call takes, from slot.bytes; outside of
                                    the timed part (default: a copy as bytes)
                   submit(payload)  begins a call, returns a token (pipelined)
                   finished(tokens) waits; returns [(token, reply), ...]
                   put, get         instead of call, with submit_put, submit_get
                   pieces           the same with lists: see onesided.py
                   stage(mode, slot), seen(mode, slot)   see onesided.py
                   lend(slot, burst)  calls of mode loan until burst.goes_on()
                                    says no
                   others_cpu()     CPU seconds of processes elsewhere
                   close()

Libraries are imported inside of these functions, so that "version" is quick.
Between the two readings of the clock are the call and, if it is a coroutine,
its await; nothing else.
"""

import asyncio
import atexit
import importlib.metadata
import os
import signal
import socket
import sys
import time

PAGE = 4096
FEWEST = 3  # calls in a burst
DIGITS = 4  # of a time in the histogram: within 0.05 %
NEXT = bytes((i + 1) & 255 for i in range(256))

clock = time.monotonic_ns


class Wrong(Exception):
    """Other bytes came back."""


class Slot:
    """The bytes of one call under way, and what its reply must be."""

    def __init__(self, size, index=0):
        self.size, self.index, self.round = size, index, 0
        self.bytes = bytearray(os.urandom(size))
        pages = (size + PAGE - 1) // PAGE
        self.marks = bytes(i & 255 for i in range(256 + pages))
        self.kept = None  # what the adapter keeps for this slot

    def stamp(self):
        """Changes one byte of each page."""
        self.round += 1
        self.offset = self.round % min(PAGE, self.size)
        first = self.round & 255
        count = len(range(self.offset, self.size, PAGE))
        self.mark = self.marks[first:first + count]
        self.bytes[self.offset::PAGE] = self.mark

    def stamp_behind(self, head):
        """The same, but leaves so many bytes at the beginning as they are."""
        self.stamp()
        self.offset = head + self.round % (min(PAGE, self.size) - head)
        first = self.round & 255
        count = len(range(self.offset, self.size, PAGE))
        self.mark = self.marks[first:first + count]

    def renew(self):
        """Changes every byte."""
        self.round += 1
        self.bytes[:] = self.bytes.translate(NEXT)

    def look(self, reply):
        """Compares what stamp() changed; returns the number of bytes."""
        view = memoryview(reply)
        if view.nbytes != self.size:
            self.differs(reply)
        if bytes(view[self.offset::PAGE]) != self.mark:
            self.differs(reply)
        return len(self.mark)

    def compare(self, reply):
        """Compares all bytes; returns their number."""
        if self.bytes != reply:
            self.differs(reply)
        return self.size

    def differs(self, reply):
        got = bytes(reply)
        if len(got) != self.size:
            raise Wrong(f"the reply to call {self.round} has {len(got)} bytes, "
                        f"not {self.size}")
        at = next(i for i in range(self.size) if got[i] != self.bytes[i])
        raise Wrong(f"the reply to call {self.round} differs at byte {at} of "
                    f"{self.size}")


class Burst:
    """One burst: when it ends, and what it found."""

    def __init__(self, seconds):
        self.times, self.checked, self.calls = {}, 0, 0
        self.sum = self.span = 0
        self.until = clock() + int(seconds * 1e9)
        self.least = None

    def goes_on(self):
        return self.calls < FEWEST or clock() < self.until

    def add(self, ns, count=1):
        self.calls += count
        self.sum += ns * count
        self.times[ns] = self.times.get(ns, 0) + count

    def caller(self, post, whole):
        """Processor time of the calling thread, in ns: until a call was
        posted, and until it had ended. The least is told."""
        post_before, whole_before = self.least or (post, whole)
        self.least = min(post, post_before), min(whole, whole_before)

    def answer(self, cpu):
        rounded = {}
        for ns, count in self.times.items():
            step = 10 ** max(0, len(str(int(ns))) - DIGITS)
            ns = max(1, int(ns + step // 2) // step * step)
            rounded[ns] = rounded.get(ns, 0) + count
        pairs = ",".join(f"{ns}:{rounded[ns]}" for ns in sorted(rounded))
        more = "" if cpu is None else f" cpu={cpu:.6f}"
        if self.least:
            post, whole = self.least
            more += f" post={post / 1e9:.9f} caller={whole / 1e9:.9f}"
        return (f"ok calls={self.calls} "
                f"seconds={(self.span or self.sum) / 1e9:.9f} "
                f"checked={self.checked}{more} ns={pairs}")


# ---- Loops -----------------------------------------------------------------
# All are coroutines; those of clients without a loop never suspend.


def plain_payload(slot):
    return bytes(slot.bytes)


def repeats(size):
    """How many one-sided transfers are timed together, and so hide the clock's
    own time; each has ended before the next one begins."""
    return 64 if size <= 4096 else 8 if size <= 65536 else 1


class Loops:
    def __init__(self, client, mode):
        self.client, self.mode = client, mode
        self.waits = getattr(client, "loop", None) is not None
        self.payload = getattr(client, "payload", plain_payload)
        self.stage = getattr(client, "stage", None)
        self.one_sided = mode in ("put", "get")
        self.way = mode if self.one_sided else "put"  # an echo puts, then gets
        self.op = getattr(client, mode if self.one_sided else "call", None)
        self.submit = getattr(
            client, "submit_" + mode if self.one_sided else "submit", None)

    def next(self, slot):
        slot.stamp()
        if self.stage:
            self.stage(self.way, slot)
        return self.payload(slot)

    def seen(self, slot, reply):
        return self.client.seen(self.mode, slot) if self.one_sided else reply

    async def in_turn(self, slot, burst):
        op, waits = self.op, self.waits
        if self.one_sided:
            self.one_sided_in_turn(slot, burst)
            return
        while burst.goes_on():
            payload = self.next(slot)
            start = clock()
            reply = op(payload)
            if waits:
                reply = await reply
            burst.add(clock() - start)
            burst.checked += slot.look(reply)
        burst.checked += slot.compare(reply)

    def one_sided_in_turn(self, slot, burst):
        op, times = self.op, range(repeats(slot.size))
        while burst.goes_on():
            payload = self.next(slot)
            start = clock()
            for _ in times:
                op(payload)
            burst.add((clock() - start) / len(times), len(times))
            burst.checked += slot.look(self.seen(slot, None))
        burst.checked += slot.compare(self.seen(slot, None))

    async def tasks(self, slots, burst):
        """UNDER tasks, each with one call under way."""
        async def one(slot):
            while burst.goes_on():
                payload, start = self.next(slot), clock()
                reply = await self.op(payload)
                burst.add(clock() - start)
                burst.checked += slot.look(reply)
            burst.checked += slot.compare(reply)

        begin = clock()
        await asyncio.gather(*map(one, slots))
        burst.span = clock() - begin

    async def pipelined(self, slots, burst):
        """UNDER calls under way of a client that submits and collects."""
        flying, begin = {}, clock()

        def start(slot):
            payload, now = self.next(slot), clock()
            flying[self.submit(payload)] = slot, now

        for slot in slots:
            start(slot)
        while flying:
            for token, reply in self.client.finished(list(flying)):
                slot, started = flying.pop(token)
                burst.add(clock() - started)
                reply = self.seen(slot, reply)
                burst.checked += slot.look(reply)
                if burst.goes_on():
                    start(slot)
                else:
                    burst.checked += slot.compare(reply)
        burst.span = clock() - begin

    async def paced(self, slot, burst, rate):
        """Calls at even times, timed from when they were due."""
        begin = due = clock()
        while burst.goes_on():
            payload = self.next(slot)
            rest = (due - clock()) / 1e9
            if rest > 0:
                await asyncio.sleep(rest) if self.waits else time.sleep(rest)
            reply = self.op(payload)
            if self.waits:
                reply = await reply
            burst.add(clock() - due)
            burst.checked += slot.look(reply)
            due += int(1e9 / rate)
        burst.checked += slot.compare(reply)
        burst.span = clock() - begin

    def renewed(self, slot):
        slot.renew()
        if self.stage:
            self.stage(self.way, slot)
        return self.payload(slot)

    async def verify(self, slots, burst, calls):
        """Rounds of a call of each slot, under way together if they can be."""
        def compare(slot, start, reply):
            burst.add(clock() - start)
            burst.checked += slot.compare(reply)

        async def one(slot):
            payload, start = self.renewed(slot), clock()
            reply = self.client.call(payload)
            compare(slot, start, await reply if self.waits else reply)

        def together():
            flying = {}
            for slot in slots:
                payload, start = self.renewed(slot), clock()
                flying[self.submit(payload)] = slot, start
            while flying:
                for token, reply in self.client.finished(list(flying)):
                    compare(*flying.pop(token), reply)

        while burst.calls < max(1, calls):
            if self.waits:
                await asyncio.gather(*map(one, slots))
            elif self.submit and not self.stage and len(slots) > 1:
                together()
            else:
                for slot in slots:
                    await one(slot)


# ---- The client's side -----------------------------------------------------


class Driver:
    """Reads bursts from standard input and runs them."""

    def __init__(self, job, client):
        self.job, self.client = job, client
        self.slots_of = {}

    def slots(self, size, count):
        if size not in self.slots_of:
            self.slots_of = {size: []}  # those of other sizes are let go
        slots = self.slots_of[size]
        while len(slots) < count:
            slots.append(Slot(size, len(slots)))
        return slots[:count]

    def run(self, mode, size, under, seconds):
        burst = Burst(0 if mode == "verify" else seconds)
        if mode == "loan":
            self.client.lend(self.slots(size, 1)[0], burst)
            return burst
        if mode.endswith("-pieces"):
            self.client.pieces(mode[:3], size, burst)
            return burst
        loops = Loops(self.client, mode)
        one = mode == "paced" or under == 1
        slots = self.slots(size, 1 if one else under)
        if mode == "verify":
            steps = loops.verify(slots, burst, int(seconds))
        elif mode == "paced":
            steps = loops.paced(slots[0], burst, under)
        elif one:
            steps = loops.in_turn(slots[0], burst)
        elif loops.waits:
            steps = loops.tasks(slots, burst)
        else:
            steps = loops.pipelined(slots, burst)
        self.step(loops, steps)
        return burst

    def step(self, loops, steps):
        if loops.waits:
            self.client.loop.run_until_complete(steps)
        else:
            try:
                steps.send(None)
            except StopIteration:
                pass

    def answer(self, line):
        mode, size, under, seconds = line.split()
        others = getattr(self.client, "others_cpu", None)
        before = others() if others else 0
        burst = self.run(mode, int(size), int(under), float(seconds))
        return burst.answer(others() - before if others else None)

    def serve(self):
        self.run("verify", min(self.job.size, 64), 1, 1)
        self.job.say("ready")
        for line in sys.stdin:
            self.job.say(self.answer(line))


# ---- Processes -------------------------------------------------------------


class Job:
    """What this process is asked to do, and its lines to the harness."""

    def __init__(self, arguments):
        roles = [i for i, word in enumerate(arguments)
                 if word in ("version", "server", "client")]
        if not roles:
            sys.exit("usage: WORDS... version|server|client FOLDER SIZE UNDER")
        self.words, self.role = arguments[:roles[0]], arguments[roles[0]]
        rest = arguments[roles[0] + 1:] + [""] * 4
        self.folder, self.address = rest[0], rest[3]
        self.size, self.under = int(rest[1] or 1), int(rest[2] or 1)
        self.status = 1  # that this process ends with
        # Libraries write to standard output, which is the harness's.
        self.lines = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, line):
        self.lines.write(line + "\n")
        self.lines.flush()

    def ready(self, address=""):
        self.say(f"ready {address}")

    def end_on_sigterm(self):
        """Again, for a library that has put its own handler there."""
        def end(*_):
            self.status = 0
            sys.exit(0)

        signal.signal(signal.SIGTERM, end)

    def guard(self, clean_up):
        """Starts a process that cleans up when this one has ended, also when it
        has been killed: it waits for the end of a pipe whose other end only
        this one has. It has a session of its own, so that it is neither stopped
        nor killed with this one."""
        reading, writing = os.pipe()
        if os.fork() != 0:
            os.close(reading)
            return
        os.close(writing)
        os.setsid()
        for given in 0, self.lines.fileno():
            os.close(given)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.read(reading, 1)
        clean_up()
        os._exit(0)

    def leave_at_once(self):
        """For a library whose destructors crash: none of them is run."""
        atexit.register(lambda: os._exit(self.status))

    def end(self):
        """Waits until standard input has ended."""
        while os.read(0, PAGE):
            pass
        self.status = 0

    async def ended(self):
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(
            0, lambda: os.read(0, PAGE) or over.set())
        await over.wait()


def free_port():
    """A port of 127.0.0.1 that was free just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def installed(packages):
    """Returns the version of the first wheel; ends where one is missing."""
    try:
        return [importlib.metadata.version(name) for name in packages][0]
    except importlib.metadata.PackageNotFoundError as missing:
        sys.exit(f"the wheel {missing.name} is not installed")


def drive(job, client):
    try:
        there = client(job)
        try:
            Driver(job, there).serve()
            job.status = 0
        finally:
            getattr(there, "close", lambda: None)()
    except Wrong as wrong:
        job.say(f"wrong {wrong}")
        sys.exit(1)
    except Exception as error:  # whatever the library throws
        text = " ".join(f"{type(error).__name__}: {error}".split())
        job.say(f"failed {text[:400]}")
        raise


def main(label, packages, server, client):
    """Runs as the words say. label: the system's name. packages: its wheels."""
    job = Job(sys.argv[1:])
    job.end_on_sigterm()
    version = installed(packages)
    if job.role == "version":
        job.say(f"{label} {version}")
    elif job.role == "server":
        server(job)
    else:
        drive(job, client)
