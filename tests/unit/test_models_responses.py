"""Line separators in JSON, escaped whatever the chunk boundaries."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from khala.models.pydantic_ai.http_responses import escape

TEXTS = st.text(alphabet=st.sampled_from('a"\\\n\u0085\u2028\u2029\u2027\u00e2\u00c2\u2030é👩'))


@given(TEXTS, st.lists(st.integers(0, 400)))
def test_escaping_keeps_the_meaning_and_leaves_no_separator_for_all_chunk_boundaries(
    text: str, cuts: list[int]
) -> None:
    source = json.dumps([text], ensure_ascii=False).encode()
    places = [0, *sorted(min(cut, len(source)) for cut in cuts), len(source)]
    escaped, held = b"", b""
    for start, end in pairwise(places):
        whole, held = escape(held + source[start:end])
        escaped += whole
    result = (escaped + held).decode()
    assert json.loads(result) == [text]
    assert not set(result) & {"\u0085", "\u2028", "\u2029"}
