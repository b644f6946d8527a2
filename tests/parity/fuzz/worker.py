"""One process of the fuzzer: runs its share of the seeds and sends the findings."""

from __future__ import annotations

import time
import traceback
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch

from tests.parity.fuzz.cases import check
from tests.parity.fuzz.seeds import Budget, seeds

_FLUSH_S = 0.5
_REPORTS = 200


def work(share: int, shares: int, given: Budget, results: Any, current: Any) -> None:
    """Run one process's share of the seeds and send counts and failures."""
    # One example a cluster is shrunk and printed, the others are only counted.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    covered: Counter[str] = Counter()
    known: Counter[str] = Counter()
    cases, sent, met = 0, time.monotonic(), set()
    for seed in seeds(given, share, shares):
        current.value = seed
        try:
            verdict = check(seed)
        except Exception as error:
            # A defect of the fuzzer itself; it must not end the run.
            results.put(("fail", seed, ("fuzzer", type(error).__name__), traceback.format_exc()))
            continue
        cases += 1
        covered.update(verdict.covered)
        known.update(verdict.known)
        if verdict.cluster is not None:
            cluster, text = verdict.cluster, ""
            vague = cluster[1] == "backward" and len(met) < _REPORTS
            if verdict.report is not None and (vague or cluster not in met):
                met.add(cluster)
                cluster, text = verdict.report()
            results.put(("fail", seed, cluster, text))
        if time.monotonic() - sent > _FLUSH_S:
            results.put(("count", cases, covered, known))
            cases, covered, known = 0, Counter(), Counter()
            sent = time.monotonic()
    results.put(("count", cases, covered, known))
    results.put(("done", share, None, None))
