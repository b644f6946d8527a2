"""Generate the Python stubs from the .proto files.

Run by `make protos` in an environment of its own, because the generator pins an older protobuf than
the runtime uses. `--check` writes nothing and fails when the committed files are out of date.
"""

import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-not-found,import-untyped,unused-ignore]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("gradmesh/protos")


def generate(target: Path) -> None:
    """Write the stubs of every .proto file below `target`."""
    sources = sorted(
        str(PACKAGE / p.relative_to(ROOT / "protos")) for p in ROOT.glob("protos/*/v1/*.proto")
    )
    flags = [
        f"-I{ROOT}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
    ]
    if protoc.main(["protoc", *flags, *sources]) != 0:
        raise SystemExit("protoc failed")
    for stub in target.rglob("*_pb2_grpc.py"):
        if "class " not in stub.read_text():
            stub.unlink()


def main() -> int:
    """Regenerate in place, or compare with the committed files."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {p.relative_to(Path(folder) / PACKAGE): p for p in Path(folder).rglob("*_pb2*")}
        held = {p.relative_to(ROOT / "protos"): p for p in ROOT.glob("protos/*/v1/*_pb2*.py*")}
        stale = sorted(
            {str(name) for name in fresh.keys() ^ held.keys()}
            | {
                str(n)
                for n in fresh.keys() & held.keys()
                if not filecmp.cmp(fresh[n], held[n], False)
            }
        )
        if "--check" in sys.argv:
            for name in stale:
                print(f"protos/{name} is out of date with the .proto files: run `make protos`")
            return 1 if stale else 0
        for extra in held.keys() - fresh.keys():
            held[extra].unlink()
        for stub, path in fresh.items():
            shutil.copyfile(path, ROOT / "protos" / stub)
        print(f"{len(fresh)} files, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
