"""[[models]] in a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidSetting
from penstock.settings import ModelEntry, Settings, from_wire, load, parse_entry, settings_of, to_wire
from penstock.settings.models import FallbackSettings, PriceSettings, parse_duration

TWO = """
[cache]
block_size = 32

[[models]]
name = "small"
model = "smollm2"
threads = 1
replicas = 2
aliases = ["tiny", "default"]
keep_alive = "5m"

[[models]]
name = "big"
upstream = "https://api.example.com/v1"
upstream_model = "big-2026"
api_key_env = "BIG_KEY"
context = 8192
price = { input = 0.5, output = 1.5 }
fallback = ["tiny", { model = "small", max_tokens = 64 }]
"""


def read(tmp_path: Path, text: str, **arguments: object) -> Settings:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return load(arguments, environ={}, file=path)


def test_entries_have_their_own_settings_and_those_of_the_sections(tmp_path: Path) -> None:
    settings = read(tmp_path, TWO, max_sequences=8)
    small, big = settings.models
    assert (small.name, small.aliases, small.replicas, small.model.model) == (
        "small",
        ("tiny", "default"),
        2,
        "smollm2",
    )
    own = settings_of(settings, small)
    assert (own.engine.threads, own.cache.block_size, own.schedule.max_sequences) == (1, 32, 8)
    assert own.models == ()
    assert (big.upstream, big.model.context, big.price) == (
        "https://api.example.com/v1", 8192, PriceSettings(input=0.5, output=1.5),
    )  # fmt: skip
    assert big.fallback == ("tiny", FallbackSettings(model="small", max_tokens=64))
    assert from_wire(to_wire(own)).engine == own.engine


def test_one_model_has_no_entries(tmp_path: Path) -> None:
    assert read(tmp_path, '[model]\nmodel = "smollm2"').models == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('model = "x"', r"models\[0\]: name is required"),
        ('name = "a b"\nmodel = "x"', r"models\[0\] \(a b\): name is required"),
        ('name = "a"', r"models\[0\] \(a\): either model or upstream is required"),
        ('name = "a"\nmodel = "x"\nupstream = "http://h/v1"', "either model or upstream"),
        ('name = "a"\nupstream = "ftp://h"', "upstream must be an http or https URL"),
        ('name = "a"\nupstream = "http://user:key@h"', "without a key in it"),
        ('name = "a"\nupstream = "http://h/v1"\nreplicas = 2', "replicas is a field of a model of this server"),
        ('name = "a"\nupstream = "http://h/v1"\nthreads = 2', "threads is a field of a model of this server"),
        ('name = "a"\nupstream = "http://h/v1"\nkv_memory = "1GiB"', "kv_memory is a field of a model of this server"),
        (
            'name = "a"\nupstream = "http://h/v1"\ncapabilities = ["fly"]',
            r"\(a\): capabilities: 'fly' is none of chat, ",
        ),
        ('name = "a"\nmodel = "x"\napi_key_env = "K"', "api_key_env is a field of an upstream"),
        ('name = "a"\nmodel = "x"\nthreads = 0', r"models\[0\] \(a\): threads must be a whole number >= 1"),
        ('name = "a"\nmodel = "x"\nthread = 1', "there is no setting thread; did you mean threads"),
        ('name = "a"\nmodel = "x"\nport = 1', r"port is a setting of the whole server: it goes under \[serve\]"),
        ('name = "a"\nmodel = "x"\nkv_memory = "lots"', r"models\[0\] \(a\): kv_memory must be a size"),
        ('name = "a"\nmodel = "x"\nkeep_alive = "soon"', "keep_alive must be a duration"),
        ('name = "a"\nmodel = "x"\nmin_replicas = 2', "min_replicas needs max_replicas"),
        ('name = "a"\nmodel = "x"\nscale_up_s = 2', r"models\[0\] \(a\): scale_up_s needs max_replicas"),
        ('name = "a"\nmodel = "x"\nreplicas = 2\nscale_down_s = 2', "scale_down_s needs max_replicas"),
        ('name = "a"\nmodel = "x"\nkv_events = "udp"', r"models\[0\] \(a\): kv_events must be an address such as"),
        ('name = "a"\nmodel = "x"\nmin_replicas = 3\nmax_replicas = 2', "min_replicas is 3, more than max_replicas"),
        ('name = "a"\nmodel = "x"\nreplicas = 3\nmax_replicas = 2', "replicas is 3, more than max_replicas"),
        ('name = "a"\nmodel = "x"\nmin_replicas = 0\nmax_replicas = 2\npinned = true', "but the model is pinned"),
        (
            'name = "a"\nmodel = "x"\nmin_replicas = 1\nmax_replicas = 2\nkeep_alive = "5m"',
            "keep_alive unloads an idle model, but min_replicas is 1",
        ),
        ('name = "a"\nupstream = "http://h/v1"\nmax_replicas = 2', "max_replicas is a field of a model of this server"),
        ('name = "a"\nmodel = "x"\nprice = { input = -1 }', r"models\[0\] \(a\): price\.input must be a number >= 0"),
        ('name = "a"\nmodel = "x"\nfallback = ["b"]', "fallback: there is no model 'b'"),
        (
            'name = "a"\nmodel = "x"\naliases = ["a:latest"]',
            r"aliases: 'a:latest' is a name of models\[0\] \(a\) already",
        ),
        ('name = "a"\nmodel = "x"\n[[models]]\nname = "a"\nmodel = "y"', r"models\[1\] \(a\): name: 'a' is a name of"),
    ],
)
def test_errors_name_the_entry_and_the_key(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        read(tmp_path, f"[[models]]\n{entry}")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("replicas = 1\nprefill_replicas = 1", "1 of 1 replicas: at least one must be left to decode"),
        ("replicas = 2\nprefill_replicas = 3", "3 of 2 replicas"),
        ("prefill_replicas = -1", "prefill_replicas must be a whole number >= 0"),
        ("replicas = 2\nprefill_replicas = 1\nmax_replicas = 3", "prefill_replicas: .* leave max_replicas out"),
        ("replicas = 2\nprefill_replicas = 1\nprefix_caching = false", "prefill_replicas: .* set prefix_caching"),
        ("replicas = 2\nprefill_replicas = 1\ntensor_parallel = 2", "prefill_replicas: .* tensor_parallel"),
        ('replicas = 2\nprefill_replicas = 1\ndevice = "cuda"', "prefill_replicas: only the native CPU kernels"),
        ('replicas = 2\nprefill_replicas = 1\ndtype = "float32"', "prefill_replicas: only the native CPU kernels"),
        ('replicas = 2\nprefill_replicas = 1\nspeculate = "eagle:f"', "prefill_replicas: .* of speculate eagle"),
        ('replicas = 2\nprefill_replicas = 1\nkv_transport = "pigeon"', "kv_transport"),
        ("replicas = 2\nprefill_min_tokens = 9", "prefill_min_tokens needs prefill_replicas"),
        ('replicas = 2\nkv_transport = "tcp"', "kv_transport needs prefill_replicas"),
    ],
)
def test_what_prefill_and_decode_pools_do_not_go_with(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"models\[0\] \(a\): .*{message.partition(': ')[2] or message}"):
        read(tmp_path, f'[[models]]\nname = "a"\nmodel = "x"\n{more}')


def test_pools_are_off_unless_an_entry_asks_for_them(tmp_path: Path) -> None:
    plain, pooled = '[[models]]\nname = "a"\nmodel = "x"\nreplicas = 3', 'prefill_replicas = 2\nspeculate = "lookup"'
    assert read(tmp_path, plain).models[0].prefill_replicas == 0
    assert read(tmp_path, f"{plain}\n{pooled}").models[0].prefill_replicas == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keep_alive": "soon"}, "a: keep_alive must be a duration"),
        ({"min_replicas": 2}, "a: min_replicas needs max_replicas"),
        ({"replicas": 2, "prefill_replicas": 2}, "a: prefill_replicas: 2 of 2 replicas"),
        ({"aliases": ["x y"]}, "a: aliases: 'x y' has spaces"),
        ({"aliases": ["a:latest"]}, "a: aliases: 'a:latest' is a name of a already"),
        ({"threads": 0}, "a: threads must be a whole number >= 1"),
        ({"port": 1}, r"a: port is a setting of the whole server: it goes under \[serve\]"),
        ({"upstream": "http://h/v1"}, "a: either model or upstream is required, and not both"),
    ],
)
def test_entries_of_run_time_are_checked_as_those_of_the_file(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        parse_entry({"name": "a", "model": "x", **fields}, load({}, environ={}))


def test_null_in_an_entry_of_run_time_leaves_a_field_out() -> None:
    entry = parse_entry({"name": "a", "model": None, "upstream": "http://h/v1", "context": 9}, load({}, environ={}))
    assert (entry.upstream, entry.model.context) == ("http://h/v1", 9)


def test_a_model_and_models_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"model and \[\[models\]\] exclude each other"):
        read(tmp_path, TWO, model="smollm2")


def test_sources_on_the_command_line_are_entries(tmp_path: Path) -> None:
    found = load({"threads": 1}, environ={}, models=["smollm2", "folder/my model.gguf"])
    assert [(one.name, one.model.model, one.engine.threads) for one in found.models] == [
        ("smollm2", "smollm2", 1), ("my-model", "folder/my model.gguf", 1),
    ]  # fmt: skip
    with pytest.raises(InvalidSetting, match="'a' is a name of"):
        load({}, environ={}, models=["x/a", "y/a"])


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300.0), ("1h30m", 5400.0), ("90", 90.0), ("0", 0.0), ("-1", None), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


CONTEXT = """
[[models]]
name = "small"
model = "smollm2"

[models.context_defaults]
history = "keep_first"
keep_first = 1
rank = "reranker"
rank_model = "judge"
show_schema = true
trace = true
budget = {{ output = 512, documents = {documents} }}
"""


def test_context_defaults(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, CONTEXT.format(documents=1500)).models
    found = entry.context_defaults
    assert found is not None
    assert (found.history, found.keep_first, found.rank, found.rank_model) == ("keep_first", 1, "reranker", "judge")
    assert (found.show_schema, found.trace, found.budget.output, found.budget.documents) == (True, True, 512, 1500)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("keep_first = 1\n", "", "context_defaults.keep_first"),
        ('rank = "reranker"', 'rank = "bm25"', "context_defaults.rank_model"),
        ('rank = "reranker"', 'rank = "magic"', "rank"),
        ("trace = true", "tracing = true", "tracing"),
        ("documents = 1500", "documents = 0", "documents"),
        ("documents = 1500", "documents = 1500, total = 1000", "context_defaults.budget.documents"),
    ],
)
def test_context_defaults_that_are_wrong(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = CONTEXT.format(documents=1500)
    assert old in text
    with pytest.raises(InvalidSetting) as caught:
        read(tmp_path, text.replace(old, new))
    assert named in f"{caught.value.param} {caught.value.message}"


@pytest.mark.parametrize(
    ("entry", "bounds", "idle_after"),
    [
        ({}, (1, 1, 1), None),
        ({"replicas": 2}, (1, 2, 2), None),
        ({"max_replicas": 4}, (1, 1, 4), None),
        ({"min_replicas": 2, "max_replicas": 4}, (2, 2, 4), None),
        ({"min_replicas": 0, "max_replicas": 4}, (0, 1, 4), "5m"),
        ({"max_replicas": 4, "keep_alive": "9m"}, (0, 1, 4), "9m"),
        ({"replicas": 3, "max_replicas": 4}, (1, 3, 4), None),
    ],
)
def test_limits_of_replicas(entry: dict[str, Any], bounds: tuple[int, int, int], idle_after: str | None) -> None:
    made = ModelEntry(name="a", **entry)
    assert (made.least_replicas, made.first_replicas, made.most_replicas) == bounds
    assert made.idle_after == idle_after
