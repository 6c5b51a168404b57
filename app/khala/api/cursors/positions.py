"""Converts the cursors of protocols to positions of a run, and back. Without I/O.

A position is the number of parts that a client has, from the first part on. Text is never split within a part, so a
client that continues at the position of its cursor gets each text once. It may get a call again of which it had the
first events only.
"""

from collections.abc import Iterator, Sequence

import msgspec

from khala.api.ag_ui.event_encoder import AgentEventEncoder, EventedRun, EventId
from khala.api.responses.response_encoder import ResponseEncoder
from khala.api.responses.response_header import ResponseHeader
from khala.domain.parts import Part, TextDelta, encode, without_failure_text


class AgentEventPositions:
    """The events of AG-UI of a run, whose parts these are."""

    def __init__(self, run: EventedRun, parts: Sequence[Part]) -> None:
        encoder = AgentEventEncoder(run)
        events = [*encoder.start({}), *encoder.add(parts, {}, merges=False)]
        self._ids = [event.id for event in events if event.id is not None]

    def position(self, last: EventId) -> int:
        """Return the position of a client whose last event has this id."""
        begun, index = last
        is_whole = not any(position == begun and later > index for position, later in self._ids)
        return begun if is_whole else max(begun - 1, 0)

    def event_id(self, position: int) -> EventId:
        """Return the id of the last event at this position."""
        return max(event_id for event_id in self._ids if event_id[0] <= position)


class ResponseEventPositions:
    """The events of OpenAI's Responses API of a run, whose parts these are.

    Text that is sent when it has been checked counts from when it is sent, and arguments that an approver edited from
    the end of their call.
    """

    def __init__(self, header: ResponseHeader, parts: Sequence[Part]) -> None:
        encoder = ResponseEncoder(header)
        encoder.start()
        whole = 0
        self._ends = [(whole, whole, encoder.sequence_number)]
        """For each number of parts: the position of a client that has their events, and the number of the next one."""
        for part in _without_failure_text(parts):
            encoder.add([part], {})
            whole = whole if encoder.holds_text or encoder.holds_edit else part.seq + 1
            self._ends.append((part.seq + 1, whole, encoder.sequence_number))

    def position(self, sequence_number: int) -> int:
        """Return the position of a client whose last event has this number."""
        return max(whole for _, whole, following in self._ends if following <= max(sequence_number, 1) + 1)

    def sequence_number(self, position: int) -> int:
        """Return the number of the last event at this position."""
        return max(following - 1 for count, _, following in self._ends if count <= position)


def _without_failure_text(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the parts, each of which can be encoded by itself."""
    for part, data in without_failure_text(parts):
        is_text = isinstance(data, TextDelta)
        yield msgspec.structs.replace(part, data=msgspec.Raw(encode(data)[1].encode())) if is_text else part
