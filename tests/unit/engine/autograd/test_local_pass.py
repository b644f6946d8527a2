"""A backward pass whose gradients arrive at different times, and its copies of gradients."""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine.autograd import GradientEntry, LocalPass, engine, local_pass
from gradmesh.engine.autograd.local_pass import find_receive_nodes
from gradmesh.engine.backend import ShapeError


class Origin:
    def __init__(self, give_back):
        self.give_back = give_back


def received(arrays, origin):
    tensors = [ag.Tensor(array) for array in arrays]
    return ag.receive(tensors, origin), tensors


def leaf(*values: float, dtype: Any = np.float32) -> ag.Tensor:
    return ag.tensor(np.array(values, dtype), requires_grad=True)


def one() -> Any:
    return np.ones((), np.float32)


def test_roots_alone_give_what_a_local_backward_gives() -> None:
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    a, b = (x * w).sum(), (x.exp() * 2).sum()
    expected: dict[Any, Any] = {}
    ag.run_backward([a, b], retain_graph=True, into=expected)

    into: dict[Any, Any] = {}
    entry = GradientEntry([a, b])
    whole = LocalPass([entry], retain_graph=False, into=into)
    whole.feed(entry, [one(), one()])
    whole.run()

    assert whole.left == 0
    assert into.keys() == expected.keys()
    for key, grad in expected.items():
        np.testing.assert_array_equal(into[key], grad)
    assert x.grad is None


def test_a_node_runs_when_all_its_gradients_have_arrived() -> None:
    x = leaf(1.0, 2.0)
    shared = x * 3
    sent = GradientEntry([shared])
    root = GradientEntry([shared.sum()])
    into: dict[Any, Any] = {}
    part = LocalPass([root, sent], retain_graph=False, into=into)

    part.feed(root, [one()])
    part.run()
    waiting = dict(into), part.left
    part.feed(sent, [np.array([10.0, 20.0], np.float32)])
    part.run()

    assert waiting[0] == {}
    assert waiting[1] > 0
    assert part.left == 0
    assert into[x].tolist() == [33.0, 63.0]


def test_sums_are_the_same_bits_in_any_order_of_arrival() -> None:
    x = leaf(*np.linspace(0.1, 1.7, 7))
    entries = [GradientEntry([x * factor]) for factor in (0.1, 3.3, 1e6, 7e-5)]
    grads = [np.linspace(i - 0.7, i + 1.1, 7).astype(np.float32) for i in range(4)]
    seen = set()

    for order in itertools.permutations(range(4)):
        into: dict[Any, Any] = {}
        part = LocalPass(entries, retain_graph=True, into=into)
        for i in order:
            part.feed(entries[i], [grads[i]])
            part.run()
        assert part.left == 0
        seen.add(into[x].tobytes())

    assert len(seen) == 1


def test_the_bits_are_those_of_one_local_pass() -> None:
    x = leaf(*np.linspace(0.1, 1.7, 7))
    parts = [x * 0.1, x * 3.3, x * 1e6, x.exp()]
    grads = [np.linspace(i - 0.7, i + 1.1, 7).astype(np.float32) for i in range(4)]
    expected: dict[Any, Any] = {}
    ag.run_backward(parts, grads, retain_graph=True, into=expected)

    entries = [GradientEntry([part]) for part in parts]
    into: dict[Any, Any] = {}
    whole = LocalPass(entries, retain_graph=False, into=into)
    for i in (2, 0, 3, 1):
        whole.feed(entries[i], [grads[i]])
        whole.run()

    assert into[x].tobytes() == expected[x].tobytes()


def test_entries_that_no_gradient_reaches_end_without_a_key() -> None:
    x, y = leaf(1.0), leaf(2.0)
    used, unused = GradientEntry([x * 2]), GradientEntry([y * 3])
    got: list[Any] = []
    _, (far,) = received([np.ones(1, np.float32)], Origin(got.append))
    beyond = GradientEntry([far * 2])
    into: dict[Any, Any] = {}
    part = LocalPass([used, unused, beyond], retain_graph=False, into=into)

    part.feed(used, [np.ones(1, np.float32)])
    part.feed(unused, [None])
    part.feed(beyond, [None])
    part.run()

    assert part.left == 0
    assert set(into) == {x}
    assert got == [[None]]


def test_the_last_received_tensor_sees_that_nothing_is_left() -> None:
    left: list[int] = []
    _, (far,) = received([np.ones(1, np.float32)], Origin(lambda grads: left.append(part.left)))
    w = leaf(3.0)
    entry = GradientEntry([far * w])
    part = LocalPass([entry], retain_graph=False, into={})

    part.feed(entry, [np.ones(1, np.float32)])
    part.run()

    assert left == [0]


def test_several_results_of_one_node_come_together() -> None:
    x = leaf(1.0, 2.0, 3.0, 4.0)
    first, second = x.chunk(2)
    one_of, other = GradientEntry([first]), GradientEntry([second])
    into: dict[Any, Any] = {}
    part = LocalPass([one_of, other], retain_graph=False, into=into)

    part.feed(other, [np.array([3.0, 4.0], np.float32)])
    part.run()
    part.feed(one_of, [None])
    part.run()

    assert into[x].tolist() == [0.0, 0.0, 3.0, 4.0]


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_of_tensors_without_dimensions_are_arrays(count: int) -> None:
    got: list[Any] = []
    # numpy makes scalars, not arrays, of arithmetic on arrays of no dimension.
    _, tensors = received([one() * np.ones(()) for _ in range(count)], Origin(got.extend))
    root = GradientEntry([sum(t.relu() * 2 for t in tensors)])
    part = LocalPass([root], retain_graph=False, into={})

    part.feed(root, [np.ones(())])
    part.run()

    assert [type(grad) for grad in got] == [np.ndarray] * count
    assert [grad.tolist() for grad in got] == [2.0] * count


def test_hooks_run_once_with_the_whole_gradient() -> None:
    x, seen = leaf(1.0), []
    y = x * 2
    y.register_hook(lambda grad: seen.append(("y", grad.tolist())))
    x.register_hook(lambda grad: grad * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(("x", into[p].tolist())))
    entries = [GradientEntry([y]), GradientEntry([y]), GradientEntry([x])]
    into: dict[Any, Any] = {}
    part = LocalPass(entries, retain_graph=False, into=into)

    for entry in entries:
        part.feed(entry, [np.ones(1, np.float32)])
        part.run()

    assert seen == [("y", [2.0]), ("x", [50.0])]


def test_row_gradients_stay_sparse() -> None:
    table = leaf(*range(8))
    rows = ag.RowGrad(np.array([1, 3]), np.ones((2, 2), np.float32), 4)
    table = ag.tensor(np.zeros((4, 2), np.float32), requires_grad=True)
    entries = [GradientEntry([table]), GradientEntry([table])]
    into: dict[Any, Any] = {}
    part = LocalPass(entries, retain_graph=False, into=into)

    for entry in entries:
        part.feed(entry, [rows])
    part.run()

    assert type(into[table]) is ag.RowGrad
    assert into[table].coalesce().rows.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_undo_removes_the_gradients_of_the_pass() -> None:
    x, y = leaf(1.0), leaf(2.0)
    held = np.array([7.0], np.float32)
    into: dict[Any, Any] = {x: held}
    entry = GradientEntry([x * 2 + y])
    part = LocalPass([entry], retain_graph=True, into=into)
    part.feed(entry, [np.ones(1, np.float32)])
    part.run()
    after = {key: grad.tolist() for key, grad in into.items()}

    part.undo()

    assert after == {x: [9.0], y: [1.0]}
    assert into == {x: held}
    assert held.tolist() == [7.0]


def test_a_used_graph_and_a_changed_value_are_named() -> None:
    x = leaf(1.0)
    y = x * x
    entry = GradientEntry([y])

    def run(retain_graph: bool) -> None:
        part = LocalPass([entry], retain_graph=retain_graph, into={})
        part.feed(entry, [np.ones(1, np.float32)])
        part.run()

    run(False)
    with pytest.raises(ag.GraphReleased, match="Mul"):
        run(False)

    z = x * x
    with ag.no_grad():
        x.mul_(2.0)
    entry = GradientEntry([z])
    with pytest.raises(ag.InplaceError, match="Mul"):
        run(False)


def test_an_entry_refuses_gradients_that_do_not_fit() -> None:
    entry = GradientEntry([leaf(1.0, 2.0)])

    entry.check([None])
    entry.check([np.ones(2, np.float32)])
    with pytest.raises(ShapeError, match=r"shape \(3,\)"):
        entry.check([np.ones(3, np.float32)])
    with pytest.raises(ShapeError, match="float64"):
        entry.check([np.ones(2, np.float64)])
    with pytest.raises(ag.GradientError, match="2 gradients for 1"):
        entry.check([None, None])


def address(array: Any) -> int:
    return array.__array_interface__["data"][0]


class Doubled(ag.Function):
    """Record where the gradient of the last backward lies; keep it if a list is given."""

    held: list[Any] | None = None
    last = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        result = grad * 2
        Doubled.last = address(result)
        if Doubled.held is not None:
            Doubled.held.append(result)
        return result


def backward_locally(y: ag.Tensor, into: dict[Any, Any]) -> None:
    entry = GradientEntry([y])
    part = LocalPass([entry], retain_graph=False, into=into)
    part.feed(entry, [np.ones(2, np.float32)])
    part.run()


def backward_at_once(y: ag.Tensor, into: dict[Any, Any]) -> None:
    ag.run_backward([y], [np.ones(2, np.float32)], into=into)


def plain_count(value: Any) -> int:
    return sys.getrefcount(value)


def frugal_count(value: Any) -> int:
    """Count as an interpreter whose calls borrow their arguments."""
    return sys.getrefcount(value) - 3


@pytest.mark.parametrize("count", [sys.getrefcount, plain_count, frugal_count])
@pytest.mark.parametrize("backward", [backward_locally, backward_at_once])
def test_only_a_gradient_with_other_references_is_copied(
    monkeypatch: pytest.MonkeyPatch, backward: Callable[..., None], count: Callable[[Any], int]
) -> None:
    # What a call adds to a reference count depends on the interpreter: a constant is wrong on some.
    monkeypatch.setattr(engine, "getrefcount", count)
    alone = engine._count_alone()
    for module in (engine, local_pass):
        monkeypatch.setattr(module, "getrefcount", count)
        monkeypatch.setattr(module, "ALONE", alone)
    x, kept, shared = leaf(1.0, 2.0), {}, {}

    monkeypatch.setattr(Doubled, "held", None)
    backward(Doubled.apply(x), kept)
    assert address(kept[x]) == Doubled.last

    monkeypatch.setattr(Doubled, "held", [])
    backward(Doubled.apply(x), shared)
    assert address(shared[x]) != Doubled.last
    assert shared[x].tolist() == kept[x].tolist() == [2.0, 2.0]


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def test_one_tensor_gets_its_complete_gradient() -> None:
    got: list[Any] = []
    node, (x,) = received([ones(2)], Origin(lambda grads: got.append(grads[0].tolist())))

    (x * 2 + x * 3).sum().backward()

    assert got == [[5.0, 5.0]]
    assert x.grad_fn is node
    assert x.requires_grad
    assert not x.is_leaf


def test_tensors_of_one_message_are_handed_over_together() -> None:
    got: list[Any] = []
    node, (x, y, unused) = received([ones(2), ones(3), ones(1)], Origin(got.append))

    ((x * 2).sum() + (y * 3).sum()).backward()

    assert len(got) == 1
    assert [None if g is None else g.tolist() for g in got[0]] == [[2.0] * 2, [3.0] * 3, None]
    assert node.outputs == 3
    assert unused.requires_grad


def test_hooks_of_a_received_tensor_change_what_is_handed_over() -> None:
    got: list[Any] = []
    _, (x,) = received([ones(2)], Origin(got.append))
    x.register_hook(lambda grad: grad * 2)

    (x * 3).sum().backward()

    assert got[0][0].tolist() == [6.0, 6.0]


def test_find_receive_nodes_sees_only_what_the_tensors_were_made_from() -> None:
    leaf = ag.tensor([1.0, 2.0], requires_grad=True)
    old = leaf * 2
    first, (x,) = received([ones(2)], Origin(lambda grads: None))
    second, (y, z) = received([ones(2), ones(2)], Origin(lambda grads: None))
    mixed = x * old + leaf

    assert find_receive_nodes([mixed], first.sequence) == [first]
    assert set(find_receive_nodes([mixed, y * z], first.sequence)) == {first, second}
    assert find_receive_nodes([old, leaf], first.sequence) == []
