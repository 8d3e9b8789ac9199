from contextlib import ExitStack

import pytest

from local_endpoint.rate_limits import LIMITS, RateLimits


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("route", [route for route in LIMITS if route != "purge-queue"])
def test_at_once(route: str) -> None:
    """As many requests as are documented are let in at once, and one more when one has ended."""
    limits = RateLimits(Clock())
    _, at_once = LIMITS[route]
    with ExitStack() as others, limits.request(route, 1, 0, 1) as first:
        for _ in range(at_once - 1):
            assert others.enter_context(limits.request(route, 1, 0, 1)) is None
        for _ in range(2):
            with limits.request(route, 1, 0, 1) as refusal:
                assert refusal is not None
        assert first is None
    with limits.request(route, 1, 0, 1) as refusal:
        assert refusal is None


def test_limits_set_meanwhile() -> None:
    """A request that came in before there were limits does not make room for another at its end."""
    limits = RateLimits(Clock())
    with ExitStack() as stack:
        with limits.request("requests", 0, 0, 1):
            for _ in range(2):
                stack.enter_context(limits.request("requests", 0, 0, 1))
        assert stack.enter_context(limits.request("requests", 1, 0, 1)) is not None


@pytest.mark.parametrize("route", list(LIMITS))
def test_in_ten_seconds(route: str) -> None:
    """As many requests as are documented are let in in ten seconds; a refusal says when again."""
    clock = Clock()
    limits = RateLimits(clock)
    most, _ = LIMITS[route]
    for _ in range(most):
        with limits.request(route, 1, 0, 1) as refusal:
            assert refusal is None
    clock.now_s = 2.5
    with limits.request(route, 1, 0, 1) as refusal:
        assert refusal == {
            "Retry-After": "8",
            "RateLimit-Limit": str(most),
            "RateLimit-Remaining": "0",
            "RateLimit-Reset": "8",
        }
    clock.now_s = 10.0
    with limits.request(route, 1, 0, 1) as refusal:
        assert refusal is None


@pytest.mark.parametrize(
    ("in_queue", "workers", "is_let_in"), [(500, 1, True), (501, 1, False), (501, 2, True)]
)
def test_long_queue(in_queue: int, workers: int, is_let_in: bool) -> None:
    """A queue that is long for its workers takes no more jobs, but shows those in it."""
    limits = RateLimits(Clock())
    with (
        limits.request("run", 1, in_queue, workers) as run,
        limits.request("status", 1, in_queue, workers) as status,
    ):
        assert (run is None) == is_let_in
        assert status is None


def test_off(house) -> None:
    """Without the knob there are no limits."""
    house.serve()
    customer = house.customer()

    assert {customer.post("purge-queue").status_code for _ in range(5)} == {200}


def test_on(house) -> None:
    """With the knob a request too many is answered 429 with the time to wait; workers never are."""
    house.serve(rate_limits=1)
    customer, worker = house.customer(), house.worker()
    answers = [customer.post("purge-queue") for _ in range(3)]
    for _ in range(5):
        worker.ping()

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json() == {"error": "too many requests"}
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 10
    assert answers[2].headers["RateLimit-Remaining"] == "0"
