"""Invitations: how many there may be, and when somebody who has declined one may be asked again."""

from datetime import datetime, timedelta

import msgspec

from khala.domain.errors import Conflict

MAX_MEMBERS = 200
"""Members of one thread, those who are invited included."""
MAX_RECEIVED = 100
"""Open invitations of one user."""
MAX_FROM_ONE_SENDER = 5
"""Open invitations of one user that the same sender has sent. All senders without an account count as one."""
MAX_SENT_PER_DAY = 100
"""Invitations that one sender sends in a day (UTC), withdrawn ones included."""
MAX_SENT_TO_ONE_PER_DAY = 5
"""Of these, to the same user."""
DECLINE_DURATION = timedelta(days=30)
"""Time for which a user who has declined is not invited again: to the same thread, or by the same sender."""


class InvitationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a user's invitations counts for another one, as stored at one moment."""

    received: int
    """Open ones."""
    from_sender: int
    """Open ones of the same sender."""
    declined_at: datetime | None
    """When the user last declined one to the same thread or by the same sender."""


def require_invitable(found: InvitationCounts, now: datetime) -> None:
    """Raise `Conflict` if the user may not be invited once more."""
    if found.declined_at is not None and now < found.declined_at + DECLINE_DURATION:
        raise Conflict(
            f"This user has declined an invitation of yours, or to this thread, within {DECLINE_DURATION.days} days."
            " You can send them a share link instead."
        )
    if found.from_sender >= MAX_FROM_ONE_SENDER:
        raise Conflict(f"This user has {MAX_FROM_ONE_SENDER} open invitations of yours. Wait for an answer.")
    if found.received >= MAX_RECEIVED:
        raise Conflict("This user has too many open invitations. You can send them a share link instead.")
