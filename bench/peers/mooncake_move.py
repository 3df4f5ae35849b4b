# SPDX-License-Identifier: Apache-2.0
"""Mooncake Transfer Engine, writes and reads between two engines.

Version  0.3.13.post1 (the wheel without CUDA)
Mode     protocol "tcp", the one of its protocols for memory that needs neither
         a network card nor a GPU; engines find each other by P2PHANDSHAKE,
         without a metadata server. One transfer: transfer_sync_write and
         transfer_sync_read; more: transfer_submit_write; a list:
         batch_transfer_async_write and _read, which is waited for by
         get_batch_transfer_status. Its queue takes 1024 blocks by default;
         the description lets it take BATCH
Copies   to the kernel and out of it, into the registered memory
Sleeps   the server's thread, in epoll; the caller polls the transfer's status
Source   kvcache-ai.github.io/Mooncake: Transfer Engine, Python API reference
"""

import onesided
import peer

HOST = "127.0.0.1"
BATCH = 65535  # blocks, the most that its TCP queue can be set to


def open_engine(memory):
    from mooncake import engine
    one = engine.TransferEngine()
    if one.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("the engine cannot be initialized")
    if one.register_memory(memory.address, memory.length) != 0:
        raise RuntimeError("the memory cannot be registered")
    return one


def server(job):
    kept = []

    def details(memory):
        kept.append(open_engine(memory))
        return f"{HOST}:{kept[0].get_rpc_port()}"

    onesided.give(job, details)


def check(code):
    if code < 0:
        raise RuntimeError(f"the transfer failed with {code}")
    return code


class Client(onesided.Client):
    def __init__(self, job):
        super().__init__(job)
        self.engine = open_engine(self.memory)

    def put(self, slot):
        check(self.engine.transfer_sync_write(
            self.details, self.local("put", slot), self.remote(slot),
            slot.size))

    def get(self, slot):
        check(self.engine.transfer_sync_read(
            self.details, self.local("get", slot), self.remote(slot),
            slot.size))

    def submit_put(self, slot):
        return check(self.engine.transfer_submit_write(
            self.details, self.local("put", slot), self.remote(slot),
            slot.size))

    def prepare_list(self, mode, pieces):
        move = (self.engine.batch_transfer_async_write if mode == "put"
                else self.engine.batch_transfer_async_read)
        here, blocks = self.here(mode), self.blocks(pieces)
        parts = [blocks[i:i + BATCH] for i in range(0, len(blocks), BATCH)]
        return move, [([here + at for at, _ in part],
                       [self.far + at for at, _ in part],
                       [length for _, length in part]) for part in parts]

    def post_list(self, job):
        move, parts = job
        for lists in parts[:-1]:
            self.end_list(move(self.details, *lists))
        return move(self.details, *parts[-1])

    def end_list(self, batch):
        if batch == 0:
            raise RuntimeError("the batch was not taken")
        check(self.engine.get_batch_transfer_status([batch]))

    def finished(self, tokens):
        while True:
            for token in tokens:
                if check(self.engine.transfer_check_status(token)) == 1:
                    return [(token, None)]


if __name__ == "__main__":
    peer.main("Mooncake", ["mooncake-transfer-engine-non-cuda"], server,
              Client)
