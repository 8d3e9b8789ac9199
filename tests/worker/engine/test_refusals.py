"""What the engine's process notes of a grammar that it refuses, and what the worker reads of it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1 import structured_output
from vllm.v1.core.sched import scheduler
from vllm.v1.structured_output import backend_guidance, backend_xgrammar
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from worker.engine import refusals
from worker.engine.refusals import MOST_KEPT, Refusals
from worker.processor.reports import Report, append


def test_a_note_finds_its_job(tmp_path: Path) -> None:
    """Of many notes the one of the job is told, and a job without one has no reason."""
    with Report(tmp_path / "notes") as report:
        noted = Refusals(report)
        for number in range(3):
            record = {"request": f"failed: chatcmpl-job-{number}-x", "reason": f"reason {number}"}
            append(str(report.path), record)

        assert noted.why("job-1") == "reason 1"
        assert noted.why("job-9") == ""


def test_old_notes_are_forgotten(tmp_path: Path) -> None:
    """However many grammars are refused, the latest are kept, and the file does not grow."""
    with Report(tmp_path / "notes") as report:
        noted = Refusals(report)
        for number in range(2 * MOST_KEPT):
            append(str(report.path), {"request": f"job-{number:03}", "reason": "x" * 9000})

        assert noted.why("job-000") == ""
        assert noted.why(f"job-{2 * MOST_KEPT - 1:03}") == "x" * 9000
        assert report.path.stat().st_size == 0


def test_full_memory_is_no_error(tmp_path: Path) -> None:
    """Where the file is gone, nothing is known, and nothing fails."""
    assert Refusals(Report(tmp_path / "gone")).why("job-1") == ""


def test_xgrammars_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM calls an invalid grammar comes with the reason that it keeps to itself."""
    monkeypatch.setattr(
        backend_xgrammar, "validate_xgrammar_grammar", backend_xgrammar.validate_xgrammar_grammar
    )
    refusals.add_reasons()
    wrong = SamplingParams(structured_outputs=StructuredOutputsParams(grammar="root ::= nobody"))
    with pytest.raises(VLLMValidationError, match=r'specification: EBNF .* "nobody"'):
        backend_xgrammar.validate_xgrammar_grammar(wrong)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Report]:
    with Report(tmp_path / "notes") as report:
        yield report


@pytest.mark.filterwarnings("ignore:max_rollback_tokens:DeprecationWarning")
@pytest.mark.parametrize("name", ["guidance", "xgrammar"])
def test_what_the_engine_refuses(name: str, notes: Report, monkeypatch: Any) -> None:
    """A grammar that cannot be compiled, or leads nowhere, is refused; each with a note."""
    manager_class = structured_output.StructuredOutputManager
    monkeypatch.setattr(manager_class, "_create_grammar", manager_class._create_grammar)
    refusals.listen(str(notes.path))
    letters = ["end", *sorted(ByteLevel.alphabet())]
    byte_level = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, merges=[]))
    byte_level.decoder = decoders.ByteLevel()
    config = VllmConfig()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token="end")
    backend = {
        "guidance": backend_guidance.GuidanceBackend,
        "xgrammar": backend_xgrammar.XgrammarBackend,
    }[name]
    manager = object.__new__(manager_class)
    manager.backend = backend(config, tokenizer=tokenizer, vocab_size=len(letters))

    def create(grammar: str) -> None:
        key = (StructuredOutputOptions.GRAMMAR, grammar)
        asked = SimpleNamespace(structured_output_key=key)
        manager._create_grammar(
            SimpleNamespace(
                request_id="job-1", structured_output_request=asked, sampling_params=None
            )
        )

    create('root ::= "yes" | "no"')
    assert not notes.read()
    for grammar, words in (("root ::= root", "allows nothing"), ("root ::= nobody", "nobody")):
        with pytest.raises(Exception, match=words):
            create(grammar)
        (note,) = notes.read()
        assert "job-1" == note["request"]
        assert words in note["reason"]


def test_a_grammar_that_ends_on_its_way(notes: Report) -> None:
    """What the scheduler ends because its grammar allows nothing more has that reason."""
    logger = logging.getLogger(scheduler.__name__)
    before = list(logger.filters)
    refusals.listen(str(notes.path))
    try:
        logger.error("Unexpected: grammar rejected tokens %s for request %s.", [0], "job-1")
        logger.error("Something else for request %s", "job-2")
    finally:
        logger.filters[:] = before
    (note,) = notes.read()
    assert "job-1" in note["request"]
    assert "allows nothing" in note["reason"]
