"""The tables, model, optimizer and DDP wrapping of a job's settings; the same on all ranks."""

from collections.abc import Callable
from typing import Any, Literal

from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Module
from gradmesh.engine.optim import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad, lr_scheduler
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process.setting import ConfigError, Problem
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.table.table import Table
from gradmesh.sdk.table.wire import Precision
from gradmesh.trainer.data import Fields
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.job.config import JobConfig, WirePrecision
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models import build_model, row_dim
from gradmesh.trainer.models.budget import BudgetGenerator
from gradmesh.trainer.process_group import ProcessGroup

_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "rowwise-adagrad": RowwiseAdagrad,
    "adam": Adam,
}


def create_tables(mesh: Mesh, spec: JobSpec, fields: Fields, changes: int) -> list[Table]:
    """Create or open one table for each categorical feature.

    Args:
        mesh: The mesh.
        spec: The job.
        fields: The features of a sample.
        changes: Updates of a table in the whole job, for the learning rate's schedule.

    Raises:
        TableConflict: The mesh has tables of these names with other settings.
    """
    job, model, rates = spec.job, spec.model, spec.rates
    optimizer = _OPTIMIZERS[job.table_optimizer](lr=rates.tables)  # type: ignore[call-arg]
    return [
        mesh.table(
            f"feature-{feature}",
            rows=rows,
            dim=row_dim(model),
            seed=job.seed,
            initializer=Initializer.uniform(model.row_bound),
            optimizer=optimizer,
            schedule=_table_schedule(job, rates.tables, changes),
            wire_rows=_precision(job.wire_rows),
            wire_grads=_precision(job.wire_grads),
        )
        for feature, rows in enumerate(fields.rows)
    ]


def make_model(
    spec: JobSpec, fields: Fields, embeddings: Module, elements: int | None = None
) -> Module:
    """Return the model with its initial parameters, which depend on the seed alone.

    Args:
        spec: The job.
        fields: The features of a sample.
        embeddings: Module that maps ids to rows.
        elements: Most elements of its parameters, for settings of unknown origin; None for any.

    Raises:
        DataError: It has more parameters.
    """
    seed = spec.job.seed
    generator = Generator(seed) if elements is None else BudgetGenerator(seed, elements)
    return build_model(spec.model, fields, embeddings, generator)


def make_optimizer(spec: JobSpec, model: Module) -> Optimizer:
    """Return the optimizer of the dense layers."""
    return _OPTIMIZERS[spec.job.optimizer](model.parameters(), lr=spec.rates.first)


def _table_schedule(job: JobConfig, rate: float, changes: int) -> lr_scheduler.LRScheduler | None:
    if job.table_schedule == "constant" or rate == job.table_final_learning_rate:
        return None
    base = SGD(lr=rate)
    if job.table_schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(
            base, T_max=changes, eta_min=job.table_final_learning_rate
        )
    end = job.table_final_learning_rate / rate
    return lr_scheduler.LinearLR(base, start_factor=1.0, end_factor=end, total_iters=changes)


def _precision(name: WirePrecision) -> Precision | None:
    return None if name == "float32" else name


def replicate(
    model: Module, mode: Literal["whole", "dense", "none"], group: ProcessGroup
) -> Callable[..., Any]:
    """Wrap the model in DDP; return what to call instead of it; collective.

    Args:
        model: The model; "dense" wraps its parts in place.
        mode: "whole" averages all gradients together, "dense" those of each part separately,
            "none" averages nothing: every rank has dense layers of its own.
        group: The ranks.

    Raises:
        ConfigError: With "dense" the model has parameters outside its parts.
    """
    if mode == "none" or not list(model.parameters()):
        return model
    if mode == "whole":
        return DistributedDataParallel(model, process_group=group)
    parts = {name: child for name, child in model.named_children() if list(child.parameters())}
    inside = {id(p) for child in parts.values() for p in child.parameters()}
    outside = [name for name, p in model.named_parameters() if id(p) not in inside]
    if outside:
        text = f"is dense, but {', '.join(outside)} belong to no part of the model; use whole"
        raise ConfigError([Problem("job.ddp", text)])
    for name, child in parts.items():
        setattr(model, name, DistributedDataParallel(child, process_group=group))
    return model
