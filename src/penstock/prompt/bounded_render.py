"""One rendering of a chat template: how much work it may take, and what its failures mean to a client."""

from __future__ import annotations

from typing import Any

import jinja2

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.prompt.sandbox import Sandbox, TemplateStop, render
from penstock.prompt.template_meter import CHARS_PER_UNIT, LOOKS, MAX_WORK

MAX_SOURCE = 1 << 20  # characters; the longest published templates have 30,000
MAX_ERROR = 500  # characters of what a template says
CHEAP_WORK = 15_000  # units: less than 50 ms, whatever the template does with them
CHEAP_LOOKS = 8  # at each character of the messages, beside that,
CHEAP_CHARS = 1 << 20  # up to so many characters


def compiled(source: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise ModelInvalid(f"the model's chat template has more than {MAX_SOURCE} characters", param="model")
    try:
        return Sandbox().from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        # All but the first where it is nested deeply, or has a number of thousands of digits.
        raise ModelInvalid(f"the model's chat template does not compile: {error}", param="model") from None


def cheap_work(variables: dict[str, Any]) -> int:
    """Units that a rendering may take in a thread that others wait for."""
    return CHEAP_WORK + min(_chars(variables["messages"]), CHEAP_CHARS) * CHEAP_LOOKS // CHARS_PER_UNIT


def full_work(variables: dict[str, Any]) -> int:
    return MAX_WORK + _chars(variables["messages"]) * LOOKS // CHARS_PER_UNIT


def run(template: jinja2.Template, variables: dict[str, Any], units: int) -> str:
    """Raises InvalidRequest for whatever goes wrong in there: the template is somebody else's program."""
    try:
        return render(template, variables, units)
    except TemplateStop as error:
        raise _failed("the model's chat template rejects these messages", error) from None
    except jinja2.TemplateError as error:
        raise _failed("the chat template failed", error) from error
    except MemoryError:
        raise _failed("the chat template failed", "it takes too much memory") from None
    except Exception as error:  # a mistake on messages of a shape that it does not expect
        raise _failed("the chat template cannot show these messages", error) from None


def _failed(what: str, why: object) -> InvalidRequest:
    return InvalidRequest(f"{what}: {str(why)[:MAX_ERROR]}", param="messages")


def _chars(messages: list[Any]) -> int:
    """Of the texts that are there without looking deeper."""
    texts = (value for message in messages for value in message.values())
    return sum(len(value) for value in texts if isinstance(value, str))
