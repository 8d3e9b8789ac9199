"""What RunPod's Hub reads, against the format of its publishing guide and the worker's tables."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from worker.configuration.layers import known_variables
from worker.configuration.retired import RETIRED
from worker.configuration.settings import Settings
from worker.engine import command_line

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, at vLLM's import
    command_line.options()

FOLDER = Path(__file__).parents[2] / ".runpod"


def keys(types: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": types,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
WHOLE = {"type": "integer", "minimum": 1}
CUDA = {"type": "array", "items": {"type": "string", "pattern": r"^\d+\.\d+$"}, "minItems": 1}
COMMON = {"name": TEXT, "description": TEXT, "required": {"type": "boolean"}}
COMMON |= {"advanced": {"type": "boolean"}}
OPTION = keys({"label": TEXT, "value": {"type": "string"}}, "label", "value")


def field(kind: str, default: dict[str, Any], **more: Any) -> dict[str, Any]:
    return keys({**COMMON, "type": {"const": kind}, "default": default, **more}, "name", "type")


INPUT = {
    "oneOf": [
        field("string", {"type": "string"}, options={"type": "array", "items": OPTION}),
        field("huggingface", {"type": "string"}),
        field("number", {"type": "number"}, min={"type": "number"}, max={"type": "number"}),
        field("boolean", {"type": "boolean"}, trueValue=TEXT, falseValue=TEXT),
    ]
}
VALUE = {"type": ["string", "number", "boolean"]}
# docs.runpod.io/hub/publishing-guide
HUB = keys(
    {
        "title": TEXT,
        "description": TEXT,
        "type": {"const": "serverless"},
        "category": {"enum": ["audio", "embedding", "language", "video", "image"]},
        "iconUrl": {"type": "string", "format": "uri"},
        "config": keys(
            {
                "runsOn": {"const": "GPU"},
                "containerDiskInGb": WHOLE,
                "gpuCount": WHOLE,
                "gpuIds": TEXT,
                "allowedCudaVersions": CUDA,
                "presets": {
                    "type": "array",
                    "items": keys(
                        {
                            "name": TEXT,
                            "defaults": {"type": "object", "additionalProperties": VALUE},
                        },
                        "name",
                        "defaults",
                    ),
                },
                "env": {
                    "type": "array",
                    "items": {
                        "oneOf": [
                            keys({"key": TEXT, "input": INPUT}, "key", "input"),
                            keys({"key": TEXT, "value": VALUE}, "key", "value"),
                        ]
                    },
                },
            },
            *("runsOn", "containerDiskInGb", "gpuCount", "gpuIds"),
        ),
    },
    *("title", "description", "type", "category", "config"),
)
TESTS = keys(
    {
        "tests": {
            "type": "array",
            "minItems": 1,
            "items": keys(
                {"name": TEXT, "input": {"type": "object"}, "timeout": WHOLE}, "name", "input"
            ),
        },
        "config": keys(
            {
                "gpuTypeId": TEXT,
                "gpuCount": WHOLE,
                "env": {
                    "type": "array",
                    "items": keys({"key": TEXT, "value": TEXT}, "key", "value"),
                },
                "allowedCudaVersions": CUDA,
            },
            *("gpuTypeId", "gpuCount"),
        ),
    },
    *("tests", "config"),
)


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def as_environ(values: dict[str, Any]) -> dict[str, str]:
    """Write values as the Hub's form does."""
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in values.items()}


@pytest.mark.parametrize(("name", "schema"), [("hub.json", HUB), ("tests.json", TESTS)])
def test_the_published_format(name: str, schema: dict[str, Any]) -> None:
    """The files have the keys and the types of the guide, and no others."""
    errors = [error.message for error in Draft202012Validator(schema).iter_errors(read(name))]

    assert [] == errors


def test_every_field_is_a_variable() -> None:
    """The form asks for nothing that the worker does not read, and for nothing twice."""
    shown = [one["key"] for one in read("hub.json")["config"]["env"]]

    assert len(shown) == len(set(shown))
    assert set() == set(shown) - set(known_variables())
    assert set() == set(shown) & RETIRED.keys()


def test_the_form_as_it_is_sent() -> None:
    """All defaults together, as the form sends them, start the worker without a warning."""
    inputs = {one["key"]: one["input"] for one in read("hub.json")["config"]["env"]}
    sent = {name: one.get("default", "") for name, one in inputs.items()}
    settings = Settings.from_env({**as_environ(sent), "MODEL_NAME": "org/model"})

    assert () == settings.warnings
    assert settings == settings.from_env({"MODEL_NAME": "org/model"})


PRESETS = read("hub.json")["config"]["presets"]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset["name"])
def test_a_preset_is_a_configuration(preset: dict[str, Any]) -> None:
    """Each preset is understood, by fields that the form has."""
    form = {one["key"] for one in read("hub.json")["config"]["env"]}
    settings = Settings.from_env(as_environ(preset["defaults"]))

    assert () == settings.warnings
    assert preset["name"] == settings.model
    assert set() == preset["defaults"].keys() - form


def test_the_hubs_own_tests() -> None:
    """The Hub's tests wait longer than a cold start, and start a model that is understood."""
    tests = read("tests.json")
    environ = {one["key"]: one["value"] for one in tests["config"]["env"]}

    assert Settings.from_env(environ).model
    assert min(test["timeout"] for test in tests["tests"]) >= 300_000


@pytest.mark.parametrize("name", ["handler.py", "hub.json", "tests.json"])
def test_what_the_guide_asks_for(name: str) -> None:
    """The Hub looks for these in .runpod, and for the Dockerfile and the README at the root."""
    assert (FOLDER / name).exists()
    assert (FOLDER.parent / "Dockerfile").exists()
    assert (FOLDER.parent / "README.md").exists()
