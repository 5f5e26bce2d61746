"""One rendering of a chat template within a budget of work; its failures become errors for the client."""

from __future__ import annotations

from typing import Any

import jinja2

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.prompt.sandbox import Sandbox, TemplateStop, render_metered
from penstock.prompt.template_meter import CHARS_PER_UNIT, MAX_PASSES, MAX_WORK

MAX_SOURCE = 1 << 20  # characters; the longest published templates have 30,000
MAX_ERROR = 500  # characters of a template's error
CHEAP_WORK = 15_000  # units, which take less than 50 ms
CHEAP_PASSES = 8  # over each character of the messages, in addition,
CHEAP_CHARS = 1 << 20  # up to so many characters


def compile_template(source: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise ModelInvalid(f"the model's chat template has more than {MAX_SOURCE} characters", param="model")
    try:
        return Sandbox().from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        # Other errors than TemplateError come from deep nesting, or from numbers of thousands of digits.
        raise ModelInvalid(f"the model's chat template does not compile: {error}", param="model") from None


def cheap_budget(variables: dict[str, Any]) -> int:
    """Units for a rendering on the event loop, or in a thread that others wait for."""
    return CHEAP_WORK + min(_chars(variables["messages"]), CHEAP_CHARS) * CHEAP_PASSES // CHARS_PER_UNIT


def full_budget(variables: dict[str, Any]) -> int:
    return MAX_WORK + _chars(variables["messages"]) * MAX_PASSES // CHARS_PER_UNIT


def render_bounded(template: jinja2.Template, variables: dict[str, Any], units: int) -> str:
    """Raises InvalidRequest for every failure: the template is a program that comes with the model."""
    try:
        return render_metered(template, variables, units)
    except TemplateStop as error:
        raise _template_error("the model's chat template rejects these messages", error) from None
    except jinja2.TemplateError as error:
        raise _template_error("the chat template failed", error) from error
    except MemoryError:
        raise _template_error("the chat template failed", "it takes too much memory") from None
    except Exception as error:  # the template does not expect messages of this shape
        raise _template_error("the chat template cannot show these messages", error) from None


def _template_error(what: str, why: object) -> InvalidRequest:
    return InvalidRequest(f"{what}: {str(why)[:MAX_ERROR]}", param="messages")


def _chars(messages: list[Any]) -> int:
    """Characters of the messages' texts, without nested ones."""
    texts = (value for message in messages for value in message.values())
    return sum(len(value) for value in texts if isinstance(value, str))
