"""The tables and the model that a job's settings describe; the same on every rank."""

from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Module
from gradmesh.engine.optim import SGD
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.table.table import Table
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.models import DLRM


def create_tables(mesh: Mesh, config: JobConfig) -> list[Table]:
    """Create or open one table for each categorical feature.

    Raises:
        TableConflict: The mesh has tables of these names with other settings.
    """
    return [
        mesh.table(
            f"feature-{feature}",
            rows=rows,
            dim=config.dim,
            seed=config.seed,
            initializer=Initializer.uniform(config.row_bound),
            optimizer=SGD(lr=config.table_learning_rate),
        )
        for feature, rows in enumerate(config.rows)
    ]


def build_model(config: JobConfig, embeddings: Module) -> DLRM:
    """Return the model with its initial parameters, which follow from the seed."""
    return DLRM(
        embeddings,
        dense_features=config.dense_features,
        features=len(config.rows),
        dim=config.dim,
        bottom=config.bottom,
        top=config.top,
        generator=Generator(config.seed),
    )
