"""What is not cheap is rendered in a process that may be killed."""

import contextlib
import gc
from contextlib import closing

import pytest

from helpers import reference_data
from penstock.errors import InvalidRequest, ShuttingDown
from penstock.prompt import template as module
from penstock.prompt.template import ChatTemplate, NeedsRenderProcess
from penstock.system.killable_process import HelperProcess

HI = [{"role": "user", "content": "hi ü"}]
LOOP = "{% for i in range(40000) %}{% if i %}{% endif %}{% endfor %}{{ messages[0].content }}{{ bos_token }}"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the process was asked, instead of cheap renderings."""
    asked: list[bytes] = []
    ask = HelperProcess.ask
    monkeypatch.setattr(HelperProcess, "ask", lambda self, question: [asked.append(question), ask(self, question)][1])
    return asked


def test_a_long_rendering_gives_the_same_text_elsewhere(process: list[bytes]) -> None:
    with closing(ChatTemplate(LOOP + "{{ 1 / (messages | length - 1) }}", {"bos_token": "<s>"})) as template:
        with pytest.raises(NeedsRenderProcess):
            template.render(HI, may_wait=False)
        assert not process
        with pytest.raises(InvalidRequest, match="cannot show these messages: division by zero"):
            template.render(HI)
        assert template.render([*HI, *HI]) == "hi ü<s>1.0"
        halved = [{"role": "user", "content": "half \ud83d"}, *HI]
        assert template.render(halved) == "half \ud83d<s>1.0"
        assert len(process) == 3
        long = 'ü "\ud83d\\\n𝄞' * (module.DUMP_PIECE // 5)
        assert template.render([{"role": "user", "content": long}, *HI]) == f"{long}<s>1.0"
        with pytest.raises(InvalidRequest, match="must be JSON"):
            template.render([*HI, {"role": "user", "content": object()}])
    with pytest.raises(ShuttingDown):
        template.render(HI)


def test_a_rendering_that_takes_too_long_is_killed(process: list[bytes]) -> None:
    with closing(ChatTemplate(LOOP * 10, {}, limit_s=0.001)) as template:
        with pytest.raises(InvalidRequest, match=r"the chat template failed: it takes more than 0\.001 s") as caught:
            template.render(HI)
        assert caught.value.param == "messages"
    assert len(process) == 1


def test_a_rendering_that_takes_too_much_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_BYTES", 1 << 20)
    source = LOOP + "{% if messages | length > 1 %}{{ ('a' * 3000000) | length }}{% endif %}"
    with closing(ChatTemplate(source, {})) as template:
        with pytest.raises(InvalidRequest, match="too much memory"):
            template.render([*HI, *HI])
        assert template.render(HI) == "hi ü"  # the same process goes on


def test_an_ordinary_chat_needs_no_process(process: list[bytes]) -> None:
    for path in reference_data.chat_templates()[::8]:
        messages = [{"role": ("user", "assistant")[turn % 2], "content": "a" * 500} for turn in range(21)]
        with contextlib.suppress(InvalidRequest):  # from those that want something else
            ChatTemplate(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"}).render(messages)
    assert not process


def test_a_rendering_that_is_not_cheap_leaves_no_garbage() -> None:
    """The messages may have megabytes, and a reference cycle would hold them until the collector runs."""
    with closing(ChatTemplate(LOOP, {})) as template:
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(NeedsRenderProcess):
                template.render(HI, may_wait=False)
            assert gc.collect() == 0
        finally:
            gc.enable()
