from populations import member, report

from pbt_rl.pbt.ready import Synchronous


def population(frames, *episodes):
    return report(frames, [member(i, frames=frames, episodes=n) for i, n in enumerate(episodes)])


def held_at(rule, clocks):
    return [c for c in clocks if rule.next_round(population(c, 9, 9)) is not None]


def test_every_period_after_the_burn_in():
    assert held_at(Synchronous(100, 1000, 1), range(0, 1501, 50)) == [1000, 1100, 1200, 1300, 1400, 1500]


def test_the_first_comparison_is_never_before_one_period():
    assert held_at(Synchronous(100, 0, 1), range(0, 301, 50)) == [100, 200, 300]


def test_comparisons_do_not_pile_up_after_a_pause():
    assert held_at(Synchronous(100, 0, 1), [100, 950, 951, 1000, 1049, 1050]) == [100, 950, 1050]


def test_members_with_few_episodes_wait_and_the_others_go_on():
    rule = Synchronous(100, 0, 5)
    first = rule.next_round(population(100, 9, 4, 5))
    assert [m.member for m in first.members] == [0, 2]
    assert first.note == "without 1: fewer than 5 episodes"
    second = rule.next_round(population(200, 9, 5, 5))
    assert ([m.member for m in second.members], second.number, second.note) == ([0, 1, 2], 2, "")


def test_with_fewer_than_two_ready_the_comparison_stays_due_and_says_so():
    rule = Synchronous(100, 0, 5)
    before = rule.state_dict()
    assert rule.next_round(population(100, 9, 4, 4)) is None
    assert rule.next_round(population(130, 9, 4, 4)) is None
    assert rule.state_dict() == before
    late = rule.next_round(population(150, 9, 5, 4))
    assert late.number == 1
    assert late.note == "compared at 150 frames, due at 100; without 2: fewer than 5 episodes"
    assert rule.next_round(population(249, 9, 9, 9)) is None
    assert rule.next_round(population(250, 9, 9, 9)).note == ""


def test_a_population_of_one_is_never_compared():
    rule = Synchronous(100, 0, 1)
    assert all(rule.next_round(population(c, 9)) is None for c in range(0, 1000, 50))


def test_state_round_trip():
    rule, other = Synchronous(100, 300, 1), Synchronous(100, 300, 1)
    rule.next_round(population(350, 9, 9))
    other.load_state_dict(rule.state_dict())
    clocks = range(360, 700, 10)
    assert held_at(other, clocks) == held_at(rule, clocks)
