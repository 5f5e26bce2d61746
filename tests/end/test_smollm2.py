"""Real weights: Penstock and transformers' own GGUF reader must agree, token by token."""

from collections.abc import Iterator

import pytest
import torch

from penstock import LLM, SamplingParams
from penstock.flow import FinishReason
from penstock.store.files import ModelFiles

pytestmark = pytest.mark.weights

NEW_TOKENS = 64
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List three prime numbers and say why they are prime.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What is 17 plus 25?",
    "Describe a rainy day in a city.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "Summarize the story of Cinderella in two sentences.",
    "What are the planets of the solar system?",
    "How does a bicycle stay upright?",
    "Name a famous painter and one of the paintings.",
    "What does 'carpe diem' mean?",
    "Tell me a joke about computers.",
    "What is the difference between weather and climate?",
    "How many legs does a spider have?",
    "Write the first lines of a fairy tale.",
    "Was ist die Hauptstadt von Österreich? 🏔",
    "Erkläre mir Größe und Länge.",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def llm(smollm2: ModelFiles) -> Iterator[LLM]:
    torch.set_num_threads(2)  # the caller's: an LLM in this process leaves torch's count alone
    try:
        with LLM("smollm2", context=2048, dtype="float32", threads=2) as llm:
            yield llm
            llm.check_integrity()
    finally:
        torch.set_num_threads(1)


def tokens_of(llm: LLM, prompt: str) -> list[int]:
    assert llm.pipeline.template is not None
    assert llm.pipeline.tokenizer is not None
    text = llm.pipeline.template.render([{"role": "user", "content": prompt}])
    return llm.pipeline.tokenizer.encode(text, add_special=False)


def test_greedy_answers_equal_transformers(llm: LLM, smollm2: ModelFiles) -> None:
    """Each token must be the oracle's choice after those before it, so by induction they are the oracle's own."""
    from transformers import AutoModelForCausalLM

    (weights,) = smollm2.weights
    oracle = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32).eval()
    results = llm.chat([[{"role": "user", "content": prompt}] for prompt in PROMPTS], GREEDY)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.prompt_tokens == tokens_of(llm, prompt)
        ended = result.tokens[-1] in smollm2.spec.end_tokens
        assert ended or len(result.tokens) == NEW_TOKENS
        with torch.inference_mode():
            logits = oracle(torch.tensor([result.prompt_tokens + result.tokens])).logits[0]
        chosen = logits[len(result.prompt_tokens) - 1 : -1].argmax(-1).tolist()
        assert result.tokens == chosen, prompt


def test_it_knows_the_capital_of_france(llm: LLM) -> None:
    result = llm.chat([{"role": "user", "content": PROMPTS[0]}], GREEDY)
    assert result.text == "The capital of France is Paris."
    assert result.finish is FinishReason.END


def test_streamed_text_is_the_decoded_text(llm: LLM) -> None:
    """Emoji and accents, several tokens to a character."""
    params = SamplingParams(temperature=1.5, max_tokens=60, seed=11, ignore_eos=True)
    for question in ("Only emoji, please: 🌍🎉", "Schreibe etwas mit ä, ö, ü und ß."):
        chunks = list(llm.stream([{"role": "user", "content": question}], params))
        tokens = [token for chunk in chunks for token in chunk.tokens]
        assert llm.pipeline.tokenizer is not None
        assert "".join(chunk.text for chunk in chunks) == llm.pipeline.tokenizer.decode(tokens)
