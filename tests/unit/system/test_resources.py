"""Memory and cores, as limits of containers leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.system import resources

GIB = 1 << 30


class TestHostBytes:
    def machine(self, root: Path, cgroup: str, files: dict[str, str], available_kib: int = 8 << 20) -> int:
        for name, text in {
            "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n",
            "proc/self/cgroup": cgroup,
            **files,
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return resources.host_bytes(root)

    def test_without_limits_it_is_what_the_machine_has(self, tmp_path: Path) -> None:
        assert self.machine(tmp_path, "0::/\n", {}) == 8 * GIB

    def test_the_tightest_limit_above_the_process_counts(self, tmp_path: Path) -> None:
        base = "sys/fs/cgroup"
        files = {
            f"{base}/a/memory.max": str(4 * GIB),
            f"{base}/a/memory.current": str(3 * GIB),
            f"{base}/a/memory.stat": f"anon 1\ninactive_file {1 * GIB}\n",
            f"{base}/a/b/memory.max": "max\n",
            f"{base}/a/b/memory.current": "5",
            f"{base}/a/b/memory.stat": "",
        }
        assert self.machine(tmp_path, "0::/a/b\n", files) == 2 * GIB

    def test_version_1_and_a_path_that_leads_nowhere(self, tmp_path: Path) -> None:
        base = "sys/fs/cgroup/memory"
        files = {
            f"{base}/memory.limit_in_bytes": str(3 * GIB),
            f"{base}/memory.usage_in_bytes": str(1 * GIB),
            f"{base}/memory.stat": "total_inactive_file 0\n",
        }
        assert self.machine(tmp_path, "4:memory:/elsewhere\n3:cpu:/x\n", files) == 2 * GIB

    def test_a_group_over_its_limit_leaves_nothing(self, tmp_path: Path) -> None:
        base = "sys/fs/cgroup"
        files = {f"{base}/memory.max": "5", f"{base}/memory.current": "9", f"{base}/memory.stat": ""}
        assert self.machine(tmp_path, "0::/\n", files) == 0

    def test_of_this_machine(self) -> None:
        assert resources.host_bytes() > 0


class TestCores:
    def machine(self, root: Path, cgroup: str, files: dict[str, str]) -> int:
        for name, text in {"proc/self/cgroup": cgroup, **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return resources.cores(root)

    @pytest.fixture(autouse=True)
    def _eight_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(8)))

    def test_without_quotas_it_is_all_it_may_run_on(self, tmp_path: Path) -> None:
        assert self.machine(tmp_path, "0::/\n", {}) == 8
        assert self.machine(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}) == 8

    def test_the_tightest_quota_above_the_process_counts_rounded_up(self, tmp_path: Path) -> None:
        files = {"sys/fs/cgroup/a/cpu.max": "250000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "600000 100000\n"}
        assert self.machine(tmp_path, "0::/a/b\n", files) == 3
        assert self.machine(tmp_path, "0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "10000 100000\n"}) == 1

    def test_version_1(self, tmp_path: Path) -> None:
        base = "sys/fs/cgroup/cpu"
        files = {f"{base}/cpu.cfs_quota_us": "400000\n", f"{base}/cpu.cfs_period_us": "100000\n"}
        assert self.machine(tmp_path, "4:cpu,cpuacct:/elsewhere\n", files) == 4
        files[f"{base}/cpu.cfs_quota_us"] = "-1\n"
        assert self.machine(tmp_path, "4:cpu,cpuacct:/elsewhere\n", files) == 8


def test_memory_is_returned_where_the_c_library_can() -> None:
    resources.return_free_memory()
    assert resources._malloc_trim() is None or resources._malloc_trim()(0) in (0, 1)  # type: ignore[misc]
