"""The process of a sandbox: runs cases of the seeds that it reads, within limits.

    python -m tests.fuzz.sandbox_process NAME MODULE:CLASS FOLDER FILE

The number of the case under way is in FILE, so that it is known if this process ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import mmap
import random
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.fuzz.cases import Cases, judge

_MOST_FINDINGS = 10
_MOST_BYTES = 1 << 20


def load_cases(where: str, folder: Path) -> Cases:
    """Return the cases of a class, prepared."""
    module, _, name = where.partition(":")
    kind: type[Cases] = getattr(importlib.import_module(module), name)
    cases = kind(folder)
    cases.prepare()
    return cases


def limit_memory(address_space: int) -> None:
    """Let a case that believes a hostile size fail here, not on the machine."""
    held = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (held + address_space, resource.RLIM_INFINITY))


def run_seed(cases: Cases, name: str, seed: int, frames: int, shared: Any) -> dict[str, Any]:
    """Run the cases of a seed; return counts, answers and findings as JSON."""
    answers: Counter[str] = Counter()
    findings = []
    for number in range(frames):
        shared[:8] = number.to_bytes(8, "little")
        try:
            case = cases.run(random.Random(f"{name}:{seed}:{number}"))
        except BaseException as error:
            case = judge(error, b"")
        answers[case.answer] += 1
        if case.problem is not None and len(findings) < _MOST_FINDINGS:
            what = f"case {number}: {case.problem}"
            findings.append({"what": what, "data": case.data[:_MOST_BYTES].hex()})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"frames": frames, "answers": answers, "findings": findings, "peak": peak}


def main(name: str, where: str, folder: str, file: str) -> None:
    """Serve until the input ends."""
    logging.disable(logging.CRITICAL)
    # Others may print; the answers keep the pipe for themselves.
    answers, sys.stdout = sys.stdout, sys.stderr
    cases = load_cases(where, Path(folder))
    # Cases collect garbage; the objects of all modules would make that slow.
    gc.freeze()
    limit_memory(cases.address_space)
    with Path(file).open("r+b") as held, mmap.mmap(held.fileno(), 8) as shared:
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            found = run_seed(cases, name, asked["seed"], asked["frames"], shared)
            print(json.dumps(found), file=answers, flush=True)
    cases.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
