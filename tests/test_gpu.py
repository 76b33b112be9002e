"""What only a GPU can show; `-m "gpu and not slow"` leaves out what runs other people's tools, which takes longest."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mutants_fixture as mutants
from normbench import (
    adversary,
    auditing,
    check,
    compile,
    harness,
    inputs,
    inspections,
    kernelfile,
    overlap,
    profile,
    racing,
    sanitize,
    sanitizer,
    schema,
    timing,
    tools,
    wide,
)
from normbench.contenders import Contender, CudaKernel, TritonKernel, baseline, rest
from normbench.gpu import CudaGpu, Launch, buffer_sets, launches_a_sample
from normbench.observe import Observer
from normbench.points import Point
from normbench.streams import SmClock, Streams, copy_of, expression, variants
from normbench.supervise import worker_environment
from normbench.tensors import Guarded, Tensors, make_sets, set_bytes
from normbench.trial import Failure, attempt, on_stream

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[1]
KERNELS = kernelfile.find(ROOT / "kernels")
EAGER = ROOT / "kernels" / "baselines" / "torch_eager.py"
BLOCKS = [64, 256, 1024]
CASES = ("K1.1", "K1.offset_1e4", "K2.1234.5", "K5.17", "K12.x", "K13", "K15.mixed", "K17.1e-12", "K23.last")
CASES += ("hidden_1", "hidden_33", "hidden_1024", "hidden_50257", "rows_65537", "stride_odd", "no_affine", "stats")
# each of these is compiled for a Triton kernel, 0.7 s a type and op
TRITON_CASES = ("K1.offset_1e4", "K12.x", "K13", "K23.last", "hidden_33", "stride_odd", "stats")


@pytest.fixture(scope="module")
def gpu() -> CudaGpu:
    return CudaGpu()


class Contenders(dict[str, Contender]):
    """The kernels of the repository by stem, each compiled for this GPU when it is first asked for."""

    def __init__(self, gpu: CudaGpu, folder: Path) -> None:
        self.gpu = gpu
        self.folder = folder
        self.kernels = {kernel.stem: kernel for kernel in KERNELS}

    def __missing__(self, stem: str) -> Contender:
        kernel = self.kernels[stem]
        if kernel.lang == "triton":
            return self.setdefault(stem, TritonKernel(kernel))
        assert compile.compile_kernel(kernel, self.gpu.arch, BLOCKS, self.folder / stem) is None
        return self.setdefault(stem, CudaKernel(kernel, self.folder / f"{stem}.json"))


@pytest.fixture(scope="module")
def contenders(gpu: CudaGpu, tmp_path_factory: pytest.TempPathFactory) -> Contenders:
    return Contenders(gpu, tmp_path_factory.mktemp("build"))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("stem", [kernel.stem for kernel in KERNELS])
def test_a_kernel_that_is_wrong_on_a_hard_input(
    gpu: CudaGpu, contenders: Contenders, stem: str, op: str, dtype: str
) -> None:
    contender: Any = contenders[stem]
    if op not in contender.kernel.ops:
        pytest.skip(f"{stem} does not serve {op}")
    jit = contender.lang == "triton"
    for case in inputs.every(op, dtype):
        if case.name not in (TRITON_CASES if jit else CASES) or contender.refusal(case.point, gpu):
            continue
        tensors = adversary.place(case, gpu)
        expected = check.expect(case.point, tensors.inputs)
        if contender.kernel.refusal(contender._names(case.point, gpu, tensors.alignment())):
            continue
        usable = contender.variants_for(tensors, gpu, BLOCKS)
        assert usable, case.name
        for variant in (usable[0],) if jit else (usable[0], usable[-1]):
            tensors.poison()
            outputs = contender.bind(tensors, variant, gpu)()
            gpu.synchronize()
            verdict = check.check(expected, outputs)
            assert verdict.ok, f"{case.name} {variant}: {verdict.reason}"
            assert all(item.guards_intact() for item in tensors.guarded.values()), f"{case.name} {variant}"


@pytest.mark.parametrize("stem", [kernel.stem for kernel in KERNELS if kernel.parted])
def test_dx_needs_no_reduction_and_column_sums_do(gpu: CudaGpu, contenders: Contenders, stem: str) -> None:
    contender, work = contenders[stem], Point("layernorm_bwd", "bf16", 512, 8192)
    refused = contender.refusal(work, gpu)
    if refused:
        pytest.skip(refused)
    (tensors,) = make_sets(work, gpu.device, 1, 1)
    bounds = (contender.bind(tensors, variant, gpu) for variant in contender.variants(work, gpu, BLOCKS))
    whole = next(bound for bound in bounds if rest(bound) is not None)
    without = rest(whole)
    assert without is not None
    dx = whole()["dx"].clone()
    gpu.synchronize()
    tensors.poison()
    found = without()
    gpu.synchronize()
    assert gpu.torch.equal(found["dx"], dx)
    assert bool(found["dgamma"].isnan().all())
    assert bool(found["dbeta"].isnan().all())


@pytest.mark.parametrize("shape", ["16x64x256x256", "9x1048576"])
@pytest.mark.parametrize("distribution", ["uniform", "normal", "scaled_100", "offset_1000", "constant_1e4", "zero"])
def test_a_row_in_one_pass_is_off_by_more_than_two_ulp_and_a_millionth(
    gpu: CudaGpu, contenders: Contenders, distribution: str, shape: str
) -> None:
    """Of KernelBench level 1 problem 40, and several in hand at a time; the tolerance of a check grants more."""
    contender: Any = contenders["wide_onepass"]
    asked = {"shapes": [shape], "dtypes": ["fp32"], "distributions": [distribution], "affine": ["random"]}
    cases = wide.cases("layernorm", "fp32", asked | {"seeds": [0], "eps": [1e-5], "small_shapes": 0})
    case = next(case for case in cases if case.name.startswith(f"wide.{distribution}"))
    if contender.refusal(case.point, gpu):
        pytest.skip("a row does not fit this chip")
    tensors = adversary.place(case, gpu)
    target = check.expect(case.point, tensors.inputs).targets["y"]
    assert isinstance(target, check.Target)
    for variant in contender.variants_for(tensors, gpu, BLOCKS):
        outputs = contender.bind(tensors, variant, gpu)()
        gpu.synchronize()
        error = (outputs["y"].double().reshape(target.exact.shape) - target.exact).abs_()
        over = error - 2 * target.ulp
        assert float(over.max()) <= 1e-6, f"{variant}: {float(over.max()):.2e} beyond 2 ulp"


def test_a_captured_launch_begins_behind_what_was_enqueued_before(gpu: CudaGpu) -> None:
    torch = gpu.torch
    source, found = torch.zeros(1, device=gpu.device), torch.zeros(1, device=gpu.device)
    gpu.synchronize()
    torch.cuda._sleep(50_000_000)
    source.fill_(1.0)

    gpu.capture([lambda: {"found": found.copy_(source)}], 1)

    assert found.item() == 1.0


def test_a_lead_in_that_spoils_what_its_graph_hands_out(gpu: CudaGpu) -> None:
    """Both have their temporaries in one pool, so the outputs of the one must stay taken in it."""
    x = gpu.torch.full((1 << 20,), 3.0, device=gpu.device)
    replay = gpu.capture([lambda: {"y": (x * 2.0).abs_() + 1.0}] * 4, 4)
    on_stream(gpu, replay.replay)
    kept = [outputs["y"].clone() for outputs in replay.outputs]
    x.fill_(5.0)
    on_stream(gpu, replay.lead_in)
    assert all(gpu.torch.equal(outputs["y"], before) for outputs, before in zip(replay.outputs, kept, strict=True))
    on_stream(gpu, replay.replay)
    assert {float(value) for outputs in replay.outputs for value in outputs["y"].unique()} == {11.0}


def test_the_lead_in_of_a_set_that_is_alone_takes_memory_of_its_own(gpu: CudaGpu) -> None:
    x = gpu.torch.ones(1 << 26, device=gpu.device)
    replay = gpu.capture([lambda: {"y": x.abs() + 1.0}], 1)
    before = gpu.torch.cuda.memory_reserved()
    on_stream(gpu, replay.lead_in)
    assert gpu.torch.cuda.memory_reserved() == before


def test_short_launches_that_take_longer_among_others(gpu: CudaGpu) -> None:
    """The commands of a graph lie in L2 as its buffers do: 2.27 us a launch, and 2.44 where others pushed them out."""
    torch = gpu.torch

    def doubled(x: Any, y: Any) -> Launch:
        return lambda: {"y": torch.mul(x, 2.0, out=y)}

    def captured() -> Any:
        pairs = [torch.ones(2, 1 << 21, dtype=torch.bfloat16, device=gpu.device) for _ in range(2)]
        return gpu.capture([doubled(*pair) for pair in pairs], 250)

    replays = [captured() for _ in range(12)]
    alone, among = (
        gpu.time_rounds(group, [range(len(group))] * 11, Observer(None))[0] for group in ([replays[0]], replays)
    )
    assert sorted(among)[5] == pytest.approx(sorted(alone)[5], rel=0.03)


def test_a_graph_whose_workspace_is_freed_while_it_is_still_replayed(gpu: CudaGpu) -> None:
    torch = gpu.torch
    source = torch.ones(1 << 20, device=gpu.device)

    def bound() -> Any:
        workspace = torch.zeros(1 << 20, device=gpu.device)

        def launch() -> dict[str, Any]:
            workspace.copy_(source)
            return {}

        return launch

    replay = gpu.capture([bound()], 1)
    gc.collect()
    others = [torch.zeros(1 << 20, device=gpu.device) for _ in range(8)]
    replay.replay()
    gpu.synchronize()
    assert not any(bool(other.any()) for other in others)


def test_a_check_that_lets_torch_fail_where_it_is_right(gpu: CudaGpu) -> None:
    eager = baseline(EAGER)
    point = Point("layernorm", "bf16", 4096, 4096)
    sets = make_sets(point, gpu.device, 2, 1)
    expected = [check.expect(point, tensors.judged_inputs(), with_torch=True) for tensors in sets]
    trial = attempt(eager, {}, sets, expected, gpu)
    for index in (0, 1):
        verdict = trial.verify(index)
        assert verdict.ok
        assert verdict.bitwise_torch


def best_copy_us(gpu: CudaGpu, size: int) -> tuple[list[float], Observer]:
    """Median microseconds of our plain streams, then of torch's copy, each from and to tensors of ``size`` bytes."""
    torch = gpu.torch
    candidates = [v for v in variants("copy", gpu) if v["kind"] == "stream" and v["grid"] == 0 and v["block"] == 256]
    streams = Streams(gpu, [expression("copy", variant) for variant in candidates])
    sets = [[torch.ones(size // 4, device=gpu.device) for _ in range(2)] for _ in range(2)]
    launches = [[streams.bind("copy", v, (a, a, c, c), size) for a, c in sets] for v in candidates]
    launches.append([copy_of(a, c) for a, c in sets])
    replays = [gpu.capture(bound, 2) for bound in launches]
    observer = Observer(None, SmClock(streams))
    return [sorted(found)[5] for found in gpu.time_rounds(replays, [range(len(replays))] * 11, observer)], observer


def test_a_roof_below_the_library_copy(gpu: CudaGpu) -> None:
    """Our best stream is at least as fast as torch's copy of the same gigabyte, timed the same way."""
    medians, observer = best_copy_us(gpu, 1 << 29)
    assert min(medians[:-1]) <= 1.01 * medians[-1]
    clock = observer.summary()["sm_clock_gpu_mhz"]
    assert clock is not None
    assert 200 < clock < 5000


def test_a_rotation_that_stays_inside_l2(gpu: CudaGpu) -> None:
    """The sets of a small stream point are together at least four times as large as L2, and a graph visits them all."""
    point = Point("rmsnorm", "bf16", 1024, 4096)
    sets = buffer_sets(set_bytes(point), gpu.l2_bytes, "stream")
    assert sets * set_bytes(point) >= 4 * gpu.l2_bytes
    assert launches_a_sample(5.0, sets, "stream") % sets == 0


def median_us(gpu: CudaGpu, launches: Sequence[Launch]) -> float:
    replay = gpu.capture(launches, launches_a_sample(4.0, len(launches), "stream"))
    return sorted(gpu.time_rounds([replay], [[0]] * 11, Observer(None))[0])[5]


def test_a_buffer_that_stays_in_l2_passes_for_memory_bandwidth(gpu: CudaGpu) -> None:
    """16.8 MB a copy: over and over on one set it is faster than memory, which the gate calls an error; on the rotation
    of a stream point the same copy is not."""
    size = 1 << 23
    point = Point("rmsnorm", "fp32", 512, 4096)
    assert set_bytes(point) == 2 * size
    large = 1 << 29
    ceiling_gbps = 2 * large / min(best_copy_us(gpu, large)[0]) / 1e3
    count = buffer_sets(set_bytes(point), gpu.l2_bytes, "stream")
    pairs = [[gpu.torch.ones(size // 4, device=gpu.device) for _ in range(2)] for _ in range(count)]
    launches = [copy_of(source, target) for source, target in pairs]

    resident, rotated = median_us(gpu, launches[:1]), median_us(gpu, launches)

    assert timing.over_roof(2 * size, resident, ceiling_gbps) is not None, (resident, ceiling_gbps)
    assert timing.over_roof(2 * size, rotated, ceiling_gbps) is None, (rotated, ceiling_gbps)


@pytest.mark.parametrize("regime", ["stream", "l2", "latency"])
def test_a_graph_that_leaves_out_a_buffer_set(gpu: CudaGpu, regime: str) -> None:
    """As many launches as sets or more, and every set's output is written by a replay."""
    point = Point("rmsnorm", "bf16", 256, 4096, regime)
    sets = make_sets(point, gpu.device, buffer_sets(set_bytes(point), gpu.l2_bytes, regime), 1)
    expected = [check.expect(point, tensors.judged_inputs()) for tensors in sets[:2]]
    copy = baseline(ROOT / "kernels" / "baselines" / "copy.py")

    replay = attempt(copy, {}, sets, expected, gpu).replay
    for tensors in sets:
        tensors.poison()
    gpu.synchronize()
    replay.replay()
    gpu.synchronize()

    assert replay.launches >= len(sets) == len(replay.outputs) >= 2
    assert replay.launches % len(sets) == 0
    assert all(bool((one.inputs["x"] == one.outputs()["y"]).all()) for one in sets)  # type: ignore[union-attr]
    assert len({one.outputs()["y"].data_ptr() for one in sets}) == len(sets)


class Heard:
    """A worker's way back, for what runs in this process."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def begin(self, *units: Any) -> None:
        pass

    def finish(self, *units: tuple[str, str, dict[str, Any]]) -> None:
        self.rows += [row for _, _, row in units]

    def tick(self, text: str) -> None:
        pass


def session(gpu: CudaGpu, **task: Any) -> Any:
    facts = {"device": "this-gpu", "sources": "abcdefg", "done": {}, "suspects": []}
    study = {"tune_samples": 5, "race_ms": 20.0, "block": BLOCKS, "timeout_s": 60.0}
    return auditing.Session({**facts, "study": study, **task}, gpu, None, Heard())  # type: ignore[arg-type]


def test_a_twin_on_the_buffers_of_its_original(
    gpu: CudaGpu, contenders: Contenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The A/A pair of a race shares neither inputs nor outputs, and both have a time."""
    point = Point("rmsnorm", "bf16", 1024, 4096)
    variant = contenders["naive"].variants(point, gpu, BLOCKS)[0]
    entry = {"spec": "naive", "variant": variant, "unit": "naive"}
    told = session(gpu, points=[point.identity()], entries={point.key: [entry]})
    places: list[set[int]] = []
    race, go = racing.Race(told, dict(contenders), Streams(gpu), point, 1), racing.Race._race

    def watched(self: Any, starters: list[Any], *rest: Any) -> None:
        for trial in (runner.trial for runner in starters):
            places.append({one.get(name).data_ptr() for one in trial.sets for name in ("x", "gamma", "y")})
        go(self, starters, *rest)

    monkeypatch.setattr(racing.Race, "_race", watched)
    race.run()

    assert len(places) == 2
    assert places[0].isdisjoint(places[1])
    assert {row["contender"]: row["status"] for row in told.channel.rows} == {
        "naive": "ok",
        f"naive{schema.TWIN}": "ok",
    }


# mutants: what the checks are for


@pytest.fixture(scope="module")
def mutant(gpu: CudaGpu, tmp_path_factory: pytest.TempPathFactory) -> CudaKernel:
    """Every mutant, and the right kernel they are mutants of, compiled for this GPU."""
    folder = tmp_path_factory.mktemp("mutants")
    assert compile.compile_kernel(mutants.mutants(), gpu.arch, [mutants.BLOCK], folder / "mutants") is None
    return CudaKernel(mutants.mutants(), folder / "mutants.json")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("fault", [0, *mutants.FAULTS], ids=["right", *mutants.FAULTS.values()])
def test_a_mutant_that_gets_a_time(gpu: CudaGpu, mutant: CudaKernel, fault: int, dtype: str) -> None:
    point = mutants.point(dtype)
    sets = make_sets(point, gpu.device, 2, 1)
    for tensors in sets:
        mutants.prepare(tensors.inputs["x"], fault)
    expected = [check.expect(point, tensors.judged_inputs()) for tensors in sets]

    trial = attempt(mutant, {"block": mutants.BLOCK, "fault": fault}, sets, expected, gpu)

    if fault == 0:
        assert trial.verify(0).ok
        assert trial.verify(1).ok
        return
    with pytest.raises(Failure) as rejected:
        trial.verify(0)
    assert rejected.value.status in ("wrong", "no_work")


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("tamper", mutants.LAUNCH_FAULTS)
def test_a_launch_that_only_looks_like_work(gpu: CudaGpu, mutant: CudaKernel, tamper: Any) -> None:
    """A measurement checks one buffer set before its samples and another one after them."""
    point = mutants.point("fp32")
    sets = make_sets(point, gpu.device, 2, 1)
    expected = [check.expect(point, tensors.judged_inputs()) for tensors in sets]
    contender: Any = mutants.Wrapped(mutant, tamper)

    with pytest.raises(Failure) as rejected:  # noqa: PT012 - whichever check sees it
        trial = attempt(contender, {"block": mutants.BLOCK, "fault": 0}, sets, expected, gpu)
        trial.verify(0)
        trial.verify(1)
    gpu.synchronize()
    assert rejected.value.status in ("wrong", "no_work", "launch_error")


@pytest.mark.parametrize("waits", [True, False])
def test_a_launch_that_reads_before_the_one_before_it_has_ended(gpu: CudaGpu, waits: bool, tmp_path: Path) -> None:
    """Launches may overlap from sm_90 on; the kernel that asks for it, and the same without its wait."""
    if gpu.arch < overlap.FIRST_ARCH:
        pytest.skip("launches do not overlap here")
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels")
    path = tmp_path / "kernels" / "forward" / "few_rows.cu"
    path.write_text(path.read_text().replace("    await_previous();\n", "    await_previous();\n" if waits else ""))
    kernel = kernelfile.load(path)
    assert compile.compile_kernel(kernel, gpu.arch, [256], tmp_path / "few_rows") is None
    contender = CudaKernel(kernel, tmp_path / "few_rows.json")
    point = Point("add_rmsnorm", "bf16", 16, 4096, "latency")
    sets = make_sets(point, gpu.device, 2, 1)
    expected = [check.expect(point, tensors.judged_inputs()) for tensors in sets]
    variants = contender.variants(point, gpu, [256])
    assert {variant["pdl"] for variant in variants} == {0, 1}
    for variant in variants:
        if waits or not variant["pdl"]:
            trial = attempt(contender, variant, sets, expected, gpu)
            assert trial.verify(0).ok
            assert trial.verify(1).ok
        else:
            with pytest.raises(Failure, match="before the launch before it has ended"):
                attempt(contender, variant, sets, expected, gpu)


def test_overlapping_launches_that_each_take_what_the_one_before_made(gpu: CudaGpu, contenders: Contenders) -> None:
    """A chain of launches between two tensors, bit for bit as without overlap."""
    torch = gpu.torch
    contender: Any = contenders["few_rows"]
    point = Point("layernorm", "bf16", 128, 4096, "latency")
    found = {}
    for pdl in (0, 1) if gpu.arch >= overlap.FIRST_ARCH else (0,):
        (there,) = make_sets(point, gpu.device, 1, 1)
        x: Any = there.inputs["x"]
        back = Tensors(point, there.inputs | {"x": there.outputs()["y"]}, {"y": Guarded(x, x)})
        variant = next(one for one in contender.variants(point, gpu, BLOCKS) if one["pdl"] == pdl)
        replay = gpu.capture([contender.bind(tensors, variant, gpu) for tensors in (there, back)], 64)
        x.copy_(torch.linspace(-3, 5, 128 * 4096, device=gpu.device).view(128, 4096))
        gpu.synchronize()
        replay.replay()
        gpu.synchronize()
        found[pdl] = x.clone()
    assert all(torch.equal(found[0], other) for other in found.values())


# other people's tools


@pytest.mark.slow
@pytest.mark.skipif(not tools.present("compute-sanitizer"), reason="no compute-sanitizer here")
def test_a_planted_fault_that_compute_sanitizer_does_not_find(gpu: CudaGpu) -> None:
    """A fault for each tool: a write past the end, a race, a read of what nobody wrote, a barrier of half a warp."""
    found = sanitize.sanitize(sanitize.Subject(mutants.planted(), gpu.arch, gpu.sm_count, [128], environment()))

    rows = {row["tool"]: row for row in found}
    if rows["memcheck"]["status"] == "skipped":
        pytest.skip(rows["memcheck"]["reason"])
    assert {check: row["status"] for check, row in rows.items()} == dict.fromkeys(sanitizer.CHECKS, "findings")
    assert all("planted.cu:" in row["finding"] for row in found), found


@pytest.mark.slow
@pytest.mark.skipif(not tools.present("compute-sanitizer"), reason="no compute-sanitizer here")
@pytest.mark.parametrize("stem", ["naive", "triton_row"])
def test_a_clean_kernel_with_findings(gpu: CudaGpu, stem: str) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.stem == stem)

    found = sanitize.sanitize(sanitize.Subject(kernel, gpu.arch, gpu.sm_count, [256], environment()))

    if found[0]["status"] == "skipped":
        pytest.skip(found[0]["reason"])
    assert [(row["tool"], row["status"], row["reason"]) for row in found] == [
        (check, "ok", None) for check in sanitizer.CHECKS
    ]


@pytest.mark.slow
@pytest.mark.skipif(not tools.present("ncu"), reason="no ncu here")
def test_a_profile_whose_bytes_are_not_the_kernels(gpu: CudaGpu) -> None:
    """``naive`` at a size that is read once from memory and again from L2: about its compulsory bytes, 2-byte loads."""
    kernel = next(kernel for kernel in KERNELS if kernel.stem == "naive")
    point = Point("rmsnorm", "bf16", 8192, 4096)

    found = profile.profile(kernel, point, {"block": 256}, (gpu.arch, gpu.sm_count), environment())

    if found["status"] == "skipped":
        pytest.skip(found["reason"])
    assert found["status"] == "ok", found["reason"]
    moved = inspections.traffic(found)
    assert moved is not None
    assert 0.7 < moved / (2 * 8192 * 4096 * 2) < 1.3
    assert found["kernels"] == 1
    assert found["registers"] > 0
    assert found["stall"] in inspections.STALLS
    assert "2 B x" in (found["loads"] or "2 B x")


def test_a_timer_that_says_something_else_of_the_same_launches(
    gpu: CudaGpu, contenders: Contenders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """do_bench, and NVBench where it is installed, within 5 % of us on launches of more than 50 us."""
    point = Point("layernorm", "bf16", 2**27 // 4096, 4096)
    naive: Any = contenders["naive"]
    specs = [{"spec": "naive", "build": None}, {"spec": str(EAGER), "build": None}]
    entries = [
        {"point": point.identity(), "spec": "naive", "variant": {"block": 256}, "unit": "naive"},
        {"point": point.identity(), "spec": str(EAGER), "variant": {}, "unit": "eager"},
    ]
    monkeypatch.setattr(auditing, "load", lambda spec, build: naive if spec == "naive" else baseline(spec))
    told = session(gpu, contenders=specs, entries=entries)

    auditing.run(told)

    harness.write(told.channel.rows, schema.AUDIT, tmp_path / "audit.parquet")
    frame = schema.read(tmp_path / "audit.parquet", schema.AUDIT)
    assert frame.height == 2 * len(inspections.METHODS)
    timed = frame.filter(pl.col("status") == "ok")
    assert {"normbench", "do_bench"} <= set(timed["method"]), frame["reason"].to_list()
    skipped = frame.filter(pl.col("status") != "ok")["reason"].unique().to_list()
    assert skipped in ([], [auditing.ABSENT])
    assert inspections.deviations(frame)["deviation"].abs().max() < 0.05, inspections.conclusion(frame)  # type: ignore[operator]


def environment() -> dict[str, str]:
    """Of a program under a tool: this process's, which sees the GPU that these tests use."""
    return worker_environment({}) | sanitize.EXACT
