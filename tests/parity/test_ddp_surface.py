"""The table of docs/ddp.md has a correct row for every name of torch's DDP."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

from gradmesh.engine.nn import Linear
from gradmesh.trainer.ddp import DistributedDataParallel, GradBucket, comm_hooks
from gradmesh.trainer.process_group import LocalProcessGroup

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
STATES = ("as torch", "differs", "absent")


def rows(section):
    """Return (state, test) by torch's name; methods end in ()."""
    text = (ROOT / "docs/ddp.md").read_text().partition(f"\n## {section}\n")[2]
    text = text.partition("\n## ")[0]
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = cells[1], cells[3].strip("`")
    return found


def arguments(kind):
    given = inspect.signature(kind.__init__).parameters
    return {name: value.default for name, value in given.items() if name != "self"}


ROWS = rows("Name by name")
ATTRIBUTES = rows("Attribute by attribute")
HOOKS = rows("Hook by hook")
# What is written otherwise here.
OWN_NAMES = {
    "powerSGD_hook": "power_sgd_hook",
    "batched_powerSGD_hook": "batched_power_sgd_hook",
    "post_localSGD_hook": "post_local_sgd_hook",
}
TORCH = arguments(torch.nn.parallel.DistributedDataParallel)
OURS = arguments(DistributedDataParallel)


def test_every_argument_and_public_method_of_torch_has_a_row():
    kind = torch.nn.parallel.DistributedDataParallel
    methods = {f"{name}()" for name in vars(kind) if not name.startswith("_") and name not in TORCH}

    assert sorted({*TORCH, *methods} - ROWS.keys()) == []
    known = {*TORCH, *(f"{name}()" for name in dir(kind))}
    assert sorted(ROWS.keys() - known) == []


@pytest.mark.parametrize("name", TORCH)
def test_rows_of_arguments_say_what_is_so(name):
    state, _ = ROWS[name]

    assert state in STATES
    assert (name in OURS) == (state != "absent")
    if state == "as torch":
        assert OURS[name] == TORCH[name]


def test_arguments_of_our_own_have_torchs_names():
    assert OURS.keys() <= TORCH.keys()


@pytest.mark.parametrize("name", [name for name in ROWS if name.endswith("()")])
def test_rows_of_methods_say_what_is_so(name):
    state, own = ROWS[name][0], name.removesuffix("()")

    assert state in STATES
    if not own.startswith("_"):
        assert hasattr(DistributedDataParallel, own) == (state != "absent")


@pytest.mark.parametrize("name", [name for name, (state, _) in ROWS.items() if state == "absent"])
def test_absent_names_are_refused(name):
    if name.endswith("()"):
        assert not hasattr(DistributedDataParallel, name.removesuffix("()"))
        return
    with pytest.raises(TypeError, match=name):
        DistributedDataParallel(Linear(2, 1), process_group=LocalProcessGroup(), **{name: None})


def test_every_row_names_a_test_that_exists():
    text = "".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))

    named = [test for _, test in (*ROWS.values(), *ATTRIBUTES.values(), *HOOKS.values())]
    assert [test for test in named if f"def {test}(" not in text] == []


def test_every_public_attribute_of_torch_has_a_row():
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        made = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    finally:
        distributed.destroy_process_group()
    theirs = vars(made).keys() - vars(torch.nn.Module()).keys()
    theirs |= {name for name, value in vars(type(made)).items() if isinstance(value, property)}
    public = {name for name in theirs if not name.startswith("_")}
    public -= {name.removesuffix("()") for name in ROWS if name.endswith("()")}

    # The module is a child there, not a variable.
    assert sorted({"module", *public}) == sorted(ATTRIBUTES)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_rows_of_attributes_say_what_is_so(name):
    made = DistributedDataParallel(Linear(2, 1), process_group=LocalProcessGroup())

    assert hasattr(made, name) == (ATTRIBUTES[name][0] == "as torch")


def test_logging_data_shows_the_options_that_are_no_attributes():
    made = DistributedDataParallel(Linear(2, 1), process_group=LocalProcessGroup())

    assert made.logging_data().keys() >= {
        "device_ids",
        "output_device",
        "is_multi_device_module",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
        "forward_sync_buffers",
        "bucket_cap_bytes",
        "bucket_sizes",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_public_hook_of_torch_has_a_row():
    package = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks")
    public = {*package.__all__}
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        public |= {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        }
    bucket = torch.distributed.GradBucket
    public |= {f"GradBucket.{name}" for name in dir(bucket) if not name.startswith("_")}

    assert public == HOOKS.keys()


@pytest.mark.parametrize("name", HOOKS)
def test_rows_of_hooks_say_what_is_so(name):
    state = HOOKS[name][0]
    owner, _, own = name.rpartition(".")

    assert state in STATES
    place = GradBucket if owner else comm_hooks
    assert hasattr(place, OWN_NAMES.get(own, own)) == (state != "absent")


@pytest.mark.parametrize(
    "name", [name for name, (state, _) in ROWS.items() if name.endswith("()") and state != "absent"]
)
def test_methods_have_the_arguments_of_torch(name):
    own = name.removesuffix("()")
    theirs = getattr(torch.nn.parallel.DistributedDataParallel, own)
    if own.startswith("_") or isinstance(theirs, property):
        return
    taken = defaults(getattr(DistributedDataParallel, own))

    assert {n: value for n, value in defaults(theirs).items() if taken.get(n) != value} == {}


def defaults(function):
    """Return the defaults of arguments that have a name."""
    given = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in given if each.kind == each.POSITIONAL_OR_KEYWORD}
