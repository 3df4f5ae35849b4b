# SPDX-License-Identifier: Apache-2.0
"""DLSlime's SlimeRPC, with the control server and the Redis that it wants.

Version  0.1.23 (control server 0.1.23, Debian's Redis)
Mode     a raw inplace method: the client's writer copies the payload into the
         registered buffer from which it is sent, the handler copies the
         request into the buffer of the reply; one slot, so that the caller
         receives the reply itself (no thread in between). Redis and the
         control server are started here, on ports of 127.0.0.1 of their own
Copies   the client in and out (the reply is made bytes), the server once
Sleeps   nobody: the caller, the server's receiver and, on both sides, a thread
         that posts look without sleeping; another does so at first
Source   SlimeRPC's documentation of method(raw, inplace) and of
         SLIME_RPC_MAX_INFLIGHT=1, "single-flight"

SlimeRPC takes torch for its two buffers of pinned memory alone, and pinning
wants an NVIDIA driver; Torch below gives it private memory in its place, which
is what is registered with the device.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
import types

import peer

WORKER, DRIVER = "worker", "driver"
ROOM = 4096       # bytes of a buffer beyond the payload: a header
PATIENCE = 60     # seconds until daemons listen, and until the two have met
LOOK = 0.02       # seconds between looks
HOST = "127.0.0.1"


class Torch(types.ModuleType):
    """What SlimeRPC takes of torch: empty(), and a tensor's address."""

    int8 = None

    class Tensor:
        def __init__(self, size):
            self.size, self.bytes = size, mmap.mmap(-1, size)
            self.address = ctypes.addressof(
                ctypes.c_char.from_buffer(self.bytes))

        def data_ptr(self):
            return self.address

        def numel(self):
            return self.size

    def empty(self, size, dtype=None, pin_memory=False):
        return self.Tensor(size)


def wait_until(what, happens):
    limit = time.monotonic() + PATIENCE
    while not happens():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} within {PATIENCE} s")
        time.sleep(LOOK)


# ---- Daemons ---------------------------------------------------------------


def listens(port):
    with open("/proc/net/tcp") as file:
        return any(f":{port:04X} 00000000:0000 0A" in line for line in file)


def start(port, *words):
    """Starts a daemon that dies with this process, and waits for its port."""
    child = subprocess.Popen(("setpriv", "--pdeathsig", "KILL", *words),
                             stdin=subprocess.DEVNULL)
    wait_until(f"{words[0]} did not listen",
               lambda: listens(port) or child.poll() is not None)
    if child.poll() is not None:
        raise RuntimeError(f"{words[0]} ended with {child.returncode}")


def start_daemons(job):
    redis, control = peer.free_port(), peer.free_port()
    start(redis, "redis-server", "--bind", HOST, "--port", str(redis),
          "--save", "", "--appendonly", "no", "--dir", job.folder)
    start(control, f"{os.path.dirname(sys.executable)}/dlslime-ctrl", "server",
          "--host", HOST, "--port", str(control),
          "--redis-url", f"redis://{HOST}:{redis}")
    return f"http://{HOST}:{control}"


# ---- Both sides ------------------------------------------------------------


def agent_of(job, url, alias):
    sys.modules["torch"] = Torch("torch")
    import dlslime
    agent = dlslime.PeerAgent(ctrl_url=url, alias=alias,
                              device=os.environ.get("COMPARE_RDMA"))
    agent._rpc_buffer_size = job.size + ROOM
    agent._rpc_max_inflight = 1
    return agent


def service():
    from dlslime.rpc import method

    class Echo:
        @method(raw=True, inplace=True)
        def echo(self, request, length, reply, room):
            ctypes.memmove(reply, request, length)
            return length

    return Echo


def server(job):
    job.leave_at_once()
    agent = agent_of(job, start_daemons(job), WORKER)
    from dlslime.rpc import serve as serve_calls

    def serve():
        def connected():
            connection = agent.query_connection(DRIVER)
            return connection and connection.is_connected()

        wait_until("no client", connected)
        serve_calls(agent, service()(), peer=DRIVER)

    threading.Thread(target=serve, daemon=True).start()
    job.ready(agent.ctrl_url)
    job.end()


class Client:
    def __init__(self, job):
        job.leave_at_once()
        agent = agent_of(job, job.address, DRIVER)
        from dlslime.rpc import proxy
        agent.connect_to(WORKER).wait(timeout=PATIENCE)
        self.agent = agent
        self.proxy = proxy(agent, WORKER, service())

    @staticmethod
    def payload(slot):
        return slot.bytes

    def call(self, payload):
        length = len(payload)
        source = ctypes.c_char.from_buffer(payload)

        def write(to, room):
            ctypes.memmove(to, ctypes.addressof(source), length)
            return length

        return self.proxy.echo(write).wait()


if __name__ == "__main__":
    peer.main("DLSlime", ["dlslime", "dlslime-ctrl"], server, Client)
