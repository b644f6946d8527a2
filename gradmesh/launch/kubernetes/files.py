"""The files of this machine that pods need: the job's file, the user's modules, small data.

A ConfigMap carries them, so no image has to be built for them. Its keys have no folders; the
pod's volume maps each key to a path.
"""

import base64
import importlib.util
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from gradmesh.launch.kubernetes.errors import FilesTooBig

MAX_BYTES = 1 << 20
"""The limit of Kubernetes for a ConfigMap."""
_RESERVED_BYTES = 16 << 10
"""Reserved for keys, labels and other metadata."""


@final
@dataclass(slots=True)
class Files:
    """Files to send to pods.

    Attributes:
        job: Name of the job's file.
        beside: Existing files that the job's file names, by path relative to it.
        code: Files of modules by path relative to the import root.
    """

    job: str = ""
    beside: dict[str, bytes] = field(default_factory=dict)
    code: dict[str, bytes] = field(default_factory=dict)

    def data(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return text and binary content by key, as a ConfigMap stores them."""
        texts, others = {}, {}
        for kind, files in (("job", self.beside), ("code", self.code)):
            for path, content in files.items():
                try:
                    texts[_key(kind, path)] = content.decode("utf-8")
                except UnicodeDecodeError:
                    others[_key(kind, path)] = base64.b64encode(content).decode()
        return texts, others

    def job_items(self) -> list[dict[str, str]]:
        """Return the files beside the job by key."""
        return [{"key": _key("job", path), "path": path} for path in sorted(self.beside)]

    def code_items(self) -> list[dict[str, str]]:
        """Return the files of the modules by key."""
        return [{"key": _key("code", path), "path": path} for path in sorted(self.code)]

    def tables(self) -> dict[str, Any]:
        """Return the parsed content of the job's file."""
        return tomllib.loads(self.beside[self.job].decode("utf-8"))

    def check(self) -> None:
        """Raise if the files do not fit into a ConfigMap.

        Raises:
            FilesTooBig: They do not fit.
        """
        sizes = {path: len(c) for files in (self.beside, self.code) for path, c in files.items()}
        total = sum(sizes.values())
        if total > MAX_BYTES - _RESERVED_BYTES:
            raise FilesTooBig(
                total, MAX_BYTES - _RESERVED_BYTES, max(sizes.items(), key=lambda x: x[1])
            )


def files_of(job: Path, modules: Iterable[str]) -> Files:
    """Collect the files of a job.

    Args:
        job: Its TOML file. Existing files that it names by relative paths are included; absolute
            paths are assumed to be those of a volume in the pods.
        modules: Modules that trainers import; those of installed packages are in the image.

    Raises:
        FilesTooBig: They do not fit into a ConfigMap.
    """
    made = Files(job=job.name, beside={job.name: job.read_bytes()})
    for path in _named_files(job):
        made.beside[path.relative_to(job.parent).as_posix()] = path.read_bytes()
    for module in modules:
        made.code |= _module_files(module, job.parent)
    made.check()
    return made


def _named_files(job: Path) -> Iterator[Path]:
    """Yield the files below the job's folder that its file names, patterns included."""
    for text in _strings(tomllib.loads(job.read_text(encoding="utf-8"))):
        path = Path(text)
        if not text or path.is_absolute() or ".." in path.parts or "://" in text:
            continue
        try:
            found = sorted(job.parent.glob(text))
        except (ValueError, NotImplementedError):
            continue
        for one in found:
            if one.is_file() and one != job:
                yield one
            elif one.is_dir():
                yield from (inner for inner in sorted(one.rglob("*")) if inner.is_file())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _module_files(module: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a user's module, or of the package it is in."""
    top = module.partition(".")[0]
    for place in (folder, Path.cwd()):
        if (single := place / f"{top}.py").is_file():
            return {single.name: single.read_bytes()}
        if (package := place / top).is_dir() and any(package.glob("*.py")):
            return {
                one.relative_to(place).as_posix(): one.read_bytes()
                for one in sorted(package.rglob("*.py"))
            }
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise ModuleNotFoundError(
            f"module {module!r} is neither beside the job's file nor in this folder, nor installed",
            name=module,
        )
    return {}


def _key(kind: str, path: str) -> str:
    """Return a valid key of a ConfigMap: letters, digits, - _ and dots."""
    return f"{kind}." + re.sub(r"[^A-Za-z0-9_.-]", lambda found: f"_{ord(found[0]):x}_", path)
