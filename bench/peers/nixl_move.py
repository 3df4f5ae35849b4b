# SPDX-License-Identifier: Apache-2.0
"""NIXL, writes and reads between two agents.

Version  1.5.1 (nixl-cu12; its Python part needs no torch)
Mode     backend UCX as it is by default; metadata by hand. The server has a
         progress thread; the client has none, for it polls anyway, and on
         one core the two would be in each other's way ("thread" gives it
         one, as by default). words[0]: "prepared": both descriptor lists and
         the request are made once, and the request is posted again for each
         transfer; "fresh": each transfer makes a request of two lists
Copies   what UCX chooses between two processes of one host: cma (the kernel
         copies once) or its shared queues (two copies) for small ones
Sleeps   nobody: the caller polls, and so does the server's progress thread
Source   docs.nvidia.com/nixl, getting-started/quick-start, user-guide/
         backend-selection/ucx; nixl_cu12/_api.py
"""

import base64

import onesided
import peer

OPERATION = {"put": "WRITE", "get": "READ"}


def open_agent(name, memory, thread):
    from nixl_cu12 import _api
    agent = _api.nixl_agent(name, _api.nixl_agent_config(
        enable_prog_thread=thread, backends=["UCX"]))
    region = agent.register_memory(
        [(memory.address, memory.length, 0, "")], "DRAM")
    return agent, region


def server(job):
    kept = []
    job.leave_at_once()

    def details(memory):
        kept.extend(open_agent("server", memory, True))
        return base64.b64encode(kept[0].get_agent_metadata()).decode()

    onesided.give(job, details)
    kept[0].deregister_memory(kept[1])


class Client(onesided.Client):
    def __init__(self, job):
        super().__init__(job)
        job.leave_at_once()
        self.agent, self.region = open_agent("client", self.memory,
                                             "thread" in job.words)
        self.name = self.agent.add_remote_agent(
            base64.b64decode(self.details))
        self.prepared = "prepared" in job.words
        self.flying = {}

    def fresh_request(self, mode, here, there):
        agent = self.agent
        return agent.initialize_xfer(
            OPERATION[mode], agent.get_xfer_descs(here, "DRAM"),
            agent.get_xfer_descs(there, "DRAM"), self.name)

    def prepared_request(self, mode, here, there, count):
        agent, all_of_them = self.agent, list(range(count))
        return agent.make_prepped_xfer(
            OPERATION[mode],
            agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, "DRAM"),
            all_of_them,
            agent.prep_xfer_dlist(self.name, there, "DRAM"), all_of_them)

    def request(self, mode, slot):
        """A request to be posted; one that was prepared is used again."""
        here = [(self.local(mode, slot), slot.size, 0)]
        there = [(self.remote(slot), slot.size, 0)]
        if not self.prepared:
            return self.fresh_request(mode, here, there)
        slot.kept = slot.kept or {}
        if mode not in slot.kept:
            slot.kept[mode] = self.prepared_request(mode, here, there, 1)
        return slot.kept[mode]

    def prepare_list(self, mode, pieces):
        """Returns a function that returns the request to be posted. Prepared
        lists may have strides (five columns), fresh ones have none."""
        import numpy
        if self.prepared and any(count > 1 for _, _, count, _ in pieces):
            rows = [(at, n, 0, stride, count)
                    for at, n, count, stride in pieces]
        else:
            rows = [(at, n, 0) for at, n in self.blocks(pieces)]
        here = numpy.array(rows, numpy.uint64)
        there = here.copy()
        here[:, 0] += numpy.uint64(self.here(mode))
        there[:, 0] += numpy.uint64(self.far)
        if not self.prepared:
            return lambda: self.fresh_request(mode, here, there)
        request = self.prepared_request(mode, here, there,
                                        len(self.blocks(pieces)))
        return lambda: request

    def post_list(self, job):
        request = job()
        return request, self.agent.transfer(request)

    def end_list(self, posted):
        agent, (request, state) = self.agent, posted
        while state == "PROC":
            state = agent.check_xfer_state(request)
        if state != "DONE":
            raise RuntimeError(f"the transfer's state is {state}")

    def stage(self, mode, slot):
        super().stage(mode, slot)
        if self.prepared:
            self.request(mode, slot)

    def move(self, mode, slot):
        request = self.request(mode, slot)
        self.end_list((request, self.agent.transfer(request)))

    def put(self, slot):
        self.move("put", slot)

    def get(self, slot):
        self.move("get", slot)

    def submit(self, mode, slot):
        request = self.request(mode, slot)
        self.flying[slot.index] = request, self.agent.transfer(request)
        return slot.index

    def submit_put(self, slot):
        return self.submit("put", slot)

    def submit_get(self, slot):
        return self.submit("get", slot)

    def finished(self, tokens):
        while True:
            for token in tokens:
                request, state = self.flying[token]
                if state == "PROC":
                    state = self.agent.check_xfer_state(request)
                if state == "DONE":
                    del self.flying[token]
                    return [(token, None)]
                if state != "PROC":
                    raise RuntimeError(f"the transfer's state is {state}")

    def close(self):
        self.agent.remove_remote_agent(self.name)
        self.agent.deregister_memory(self.region)


if __name__ == "__main__":
    peer.main("NIXL", ["nixl-cu12", "numpy"], server, Client)
