"""The text of a checklist's task: `US-001: Add the form (after: US-000)` has an id, a title and dependencies."""

import re
from typing import NamedTuple

from khala.domain.plans.step_limits import STEP_ID

_DOTTED = r"\d+(?:\.\d+)+"
_NUMBERED = r"[A-Za-z]{1,16}-?\d+(?:[.-]\d+)*"
_ID_FORMS = re.compile(
    rf"""(?:
        \*\*(?P<bold>{_NUMBERED}|{_DOTTED}|\d+)[.:]?\*\*[.:]?     # **US-001**: Title
      | \[(?P<bracketed>{_NUMBERED})\]:?                          # [T001] Title
      | `(?P<code>{_NUMBERED})`:?                                 # `T001` Title
      | (?P<labeled>{_NUMBERED}|{_DOTTED}|\d+):                   # US-001: Title
      | (?P<number>{_DOTTED}|\d+)[.)]                             # 1. Title
      | (?P<plain>[A-Z]{{1,2}}\d{{3,}}|{_DOTTED})                 # T001 Title
    )\s+(?=\S)""",
    re.VERBOSE,
)
_DEPENDENCY_FORMS = re.compile(
    r"""(?:
        \s\((?:(?:after|deps?|depends[ ]on):|depends[ ]on\b)(?P<round>[^()]*)\)     # (after: T001)
      | \s\[(?:(?:after|deps?|depends[ ]on):|depends[ ]on\b)(?P<square>[^\[\]]*)\]  # [deps: T001]
      | (?:[,;]|\s[-–—])?\sdepends[ ]on:(?P<open>[^:()\[\]]*)                       # , depends on: T001
    )$""",
    re.VERBOSE | re.IGNORECASE,
)
_LABEL = re.compile(
    r"(\*\*)?(id|depends on|after|priority|agent|acceptance(?: criteria)?)(?(1)(?::\*\*|\*\*:)|:)(?:\s+(.*))?",
    re.IGNORECASE | re.DOTALL,
)
_REFERENCE_NOISE = re.compile(r"^(?:step|task)\s+|^[#`*\[(]+|[`*\])]+$", re.IGNORECASE)


class TaskText(NamedTuple):
    """The parts of a task's text. `id` is None if the text has none."""

    id: str | None
    title: str
    depends_on: tuple[str, ...]


class Label(NamedTuple):
    """A line such as `Depends on: US-001`. The name is in lower case."""

    name: str
    value: str


def read_task_text(text: str) -> TaskText:
    """The id, the title and the dependencies in a text on one line."""
    depends_on: tuple[str, ...] = ()
    if found := _DEPENDENCY_FORMS.search(text):
        depends_on = read_references(next(filter(None, found.groups()), ""))
        text = text[: found.start()]
    if (
        (found := _ID_FORMS.match(text))
        and (step_id := next(filter(None, found.groups())))
        and STEP_ID.fullmatch(step_id)
    ):
        return TaskText(step_id, text[found.end() :], depends_on)
    return TaskText(None, text, depends_on)


def read_references(text: str) -> tuple[str, ...]:
    """The ids in a list such as `US-001, #2 and step 3`."""
    parts = re.split(r"[,;]|\s+and\s+", text)
    return tuple(name for part in parts if (name := _REFERENCE_NOISE.sub("", _REFERENCE_NOISE.sub("", part.strip()))))


def read_label(text: str) -> Label | None:
    """The label of this line, or None."""
    found = _LABEL.fullmatch(text)
    return Label(found[2].lower(), (found[3] or "").strip()) if found else None
