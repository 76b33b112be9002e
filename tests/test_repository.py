"""The repository: what its documents say is what its files do."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_args

from normbench import __version__, cli, probes

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "config/README.md", "envs/README.md", "workflow/profiles/README.md")
TEXT = {
    ".py",
    ".smk",
    ".cu",
    ".cuh",
    ".cpp",
    ".hpp",
    ".md",
    ".yaml",
    ".yml",
    ".toml",
    ".sh",
    ".txt",
    ".cff",
    ".rst",
    ".html",
    ".css",
    ".js",
    ".json",
    "",
}


def tracked() -> list[Path]:
    """Files that are or would be tracked, the archive aside; without git, every file of the source folders."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        files: Iterable[Path] = (ROOT / name for name in names)
    except (OSError, subprocess.CalledProcessError):
        folders = ("workflow", "kernels", "config", "envs", "tests", ".ci", ".github")
        files = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    return sorted(path for path in files if path.is_file() and ROOT / "reports" / "data" not in path.parents)


def texts() -> dict[str, str]:
    found = {}
    for path in tracked():
        if path.suffix in TEXT and path != Path(__file__):
            found[str(path.relative_to(ROOT))] = path.read_text()
    return found


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(document: str) -> list[str]:
    """Lines of a document's bash blocks, comments removed."""
    blocks = re.findall(r"```bash\n(.*?)```", document, re.DOTALL)
    lines = (re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


def test_repository_is_empty_to_these_tests() -> None:
    assert {"README.md", "pyproject.toml", "Snakefile", "config/config.yaml"} <= texts().keys()


@pytest.mark.parametrize(
    ("pattern", "meaning"),
    [
        (r"(?<![\w./~$}])/(?:home|root|Users|work|mnt|opt|data)/\w", "a path of somebody's machine"),
        (r"(?<![\w.])/tmp/\w", "a path of somebody's machine"),
        (r"\b(?:TODO|FIXME|XXX|HACK)\b", "unfinished work"),
        (r"(?:index-url|find-links)[= ]+['\"]?(?:https?|file):", "the address of a package index"),
        (r"^(?:<{7}|>{7})(?: |$)", "a conflict"),
    ],
)
def test_text_holds_something_that_does_not_belong(pattern: str, meaning: str) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, f"{meaning}:\n" + "\n".join(found)


def test_large_or_binary_file_is_tracked() -> None:
    large = [
        f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes" for path in tracked() if path.stat().st_size > 2**20
    ]
    assert not large


def test_dependency_has_no_reason_beside_it() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [")
    dependencies = lines[start + 1 : lines.index("]", start)]
    assert len(dependencies) > 10
    bare = [line for line in dependencies if not re.search(r'",\s+# \S', line)]
    assert not bare


def test_dependency_the_study_is_built_on_is_missing(project: dict[str, object]) -> None:
    named = {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]}
    assert named >= {"snakemake", "cuda-python", "torch", "polars", "altair", "nvidia-ml-py"}
    assert named >= probes.MEASURING


def test_readme_opens_with_other_commands_than_are_tested() -> None:
    first, second, *_ = commands((ROOT / "README.md").read_text())
    assert first == (
        "python3 -m venv .venv && . .venv/bin/activate && pip install -e '.[cu13]' && snakemake --cores 1 report"
    )
    assert second == "pip install -e '.[cu13,test]' && pytest"
    assert second in map(str.strip, (ROOT / ".ci" / "run").read_text().splitlines())


def test_readme_explains_something_before_the_commands() -> None:
    before = (ROOT / "README.md").read_text().partition("```bash")[0]
    paragraphs = [text for text in before.split("\n\n") if text.strip() and not text.startswith("#")]
    assert len(paragraphs) == 2


def test_readme_names_a_verb_that_does_not_exist() -> None:
    text = "\n".join((ROOT / name).read_text() for name in DOCUMENTS)
    words = commands(text) + re.findall(r"`([^`\n]+)`", text)
    verbs = {verb for word in words for verb in re.findall(r"(?:^|&& )normbench ([a-z]+)", word)}
    assert verbs >= {"doctor", "bench", "run", "columns", "publish", "compare"}
    package = ROOT / "workflow" / "lib" / "normbench"
    assert [verb for verb in sorted(verbs) if verb not in cli.VERBS or not (package / f"{verb}.py").is_file()] == []


def snakemake_commands() -> list[list[str]]:
    """Arguments of every call of Snakemake in the documents, in blocks and in the text, without its profile, which
    needs a plugin."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text().replace("\\\n", " ")
        for command in [*commands(text), *re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text)]:
            for words in re.findall(r"(?:^|&& )snakemake (-[^&]+)", command):
                found.append(shlex.split(re.sub(r"--profile \S+", "", words)))
    return found


def test_document_calls_snakemake_in_a_way_it_does_not_understand() -> None:
    """Options such as --config and --resources take every word up to the next option, a target among them."""
    rules = "\n".join(path.read_text() for path in (ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")))
    known = set(re.findall(r"^\s*rule (\w+):", rules, re.MULTILINE))
    targets = set()
    for words in snakemake_commands():
        try:
            _, parsed = parse_args(words)
        except (SystemExit, ValueError) as error:
            raise AssertionError(f"snakemake {shlex.join(words)}") from error
        assert set(parsed.targets) <= known, shlex.join(words)
        targets |= set(parsed.targets)
    assert targets >= {"report", "cubins", "measurements", "verify", "compare"}


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md"])
def test_link_or_path_in_a_document_leads_nowhere(document: str) -> None:
    path = ROOT / document
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths = re.findall(r"(?<![\w/])((?:workflow|kernels|config|envs|tests|\.github)/[\w./-]*\w)", text)
    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in paths if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["gpu", "report"])
def test_conda_file_drifts_from_the_project(name: str, project: dict[str, object]) -> None:
    environment = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())
    (packages,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    wanted = list(project["dependencies"])
    if name == "gpu":
        wanted += project["optional-dependencies"]["cu13"]
    else:
        wanted = [text for text in wanted if re.match(r"[\w-]+", text)[0] not in probes.MEASURING]
    assert packages == wanted


@pytest.mark.parametrize(
    ("name", "absent"),
    [("gpu", set()), ("beside-torch", {"torch", "triton"}), ("report", probes.MEASURING - {"numpy"})],
)
def test_pins_miss_a_dependency_or_lack_hashes(name: str, absent: set[str], project: dict[str, object]) -> None:
    text = (ROOT / "envs" / f"{name}.txt").read_text()
    pinned = set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))
    named = {re.match(r"[\w-]+", item)[0] for item in project["dependencies"]}
    assert named - absent <= pinned
    assert not absent & pinned
    assert text.count("==") <= text.count("--hash=sha256:")


def test_every_rule_names_its_environment_and_log() -> None:
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"^ *rule ", path.read_text(), flags=re.MULTILINE)[1:]:
            if "shell:" in rule:
                name = rule.partition(":")[0]
                assert "log:" in rule, f"{path.name}: {name}"
                (conda,) = re.findall(r'conda:\s+"([^"]+)"', rule)
                assert (path.parent / conda).is_file(), f"{path.name}: {name}"


def test_script_is_not_executable() -> None:
    scripts = [ROOT / ".ci" / "run", *(ROOT / "envs").glob("*.sh")]
    assert len(scripts) >= 3
    for path in scripts:
        assert path.stat().st_mode & stat.S_IXUSR, path.name
        assert "set -euo pipefail" in path.read_text(), path.name
        subprocess.run(["bash", "-n", path], check=True)


def test_versions_of_one_release_differ() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_github_workflow_is_no_yaml_or_does_not_call_ci() -> None:
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert workflows.keys() >= {"ci", "pages"}
    steps = {
        name: [step.get("run") for job in flow["jobs"].values() for step in job["steps"]]
        for name, flow in workflows.items()
    }
    assert ".ci/run" in steps["ci"]
    assert any(run and re.search(r"snakemake --cores \d+ report$", run) for run in steps["pages"])


def test_license_is_another() -> None:
    assert "MIT License" in (ROOT / "LICENSE").read_text()
    assert "normbench authors" in (ROOT / "LICENSE").read_text()
