"""Every CUDA kernel compiled for every architecture, and what compiling says of them; no GPU, no driver."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from filelock import FileLock

from normbench import compile as verb
from normbench import cubin, kernelfile, nvrtc, ptxas, schema
from normbench.config import Study
from normbench.points import Point, Semantics
from planted_fixture import planted

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = Study().block
ARCHS = Study().archs
KERNELS = [kernel for kernel in kernelfile.find(ROOT / "kernels") if kernel.lang == "cuda"]
STEMS = [kernel.stem for kernel in KERNELS]
# backward kernels take as long as all others together, and are compiled for the ends of the list and what is published
FEW_ARCHS = (min(ARCHS), 90, max(ARCHS))
BUILDS = [
    (kernel.stem, arch)
    for kernel in KERNELS
    for arch in ARCHS
    if kernel.path.parent.name != "backward" or arch in FEW_ARCHS
]
CTA_ROW = re.compile(
    r"cta_row<(?P<T>\w+), (?P<W>\w+), (?P<norm>\d), (?P<add>\d), "
    r"(?P<lanes>\d+), (?P<vecs>\d), (?P<vec>\d), (?P<gamma>\d)>"
)


def modes_of(arch: int) -> kernelfile.Modes:
    """The rarer residual mode too, for what is published."""
    return kernelfile.Modes.of(Semantics(residual="round" if arch == 90 else "fp32"))


@dataclass(frozen=True)
class Output:
    """What the verb wrote for one kernel and architecture."""

    error: str | None
    binary: bytes
    facts: dict[str, Any]
    rows: pl.DataFrame


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Output]:
    """All kernels for all architectures, two at a time (NVRTC releases the interpreter) and once for all processes."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    folder = tmp_path_factory.getbasetemp().parent / session if session else tmp_path_factory.mktemp("build")

    def one(job: tuple[kernelfile.Kernel, int]) -> tuple[tuple[str, int], Output]:
        kernel, arch = job
        out = folder / f"sm_{arch}" / kernel.stem
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.with_suffix(".lock")):
            if not out.with_suffix(".json").exists():
                verb.compile_kernel(kernel, arch, BLOCKS, out, modes_of(arch))
        return (kernel.stem, arch), read(out)

    # the long ones first, so that the two threads end together
    kernels = {kernel.stem: kernel for kernel in KERNELS}
    jobs = sorted(
        ((kernels[stem], arch) for stem, arch in BUILDS),
        key=lambda job: job[0].stem in ("naive", "welford", "naive_bwd"),
    )
    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(one, jobs))


def read(out: Path) -> Output:
    facts = json.loads(out.with_suffix(".json").read_text())
    return Output(
        facts.get("error"),
        out.with_suffix(".cubin").read_bytes(),
        facts,
        schema.read(out.with_suffix(".parquet"), schema.RESOURCES),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("stem", "arch"), BUILDS)
def test_every_variant_compiles_and_has_its_resources(
    stem: str, arch: int, outputs: dict[tuple[str, int], Output]
) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.stem == stem)
    output = outputs[stem, arch]
    assert output.error is None
    if not list(kernel.compilations(BLOCKS, arch)):
        assert output.rows.height == 0
        point = Point(kernel.ops[0], kernel.dtypes[0], 1024, 1024)
        assert kernel.refusal(kernelfile.launch_names(point, arch, 1, 16)), "nothing to launch, and nobody is told"
        return
    assert output.facts["log_tail"] == "", "a warning"
    assert output.facts["arch"] == f"sm_{arch}"
    wanted = {
        (names["op"], names["dtype"], names["param_dtype"], str(names["variant"]), launch.symbol(names))
        for names in kernel.compilations(BLOCKS, arch, modes_of(arch))
        for launch in kernel.launched(names)
    }
    assert output.rows.height == len(wanted)
    assert output.rows["status"].unique().to_list() == ["ok"]
    assert set(output.rows["symbol"]) == set(output.facts["lowered"])
    for column in ("registers", "spill_bytes", "smem_bytes", "blocks_per_sm", "occupancy", "compiler"):
        assert output.rows[column].null_count() == 0, column
    assert output.rows["blocks_per_sm"].min() >= 1, "a variant that can never be launched"  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("stem", STEMS)
def test_nothing_spills_on_the_architecture_of_the_published_study(
    stem: str, outputs: dict[tuple[str, int], Output]
) -> None:
    assert outputs[stem, 90].rows.filter(pl.col("spill_bytes") > 0).rows() == []


@pytest.mark.slow
@pytest.mark.parametrize(("stem", "arch"), BUILDS)
def test_nothing_spills_elsewhere_but_a_few_numbers_that_are_wanted_once_a_row(
    stem: str, arch: int, outputs: dict[tuple[str, int], Output]
) -> None:
    """Where the row takes the registers: wide_onepass, and cta_row with eight vectors, on architectures not timed."""
    spilled = outputs[stem, arch].rows.filter(pl.col("spill_bytes") > 0)
    assert spilled.filter(pl.col("spill_bytes") > 32).rows() == []
    if stem != "wide_onepass":
        names = [CTA_ROW.fullmatch(symbol) for symbol in spilled["symbol"].unique()]
        assert [name for name in names if name is None or name["vecs"] != "8"] == []


def nvdisasm() -> str | None:
    spec = find_spec("nvidia")
    roots = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    found = [path for root in roots for path in root.glob("*/bin/nvdisasm")]
    return str(found[0]) if found else shutil.which("nvdisasm")


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
def test_vector_variants_move_sixteen_bytes_and_scalar_ones_never(
    outputs: dict[tuple[str, int], Output], tmp_path: Path
) -> None:
    output = outputs["cta_row", 90]
    code = disassembled(output, tmp_path)
    for symbol, name in output.facts["lowered"].items():
        axes = CTA_ROW.fullmatch(symbol)
        assert axes is not None, symbol
        wide = [len(re.findall(rf"\b{move}\.E\.128\b", code[name])) for move in ("LDG", "STG")]
        if axes["vec"] == "1":
            assert wide == [0, 0], symbol
        else:  # all of x at least, and every store
            assert min(wide) >= int(axes["vecs"]), symbol
            assert not re.search(r"\bLDG\.E\.(U16|64|CONSTANT)\b", code[name]), symbol


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(("stem", "vecs"), [("span_row", 5), ("cluster_row", 4)])
def test_rows_of_any_offset_are_moved_sixteen_bytes_at_a_time(
    stem: str, vecs: int, outputs: dict[tuple[str, int], Output], tmp_path: Path
) -> None:
    """vecs: which template argument counts the vectors a thread."""
    output = outputs[stem, 90]
    code = disassembled(output, tmp_path)
    for symbol, name in output.facts["lowered"].items():
        if not symbol.startswith(stem):
            continue
        arguments = re.findall(r"\w+", symbol)[1:]
        tensors = 1 if arguments[3] == "0" else 2  # each way
        expected = int(arguments[vecs]) * tensors
        assert len(re.findall(r"\bLDG\.E\.NA\.128\.CONSTANT\b", code[name])) >= expected, symbol
        assert len(re.findall(r"\bSTG\.E\.128\b", code[name])) >= expected, symbol
        assert not re.search(r"\b(LDL|STL)\b", code[name]), f"{symbol} has arrays in local memory"


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(("stem", "vecs"), [("persistent_bwd", 4), ("cluster_bwd", 3)])
def test_rows_ahead_are_copied_sixteen_bytes_at_a_time_past_the_registers(
    stem: str, vecs: int, outputs: dict[tuple[str, int], Output], tmp_path: Path
) -> None:
    """vecs: which template argument counts the vectors a thread."""
    output = outputs[stem, 90]
    code = disassembled(output, tmp_path)
    for symbol, name in output.facts["lowered"].items():
        if not symbol.startswith(stem):
            continue
        arguments = re.findall(r"\w+", symbol)[1:]
        expected = int(arguments[vecs])
        bulk = arguments[-1] == "1"
        assert (len(re.findall(r"\bUBLKCP\b", code[name])) >= 2) == bulk, symbol
        assert (len(re.findall(r"\bLDGSTS\.E\.BYPASS\.128\b", code[name])) >= 2 * expected) != bulk, symbol
        assert len(re.findall(r"\bSTG\.E\.128\b", code[name])) >= expected, symbol
        assert not re.search(r"\b(LDL|STL)\b", code[name]), f"{symbol} has arrays in local memory"


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(("stem", "vecs"), [("channel_tile", [2]), ("short_row", [3, 4])])
def test_pixels_are_moved_sixteen_bytes_at_a_time(
    stem: str, vecs: list[int], outputs: dict[tuple[str, int], Output], tmp_path: Path
) -> None:
    """Stores that the compiler had split into words of 4 bytes; vecs: template arguments whose product is a thread's
    vectors."""
    output = outputs[stem, 90]
    code = disassembled(output, tmp_path)
    for symbol, name in output.facts["lowered"].items():
        arguments = re.findall(r"\w+", symbol)[1:]
        if stem == "channel_tile" and arguments[3] == "1":
            continue
        expected = math.prod(int(arguments[position]) for position in vecs)
        assert len(re.findall(r"\bLDG\.E\.NA\.128\.CONSTANT\b", code[name])) == expected, symbol
        assert len(re.findall(r"\bSTG\.E\.128\b", code[name])) >= expected, symbol
        # mean and rstd are words, of which the compiler writes some twice; a vector would be four more
        saved = 3 * int(arguments[4]) if stem == "short_row" and arguments[1] in "01" else 0
        assert len(re.findall(r"\bSTG\.E ", code[name])) <= saved, f"{symbol} stores less"
        assert not re.search(r"\b(STG\.E\.64|ST\.E\S*|LDL|STL) ", code[name]), f"{symbol} stores less"


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
def test_nothing_but_gamma_and_beta_is_touched_before_the_launch_before_has_ended(
    outputs: dict[tuple[str, int], Output], tmp_path: Path
) -> None:
    """The compiler may move loads of what it takes for constant over the wait; these are x's and the stores."""
    output = outputs["few_rows", 90]
    code = disassembled(output, tmp_path)
    for symbol, name in output.facts["lowered"].items():
        before, after = re.split(r"\bACQBULK\b", code[name])
        vecs = int(re.findall(r"\w+", symbol)[6])
        assert not re.search(r"\b(STG|LDG\.E(?!\S*\.CONSTANT))", before), symbol
        assert len(re.findall(r"\bLDG\.E\.128\.CONSTANT\b", before)) >= vecs, symbol
        assert len(re.findall(r"\bLDG\.E\.128(?!\.CONSTANT)", after)) >= vecs, symbol
        assert "PREEXIT" in before, symbol


@pytest.mark.slow
@pytest.mark.skipif(nvdisasm() is None, reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize(("stem", "arch"), [build for build in BUILDS if build[1] in (90, max(ARCHS))])
def test_what_is_said_to_l2_lies_in_a_pair_of_registers(
    stem: str, arch: int, outputs: dict[tuple[str, int], Output], tmp_path: Path
) -> None:
    """ptxas 13.0 put a policy into an odd uniform register, beside a copy whose address lies in others: to the GPU that
    is an illegal instruction."""
    output = outputs[stem, arch]
    for name, code in (disassembled(output, tmp_path) if output.rows.height else {}).items():
        assert not re.search(r"desc\[UR\d*[13579]\]", code), name


def disassembled(output: Output, folder: Path) -> dict[str, str]:
    """SASS by mangled name."""
    path = folder / "code.cubin"
    path.write_bytes(output.binary)
    text = subprocess.run([str(nvdisasm()), "-c", path], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^\.text\.(\S+):\n(.*?)(?=^\.text\.|\Z)", text, re.MULTILINE | re.DOTALL))


def test_log_and_cubin_that_disagree_are_an_error() -> None:
    built = nvrtc.build(ROOT / "kernels/forward/naive.cu", ["naive<float, float, 0, 0, 0>"], 90)
    assert verb.usages(built, 90)
    doctored = replace(built, log=re.sub(r"Used \d+ registers", "Used 99 registers", built.log))
    with pytest.raises(cubin.CubinError, match="99"):
        verb.usages(doctored, 90)
    with pytest.raises(cubin.CubinError, match="missing"):
        verb.usages(replace(built, log=""), 90)


def test_a_cubin_that_is_none_is_refused() -> None:
    with pytest.raises(cubin.CubinError, match="ELF"):
        cubin.parse(b"// not a cubin")


def test_spilled_bytes_are_read_from_the_log() -> None:
    log = """ptxas info    : Compiling entry function '_Z1kv' for 'sm_90'
ptxas info    : Function properties for _Z1kv
    24 bytes stack frame, 20 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 24 bytes cumulative stack size, 384 bytes smem
ptxas info    : Compile time = 12.345 ms
a.cu(3): warning #177-D: variable "x" was declared but never referenced"""
    assert ptxas.parse(log) == {"_Z1kv": ptxas.Usage(registers=64, stack_bytes=24, spill_bytes=32, smem_bytes=384)}
    assert ptxas.remarks(log) == 'a.cu(3): warning #177-D: variable "x" was declared but never referenced'


def kernel_with(folder: Path, old: str, new: str) -> Path:
    """A copy of the kernels in ``folder`` with ``old`` replaced by ``new`` in naive.cu."""
    return planted(folder, "forward/naive.cu", old, new) / "forward" / "naive.cu"


def test_a_kernel_with_an_error_is_rows_with_the_line_and_no_failed_job(
    tmp_path: Path, normbench: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path = kernel_with(tmp_path, "T* out = y + row * y_stride;", "T* out = y + row * pitch;")
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "pitch" in text)
    done = normbench(
        "compile", path, "--arch", "sm_90", "--block", "[64,128]", "--out", tmp_path / "out" / "naive.json"
    )
    assert done.returncode == 0, done.stderr
    output = read(tmp_path / "out" / "naive")
    assert output.binary == b""
    assert output.facts["error"] == f'naive.cu, line {line}: identifier "pitch" is undefined'
    assert output.rows["status"].unique().to_list() == ["compile_error"]
    assert output.rows["reason"].unique().to_list() == [output.facts["error"]]
    assert output.rows["registers"].null_count() == output.rows.height > 0


def test_the_first_useful_line_is_the_error_not_a_warning() -> None:
    log = '/a/b.cuh(7): warning #1-D: x\n\n/a/b.cuh(9): error: expected a ";"\n1 error detected in the compilation.'
    assert nvrtc.first_error(log) == 'b.cuh, line 9: expected a ";"'
    assert nvrtc.first_error("ptxas error   : Entry function 'k' uses too much shared data").startswith("ptxas error")
    assert nvrtc.first_error("") == "no message from NVRTC"


def test_a_malformed_header_is_named_with_its_line(tmp_path: Path) -> None:
    path = kernel_with(tmp_path, '// block = "study"', "// block = study")
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if text == "// block = study")
    with pytest.raises(kernelfile.KernelError, match=rf"naive\.cu.*line {line}\b"):
        kernelfile.load(path)


def test_the_same_source_gives_the_same_bytes_wherever_it_lies(
    tmp_path: Path, normbench: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    copy = kernel_with(tmp_path, "Known limits:", "Known limits:")
    built = []
    for path, name in ((ROOT / "kernels/forward/naive.cu", "here"), (copy, "there")):
        out = tmp_path / name / "naive"
        assert normbench("compile", path, "--arch", "90", "--block", "64", "128", "--out", out).returncode == 0
        built.append([out.with_suffix(suffix).read_bytes() for suffix in (".cubin", ".json", ".parquet")])
    assert built[0] == built[1]


def test_an_architecture_newer_than_nvrtc_becomes_ptx_for_the_driver(tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels/forward/naive.cu")
    assert verb.compile_kernel(kernel, 990, [128], tmp_path / "naive") is None
    output = read(tmp_path / "naive")
    assert (output.facts["format"], output.facts["jit"]) == ("ptx", True)
    newest = max(nvrtc._compiler()[1])
    assert output.facts["arch"] == f"compute_{newest}"
    assert f".target sm_{newest}".encode() in output.binary
    assert output.rows["status"].unique().to_list() == ["ok"]
    assert output.rows["registers"].null_count() == output.rows.height, "registers of code that does not exist yet"


def test_an_architecture_that_nvrtc_dropped_says_what_to_install() -> None:
    with pytest.raises(nvrtc.ToolchainError, match=r"not for sm_35; an older NVRTC"):
        nvrtc.build(ROOT / "kernels/forward/naive.cu", ["naive<float, float, 0, 0, 0>"], 35)


def test_missing_headers_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_header_folders", lambda major: iter([[Path("/nowhere")]]))
    nvrtc.include_paths.cache_clear()
    with pytest.raises(nvrtc.ToolchainError, match=r"cuda_fp16\.h.*pip install"):
        nvrtc.include_paths(13)
    nvrtc.include_paths.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch", "sm_90", "--block", "[48]"], "48 is no multiple of 32"),
        (["--arch", "hopper"], "'hopper' is no architecture such as 90 or sm_90"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, normbench: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = normbench("compile", ROOT / "kernels/forward/naive.cu", *arguments, "--out", tmp_path / "naive")
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
