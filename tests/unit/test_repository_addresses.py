"""Addresses of repositories: the forms that people paste, and the archives that they stand for."""

import pytest

from khala.domain.repository_hosts import PUBLIC_HOSTS, RepositoryHost
from khala.tools.repositories.addresses import parse_address
from khala.tools.repositories.download import retry_seconds
from khala.tools.repositories.errors import RepositoryError

HOSTS = (*PUBLIC_HOSTS, RepositoryHost(kind="gitea", origin="http://git.example:3000"))
LAB = "https://gitlab.com/api/v4/projects/group%2Fsub%2Fproject/repository/archive.tar.gz"


@pytest.mark.parametrize(
    ("url", "archive", "path"),
    [
        ("https://github.com/o/r", "https://github.com/o/r/archive/HEAD.tar.gz", ""),
        ("github.com/o/r/", "https://github.com/o/r/archive/HEAD.tar.gz", ""),
        ("http://www.github.com/o/r.git", "https://github.com/o/r/archive/HEAD.tar.gz", ""),
        ("HTTPS://GitHub.com:443/o/r?tab=readme#top", "https://github.com/o/r/archive/HEAD.tar.gz", ""),
        ("https://github.com/o/r/issues/7", "https://github.com/o/r/archive/HEAD.tar.gz", ""),
        ("https://github.com/o/r/tree/v1.2", "https://github.com/o/r/archive/v1.2.tar.gz", ""),
        ("https://github.com/o/r/tree/main/a/b%20c", "https://github.com/o/r/archive/main.tar.gz", "a/b c"),
        ("https://github.com/o/r/blob/main/a.py", "https://github.com/o/r/archive/main.tar.gz", "a.py"),
        ("https://github.com/o/r/commit/0a1b", "https://github.com/o/r/archive/0a1b.tar.gz", ""),
        ("https://gitlab.com/group/sub/project", LAB, ""),
        ("https://gitlab.com/group/sub/project.git", LAB, ""),
        ("https://gitlab.com/group/sub/project/-/tree/v1/docs", f"{LAB}?sha=v1", "docs"),
        ("https://bitbucket.org/w/r/src/main/lib", "https://bitbucket.org/w/r/get/main.tar.gz", "lib"),
        ("https://bitbucket.org/w/r", "https://bitbucket.org/w/r/get/HEAD.tar.gz", ""),
        ("https://codeberg.org/o/r/src/branch/dev/x", "https://codeberg.org/o/r/archive/dev.tar.gz", "x"),
        ("http://git.example:3000/o/r/src/tag/v2", "http://git.example:3000/o/r/archive/v2.tar.gz", ""),
    ],
)  # fmt: skip
def test_the_page_of_a_repository_names_its_archive(url: str, archive: str, path: str) -> None:
    found = parse_address(url, HOSTS)
    assert (found.archive_url("ignored" if found.ref else None), found.path) == (archive, path)


def test_a_branch_with_a_slash_is_told_by_ref() -> None:
    found = parse_address("https://github.com/o/r/tree/feature/x/src", HOSTS, ref="feature/x")
    assert (found.archive_url(), found.path) == ("https://github.com/o/r/archive/feature/x.tar.gz", "src")
    found = parse_address("https://gitlab.com/o/r", HOSTS, ref="feature/x", path="/src//lib/")
    assert (found.archive_url().rpartition("?")[2], found.path) == ("sha=feature%2Fx", "src/lib")


def test_the_default_branch_is_asked_for_only_where_archives_need_its_name() -> None:
    asked = [parse_address(f"{host.origin}/o/r", HOSTS).default_branch_url for host in PUBLIC_HOSTS]
    api = "/api/v1/repos/o/r"
    assert asked == [None, None, None, f"https://codeberg.org{api}", f"https://gitea.com{api}"]
    found = parse_address("https://codeberg.org/o/r", HOSTS)
    assert found.archive_url("trunk") == "https://codeberg.org/o/r/archive/trunk.tar.gz"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://example.org/o/r", "forbidden"),
        ("https://github.com.example.org/o/r", "forbidden"),
        ("https://github.com:8443/o/r", "forbidden"),
        ("https://git.example:3000/o/r", "forbidden"),
        ("file:///etc/passwd", "forbidden"),
        ("git@github.com:o/r.git", "bad_arguments"),
        ("https://user:word@github.com/o/r", "bad_arguments"),
        ("https://github.com/o", "bad_arguments"),
        ("https://github.com/", "bad_arguments"),
        ("https://github.com/o/..", "bad_arguments"),
        ("https://github.com/o/r%2F..%2Fx", "bad_arguments"),
        ("https://github.com/o/r r", "bad_arguments"),
        ("https://[", "bad_arguments"),
        ("https://github.com/o/r/tree/..", "bad_arguments"),
        ("https://github.com/o/r/tree/main/../x", "bad_arguments"),
        ("https://gitlab.com/a/b/c/d/e/f/g/h/i", "bad_arguments"),
        ("", "forbidden"),
    ],
)
def test_other_addresses_and_hosts_are_refused(url: str, code: str) -> None:
    with pytest.raises(RepositoryError) as raised:
        parse_address(url, HOSTS)
    assert raised.value.code == code


@pytest.mark.parametrize("ref", ["..", "a..b", "-x", "a b", "a\nb", "@{1}", "a//b", ".a", "a?b", "x" * 256, "/a", "a/"])
def test_a_ref_that_git_refuses_is_refused(ref: str) -> None:
    with pytest.raises(RepositoryError, match="ref:"):
        parse_address("https://github.com/o/r", HOSTS, ref=ref)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "30"}, 30),
        ({"retry-after": "0"}, 1),
        ({"retry-after": "999999999999"}, 86_400),
        ({"retry-after": "Thu, 01 Jan 1970 00:17:40 GMT"}, 60),
        ({"retry-after": "soon"}, 1),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1090"}, 90),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "10"}, 1),
        ({"x-ratelimit-remaining": "0"}, 1),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "1005"}, 5),
        ({"x-ratelimit-remaining": "7", "x-ratelimit-reset": "1090"}, None),
    ],
)
def test_the_wait_is_read_from_either_kind_of_header(headers: dict[str, str], seconds: int | None) -> None:
    assert retry_seconds(headers, 1000.0) == seconds
