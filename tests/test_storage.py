"""A study whose results are on no file system that its hosts share: they go to a bucket, and come back from there.

The bucket is moto's, a server of S3 on this machine. What is submitted runs here, too, but sees a GPU that the
submitting process does not, so nothing can be measured that was not submitted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import yaml

from bucket_fixture import Bucket, serve
from workflow_fixture import TARGET, Checkout

pytestmark = [pytest.mark.slow, pytest.mark.plugins]
FLEET = {"faked": {"arch": 90, "gpu": "Faked GPU A", "cpus": 1, "mem_mb": 1500, "runtime": 10}}
# stands in for qsub: a scheduler with one host, which has a GPU
SUBMIT = """\
#!/bin/sh
for script; do :; done
export NORMBENCH_FAKE_GPU=fake_a.json
unset CUDA_VISIBLE_DEVICES
sh "$script" >> submitted.log 2>&1 &
echo $!
"""
# the options of workflow/profiles/README.md
STORED = (
    *("--default-storage-provider", "s3", "--default-storage-prefix", "s3://normbench"),
    *("--shared-fs-usage", "persistence", "sources", "source-cache", "software-deployment"),
)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with serve() as made:
        yield made


def submit(checkout: Checkout, bucket: Bucket, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = checkout.command(
        *("--profile", "workflow/profiles/cluster-generic", "--cluster-generic-submit-cmd", "./submit.sh"),
        *("--latency-wait", "5", "--seconds-between-status-checks", "1", "measurements", *STORED, *arguments),
        *("--config", "fleet=fleet.yaml", "ops=rmsnorm", "--configfile", "tiny.yaml"),
    )
    variables = checkout.environment(None) | bucket.environment | {"PYTHONPATH": os.environ["PYTHONPATH"]}
    return subprocess.run(command, cwd=checkout.folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket) -> tuple[Checkout, str]:
    """A checkout whose study is in the bucket, and what Snakemake printed."""
    checkout = Checkout.make(tmp_path_factory.mktemp("stored") / "study")
    checkout.path("fleet.yaml").write_text(yaml.safe_dump(FLEET))
    script = checkout.path("submit.sh")
    script.write_text(SUBMIT)
    script.chmod(0o755)
    done = submit(checkout, bucket)
    assert done.returncode == 0, done.stdout + done.stderr + checkout.path("submitted.log").read_text()
    return checkout, done.stdout + done.stderr


def test_a_target_is_one_job_and_its_results_are_in_the_bucket(stored: tuple[Checkout, str], bucket: Bucket) -> None:
    checkout, printed = stored

    assert len(re.findall(r"Submitted (?:group )?job", printed)) == 2, "a compiler and the target"
    assert bucket.names >= {
        "results/sweep.json",
        "results/build/sm_90/naive.cubin",
        "results/faked/machine.json",
        "results/faked/cases/naive.parquet",
        "results/faked/showdown/rmsnorm.parquet",
        "results/faked/study.json",
    }
    assert not checkout.path("results", "faked", "study.json").exists()
    assert not checkout.path("results", "faked", "showdown").exists()


def test_a_second_invocation_finds_everything_in_the_bucket(stored: tuple[Checkout, str], bucket: Bucket) -> None:
    done = submit(stored[0], bucket, "--dry-run")

    assert "Nothing to be done" in done.stdout + done.stderr


def test_results_come_back_and_are_reported(stored: tuple[Checkout, str], bucket: Bucket, tmp_path: Path) -> None:
    here = stored[0].copy(tmp_path / "here")
    bucket.fetch(here.folder)

    here.run("report", "--config", "ops=rmsnorm")

    assert json.loads(here.path("results", "faked", "machine.json").read_text())["device"] == TARGET
    race = pl.read_parquet(here.path("results", "tables", "showdown.parquet"))
    assert race.filter(pl.col("status") == "ok")["point"].n_unique() == 2
    assert here.path("reports", "faked.html").exists()
