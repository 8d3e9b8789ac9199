"""The engines of the contract tests: each configuration is started once a session."""

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import models
from local_endpoint import Record
from served import FIRST_INPUTS, Door, Served, serve, serve_door

FIRST_JOBS = 20
pytestmark = pytest.mark.timeout(300)


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
