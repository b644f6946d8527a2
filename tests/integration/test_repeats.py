"""Lost responses: every call takes effect, fails, and is sent again."""

from collections import Counter

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import Draining
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding


class Forgetful:
    """Wraps a servicer; each call takes effect, and only its second attempt is answered."""

    def __init__(self, servicer, acted):
        self._servicer = servicer
        self._acted = acted

    def __getattr__(self, verb):
        serve = getattr(self._servicer, verb)
        calls = Counter()

        def forgetful(request, call):
            response = serve(request, call)
            self._acted[verb] += 1
            calls[call.peer] += 1
            if calls[call.peer] % 2:
                raise Draining(f"{verb} acted and forgot to say so")
            return response

        return forgetful


def train(cluster):
    """Do everything that changes rows; return all rows and the servers' counts of steps."""
    mesh = cluster.connect("trainer-0", role="trainer", timeout_s=20.0)
    table = mesh.table("user", rows=30, dim=2, optimizer=optim.Adagrad(lr=0.5), seed=1)
    layer = RemoteEmbedding(table)
    place = mesh.connection.join_trainers(10)
    mesh.connection.start_run(place, [table.name])
    ids = np.random.default_rng(0).integers(0, 30, (6, 8))
    for step in range(3):
        with autograd.step_context(mesh, place.mark(step)) as ctx:
            rows = layer(ids[step])
            autograd.backward(ctx, [(rows * rows).sum()])
            autograd.apply(ctx)
    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [(layer(ids[3]) * layer(ids[4])).sum()])
        autograd.apply(ctx)
    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [layer(ids[5]).sum()])
    table.push(ids[5], np.ones((8, 2), np.float32))
    mesh.connection.store(place.generation).set("key", b"value")
    mesh.connection.report_result(place, {"auc": 0.5})
    steps = [store.table("user", mesh.connection.deadline()).steps for store in cluster.stores]
    return table.lookup(np.arange(30)), steps, place.generation


@pytest.mark.parametrize("servers", [1, 2])
def test_calls_that_are_sent_again_change_nothing(make_cluster, servers):
    acted = Counter()

    plain = train(make_cluster(parameter_servers=servers))
    repeated = train(
        make_cluster(
            parameter_servers=servers,
            lease_s=10.0,
            wrap=lambda servicer: Forgetful(servicer, acted),
        )
    )

    np.testing.assert_array_equal(repeated[0], plain[0])
    assert repeated[1:] == plain[1:]
    assert {verb for verb, count in acted.items() if count >= 2} >= {
        "register",
        "join_round",
        "create_table",
        "describe_table",
        "get_shard_map",
        "put_key",
        "report_result",
        "start_run",
        "lookup",
        "backward",
        "apply",
        "push",
        "release_context",
    }
