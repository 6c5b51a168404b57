"""The client library's types match those of the server."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TYPES = ROOT / "app/clients/typescript/client/src/frames.ts"


def test_the_types_of_the_client_library_are_up_to_date() -> None:
    checked = subprocess.run([sys.executable, "infra/frames.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_types_know_every_part_block_and_frame() -> None:
    text = TYPES.read_text(encoding="utf-8")
    assert 'PartOf<"compaction", Compaction>' in text
    assert "export type Block = TextBlock | NoticeBlock | ToolBlock | CompactionBlock | FileBlock | DataBlock;" in text
    assert "state: ToolState;" in text
    assert '  type: "snapshot";' in text


def test_optional_and_nullable_fields_have_such_types() -> None:
    text = TYPES.read_text(encoding="utf-8")
    changes = text.partition("export interface ThreadChanges {")[2].partition("}")[0]
    assert "  title?: string | null;" in changes
    assert '  visibility?: "private" | "link" | "public";' in changes
    announced = text.partition("export interface SetPresence {")[2].partition("}")[0]
    assert "  state: Record<string, unknown> | null;" in announced
