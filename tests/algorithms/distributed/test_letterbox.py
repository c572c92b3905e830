"""Letters get through or tell what has become of the receiver; last words lead to the first failure."""

import gc
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from dissensus.algorithms.engines.distributed import letterbox
from dissensus.algorithms.engines.distributed.last_words import LastWords, Words, reason_of
from dissensus.algorithms.engines.distributed.letterbox import Letterbox, Place, own_address

HI = {"kind": "hi"}


def boxes(n: int) -> list[Letterbox]:
    found = [Letterbox(number) for number in range(n)]
    for box in found:
        box.secret = found[0].secret
    return found


def places(found: list[Letterbox]) -> dict[int, Place]:
    return {box.number: box.place for box in found}


@pytest.fixture
def mute() -> Iterator[Place]:
    """Somebody whose kernel takes letters in, and who never reads them: a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as slot:
        yield Place(*slot.getsockname())


def test_a_letter_is_kept_and_answered_by_what_the_receiver_says_of_itself() -> None:
    one, other = boxes(2)
    other.answer = lambda letter: {"step": 7, "to": letter["kind"]}
    outcome, answer = one.send(other.place, {**HI, "why": 1.5})
    assert (outcome, answer) == ("delivered", {"step": 7, "to": "hi"})
    assert other.letter("hi", 0) == {**HI, "why": 1.5, "from": 0}
    assert other.letters("hi") == {0: {**HI, "why": 1.5, "from": 0}}
    assert other.letter("hi", 1) is None
    assert other.letters("ho") == {}


def test_who_is_gone_refuses_letters() -> None:
    one, other = boxes(2)
    place = other.place
    other.close()
    assert one.send(place, HI).outcome == "refused"


def test_a_box_that_nobody_needs_is_closed() -> None:
    one, other = boxes(2)
    place = other.place
    del other
    gc.collect()
    assert one.send(place, HI).outcome == "refused"


def test_who_is_stopped_does_not_answer(mute: Place) -> None:
    (one,) = boxes(1)
    assert one.send(mute, HI, patience=0.2).outcome == "unanswered"


def test_letters_of_another_run_are_not_read() -> None:
    one, other = Letterbox(0), Letterbox(1)
    heard: list[object] = []
    other.on_letter = heard.append
    assert one.send(other.place, HI).outcome == "refused"
    assert (heard, other.letters("hi")) == ([], {})


@pytest.mark.parametrize("nonsense", [b"", b"nonsense\n", b"[1]\n", b'{"kind": 3}\n', b'{"kind": "hi"'])
def test_nonsense_does_no_harm(nonsense: bytes) -> None:
    one, other = boxes(2)
    with socket.create_connection(other.place) as connection:
        connection.sendall(nonsense)
    assert one.send(other.place, HI).outcome == "delivered"


def test_somebody_else_at_that_place_is_not_the_receiver() -> None:
    (one,) = boxes(1)
    with ExitStack() as stack:
        slot = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def stranger() -> None:
            connection, _ = slot.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        threading.Thread(target=stranger).start()
        assert one.send(Place(*slot.getsockname()), HI).outcome == "refused"


@pytest.mark.parametrize("abrupt", [False, True])
def test_one_that_hangs_up_may_live(abrupt: bool) -> None:
    (one,) = boxes(1)
    with socket.create_server(("127.0.0.1", 0)) as slot:

        def hang_up() -> None:
            connection, _ = slot.accept()
            with connection:
                connection.recv(1000)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", abrupt, 0))

        threading.Thread(target=hang_up).start()
        assert one.send(Place(*slot.getsockname()), HI).outcome == "unanswered"


def test_many_letters_are_sent_at_once() -> None:
    one, other, gone, third = boxes(4)
    gone.close()
    both = threading.Barrier(2)  # neither answers before the other has its letter
    other.answer = third.answer = lambda letter: {"order": both.wait(10.0)}
    outcomes = {q: posted.outcome for q, posted in one.send_all(places([one, other, gone, third]), HI).items()}
    assert outcomes == {1: "delivered", 2: "refused", 3: "delivered"}


def test_a_letter_that_is_not_to_be_kept_is_not() -> None:
    one, other = boxes(2)
    heard: list[object] = []
    other.takes, other.on_letter = lambda letter: letter["kind"] != "hi", heard.append
    assert one.send(other.place, HI).outcome == "delivered"
    assert (other.letter("hi", 0), heard) == (None, [])


def test_a_letter_is_kept_before_anybody_hears_of_it() -> None:
    one, other = boxes(2)
    heard: list[object] = []
    other.on_letter = lambda letter: heard.append(other.letter("hi", 0))
    one.send(other.place, HI)
    assert heard == [{**HI, "from": 0}]


def test_a_sender_that_was_stopped_halfway_cannot_tell_who_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver has hung up meanwhile, but that is no sign of its death."""
    one, other = boxes(2)
    hung_up, read = threading.Event(), letterbox._read

    def read_and_tell(*given: Any) -> None:
        read(*given)
        hung_up.set()

    def stopped(*given: Any, **options: Any) -> socket.socket:
        connection = connected(*given, **options)
        assert hung_up.wait(10.0)
        return connection

    connected = socket.create_connection
    monkeypatch.setattr(letterbox, "ANSWERED_WITHIN", 0.01)
    monkeypatch.setattr(letterbox, "_read", read_and_tell)
    monkeypatch.setattr(letterbox.socket, "create_connection", stopped)
    assert one.send(other.place, HI, patience=3.0).outcome == "unanswered"


def test_waiting_ends_with_a_letter() -> None:
    one, other = boxes(2)
    threading.Timer(0.1, partial(one.send, other.place, HI)).start()
    for _ in range(100):
        other.wait(5.0)
        if other.letter("hi", 0):
            break
    assert other.letter("hi", 0) is not None


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost"])
def test_on_one_machine_boxes_listen_on_loopback_alone(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    assert own_address() == ("127.0.0.1", "127.0.0.1")


def test_the_hosts_name_is_where_its_own_box_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.1.1")  # as a host's own name is often resolved on the host itself
    assert own_address() == ("", "127.0.1.1")


# ---- last words


def crowd(n: int) -> list[LastWords]:
    found = boxes(n)
    return [LastWords(box, places(found)) for box in found]


def closed(words: LastWords) -> None:
    words._box.close()


def test_the_chain_of_accusations_leads_to_one_that_has_said_nothing() -> None:
    one, two, three, dead = crowd(4)
    closed(dead)
    first = three.leave(7, 3, "three lost dead")
    second = two.leave(8, 2, "two lost three")
    third = one.leave(9, 1, "one lost two")
    closed(two)
    closed(three)
    assert one.first(third) == first == Words(7, 2, 3, "three lost dead")
    assert one.first(first) == first
    assert second.said == "two lost three"


def test_who_ends_on_its_own_account_is_the_first() -> None:
    one, two = crowd(2)
    own = two.leave(4, 1, "two has had enough")
    assert one.first(one.leave(5, 1, "one lost two")) == own


def test_of_those_that_wait_for_each_other_the_one_that_is_furthest_behind_is_the_first() -> None:
    one, two = crowd(2)
    late, early = one.leave(6, 1, "one waits for two"), two.leave(5, 0, "two waits for one")
    assert one.first(late) == two.first(early) == early


def test_one_that_lives_may_take_a_moment_to_say_why() -> None:
    one, two, dead = crowd(3)
    closed(dead)
    threading.Timer(0.3, lambda: two.leave(3, 2, "two lost dead")).start()
    assert one.first(one.leave(4, 1, "one lost two")).said == "two lost dead"


def test_one_that_is_slow_to_answer_is_not_taken_for_gone() -> None:
    one, two, dead = crowd(3)
    closed(dead)

    def slowly(letter: dict[str, Any]) -> dict[str, Any]:
        time.sleep(1.2)
        return {}

    own = one.leave(4, 1, "one lost two")
    two._box.answer = slowly
    threading.Timer(1.3, lambda: two.leave(3, 2, "two lost dead")).start()
    assert one.first(own).said == "two lost dead"


def test_a_second_death_without_a_word_is_not_the_first() -> None:
    one, two, dead, second = crowd(4)
    closed(dead)
    closed(second)
    first = two.leave(7, 2, "two lost dead")
    assert one.first(one.leave(8, 3, "one lost second")) == first
    assert two.first(first) == first


def test_one_who_was_torn_away_and_has_not_said_so_yet_is_not_the_first() -> None:
    """One closes its connections because others have ended, and another one notices that before it has its words."""
    torn, hasty, dead, fourth = crowd(4)
    closed(dead)
    hasty.leave(0, 0, "hasty lost torn")
    threading.Timer(0.3, lambda: torn.leave(0, 3, "torn heard of fourth")).start()
    own = fourth.leave(0, 2, "fourth lost dead")
    assert fourth.first(own) == own
    assert hasty.first(Words(0, 1, 0, "hasty lost torn")) == own


def test_where_nobody_knows_whom_it_is_who_does_not_answer() -> None:
    one, two, dead = crowd(3)
    closed(dead)
    own = one.leave(4, None, "one cannot sum")
    assert own == Words(4, 0, 2, "one cannot sum; process 2 does not answer")
    assert two.first(two.leave(5, 0, "two lost one")) == own, "and all are told so"


def test_who_has_left_last_words_is_not_accused_of_being_gone() -> None:
    one, two, three = crowd(3)
    own = two.leave(4, 1, "two has had enough")
    closed(two)
    closed(three)
    assert one.leave(4, None, "one cannot sum").peer == 2
    assert one.first(Words(4, 0, None, "nobody knows")) == own


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:1234", "its connection is closed"),
        ("[pair.cc:537] Read error: Connection reset by peer", "its connection is closed"),
        ("[unbound_buffer.cc:78] Timed out waiting 1ms for recv", "nothing happened until the time-out"),
        ("the roof is on fire\nand more", "the roof is on fire"),
    ],
)
def test_what_a_transport_says_becomes_a_few_words(said: str, reason: str) -> None:
    assert reason_of(said).startswith(reason)
    assert "\n" not in reason_of(said)


def test_letters_are_plain_text() -> None:
    """Nothing that is executed when it is read."""
    (one,) = boxes(1)
    with socket.create_server(("127.0.0.1", 0)) as slot:
        thread = threading.Thread(target=one.send, args=(Place(*slot.getsockname()), HI, 0.5))
        thread.start()
        connection, _ = slot.accept()
        with connection:
            assert json.loads(connection.recv(1000)) == {**HI, "from": 0, "secret": one.secret}
        thread.join()
