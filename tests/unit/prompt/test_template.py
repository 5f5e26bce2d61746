"""Published chat templates give the same text here as in transformers, which their authors wrote them for."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from helpers import reference_data
from penstock.errors import InvalidRequest, PenstockError
from penstock.prompt.template import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> & then",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Größe egal"}},
                "required": ["city"],
            },
        },
    }
]
CONVERSATIONS = {
    "one turn": [{"role": "user", "content": "Hi there"}],
    "system and turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And <b>you</b> & 'me'? ü\n\n  indented  "},
    ],
    "half an answer": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "the answer is "}],
}
OPTIONS = {
    "prompt": {"add_generation_prompt": True},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "continued": {"add_generation_prompt": False, "continue_final_message": True},
}


def in_transformers(source: str, conversation: list[dict], options: dict) -> str | None:
    """None: the template rejects it, or fails on it."""
    try:
        texts, _ = render_jinja_template(conversations=[conversation], chat_template=source, **options, **SPECIAL)
    except Exception:
        return None
    return texts[0]


def here(source: str, conversation: list[dict], options: dict) -> str | None:
    try:
        return ChatTemplate(source, SPECIAL).render(conversation, **options)
    except PenstockError:
        return None


def test_published_templates() -> None:
    templates = reference_data.chat_templates()
    assert len(templates) > 50
    compared = 0
    for path in templates:
        source = path.read_text()
        for name, conversation in CONVERSATIONS.items():
            for option, options in OPTIONS.items():
                if option == "continued" and name != "half an answer":
                    continue
                expected = in_transformers(source, conversation, options)
                assert here(source, conversation, options) == expected, f"{path.name}: {name}, {option}"
                compared += expected is not None
    assert compared > 500


def test_a_trimming_template_continues_without_the_trailing_space() -> None:
    source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    text = ChatTemplate(source, {}).render(
        [{"role": "assistant", "content": "so far "}], add_generation_prompt=False, continue_final_message=True
    )
    assert text == "[so far"


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        ([], {}, "must not be empty"),
        ([{"role": "user", "content": "x"}], {"continue_final_message": True}, "exclude each other"),
        (
            [{"role": "assistant", "content": None}],
            {"continue_final_message": True, "add_generation_prompt": False},
            "no text to continue",
        ),
        ([{"role": "user", "content": "stop"}], {}, "rejects these messages: not that"),
        ([{"role": "user", "content": 5}], {}, "cannot show these messages"),
    ],
)
def test_what_cannot_be_rendered_is_refused(messages: list[dict], options: dict, says: str) -> None:
    stop = "{% if messages[0].content == 'stop' %}{{ raise_exception('not that') }}{% endif %}"
    source = stop + "{{ messages[0].content + 'x' }}"
    with pytest.raises(InvalidRequest, match=says):
        ChatTemplate(source, {}).render(messages, **options)


def test_arguments_reach_the_template_but_cannot_replace_what_is_the_servers() -> None:
    template = ChatTemplate("{{ mood }}{{ bos_token }}{{ messages | length }}", {"bos_token": "<s>"})
    arguments = {"mood": "calm", "bos_token": "<forged>", "messages": []}
    assert template.render([{"role": "user", "content": "x"}], arguments=arguments) == "calm<s>1"
