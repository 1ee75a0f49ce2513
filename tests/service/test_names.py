"""Several farms behind one name: all of them are used, and the name is asked for again when they change (SPEC F4)."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from service.test_farm import calls
from service.test_policy import becomes
from support.servers import Farm, KeyPair, free_port, make_keys

import hotblock as hb
from hotblock.jit.farm.calls import Addresses, NoFarmError
from hotblock.jit.farm.client import FarmClient
from hotblock.jit.farm.settings import FarmSettings


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_keys(tmp_path_factory.mktemp("keys"))


class Names:
    """A fake name server, since the real one of this machine is not ours to change: answers every question for an address
    with the ones it is told."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.over = False
        self.port = self._socket.getsockname()[1]

    def serve(self) -> None:
        while not self.over:
            try:
                data, sender = self._socket.recvfrom(4096)
            except TimeoutError:
                continue
            end = data.index(b"\0", 12) + 5
            kind = struct.unpack(">H", data[end - 4 : end - 2])[0]
            found = self.addresses if kind == 1 else []
            self.asked += kind == 1
            head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(found), 0, 0)
            answers = b"".join(
                b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(address) for address in found
            )
            self._socket.sendto(head + data[12:end] + answers, sender)
        self._socket.close()


@contextmanager
def names(*addresses: str) -> Iterator[Names]:
    server = Names(*addresses)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.over = True
        thread.join()


@pytest.mark.requirement("F4")
def test_all_addresses_of_a_name_are_used_and_asked_for_again(keys: KeyPair, tmp_path: Path) -> None:
    port = free_port()
    farms = [
        Farm(keys, tmp_path / host, ["--log-level", "debug"], f"{host}:{port}")
        for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    ]
    with names("127.0.0.2", "127.0.0.3") as server, farms[0], farms[1]:
        directory = Addresses((f"dns://127.0.0.1:{server.port}/farm.test:{port}",))
        client = FarmClient("farm.test", FarmSettings(keys.trust), directory, remote=True)
        with hb.Runtime(compiler=client, hot_threshold=1) as runtime:
            assert calls(runtime)["compiled_entries"] >= 1
            assert becomes(lambda: _answers(client) and all(map(_calls, farms[:2])))  # one after the other is asked
            for farm in farms[:2]:
                farm.stop(signal.SIGKILL)
            server.addresses[:] = ["127.0.0.4"]
            with farms[2]:
                asked = server.asked
                assert becomes(lambda: _answers(client))
                assert server.asked > asked
                assert _calls(farms[2])
        for farm in farms[:2]:
            farm.start()


def _calls(farm: Farm) -> int:
    return farm.events("call")


def _answers(client: FarmClient) -> bool:
    try:
        return bool(client.capabilities().version)
    except NoFarmError:
        return False
