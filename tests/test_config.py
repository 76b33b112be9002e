"""Configuration: every wrong value stops in one sentence, and nothing generated from the model has drifted."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from normbench import config, configfiles, nearest
from normbench.config import ConfigError, Study, load

WRONG = [
    ({"hiden": [4096]}, "hiden: unknown key; nearest valid key: hidden"),
    ({"latency": {"row": [1]}}, "latency.row: unknown key; nearest valid key: latency.rows"),
    ({"rigt": "x"}, "rigt: unknown key; nearest valid key: right"),
    ({"hidden": 2**28}, "hidden: 268435456 is not a whole number from 1 to 16777216; nearest valid value: 16777216"),
    ({"hidden": [4096, 0]}, "hidden: 0 is not a whole number from 1 to 16777216; nearest valid value: 1"),
    ({"hidden": [1023.5]}, "hidden: 1023.5 is not a whole number from 1 to 16777216; nearest valid value: 1024"),
    ({"hidden": -5}, "nearest valid value: 1"),
    ({"latency": {"hidden": [2**25]}}, "latency.hidden: 33554432 is not"),
    ({"l2_hidden": [0]}, "l2_hidden: 0 is not"),
    ({"block": 100}, "block: 100 is not a multiple of 32 from 32 to 1024; nearest valid value: 96"),
    ({"block": [127]}, "nearest valid value: 128"),
    ({"block": [2048]}, "nearest valid value: 1024"),
    ({"block": 0}, "nearest valid value: 32"),
    ({"dtypes": "bf17"}, "dtypes: 'bf17' is not one of fp32, fp16, bf16; nearest valid value: bf16"),
    ({"ops": ["layer_norm"]}, "nearest valid value: layernorm"),
    ({"regimes": ["L2"]}, "nearest valid value: l2"),
    ({"archs": ["sm_91"]}, "archs: '91' is not one of 75"),
    ({"archs": 70}, "nearest valid value: 75"),
    ({"eps": 0}, "eps: 0 is not a number above 0; nearest valid value: 1e-05"),
    ({"eps": -1e-5}, "eps: -1e-05 is not"),
    ({"eps": float("nan")}, "eps: nan is not"),
    ({"eps": float("inf")}, "eps: inf is not"),
    ({"eps": "small"}, "eps: 'small' is not a number above 0"),
    ({"eps": True}, "eps: True is not a number above 0"),
    ({"elements": 0}, "elements: 0 is not a whole number from 1 on; nearest valid value: 1"),
    ({"elements": "1e9"}, "nearest valid value: 1000000000"),
    ({"tune_samples": 2.5}, "tune_samples: 2.5 is not a whole number"),
    ({"race_ms": 0}, "race_ms: 0 is not a number above 0; nearest valid value: 500.0"),
    ({"timeout_s": [60]}, "timeout_s: [60] is not"),
    ({"title": ""}, 'title: nothing is given; nearest valid value: "normbench"'),
    ({"latency": 3}, "latency: 3 is not a mapping"),
    ({"small_memory": {"below_gb": 0}}, "small_memory.below_gb: 0 is not a number above 0; nearest valid value: 24.0"),
    ({"kernels": "no_such.cu"}, "kernels: there is no file 'no_such.cu'"),
]
LISTS = ("ops", "dtypes", "regimes", "hidden", "l2_hidden", "block", "kernels", "baselines", "archs")


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[json.dumps(values) for values, _ in WRONG])
def test_wrong_value_is_not_accepted_or_not_explained(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(values)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", LISTS)
@pytest.mark.parametrize("empty", [[], None, ""], ids=["list", "null", "text"])
def test_empty_list_is_studied_as_nothing(key: str, empty: object) -> None:
    default = json.dumps(getattr(Study(), key))
    with pytest.raises(ConfigError, match="^" + key + ": nothing is given; nearest valid value: ") as caught:
        load({key: empty})
    assert str(caught.value).endswith(default)


@pytest.mark.parametrize("key", LISTS)
def test_item_of_the_wrong_kind_passes(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        load({key: [{"a": 1}]})


def test_config_that_is_no_mapping_is_a_traceback() -> None:
    with pytest.raises(ConfigError, match="not a mapping"):
        load([1, 2])


def test_wrong_hidden_is_refused_only_after_something_slow() -> None:
    start = time.perf_counter()
    with pytest.raises(ConfigError):
        load({"hidden": 2**28})
    assert time.perf_counter() - start < 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("forward/cta_row.cu", "triton/triton_row.py", "baselines/torch_eager.py", "baselines/liger.py"):
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = "//" if path.suffix == ".cu" else "#"
        path.write_text(f"{mark} /// kernel\n" if path.parent.name != "baselines" else "")
    (tmp_path / "kernels" / "forward" / "ceiling.cu").write_text("no header, so no contender\n")
    return tmp_path


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kernels": ["cta_rwo"]}, "kernels: 'cta_rwo' matches none; nearest valid value: cta_row"),
        ({"kernels": ["triton_*", "warp_*"]}, "kernels: 'warp_*' matches none"),
        ({"kernels": "ceiling"}, "kernels: 'ceiling' matches none"),
        ({"kernels": "torch_eager"}, "kernels: 'torch_eager' matches none"),
        ({"baselines": "torch_eagr"}, "baselines: 'torch_eagr' matches none; nearest valid value: torch_eager"),
        ({"baselines": "cta_row"}, "baselines: 'cta_row' matches none"),
    ],
)
def test_pattern_that_matches_nothing_drops_a_contender_silently(
    checkout: Path, values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(values, checkout)
    assert sentence in str(caught.value)


def test_pattern_that_matches_is_refused(checkout: Path) -> None:
    study = load({"kernels": "cta_*,package.module:norm", "baselines": ["torch_*"]}, checkout)
    assert config.selected(config.kernel_stems(checkout), study.kernels) == ["cta_row"]
    assert config.selected(config.baseline_stems(checkout), study.baselines) == ["torch_eager"]
    assert [pattern for pattern in study.kernels if config.is_outside(pattern)] == ["package.module:norm"]


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ({"dtypes": "bf16"}, {"dtypes": ["bf16"]}),
        ({"dtypes": "bf16, fp32"}, {"dtypes": ["fp32", "bf16"]}),
        ({"hidden": 4096}, {"hidden": [4096]}),
        ({"hidden": ["4096", "8192"]}, {"hidden": [4096, 8192]}),
        ({"hidden": [8192, 64, 8192]}, {"hidden": [64, 8192]}),
        ({"archs": ["sm_90", 75]}, {"archs": [75, 90]}),
        ({"eps": "1e-6"}, {"eps": 1e-6}),
        ({"latency": {"rows": 16}}, {"latency": {"rows": [16], "hidden": Study().latency.hidden}}),
        ({"ops": ["rmsnorm", "layernorm"], "left": "a/1", "right": "b/2"}, {"ops": ["layernorm", "rmsnorm"]}),
    ],
    ids=str,
)
def test_command_line_form_is_refused_or_read_differently(
    given: dict[str, object], canonical: dict[str, object]
) -> None:
    assert load(given).model_dump() == {**Study().model_dump(), **canonical}


def test_reordered_file_is_another_study(repository: Path) -> None:
    values = yaml.safe_load((repository / "config" / "full.yaml").read_text())
    backwards = {key: value[::-1] if isinstance(value, list) else value for key, value in reversed(values.items())}
    assert backwards != values
    assert load(backwards).model_dump_json() == load(values).model_dump_json()


def test_title_or_cubins_reach_what_is_measured() -> None:
    renamed = load({"title": "another", "archs": [90]})
    assert renamed.measured() == Study().measured()
    assert load({"eps": 1e-6}).measured() != Study().measured()


def test_configuration_files_are_invalid_or_differ_from_the_defaults(repository: Path) -> None:
    studies = [path for path in (repository / "config").glob("*.yaml") if path.stem != "fleet"]
    files = {path.stem: yaml.safe_load(path.read_text()) for path in studies}
    assert load(files["config"]) == Study()
    assert {"quick", "full"} <= files.keys()
    for values in files.values():
        load(values)


def test_generated_files_drift_from_the_model(repository: Path) -> None:
    for path, text in configfiles.contents(repository).items():
        assert path.read_text() == text, f"{path.name}: run python -m normbench.configfiles --write"


def test_key_without_a_description() -> None:
    for name, described in configfiles.described_keys():
        assert described.get("description"), name
        assert "default" in described, name


def test_json_schema_and_loader_disagree() -> None:
    described = configfiles.json_schema()
    jsonschema.Draft202012Validator.check_schema(described)
    jsonschema.validate(Study().model_dump(), described)
    for values in ({"hiden": 1}, {"hidden": [0]}, {"block": [100]}, {"dtypes": ["fp64"]}, {"eps": 0}, {"ops": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values, described)
        with pytest.raises(ConfigError):
            load(values)


def test_drift_is_not_told_by_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "workflow" / "schemas").mkdir(parents=True)
    readme = tmp_path / "config" / "README.md"
    tables = (f"{begin}stale\n{configfiles.END}" for begin in (configfiles.BEGIN, configfiles.FLEET_BEGIN))
    readme.write_text(f"before\n{'between'.join(tables)}after\n")
    monkeypatch.setattr(configfiles, "root", lambda: tmp_path)
    assert configfiles.main([]) == 1
    assert configfiles.main(["--write"]) == 0
    assert configfiles.main([]) == 0
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text


@pytest.mark.parametrize(("value", "found"), [(16, 32), (47, 32), (48, 64), (1e300, 1024), (-3, 32), ("70", 64)])
def test_nearest_multiple_is_not_the_nearest(value: object, found: int) -> None:
    item = {"type": "integer", "minimum": 32, "maximum": 1024, "multipleOf": 32}
    assert nearest.nearest(value, item, [256]) == str(found)
