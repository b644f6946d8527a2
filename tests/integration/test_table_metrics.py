"""The metrics of tables at /metrics of a parameter server, each named in the docs."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from gradmesh.engine import optim
from gradmesh.sdk import autograd
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.table.lifetime import Eviction
from gradmesh.sdk.table.spec import least_max_bytes

DOCS = Path(__file__).resolve().parents[2] / "docs"


@contextmanager
def started(log: Path, *arguments: str) -> Iterator[None]:
    with (
        log.open("wb") as file,
        subprocess.Popen([sys.executable, "-m", "gradmesh", *arguments], stderr=file) as process,
    ):
        try:
            yield
        finally:
            process.kill()


@pytest.mark.timeout(600)
def test_every_figure_is_shown_and_documented(tmp_path: Path, eventually) -> None:
    file, log = tmp_path / "address", tmp_path / "log"
    shown = re.compile(rb"serving metrics.*?(127\.0\.0\.1:\d+)")
    with ExitStack() as stack:
        stack.enter_context(
            started(
                tmp_path / "other",
                *("coordinator", "--listen", "127.0.0.1:0", "--address-file", str(file)),
            )
        )
        eventually(file.exists, 60)
        address = file.read_text().strip()
        metrics = ("--metrics-listen", "127.0.0.1:0")
        stack.enter_context(started(log, "parameter-server", "--coordinator", address, *metrics))
        mesh = stack.enter_context(connect(address))
        table = mesh.table(
            "user",
            dim=2,
            optimizer=optim.SGD(lr=1.0),
            eviction=Eviction.lru(),
            max_bytes=least_max_bytes(8),
        )
        table.lookup(np.arange(20_000))
        table.lookup([5, 5, 5, 6])
        table.lookup([5, 5, 5, 6])
        with autograd.context(mesh) as ctx:
            out = RemoteEmbedding(table)([7])
            table.push([7], np.ones((1, 2), np.float32))
            autograd.backward(ctx, [out.sum()])
            autograd.apply(ctx)
        eventually(lambda: shown.search(log.read_bytes()), 30)
        where = shown.search(log.read_bytes())[1].decode()
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=120) as reply:
            page = reply.read().decode()

    found = {sample.name: sample for family in families(page) for sample in family.samples}
    of_table = {n: s.value for n, s in found.items() if s.labels.get("table") == "user"}
    lanes = {s.labels["lane"] for f in families(page) for s in f.samples if "lane" in s.labels}

    assert 0 < of_table["gradmesh_table_rows"] <= 4096
    assert of_table["gradmesh_table_bytes"] > 8 * of_table["gradmesh_table_rows"]
    assert of_table["gradmesh_table_lookups_total"] == 4
    assert of_table["gradmesh_table_unique_ratio"] == pytest.approx(20_005 / 20_009)
    assert 0 < of_table["gradmesh_table_hit_ratio"] < 1
    assert of_table["gradmesh_table_evictions_total"] > 0
    assert of_table["gradmesh_table_stalest_steps"] == 1
    assert of_table["gradmesh_table_staleness_steps_total"] == 1
    assert "# TYPE gradmesh_rpc_server_seconds histogram" in page
    assert found["gradmesh_rpc_server_seconds_count"].value > 0
    assert lanes & {"shm", "tcp", "stream"}
    documented = "".join(page.read_text() for page in (DOCS / "tables.md", DOCS / "operations.md"))
    names = {n.removeprefix("gradmesh_table_").removesuffix("_total") for n in of_table}
    assert {name for name in names if f"`{name}`" not in documented} == set()
    for name in ("gradmesh_rpc_server_seconds", "gradmesh_rpc_client_calls_total"):
        assert name in documented
