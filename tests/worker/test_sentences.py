"""Nothing that is printed or logged holds a secret."""

import logging

import pytest

from worker.sentences import hide, hide_in_logs

HIDDEN = [
    "cannot be fetched from https://alice:sekrit@mirror/x",
    "https://alice:p@sekrit@mirror/x",
    "https://sekrit@mirror",
    "GET https://cdn.host/a/b?X-Amz-Signature=sekrit&X-Amz-Credential=sekrit failed",
    "https://alice:sekrit@mirror/x?Expires=1&Signature=sekrit~_ and https://b/?sig=sekrit",
    "--hf-token sekrit --api-key=sekrit",
    "{'token': 'sekrit', \"apiKey\": \"sekrit\", access_token=sekrit}",
    "Authorization: Bearer sekrit123",
    "hf_sekrit123456",
]
SHOWN = [
    "is gated: accept its terms at https://hub/a/b, and give HF_TOKEN a token that may read",
    "KeyError: 'model'",
    "eos_token_id=1, max_tokens=5, tokenizer: x",
    "https://huggingface.co/org/name is not there",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_hidden(text: str) -> None:
    """Logins, signatures of addresses, tokens, and what is named like a secret."""
    assert "sekrit" not in hide(text)
    assert hide(text) == hide(hide(text))


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_secret_is_shown(text: str) -> None:
    """A sentence that speaks of tokens stays readable."""
    assert text == hide(text)


def test_libraries_log_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a library logs, its arguments and its traceback, goes through the same door."""
    before = logging.getLogRecordFactory()
    hide_in_logs()
    try:
        try:
            raise ValueError("https://a:sekrit@b")
        except ValueError:
            logging.getLogger("their.library").exception(
                "%s failed", "https://a:sekrit@b/x?s=sekrit"
            )
    finally:
        logging.setLogRecordFactory(before)

    assert "sekrit" not in caplog.text
    assert "failed" in caplog.text
    assert "ValueError" in caplog.text
