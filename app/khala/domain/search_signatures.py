"""Signatures: Bloom filters of terms, by which a search skips most texts without reading them. Pure.

A signature takes two bytes for each term, and says of a term that it has not that it may have it for 1 in 400 terms.
"""

import hashlib
from collections.abc import Collection

BITS_PER_TERM = 16
PROBES = 4
"""Bits that are set for each term: those at `low`, `low + step`, `low + 2 step` and so on, modulo the size."""
MIN_BYTES = 8


def probe(term: str) -> tuple[int, int]:
    """The numbers `low` and `step` of a term, which lie below 2³¹."""
    digest = hashlib.blake2b(term.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest[:4]) >> 1, int.from_bytes(digest[4:]) >> 1 | 1


def signature(terms: Collection[str]) -> bytes:
    """The signature of these terms. Bit n is bit n mod 8 of byte n / 8, as in `get_bit` of Postgres."""
    size = max(MIN_BYTES, len(terms) * BITS_PER_TERM // 8)
    bits = bytearray(size)
    for term in terms:
        low, step = probe(term)
        for number in range(PROBES):
            bit = (low + number * step) % (size * 8)
            bits[bit >> 3] |= 1 << (bit & 7)
    return bytes(bits)


def may_have(bits: bytes, term: str) -> bool:
    """Whether the signature's text may have the term."""
    low, step = probe(term)
    positions = ((low + number * step) % (len(bits) * 8) for number in range(PROBES))
    return all(bits[bit >> 3] >> (bit & 7) & 1 for bit in positions)
