"""The search for control groups, in the kernel's files about mounts and this process."""

from pathlib import Path

import pytest

from khala.tools.sandbox import cgroup
from khala.tools.sandbox.cgroup import V1, V2, CgroupLayout

V2_MOUNT = "30 23 0:26 {root} {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "40 32 0:35 {root} {at} rw,relatime - cgroup cgroup rw,memory"
CPU_MOUNT = "41 32 0:36 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


def candidate_groups(folder: Path, mounts: list[str], own: list[str]) -> list[tuple[str, CgroupLayout]]:
    (folder / "self").mkdir()
    (folder / "self/mountinfo").write_text("\n".join(mounts))
    (folder / "self/cgroup").write_text("\n".join(own))
    return [(str(path), layout) for path, layout in cgroup.candidates(folder)]


def test_the_group_of_a_delegated_service_is_searched_from_its_own_upwards(tmp_path: Path) -> None:
    mount = V2_MOUNT.format(root="/", at="/sys/fs/cgroup")
    assert candidate_groups(tmp_path, [mount], ["0::/system.slice/khala.service/server"]) == [
        ("/sys/fs/cgroup/system.slice/khala.service/server", V2),
        ("/sys/fs/cgroup/system.slice/khala.service", V2),
        ("/sys/fs/cgroup/system.slice", V2),
        ("/sys/fs/cgroup", V2),
    ]


def test_a_container_sees_only_its_own_part(tmp_path: Path) -> None:
    mount = V2_MOUNT.format(root="/docker/abc", at="/sys/fs/cgroup")
    assert candidate_groups(tmp_path, [mount], ["0::/docker/abc/inner"]) == [
        ("/sys/fs/cgroup/inner", V2),
        ("/sys/fs/cgroup", V2),
    ]


def test_with_a_version_one_memory_controller_its_own_group_is_searched_too(tmp_path: Path) -> None:
    mounts = [CPU_MOUNT, V1_MOUNT.format(root="/", at="/cg/memory"), V2_MOUNT.format(root="/", at="/cg/unified")]
    assert candidate_groups(tmp_path, mounts, ["4:memory:/a/b", "1:cpu:/", "0::/"]) == [
        ("/cg/memory/a/b", V1),
        ("/cg/unified", V2),
    ]


@pytest.mark.parametrize("own", [["1:cpu:/"], []])
def test_without_a_memory_controller_there_are_no_groups(tmp_path: Path, own: list[str]) -> None:
    assert candidate_groups(tmp_path, [CPU_MOUNT], own) == []
    assert cgroup.find(tmp_path) is None


def test_a_group_that_cannot_be_written_is_skipped(tmp_path: Path) -> None:
    mount = V2_MOUNT.format(root="/", at=str(tmp_path / "nothing"))
    candidate_groups(tmp_path, [mount], ["0::/"])
    assert cgroup.find(tmp_path) is None
