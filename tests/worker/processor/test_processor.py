"""The logits processor driven by hand, as vLLM's V1 runner drives it: real rows, real updates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality

from worker.engine import admission
from worker.engine.admission import V2_MOST_STOP_IDS, Rules
from worker.processor import reports
from worker.processor.order import KEY, Order
from worker.processor.processor import Chain
from worker.processor.reports import Report
from worker.routines.asker import tensors

VOCAB = 50
EOS = 1
INF = float("inf")
GREEDY = {"do_sample": False}
SAMPLED = {"do_sample": True, "top_k": 0, "temperature": 1.0}
SYNTHID = {"keys": [3, 1, 4, 1, 5], "ngram_len": 3}


def order(report: Report | None = None, **given: Any) -> Order:
    """Return an order; what is no field of Order is one of GenerationConfig."""
    own = {name: given.pop(name) for name in list(given) if name in Order.__dataclass_fields__}
    own.setdefault("eos", (EOS,))
    return Order(fields=GREEDY | given, report=str(report.path) if report else None, **own)


def params(given: Order | None, **others: Any) -> SamplingParams:
    extra = given.extra_args(given.report and Path(given.report)) if given else None
    made = SamplingParams(max_tokens=20, extra_args=extra, **others)
    made._eos_token_id = EOS  # as the engine's front sets it
    return made


class Batch:
    """A batch of vLLM's V1 runner: requests with a prompt and a live list of output ids."""

    def __init__(self) -> None:
        self.chain = Chain(None, torch.device("cpu"), False)
        self.size = 0

    def update(
        self,
        added: list[tuple[int, SamplingParams, list[int], list[int]]] = (),
        removed: list[int] = (),
        moved: list[tuple[int, int, MoveDirectionality]] = (),
    ) -> None:
        self.size = max([self.size, *(index + 1 for index, *_ in added)])
        self.chain.update_state(BatchUpdate(self.size, list(removed), list(added), list(moved)))

    def add(self, index: int, given: SamplingParams, prompt: list[int]) -> list[int]:
        """Add a request and return its output list, to append to as vLLM does."""
        output: list[int] = []
        self.update([(index, given, prompt, output)])
        return output

    def step(self, logits: torch.Tensor | None = None) -> torch.Tensor:
        if logits is None:
            logits = rows(self.size)
        return self.chain.apply(logits)


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.fixture
def report(tmp_path: Path):
    with Report(tmp_path / "report") as made:
        yield made


def only(token: int) -> torch.Tensor:
    """Return a row from which nothing but this token can come."""
    row = torch.full((VOCAB,), -INF)
    row[token] = 0
    return row


# Rows and requests


def test_a_row_belongs_to_its_request_alone() -> None:
    """A chain changes its own row; the rows of its neighbours stay as they were, bit by bit."""
    batch = Batch()
    for index in range(3):
        batch.add(index, params(order(suppress_tokens=[7]) if index == 1 else None), [5, 6])
    logits = rows(3)
    result = batch.step(logits.clone())

    assert -INF == result[1, 7]
    result[1, 7] = logits[1, 7]
    assert torch.equal(logits, result)


def test_a_batch_without_chains_is_left_alone() -> None:
    """Where no request has an order the very same tensor comes back."""
    batch = Batch()
    batch.add(0, params(None), [5, 6])
    logits = rows(1)

    assert batch.step(logits) is logits
    assert torch.equal(rows(1), logits)


def test_greedy_requests_are_not_left_out() -> None:
    """vLLM skips a processor that says it cannot change the likeliest token."""
    assert not Batch().chain.is_argmax_invariant()


def test_the_output_is_read_as_it_grows() -> None:
    """vLLM appends to the list that it gave, and the chain sees each new token."""
    batch = Batch()
    output = batch.add(0, params(order(no_repeat_ngram_size=2)), [5, 6])
    banned = []
    for token in (5, 9, 5, 9):
        output.append(token)
        banned.append((batch.step() == -INF).nonzero()[:, 1].tolist())

    assert [[6], [], [6, 9], [5]] == banned


def test_a_placeholder_is_replaced() -> None:
    """With asynchronous scheduling the last id is -1 for a moment; once it is real it counts."""
    batch = Batch()
    output = batch.add(0, params(order(no_repeat_ngram_size=1)), [5, 6])
    output.append(-1)
    batch.update()
    output[-1] = 9
    first = (batch.step() == -INF).nonzero()[:, 1].tolist()
    output.append(-1)
    batch.update()
    output[-1] = 12
    output.append(13)
    second = (batch.step() == -INF).nonzero()[:, 1].tolist()

    assert ([5, 6, 9], [5, 6, 9, 12, 13]) == (first, second)


def test_long_outputs_are_kept_whole() -> None:
    """The buffer of ids grows with the answer and loses nothing."""
    batch = Batch()
    output = batch.add(0, params(order(repetition_penalty=2.0)), [5])
    request = batch.chain._requests[0]
    for token in range(700):
        output.append(token % VOCAB)
        assert [5, *output] == request.ids(torch.device("cpu"))[0].tolist()


def test_requests_keep_their_chain_when_rows_move() -> None:
    """Removed, added, moved and swapped rows: each request's chain goes with it."""
    batch = Batch()
    for index in range(4):
        batch.add(index, params(order(suppress_tokens=[10 + index]) if index != 3 else None), [5])

    def suppressed() -> dict[int, list[int]]:
        found = (batch.step(rows(4)) == -INF).nonzero().tolist()
        return {row: [column for r, column in found if r == row] for row, _ in found}

    seen = [suppressed()]
    batch.update(moved=[(0, 3, MoveDirectionality.SWAP)])
    seen.append(suppressed())
    batch.update(removed=[1], moved=[(3, 1, MoveDirectionality.UNIDIRECTIONAL)])
    seen.append(suppressed())
    batch.update(
        added=[(1, params(None), [5], []), (0, params(order(suppress_tokens=[20])), [5], [])]
    )
    seen.append(suppressed())
    batch.update(removed=[0, 2])
    seen.append(suppressed())

    assert [
        {0: [10], 1: [11], 2: [12]},
        {3: [10], 1: [11], 2: [12]},
        {1: [10], 2: [12]},
        {0: [20], 2: [12]},
        {},
    ] == seen


def test_a_preempted_request_goes_on() -> None:
    """A request that comes back with a part of its answer counts that part as answer."""
    batch = Batch()
    batch.update([(0, params(order(min_new_tokens=3)), [5, 6], [7, 8])])
    hidden = batch.step()[0, EOS]
    batch.update(removed=[0])
    batch.update([(0, params(order(min_new_tokens=3)), [5, 6], [7, 8, 9])])

    assert -INF == hidden
    assert batch.step()[0, EOS] > -INF


@pytest.mark.parametrize("watermark", [SYNTHID, {"seeding_scheme": "selfhash"}, {}])
def test_a_watermark_does_not_count_calls(watermark: dict[str, Any]) -> None:
    """Steps repeated by a prefill in parts, and a start in the middle, change no score."""
    given = order(watermarking_config=watermark, **SAMPLED)
    prompt, answer = [5, 6, 7, 8], [9, 10, 11, 9, 10, 11, 9, 12, 13]

    def straight() -> list[torch.Tensor]:
        batch = Batch()
        output = batch.add(0, params(given), prompt)
        scores = []
        for step, token in enumerate(answer):
            scores.append(batch.step(rows(1, step)).clone())
            output.append(token)
        return scores

    expected = straight()
    batch = Batch()
    output = batch.add(0, params(given), prompt)
    batch.step(rows(1, 99))
    for step, token in enumerate(answer[:5]):
        assert torch.equal(expected[step], batch.step(rows(1, step)))
        output.append(token)
    batch.update(removed=[0])
    batch.update([(0, params(given), prompt, output)])
    for step, token in enumerate(answer[5:], 5):
        assert torch.equal(expected[step], batch.step(rows(1, step)))
        output.append(token)


@pytest.mark.filterwarnings("ignore:Passing")
def test_a_prompt_of_embeddings_has_no_ids() -> None:
    """Where vLLM has no prompt ids only the answer counts, as in transformers."""
    batch = Batch()
    output: list[int] = []
    batch.chain.update_state(
        BatchUpdate(1, [], [(0, params(order(no_repeat_ngram_size=1)), None, output)], [])
    )
    output.append(9)

    assert [9] == (batch.step(rows(1)) == -INF).nonzero()[:, 1].tolist()


# Failures


IMPOSSIBLE = "The parameters leave no token that may be generated."
TOO_LARGE = "The parameters lead to numbers that are too large to compute with."
ALL = list(range(VOCAB))


@pytest.mark.parametrize(
    ("fields", "logits", "sentence"),
    [
        ({"suppress_tokens": ALL}, None, IMPOSSIBLE),
        ({"suppress_tokens": ALL, "remove_invalid_values": True}, None, IMPOSSIBLE),
        ({"sequence_bias": [[[token], -INF] for token in ALL]}, None, IMPOSSIBLE),
        ({"bad_words_ids": [[token] for token in ALL if token != EOS], **SAMPLED}, EOS, IMPOSSIBLE),
        ({"suppress_tokens": [3]}, torch.full((VOCAB,), float("nan")), IMPOSSIBLE),
        ({"suppress_tokens": [3]}, torch.full((VOCAB,), -INF), IMPOSSIBLE),
        ({"sequence_bias": [[[3], INF]], **SAMPLED}, None, IMPOSSIBLE),
        ({"sequence_bias": [[[3], INF], [[4], INF]], "top_p": 0.5, **SAMPLED}, None, IMPOSSIBLE),
        ({"sequence_bias": [[[3], 1e300]], "typical_p": 0.5, **SAMPLED}, None, IMPOSSIBLE),
        ({**SAMPLED, "temperature": 1e-45}, None, IMPOSSIBLE),
        ({**SAMPLED, "temperature": 1e-38}, None, IMPOSSIBLE),
        ({"exponential_decay_length_penalty": [0, 1e300], "min_new_tokens": 9}, None, TOO_LARGE),
        ({"forced_eos_token_id": EOS, "suppress_tokens": [EOS]}, None, "`forced_eos_token_id`"),
        ({"temperature": -1.0, "do_sample": True}, None, "strictly positive float"),
        ({"bad_words_ids": "nonsense"}, None, "bad_words_ids"),
        ({"watermarking_config": {"nonsense": 1}}, None, "cannot be applied together"),
        ({"bad_words_ids": [[VOCAB]]}, None, "vocabulary size"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_chain_that_fails_ends_its_request_alone(
    report: Report, fields: dict[str, Any], logits: Any, sentence: str
) -> None:
    """Whatever happens in a chain, its request stops with one reason, and nobody else notices."""
    batch = Batch()
    output = batch.add(1, params(order(report, **fields)), [5, 6])
    batch.update([(0, params(order(suppress_tokens=[7])), [5], []), (2, params(None), [5], [])])
    results = []
    for step in range(3):
        given = rows(3, step)
        if logits is not None:
            given[1] = only(logits) if isinstance(logits, int) else logits
            if isinstance(logits, int):
                given[1, EOS] = -INF
        result = batch.step(given.clone())
        results.append(result)
        output.append(int(result[1].argmax()))

        given[0, 7] = -INF
        assert torch.equal(given[[0, 2]], result[[0, 2]])
    failures = [record["failure"] for record in report.read()]

    assert torch.equal(only(EOS), results[-1][1])
    assert 1 == len(failures)
    assert sentence in failures[0]
    assert "Traceback" not in failures[0]


def test_greedy_may_take_an_infinite_score(report: Report) -> None:
    """Without sampling the likeliest token is taken, as in transformers, though it be infinite."""
    batch = Batch()
    batch.add(0, params(order(report, sequence_bias=[[[3], INF]])), [5])

    assert (3, []) == (int(batch.step().argmax()), report.read())


def test_a_failure_without_a_report_is_silent_and_harmless(tmp_path: Path) -> None:
    """A request whose report is gone, or that never had one, still only ends itself."""
    gone = Report(tmp_path / "gone")
    batch = Batch()
    batch.add(0, params(order(suppress_tokens=ALL)), [5])
    batch.add(1, params(order(gone, suppress_tokens=ALL)), [5])

    assert [EOS, EOS] == batch.step().argmax(dim=-1).tolist()


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", '{"eos": 5}', '{"eos": [1], "unknown": 2}', 5, None]
)
def test_a_broken_order_ends_its_request_alone(text: Any) -> None:
    """What cannot be read never raises where the engine would die of it."""
    batch = Batch()
    broken = SamplingParams(extra_args={KEY: text})
    broken._eos_token_id = EOS
    batch.update([(0, broken, [5], []), (1, params(order(suppress_tokens=[7])), [5], [])])
    result = batch.step()

    assert EOS == int(result[0].argmax())
    assert -INF == result[1, 7]


@pytest.mark.parametrize(
    ("others", "eos", "expected"),
    [
        ({}, EOS, EOS),
        ({"stop_token_ids": [9]}, EOS, 9),
        ({"ignore_eos": True, "stop_token_ids": [9]}, None, 9),
        ({"ignore_eos": True}, None, 0),
        ({}, 10**6, 0),  # a model whose end lies outside its own vocabulary
    ],
)
def test_the_stop_that_a_failure_forces(
    report: Report, others: dict[str, Any], eos: int | None, expected: int
) -> None:
    """A failed request is given a token that ends it, and always one that exists."""
    batch = Batch()
    given = params(order(report, suppress_tokens=ALL), **others)
    given._eos_token_id = eos
    batch.add(0, given, [5])

    assert torch.equal(only(expected), batch.step()[0])


def test_a_failed_request_stays_failed(report: Report) -> None:
    """What failed once is not tried again: no later step writes a token of its own."""
    batch = Batch()
    output = batch.add(0, params(order(report, begin_suppress_tokens=ALL)), [5])
    for _ in range(3):
        output.append(int(batch.step()[0].argmax()))

    assert [EOS] * 3 == output
    assert [{"failure": IMPOSSIBLE}] == report.read()


# Grammars


@pytest.mark.parametrize(
    "fields",
    [
        {"remove_invalid_values": True},
        {"renormalize_logits": True},
        {"suppress_tokens": [20]},
        {"typical_p": 0.3, **SAMPLED},
        {"top_h": 0.3, **SAMPLED},
        {"eta_cutoff": 0.3, **SAMPLED},
        {"watermarking_config": {"bias": 50.0}, **SAMPLED},
        {"watermarking_config": {"bias": 50.0, "seeding_scheme": "selfhash"}, **SAMPLED},
        {"watermarking_config": SYNTHID, **SAMPLED},
        {"sequence_bias": [[[30], 1e6]]},
        {"remove_invalid_values": True, "sequence_bias": [[[30], 1e6]], "renormalize_logits": True},
    ],
)
@pytest.mark.parametrize(
    "others",
    [
        {"structured_outputs": StructuredOutputsParams(choice=["yes"])},
        {"allowed_token_ids": [20, 21, 22]},
    ],
)
def test_a_mask_survives(report: Report, fields: dict[str, Any], others: dict[str, Any]) -> None:
    """Where a grammar or a list allows three tokens, no processor makes a fourth possible."""
    batch = Batch()
    output = batch.add(0, params(order(report, **fields), **others), [5, 6])
    for step in range(4):
        logits = torch.full((1, VOCAB), -INF)
        logits[0, [20, 21, 22]] = rows(1, step)[0, :3]
        result = batch.step(logits)[0]
        possible = set((result > -INF).nonzero().flatten().tolist())

        assert possible
        assert possible <= {20, 21, 22}
        output.append(int(result.argmax()))
    assert [] == report.read()


@pytest.mark.parametrize(
    "fields", [{"forced_eos_token_id": EOS, "max_new_tokens": 1}, {"suppress_tokens": [20, 21]}]
)
def test_a_mask_that_leaves_nothing_is_a_failure(report: Report, fields: dict[str, Any]) -> None:
    """Where the grammar and a processor have no token in common, the request fails in words."""
    batch = Batch()
    choice = StructuredOutputsParams(choice=["yes"])
    batch.add(0, params(order(report, **fields), structured_outputs=choice), [5])
    logits = torch.full((1, VOCAB), -INF)
    logits[0, [20, 21]] = 1.0
    batch.step(logits)

    assert [{"failure": IMPOSSIBLE}] == report.read()


# Reports


def test_scores_and_logits_are_reported(report: Report) -> None:
    """Each step reports the best values before the chain and after it, with their ids."""
    batch = Batch()
    given = order(report, suppress_tokens=[int(rows(1)[0].argmax())], scores=3, logits=2, tag=4)
    output = batch.add(0, params(given), [5])
    before, after = [], []
    for _ in range(2):
        logits = rows(1)
        before.append(logits[0].topk(2))
        after.append(batch.step(logits)[0].topk(3))
        output.append(8)
    records = report.read()

    assert [(0, 4), (1, 4)] == [(record["step"], record["tag"]) for record in records]
    for name, expected in (("scores", after), ("logits", before)):
        found = reports.values(records, name)
        for step, (values, ids) in enumerate(expected):
            assert ids.tolist() == found[step]["token_ids"]
            assert values.tolist() == found[step]["values"]


def test_a_step_of_a_beam_search(report: Report) -> None:
    """Log-probabilities go in, and the text so far counts as answer where the order says so."""
    batch = Batch()
    given = order(
        report, min_new_tokens=3, log_probs=True, scores=VOCAB, prompt_len=2, max_new_tokens=9
    )
    batch.add(0, params(given), [5, 6, 7, 8])
    batch.step()
    (record,) = report.read()
    (found,) = reports.values([record], "scores").values()
    expected = torch.log_softmax(rows(1), dim=-1)[0]
    expected[EOS] = -INF

    assert 2 == record["step"]
    assert VOCAB - 1 == len(found["values"])  # the end is impossible
    assert torch.equal(expected[found["token_ids"]], torch.tensor(found["values"]))


def test_drawn_candidates(report: Report) -> None:
    """Reported scores may be drawn: each token once, by its probability, the same for a seed."""
    logits = torch.where(torch.arange(VOCAB) < 4, torch.log(torch.arange(VOCAB) + 1.0), -INF)
    draws = []
    for seed in [*range(300), 0]:
        batch = Batch()
        batch.add(0, params(order(report, log_probs=True, scores=6, draw=seed)), [5])
        batch.step(logits[None].clone())
        ids, scores, keys = tensors(report.read()[-1]["scores"])
        draws.append((ids[:4].tolist(), keys.tolist()))

        assert torch.equal(torch.log_softmax(logits, dim=-1)[ids], scores)
        assert [0, 1, 2, 3] == sorted(draws[-1][0])
        assert sorted(draws[-1][1], reverse=True) == draws[-1][1]
    first = torch.bincount(torch.tensor([ids[0] for ids, _ in draws]), minlength=VOCAB)

    assert draws[0] == draws[-1] != draws[1]
    assert torch.allclose(first / len(draws), logits.softmax(-1), atol=0.09)


def test_no_report_where_none_is_asked_for(report: Report) -> None:
    """A chain that works and reports no scores writes nothing."""
    batch = Batch()
    batch.add(0, params(order(report, suppress_tokens=[7])), [5])
    batch.step()

    assert [] == report.read()


# Guidance


def pair(report: Report, **given: Any) -> tuple[Batch, list[int], list[int]]:
    batch = Batch()
    outputs = []
    for index, role in enumerate(("prompt", "negative")):
        roles = {"name": "x", "role": role, "scale": 1.5, "seed": 7, "do_sample": False} | given
        of_role = order(report, pair=roles, prompt_len=2 + index)
        outputs.append(batch.add(index, params(of_role), [5, 6, 7][: 2 + index]))
    return batch, outputs[0], outputs[1]


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_pair_gets_one_token(report: Report, do_sample: bool) -> None:
    """Both rows of a pair are left with the one token that guidance chose."""
    batch, first, second = pair(report, do_sample=do_sample)
    for step in range(3):
        logits = rows(2, step)
        log_probs = torch.log_softmax(logits, dim=-1)
        likeliest = int((1.5 * (log_probs[0] - log_probs[1]) + log_probs[1]).argmax())
        result = batch.step(logits)
        chosen = int(result[0].argmax())

        assert torch.equal(only(chosen), result[0])
        assert torch.equal(only(chosen), result[1])
        assert do_sample or likeliest == chosen
        first.append(chosen)
        second.append(chosen)
    assert [] == report.read()


def test_a_drawn_token_depends_on_seed_and_position_alone(report: Report) -> None:
    """A pair that is sent again draws the same tokens again."""
    drawn = []
    for _ in range(2):
        batch, first, second = pair(report, do_sample=True)
        for step in range(5):
            token = int(batch.step(rows(2, step))[0].argmax())
            first.append(token)
            second.append(token)
        drawn.append(first)

    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("how", ["ahead", "apart", "alone"])
def test_a_pair_that_lost_step_ends(report: Report, how: str) -> None:
    """One that is a token ahead, has another token or is alone is told, and both rows stop."""
    batch, first, second = pair(report)
    first.append(9)
    if how == "apart":
        second.append(10)
    if how == "alone":
        batch.update(removed=[1])
    result = batch.step()
    records = report.read()

    assert torch.equal(only(EOS), result[0])
    assert how == "alone" or torch.equal(only(EOS), result[1])
    assert {"lost": 1} == records[0]


def test_a_pair_whose_second_comes_late_is_lost(report: Report) -> None:
    """One that was alone for a step has ended, and its partner ends too, without a failure."""
    batch, _, _ = pair(report)
    late = batch.chain._requests.pop(1)
    first = batch.step()
    batch.chain._requests[1] = late
    second = batch.step()

    assert torch.equal(only(EOS), first[0])
    assert torch.equal(only(EOS).expand(2, -1), second)
    assert [{"lost": 0}, {"lost": 0}] == report.read()


def test_an_impossible_pair_fails(report: Report) -> None:
    """Guidance that leaves no token fails like any other request."""
    batch = Batch()
    for index, role in enumerate(("prompt", "negative")):
        roles = {"name": "x", "role": role, "scale": 1.5, "seed": 7, "do_sample": True}
        batch.add(index, params(order(report, pair=roles, suppress_tokens=ALL)), [5])
    result = batch.step()

    assert [EOS, EOS] == result.argmax(dim=-1).tolist()
    assert {"failure": IMPOSSIBLE} == report.read()[0]


# Admission


def test_an_order_comes_back_as_it_went() -> None:
    """What an order carries through the engine is the order, infinities and all."""
    given = order(sequence_bias=[[[3], -INF]], scores=2, prompt_len=4, pair={"name": "x"})

    assert given == Order.of(params(given))
    assert None is Order.of(params(None))


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "x",
        5,
        1.5,
        ["x"],
        [5],
        json.dumps({"fields": {"suppress_tokens": ALL}, "eos": [1]}),
        json.dumps({"seal": "", "fields": {}, "eos": [1]}),
        json.dumps({"seal": "0" * 32, "fields": {}, "eos": [1], "report": "/etc/passwd"}),
        json.dumps({"fields": {}, "eos": [1]})[:-1] + ', "seal": "',
    ],
)
def test_a_forged_order_is_refused(forged: Any) -> None:
    """Only this process writes orders: a client's, in whatever form, is refused at admission."""
    with pytest.raises(VLLMValidationError, match="worker's own"):
        admission.judge(SamplingParams(extra_args={KEY: forged}), Rules())


def test_the_workers_own_order_passes() -> None:
    """An order of this process is admitted, and so are other extra arguments."""
    admission.judge(params(order(suppress_tokens=[7])), Rules())
    admission.judge(SamplingParams(extra_args={"anything": "else"}), Rules())


@pytest.mark.parametrize(
    ("is_v2", "given", "sentence"),
    [
        (True, {"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias has 1,025 entries"),
        (True, {"allowed_token_ids": ALL * 25}, "allowed_token_ids has 1,250 entries"),
        (
            True,
            {"min_tokens": 1, "stop_token_ids": list(range(V2_MOST_STOP_IDS + 1))},
            f"stop ids at most, and there are {V2_MOST_STOP_IDS + 1}",
        ),
        (True, {"thinking_token_budget": 2**31}, "thinking_token_budget=2147483648"),
        (True, {"logit_bias": dict.fromkeys(range(1024), 1.0)}, None),
        (True, {"allowed_token_ids": list(range(1024))}, None),
        (True, {"min_tokens": 1, "stop_token_ids": list(range(V2_MOST_STOP_IDS))}, None),
        (True, {"stop_token_ids": list(range(500))}, None),
        (False, {"logit_bias": dict.fromkeys(range(5000), 1.0)}, None),
        (False, {"allowed_token_ids": list(range(5000))}, None),
        (False, {"min_tokens": 1, "stop_token_ids": list(range(500))}, None),
    ],
)
def test_what_would_end_the_v2_runner_is_refused(
    is_v2: bool, given: dict[str, Any], sentence: str | None
) -> None:
    """vLLM's V2 runner dies of these, so they are refused there; V1 takes them."""
    rules = Rules(is_v2=is_v2)
    asked = SamplingParams(max_tokens=5, **given)
    if sentence is None:
        admission.judge(asked, rules)
        return
    with pytest.raises(VLLMValidationError) as caught:
        admission.judge(asked, rules)

    assert sentence in str(caught.value)


@pytest.mark.parametrize("given", [{"stop": ["a"]}, {"bad_words": ["a"]}])
def test_texts_without_a_tokenizer_are_refused(given: dict[str, Any]) -> None:
    """vLLM ignores these two without a word where there is no tokenizer."""
    asked = SamplingParams(**given)
    without = Rules(has_tokenizer=False)
    admission.judge(asked, Rules())
    admission.judge(SamplingParams(stop_token_ids=[5]), without)

    with pytest.raises(VLLMValidationError, match="needs a tokenizer"):
        admission.judge(asked, without)


def test_guidance_keeps_to_an_allowed_list(report: Report) -> None:
    """Where both rows allow three tokens guidance chooses one of them, and does not fail."""
    batch = Batch()
    allowed = {"allowed_token_ids": [20, 21, 22]}
    for index, role in enumerate(("prompt", "negative")):
        roles = {"name": "x", "role": role, "scale": 1.5, "seed": 7, "do_sample": False}
        given = order(report, pair=roles, remove_invalid_values=True, scores=9)
        batch.add(index, params(given, **allowed), [5])
    logits = torch.full((2, VOCAB), -INF)
    logits[:, [20, 21, 22]] = rows(2)[:, :3]
    chosen = batch.step(logits).argmax(dim=-1).tolist()
    (record,) = report.read()

    assert chosen[0] == chosen[1]
    assert chosen[0] in (20, 21, 22)
    assert 3 == len(reports.values([record], "scores")[0]["values"])
