"""Idempotent producers: which appends are new, which were stored before, and which must be refused."""

from typing import TypeAlias

import msgspec

MAX_PRODUCER_NUMBER = 2**53 - 1
"""The largest epoch and sequence number: the largest whole number that JavaScript represents exactly."""


class ProducerClaim(msgspec.Struct, frozen=True):
    """The identity of one append: its producer, the producer's epoch, and the sequence number in the epoch."""

    producer_id: str
    epoch: int
    seq: int


class ProducerState(msgspec.Struct, frozen=True):
    """The epoch of a producer, and the last sequence number that was accepted in it."""

    epoch: int
    seq: int


class NewAppend(msgspec.Struct, frozen=True):
    """The append is new. `state` is the producer's state after it."""

    state: ProducerState


class DuplicateAppend(msgspec.Struct, frozen=True):
    """The append was stored before."""

    state: ProducerState


class StaleEpoch(msgspec.Struct, frozen=True):
    """Another instance of the producer has a later epoch."""

    epoch: int


class SequenceGap(msgspec.Struct, frozen=True):
    """An earlier append is missing."""

    expected: int
    received: int


class WrongFirstSequence(msgspec.Struct, frozen=True):
    """A new epoch begins with another number than 0."""


ProducerDecision: TypeAlias = NewAppend | DuplicateAppend | StaleEpoch | SequenceGap | WrongFirstSequence


def decide(state: ProducerState | None, claim: ProducerClaim) -> ProducerDecision:
    """Decide about an append of a producer with this state; None: the stream does not know the producer."""
    accepted = ProducerState(claim.epoch, claim.seq)
    if state is None:
        # A producer that begins with another number has lost its first appends.
        return NewAppend(accepted) if claim.seq == 0 else SequenceGap(expected=0, received=claim.seq)
    if claim.epoch < state.epoch:
        return StaleEpoch(state.epoch)
    if claim.epoch > state.epoch:
        return NewAppend(accepted) if claim.seq == 0 else WrongFirstSequence()
    if claim.seq <= state.seq:
        return DuplicateAppend(state)
    if claim.seq > state.seq + 1:
        return SequenceGap(expected=state.seq + 1, received=claim.seq)
    return NewAppend(accepted)
