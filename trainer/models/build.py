"""Build the model that the settings name."""

from importlib import import_module
from typing import Any

from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Module
from gradmesh.sdk.process.setting import ConfigError, Problem
from gradmesh.trainer.data.samples import Fields
from gradmesh.trainer.errors import DataError
from gradmesh.trainer.models.config import ModelConfig
from gradmesh.trainer.models.networks import DLRM, DCNv2, TwoTower, WideDeep


def row_dim(config: ModelConfig) -> int:
    """Return the number of elements of the model's rows."""
    return config.dim + (config.name in ("wide-deep", "deepfm"))


def build_model(
    config: ModelConfig, fields: Fields, embeddings: Module, generator: Generator
) -> Module:
    """Return the model that the settings name; it takes (dense, ids) and gives log-odds [batch].

    Args:
        config: The settings.
        fields: The features of a sample.
        embeddings: Module that maps ids to [batch, features, row_dim].
        generator: Source of initial values.

    Raises:
        ConfigError: The settings do not fit, or the function cannot be imported.
    """
    shared: dict[str, Any] = {
        "dense_features": fields.dense_features,
        "features": fields.features,
        "dim": config.dim,
        "generator": generator,
    }
    if config.name == "dlrm":
        return DLRM(embeddings, bottom=config.bottom, top=config.top, **shared)
    if config.name == "dcnv2":
        return DCNv2(embeddings, cross_layers=config.cross_layers, top=config.top, **shared)
    if config.name in ("wide-deep", "deepfm"):
        pairs = config.name == "deepfm"
        return WideDeep(embeddings, top=config.top, pairs=pairs, **shared)
    if config.name == "two-tower":
        try:
            items = config.item_features
            return TwoTower(embeddings, item_features=items, hidden=config.top, **shared)
        except DataError:
            raise
        except ValueError as error:
            raise ConfigError([Problem("model.item_features", str(error))]) from None
    return _imported(config, fields, embeddings, generator)


def _imported(
    config: ModelConfig, fields: Fields, embeddings: Module, generator: Generator
) -> Module:
    """Build a model by a user's function (embeddings, fields, config, generator)."""
    home, _, name = config.name.partition(":")
    try:
        make = getattr(import_module(home), name)
    except (ImportError, AttributeError) as error:
        text = f"{config.name!r} cannot be imported: {error}; is its folder on PYTHONPATH?"
        raise ConfigError([Problem("model.name", text)]) from error
    model = make(embeddings, fields, config, generator)
    if not isinstance(model, Module):
        text = f"{config.name!r} gave {type(model).__name__}, which is not a gm.nn.Module"
        raise ConfigError([Problem("model.name", text)])
    return model
