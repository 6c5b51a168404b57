"""Addresses of repositories: from the address of a page to the address of an archive, for each kind of host. Pure."""

import re
from collections.abc import Sequence
from typing import assert_never
from urllib.parse import quote, unquote, urlsplit

import msgspec

from khala.domain.repository_hosts import HostKind, RepositoryHost
from khala.tools import paths
from khala.tools.port import ToolError
from khala.tools.repositories.errors import RepositoryError

MAX_REF_CHARACTERS = 255
NAME = re.compile(r"[A-Za-z0-9_.~+-]{1,100}")
"""A segment of a repository's name."""
REF = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")
"""The characters of a branch, tag or commit."""
MAX_GROUPS = 8
"""Segments of a repository's name on GitLab, which has nested groups."""


class RepositoryAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A repository on a host. `name` is its owner and name. Without `ref`, its default branch is meant.

    `path` is a folder or file of the repository; empty for all of it.
    """

    host: RepositoryHost
    name: str
    ref: str | None = None
    path: str = ""

    @property
    def url(self) -> str:
        """The address of the repository's page."""
        return f"{self.host.origin}/{self.name}"

    @property
    def folder(self) -> str:
        """The folder of the workspace that is proposed for it."""
        return f"repositories/{self.name}"

    @property
    def default_branch_url(self) -> str | None:
        """The address of a JSON document with `default_branch`; None if the host needs no name for the default."""
        if self.host.kind != "gitea" or self.ref is not None:
            return None
        return f"{self.host.origin}/api/v1/repos/{self.name}"

    def archive_url(self, default_branch: str | None = None) -> str:
        """The address of the .tar.gz archive."""
        origin, name, ref = self.host.origin, self.name, self.ref or default_branch
        match self.host.kind:
            case "github":
                return f"{origin}/{name}/archive/{quote(ref or 'HEAD')}.tar.gz"
            case "gitlab":
                at = "" if ref is None else f"?sha={quote(ref, safe='')}"
                return f"{origin}/api/v4/projects/{quote(name, safe='')}/repository/archive.tar.gz{at}"
            case "bitbucket":
                return f"{origin}/{name}/get/{quote(ref or 'HEAD')}.tar.gz"
            case "gitea":
                return f"{origin}/{name}/archive/{quote(ref or 'HEAD')}.tar.gz"
            case _:
                assert_never(self.host.kind)


def parse_address(
    url: str, hosts: Sequence[RepositoryHost], *, ref: str | None = None, path: str | None = None
) -> RepositoryAddress:
    """The repository that an address names: its page, a folder or file of it, or the address to clone it.

    `ref` and `path` take precedence over those in the address. Raises `RepositoryError` (`bad_arguments`, `forbidden`).
    """
    host, segments = _split(url.strip(), hosts)
    name, rest = _split_name(host, segments)
    found_ref, found_path = _split_rest(host, rest, ref)
    return RepositoryAddress(
        host=host,
        name=name,
        ref=check_ref(ref or found_ref),
        path=_checked_path(found_path if path is None else path),
    )


def _split(url: str, hosts: Sequence[RepositoryHost]) -> tuple[RepositoryHost, list[str]]:
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        netloc = parts.netloc.lower()
    except ValueError as error:
        raise RepositoryError("url: not a valid address.", code="bad_arguments") from error
    if "@" in netloc:
        raise RepositoryError("url: user names and passwords are not allowed.", code="bad_arguments")
    netloc = netloc.removeprefix("www.").removesuffix(":443" if parts.scheme == "https" else ":80")
    found = next((host for host in hosts if host.origin == f"{parts.scheme}://{netloc}"), None)
    # An address of a public host without TLS is the same repository.
    found = found or next(
        (host for host in hosts if parts.scheme == "http" and host.origin == f"https://{netloc}"), None
    )
    if found is None:
        names = ", ".join(urlsplit(host.origin).netloc for host in hosts)
        raise RepositoryError(
            f"Repositories of {netloc or 'this host'} can't be loaded. Allowed hosts: {names}.", code="forbidden"
        )
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    if any("/" in segment for segment in segments):
        raise RepositoryError("url: not the address of a repository.", code="bad_arguments")
    return found, segments


def _split_name(host: RepositoryHost, segments: list[str]) -> tuple[str, list[str]]:
    """The repository's name, and the segments after it."""
    length = 2
    if host.kind == "gitlab":
        length = segments.index("-") if "-" in segments else len(segments)
    names = [
        segment.removesuffix(".git") if number == length else segment
        for number, segment in enumerate(segments[:length], 1)
    ]
    is_valid = 2 <= len(names) <= MAX_GROUPS and all(NAME.fullmatch(name) and name not in (".", "..") for name in names)
    if not is_valid:
        raise RepositoryError(
            f"url: not the address of a repository. Give it as {host.origin}/OWNER/REPOSITORY.", code="bad_arguments"
        )
    return "/".join(names), segments[length:]


MARKERS: dict[HostKind, tuple[tuple[str, ...], ...]] = {
    "github": (("tree",), ("blob",), ("commit",)),
    "gitlab": (("-", "tree"), ("-", "blob"), ("-", "commit")),
    "bitbucket": (("src",), ("commits",)),
    "gitea": (("src", "branch"), ("src", "tag"), ("src", "commit"), ("commit",)),
}
"""The segments between a repository's name and a ref, in addresses of its folders, files and commits."""


def _split_rest(host: RepositoryHost, rest: list[str], ref: str | None) -> tuple[str | None, str]:
    """The ref and the path in the rest of an address.

    A ref with a slash can't be told from a path: then `ref` tells it. Other pages of a repository stand for its default
    branch.
    """
    for marker in MARKERS[host.kind]:
        if tuple(rest[: len(marker)]) == marker and len(rest) > len(marker):
            after = rest[len(marker) :]
            length = _ref_length(after, ref)
            return "/".join(after[:length]), "/".join(after[length:])
    return None, ""


def _ref_length(after: list[str], ref: str | None) -> int:
    given = [] if ref is None else ref.split("/")
    return len(given) if given and after[: len(given)] == given else 1


def check_ref(ref: str | None) -> str | None:
    """The name of a branch, tag or commit. Raises `RepositoryError` (`bad_arguments`)."""
    if ref is None:
        return None
    segments = ref.split("/")
    is_valid = (
        len(ref) <= MAX_REF_CHARACTERS
        and REF.fullmatch(ref) is not None
        and ".." not in ref
        and "@{" not in ref
        and not ref.startswith("-")
        and all(segment and not segment.startswith(".") for segment in segments)
    )
    if not is_valid:
        raise RepositoryError("ref: must be the name of a branch or tag, or a commit.", code="bad_arguments")
    return ref


def _checked_path(path: str) -> str:
    try:
        return paths.folder_prefix(path.strip("/")).removesuffix("/")
    except ToolError as error:
        raise RepositoryError(error.message, code="bad_arguments") from error
