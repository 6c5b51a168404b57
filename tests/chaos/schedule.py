"""The schedule of a chaos run: its faults and the actions of its users. The same seed gives the same schedule.

Real time decides how the two interleave, so a replay has the same faults in the same order, but not at exactly the same
moments.
"""

import random
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

WEBS = ("web-0", "web-1")
WORKERS = ("work-0", "work-1")
MEMBERS = (*WEBS, *WORKERS)

FaultKind: TypeAlias = Literal[
    "kill", "term", "freeze", "backend-kill", "backend-freeze", "backend-end", "postmaster-kill", "postmaster-freeze",
    "postgres-stop", "cut-clients", "cut-database", "stall-clients", "stall-database", "slow-database", "slow-disk",
    "full-disk", "clock", "model", "command-kill",
]  # fmt: skip
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
MODEL_FAILURES = ("429", "500", "hang", "cut", "end", "garbage", "failure", "empty")
"""Ways in which a model provider fails."""

ActionKind: TypeAlias = Literal[
    "send", "repeat", "regenerate", "cancel", "answer", "claim", "reset", "reconnect", "read", "plan", "command"
]
ACTION_WEIGHTS: dict[ActionKind, int] = {
    "send": 12, "repeat": 2, "regenerate": 2, "cancel": 3, "answer": 3, "claim": 1, "reset": 1, "reconnect": 3,
    "read": 2, "plan": 6, "command": 4,
}  # fmt: skip
"""The actions of users, and their relative frequency."""
PlanAgent: TypeAlias = Literal["default", "command:write", "command:git"]
"""The agents of plans: the model, a command, or a command that works in a Git checkout."""
AGENT_WEIGHTS: dict[PlanAgent, int] = {"default": 3, "command:write": 3, "command:git": 3}
TOOLS = ("risk", "deed")
FAULT_FREE_SECONDS = 0.5
"""At the beginning."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault from `at` seconds on, for `seconds`; `amount` and `mode` say how severe it is."""

    at: float
    kind: FaultKind
    target: str = ""
    seconds: float = 0.0
    amount: float = 0.0
    mode: str = ""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An action of a user after a pause in seconds; `tool_steps` has the tools that the model calls, by step."""

    kind: ActionKind
    pause: float
    words: int = 0
    pace: int = 0
    tool_steps: tuple[tuple[str, ...], ...] = msgspec.field(name="rounds", default=())
    if_busy: Literal["queue", "interrupt", "reject"] = "queue"
    yes: bool = True
    choice: int = 0
    plan_steps: tuple[tuple[int, ...], ...] = ()
    """The steps of a plan: the numbers of the steps before it on which each depends."""
    parallel: int = 1
    agent: PlanAgent = "default"
    command: Literal["pause", "force", "resume", "stop"] = "pause"


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One user with one thread; with `asks`, risky tools wait for an approval there."""

    name: str
    asks: bool
    steps: tuple[Action, ...]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chaos run: the faults and user scripts of so many seconds."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    scripts: tuple[Script, ...]


def from_seed(
    seed: int, seconds: float, *, users: int = 6, only: Sequence[FaultKind] = (), every: float = 1.5
) -> Schedule:
    """The schedule of a seed: `only` selects kinds of faults, `every` is their mean interval in seconds."""
    # Two generators, so that a choice of other faults does not change the actions of users.
    fault_random, user_random = random.Random(f"faults {seed}"), random.Random(f"users {seed}")
    return Schedule(
        seed=seed,
        seconds=seconds,
        faults=tuple(_faults(fault_random, seconds, only or FAULTS, every)),
        scripts=tuple(_script(user_random, f"u{number}", seconds) for number in range(users)),
    )


def _faults(rng: random.Random, seconds: float, kinds: Sequence[FaultKind], every: float) -> list[Fault]:
    faults = []
    at = FAULT_FREE_SECONDS + rng.expovariate(1 / every)
    while at < seconds:
        faults.append(_fault(rng, round(at, 2), rng.choice(kinds)))
        at += rng.expovariate(1 / every)
    return faults


def _fault(rng: random.Random, at: float, kind: FaultKind) -> Fault:
    def fault(targets: Sequence[str], shortest: float, longest: float, amount: float = 0.0) -> Fault:
        return Fault(
            at=at,
            kind=kind,
            target=rng.choice(targets),
            seconds=round(rng.uniform(shortest, longest), 2),
            amount=amount,
        )

    kinds: dict[FaultKind, Callable[[], Fault]] = {
        "kill": lambda: fault(MEMBERS, 0.1, 3),
        "term": lambda: fault(MEMBERS, 0.1, 2),
        "freeze": lambda: fault(MEMBERS, 0.5, 6),
        "backend-kill": lambda: fault(("postgres",), 0, 0, rng.random()),
        "backend-freeze": lambda: fault(("postgres",), 0.5, 5, rng.random()),
        "backend-end": lambda: fault(("postgres",), 0, 0, rng.random()),
        "postmaster-kill": lambda: fault(("postgres",), 0.1, 2.5),
        "postmaster-freeze": lambda: fault(("postgres",), 0.5, 4),
        "postgres-stop": lambda: fault(("postgres",), 0.1, 2.5),
        "cut-clients": lambda: fault(WEBS, 0, 0),
        "cut-database": lambda: fault(MEMBERS, 0, 0),
        "stall-clients": lambda: fault(WEBS, 0.5, 5),
        "stall-database": lambda: fault(MEMBERS, 0.5, 6),
        "slow-database": lambda: fault(MEMBERS, 1, 5, round(rng.uniform(0.01, 0.25), 3)),
        "slow-disk": lambda: fault(("postgres",), 1, 5, round(rng.uniform(0.02, 0.4), 3)),
        "full-disk": lambda: fault(("postgres",), 1, 5),
        "clock": lambda: fault(MEMBERS, 2, 8, round(rng.choice((-1, 1)) * 10 ** rng.uniform(0, 5))),
        "command-kill": lambda: fault(("commands",), 0, 0, rng.random()),
        "model": lambda: msgspec.structs.replace(fault(("model",), 0.5, 4), mode=rng.choice(MODEL_FAILURES)),
    }
    return kinds[kind]()


def _script(rng: random.Random, name: str, seconds: float) -> Script:
    actions: list[Action] = []
    at = 0.0
    while at < seconds:
        action = _action(rng, first=not actions)
        at += action.pause
        actions.append(action)
    return Script(name=name, asks=rng.random() < 0.4, steps=tuple(actions))


def _action(rng: random.Random, *, first: bool) -> Action:
    kind = "send" if first else rng.choices(list(ACTION_WEIGHTS), list(ACTION_WEIGHTS.values()))[0]
    step_count = rng.choices((0, 1, 2), (5, 3, 2))[0] if kind in ("send", "regenerate") else 0
    return Action(
        kind=kind,
        pause=round(rng.uniform(0.1, 2.5), 2),
        words=rng.randint(5, 120),
        pace=rng.randint(20, 100),
        tool_steps=tuple(tuple(rng.choices(TOOLS, k=rng.randint(1, 3))) for _ in range(step_count)),
        if_busy=rng.choice(("queue", "interrupt", "reject")),
        yes=rng.random() < 0.8,
        choice=rng.randrange(2),
        plan_steps=_plan_steps(rng) if kind == "plan" else (),
        parallel=rng.randint(1, 3),
        agent=rng.choices(list(AGENT_WEIGHTS), list(AGENT_WEIGHTS.values()))[0],
        command=rng.choices(("pause", "force", "resume", "stop"), (3, 2, 4, 1))[0],
    )


def _plan_steps(rng: random.Random) -> tuple[tuple[int, ...], ...]:
    count = rng.randint(1, 5)
    return tuple(tuple(before for before in range(number) if rng.random() < 0.4) for number in range(count))
