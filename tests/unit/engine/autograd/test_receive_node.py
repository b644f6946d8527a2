"""Tensors that came from another process."""

from typing import Any

import numpy as np

from gradmesh.engine import autograd as ag
from gradmesh.engine.autograd.local_pass import find_receive_nodes


class Origin:
    def __init__(self, give_back):
        self.give_back = give_back


def received(arrays, origin):
    tensors = [ag.Tensor(array) for array in arrays]
    return ag.receive(tensors, origin), tensors


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
