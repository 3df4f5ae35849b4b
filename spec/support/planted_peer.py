# SPDX-License-Identifier: Apache-2.0
"""An adapter with a fault, for the checks of bench/peers/peer.py.

words[0]: "true" answers what it was sent, "stale" what it was sent first, "flip"
changes the last byte of each reply, "short" leaves it out.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../bench/peers"))
import peer  # noqa: E402

peer.installed = lambda _packages: "1"


class Client:
    def __init__(self, job):
        self.fault, self.first = job.words[0], None
        if job.words[-1] == "threads":
            self.submit, self.done = self.begin, {}

    def call(self, payload):
        if self.fault == "stale" and len(payload) == 8192:
            self.first = self.first or payload
            return self.first
        if self.fault == "flip" and len(payload) == 8192:
            return payload[:-1] + bytes([payload[-1] ^ 1])
        return payload[:-1] if self.fault == "short" else payload

    def begin(self, payload):
        token = len(self.done)
        self.done[token] = self.call(payload)
        return token

    def finished(self, tokens):
        return [(token, self.done[token]) for token in tokens]


def server(job):
    job.ready("here")
    job.end()


peer.main("Planted", [], server, Client)
