"""Settings of the model."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.config import did_you_mean
from gradmesh.sdk.process.setting import Problem, Section, setting

MODEL_NAMES = ("dlrm", "dcnv2", "wide-deep", "deepfm", "two-tower")

_IMPORT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _model_name(name: str) -> str:
    if name in MODEL_NAMES or _IMPORT.fullmatch(name):
        return name
    raise ValueError(
        f"expected one of {', '.join(MODEL_NAMES)}, or module:function of your own, got {name!r}"
        f"{did_you_mean(name, MODEL_NAMES)}"
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Section):
    """The [model] table."""

    section: ClassVar[str] = "model"
    flag_prefix: ClassVar[str] = "model-"

    name: str = setting(
        "dlrm",
        "dlrm, dcnv2, wide-deep, deepfm or two-tower; or module:function, which every trainer"
        " imports.",
        check=_model_name,
    )
    dim: int = setting(16, "Elements of an embedding row.", minimum=1, maximum=4096)
    row_bound: float = setting(0.05, "Initial rows are uniform between plus and minus this.")
    bottom: tuple[int, ...] = setting(
        (32,), "Widths of dlrm's hidden layers for dense features.", minimum=1
    )
    top: tuple[int, ...] = setting(
        (64, 32), "Widths of the hidden layers after the features' interaction.", minimum=1
    )
    cross_layers: int = setting(2, "Number of dcnv2's cross layers.", minimum=1, maximum=32)
    item_features: tuple[int, ...] = setting(
        (), "Categorical features of the item in two-tower; the last one if empty.", minimum=0
    )

    def problems(self) -> Iterable[Problem]:
        """Yield contradictions between the fields."""
        if self.row_bound <= 0:
            yield Problem("row_bound", "must be positive")
