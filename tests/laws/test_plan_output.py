"""Laws of the completion marker: however a text is composed, exactly a marker outside of quotes completes a step."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from khala.domain.plans.completion import COMPLETION_MARKER, is_marked_complete

markers = st.sampled_from((COMPLETION_MARKER, COMPLETION_MARKER.lower(), COMPLETION_MARKER.upper()))
fences = st.sampled_from(("```", "````", "~~~", "~~~~~"))
words = st.text(alphabet="ab .,'#=|*_-<>é", max_size=20).map(lambda text: f"w {text}")
ends = st.sampled_from(("\n", "\r\n", "\r"))


def _fenced(fence: str, before: str, marker: str, indent: str) -> list[str]:
    shorter = fence[:-1]
    return [f"{indent}{line}" for line in (f"{fence}text", before, shorter, marker, shorter, fence)]


prose = words.map(lambda text: [text])
quotes = st.one_of(
    st.builds(_fenced, fences, words, markers, st.sampled_from(("", " ", "   "))),
    st.builds(lambda fence, marker: [f"- {fence}", f"  {marker}", f"  {fence}"], fences, markers),
    st.builds(lambda text, marker: [f"> {text}", f"> {marker}"], words, markers),
    st.builds(lambda text, marker: [f"> {text}", marker], words, markers),
    markers.map(lambda marker: [f"    {marker}"]),
    markers.map(lambda marker: [f"\t{marker}"]),
    st.builds(lambda text, marker: [f"{text} {marker}"], words, markers),
    st.builds(lambda text, marker: [f"{marker} {text}"], words, markers),
    markers.map(lambda marker: [f"`{marker}`"]),
    markers.map(lambda marker: ["Say `", marker, "` then."]),
)
genuine = st.builds(lambda indent, marker, end: [indent + marker + end], st.sampled_from(("", "  ")), markers, ends)


def _text(blocks: Sequence[Sequence[str]], end: str) -> str:
    """The blocks, with an empty line between them."""
    return end.join(line for block in blocks for line in (*block, ""))


@given(blocks=st.lists(prose | quotes, max_size=8), end=ends)
def test_quoted_markers_complete_nothing(blocks: list[list[str]], end: str) -> None:
    assert not is_marked_complete(_text(blocks, end))


@given(
    before=st.lists(prose | quotes, max_size=5), marker=genuine, after=st.lists(prose | quotes, max_size=5), end=ends
)
def test_a_marker_of_its_own_completes_whatever_is_around(
    before: list[list[str]], marker: list[str], after: list[list[str]], end: str
) -> None:
    assert is_marked_complete(_text([*before, marker, *after], end))


@given(text=st.text(alphabet=st.sampled_from('`~>- \t\n\r"“”1.a') | st.characters(), max_size=200), fence=fences)
def test_a_marker_in_an_open_fence_never_completes(text: str, fence: str) -> None:
    inside = text.replace(fence[0], "")
    assert not is_marked_complete(f"{fence}\n{inside}\n{COMPLETION_MARKER}\n")
