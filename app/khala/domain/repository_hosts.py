"""The hosts of Git repositories, and the protocols that they speak for archives. Pure."""

from typing import Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

HostKind: TypeAlias = Literal["github", "gitlab", "bitbucket", "gitea"]
"""The software of a host. Forgejo speaks the protocol of Gitea."""


class RepositoryHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host of repositories. `origin` has a scheme, a host and perhaps a port, and no path."""

    kind: HostKind
    origin: str

    @classmethod
    def parse(cls, text: str) -> "RepositoryHost":
        """Parse `kind=origin`, for example `gitea=https://git.example.org`. Raises `ValueError`."""
        kind, equals, origin = text.partition("=")
        if not equals or kind not in get_args(HostKind):
            raise ValueError(f"must begin with {', '.join(f'{kind}=' for kind in get_args(HostKind))}")
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError("must have an address with http:// or https:// and a host")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("must have an address without a path")
        return cls(kind=msgspec.convert(kind, HostKind), origin=f"{parts.scheme}://{parts.netloc.lower()}")


PUBLIC_HOSTS = (
    RepositoryHost(kind="github", origin="https://github.com"),
    RepositoryHost(kind="gitlab", origin="https://gitlab.com"),
    RepositoryHost(kind="bitbucket", origin="https://bitbucket.org"),
    RepositoryHost(kind="gitea", origin="https://codeberg.org"),
    RepositoryHost(kind="gitea", origin="https://gitea.com"),
)
