"""The basics of faults: stopped jobs, dead engines, bad starts."""

import time

import pytest

import models
from local_endpoint import Knobs, Status
from served import Served, cancel, metric, running_requests, serve, text
from waiting import is_alive, wait_until

pytestmark = pytest.mark.timeout(400)

LONG = 200
ENDLESS = {"max_tokens": LONG, "ignore_eos": True}


@pytest.mark.parametrize(
    ("given", "sequences"),
    [
        pytest.param(
            {"prompt": "Hello", "stream": True, "sampling_params": ENDLESS},
            1,
            marks=pytest.mark.slow,
        ),
        ({"prompt": ["Hello", "you"], "sampling_params": ENDLESS | {"n": 2}}, 4),
        pytest.param(
            {
                "openai_route": "/v1/completions",
                "openai_input": ENDLESS | {"prompt": "Hello", "stream": True},
            },
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"openai_route": "/v1/completions", "openai_input": ENDLESS | {"prompt": "Hello"}},
            1,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["native stream", "native", "openai stream", "openai"],
)
def test_a_stopped_job_stops_generating(
    smollm2: Served, given: dict[str, object], sequences: int
) -> None:
    """A stopped job's request leaves the engine at once, and its neighbour goes on to its end.

    vLLM counts the tokens that it makes: had the request gone on, all of its would be there.
    """
    before = metric(smollm2, "generation_tokens_total")
    neighbour = smollm2.endpoint.submit(
        {"prompt": "Hello", "stream": True, "sampling_params": ENDLESS}
    )
    stopped = smollm2.endpoint.submit(given)
    wait_until(lambda: running_requests(smollm2) >= 2)
    cancel(smollm2, stopped)
    record = smollm2.endpoint.wait_for_end(neighbour, 150)
    wait_until(lambda: running_requests(smollm2) == 0)
    made = metric(smollm2, "generation_tokens_total") - before

    assert Status.COMPLETED == record.status
    assert LONG == record.stream[-1].value["usage"]["output"]
    assert () == smollm2.endpoint.record(stopped).done
    assert LONG < made < LONG + LONG * sequences


def test_a_client_that_leaves_stops_its_job(smollm2: Served) -> None:
    """Closing an OpenAI stream ends the generation behind it."""
    before = metric(smollm2, "generation_tokens_total")
    stream = smollm2.client.completions.create(
        model=smollm2.client.models.list().data[0].id,
        prompt="Hello",
        stream=True,
        max_tokens=LONG,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()

    wait_until(lambda: running_requests(smollm2) == 0)

    assert metric(smollm2, "generation_tokens_total") - before < LONG


def test_no_more_jobs_are_taken_than_wanted(unusual: Served) -> None:
    """With MAX_CONCURRENCY=3 no fourth job is ever in the worker's hands."""
    given = {"prompt": "Hello", "sampling_params": {"max_tokens": 50, "ignore_eos": True}}
    for _ in range(12):
        unusual.endpoint.submit(given)
    most = 0
    while sum(len(worker.jobs) for worker in unusual.endpoint.workers()) or most == 0:
        most = max(most, *(len(worker.jobs) for worker in unusual.endpoint.workers()))
        time.sleep(0.005)

    assert 1 < most <= 3


def test_a_dead_engine_fails_its_jobs_and_ends_the_worker() -> None:
    """When the engine dies, running jobs fail with a sentence and every process is gone."""
    with serve({"MODEL_NAME": str(models.path("tiny")), "MAX_MODEL_LEN": "2048"}) as served:
        endless = {"max_tokens": 2000, "ignore_eos": True}
        inputs = [
            {"prompt": "Hello", "stream": True, "sampling_params": endless},
            {"prompt": "Hello", "sampling_params": endless},
            {"openai_route": "/v1/completions", "openai_input": endless | {"prompt": "Hello"}},
            {
                "openai_route": "/v1/completions",
                "openai_input": endless | {"prompt": "Hello", "stream": True},
            },
        ]
        jobs = [served.endpoint.submit(given) for given in inputs]
        wait_until(lambda: served.endpoint.record(jobs[0]).stream)
        family = served.family()
        core = next(p for p in family if "EngineCore" in "".join(p.cmdline()))
        core.kill()
        code = served.process.wait(15)
        wait_until(lambda: not any(map(is_alive, family)), timeout_s=2)
        records = [served.endpoint.record(job) for job in jobs]

        assert 1 == code
        assert [Status.FAILED] * 4 == [record.status for record in records]
        assert all("engine stopped" in record.done[-1].value["error"] for record in records)
        assert "worker: 4 jobs were told that the engine died." in served.log()
        assert all(f"job {job} failed" in served.log() for job in jobs)


@pytest.mark.slow
def test_an_idle_worker_notices_that_its_engine_died() -> None:
    """A worker without a job leaves as well, so that it never takes a job it cannot answer."""
    with serve({"MODEL_NAME": str(models.path("tiny"))}) as served:
        family = served.family()
        next(p for p in family if "EngineCore" in "".join(p.cmdline())).kill()
        code = served.process.wait(10)
        wait_until(lambda: not any(map(is_alive, family)), timeout_s=2)

        assert 1 == code


@pytest.mark.slow
def test_a_schema_that_compiles_for_minutes() -> None:
    """A job that waits for its grammar ends when it is stopped, and others go on without it.

    The compilation itself goes on, as docs/security.md says; the worker's end does not wait for it.
    """
    endless = {"type": "string", "pattern": "^" + ".{0,50}[a-z]" * 60 + "$"}
    hard = {"prompt": "Hello", "sampling_params": {"structured_outputs": {"json": endless}}}
    short = ENDLESS | {"temperature": 0, "max_tokens": 40}  # its time is as short as theirs
    plain = {"prompt": "Hello", "sampling_params": short}
    knobs = Knobs(stop_hold_s=5, take_hold_s=5, execution_timeout_s=30)
    with serve({"MODEL_NAME": str(models.path("tiny"))}, knobs) as served:
        alone = text(served.run(plain))
        late, stopped = (served.endpoint.submit(hard) for _ in range(2))
        wait_until(lambda: metric(served, "num_requests_waiting") == 2)

        assert alone == text(served.run(plain))
        assert Status.IN_PROGRESS == served.endpoint.record(stopped).status
        cancel(served, stopped)
        assert Status.FAILED == served.endpoint.wait_for_end(late, 60).status  # its time is over
        for job in (late, stopped):
            wait_until(lambda job=job: f"job {job} cancelled" in served.log())  # type: ignore[misc]
        wait_until(lambda: metric(served, "num_requests_waiting") == 0)
        assert alone == text(served.run(plain))
        family = served.family()
        served.process.terminate()
        assert 0 == served.process.wait(30)
        wait_until(lambda: not any(map(is_alive, family)), timeout_s=10)


def test_nothing_is_written_to_the_working_directory(tiny: Served) -> None:
    """The worker leaves no file where it was started: on a network volume all workers share it."""
    tiny.run({"prompt": "Hello"})

    assert {"worker.log"} == {p.name for p in tiny.home.iterdir() if not p.name.startswith(".")}


def test_no_secret_reaches_the_log(tiny: Served) -> None:
    """The Hugging Face token is in no line of the worker's log."""
    assert "secretsecret" not in tiny.log()
