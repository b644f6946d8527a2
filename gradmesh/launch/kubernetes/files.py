"""The files of this machine that pods need: the job's file, the user's modules, small data.

A ConfigMap carries them, so no image has to be built for them. Its keys have no folders; the
pod's volume maps each key to a path.
"""

import base64
import importlib.util
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from gradmesh.launch.job_secrets import read_job_file, refuse_secrets
from gradmesh.launch.kubernetes.errors import FilesTooBig, NotOnKubernetes
from gradmesh.sdk.process.bounded_file import read_bounded
from gradmesh.sdk.process.confined import confined

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


def files_of(job: Path, modules: Iterable[str], secrets: Sequence[Path] = ()) -> Files:
    """Collect the files of a job; secrets are never among them.

    Args:
        job: Its TOML file. Existing files that it names by relative paths are included; absolute
            paths are assumed to be those of a volume in the pods.
        modules: Modules that trainers import; those of installed packages are in the image.
        secrets: Files of tokens and keys, which may be in the job's folder.

    Raises:
        ConfigError: The job's file cannot be read, or its [security] table names secrets.
        NotOnKubernetes: A file that it names is a secret, or outside its folder.
        FilesTooBig: They do not fit into a ConfigMap.
    """
    tables = read_job_file(job)
    refuse_secrets(job, tables, _REMEDY)
    collector = _Collector(secrets)
    made = Files(job=job.name)
    collector.add(made.beside, job.name, job.parent)
    for path in _named_files(job, tables):
        collector.add(made.beside, path.relative_to(job.parent).as_posix(), job.parent)
    for module in modules:
        for root, source in _module_files(module, job.parent):
            collector.add(made.code, source, root)
    made.check()
    return made


_REMEDY = (
    "make Secrets of them with kubectl and deploy with the components token and tls, as "
    '"Files" in docs/security.md shows, and remove them from the file'
)
# As in a file of OpenSSL or OpenSSH, of any kind.
_PRIVATE_KEY = b"PRIVATE KEY-----"


@final
class _Collector:
    """Reads files for a ConfigMap, and refuses what must not be in one.

    Args:
        secrets: Files of tokens and keys.
    """

    def __init__(self, secrets: Sequence[Path]) -> None:
        self._secrets = {secret.resolve() for secret in secrets}
        self._total = 0

    def add(self, found: dict[str, bytes], path: str, root: Path) -> None:
        """Read a file below a folder.

        Raises:
            NotOnKubernetes: It is a secret, not a file, or outside the folder.
            FilesTooBig: It does not fit with those before it.
        """
        try:
            place = confined(path, root)
            size = place.stat().st_size
            if self._total + size > MAX_BYTES:
                raise FilesTooBig(self._total + size, MAX_BYTES - _RESERVED_BYTES, (path, size))
            data = read_bounded(place, MAX_BYTES)
        except FilesTooBig:
            raise
        except (OSError, ValueError) as error:
            raise NotOnKubernetes(f"{root / path} cannot be sent to pods: {error}") from None
        if place.resolve() in self._secrets or _PRIVATE_KEY in data:
            raise NotOnKubernetes(
                f"{place} is a secret, and the job's file names it as one of its files, which all "
                f"who may read ConfigMaps can read; {_REMEDY}"
            )
        self._total += len(data)
        found[path] = data


def _named_files(job: Path, tables: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files below the job's folder that its file names, patterns included."""
    for text in _strings(list(tables.values())):
        path = Path(text)
        if not text or path.is_absolute() or ".." in path.parts or "://" in text:
            continue
        try:
            found = sorted(job.parent.glob(text)) if path.parts else [job.parent]
        except (ValueError, NotImplementedError):
            continue
        for one in found:
            inside = sorted(one.rglob("*")) if one.is_dir() else [one]
            yield from (file for file in inside if file.is_file() and file != job)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _module_files(module: str, folder: Path) -> list[tuple[Path, str]]:
    """Return the files of a user's module, or of the package it is in: import root and path."""
    top = module.partition(".")[0]
    for place in (folder, Path.cwd()):
        if (place / f"{top}.py").is_file():
            return [(place, f"{top}.py")]
        if (package := place / top).is_dir() and any(package.glob("*.py")):
            return [
                (place, one.relative_to(place).as_posix()) for one in sorted(package.rglob("*.py"))
            ]
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise ModuleNotFoundError(
            f"module {module!r} is neither beside the job's file nor in this folder, nor installed",
            name=module,
        )
    return []


def _key(kind: str, path: str) -> str:
    """Return a valid key of a ConfigMap: letters, digits, - _ and dots."""
    return f"{kind}." + re.sub(r"[^A-Za-z0-9_.-]", lambda found: f"_{ord(found[0]):x}_", path)
