"""The files that are copied to pods."""

from pathlib import Path

import pytest

from gradmesh.launch.kubernetes.errors import FilesTooBig
from gradmesh.launch.kubernetes.files import MAX_BYTES, files_of

JOB = """
[data]
train = ["parts/*.txt", "/mnt/clicks/big.txt"]
vocabulary = "words.json"
[job]
output = "result"
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name in ("parts/a.txt", "parts/b.txt", "words.json", "other.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    return file


def test_only_files_that_the_job_names_are_copied(job: Path) -> None:
    files = files_of(job, ())

    assert set(files.beside) == {"job.toml", "parts/a.txt", "parts/b.txt", "words.json"}
    texts, others = files.data()
    places = {item["path"]: item["key"] for item in files.job_items()}
    assert texts[places["parts/a.txt"]] == "parts/a.txt"
    assert others == {}
    assert files.tables()["job"] == {"output": "result"}


def test_keys_are_what_a_config_map_takes(job: Path) -> None:
    texts, _ = files_of(job, ()).data()

    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") for key in texts)
    assert len(texts) == 4


def test_bytes_that_are_not_text_are_transferred(job: Path) -> None:
    (job.parent / "words.json").write_bytes(b"\xff\x00")

    texts, others = files_of(job, ()).data()

    assert len(others) == 1
    assert not set(others) & set(texts)


def test_modules_and_packages_are_found_beside_the_job(job: Path) -> None:
    (job.parent / "single.py").write_text("x = 1\n")
    package = job.parent / "package" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "model.py").write_text("y = 2\n")

    files = files_of(job, ("single", "package.inner.model"))

    assert set(files.code) == {"single.py", "package/__init__.py", "package/inner/model.py"}
    assert {item["path"] for item in files.code_items()} == set(files.code)


def test_installed_modules_stay_and_unknown_ones_are_refused(job: Path) -> None:
    assert files_of(job, ("numpy",)).code == {}
    with pytest.raises(ModuleNotFoundError, match="neither beside the job's file"):
        files_of(job, ("nobody_has_this",))


def test_more_than_a_config_map_holds_is_refused_with_the_biggest(job: Path) -> None:
    (job.parent / "parts/b.txt").write_bytes(b"x" * MAX_BYTES)

    with pytest.raises(FilesTooBig, match=r"biggest is parts/b\.txt with 1,048,576.*absolute path"):
        files_of(job, ())
