"""What goes along with the URL of a plan where it is pickled."""

from __future__ import annotations

import pickle

import pytest

from pyomid.errors import Misuse, Unavailable
from pyomid.spark.connections import TaskUrl, sent_token, user_of
from pyomid.types import TaskToken

SECRET = b"what nobody sees"


def token(user: str, expires_ms: int) -> TaskToken:
    return TaskToken(user, expires_ms, SECRET)


def sent(url: TaskUrl) -> TaskUrl:
    """As another process has it."""
    found = pickle.loads(pickle.dumps(url))
    assert isinstance(found, TaskUrl)
    return found


def shown_with(url: str) -> TaskToken | None:
    source = sent_token(url)
    return None if source is None else source()


def test_a_plain_url_and_one_without_tokens_bring_none() -> None:
    for url in ("omid:///a", TaskUrl("omid:///a", lambda: None), sent(TaskUrl("omid:///a", lambda: None))):
        assert (url, user_of(url), sent_token(url)) == ("omid:///a", "", None)


@pytest.mark.parametrize("granted", [None, token("alice", 1)])
def test_a_sent_url_is_still_that_of_its_database(granted: TaskToken | None) -> None:
    url = TaskUrl("omid:///of_one_database", lambda: granted, database_id=b"one")
    assert sent(sent(url)).database_id == b"one"


def test_the_newest_token_at_the_time_of_pickling_is_sent() -> None:
    newest = [token("alice", 1)]
    url = TaskUrl("omid+hbase://one", lambda: newest[-1])
    first = sent(url)
    newest.append(token("alice", 2))
    sent(url)
    assert shown_with(first) == newest[-1], "a process shows the newest that it was sent"
    newest.append(token("alice", 1))
    assert shown_with(sent(url)) == newest[1]


def test_each_user_is_shown_with_tokens_of_their_own() -> None:
    alice, bob = (sent(TaskUrl("omid+hbase://two", lambda name=name: token(name, 1))) for name in ("alice", "bob"))
    assert alice == bob == "omid+hbase://two"
    assert [user_of(each) for each in (alice, bob)] == ["alice", "bob"]
    assert [shown_with(each) for each in (alice, bob)] == [token("alice", 1), token("bob", 1)]
    assert sent_token("omid+hbase://two") is None, "the process's own connection shows what it itself has"


def test_who_was_sent_a_token_sends_it_on() -> None:
    here = sent(TaskUrl("omid+hbase://three", lambda: token("alice", 7)))
    assert shown_with(sent(here)) == token("alice", 7)


def test_a_token_that_cannot_be_had_is_told_before_a_pickle() -> None:
    answers: list[TaskToken | Exception] = [Misuse("none at all")]

    def source() -> TaskToken:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Misuse, match="none at all"):
        TaskUrl("omid+hbase://four", source)
    answers += [token("alice", 3), Unavailable("no HBase")]
    assert shown_with(sent(TaskUrl("omid+hbase://four", source))) == token("alice", 3)


def test_no_text_of_a_url_has_its_secret() -> None:
    url = TaskUrl("omid+hbase://five", lambda: token("alice", 1))
    for text in (str(url), repr(url), f"{url}", f"{url!r}", repr(vars(url))):
        assert SECRET.decode() not in text
