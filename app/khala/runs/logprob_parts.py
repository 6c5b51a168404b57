"""Divides the probabilities of an answer's tokens into parts."""

from collections.abc import Iterator, Sequence

import msgspec

from khala.domain.parts import MAX_INLINE_BYTES, Logprobs, TokenLogprob

MAX_PART_BYTES = MAX_INLINE_BYTES // 2
"""Bytes of the tokens of a part, which may need more in the database for escaped characters."""
MAX_TOTAL_BYTES = 1 << 20
"""Bytes of the tokens of one reply. Those after them are left out."""


def split(tokens: Sequence[TokenLogprob]) -> Iterator[Logprobs]:
    """Yield the parts with these tokens, in order."""
    batch: list[TokenLogprob] = []
    size = total = 0
    for token in tokens:
        length = len(msgspec.json.encode(token)) + 1
        total += length
        if total > MAX_TOTAL_BYTES:
            break
        if batch and size + length > MAX_PART_BYTES:
            yield Logprobs(tokens=tuple(batch))
            batch, size = [], 0
        batch.append(token)
        size += length
    if batch:
        yield Logprobs(tokens=tuple(batch))
