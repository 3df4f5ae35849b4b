# SPDX-License-Identifier: Apache-2.0
"""Ray, a method of an actor that is in a worker process.

Version  2.60.0
Mode     a runtime of its own in FOLDER, on 127.0.0.1, with a token of its own
         (ray.init(address="local"), no dashboard, no usage statistics,
         RAY_ADDRESS is not looked at); the client connects to it as a second
         driver. words[0]: "bytes" are given and returned; "numpy" arrays of
         bytes are, which both sides read in place
Copies   up to 100 KiB into the request itself (gRPC); above that into the
         object store (shared memory), from where bytes are copied out and an
         array is not; the same for the reply
Sleeps   all; daemons (gcs_server, raylet) beside the two sides have heartbeats
Source   docs.ray.io: ray.init, actors, "Serialization" (zero-copy reads of
         numpy); the reference's rpc_bench_ray
"""

import os
import secrets
import signal
import time

import peer

NAME = "bench-echo"
STORE = 256 << 20  # bytes of the object store beyond some payloads
TICKS = os.sysconf("SC_CLK_TCK")


def isolate(job):
    """Keeps away from ambient runtimes, other addresses and the home folder."""
    os.environ.pop("RAY_ADDRESS", None)
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ.update({
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{job.folder}/token",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 on Linux, too
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
    })
    if job.role == "server":
        with open(os.open(f"{job.folder}/token", os.O_CREAT | os.O_WRONLY,
                          0o600), "w") as file:
            file.write(secrets.token_hex(32))


def processes(folder):
    """Ids of the daemons and workers, by what they were started with."""
    mark = f"RAY_AUTH_TOKEN_PATH={folder}/token".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield int(name)
            except OSError:
                continue  # it has ended, or is another user's


def kill_daemons(folder):
    for _ in range(100):
        left = list(processes(folder))
        for one in left:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not left:
            return
        time.sleep(0.01)


def server(job):
    isolate(job)
    job.guard(lambda: kill_daemons(job.folder))
    import ray
    try:
        context = ray.init(
            address="local", num_cpus=2, include_dashboard=False,
            _temp_dir=job.folder, log_to_driver=False, namespace=NAME,
            object_store_memory=STORE + 2 * job.size * max(4, min(
                job.under, STORE // job.size)))

        class Echo:
            def echo(self, payload):
                return payload

        actor = ray.remote(Echo).options(
            name=NAME, lifetime="detached", num_cpus=0).remote()
        ray.get(actor.echo.remote(b""))
        job.end_on_sigterm()
        job.ready(f"{context.address_info['address']} {os.getsid(0)}")
        job.end()
    finally:
        kill_daemons(job.folder)
        os._exit(0)  # ray.shutdown() would wait for them


class Client:
    def __init__(self, job):
        isolate(job)
        import ray
        self.ray, self.folder = ray, job.folder
        address, session = job.address.split()
        self.sessions = os.getsid(0), int(session)
        ray.init(address=address, namespace=NAME, log_to_driver=False,
                 _temp_dir=job.folder)
        job.end_on_sigterm()
        self.echo = ray.get_actor(NAME).echo
        if "numpy" in job.words:
            import numpy
            self.payload = lambda slot: numpy.frombuffer(
                bytes(slot.bytes), numpy.uint8)

    def call(self, payload):
        return self.ray.get(self.echo.remote(payload))

    def submit(self, payload):
        return self.echo.remote(payload)

    def finished(self, references):
        done, _ = self.ray.wait(references, num_returns=1)
        return [(one, self.ray.get(one)) for one in done]

    def others_cpu(self):
        """CPU time of those that are in neither side's session."""
        ticks = 0
        for one in processes(self.folder):
            try:
                with open(f"/proc/{one}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) not in self.sessions:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def close(self):
        self.ray.shutdown()


if __name__ == "__main__":
    peer.main("Ray", ["ray", "numpy"], server, Client)
