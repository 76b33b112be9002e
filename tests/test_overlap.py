"""Contenders whose launches may overlap: one that does not wait for the launch before it gets no time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from normbench import check, kernelfile, ops, overlap, spent, trial
from normbench.contenders import CudaKernel
from normbench.points import Point
from normbench.tensors import Tensors, make_sets

ROOT = Path(__file__).parents[1]
POINT = Point("add_rmsnorm", "bf16", 3, 64, "latency")


class Chain:
    """A GPU on which the second of two launches does its early part before the first one runs."""

    fake, arch, sm_count = False, 90, 2

    def synchronize(self) -> None:
        pass

    def capture(self, launches: Sequence[Any], count: int) -> Any:
        before, launch = launches
        assert count == 2
        outputs: list[Any] = [{}, {}]

        def replay() -> None:
            if (early := getattr(launch, "early", None)) is not None:
                early()
            before()
            outputs[1] = launch()

        replay()  # as a capture does
        return SimpleNamespace(replay=replay, outputs=outputs)


class Norm:
    """The reference as a launch. too_early: what it does before the launch before it has ended."""

    def __init__(self, tensors: Tensors, too_early: str = "") -> None:
        self.tensors, self.too_early = tensors, too_early
        self.read: dict[str, Any] = {}
        self.factor = 1.0
        self.written = False

    def early(self) -> None:
        if self.too_early in self.tensors.inputs:
            value: Any = self.tensors.inputs[self.too_early]
            self.read = {self.too_early: value.clone()}
        if self.too_early == "y":
            self._write()
            self.written = True

    def _write(self) -> None:
        exact = ops.reference(POINT, self.tensors.inputs | self.read)
        for name, tensor in self.tensors.outputs().items():
            tensor.copy_(exact[name] * self.factor)

    def __call__(self) -> dict[str, Any]:
        if not self.written:
            self._write()
        self.read, self.written = {}, False
        return self.tensors.outputs()


def late_on_host(gpu: Any, values: Any, place: Any, spoilt: Any) -> Callable[[], None]:
    def launch() -> None:
        place.copy_(values)
        spoilt.fill_(torch.nan)

    return launch


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> Tensors:
    monkeypatch.setattr(overlap, "late", late_on_host)
    return make_sets(POINT, torch.device("cpu"), 1, 1)[0]


def asked(tensors: Tensors, launch: Any) -> str | None:
    expected = check.expect(POINT, tensors.judged_inputs())
    before = tensors.fingerprint()
    found = overlap.early(Chain(), launch, tensors, expected)  # type: ignore[arg-type]
    assert tensors.fingerprint() == before, "the inputs are left as they were"
    return found


def test_a_launch_that_waits_passes(tensors: Tensors) -> None:
    assert asked(tensors, Norm(tensors)) is None


@pytest.mark.parametrize("name", ["x", "residual"])
def test_an_input_that_is_read_too_early_is_named(name: str, tensors: Tensors) -> None:
    assert asked(tensors, Norm(tensors, name)) == f"{overlap.REASON} ({name})"


def test_an_output_that_is_written_too_early_is_seen(tensors: Tensors) -> None:
    assert asked(tensors, Norm(tensors, "y")) == f"{overlap.REASON} (x)"


def test_a_launch_that_is_wrong_in_any_case_is_left_to_the_check_that_says_how(tensors: Tensors) -> None:
    launch = Norm(tensors)
    launch.factor = 2.0

    assert asked(tensors, launch) is None


def test_a_replay_begins_behind_what_other_streams_were_asked_for() -> None:
    """Poison of 268 MB takes longer than a graph takes to begin."""
    told: list[str] = []
    torch_alone = SimpleNamespace(cuda=SimpleNamespace(stream=lambda _: contextlib.nullcontext()))
    gpu: Any = SimpleNamespace(fake=False, torch=torch_alone, stream=None, synchronize=lambda: told.append("waited"))
    replay: Any = SimpleNamespace(replay=lambda: told.append("replayed"))

    trial.with_stream(gpu, replay)

    assert told == ["waited", "replayed", "waited"]


def test_what_it_costs_to_ask_is_counted_among_the_checks(monkeypatch: pytest.MonkeyPatch, tensors: Tensors) -> None:
    monkeypatch.setattr(spent, "SECONDS", dict.fromkeys(spent.ACTIVITIES, 0.0))
    monkeypatch.setattr(overlap, "concerns", lambda *_: True)
    monkeypatch.setattr(overlap, "early", lambda *_: time.sleep(0.05))
    gpu: Any = SimpleNamespace(capture=lambda *_: None)
    contender: Any = SimpleNamespace(copies=False, bind=lambda *_: None)

    trial.attempt(contender, {}, [tensors], [check.expect(POINT, tensors.judged_inputs())], gpu)

    assert spent.SECONDS["checking"] >= 0.05 > spent.SECONDS["binding"]


@pytest.mark.parametrize(
    ("regime", "arch", "fake"), [("stream", 90, False), ("latency", 80, False), ("latency", 90, True)]
)
def test_where_launches_cannot_overlap_nobody_asks(regime: str, arch: int, fake: bool) -> None:
    gpu: Any = SimpleNamespace(arch=arch, fake=fake)
    assert not overlap.concerns(Point("rmsnorm", "bf16", 1, 64, regime), gpu)
    assert overlap.concerns(POINT, Chain())  # type: ignore[arg-type]


@pytest.mark.parametrize("pdl", [0, 1])
def test_the_axis_reaches_the_launch(pdl: int, tensors: Tensors) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / "few_rows.cu")
    names = kernelfile.launch_names(POINT, 90, 132, 16) | {
        "block": 64,
        "spread": 0,
        "cluster": 1,
        "vecs": 1,
        "pdl": pdl,
    }
    stub: Any = SimpleNamespace(_handle=lambda symbol, smem_bytes, cluster: symbol)
    gpu = SimpleNamespace(smem_optin_bytes=1 << 16)

    config, _, _ = CudaKernel._step(stub, kernel.launches[0], names, tensors, {}, gpu)

    assert config.programmatic_stream_serialization is bool(pdl)


def test_overlap_is_for_few_rows_alone() -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / "few_rows.cu")
    found = {}
    for regime, arch in (("latency", 90), ("latency", 80), ("l2", 90)):
        point = Point("rmsnorm", "bf16", 512, 4096, regime)
        variants = kernel.variants([128, 256, 512], kernelfile.launch_names(point, arch, 132, 16))
        found[regime, arch] = {(one["pdl"], one["spread"]) for one in variants}
    assert found["latency", 90] == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert found["latency", 80] == {(0, 0)}
    assert found["l2", 90] == {(0, 0), (0, 1)}
