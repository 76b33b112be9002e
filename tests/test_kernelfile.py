"""The header of a kernel file: what is refused, by which words, and what its expressions may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normbench import kernelfile
from normbench.kernelfile import KernelError
from normbench.points import Point, Semantics

HEADER = """\
summary = "s"
ops = ["layernorm", "rmsnorm"]
dtypes = ["fp32", "bf16"]
where = ["vec == 1 or aligned >= 16", "vec * x_bytes <= 16"]
skip = [{when = "hidden > 65536", reason = "rows of 65536 elements at most"}]
[axes]
block = "study"
vec = [1, 4, 8]
[scratch]
partial = "rows * 8"
[[launches]]
name = "norm<{T}, {W}, {NORM}, {block}, {vec}>"
grid = "cdiv(rows, 4)"
block = ["block", 1, 1]
smem = "hidden * 4"
args = ["x", "gamma", "beta", "y", "partial", "rows", "hidden", "vec", "eps"]
"""

REDUCING = """\
[[launches]]
name = "sums<{W}>"
part = "reduction"
grid = "cdiv(hidden, 32) if vec > 1 else 0"
block = "block"
args = ["partial", "dgamma", "hidden"]
"""


def written(folder: Path, header: str = HEADER, name: str = "kernel.cu", rest: str = "") -> Path:
    mark = "//" if name.endswith(".cu") else "#"
    lines = ["/// kernel", *header.splitlines(), "///"]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(f"{mark} {line}".rstrip() for line in lines) + "\n" + rest)
    return path


def names(hidden: int = 4096, dtype: str = "fp32", op: str = "layernorm", aligned: int = 16) -> dict[str, Any]:
    return kernelfile.launch_names(Point(op, dtype, 10, hidden), 90, 132, aligned)


# what is refused


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('summary = "s"', "", "key 'summary' is missing"),
        ("ops =", "opps =", "unknown key 'opps'; known: axes,"),
        ("smem =", "shared =", "unknown key launches.'shared'"),
        ('grid = "cdiv(rows, 4)"\n', "", "key 'launches.grid' is missing"),
        ('smem = "hidden * 4"', 'part = "sums"', "unknown launches.part 'sums'; known: reduction"),
        (
            'smem = "hidden * 4"',
            'part = "reduction"',
            "launches of the part 'reduction' come last, after one that is none",
        ),
        ("[[launches]]", REDUCING + "[[launches]]", "launches of the part 'reduction' come last"),
        ('"vec == 1 or aligned >= 16"', '"vec = 1"', "bad expression 'vec = 1'"),
        ('"hidden > 65536"', '"hidden >"', "bad expression 'hidden >'"),
        ('"rows * 8"', '"open(1)"', "unknown function in 'open(1)'"),
        ('"rows * 8"', '"rows.real"', "Attribute is not allowed in 'rows.real'"),
        ('"rows * 8"', '"[rows for rows in (1, 2)]"', "ListComp is not allowed"),
        ('"rows * 8"', '"(lambda: 1)()"', "unknown function in"),
        ('"rows * 8"', '"min(rows, lambda: 1)"', "Lambda is not allowed"),
        ('"partial"', '"partail"', "unknown argument 'partail' in launches.args"),
        ("vec = [1, 4, 8]", "vec = [1, 4", "line"),
    ],
)
def test_a_bad_header_names_the_file_and_the_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in HEADER
    path = written(tmp_path, HEADER.replace(old, new, 1))

    with pytest.raises(KernelError) as refused:
        kernelfile.load(path)

    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_bad_toml_names_the_line_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'summary = "s"\nops = [layernorm]\n')

    with pytest.raises(KernelError, match="line 3,"):
        kernelfile.load(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("kernel.cu", "__global__ void f() {}", "no '/// kernel' block at its top"),
        ("kernel.cu", "// /// kernel\n// summary = 's'\n", "no '/// kernel' block at its top"),
        ("kernel.txt", "", "a kernel file ends in .cu or .py"),
    ],
)
def test_a_file_that_is_no_kernel_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(KernelError, match=message):
        kernelfile.load(tmp_path / name)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="No such file"):
        kernelfile.load(tmp_path / "kernel.cu")


def test_cuda_needs_a_launch_and_triton_does_not(tmp_path: Path) -> None:
    header = HEADER.partition("[[launches]]")[0]

    with pytest.raises(KernelError, match=r"at least one \[\[launches\]\]"):
        kernelfile.load(written(tmp_path, header))
    assert kernelfile.load(written(tmp_path, header, "kernel.py")).lang == "triton"


# what it says


def test_the_card_is_the_prose_below_the_header(tmp_path: Path) -> None:
    path = written(tmp_path, rest="// A block a row.\n//\n// Numerics: fp32.\n\n// not the card\n")

    assert kernelfile.load(path).card == "A block a row.\n\nNumerics: fp32."


def test_clauses_that_cannot_be_decided_yet_keep_a_variant(tmp_path: Path) -> None:
    kernel = kernelfile.load(written(tmp_path))

    compiling = kernel.variants([64], kernelfile.compile_names("layernorm", "fp32", "fp32", 90))
    launching = kernel.variants([64], names(aligned=8))

    assert [variant["vec"] for variant in compiling] == [1, 4]  # 8 fp32 are more than 16 bytes, whatever the rows
    assert [variant["vec"] for variant in launching] == [1]


def test_blocks_come_from_the_study_in_its_order(tmp_path: Path) -> None:
    kernel = kernelfile.load(written(tmp_path))

    found = kernel.variants([256, 64], names())

    assert [tuple(variant.values()) for variant in found] == [(256, 1), (256, 4), (64, 1), (64, 4)]


ABLE = HEADER.replace("{vec}>", "{vec}, {GAMMA}>")


@pytest.mark.parametrize(
    ("dtype", "semantics", "flag"),
    [
        ("bf16", Semantics(), 0),
        ("bf16", Semantics(cast="llama"), 1),
        ("bf16", Semantics(offset=1.0), 2),
        ("bf16", Semantics(cast="llama", offset=1.0), 3),
        ("bf16", Semantics(cast="llama", offset=1.0, gamma=False), 1),
        ("fp32", Semantics(cast="llama"), 0),  # nothing to round
    ],
)
def test_a_cast_order_or_an_offset_that_a_kernel_does_not_know_is_refused(
    dtype: str, semantics: Semantics, flag: int, tmp_path: Path
) -> None:
    found = kernelfile.launch_names(Point("rmsnorm", dtype, 10, 64, semantics=semantics), 90, 132, 16)

    assert found["GAMMA"] == flag
    assert bool(kernelfile.load(written(tmp_path)).refusal(found)) == bool(flag)
    assert kernelfile.load(written(tmp_path, ABLE)).refusal(found) is None


def test_cast_orders_and_offsets_are_compiled_where_they_are_asked_for_and_differ(tmp_path: Path) -> None:
    asked = kernelfile.Modes.of(Semantics(cast="llama", offset=1.0))

    def compiled(header: str) -> set[tuple[str, str, int]]:
        kernel = kernelfile.load(written(tmp_path, header))
        return {(one["op"], one["dtype"], one["GAMMA"]) for one in kernel.compilations([64], 90, asked)}

    plain = {(op, dtype, 0) for op in ("layernorm", "rmsnorm") for dtype in ("fp32", "bf16")}
    assert compiled(HEADER) == plain
    assert compiled(ABLE) == plain | {("layernorm", "fp32", 2), ("layernorm", "bf16", 2)} | {
        ("rmsnorm", "fp32", 2),
        ("rmsnorm", "bf16", 1),  # for work without gamma
        ("rmsnorm", "bf16", 3),
    }


def test_a_residual_mode_is_compiled_where_it_is_asked_for_and_differs(tmp_path: Path) -> None:
    header = HEADER.replace('ops = ["layernorm", "rmsnorm"]', 'ops = ["layernorm", "add_layernorm"]')
    assert header != HEADER
    kernel = kernelfile.load(written(tmp_path, header))

    def compiled(semantics: Semantics) -> set[tuple[str, str, int]]:
        found = kernel.compilations([64], 90, kernelfile.Modes.of(semantics))
        return {(one["op"], one["dtype"], one["ADD"]) for one in found}

    plain = {(op, dtype, int(op != "layernorm")) for op in kernel.ops for dtype in kernel.dtypes}
    assert compiled(Semantics()) == plain
    assert compiled(Semantics(residual="round")) == plain | {("add_layernorm", "bf16", 2)}
    for mode, flag in (("fp32", 1), ("round", 2)):
        point = Point("add_layernorm", "bf16", 10, 64, semantics=Semantics(residual=mode))
        assert kernelfile.launch_names(point, 90, 132, 16)["ADD"] == flag


def test_a_launch_may_overlap_by_an_axis(tmp_path: Path) -> None:
    kernel = kernelfile.load(written(tmp_path, HEADER.replace('smem = "hidden * 4"', 'pdl = "vec > 1"')))

    (launch,) = kernel.launches
    assert [kernelfile.evaluate(launch.pdl, {"vec": vec}) for vec in (1, 4)] == [False, True]


def test_a_reduction_is_one_where_it_is_launched(tmp_path: Path) -> None:
    reducing, plain = (kernelfile.load(written(tmp_path, header)) for header in (HEADER + REDUCING, HEADER))

    assert (reducing.parted, plain.parted) == (True, False)
    assert [reducing.reduces({"hidden": 64, "vec": vec}) for vec in (4, 1)] == [True, False]
    assert not plain.reduces({"hidden": 64, "vec": 4})


def test_a_triton_kernel_has_a_reduction_where_it_asks_whether_to_reduce(tmp_path: Path) -> None:
    header = HEADER.partition("[[launches]]")[0]
    asking, silent = ("def launch(t):\n    if t.reduces:\n        pass\n", "def launch(t):\n    pass\n")

    assert [kernelfile.load(written(tmp_path, header, "kernel.py", rest)).parted for rest in (asking, silent)] == [
        True,
        False,
    ]


def test_everything_launched_was_compiled(tmp_path: Path) -> None:
    """Both parameter types of a 16-bit kernel; one of an fp32 one."""
    kernel = kernelfile.load(written(tmp_path))
    blocks = [64, 128]

    compiled = {kernel.launches[0].symbol(entry) for entry in kernel.compilations(blocks, 90)}

    assert {symbol.split(",")[0] + symbol.split(",")[1] for symbol in compiled} == {
        "norm<float float",
        "norm<__nv_bfloat16 __nv_bfloat16",
        "norm<__nv_bfloat16 float",
    }
    for op, dtype, param in (("layernorm", "fp32", None), ("rmsnorm", "bf16", "fp32"), ("layernorm", "bf16", None)):
        point = Point(op, dtype, 10, 4096, "stream", Semantics(param_dtype=param))
        known = kernelfile.launch_names(point, 90, 132, 16)
        for variant in kernel.variants(blocks, known):
            assert kernel.launches[0].symbol(known | variant) in compiled


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (names(), None),
        (names(hidden=65537), "rows of 65536 elements at most"),
        (names(dtype="fp16"), "kernel serves fp32, bf16, not fp16"),
        (names() | {"op": "softmax"}, "kernel serves layernorm, rmsnorm, not softmax"),
    ],
)
def test_a_refusal_says_why(tmp_path: Path, known: dict[str, Any], reason: str | None) -> None:
    assert kernelfile.load(written(tmp_path)).refusal(known) == reason


@pytest.mark.parametrize(
    ("point", "aligned"),
    [
        (Point("layernorm", "fp32", 1, 4096), 16),
        (Point("layernorm", "fp32", 1, 1023), 4),
        (Point("layernorm", "bf16", 1, 1023), 2),
        (Point("layernorm", "fp16", 1, 1028), 8),
        (Point("layernorm", "fp16", 1, 1024, "stream", Semantics(row_stride=1026)), 4),
    ],
)
def test_the_row_pitch_decides_the_alignment(point: Point, aligned: int) -> None:
    """K12."""
    assert kernelfile.pitch_alignment(point) == aligned


def test_expressions_are_numbers_and_nothing_else() -> None:
    assert kernelfile.evaluate("min(cdiv(rows, 4), 2 * sm_count) if rows else 0", {"rows": 9, "sm_count": 132}) == 3
    assert kernelfile.evaluate(7, {}) == 7
    with pytest.raises(kernelfile.Unknown, match="hidden in 'hidden \\+ 1'"):
        kernelfile.evaluate("hidden + 1", {})


# what changes it


def test_a_header_it_includes_changes_the_kernel(tmp_path: Path) -> None:
    """P2."""
    path = written(tmp_path / "forward", rest='#include "common/a.cuh"\n')
    common = tmp_path / "common"
    common.mkdir()
    (common / "a.cuh").write_text('#include "common/b.cuh"\n')
    (common / "b.cuh").write_text("// b\n")
    (common / "c.cuh").write_text("// c\n")
    before = kernelfile.load(path).sha

    (common / "c.cuh").write_text("// another c\n")
    unrelated = kernelfile.load(path).sha
    (common / "b.cuh").write_text("// another b\n")

    assert unrelated == before
    assert kernelfile.load(path).sha != before
    assert kernelfile.included(path) == [common / "a.cuh", common / "b.cuh"]


def test_a_launch_without_blocks_is_left_out(tmp_path: Path) -> None:
    second = '[[launches]]\nname = "sums"\ngrid = "0 if hidden < 100 else 7"\nblock = "32"\n'
    kernel = kernelfile.load(written(tmp_path, HEADER + second))

    assert [launch.name for launch in kernel.wanted(names(hidden=64))] == [kernel.launches[0].name]
    assert [launch.name for launch in kernel.wanted(names(hidden=128))] == [kernel.launches[0].name, "sums"]


def test_two_kernels_may_not_share_a_stem(tmp_path: Path) -> None:
    written(tmp_path / "forward")
    written(tmp_path / "other")

    with pytest.raises(KernelError, match="the stem kernel is taken by"):
        kernelfile.find(tmp_path)


def test_baselines_and_plain_sources_are_no_kernels(tmp_path: Path) -> None:
    written(tmp_path / "forward")
    written(tmp_path / "baselines", name="liger.py")
    (tmp_path / "forward" / "helper.py").write_text("x = 1\n")

    assert [kernel.stem for kernel in kernelfile.find(tmp_path)] == ["kernel"]


@pytest.mark.parametrize(
    ("work", "resident", "multiple", "workers"),
    [(8192, 264, 1, 256), (8192, 264, 8, 256), (65504, 1320, 8, 1312), (9, 132, 1, 9), (1, 132, 8, 8), (5, 1, 8, 8)],
)
def test_some_blocks_work_alone_in_the_end(work: int, resident: int, multiple: int, workers: int) -> None:
    assert kernelfile.even(work, resident, multiple) == workers
    rounds = -(-work // workers)
    assert rounds == -(-work // (max(resident // multiple, 1) * multiple)), "more rounds than all of them would need"
