"""The program ``profile`` runs under ncu: one contender at one point, its buffers rotated as in the study.

Every buffer set is launched once, so that code is loaded and the first set has left L2; then the first set once more,
which is what the profiler looks at.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from normbench.contenders import TritonKernel, load
from normbench.gpu import CudaGpu, buffer_sets, fake_file
from normbench.points import Point
from normbench.tensors import make_sets, set_bytes
from normbench.worker import die_with_parent


def main() -> int:
    """Run the task in the file named on the command line; a Triton kernel leaves its cubin at ``cubin``."""
    die_with_parent()
    task = json.loads(Path(sys.argv[1]).read_text())
    if fake_file() is None:
        launch(task)
    return 0


def launch(task: dict[str, Any]) -> None:
    from cuda.bindings import driver

    gpu = CudaGpu()
    point, variant = Point.from_identity(task["point"]), task["variant"]
    contender = load(task["spec"], task["build"])
    sets = make_sets(point, gpu.device, buffer_sets(set_bytes(point), gpu.l2_bytes, point.regime), 1)
    bound = [contender.bind(tensors, variant, gpu) for tensors in sets]
    if isinstance(contender, TritonKernel):
        compiled = contender.module.launch(contender.given(sets[0], variant, gpu), **variant)
        Path(task["cubin"]).write_bytes(getattr(compiled, "asm", {}).get("cubin", b""))
    for one in bound:
        one()
    gpu.synchronize()
    driver.cuProfilerStart()
    bound[0]()
    gpu.synchronize()
    driver.cuProfilerStop()


if __name__ == "__main__":
    raise SystemExit(main())
