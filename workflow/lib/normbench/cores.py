"""Cores of this host shared out among processes of normbench, so that nothing of ours runs beside a measurement.

A process claims as many cores as Snakemake gives its job and keeps to them, and so do its children. A claim is a file
lock for each core; the operating system drops it with the process, however that ends. Without a claim a process runs
wherever the system puts it, as when one GPU is measured and nothing else runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def available() -> list[int]:
    """Logical cores this process may use, hardware threads of one physical core side by side.

    Linux numbers the second threads of all cores after the first ones, so halves by number would share every core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0), key=lambda core: (_first_sibling(core), core))


def _first_sibling(core: int) -> int:
    try:
        listed = (TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return core
    return int(listed.replace("-", ",").split(",")[0])


@contextlib.contextmanager
def own(count: int) -> Iterator[list[int]]:
    """Keep this process and its children to ``count`` cores that no other process of normbench claims.

    Yields the cores: none where fewer are free, or where the system cannot bind (not Linux); stderr says which.
    """
    if not hasattr(os, "sched_setaffinity"):
        print("normbench: this system cannot bind a process to cores", file=sys.stderr)
        yield []
        return
    before = os.sched_getaffinity(0)
    with _claim(available(), count) as claimed:
        if claimed:
            os.sched_setaffinity(0, claimed)
            print(f"normbench: keeps to cores {','.join(map(str, sorted(claimed)))}", file=sys.stderr)
        else:
            print(
                f"normbench: fewer than {count} cores are free of other work of normbench; not bound", file=sys.stderr
            )
        try:
            yield claimed
        finally:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _claim(candidates: list[int], count: int) -> Iterator[list[int]]:
    """The first ``count`` candidates that are free, or none; one claim at a time, so that claims do not interleave."""
    from filelock import FileLock, Timeout

    folder = Path(tempfile.gettempdir())
    claimed: list[int] = []
    with contextlib.ExitStack() as held:
        with FileLock(folder / "normbench-cores.lock", mode=0o666):
            for core in candidates:
                if len(claimed) == count:
                    break
                lock = FileLock(folder / f"normbench-core-{core}.lock", mode=0o666)
                with contextlib.suppress(Timeout):
                    held.enter_context(lock.acquire(timeout=0))
                    claimed.append(core)
            if len(claimed) < count:
                held.close()
                claimed = []
        yield claimed
