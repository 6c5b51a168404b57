"""Stores the checkpoints of a graph in its run, each as the result of a call that is named by the graph's nodes."""

import re
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.memory import InMemorySaver

from khala.sdk.adapters.surface import RunSurface, StoredCall, call_name

NODE_PREFIX = "node-"
"""Begins the names of calls that store checkpoints. Calls of tools have other names."""


def is_checkpoint(call: StoredCall) -> bool:
    """Whether this call of the run has stored a checkpoint."""
    return call.name.startswith(NODE_PREFIX) and call.ended


class RunCheckpoints(InMemorySaver):
    """The checkpoints of one run. Each is stored before the next super-step begins, with `durability="sync"`.

    Results of nodes whose super-step has not ended are only in memory: such a super-step is executed again as a whole.
    """

    def __init__(self, surface: RunSurface, thread: str) -> None:
        super().__init__()
        self._surface = surface
        self._thread = thread
        self.step = 0
        """The number of the super-step of the whole graph that is stored."""
        self._nodes: dict[str, list[str]] = {}
        """The nodes that have ended since the last checkpoint, by namespace."""

    async def load(self, calls: Sequence[StoredCall]) -> None:
        """Load the last checkpoint of the graph, and those of its subgraphs after it."""
        last = max((index for index, call in enumerate(calls) if not call.args["namespace"]), default=0)
        for call in calls[last:]:
            outcome = await self._surface.tool_call(call.id, call.name, call.args, _lost)
            if outcome.error is not None:
                raise self._surface.error_type(outcome.error)
            self.step = call.args["step"] if not call.args["namespace"] else self.step
            kind, _, data = bytes(outcome.output).partition(b"\n")
            checkpoint, metadata = self.serde.loads_typed((kind.decode(), data))
            super().put(self._config(call.args["namespace"]), checkpoint, metadata, checkpoint["channel_versions"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store the checkpoint of a super-step."""
        namespace = config["configurable"].get("checkpoint_ns", "")
        nodes = self._nodes.pop(namespace, [])
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        if metadata.get("source") == "loop" and metadata.get("step", -1) > 0:
            kind, data = self.serde.dumps_typed((checkpoint, dict(metadata)))
            args = {"step": metadata.get("step"), "namespace": namespace}
            name = call_name(NODE_PREFIX + "-".join(nodes))
            outcome = await self._surface.tool_call(
                f"checkpoint:{checkpoint['id']}", name, args, lambda _: kind.encode() + b"\n" + data
            )
            if outcome.error is not None:
                raise self._surface.error_type(f"The state of the graph could not be stored: {outcome.error}")
            self.step = metadata["step"] if not namespace else self.step
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a node has written until its super-step has ended."""
        namespace = config["configurable"].get("checkpoint_ns", "")
        nodes = self._nodes.setdefault(namespace, [])
        if (name := re.search(r"([^~,\s]+)$", task_path)) and name[1] not in nodes:
            nodes.append(name[1])
        await super().aput_writes(config, writes, task_id, task_path)

    def _config(self, namespace: str) -> RunnableConfig:
        return {"configurable": {"thread_id": self._thread, "checkpoint_ns": namespace}}


def _lost(_: dict[str, Any]) -> Any:
    raise RuntimeError("A checkpoint that is stored is not made again.")
