"""What a seed decides: which faults come when, and what each user does. The same seed gives the same schedule.

How the two interleave is up to real time, so a replay meets the same faults in the same order, not the same instants.
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
    "full-disk", "clock", "model",
]  # fmt: skip
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
MISBEHAVIOURS = ("429", "500", "hang", "cut", "end", "garbage", "failure", "empty")
"""Ways in which a model's provider fails."""

StepKind: TypeAlias = Literal["send", "repeat", "regenerate", "cancel", "answer", "claim", "reset", "reconnect", "read"]
STEPS: dict[StepKind, int] = {
    "send": 12, "repeat": 2, "regenerate": 2, "cancel": 3, "answer": 3, "claim": 1, "reset": 1, "reconnect": 3,
    "read": 2,
}  # fmt: skip
"""What users do, and how often."""
TOOLS = ("risk", "deed")
LEAD = 0.5
"""Seconds without faults at the beginning."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that begins `at` so many seconds, and is over `seconds` later; `amount` and `mode` say how bad it is."""

    at: float
    kind: FaultKind
    target: str = ""
    seconds: float = 0.0
    amount: float = 0.0
    mode: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a user does after a pause of so many seconds. `rounds` are the tools that the model is to call."""

    kind: StepKind
    pause: float
    words: int = 0
    pace: int = 0
    rounds: tuple[tuple[str, ...], ...] = ()
    if_busy: Literal["queue", "interrupt", "reject"] = "queue"
    yes: bool = True
    choice: int = 0


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One user with one thread; `asks` says that risky tools wait for an approval there."""

    name: str
    asks: bool
    steps: tuple[Step, ...]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: faults and users for so many seconds."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    scripts: tuple[Script, ...]


def made(seed: int, seconds: float, *, users: int = 6, only: Sequence[FaultKind] = (), every: float = 1.5) -> Schedule:
    """The schedule of this seed. `only`: these kinds of faults; `every`: mean seconds between two of them."""
    # Two sources, so that other faults leave the users as they are.
    faults, people = random.Random(f"faults {seed}"), random.Random(f"users {seed}")
    return Schedule(
        seed=seed,
        seconds=seconds,
        faults=tuple(_faults(faults, seconds, only or FAULTS, every)),
        scripts=tuple(_script(people, f"u{number}", seconds) for number in range(users)),
    )


def _faults(chance: random.Random, seconds: float, kinds: Sequence[FaultKind], every: float) -> list[Fault]:
    faults = []
    at = LEAD + chance.expovariate(1 / every)
    while at < seconds:
        faults.append(_fault(chance, round(at, 2), chance.choice(kinds)))
        at += chance.expovariate(1 / every)
    return faults


def _fault(chance: random.Random, at: float, kind: FaultKind) -> Fault:
    def of(targets: Sequence[str], least: float, most: float, amount: float = 0.0) -> Fault:
        return Fault(
            at=at,
            kind=kind,
            target=chance.choice(targets),
            seconds=round(chance.uniform(least, most), 2),
            amount=amount,
        )

    kinds: dict[FaultKind, Callable[[], Fault]] = {
        "kill": lambda: of(MEMBERS, 0.1, 3),
        "term": lambda: of(MEMBERS, 0.1, 2),
        "freeze": lambda: of(MEMBERS, 0.5, 6),
        "backend-kill": lambda: of(("postgres",), 0, 0, chance.random()),
        "backend-freeze": lambda: of(("postgres",), 0.5, 5, chance.random()),
        "backend-end": lambda: of(("postgres",), 0, 0, chance.random()),
        "postmaster-kill": lambda: of(("postgres",), 0.1, 2.5),
        "postmaster-freeze": lambda: of(("postgres",), 0.5, 4),
        "postgres-stop": lambda: of(("postgres",), 0.1, 2.5),
        "cut-clients": lambda: of(WEBS, 0, 0),
        "cut-database": lambda: of(MEMBERS, 0, 0),
        "stall-clients": lambda: of(WEBS, 0.5, 5),
        "stall-database": lambda: of(MEMBERS, 0.5, 6),
        "slow-database": lambda: of(MEMBERS, 1, 5, round(chance.uniform(0.01, 0.25), 3)),
        "slow-disk": lambda: of(("postgres",), 1, 5, round(chance.uniform(0.02, 0.4), 3)),
        "full-disk": lambda: of(("postgres",), 1, 5),
        "clock": lambda: of(MEMBERS, 2, 8, round(chance.choice((-1, 1)) * 10 ** chance.uniform(0, 5))),
        "model": lambda: msgspec.structs.replace(of(("model",), 0.5, 4), mode=chance.choice(MISBEHAVIOURS)),
    }
    return kinds[kind]()


def _script(chance: random.Random, name: str, seconds: float) -> Script:
    steps: list[Step] = []
    at = 0.0
    while at < seconds:
        step = _step(chance, first=not steps)
        at += step.pause
        steps.append(step)
    return Script(name=name, asks=chance.random() < 0.4, steps=tuple(steps))


def _step(chance: random.Random, *, first: bool) -> Step:
    kind = "send" if first else chance.choices(list(STEPS), list(STEPS.values()))[0]
    rounds = chance.choices((0, 1, 2), (5, 3, 2))[0] if kind in ("send", "regenerate") else 0
    return Step(
        kind=kind,
        pause=round(chance.uniform(0.1, 2.5), 2),
        words=chance.randint(5, 120),
        pace=chance.randint(20, 100),
        rounds=tuple(tuple(chance.choices(TOOLS, k=chance.randint(1, 3))) for _ in range(rounds)),
        if_busy=chance.choice(("queue", "interrupt", "reject")),
        yes=chance.random() < 0.8,
        choice=chance.randrange(2),
    )
