from gradmesh.sdk.cluster.membership import Membership


def test_a_mark_names_a_step_and_a_rank():
    mark = Membership(generation=3, rank=1, world_size=2).mark(7)

    assert (mark.generation, mark.step, mark.rank) == (3, 7, 1)
