"""Errors that name fields as the client wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.errors import InvalidRequest


@contextmanager
def client_field_names(names: Mapping[str, str]) -> Iterator[None]:
    """Renames fields in an InvalidRequest raised inside: `names` maps the pipeline's names, such as `timeout_s`, to the
    API's."""
    try:
        yield
    except InvalidRequest as error:
        for internal, external in names.items():
            pattern = re.compile(rf"(?<!\w){re.escape(internal)}(?!\w)")
            if pattern.search(error.param or ""):
                error.param = pattern.sub(external, error.param or "")
                error.message = pattern.sub(external, error.message)
        raise
