"""Wrapping a module: equal parameters, mismatches, options, names and state."""

import copy
import pickle

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Embedding, Linear, Module, ReLU, Sequential
from gradmesh.trainer.ddp import DistributedDataParallel, MixedPrecision
from gradmesh.trainer.errors import CollectiveMismatch


def net(seed=0):
    generator = Generator(seed)
    return Sequential(Linear(4, 8, generator=generator), ReLU(), Linear(8, 2, generator=generator))


def test_parameters_become_those_of_rank_0(world):
    def job(group):
        module = net(group.rank)
        mine = module[0].weight.data.copy()
        DistributedDataParallel(module, process_group=group)
        return mine, module[0].weight.data

    (first, after_0), (second, after_1) = world(2).run(job)

    assert (after_0 == first).all()
    assert (after_1 == first).all()
    assert not (second == first).all()


def test_gm_exports_the_public_api():
    assert gm.DDP is gm.ddp.DistributedDataParallel is DistributedDataParallel


def test_state_has_no_prefix_and_loads_either_way(world):
    module = net()
    ddp = DistributedDataParallel(module, process_group=world(1).groups[0])

    assert list(ddp.state_dict()) == list(module.state_dict())
    assert [name for name, _ in ddp.named_parameters()] == list(module.state_dict())
    plain = {name: Tensor(value.data + 1) for name, value in module.state_dict().items()}
    ddp.load_state_dict(plain)
    assert (module[0].weight.data == plain["0.weight"].data).all()
    ddp.load_state_dict({f"module.{name}": Tensor(v.data + 1) for name, v in plain.items()})
    assert (module[0].weight.data == plain["0.weight"].data + 1).all()


def test_a_module_attribute_called_module_keeps_its_name(world):
    class Outer(Module):
        def __init__(self):
            super().__init__()
            self.module = Linear(2, 2)

        def forward(self, x):
            return self.module(x)

    ddp = DistributedDataParallel(Outer(), process_group=world(1).groups[0])

    assert list(ddp.state_dict()) == ["module.weight", "module.bias"]
    ddp.load_state_dict(ddp.state_dict())


def test_wrappers_are_neither_pickled_nor_copied(world):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(ddp)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(ddp)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rank: Linear(3 + rank, 2), r"rank 1 has parameter weight float32 \[2, 4\] req"),
        (lambda rank: Linear(3, 2, bias=rank == 0), "rank 1 has .* where rank 0 has parameter b"),
        (lambda rank: Linear(3, 2, dtype=("float32", "float64")[rank]), "rank 1 has .*float64"),
        (lambda rank: Embedding(3, 2, sparse=rank == 1), "rank 1 has parameter weight .* sparse"),
        (lambda rank: Linear(3, 2).requires_grad_(rank == 0), "rank 1 has .*requires_grad=False"),
    ],
)
def test_mismatches_raise_on_all_ranks(world, make, words):
    def job(group):
        DistributedDataParallel(make(group.rank), process_group=group)

    errors = world(2).errors(job)

    assert all(isinstance(error, CollectiveMismatch) for error in errors)
    assert str(errors[0]) == str(errors[1])
    with pytest.raises(CollectiveMismatch, match=words):
        raise errors[0]


@pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 3},
        {"forward_sync_buffers": False},
    ],
)
def test_different_options_raise_on_all_ranks(world, options):
    def job(group):
        DistributedDataParallel(net(), process_group=group, **(options if group.rank == 2 else {}))

    for error in world(3).errors(job):
        assert isinstance(error, CollectiveMismatch)
        assert "rank 2 has option" in str(error)


SHORT = {"mixed_precision": MixedPrecision(reduce_dtype=np.float16)}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("some", "others", "words"),
    [
        # Buffers are not copied in forwards by either, and only by the second when wrapping.
        ({"broadcast_buffers": False}, {"forward_sync_buffers": False}, "broadcast_buffers"),
        ({**SHORT, "gradient_as_bucket_view": True}, SHORT, "gradient_as_bucket_view"),
    ],
    ids=["buffers", "views"],
)
def test_options_that_only_some_combinations_show_raise_on_all_ranks(world, some, others, words):
    def job(group):
        options = others if group.rank else some
        DistributedDataParallel(net(), process_group=group, **options)

    for error in world(2).errors(job):
        assert isinstance(error, CollectiveMismatch)
        assert f"rank 1 has option {words}" in str(error)


@pytest.mark.parametrize(("names", "trigger"), [((), None), (("2.bias",), 0), (("2.weight",), 1)])
def test_parameters_delayed_on_some_ranks_only_raise_on_all(world, names, trigger):
    """Rank 0 delays 2.weight until the gradient of the first weight has arrived."""

    def job(group):
        module = net()
        delayed, until = (("2.weight",), 0) if group.rank == 0 else (names, trigger)
        named = dict(module.named_parameters())
        DistributedDataParallel(
            module,
            process_group=group,
            delay_all_reduce_named_params=[(n, named[n]) for n in delayed] or None,
            param_to_hook_all_reduce=list(module.parameters())[until] if delayed else None,
        )

    for error in world(2).errors(job):
        assert isinstance(error, CollectiveMismatch)
        assert "rank 1 has option" in str(error)


def test_constructor_refuses_what_cannot_work(world):
    group = world(1).groups[0]

    with pytest.raises(ValueError, match="no parameter that requires"):
        DistributedDataParallel(net().requires_grad_(False), process_group=group)
    with pytest.raises(ValueError, match="one device"):
        DistributedDataParallel(net(), [0, 1], process_group=group)
    with pytest.raises(ValueError, match="leave them out"):
        DistributedDataParallel(net(), [0], process_group=group)
    with pytest.raises(ValueError, match="belong together"):
        DistributedDataParallel(net(), process_group=group, param_to_hook_all_reduce=Tensor([1]))
    with pytest.raises(ValueError, match="0 or more"):
        DistributedDataParallel(net(), process_group=group, bucket_cap_mb=-1)


def test_devices_and_modes_are_those_of_the_module(world):
    ddp = DistributedDataParallel(net(), process_group=world(1).groups[0])

    assert ddp.join_device == next(ddp.parameters()).device
    assert ddp.train(False) is ddp
    assert not any(module.training for module in ddp.module.modules())
    assert ddp.train().module.training
