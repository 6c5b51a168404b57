"""Generation options: how the model writes the answer of a run. They are the same for every protocol of clients."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

FormatType: TypeAlias = Literal["text", "json_object", "json_schema"]

FORMAT_REPAIR_NOTICE = "format_repair"
"""The code of the notice after text that does not fit the requested format. That text is no part of the answer."""
FORMAT_MISMATCH = "format_mismatch"
"""The code of a run whose repaired answer does not fit the format either."""
REPAIR_PROMPT = (
    "Your answer does not fit the required format: {mismatches}. "
    "Write the whole answer again, as JSON and nothing else."
)
"""The prompt for a model whose answer does not fit."""


class OptionStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the structs of this module: camelCase in JSON. Defaults are omitted."""


class ResponseFormat(OptionStruct, frozen=True, kw_only=True):
    """The format of an answer. `json_object` is any JSON object, `json_schema` any JSON value that fits `schema`.

    `name` and `description` tell the model what the value is. With `strict`, providers that can do so let the model
    write nothing else; some accept only a part of JSON Schema then.
    """

    type: FormatType
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")] = "answer"  # Not before a newline.
    description: Annotated[str, msgspec.Meta(max_length=4_000)] = ""
    schema: dict[str, Any] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.type == "json_schema" and self.schema is None:
            raise ValueError("The format json_schema needs a schema.")
        if self.type != "json_schema" and self.schema is not None:
            raise ValueError("Only the format json_schema has a schema.")

    @property
    def instructions(self) -> str:
        """The format in words, for models whose provider does not enforce it."""
        if self.type == "text":
            return ""
        if self.schema is None:
            return "Answer with one JSON object and nothing else: no explanation and no code fence."
        title = f"{self.name}: {self.description}" if self.description else self.name
        return (
            "Answer with one JSON value that fits this JSON Schema and nothing else: no explanation and no code "
            f"fence.\n\n{title}\n{msgspec.json.encode(self.schema).decode()}"
        )


ToolMode: TypeAlias = Literal["auto", "none", "required"]
MAX_CHOSEN_TOOLS = 128
MAX_TOOL_NAME_CHARACTERS = 200
TOOL_NOT_CALLED = "tool_not_called"
"""The code of a run whose model had to call a tool and did not."""


class ToolChoice(OptionStruct, frozen=True, kw_only=True):
    """The tools that the model may or must call. With `tools`, only those of these names are offered.

    With `required`, the first reply has to call one. Later replies of the run may, as with `auto`.
    """

    mode: ToolMode
    tools: Annotated[
        Sequence[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TOOL_NAME_CHARACTERS)]],
        msgspec.Meta(max_length=MAX_CHOSEN_TOOLS),
    ] = ()


def offers(choice: ToolChoice | None, name: str) -> bool:
    """Whether the model may call the tool of this name. Without a choice, it may call all tools."""
    return choice is None or (choice.mode != "none" and (not choice.tools or name in choice.tools))


ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 500
MAX_METADATA_ENTRIES = 16
Temperature: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
StopText: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TopLogprobs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=20)]
EndUser: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=MAX_METADATA_ENTRIES),
]


class GenerationOptions(OptionStruct, frozen=True, kw_only=True):
    """How the model writes its answer. Without `parallel_tool_calls`, a reply calls at most one tool.

    An answer ends before the first of the `stop` texts. `user` names the caller's own user to the provider, and
    `metadata` is stored with the run.
    """

    response_format: ResponseFormat | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Annotated[Sequence[StopText], msgspec.Meta(max_length=MAX_STOPS)] = ()
    reasoning_effort: ReasoningEffort | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0
    user: EndUser | None = None
    metadata: Metadata = {}

    @property
    def tool_mode(self) -> ToolMode:
        """Whether the model may or must call tools."""
        return "auto" if self.tool_choice is None else self.tool_choice.mode

    @property
    def json_format(self) -> ResponseFormat | None:
        """The format of the answer if it is JSON."""
        given = self.response_format
        return given if given is not None and given.type != "text" else None


DEFAULT_GENERATION = GenerationOptions()


def generation_of(options: GenerationOptions) -> GenerationOptions:
    """The generation options alone, of a struct that has others as well."""
    return GenerationOptions(**{name: getattr(options, name) for name in GenerationOptions.__struct_fields__})
