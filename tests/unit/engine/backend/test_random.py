from gradmesh.engine.backend import Generator, default_generator, manual_seed


def test_equal_seeds_give_equal_numbers() -> None:
    assert Generator(3).normal(0, 1, (4,)).tolist() == Generator(3).normal(0, 1, (4,)).tolist()


def test_state_returns_to_a_position_in_the_stream() -> None:
    generator = Generator(1)
    generator.random((3,))
    state = generator.get_state()
    first = generator.random((3,)).tolist()

    generator.set_state(state)

    assert generator.random((3,)).tolist() == first


def test_manual_seed_starts_the_default_stream_again() -> None:
    manual_seed(9)
    first = default_generator().random((2,)).tolist()

    manual_seed(9)

    assert default_generator().random((2,)).tolist() == first
    assert default_generator().initial_seed() == 9
