from pathlib import Path

import pytest

from penstock import settings
from penstock.errors import InvalidSetting
from penstock.kernels.cpu import library
from penstock.store import disk


def test_arguments_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[cache]\nblock_size = 8\nkv_memory = "1GiB"\n[model]\ncontext = 100\n')
    environ = {"PENSTOCK_KV_MEMORY": "2GiB", "PENSTOCK_CONTEXT": "200", "PENSTOCK_PREFIX_CACHING": "false"}
    found = settings.load({"context": 300, "dtype": None}, environ=environ, file=file)
    assert (found.cache.block_size, found.cache.kv_memory, found.model.context) == (8, "2GiB", 300)
    assert found.cache.prefix_caching is False
    assert found.model.dtype == "auto"


@pytest.mark.parametrize("service", ["PENSTOCK", "PENSTOCK_GPU_2"])
def test_what_kubernetes_tells_of_a_service_is_not_ours(service: str) -> None:
    told = {
        "_PORT": "tcp://10.0.0.1:9",
        "_SERVICE_HOST": "10.0.0.1",
        "_SERVICE_PORT": "9",
        "_SERVICE_PORT_HTTP": "9",
        "_PORT_9_TCP": "tcp://10.0.0.1:9",
        "_PORT_9_TCP_PROTO": "tcp",
        "_PORT_9_TCP_PORT": "9",
        "_PORT_9_TCP_ADDR": "10.0.0.1",
        "_PORT_53_UDP": "udp://10.0.0.1:53",
    }
    environ = {service + name: value for name, value in told.items()}
    assert settings.load(environ=environ) == settings.Settings()
    assert settings.strays(environ) is None
    assert settings.load(environ={"PENSTOCK_PORT": "udp://10.0.0.1:9"}).serve.port == 8000
    assert settings.load(environ={"PENSTOCK_PORT": "9"}).serve.port == 9


def test_variables_that_look_like_settings_and_are_none_are_named() -> None:
    environ = {"PENSTOCK_BLOK_SIZE": "8", "PENSTOCK_HOME": "secret", "PENSTOCK_CONTEXT": "8", "HOME": "/root"}
    told = settings.strays(environ)
    assert told is not None
    assert told.endswith("PENSTOCK_BLOK_SIZE (did you mean PENSTOCK_BLOCK_SIZE?), PENSTOCK_HOME")
    assert settings.strays({f"PENSTOCK_{name.upper()}": "" for name in settings.SECTIONS}) is None
    assert settings.strays(dict.fromkeys((disk.CACHE_VARIABLE, library.CHOICE), "")) is None


def test_origins_are_written_as_browsers_write_them() -> None:
    found = settings.load({"allow_origin": "https://App.Example, http://localhost:3000,"}, environ={})
    assert found.serve.origins == ("https://app.example", "http://localhost:3000")
    assert settings.load({"allow_origin": "*"}, environ={}).serve.origins == ("*",)
    assert settings.load({"allow_origin": ""}, environ={}).serve.origins == ()


def test_settings_cross_a_process_border() -> None:
    found = settings.load({"model": "x", "lookahead": 1, "isolate": True}, environ={})
    assert settings.from_wire(settings.to_wire(found)) == found


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"block_size": 0}, "block_size"),
        ({"block_size": "many"}, "block_size"),
        ({"dtype": "int3"}, "dtype"),
        ({"memory_fraction": 1.5}, "memory_fraction"),
        ({"kv_memory": "a lot"}, "kv_memory"),
        ({"kv_memory": "0"}, "kv_memory"),
        ({"kv_memory": "1e999"}, "kv_memory"),
        ({"context": -1}, "context"),
        ({"lookahead": 2}, "lookahead"),
        ({"blok_size": 16}, "blok_size"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": " , "}, "api_key"),
        ({"api_key": "good,schlüssel"}, "api_key"),
        ({"api_key": "two\nlines"}, "api_key"),
        ({"allow_origin": "app.example"}, "allow_origin"),
        ({"allow_host": "https://app.example"}, "allow_host"),
        ({"allow_host": "app.example:8000"}, "allow_host"),
        ({"mcp_server": "127.0.0.1:9000"}, "mcp_server"),
        ({"mcp_server": "http://a.example/mcp, http://u:secret@b.example/mcp"}, "mcp_server"),
        ({"mcp_server": "http://a.example; script-src *"}, "mcp_server"),
        ({"allow_origin": "https://app.example/"}, "allow_origin"),
        ({"allow_origin": "https://a.example, https://*.example"}, "allow_origin"),
        ({"step_tokens": 4, "max_sequences": 8}, "step_tokens"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        settings.load(arguments, environ={})
    assert caught.value.param == param
    assert param in caught.value.message


def test_what_is_wrong_in_the_environment_is_found_there() -> None:
    environ = {"PENSTOCK_PORT": "http"}
    with pytest.raises(InvalidSetting, match=r"port.*from PENSTOCK_PORT in the environment"):
        settings.load(environ=environ)
    with pytest.raises(InvalidSetting, match=r"<= 65535$"):
        settings.load({"port": 99999}, environ=environ)
    assert settings.load({"port": 1}, environ=environ).serve.port == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cahce]\nblock_size = 8", r"unknown section \[cahce\]; did you mean \[cache\]\?; known: \[model\], "),
        ("[server]\nport = 8", r"unknown section \[server\]; did you mean \[serve\]\?"),
        ("[[model_s]]\nname = 'a'", r"unknown section \[\[model_s\]\]; did you mean \[\[models\]\]\?"),
        ("[xyz]", r"unknown section \[xyz\]; known: .*\[\[models\]\], \[\[routes\]\], \[\[safety\]\]"),
        ("prot = 8", r"there is no setting prot; did you mean port, which goes under \[serve\]\?$"),
        ("xyzzy = 8", r"there is no setting xyzzy$"),
        ("[cache]\nblok_size = 8", r"\[cache\] has no setting blok_size; did you mean block_size\?"),
        ("[cache]\nport = 8", r"port is not a setting of \[cache\]: it goes under \[serve\]"),
        ("block_size = 8", r"block_size is a setting: it goes under \[cache\]"),
        ("[[model]]\nname = 'a'", r"model must be a table: \[model\]; several models are \[\[models\]\]"),
        ("not toml", "not valid TOML"),
        ("[model]\nmodel = '\xe4'", "not valid TOML: it is not UTF-8"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSetting, match=words):
        settings.load(file=file, environ={})


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(b"# \xff\n")
    with pytest.raises(InvalidSetting, match="not valid TOML"):
        settings.load(file=file, environ={})


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot read"):
        settings.load(file=tmp_path / "nowhere.toml", environ={})


def test_processes_that_work_for_us_get_no_secrets() -> None:
    kept = {
        "PATH": "/bin",
        "PENSTOCK_CACHE": "/models",
        "PENSTOCK_CPU": "avx2",
        "TOKENIZERS_PARALLELISM": "0",
        "HOME": "/",
    }
    secrets = dict.fromkeys(
        (
            "PENSTOCK_API_KEY", "PENSTOCK_SLO_WEBHOOK", "PENSTOCK_OTEL_ENDPOINT", "HF_TOKEN", "OPENAI_API_KEY",
            "AWS_SECRET_ACCESS_KEY", "APPLICATION_CREDENTIALS", "OTEL_EXPORTER_OTLP_HEADERS", "DB_PASSWORD", "token",
        ),
        "s3cret",
    )  # fmt: skip
    assert settings.child_environment({**kept, **secrets}) == kept


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("512M", 512_000_000), ("1.5kb", 1500), ("1e9", 10**9), ("64 MiB", 64 << 20)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert settings.parse_bytes(text, "kv_memory") == size
