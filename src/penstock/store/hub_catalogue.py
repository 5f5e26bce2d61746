"""Models of the hub that people ask for by name, as data. One GGUF file each, of an architecture that the engine runs.

The names and tags are those of Ollama's library. Sizes are approximate. None of these files has been pulled by this
project, so no checksum is known: `verified` is false for all of them.
"""

from __future__ import annotations

from typing import NamedTuple

Sampling = dict[str, float | int]

# What the makers recommend: the generation_config.json or the card of the model
LLAMA3: Sampling = {"temperature": 0.6, "top_p": 0.9}
QWEN25: Sampling = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
QWEN3: Sampling = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
GEMMA3: Sampling = {"temperature": 1.0, "top_p": 0.95, "top_k": 64}
SMOLLM2: Sampling = {"temperature": 0.2, "top_p": 0.9}
DEEPSEEK_R1: Sampling = {"temperature": 0.6, "top_p": 0.95}

# Licences as the hub names them; where there is one, the SPDX identifier
APACHE, MIT, LLAMA31, LLAMA32, LLAMA33, GEMMA, QWEN_RESEARCH = (
    "Apache-2.0", "MIT", "Llama-3.1", "Llama-3.2", "Llama-3.3", "Gemma", "Qwen-Research",
)  # fmt: skip


class HubModel(NamedTuple):
    name: str
    architecture: str
    parameters: str
    repository: str
    file: str  # with {} for the quantization
    gigabytes: dict[str, float]  # about, by quantization; the first is the default
    license: str
    sampling: Sampling
    description: str


def _of_bartowski(
    name: str, architecture: str, parameters: str, stem: str, *sizes: float, license: str, sampling: Sampling, what: str
) -> HubModel:
    """`sizes`: of Q4_K_M and Q8_0."""
    gigabytes = dict(zip(("Q4_K_M", "Q8_0"), sizes, strict=False))
    repository = f"bartowski/{stem}-GGUF"
    return HubModel(name, architecture, parameters, repository, f"{stem}-{{}}.gguf", gigabytes, license, sampling, what)


_B = _of_bartowski
# fmt: off
HUB_MODELS: tuple[HubModel, ...] = (
    _B("llama3.2:1b", "llama", "1.2B", "Llama-3.2-1B-Instruct", 0.81, 1.32, license=LLAMA32, sampling=LLAMA3,
       what="Llama 3.2 Instruct: short answers and summaries on a laptop"),
    _B("llama3.2:3b", "llama", "3.2B", "Llama-3.2-3B-Instruct", 2.02, 3.42, license=LLAMA32, sampling=LLAMA3,
       what="Llama 3.2 Instruct: a general assistant for a laptop"),
    _B("llama3.1:8b", "llama", "8B", "Meta-Llama-3.1-8B-Instruct", 4.92, 8.54, license=LLAMA31, sampling=LLAMA3,
       what="Llama 3.1 Instruct: general, tools, 128k tokens of context"),
    _B("llama3.3:70b", "llama", "70.6B", "Llama-3.3-70B-Instruct", 42.5, license=LLAMA33, sampling=LLAMA3,
       what="Llama 3.3 Instruct: for servers with 64 GB and more"),
    _B("qwen3:0.6b", "qwen3", "0.6B", "Qwen_Qwen3-0.6B", 0.48, 0.64, license=APACHE, sampling=QWEN3,
       what="Qwen3: small, thinks before it answers, calls tools"),
    _B("qwen3:1.7b", "qwen3", "1.7B", "Qwen_Qwen3-1.7B", 1.28, 1.83, license=APACHE, sampling=QWEN3,
       what="Qwen3: reasoning and tools on a laptop"),
    _B("qwen3:4b", "qwen3", "4B", "Qwen_Qwen3-4B", 2.5, 4.28, license=APACHE, sampling=QWEN3,
       what="Qwen3: reasoning and tools, many languages"),
    _B("qwen3:8b", "qwen3", "8.2B", "Qwen_Qwen3-8B", 5.03, 8.71, license=APACHE, sampling=QWEN3,
       what="Qwen3: reasoning, code and tools"),
    _B("qwen3:14b", "qwen3", "14.8B", "Qwen_Qwen3-14B", 9.0, 15.7, license=APACHE, sampling=QWEN3,
       what="Qwen3: reasoning, code and tools for a large GPU"),
    _B("qwen2.5:0.5b", "qwen2", "0.5B", "Qwen2.5-0.5B-Instruct", 0.4, 0.53, license=APACHE, sampling=QWEN25,
       what="Qwen2.5 Instruct: tiny, structured output"),
    _B("qwen2.5:1.5b", "qwen2", "1.5B", "Qwen2.5-1.5B-Instruct", 0.99, 1.65, license=APACHE, sampling=QWEN25,
       what="Qwen2.5 Instruct: small, many languages"),
    _B("qwen2.5:3b", "qwen2", "3.1B", "Qwen2.5-3B-Instruct", 1.93, 3.29, license=QWEN_RESEARCH, sampling=QWEN25,
       what="Qwen2.5 Instruct; its licence allows research only"),
    _B("qwen2.5:7b", "qwen2", "7.6B", "Qwen2.5-7B-Instruct", 4.68, 8.1, license=APACHE, sampling=QWEN25,
       what="Qwen2.5 Instruct: general, tools, structured output"),
    _B("qwen2.5-coder:0.5b", "qwen2", "0.5B", "Qwen2.5-Coder-0.5B-Instruct", 0.4, 0.53, license=APACHE,
       sampling=QWEN25, what="Qwen2.5-Coder Instruct: completion in an editor"),
    _B("qwen2.5-coder:7b", "qwen2", "7.6B", "Qwen2.5-Coder-7B-Instruct", 4.68, 8.1, license=APACHE, sampling=QWEN25,
       what="Qwen2.5-Coder Instruct: code, edits and tools"),
    _B("gemma3:270m", "gemma3", "0.3B", "google_gemma-3-270m-it", 0.25, 0.29, license=GEMMA, sampling=GEMMA3,
       what="Gemma 3: tiny, made to be fine-tuned"),
    _B("gemma3:1b", "gemma3", "1B", "google_gemma-3-1b-it", 0.81, 1.07, license=GEMMA, sampling=GEMMA3,
       what="Gemma 3: small, text only"),
    _B("gemma3:4b", "gemma3", "3.9B", "google_gemma-3-4b-it", 2.49, 4.13, license=GEMMA, sampling=GEMMA3,
       what="Gemma 3: many languages; its text part (no images)"),
    _B("gemma3:12b", "gemma3", "11.8B", "google_gemma-3-12b-it", 7.3, 12.5, license=GEMMA, sampling=GEMMA3,
       what="Gemma 3: its text part (no images)"),
    _B("smollm2:360m", "llama", "0.4B", "SmolLM2-360M-Instruct", 0.27, 0.39, license=APACHE, sampling=SMOLLM2,
       what="SmolLM2 Instruct: the next size above the default model"),
    _B("smollm2:1.7b", "llama", "1.7B", "SmolLM2-1.7B-Instruct", 1.06, 1.82, license=APACHE, sampling=SMOLLM2,
       what="SmolLM2 Instruct: summaries and rewriting"),
    _B("phi4-mini", "phi3", "3.8B", "microsoft_Phi-4-mini-instruct", 2.49, 4.08, license=MIT, sampling={},
       what="Phi-4 mini Instruct: reasoning and mathematics"),
    _B("phi4:14b", "phi3", "14.7B", "phi-4", 9.05, 15.6, license=MIT, sampling={},
       what="Phi-4: reasoning and mathematics for a large GPU"),
    _B("phi3.5", "phi3", "3.8B", "Phi-3.5-mini-instruct", 2.39, 4.06, license=MIT, sampling={},
       what="Phi-3.5 mini Instruct: 128k tokens of context"),
    _B("mistral:7b", "llama", "7.2B", "Mistral-7B-Instruct-v0.3", 4.37, 7.7, license=APACHE, sampling={},
       what="Mistral 7B Instruct v0.3: general, tools"),
    _B("mistral-nemo:12b", "llama", "12.2B", "Mistral-Nemo-Instruct-2407", 7.48, 13.0, license=APACHE,
       sampling={"temperature": 0.3}, what="Mistral Nemo Instruct: 128k tokens of context, many languages"),
    _B("mistral-small:24b", "llama", "23.6B", "Mistral-Small-24B-Instruct-2501", 14.3, 25.1, license=APACHE,
       sampling={"temperature": 0.15}, what="Mistral Small 3 Instruct: for a GPU of 24 GB"),
    _B("deepseek-r1:1.5b", "qwen2", "1.8B", "DeepSeek-R1-Distill-Qwen-1.5B", 1.12, 1.89, license=MIT,
       sampling=DEEPSEEK_R1, what="R1 distilled into Qwen: mathematics, thinks at length"),
    _B("deepseek-r1:7b", "qwen2", "7.6B", "DeepSeek-R1-Distill-Qwen-7B", 4.68, 8.1, license=MIT,
       sampling=DEEPSEEK_R1, what="R1 distilled into Qwen: mathematics and code"),
    _B("deepseek-r1:8b", "llama", "8B", "DeepSeek-R1-Distill-Llama-8B", 4.92, 8.54, license=MIT,
       sampling=DEEPSEEK_R1, what="R1 distilled into Llama 3.1"),
    HubModel("hermes3:8b", "llama", "8B", "NousResearch/Hermes-3-Llama-3.1-8B-GGUF", "Hermes-3-Llama-3.1-8B.{}.gguf",
             {"Q4_K_M": 4.92, "Q8_0": 8.54}, LLAMA31, {}, "Hermes 3: tools and long conversations"),
    HubModel("tinyllama:1.1b", "llama", "1.1B", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
             "tinyllama-1.1b-chat-v1.0.{}.gguf", {"Q4_K_M": 0.67, "Q8_0": 1.17}, APACHE, {},
             "TinyLlama Chat: an early small model"),
)
# fmt: on

# Shorter and older names -> entries
ALIASES = {
    "smollm2:135m": "smollm2",
    "qwen2.5-coder:1.5b": "qwen2.5-coder-1.5b",
    "llama3.2": "llama3.2:3b",
    "llama3.1": "llama3.1:8b",
    "llama3.3": "llama3.3:70b",
    "qwen3": "qwen3:8b",
    "qwen2.5": "qwen2.5:7b",
    "qwen2.5-coder": "qwen2.5-coder:7b",
    "gemma3": "gemma3:4b",
    "phi4": "phi4:14b",
    "phi4-mini:3.8b": "phi4-mini",
    "phi3.5:3.8b": "phi3.5",
    "mistral": "mistral:7b",
    "mistral-nemo": "mistral-nemo:12b",
    "mistral-small": "mistral-small:24b",
    "deepseek-r1": "deepseek-r1:8b",
    "hermes3": "hermes3:8b",
    "tinyllama": "tinyllama:1.1b",
}
