"""Those that are left agree: members are threads here, with letterboxes and without a transport."""

import threading
from collections.abc import Callable

import pytest
from crowds import SOON, Clock, Crowd, until

from dissensus.algorithms.engines.distributed.handing_over import donor
from dissensus.algorithms.engines.distributed.letterbox import Place
from dissensus.algorithms.engines.distributed.membership import CALLED, LeftOutError, Members
from dissensus.theory import topology


def test_those_that_are_left_go_on_from_a_step_that_nobody_has_begun(crowd: Callable[..., Crowd]) -> None:
    four = crowd(4)
    four.gone(2)
    found = four.agree(0, 1, 3, steps={0: 5, 1: 7, 3: 6})
    assert found[0] == found[1] == found[2]
    assert found[0].numbers == (0, 1, 3)
    assert (found[0].step, found[0].count, found[0].generation, found[0].leader) == (8, 7, 1, 0)
    assert (found[0].newcomers, found[0].meets) == ((), Place("chosen by 0", 1))


def test_all_know_who_is_isolated(crowd: Callable[..., Crowd]) -> None:
    four = crowd(4)
    four.gone(0)
    agreeing = [four.begin(q, isolated=q == 1) for q in (1, 2, 3)]
    found = [f.result(SOON) for f in agreeing]
    assert found[0] == found[1] == found[2]
    assert found[0].isolated == (1,)


def test_nobody_who_is_isolated_gives_to_one_that_comes() -> None:
    ring = topology("ring", 4)
    assert donor(ring, 4, 2, (0, 1, 3)) == 1
    assert donor(ring, 4, 2, (0, 1, 3), (1,)) == 3
    assert donor(ring, 4, 2, (0, 1, 3), (1, 3)) == 0
    assert donor(ring, 4, 2, (1,), (1,)) == 1, "there is nobody else"


def test_the_lowest_that_is_left_decides(crowd: Callable[..., Crowd]) -> None:
    five = crowd(5)
    five.gone(0, 1)
    found = five.agree(4, 3, 2)
    assert {one.numbers for one in found} == {(2, 3, 4)}
    assert {one.leader for one in found} == {2}


def test_one_that_is_stopped_is_not_waited_for(crowd: Callable[..., Crowd]) -> None:
    four = crowd(4, timeout=1000.0)
    four.stopped(1)
    assert {one.numbers for one in four.agree(0, 2, 3)} == {(0, 2, 3)}


def test_one_that_is_busy_is_waited_for(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3, timeout=1000.0)
    early = [three.begin(0), three.begin(2)]
    until(lambda: three.members[1].called)  # it was told, and comes when it has time
    assert not any(f.done() for f in early)
    assert {f.result(SOON).numbers for f in [*early, three.begin(1)]} == {(0, 1, 2)}


def test_one_that_is_stuck_is_left_out_after_the_time_out_and_told_so(
    crowd: Callable[..., Crowd], clock: Clock
) -> None:
    three = crowd(3, timeout=1000.0)
    found = three.agree_in_time(clock, 0, 1)
    assert {one.numbers for one in found} == {(0, 1)}
    three.commit(*found)
    with pytest.raises(LeftOutError, match=r"the others went on without process 2.*start it again"):
        three.members[2].agree(5, 0, "lost by 2")


def test_who_was_left_out_does_not_disturb_the_others(crowd: Callable[..., Crowd], clock: Clock) -> None:
    three = crowd(3, timeout=1000.0)
    three.commit(*three.agree_in_time(clock, 0, 1))
    with pytest.raises(LeftOutError):
        three.members[2].agree(5, 0, "lost by 2")
    assert not three.members[0].called
    assert not three.members[1].called


def test_one_that_was_started_again_is_let_in(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    three.gone(1)
    three.commit(*three.agree(0, 2))
    again = three.anew(1)
    again.visit()
    assert again.now.numbers == (0, 2)
    comes = three.comes(again)
    found = [comes.result(SOON) for comes in (comes, three.begin(0, 20), three.begin(2, 21))]
    assert found[0] == found[1] == found[2]
    assert (found[0].numbers, found[0].newcomers, found[0].step, found[0].leader) == ((0, 1, 2), (1,), 22, 0)


def test_one_that_comes_as_the_others_are_done_with_that_attempt_tries_the_next(crowd: Callable[..., Crowd]) -> None:
    four = crowd(4)
    four.gone(1)
    four.commit(*four.agree(0, 2, 3))
    again = four.anew(1)
    again.visit()
    four.gone(3)
    four.commit(*four.agree(0, 2))  # the very attempt that it is about to take part in
    comes = four.comes(again)
    found = [comes.result(SOON) for comes in (comes, four.begin(0, 20), four.begin(2, 21))]
    assert {(one.numbers, one.newcomers, one.generation) for one in found} == {((0, 1, 2), (1,), 3)}


def test_one_that_nobody_lets_in_gives_up(crowd: Callable[..., Crowd]) -> None:
    two = crowd(2, timeout=0.5)
    again = two.anew(1)
    again.visit()
    with pytest.raises(LeftOutError, match=r"process 0 of the run let nobody in for 0.5 s"):
        again.agree(0, 0, "started again", newcomer=True)


def test_one_that_comes_back_before_anybody_has_missed_it(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    three.gone(0)
    again = three.anew(0)
    again.visit()
    comes = three.comes(again)
    found = [comes.result(SOON) for comes in (comes, three.begin(1), three.begin(2))]
    assert {(one.numbers, one.newcomers, one.leader) for one in found} == {((0, 1, 2), (0,), 1)}, "it does not decide"


def test_two_attempts_become_one(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    three.members[2].attempt = three.members[2]._heard_of = 7  # has failed more often than the others
    found = three.agree(0, 1, 2)
    assert {one.generation for one in found} == {8}


def test_a_second_loss_while_they_agree(crowd: Callable[..., Crowd]) -> None:
    four = crowd(4, timeout=1000.0)
    four.gone(3)
    waiting = [four.begin(0), four.begin(1)]  # and 2 is waited for, until it is gone as well
    threading.Event().wait(0.3)
    assert not any(f.done() for f in waiting)
    four.gone(2)
    assert {f.result(SOON).numbers for f in waiting} == {(0, 1)}


def test_half_of_them_go_on_only_with_the_lowest(crowd: Callable[..., Crowd]) -> None:
    two = crowd(2)
    two.stopped(1)
    assert two.agree(0)[0].numbers == (0,)
    other = crowd(2)
    other.stopped(0)
    with pytest.raises(LeftOutError, match=r"of processes 0, 1 only process 1 can go on.*what process 0 will do"):
        other.members[1].agree(5, 0, "lost")


def test_the_last_of_those_that_are_gone_for_certain_goes_on(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    three.gone(0, 1)
    assert three.agree(2)[0].numbers == (2,)


def test_less_than_half_do_not_go_on(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    three.stopped(1)
    three.stopped(2)
    with pytest.raises(LeftOutError, match="stopped, lest there be two groups"):
        three.members[0].agree(5, 0, "lost")


def test_nobody_is_left_to_join(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    three.gone(0, 2)
    again = three.anew(1)
    with pytest.raises(LeftOutError, match="nobody of the run answers any more"):
        again.visit()


def test_the_reason_is_that_of_one_who_has_lost_somebody_that_is_gone(crowd: Callable[..., Crowd]) -> None:
    four = crowd(4)
    four.gone(3)
    called = four.threads.submit(four.members[0].agree, 5, 0, CALLED)
    misled = four.begin(1, lost=2)  # which only had gone to agree
    right = four.begin(2, lost=3)
    assert {f.result(SOON).why for f in (called, misled, right)} == {"lost by 2"}


def test_whether_a_group_to_be_lives(crowd: Callable[..., Crowd]) -> None:
    three = crowd(3)
    group = Members(1, three.places)
    assert three.members[0].lives(group)
    three.gone(2)
    assert not three.members[0].lives(group)
