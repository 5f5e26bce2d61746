"""ModelFiles from a folder in the Hugging Face layout. The weights are looked for, not opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import ModelInvalid
from penstock.store.files import ModelFiles
from penstock.store.hf_config import spec_from_config
from penstock.store.hf_quantization import CONFIG_KEYS
from penstock.store.values import Values

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def read(folder: Path, name: str, *, weights: bool = True) -> ModelFiles:
    """Without `weights` the folder may lack them: its config is enough."""
    config = read_json(folder / "config.json")
    if config is None:
        raise ModelInvalid(f"{folder} has no config.json{_hint(folder)}", param="model")
    generation = read_json(folder / "generation_config.json") or {}
    tokenizer_config = read_json(folder / "tokenizer_config.json") or {}
    return ModelFiles(
        name=name,
        format="safetensors",
        weights=_weights(folder, required=weights),
        spec=spec_from_config(_with_quantization(folder, config), generation, name),
        tokenizer=_tokenizer(folder),
        chat_template=_chat_template(folder, tokenizer_config),
        special_tokens=_special_tokens(tokenizer_config, read_json(folder / "special_tokens_map.json") or {}),
        sampling=_sampling(Values(generation, str(folder / "generation_config.json"))),
    )


def _with_quantization(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Earlier versions of ModelOpt describe the weights in a file beside the config."""
    path = folder / "hf_quant_config.json"
    if any(config.get(key) for key in CONFIG_KEYS) or (document := read_json(path)) is None:
        return config
    return config | {
        "quantization_config": {"quant_method": "modelopt", **Values(document, str(path)).part("quantization").values}
    }


def _weights(folder: Path, *, required: bool) -> tuple[Path, ...]:
    index = folder / "model.safetensors.index.json"
    if (document := read_json(index)) is not None:
        names = sorted(set(map(str, Values(document, str(index)).part("weight_map").values.values())))
        if any(Path(name).name != name for name in names):
            raise ModelInvalid(f"{index} names files outside its folder", param="model")
        found = [folder / name for name in names]
    else:
        found = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))
    missing = [path for path in found if not path.is_file()]
    if required and missing:
        raise ModelInvalid(_lack(folder, missing), param="model")
    if required and not found:
        raise ModelInvalid(f"{folder} has no weights (*.safetensors){_hint(folder)}", param="model")
    return () if missing else tuple(found)


def _lack(folder: Path, missing: list[Path]) -> str:
    for path in missing:
        if path.is_dir():
            return f"{path} is a folder, not a file of weights"
        if path.is_symlink():  # as in a hub cache whose blobs were removed
            return f"{path} is a link to a file that is not there"
    return f"{folder} lacks {', '.join(path.name for path in missing)}, which its index names"


def _hint(folder: Path) -> str:
    if ggufs := sorted(folder.glob("*.gguf")):
        return f"; it has {ggufs[0].name}: name that file itself"
    if any(folder.glob("*.bin")):
        return "; it has *.bin files, which are pickles and not supported: convert them to safetensors"
    return ""


def _tokenizer(folder: Path) -> Path | None:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    if (folder / "tokenizer.model").is_file():
        raise ModelInvalid(
            f"{folder} has a tokenizer.model but no tokenizer.json; save its tokenizer as a fast one with transformers",
            param="model",
        )
    return None


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelInvalid(f"cannot read {file}: {error}", param="model") from None
    template = (read_json(folder / "chat_template.json") or tokenizer_config).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelInvalid(f"{folder}: its chat template is not text", param="model")
    return template


def _special_tokens(*sources: dict[str, Any]) -> dict[str, str]:
    """From the first source that has it; a token is its text, or a mapping with the text as `content`."""
    tokens: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        for source in sources:
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens.setdefault(name, text)
    return tokens


def _sampling(generation: Values) -> dict[str, float | int]:
    """What counts when the maker wants sampling; the repetition penalty always does."""
    names = (*SAMPLING, "repetition_penalty") if generation.flag("do_sample", False) else ("repetition_penalty",)
    return {
        name: generation.integer(name, least=-1) if name == "top_k" else generation.number(name)
        for name in names
        if generation.raw(name) is not None
    }


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}", param="model") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelInvalid(f"{path} is not valid JSON: {error}", param="model") from None
    if not isinstance(content, dict):
        raise ModelInvalid(f"{path} does not hold a JSON object", param="model")
    return content
