"""Threads may begin to decode a type at the same time, and all types go through the module that makes it safe."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.system import typed

SOURCE = Path(penstock.__file__).parent
# Types that refer to each other by name: their annotations are resolved by Python code, between which threads change.
FIRST_USES = """
import sys, threading
import msgspec
from penstock.system import typed

sys.setswitchinterval(1e-6)
for number in range(150):
    names = [f"S{number}_{index}" for index in range(12)]
    for name, following in zip(names, [*names[1:], None]):
        fields = [(f"f{field}", "int | None", None) for field in range(8)]
        fields += [("inner", f"{following} | None", None)] if following else []
        globals()[name] = msgspec.defstruct(name, fields, module="__main__")
    kind, start = globals()[names[0]], threading.Barrier(4)
    def use():
        start.wait()
        for _ in range(3):
            assert typed.convert({"f0": 1, "inner": {"f1": 2}}, kind).inner.f1 == 2
            assert typed.decode_json(b'{"inner": {"inner": {"f7": 3}}}', kind).inner.inner.f7 == 3
            assert typed.msgpack_decoder(kind | None).decode(b"\\x80").inner is None
    threads = [threading.Thread(target=use) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("whole")
"""


def test_threads_may_use_a_type_for_the_first_time_together() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_values_and_errors_are_those_of_msgspec() -> None:
    assert typed.decode_json(b"[1, 2]", list[int]) == [1, 2]
    assert typed.convert("3", int, strict=False) == 3
    for call in (lambda: typed.convert("3", int), lambda: typed.decode_json(b'"3"', int)):
        with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
            call()


def test_no_other_module_names_a_type_to_msgspec() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        if path == Path(typed.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name, given = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
                is_decoder = name in ("msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder")
                if is_decoder or (name in ("msgspec.json.decode", "msgspec.msgpack.decode") and "type" in given):
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {name}")
    assert found == []
