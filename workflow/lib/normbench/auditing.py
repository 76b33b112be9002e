"""Worker side of ``audit``: the same bound launches on the same buffers under our own timer, NVBench and do_bench.

NVBench runs all its benchmarks in one call and once a process, so everything happens inside one benchmark of its own
with one state for each contender and point; its samples are read from its JSON file when that call has returned.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normbench import __version__, sources, timing
from normbench.contenders import CompileError, Contender, load
from normbench.gpu import DeviceLost, Launch
from normbench.observe import Observer
from normbench.points import Point
from normbench.supervise import utc_now
from normbench.trial import Failure, Trial, attempt, failure_of, identity, with_stream
from normbench.tuning import Bench
from normbench.worker import Session

ROUNDS = 15  # before and again after the other timers: 30 samples, each of a graph of many launches
DO_BENCH_MS = 200  # of launches under do_bench: 600 samples of the study's points in bf16
NVBENCH_S = 5.0  # at most, of one state; it stops at 0.5 % noise
STATE = "case"  # the axis of our benchmark
"""EOF-placeholder"""
