"""What the engine's process notes of a grammar that it refuses, and what the worker reads of it."""

from pathlib import Path

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output import backend_xgrammar

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
