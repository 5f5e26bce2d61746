from __future__ import annotations

import pytest

from penstock.errors import ModelNotFound
from penstock.store.package import PackageFile, parse


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pypi:a-b/x/y.gguf", PackageFile("a-b", None, "x/y.gguf")),
        ("pypi:a.b_c==1.0rc1+local/x.gguf", PackageFile("a.b_c", "1.0rc1+local", "x.gguf")),
    ],
)
def test_parse(name: str, expected: PackageFile) -> None:
    assert parse(name) == expected


@pytest.mark.parametrize(
    "name",
    ["pypi:", "pypi:a", "pypi:a/", "pypi:/x", "pypi:--index-url=http://x/y", "pypi:a>=1/x", "pypi:a==/x", "pypi:a b/x"],
)
def test_what_is_not_a_package_file_never_reaches_pip(name: str) -> None:
    with pytest.raises(ModelNotFound, match="not of the form pypi:"):
        parse(name)
