import dataclasses

import pytest

from local_endpoint import Knobs
from local_endpoint.knobs import describe


def test_parse() -> None:
    """Every kind of knob can be written as text."""
    texts = [
        "rtt_ms=50",
        "models_input=null",
        "cancel_on_disconnect=false",
        "retain-jobs=7",
        "openai_failed_status=code",
    ]
    expected = Knobs(
        rtt_ms=50.0,
        models_input="null",
        cancel_on_disconnect=False,
        retain_jobs=7,
        openai_failed_status="code",
    )

    assert Knobs.parse(texts) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("take_hold=1", "'take_hold' is not a knob; did you mean take_hold_s="),
        ("take_hold_s", "is not a knob and its value"),
        ("rtt_ms=slow", "rtt_ms='slow' is not a number from 0 up"),
        ("retain_jobs=1.5", "retain_jobs='1.5' is not a whole number from 0 up"),
        ("cancel_on_disconnect=maybe", "cancel_on_disconnect='maybe' is not true or false"),
        ("models_input=none", "models_input='none' is not absent or null or empty"),
        ("openai_failed_status=own", "'own' is not a whole number from 0 up or code"),
        ("rtt_ms=-1", "rtt_ms='-1' is not a number from 0 up"),
    ],
)
def test_wrong(text: str, sentence: str) -> None:
    """A wrong knob names itself and says what is wrong."""
    with pytest.raises(ValueError, match=sentence):
        Knobs.parse([text])


def test_replace() -> None:
    """Knobs are changed by name, from values or from texts, and the others stay."""
    assert Knobs(rtt_ms=5).replace({"retain_jobs": "7", "x_api_key": True}) == Knobs(
        rtt_ms=5, retain_jobs=7, x_api_key=True
    )


def test_described() -> None:
    """Every knob says what it means and what its default rests on, and accepts its default."""
    described = describe()
    written = [f"{one['name']}={one['default']}" for one in described]

    assert [one["name"] for one in described] == [field.name for field in dataclasses.fields(Knobs)]
    assert Knobs.parse(written) == Knobs()
    assert all(one["meaning"] and one["accepts"] for one in described)
    assert {one["basis"] for one in described} == {"documented", "observed", "assumed", "ours"}
