"""A rehearsal's CUDA driver, that breaks where a test says so: in the file that BREAKING names, under "driver".

{"driver": {CALL: {...}}}: what befalls each call of that name, on one `device` only where one is given: `signal` (sent
to the worker itself), `error` or `refused` (raised, with these words); of `store` also `data`: what comes of it.
"""

import json
import os
import signal
from pathlib import Path

from fixtures.rehearsal import cuda


def order_for(call, device):
    order = json.loads(Path(os.environ["BREAKING"]).read_text()).get("driver", {}).get(call, {})
    return order if order.get("device", device) == device else {}


def breaking(name):
    def call(self, device, *arguments):
        order = order_for(name, device)
        if "signal" in order:
            os.kill(os.getpid(), signal.Signals[order["signal"]])
        for key, kind in (("error", cuda.DriverError), ("refused", cuda.Refused)):
            if key in order:
                raise kind(order[key])
        return getattr(cuda.Driver, name)(self, device, *arguments)

    return call


class Driver(cuda.Driver):
    enable_peer_access, disable_peer_access = breaking("enable_peer_access"), breaking("disable_peer_access")
    allocate, free, read = breaking("allocate"), breaking("free"), breaking("read")
    export, open, close = breaking("export"), breaking("open"), breaking("close")
    _store = breaking("store")

    def store(self, device, address, size, seed):
        data = order_for("store", device).get("data")
        if data == "lost":
            return
        self._store(device, address, size, seed)
        if data == "half lost":
            self._write(address, self.poison(size // 2))
        elif data == "zeros":
            self._write(address, bytes(size))
        elif data == "other":
            with open(address, "r+b") as memory:
                first = memory.read(1)[0]
                memory.seek(0)
                memory.write(bytes([first ^ 0x80]))

    @staticmethod
    def poison(size):
        return b"\xef\xbe\xad\xde" * (size // 4)
