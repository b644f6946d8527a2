from gradmesh.launch.policy import RestartPolicy


def test_delays_double_up_to_a_limit_then_it_gives_up() -> None:
    policy = RestartPolicy(first_s=0.5, most_s=10, most_in_a_row=6)

    delays = [policy.delay_s(deaths) for deaths in range(1, 8)]

    assert delays == [0.5, 1, 2, 4, 8, 10, None]


def test_long_life_wipes_the_slate() -> None:
    policy = RestartPolicy(healthy_s=30)

    assert policy.deaths(5, lived_s=29) == 6
    assert policy.deaths(5, lived_s=30) == 1


def test_many_deaths_do_not_overflow() -> None:
    assert RestartPolicy(most_in_a_row=10**9).delay_s(10**6) == 10.0
