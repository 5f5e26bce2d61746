"""Blocks from one cache to another, as the engine's loop drives it: over shared memory and TCP, whole and cut short."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import pytest

from penstock.cache import CacheManager, PrefixChain
from penstock.engine.transfer import exporter, importer, segment
from penstock.engine.transfer.block_transfers import BlockTransfers, KvMemory
from penstock.engine.transfer.channel import Channel
from penstock.flow.transfer import HOLD_S, TransferSetup, Transport
from penstock.store.spec import CacheGroup

SECRET = b"s" * 32
ROOT = b"root of a chain!"
TOKENS = list(range(100, 133))  # eight full blocks of four, and a token
GROUPS = (CacheGroup(0, (0, 1)), CacheGroup(10, (2,)))
BLOCK_BYTES = (96, 40)
WINDOW_BLOCKS = [5, 6, 7]  # those that the second group's window reaches from the end


class Side:
    """An engine's cache with its memory."""

    def __init__(
        self,
        transport: Transport,
        *,
        exports: bool,
        blocks: int = 40,
        layout: str = "layout",
        secret: bytes = SECRET,
        seed: int = 0,
    ) -> None:
        self.cache = CacheManager(GROUPS, [blocks + 1] * 2, 4, prefix_caching=True)
        self.cache.allow_holdings(32, 8)
        draw = np.random.default_rng(seed)
        self.memory = [draw.integers(0, 256, (blocks + 1, size), np.uint8) for size in BLOCK_BYTES]
        setup = TransferSetup(transport, exports)
        self.now = 0.0
        memory = KvMemory(self.memory, layout)
        self.transfers = BlockTransfers(setup, secret, self.cache, memory, clock=lambda: self.now)
        self.transport = transport

    @property
    def address(self) -> str:
        return str(self.transfers.facts["kv_transfer"])

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.transfers.queries[kind](transfer="t", **arguments)

    def prompt(self, kind: str, tokens: list[int] = TOKENS, **arguments: Any) -> Any:
        return self.ask(kind, root=ROOT, tenant="", tokens=tokens, **arguments)

    def compute(self, tokens: list[int] = TOKENS) -> None:
        """As a sequence that goes once it has computed the prompt."""
        chain = PrefixChain(ROOT, 4)
        table = self.cache.allocate(self.cache.lookup_prefix(chain, tokens), len(tokens), len(tokens), reserve=0)
        assert table is not None
        self.cache.advance(table, chain, tokens, len(tokens))
        self.cache.release(table)

    def contents(self, tokens: list[int] = TOKENS) -> list[list[bytes]]:
        """[groups] of the blocks that a sequence would start from."""
        hit = self.cache.lookup_prefix(PrefixChain(ROOT, 4), tokens)
        return [
            [self.memory[group][block].tobytes() for block in some if block] for group, some in enumerate(hit.blocks)
        ]

    def result(self) -> dict[str, Any]:
        until = time.monotonic() + 60
        while (found := self.ask("kv_import_result")) is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        return dict(found)

    def cancel(self) -> None:
        """An import, and its thread has ended."""
        self.ask("kv_import_cancel")
        self.transfers.tend(60)
        assert not self.transfers.ending

    def check_idle(self) -> None:
        self.cache.check_integrity()
        assert all(usage.held == 0 for usage in self.cache.usage())


Make = Callable[..., Side]


@pytest.fixture(params=get_args(Transport))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    sides: list[Side] = []

    def made(**options: Any) -> Side:
        sides.append(Side(request.param, seed=len(sides), **options))
        return sides[-1]

    yield made
    for side in sides:
        side.transfers.close()
        side.check_idle()


def transfer(source: Side, target: Side, tokens: list[int] = TOKENS) -> dict[str, Any]:
    exported = source.prompt("kv_export", tokens)
    assert target.prompt("kv_import", tokens, address=exported["address"])
    result = target.result()
    source.ask("kv_export_end")
    source.check_idle()
    target.check_idle()
    return result


def test_what_arrives_is_the_same_bit_for_bit(make: Make) -> None:
    source, target = make(exports=True), make(exports=False)
    source.compute()
    result = transfer(source, target)
    assert (result["cause"], result["blocks"], result["cached_tokens"]) == (None, 11, 0)
    assert result["bytes"] == 8 * 96 + 3 * 40
    assert target.contents() == source.contents()
    assert [len(some) for some in target.contents()] == [8, 3]


def test_more_blocks_than_slots_of_shared_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "SEGMENT_BYTES", 1)  # two slots
    source, target = make(exports=True), make(exports=False)
    source.compute()
    assert transfer(source, target)["blocks"] == 11
    assert target.contents() == source.contents()


def test_only_what_is_missing_travels(make: Make) -> None:
    source, target = make(exports=True), make(exports=False)
    source.compute()
    target.compute(TOKENS[:13])
    result = transfer(source, target)
    assert (result["blocks"], result["cached_tokens"]) == (5 + 3, 12)
    assert target.contents()[0][3:] == source.contents()[0][3:]


def test_what_was_evicted_before_the_export_is_computed(make: Make) -> None:
    """The hit ends where a block is missing; one that lacks the window's blocks is none."""
    source, target = make(exports=True), make(exports=False)
    source.compute(TOKENS[:21])
    result = transfer(source, target)
    assert result["cause"] is None
    assert result["blocks"] == 5  # of full attention: those that the window needs at the end were never there
    chain = PrefixChain(ROOT, 4)
    assert target.cache.lookup_prefix(chain, TOKENS).tokens == 0


def test_nothing_to_send_is_no_failure(make: Make) -> None:
    source, target = make(exports=True), make(exports=False)
    result = transfer(source, target)
    assert (result["cause"], result["blocks"]) == (None, 0)


def test_a_full_cache_takes_nothing(make: Make) -> None:
    source, target = make(exports=True), make(exports=False, blocks=11)  # 8 are for a sequence of the whole context
    source.compute()
    exported = source.prompt("kv_export")
    assert target.prompt("kv_import", address=exported["address"]) is False
    target.check_idle()
    source.ask("kv_export_end")


def test_another_layout_is_refused(make: Make) -> None:
    source, target = make(exports=True), make(exports=False, layout="another")
    source.compute()
    result = transfer(source, target)
    assert (result["cause"], result["blocks"]) == ("layout", 0)


def test_an_engine_of_another_server_gets_nothing(make: Make) -> None:
    source, target = make(exports=True), make(exports=False, secret=b"t" * 32)
    source.compute()
    result = transfer(source, target)
    assert result["cause"] in ("refused", "connection")
    assert target.cache.lookup_prefix(PrefixChain(ROOT, 4), TOKENS).tokens == 0


def test_a_transfer_that_has_ended_is_refused(make: Make) -> None:
    source, target = make(exports=True), make(exports=False)
    source.compute()
    source.prompt("kv_export")
    source.ask("kv_export_end")
    source.ask("kv_export_end")  # once more is nothing
    assert target.prompt("kv_import", address=source.address)
    assert target.result()["cause"] == "cancelled"


def test_nobody_listens(make: Make) -> None:
    source, target = make(exports=True), make(exports=False)
    address = source.address
    source.transfers.close()
    assert target.prompt("kv_import", address=address)
    assert target.result()["cause"] == "connection"


class Gate:
    """Lets an exporter send so many blocks, and then wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._left = blocks
        copy = exporter.Lease.copy

        def gated(lease: exporter.Lease, *arguments: Any) -> None:
            if self._left == 0:
                self.reached.set()
                assert self.opened.wait(60)
            self._left -= 1
            copy(lease, *arguments)

        monkeypatch.setattr(exporter.Lease, "copy", gated)


def test_an_export_that_is_ended_on_the_way_leaves_what_has_arrived(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, 4)
    source, target = make(exports=True), make(exports=False)
    source.compute()
    expected = source.contents()
    assert target.prompt("kv_import", address=source.prompt("kv_export")["address"])
    assert gate.reached.wait(60)
    source.ask("kv_export_end")
    source.check_idle()
    source.memory[0][:] = 0  # others write to these blocks now
    gate.opened.set()
    result = target.result()
    assert (result["cause"], result["blocks"]) == ("connection", 4)
    target.check_idle()
    chain = PrefixChain(ROOT, 4)
    target.cache.lookup_prefix(chain, TOKENS)
    found = [target.cache.pools[0].find(link.key) for link in chain.links]
    assert [target.memory[0][block].tobytes() for block in found[:4] if block] == expected[0][:4]
    assert found[4:] == [None] * 4


def test_an_import_that_is_cancelled_gives_its_blocks_back(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, 2)
    source, target = make(exports=True), make(exports=False)
    source.compute()
    assert target.prompt("kv_import", address=source.prompt("kv_export")["address"])
    assert gate.reached.wait(60)
    target.cancel()
    target.check_idle()
    target.cancel()  # once more is nothing
    gate.opened.set()
    source.ask("kv_export_end")
    source.check_idle()


def test_an_import_from_an_engine_that_says_nothing_can_be_cancelled(make: Make) -> None:
    target = make(exports=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert target.prompt("kv_import", address=f"tcp:127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            target.cancel()
            target.check_idle()


@pytest.mark.parametrize("late", ["cancelled", "forgotten"])
def test_an_import_that_ends_late_gives_its_blocks_back_then(
    make: Make, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    connecting, ended, connect = threading.Event(), threading.Event(), importer.connect

    def slow(*arguments: Any) -> socket.socket:
        connecting.set()
        assert ended.wait(60)
        return connect(*arguments)

    monkeypatch.setattr(importer, "connect", slow)
    source, target = make(exports=True), make(exports=False)
    source.compute()
    address = source.prompt("kv_export")["address"]
    assert target.prompt("kv_import", address=address)
    assert connecting.wait(60)
    if late == "cancelled":
        target.ask("kv_import_cancel")
    else:
        target.now = HOLD_S
    target.transfers.tend()
    assert target.transfers.ending
    assert not target.prompt("kv_import", address=address)  # its thread may still write
    assert any(usage.held for usage in target.cache.usage())
    ended.set()
    target.transfers.tend(60)
    target.check_idle()
    assert target.prompt("kv_import", address=address)
    assert target.result()["cause"] is None
    source.ask("kv_export_end")


def test_what_a_dead_frontend_has_begun_ends_in_time(make: Make) -> None:
    source, target = make(exports=True), make(exports=False)
    source.compute()
    assert target.prompt("kv_import", address=source.prompt("kv_export")["address"])
    target.transfers._imports["t"].transferred.join(60)  # nobody asks for its result
    for side in (source, target):
        side.now = HOLD_S - 1
        side.transfers.tend()
        assert any(usage.held for usage in side.cache.usage())
        side.now = HOLD_S
        side.transfers.tend()
        side.check_idle()
    assert target.contents() == source.contents()  # what has arrived is cached


def test_an_exporter_that_stalls_is_given_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    receive, received = Channel.receive, Counter[str]()

    def impatient(channel: Channel, *arguments: Any) -> Any:
        thread = threading.current_thread().name
        received[thread] += 1
        if thread == "kv-import" and received[thread] == 4:  # an offer and two blocks have come, and no more will
            assert gate.reached.wait(60)
            channel.socket.settimeout(0.05)
        return receive(channel, *arguments)

    monkeypatch.setattr(Channel, "receive", impatient)
    gate = Gate(monkeypatch, 2)
    source, target = make(exports=True), make(exports=False)
    source.compute()
    assert target.prompt("kv_import", address=source.prompt("kv_export")["address"])
    assert gate.reached.wait(60)
    result = target.result()
    assert (result["cause"], result["blocks"]) == ("timeout", 2)
    gate.opened.set()
    source.ask("kv_export_end")


@pytest.mark.parametrize("make", ["tcp"], indirect=True)
@pytest.mark.parametrize("cut", [False, True])
def test_a_block_that_was_changed_or_cut_on_the_wire_is_not_cached(make: Make, cut: bool) -> None:
    source, target = make(exports=True), make(exports=False)
    source.compute()
    source.prompt("kv_export")
    address = _through_proxy(source.address, at=48 + 16 + 400, cut=cut)
    assert target.prompt("kv_import", address=address)
    result = target.result()
    assert result["cause"] == ("connection" if cut else "corrupt")
    assert result["blocks"] < 11
    source.ask("kv_export_end")
    target.check_idle()
    chain = PrefixChain(ROOT, 4)
    target.cache.lookup_prefix(chain, TOKENS)
    for link, expected in zip(chain.links, source.contents()[0], strict=True):
        block = target.cache.pools[0].find(link.key)
        assert block is None or target.memory[0][block].tobytes() == expected


def _through_proxy(address: str, at: int, *, cut: bool) -> str:
    """An address from which byte number `at` of the exporter comes changed, or nothing from there on."""
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener, listener.accept()[0] as near, socket.create_connection((host, int(port))) as far:
            back = threading.Thread(target=_copy, args=(near, far), daemon=True)
            back.start()
            seen = 0
            while data := bytearray(far.recv(1 << 16)):
                if seen <= at < seen + len(data):
                    if cut:
                        near.sendall(data[: at - seen])
                        near.shutdown(socket.SHUT_RDWR)  # `back` still reads from it, so that closing would not do
                        return
                    data[at - seen] ^= 1
                seen += len(data)
                try:
                    near.sendall(data)
                except OSError:  # the importer has had enough
                    return

    threading.Thread(target=run, daemon=True).start()
    return f"tcp:127.0.0.1:{listener.getsockname()[1]}"


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
