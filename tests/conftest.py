"""The engines of the contract tests: each is started once a session, and ended after its last test.

So few live at once, whatever each of them holds in memory.
"""

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import models
from local_endpoint import Record
from served import FIRST_INPUTS, Door, Served, serve, serve_door

FIRST_JOBS = 20
# In the order in which their tests run.
ENGINES = ("embedding", "unusual", "tiny_and_its_first_jobs", "door", "smollm2")
last_tests: dict[str, pytest.Item] = {}  # of each fixture
pytestmark = pytest.mark.timeout(300)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one engine next to each other; those that need none come first."""
    items.sort(key=lambda item: [name in needs(item) for name in reversed(ENGINES)])
    last_tests.update((name, item) for item in items for name in needs(item))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the engines that no later test of the session needs; pytest has no public way."""
    for name in ENGINES:
        if last_tests.get(name) is item:
            for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                fixture.finish(item._request)  # type: ignore[attr-defined]


def needs(item: pytest.Item) -> list[str]:
    """Return the fixtures of a test, and theirs."""
    return item.fixturenames if isinstance(item, pytest.Function) else []


@pytest.fixture(scope="session")
def batch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny model's batches read and write."""
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="session")
def tiny_and_its_first_jobs(batch_folder: Path) -> Iterator[tuple[Served, list[Record]]]:
    """The tiny model with an adapter, and what became of the 20 jobs that were its first."""
    adapters = [{"name": "adapter", "path": str(models.path("tiny-lora"))}]
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "SERVED_MODEL_NAME": "tiny,also-tiny",
        "ENABLE_LORA": "true",
        "LORA_MODULES": json.dumps(adapters),
        "MAX_BATCH_DELAY_MS": "0",
        "MAX_CONCURRENCY": "64",
        "BATCH_FOLDER": str(batch_folder),
        "HF_TOKEN": "hf_secretsecretsecret",
    }
    with serve(environ) as served:
        inputs = [FIRST_INPUTS[i % len(FIRST_INPUTS)] for i in range(FIRST_JOBS)]
        with concurrent.futures.ThreadPoolExecutor(FIRST_JOBS) as pool:
            records = list(pool.map(served.run, inputs))
        yield served, records


@pytest.fixture(scope="session")
def tiny(tiny_and_its_first_jobs: tuple[Served, list[Record]]) -> Served:
    return tiny_and_its_first_jobs[0]


@pytest.fixture(scope="session")
def first_jobs(tiny_and_its_first_jobs: tuple[Served, list[Record]]) -> list[Record]:
    return tiny_and_its_first_jobs[1]


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Served]:
    """A real chat model with the defaults of batching, and scores of the whole vocabulary."""
    environ = {
        "MODEL_NAME": str(models.path("smollm2-135m-instruct")),
        "MAX_SCORES": "49152",
        "MAX_CONCURRENCY": "auto",
    }
    with serve(environ) as served:
        yield served


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    """The tiny model behind a worker's HTTP door."""
    environ = {"MODEL_NAME": str(models.path("tiny")), "SERVED_MODEL_NAME": "tiny,also-tiny"}
    with serve_door(environ) as one:
        yield one


@pytest.fixture(scope="session")
def embedding() -> Iterator[Served]:
    """A pooling model."""
    environ = {"MODEL_NAME": str(models.path("tiny-embedding")), "SERVED_MODEL_NAME": "embedder"}
    with serve(environ) as served:
        yield served


@pytest.fixture(scope="session")
def unusual() -> Iterator[Served]:
    """The tiny model with the variables that change what callers see."""
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "MAX_MODEL_LEN": "64",
        "RAW_OPENAI_OUTPUT": "0",
        "OPENAI_ERRORS_AS_OUTPUT": "1",
        "CUSTOM_CHAT_TEMPLATE": "{% for m in messages %}{{ m.content }}{% endfor %} and so",
        "MAX_CONCURRENCY": "3",
        "MAX_RESULT_MB": "1",
        "EXTRA_ROUTES": "/ping",
        "DEFAULT_MAX_TOKENS": "7",
    }
    with serve(environ) as served:
        yield served
