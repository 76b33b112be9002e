"""Cores of this host shared out among processes of normbench, so that nothing of ours runs beside a measurement.

A process claims as many cores as Snakemake gives its job and keeps to them, and so do its children. Claims are of whole
physical cores, since hardware threads of one core slow each other down. A claim is a file lock for each core; the
operating system drops it with the process, however that ends. Without a claim a process runs wherever the system puts
it, as when one GPU is measured and nothing else runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
LOOK_S = 0.2  # how often a process that waits for cores looks again
_KEPT = contextlib.ExitStack()  # never closed: the end of the interpreter does that


def available() -> list[int]:
    """Logical cores this process may use, hardware threads of one physical core side by side.

    Linux numbers the second threads of all cores after the first ones, so halves by number would share every core.
    """
    return [thread for threads in _physical().values() for thread in threads]


def _physical() -> dict[int, list[int]]:
    """The same by physical core, which goes by the number of its first hardware thread, ours to use or not."""
    if not hasattr(os, "sched_getaffinity"):
        return {core: [core] for core in range(os.cpu_count() or 1)}
    found: dict[int, list[int]] = {}
    for thread in sorted(os.sched_getaffinity(0)):
        found.setdefault(_first_sibling(thread), []).append(thread)
    return dict(sorted(found.items()))


def _first_sibling(core: int) -> int:
    try:
        listed = (TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return core
    return int(listed.replace("-", ",").split(",")[0])


def keep(count: int) -> None:
    """``own`` until the interpreter ends, and still on those cores while it takes itself down, which is a moment."""
    _KEPT.enter_context(own(count))


@contextlib.contextmanager
def own(count: int) -> Iterator[list[int]]:
    """Keep this process and its children to ``count`` logical cores; wait until no other process of normbench has them.

    The cores are whole physical ones, as many as ``count`` fills, but at least one: of two hardware threads a core, 3
    give the two of one core, and so does 1. Yields their logical cores: none where this host has fewer than ``count``,
    or cannot bind (not Linux); stderr says which.
    """
    if not hasattr(os, "sched_setaffinity"):
        print("normbench: this system cannot bind a process to cores", file=sys.stderr)
        yield []
        return
    before, cores = os.sched_getaffinity(0), _physical()
    if count > len(before):
        print(f"normbench: not bound to cores: {count} were asked for, and there are {len(before)}", file=sys.stderr)
        yield []
        return
    with _claim(cores, count) as claimed:
        os.sched_setaffinity(0, claimed)
        print(f"normbench: keeps to cores {','.join(map(str, claimed))}", file=sys.stderr)
        try:
            yield claimed
        finally:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _claim(cores: dict[int, list[int]], count: int) -> Iterator[list[int]]:
    """Logical cores of the claimed ones, sorted. Who waits keeps later ones waiting, so a large claim has its turn."""
    from filelock import FileLock

    with contextlib.ExitStack() as held:
        with FileLock(_lock("cores"), mode=0o666):
            waited = False
            while not (claimed := _free(cores, count, held)):
                if not waited:
                    waited = True
                    print(f"normbench: waits for {count} cores that other work of normbench has", file=sys.stderr)
                time.sleep(LOOK_S)
        yield claimed


def _free(cores: dict[int, list[int]], count: int, held: contextlib.ExitStack) -> list[int]:
    """Lock the first cores that are free, for as long as ``held``; lock and return none where they do not suffice."""
    from filelock import FileLock, Timeout

    wanted = len(_filled(cores.values(), count))
    claimed: list[list[int]] = []
    with contextlib.ExitStack() as attempt:
        for core, threads in cores.items():
            if len(claimed) == wanted:
                break
            with contextlib.suppress(Timeout):
                attempt.enter_context(FileLock(_lock(f"core-{core}"), mode=0o666).acquire(timeout=0))
                claimed.append(threads)
        if len(claimed) == wanted:
            held.push(attempt.pop_all())
            return sorted(thread for threads in claimed for thread in threads)
    return []


def _filled(cores: Iterable[list[int]], count: int) -> list[list[int]]:
    """As many of ``cores`` as ``count`` logical cores fill, at least one."""
    chosen: list[list[int]] = []
    for threads in cores:
        count -= len(threads)
        if count < 0 and chosen:
            break
        chosen.append(threads)
    return chosen


def _lock(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"normbench-{name}.lock")
