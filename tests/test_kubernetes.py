"""What the Kubernetes profile submits, and that a pod with nothing but a bucket can do it.

The cluster is an API server of a few lines that runs a pod's container as a process here, in an empty folder and with
the environment that the pod's specification gives it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from bucket_fixture import Bucket, serve
from workflow_fixture import TARGET, Checkout

pytestmark = [pytest.mark.slow, pytest.mark.plugins]
LIMIT_S = 400
FLEET = {
    "faked": {"arch": 90, "gpu": "Faked GPU A", "cpus": 1, "mem_mb": 1500, "runtime": 10}
    | {"machine_type": "a3-highgpu-1g", "gpu_manufacturer": "nvidia"}
}


@dataclass
class Cluster:
    """Secrets, and jobs with the processes that are their pods."""

    folder: Path
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["metadata"]["name"]
        self.jobs[name] = body
        (container,) = body["spec"]["template"]["spec"]["containers"]
        workdir = self.folder / name
        workdir.mkdir()
        given = {entry["name"]: self._value(entry) for entry in container.get("env", ())}
        host = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
        host["PATH"] = os.pathsep.join((str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        gpus = container["resources"]["requests"].get("nvidia.com/gpu", "0")
        device = {"NORMBENCH_FAKE_GPU": str(self.folder / "gpu.json")} if gpus != "0" else {"CUDA_VISIBLE_DEVICES": ""}
        self.pods[name] = subprocess.Popen(
            [*container["command"], *container["args"]],
            cwd=workdir,
            env=host | given | device,
            stdout=(workdir / "log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        return body

    def _value(self, entry: dict[str, Any]) -> str:
        if "value" in entry:
            return str(entry["value"])
        reference = entry["valueFrom"]["secretKeyRef"]
        return base64.b64decode(self.secrets[reference["name"]][reference["key"]]).decode()

    def status(self, name: str) -> dict[str, Any]:
        code = self.pods[name].poll()
        state = {} if code is None else {"succeeded": 1} if code == 0 else {"failed": 1}
        return self.jobs[name] | {"status": state}

    @property
    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*/log")))


def handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/secrets"):
                cluster.secrets[body["metadata"]["name"]] = body["data"]
                self._answer(body)
            else:
                self._answer(cluster.submit(body))

        def do_GET(self) -> None:
            if found := re.search(r"/jobs/([\w-]+)/status", self.path):
                self._answer(cluster.status(found[1]))
            else:
                self._answer({"kind": "PodList", "apiVersion": "v1", "items": []})

        def do_DELETE(self) -> None:
            self._answer({"kind": "Status", "status": "Success"})

        def _answer(self, values: dict[str, Any]) -> None:
            content = json.dumps(values).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Api


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A cluster, and the kubeconfig that leads there."""
    folder = tmp_path_factory.mktemp("cluster")
    made = Cluster(folder)
    # a pod installs its storage plugin; this image has it
    (folder / "bin").mkdir()
    (folder / "bin" / "pip").write_text("#!/bin/sh\n")
    (folder / "bin" / "pip").chmod(0o755)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = {"name": "here"}
    config = folder / "kubeconfig"
    config.write_text(
        yaml.safe_dump(
            {
                **{"apiVersion": "v1", "kind": "Config", "current-context": "here"},
                "clusters": [name | {"cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "contexts": [name | {"context": {"cluster": "here", "user": "nobody"}}],
                "users": [{"name": "nobody", "user": {}}],
            }
        )
    )
    yield made, config
    server.shutdown()
    for pod in made.pods.values():
        pod.kill()


@pytest.fixture(scope="module")
def studied(
    cluster: tuple[Cluster, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Bucket, Checkout]]:
    """A study made by pods; the checkout it was submitted from has none of its results."""
    made, config = cluster
    checkout = Checkout.make(tmp_path_factory.mktemp("submitted") / "study")
    checkout.path("fleet.yaml").write_text(yaml.safe_dump(FLEET))
    (made.folder / "gpu.json").write_text(checkout.path("fake_a.json").read_text())
    git = ("git", "-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "what the pods get")):
        subprocess.run([*git, *words], cwd=checkout.folder, check=True)
    command = checkout.command(
        *("--profile", "workflow/profiles/kubernetes", "--seconds-between-status-checks", "1", "--latency-wait", "2"),
        *("measurements", "--config", "fleet=fleet.yaml", "ops=rmsnorm", "--configfile", "tiny.yaml"),
    )
    with serve() as bucket:
        variables = checkout.environment(None) | bucket.environment
        variables |= {"PYTHONPATH": os.environ["PYTHONPATH"], "KUBECONFIG": str(config)}
        done = subprocess.run(
            command, cwd=checkout.folder, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr + made.logs
        yield made, bucket, checkout


def pods(cluster: Cluster) -> tuple[dict[str, Any], dict[str, Any]]:
    """Specifications of the pod that compiled and of the one that measured."""
    specifications = [job["spec"]["template"]["spec"] for job in cluster.jobs.values()]
    compiling, measuring = sorted(specifications, key=lambda pod: bool(pod["nodeSelector"]))
    return compiling, measuring


def test_a_target_is_one_pod_that_asks_for_its_gpu_and_its_node(studied: tuple[Cluster, Bucket, Checkout]) -> None:
    assert len(studied[0].jobs) == 2, "one compiles, one measures"
    compiling, measuring = pods(studied[0])

    assert measuring["nodeSelector"] == {"node.kubernetes.io/instance-type": "a3-highgpu-1g"}
    assert measuring["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert [toleration["key"] for toleration in measuring["tolerations"]] == ["nvidia.com/gpu"]
    assert measuring["containers"][0]["image"] == "ghcr.io/example/normbench:latest"
    assert not compiling["nodeSelector"]
    assert "nvidia.com/gpu" not in compiling["containers"][0]["resources"]["requests"]


def test_pods_share_nothing_but_the_bucket(studied: tuple[Cluster, Bucket, Checkout], tmp_path: Path) -> None:
    """They start in empty folders: sources come from the bucket, results go there and come back."""
    _, bucket, checkout = studied
    assert not checkout.path("results", "faked").exists()
    assert bucket.names >= {
        f"results/faked/{name}" for name in ("machine.json", "showdown/rmsnorm.parquet", "study.json")
    }
    here = checkout.copy(tmp_path / "here")
    bucket.fetch(here.folder)

    here.run("report", "--config", "ops=rmsnorm")

    assert json.loads(here.path("results", "faked", "machine.json").read_text())["device"] == TARGET
    assert here.path("reports", "faked.html").exists()
