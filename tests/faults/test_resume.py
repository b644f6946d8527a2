"""Jobs that resume from a checkpoint, also on other numbers of servers and trainers."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from gradmesh.cli import main
from gradmesh.launch.scoring import open_scorer
from gradmesh.protos.errors import CheckpointCorrupt
from gradmesh.sdk.checkpoint.manifest import chain_of
from gradmesh.sdk.checkpoint.model import export_model
from gradmesh.sdk.checkpoint.store import LocalStore
from gradmesh.trainer.job.model import make_model
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models.embedding import LocalEmbedding
from tests.faults.scenario import Outcome, assert_same, train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a job on three servers that ended at step 20 of 30."""
    folder = tmp_path_factory.mktemp("stopped")
    settings = {
        "job.steps": 20,
        "job.schedule": "constant",
        "job.checkpoint_path": folder / "checkpoints",
        "job.checkpoint_every_steps": 5,
        "job.checkpoint_keep": 2,
    }
    train(folder / "run", parameter_servers=3, settings=settings)
    return folder / "checkpoints"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run of all steps with the learning rate of the one that was stopped."""
    # It follows the number of steps, so it stays the same here.
    folder = tmp_path_factory.mktemp("whole")
    return train(folder / "run", settings={"job.schedule": "constant"})


def resume(path: Path, copy: Path) -> dict[str, object]:
    shutil.copytree(path, copy)
    return {
        "job.checkpoint_path": copy,
        "job.resume": "auto",
        "job.schedule": "constant",
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_trainers_the_newest_checkpoint_is_current(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    settings = {
        "job.checkpoint_path": (tmp_path / "checkpoints").as_uri(),
        "job.checkpoint_every_steps": 4,
        "job.resume": "auto",
    }
    faults = ["trainer-0:before-apply:14", "trainer-1:before-apply:14"]

    found = train(tmp_path / "run", faults, settings=settings)

    assert_same(found, undisturbed)
    assert found.began_at[0] == 0
    assert found.began_at[-1] in (4, 8, 12)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_without_a_log_loses_its_rows_and_the_run_begins_again(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    settings = {"parameter_server.durability": "off"}

    found = train(tmp_path / "run", ["parameter-server-1:prepared:9"], settings=settings)

    assert_same(found, undisturbed)
    assert found.began_at == (0, 0)


@pytest.mark.timeout(600)
def test_checkpoints_are_of_the_whole_run_and_add_to_each_other(stopped: Path) -> None:
    found = LocalStore(stopped).checkpoints()

    # A checkpoint that is due while another is being written is skipped, except the last.
    assert found[-1].manifest.step == 20
    chain = chain_of(found[-1].path)
    assert chain[0][1].base is None
    assert len(chain) > 1
    # Two are kept, with their bases.
    assert {kept.path for kept in found} == {path for path, _ in chain} | {found[-2].path}
    assert found[-1].manifest.run is not None
    assert found[-1].manifest.run.batches == 40


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "servers", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_job_resumes_with_another_number_of_servers(
    stopped: Path, whole: Outcome, servers: int, tmp_path: Path
) -> None:
    settings = resume(stopped, tmp_path / "checkpoints")

    found = train(tmp_path / "run", parameter_servers=servers, settings=settings)

    assert_same(found, whole)
    assert found.began_at == (20,)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trainers", [1, 4])
def test_a_job_resumes_with_another_number_of_trainers(
    stopped: Path, trainers: int, tmp_path: Path
) -> None:
    settings = resume(stopped, tmp_path / "checkpoints")

    found = train(tmp_path / "run", trainers=trainers, settings=settings)

    assert found.began_at == (20,)
    # No batch is skipped or repeated: 20 steps of two trainers, then ten of the others.
    assert found.figures["samples"] == (20 * 2 + 10 * trainers) * 64


@pytest.mark.timeout(600)
def test_a_flipped_bit_in_any_file_of_a_run_is_found_and_named(
    stopped: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "checkpoints"
    shutil.copytree(stopped, copy)
    (newest,) = [kept.path for kept in LocalStore(copy).checkpoints()][-1:]
    chain = [path for path, _ in chain_of(newest)]
    files = sorted(file for path in chain for file in path.rglob("*") if file.is_file())
    rng = random.Random(5)

    for file in files:
        whole = file.read_bytes()
        at = rng.randrange(len(whole))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CheckpointCorrupt) as found:
            chain_of(newest)
        # COMPLETE is the checksum of the manifest: either of the two may be damaged.
        named = file.with_name("manifest.json") if file.name == "COMPLETE" else file
        assert str(named) in str(found.value)
        file.write_bytes(whole)
    assert any(file.name == "dense.safetensors" for file in files)
    chain_of(newest)


@pytest.mark.timeout(600)
def test_a_checkpoint_exports_as_one_file_with_torch_names(stopped: Path, tmp_path: Path) -> None:
    newest = LocalStore(stopped).checkpoints()[-1].path

    names = export_model(newest, tmp_path / "model.safetensors")

    read = load_file(tmp_path / "model.safetensors")
    assert set(read) == set(names)
    assert {"bottom.layers.0.weight", "top.layers.0.bias", "embeddings.feature-0.weight"} <= set(
        names
    )
    assert read["embeddings.feature-0.weight"].shape == (3000, 16)


@pytest.mark.timeout(600)
def test_a_checkpoint_is_a_torch_model_with_the_same_scores(stopped: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    newest = LocalStore(stopped).checkpoints()[-1].path
    export_model(newest, tmp_path / "model.safetensors")

    arrays = load_file(tmp_path / "model.safetensors")
    twin = torch_dlrm(torch, arrays)
    twin.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()}, strict=True)
    source = JobSpec().source()
    with source.blocks("test", 64) as blocks:
        block = blocks.read(0, 0)
        assert block is not None
        samples = block.samples
    local = LocalEmbedding(source.fields.rows, JobSpec().model.dim)
    local.weight.data[:] = np.concatenate(
        [arrays[f"embeddings.feature-{i}.weight"] for i in range(source.fields.features)]
    )
    ours = make_model(JobSpec(), source.fields, local)
    ours.load_state_dict(
        {**ours.state_dict(), **{n: a for n, a in arrays.items() if "embeddings" not in n}}
    )

    with torch.no_grad():
        theirs = twin(torch.from_numpy(samples.dense), torch.from_numpy(samples.ids)).numpy()
    np.testing.assert_allclose(ours(samples.dense, samples.ids).data, theirs, rtol=1e-4, atol=1e-5)


def torch_dlrm(torch: Any, arrays: dict[str, Any]) -> Any:
    """A typical DLRM in torch, with the sizes of the arrays."""

    class Layers(torch.nn.Module):
        def __init__(self, name: str, final_relu: bool) -> None:
            super().__init__()
            shapes = [arrays[n].shape for n in sorted(arrays) if n.startswith(name + ".")]
            self.layers = torch.nn.ModuleList(
                torch.nn.Linear(s[1], s[0]) for s in shapes if len(s) == 2
            )
            self.final_relu = final_relu

        def forward(self, x: Any) -> Any:
            for number, layer in enumerate(self.layers):
                x = layer(x)
                if self.final_relu or number + 1 < len(self.layers):
                    x = torch.relu(x)
            return x

    class Twin(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = {n.split(".")[1]: a.shape for n, a in arrays.items() if "embeddings" in n}
            self.embeddings = torch.nn.ModuleDict(
                {name: torch.nn.Embedding(*shape) for name, shape in tables.items()}
            )
            self.bottom, self.top = Layers("bottom", True), Layers("top", False)

        def forward(self, dense: Any, ids: Any) -> Any:
            vector = self.bottom(dense)
            rows = [self.embeddings[f"feature-{i}"](ids[:, i]) for i in range(ids.shape[1])]
            every = torch.stack([vector, *rows], 1)
            lower, upper = torch.tril_indices(every.shape[1], every.shape[1], -1)
            products = (every @ every.transpose(1, 2))[:, lower, upper]
            return self.top(torch.cat([vector, products], 1)).reshape(-1)

    return Twin()


@pytest.mark.timeout(600)
def test_a_checkpoint_becomes_a_model_that_is_served(stopped: Path, tmp_path: Path) -> None:
    newest = LocalStore(stopped).checkpoints()[-1]

    code = main(["checkpoint", "export", str(newest.path), str(tmp_path / "served")])

    assert code == 0
    with open_scorer(tmp_path / "served", parameter_servers=2) as scorer:
        figures = scorer.evaluate((), 2)
    saved = load_file(tmp_path / "served" / "dense.safetensors")
    held = load_file(newest.path / "dense.safetensors")
    assert 0 < figures["log_loss"] < 1
    assert {f"model.{name}" for name in saved} <= held.keys()
    assert all((held[f"model.{name}"] == array).all() for name, array in saved.items())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_in_the_middle_of_a_checkpoint_leaves_none_and_training_continues(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    settings = {
        "job.checkpoint_path": tmp_path / "checkpoints",
        "job.checkpoint_every_steps": 10,
    }

    found = train(tmp_path / "run", ["trainer-0:checkpoint:10"], settings=settings)

    assert_same(found, undisturbed)
    # Its snapshots on the servers did not delay the next checkpoint or the steps.
    assert len(found.began_at) == 2
    steps = [c.manifest.step for c in LocalStore(tmp_path / "checkpoints").checkpoints()]
    assert 10 not in steps
    assert steps[-1] == 30
