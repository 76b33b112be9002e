"""A bucket on this machine: moto's server of S3, and what leads there."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "normbench"


@dataclass(frozen=True)
class Bucket:
    """url: of the server, which takes any key."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What the storage plugin asks for."""
        names = {"ENDPOINT_URL": self.url, "ACCESS_KEY": "nobody", "SECRET_KEY": "nothing"}
        return {f"SNAKEMAKE_STORAGE_S3_{name}": value for name, value in names.items()}

    @property
    def _bucket(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing", "region_name": "us-east-1"}
        return boto3.resource("s3", endpoint_url=self.url, **keys).Bucket(NAME)

    @property
    def names(self) -> set[str]:
        return {entry.key for entry in self._bucket.objects.all()}

    def fetch(self, folder: Path) -> None:
        """What ``aws s3 sync s3://normbench/results results`` does."""
        for name in self.names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._bucket.download_file(name, str(path))


@contextlib.contextmanager
def serve() -> Iterator[Bucket]:
    """An empty server, for as long as it lasts."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    # all servers of a process have the same buckets
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST")).close()
    try:
        yield Bucket(url)
    finally:
        server.stop()
