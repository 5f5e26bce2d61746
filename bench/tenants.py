"""What keys, limits and the ledger add: CPU per streamed token and per request, and time to the first token.

    python bench/tenants.py [--streams 16] [--rounds 12] [--source A/src --source B/src] [--json FILE]

All engines are stubs that compute nothing (`stub_engine.py`). Servers:

direct    one replica, without keys
control   the same once more: what it differs from `direct` by is noise
tenants   one replica, with a key that has every kind of limit, and a ledger in a SQLite file. With --source, one such
          server per checkout

Answers are short and long, so that the cost of a token (the slope) and of a request (the rest) can be told apart.
Requests are sent on a schedule, not one after the other: an answer that ends later must not change how many streams run
at once, since a frame costs the same for one token as for many. Servers take turns within each round, in a different
order each time; ratios are medians over rounds. CPU time is that of all threads of the frontend, in nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gateway import STEP_MS, Connection, Server, body, http_request, penstock

SHORT, LONG = 128, 1024  # tokens of an answer
WORDS = 100  # of a prompt
REQUESTS = {SHORT: 4, LONG: 2}  # of each stream in a turn; the first is not counted in TTFT


def tenants_server(local: str, folder: Path, name: str) -> Server:
    """With a key that has every kind of limit; none is reached."""
    from penstock.database.database import open_database
    from penstock.gateway.keys.audit import Actor
    from penstock.gateway.keys.store import KeyStore

    url = f"sqlite:///{folder / name}.db"
    database = open_database(url)
    many = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "concurrent_requests": 10**6}
    values = {"name": "bench", **many, "usd_per_day": 1e6, "usd_per_month": 1e6}
    _, key = KeyStore(database).create_key("bench", values, Actor("bench"))
    database.close()
    price = "price = { input = 0.15, output = 0.6, cached_input = 0.075 }\n"
    server = penstock(f'[tenants]\nkeys = true\ndatabase = "{url}"\n{local}{price}', folder, name)
    server.key = key
    return server


def cpu_ns(server: Server) -> int:
    tasks = Path(f"/proc/{server.process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


def run_turn(server: Server, streams: int, tokens: int) -> tuple[float, list[float]]:
    """CPU milliseconds of the frontend per request, and the times to the first token."""
    period_s = tokens * STEP_MS / 1000 * 1.3 + 0.15
    selector = selectors.DefaultSelector()
    connections = [Connection(server.address) for _ in range(streams)]
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    times: list[float] = []
    before = cpu_ns(server)
    begin = time.perf_counter()
    for number in range(REQUESTS[tokens]):
        time.sleep(max(0.0, begin + number * period_s - time.perf_counter()))
        for place, connection in enumerate(connections):
            request = body("m", place + streams * number, WORDS, tokens)
            connection.send(http_request(request, server.key))
        left = streams
        while left:
            for key, _ in selector.select():
                if key.data.read():
                    left -= 1
        if number:
            times += [connection.first - connection.sent for connection in connections]
    time.sleep(max(0.0, begin + REQUESTS[tokens] * period_s - time.perf_counter()))
    spent = cpu_ns(server) - before
    for connection in connections:
        connection.socket.close()
    selector.close()
    return spent / 1e6 / (streams * REQUESTS[tokens]), times


def measure(servers: dict[str, Server], streams: int, rounds: int) -> dict[str, dict[str, Any]]:
    cpu: dict[tuple[str, int], list[float]] = {(name, tokens): [] for name in servers for tokens in REQUESTS}
    first: dict[str, list[float]] = {name: [] for name in servers}  # medians of turns, short answers
    for server in servers.values():
        run_turn(server, streams, SHORT)
    for _ in range(rounds):
        for tokens in REQUESTS:
            for name in random.sample(sorted(servers), len(servers)):
                spent, times = run_turn(servers[name], streams, tokens)
                cpu[name, tokens].append(spent)
                if tokens == SHORT:
                    first[name].append(statistics.median(times))
    results = {}
    for name in servers:
        row: dict[str, Any] = {"ttft_p50_ms": statistics.median(first[name]) * 1e3}
        added = [one - base for one, base in zip(first[name], first["direct"], strict=True)]
        row["added_ttft_ms"] = statistics.median(added) * 1e3
        for tokens in REQUESTS:
            ratios = [one / base for one, base in zip(cpu[name, tokens], cpu["direct", tokens], strict=True)]
            row[f"us_per_token_of_{tokens}"] = statistics.median(cpu[name, tokens]) / tokens * 1e3
            row[f"ratio_of_{tokens}"] = statistics.median(ratios)
            row[f"ratio_of_{tokens}_quartiles"] = [round(one, 3) for one in statistics.quantiles(ratios)[::2]]
        slopes = [
            (long - short) / (LONG - SHORT) for short, long in zip(cpu[name, SHORT], cpu[name, LONG], strict=True)
        ]
        row["token_us"] = statistics.median(slopes) * 1e3
        row["request_us"] = statistics.median(cpu[name, SHORT]) * 1e3 - SHORT * row["token_us"]
        results[f"{name} {streams}"] = row
    return results


def report(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'server, streams':16} TTFT ms  added | CPU ratio of {SHORT} tokens  of {LONG} | us per token, per request")
    for name, row in results.items():
        ratios = [f"{row[f'ratio_of_{n}']:6.3f} {row[f'ratio_of_{n}_quartiles']}" for n in REQUESTS]
        print(
            f"{name:16} {row['ttft_p50_ms']:7.2f} {row['added_ttft_ms']:6.2f} | {ratios[0]} {ratios[1]} |"
            f" {row['token_us']:6.2f} {row['request_us']:8.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--source", type=Path, action="append", help="src/ of a checkout; default: this one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    local = f'[[models]]\nname = "m"\nmodel = "{options.model}"\n'
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for other in ("direct", "control"):
                servers[other] = penstock(local, folder, other)
            for source in options.source or [Path(__file__).parent.parent / "src"]:
                os.environ["PYTHONPATH"] = str(source)
                label = "tenants" if options.source is None else source.parent.name
                servers[label] = tenants_server(local, folder, label)
            results = measure(servers, options.streams, options.rounds)
        finally:
            for server in servers.values():
                server.close()
    report(results)
    if options.json is not None:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**known, **results}, indent=1) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
