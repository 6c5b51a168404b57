"""Shares: what an attempt may spend of its plan's budget."""

from collections.abc import Sequence
from typing import Any

from khala.domain.plans.plan import MIN_USD, Plan, PlanBudget

LEAST = {"usd": MIN_USD, "tokens": 1, "seconds": 0.1}
"""The least amounts with which an attempt starts."""


def next_share(plan: Plan, running: Sequence[PlanBudget], places: int) -> PlanBudget | None:
    """The budget of an attempt that starts now: an equal share of what is left, among so many places.

    `running` has the shares of the attempts under way, which are reserved until these end. None: too little is left.
    """
    shares: dict[str, Any] = {}
    for measure, least in LEAST.items():
        limit = getattr(plan.budget, measure)
        if limit is None:
            continue
        reserved = sum(getattr(budget, measure) or 0 for budget in running)
        share = (limit - getattr(plan.spent, measure) - reserved) / places
        if share < least:
            return None
        shares[measure] = int(share) if measure == "tokens" else share
    return PlanBudget(**shares)
