"""``bench``, ``run`` and ``columns`` as a person types them, on the faked GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from measuring_fixture import COPY, EAGER, FACTS, ROOT, ROW, task, work_off
from normbench import cli, ops, schema
from normbench.points import Point, Semantics, short_hash

NAIVE = str(ROOT / "kernels" / "forward" / "naive.cu")
Gpu = Callable[..., None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpu:
    """``gpu(faults={...})`` changes the faked GPU; the working directory is an empty folder."""
    monkeypatch.chdir(tmp_path)

    def install(**facts: Any) -> None:
        own = {"uuid": f"GPU-{short_hash(str(tmp_path), 12)}"}  # whose lock no other test holds
        (tmp_path / "gpu.json").write_text(json.dumps(FACTS | own | facts))
        monkeypatch.setenv("NORMBENCH_FAKE_GPU", str(tmp_path / "gpu.json"))

    install()
    monkeypatch.setenv("COLUMNS", "200")
    return install


def bench(*arguments: str) -> int:
    return cli.main(["bench", *arguments, "--dtype", "fp32", "--rows", "256", "--hidden", "512"])


# bench


def test_bench_compiles_checks_and_times_a_cuda_kernel(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(NAIVE, "--op", "rmsnorm", "--block", "64", "128") == 0

    printed = capsys.readouterr().out
    assert "rmsnorm fp32 256 x 512 (stream)" in printed
    for contender in ("naive", "naive__twin", "torch_eager", "copy"):
        assert f" {contender} " in printed
    assert '{"block":' in printed
    assert "quotable" in printed


def test_bench_of_a_wrong_contender_has_no_time_and_exits_with_1(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu(faults={"triton_row": "wrong"})

    assert bench(ROW, "--op", "layernorm") == 1

    printed = capsys.readouterr()
    assert "triton_row" in printed.out
    assert "quotable" not in printed.out
    assert "elements outside the tolerance" in printed.err


def test_bench_is_about_the_contender_and_not_about_a_baseline(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    """What fails before the race is known first."""
    gpu(faults={"torch_eager": "absent"})

    assert bench(ROW, "--op", "layernorm") == 0

    rows = [line for line in capsys.readouterr().out.splitlines() if " ok" in line or "skipped" in line]
    assert "triton_row" in rows[0]
    assert any("skipped: not installed (planted)" in row for row in rows)


def test_bench_of_one_variant_times_that_variant(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(ROW, "--op", "layernorm", "--variant", '{"num_warps": 2}') == 0

    assert '{"num_warps":2}' in capsys.readouterr().out


def test_bench_takes_a_function_from_outside(gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def my_norm(t):\n    return lambda: {'y': t.y}\n")

    assert bench("mine:my_norm", "--op", "layernorm") == 0

    assert " my_norm " in capsys.readouterr().out


def test_bench_survives_a_contender_that_breaks_its_process(gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu(faults={"triton_row": "crash"})

    assert bench(ROW, "--op", "layernorm", "--variant", '{"num_warps": 2}') == 1

    assert "SIGSEGV" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.cu",), "nowhere.cu: No such file or directory"),
        ((NAIVE, "--hidden", "0"), "hidden: 0 is not"),
        ((NAIVE, "--hidden", "16777217"), "hidden: 16777217 is not"),
        ((NAIVE, "--rows", "-1"), "rows: -1 is not"),
        ((NAIVE, "--block", "100"), "block: 100 is not"),
        ((NAIVE, "--semantics", '{"epsilon": 1}'), "semantics: unknown key 'epsilon'"),
        ((NAIVE, "--semantics", "eps"), "semantics: 'eps' is neither 'default' nor a JSON object"),
        ((NAIVE, "--semantics", "[1]"), "semantics: '[1]' is neither"),
        ((NAIVE, "--device", "another"), "another"),
    ],
)
def test_bench_refuses_in_one_sentence(
    gpu: Gpu, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert cli.main(["bench", "--op", "layernorm", "--hidden", "512", *arguments]) == 1

    printed = capsys.readouterr().err
    assert printed.startswith("normbench bench: ")
    assert sentence in printed
    assert printed.count("\n") == 1


def test_bench_of_a_kernel_that_does_not_compile_names_the_line(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(NAIVE).read_text()
    broken = tmp_path / "forward" / "broken.cu"
    broken.parent.mkdir()
    broken.write_text(text + "\n__global__ void broken() { undeclared(); }\n")
    (tmp_path / "common").symlink_to(ROOT / "kernels" / "common")

    assert bench(str(broken), "--op", "layernorm", "--block", "64") == 1

    assert 'identifier "undeclared" is undefined' in capsys.readouterr().err


def test_without_a_gpu_bench_says_where_to_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NORMBENCH_FAKE_GPU", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert bench(NAIVE, "--op", "layernorm") == 1

    assert "`normbench doctor` says what is missing" in capsys.readouterr().err


# run


def normalised(folder: Path, spec: str = ROW, op: str = "layernorm", semantics: str = "default", **arrays: Any) -> Any:
    """(row, arrays) of the worker's side, in this process."""
    numpy.savez(folder / "in.npz", **arrays)
    paths = {"input": str(folder / "in.npz"), "output": str(folder / "out.npz")}
    told = task("run", spec=spec, build=None, op=op, semantics=semantics, variant=None, **paths)
    [row] = work_off(told).rows
    return row, dict(numpy.load(folder / "out.npz")) if (folder / "out.npz").exists() else {}


X = numpy.random.default_rng(5).normal(size=(6, 40)).astype("float32")
GAMMA, BETA = X[0] * 2, X[1]


def expected(op: str = "layernorm", dtype: str = "fp32", **semantics: Any) -> dict[str, torch.Tensor]:
    kind = ops.torch_dtype(dtype)
    tensors = {name: torch.from_numpy(value).to(kind) for name, value in (("x", X), ("gamma", GAMMA), ("beta", BETA))}
    if op == "rmsnorm":
        tensors.pop("beta")
    return ops.reference(Point(op, dtype, 6, 40, "stream", Semantics(**semantics)), tensors)  # type: ignore[arg-type]


def test_run_takes_arrays_and_gives_arrays(gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: command line, worker, files."""
    numpy.savez(tmp_path / "in.npz", x=X, gamma=GAMMA, beta=BETA, eps=numpy.float32(1e-3))
    files = ("--input", "in.npz", "--output", "out.npz", "--semantics", '{"stats":true}')

    assert cli.main(["run", ROW, "--op", "layernorm", *files]) == 0

    assert capsys.readouterr().out == "out.npz: mean, rstd, y\n"
    found, exact = numpy.load(tmp_path / "out.npz"), expected(eps=1e-3)
    assert {name: found[name].shape for name in found.files} == {"y": (6, 40), "mean": (6,), "rstd": (6,)}
    for name in found.files:
        assert found[name].dtype == numpy.float32
        numpy.testing.assert_allclose(found[name], exact[name], rtol=1e-6, atol=1e-7)


def bits(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    return torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()


def test_bf16_travels_as_its_bits(tmp_path: Path) -> None:
    row, found = normalised(tmp_path, op="rmsnorm", x=bits(X), gamma=bits(GAMMA))

    assert row["status"] == "ok", row
    assert found["y"].dtype == numpy.uint16
    right = expected("rmsnorm", "bf16")["y"].bfloat16().view(torch.uint16).numpy()
    assert numpy.array_equal(found["y"], right)


def test_fp16_with_fp32_parameters(tmp_path: Path) -> None:
    """K15."""
    gamma = numpy.array([1, 1e5, 1e5, 1], "float32")
    x = numpy.array([[1, 2, 3, 4]], "float16")

    row, found = normalised(tmp_path, x=x, gamma=gamma, beta=numpy.zeros(4, "float32"))

    assert row["status"] == "ok", row
    assert found["y"].tolist() == numpy.array([[-1.3418, -44736, 44736, 1.3418]], "float16").tolist()


def test_an_add_op_hands_out_the_sum(tmp_path: Path) -> None:
    row, found = normalised(tmp_path, op="add_rmsnorm", x=X, residual=2 * X, gamma=GAMMA)

    assert row["arrays"] == ["sum", "y"]
    assert numpy.array_equal(found["sum"], X + 2 * X)
    assert found["y"].shape == X.shape


@pytest.mark.parametrize("shape", [(40,), (2, 3, 40), (0, 40), (1, 40)])
def test_the_output_has_the_shape_of_x(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = numpy.resize(X, shape)

    row, found = normalised(tmp_path, semantics='{"stats":true}', x=x, gamma=GAMMA, beta=BETA)

    assert row["status"] == "ok", row
    assert (found["y"].shape, found["mean"].shape, found["rstd"].shape) == (shape, shape[:-1], shape[:-1])


@pytest.mark.parametrize("op", ["layernorm_bwd", "rmsnorm_bwd"])
def test_gradients_of_parameters_are_sums_over_every_leading_dimension(tmp_path: Path, op: str) -> None:
    x, dy = numpy.resize(X, (2, 3, 40)), numpy.resize(X[::-1], (2, 3, 40))

    row, found = normalised(tmp_path, EAGER, op, x=x, dy=dy, gamma=GAMMA)

    flat = {name: torch.from_numpy(value.reshape(6, 40)) for name, value in (("x", x), ("dy", dy))}
    work = Point(op, "fp32", 6, 40, "stream", Semantics(stats=False))
    exact = ops.reference(work, flat | {"gamma": torch.from_numpy(GAMMA)})
    assert row["status"] == "ok", row
    assert {name: array.shape for name, array in found.items()} == {
        name: (2, 3, 40) if name == "dx" else (40,) for name in ops.outputs(work)
    }
    for name, array in found.items():
        numpy.testing.assert_allclose(array, exact[name].reshape(array.shape), rtol=1e-5, atol=1e-5)


def test_absent_parameters_are_absent(tmp_path: Path) -> None:
    _, found = normalised(tmp_path, x=X)

    exact = ops.reference(Point("layernorm", "fp32", 6, 40), {"x": torch.from_numpy(X)})["y"]
    numpy.testing.assert_allclose(found["y"], exact, rtol=1e-6, atol=1e-7)


def test_a_transposed_x_is_read_by_its_rows(tmp_path: Path) -> None:
    _, found = normalised(tmp_path, x=numpy.asfortranarray(X), gamma=GAMMA, beta=BETA)

    numpy.testing.assert_allclose(found["y"], expected()["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "arrays", "sentence"),
    [
        ("layernorm", {"gamma": GAMMA}, "the input needs an array x of shape (..., hidden)"),
        ("layernorm", {"x": numpy.float32(1)}, "the input needs an array x of shape (..., hidden)"),
        ("layernorm", {"x": X.astype("float64")}, "x is float64; it may be float32, float16, or bf16 as uint16 bits"),
        ("layernorm", {"x": X[:, :0]}, "x has 0 columns; 1 to 16777216 can be normalised"),
        ("layernorm", {"x": X, "gamma": GAMMA[:39]}, "gamma has shape (39,), x has 40 columns"),
        ("layernorm", {"x": X, "gamma": GAMMA[None]}, "gamma has shape (1, 40), x has 40 columns"),
        ("layernorm", {"x": X, "beta": BETA[:1]}, "beta has shape (1,), x has 40 columns"),
        (
            "layernorm",
            {"x": X, "gamma": GAMMA.astype("float64")},
            "gamma is float64; it may be float32, float16, or bf16",
        ),
        ("layernorm", {"x": X, "gamma": GAMMA, "beta": BETA.astype("float16")}, "gamma is float32, beta is float16"),
        ("layernorm", {"x": X, "eps": numpy.ones(2)}, "eps has shape (2,); it is one number"),
        ("layernorm", {"x": X, "weight": GAMMA}, "unknown array 'weight'; known: beta, dy, eps, gamma, residual, x"),
        ("rmsnorm", {"x": X, "beta": BETA}, "rmsnorm has no beta"),
        ("rmsnorm", {"x": X, "residual": X}, "rmsnorm has no residual"),
        ("add_rmsnorm", {"x": X}, "add_rmsnorm needs an array residual"),
        ("layernorm_bwd", {"x": X, "gamma": GAMMA}, "layernorm_bwd needs an array dy"),
        ("layernorm", {"x": X, "dy": X}, "layernorm has no dy"),
        ("layernorm_bwd", {"x": X, "dy": X, "beta": BETA}, "layernorm_bwd has no beta"),
        ("rmsnorm_bwd", {"x": X, "dy": X[:1]}, "dy is float32 (1, 40), x is float32"),
        ("add_rmsnorm", {"x": X, "residual": X[:1]}, "residual is float32 (1, 40), x is float32"),
    ],
)
def test_run_says_what_is_wrong_with_the_arrays(tmp_path: Path, op: str, arrays: dict[str, Any], sentence: str) -> None:
    row, found = normalised(tmp_path, op=op, **arrays)

    assert row["reason"].startswith(sentence)
    assert row["status"] == "skipped"
    assert found == {}


def test_a_beta_alone_brings_its_own_type(tmp_path: Path) -> None:
    row, found = normalised(tmp_path, x=X.astype("float16"), beta=BETA)

    assert row["status"] == "ok"
    assert numpy.isfinite(found["y"]).all()


def test_run_of_a_file_that_is_no_npz_says_so(tmp_path: Path, gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.npz").write_text("x,y\n1,2\n")

    assert cli.main(["run", ROW, "--op", "layernorm", "--input", "in.npz", "--output", "out.npz"]) == 1

    printed = capsys.readouterr().err
    assert "in.npz: not a readable .npz file" in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out.npz").exists()


def test_run_of_a_missing_file_says_so(tmp_path: Path, gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", ROW, "--op", "layernorm", "--input", "no.npz", "--output", "out.npz"]) == 1

    assert capsys.readouterr().err == "normbench run: no.npz: no such file\n"


def test_run_of_a_contender_that_breaks_its_process_ends(
    tmp_path: Path, gpu: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once is enough: it is not started again and again."""
    gpu(faults={"triton_row": "crash"})
    numpy.savez(tmp_path / "in.npz", x=X)

    assert cli.main(["run", ROW, "--op", "layernorm", "--input", "in.npz", "--output", "out.npz"]) == 1

    assert "SIGSEGV" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_run_does_not_leave_half_an_output(tmp_path: Path) -> None:
    normalised(tmp_path, x=X)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "out.npz"]


@pytest.mark.parametrize("spec", [EAGER, COPY])
def test_run_takes_baselines(tmp_path: Path, spec: str) -> None:
    assert normalised(tmp_path, spec, x=X, gamma=GAMMA, beta=BETA)[0]["status"] == "ok"


# columns


def test_columns_prints_every_column_with_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["columns"]) == 0

    printed = capsys.readouterr().out
    for table in schema.TABLES.values():
        assert f"{table.name}: {table.meaning}" in printed
        for column in table.columns:
            assert f"{column.name} " in printed
            assert f"[{column.unit}]" in printed or not column.unit


def test_columns_of_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["columns", "--table", "ceilings"]) == 0

    assert "size_bytes" in capsys.readouterr().out
