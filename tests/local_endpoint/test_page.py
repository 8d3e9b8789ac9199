"""The page, in a real Chromium, with a worker made with the real SDK behind it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import browser
import pytest
import requests
import runpod
from browser import Page
from test_command_line import CommandLine
from workers import ECHO, ENGINE, QUICK

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

CLIENTS = Path(__file__).parents[1] / "clients"  # where Node finds the clients
SHOTS = Path(__file__).parents[2] / ".cache" / "screenshots"
CLIPBOARD = ["clipboardReadWrite", "clipboardSanitizedWrite"]
RTT_MS = 40  # so that one can see an answer grow
TIMEOUT_S = 45  # only a hang is longer: importing a client takes 15 s on a busy machine


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if browser.find() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Chromium here, and in CI there must be one")
        pytest.skip("there is no Chromium here")
    with browser.opened(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@contextmanager
def running_worker(
    endpoint: LocalEndpoint, worker_id: str, home: Path
) -> Iterator[subprocess.Popen]:
    """Run the echo worker as a process, and end it with its heartbeat process."""
    environ = {**os.environ, **endpoint.worker_environ(worker_id, home)}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(ECHO, env=environ, stdout=log, stderr=log, process_group=0)
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait(timeout=5)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEndpoint]:
    home = tmp_path_factory.mktemp("home")
    with (
        local_endpoint.serve(Knobs(rtt_ms=RTT_MS)) as endpoint,
        running_worker(endpoint, "echo", home),
    ):
        endpoint.wait_ready(timeout_s=30)
        yield endpoint


@pytest.fixture
def page(chromium: Page, endpoint: LocalEndpoint) -> Page:
    """Return the page, freshly opened, once it knows of the worker."""
    return opened(chromium, endpoint)


def opened(page: Page, endpoint: LocalEndpoint) -> Page:
    page.open(origin(endpoint))
    page.evaluate("sessionStorage.clear(); localStorage.clear()")  # of the test before
    page.problems.clear()
    page.hosts.clear()
    page.open(origin(endpoint))
    page.wait_for("document.querySelector('#addresses code')?.textContent")
    return page


def origin(endpoint: LocalEndpoint) -> str:
    return endpoint.url.split("/v2/")[0] + "/"


def say(page: Page, words: str) -> None:
    page.click("#chat textarea[name=text]")
    page.write(words)
    page.press("Enter")


def wait_for_answer(page: Page) -> None:
    page.wait_for("document.querySelector('.turn.assistant:last-child:not(.busy)')")


def wait_for_row(page: Page, status: str, route: str) -> None:
    """Wait until the newest job is one of that route and has that status."""
    newest = "document.querySelector('#job-rows tr')?.innerText"
    page.wait_for(f"{newest}.includes('{status}') && {newest}.includes('{route}')")


def fill(page: Page, selector: str, text: str) -> None:
    page.click(selector)
    page.write(text)


def press(page: Page, selector: str, name: str) -> None:
    """Press the button of that name in an element."""
    page.evaluate(f"""
        [...document.querySelectorAll({json.dumps(selector + " button")})]
            .find((button) => button.textContent === {json.dumps(name)}).dataset.pressed = ""
    """)
    page.click("[data-pressed]")
    page.evaluate("delete document.querySelector('[data-pressed]')?.dataset.pressed")


def test_alone(page: Page, endpoint: LocalEndpoint) -> None:
    """The page loads without an error, asks no other host, and sends no job by itself."""
    jobs = len(endpoint.records())
    page.wait_for("performance.now() > 2000")

    assert page.problems == []
    assert page.hosts == {origin(endpoint).split("/")[2]}
    assert len(endpoint.records()) == jobs
    assert endpoint.openai_url in page.text("#addresses")
    assert endpoint.api_key in page.text("#addresses")


def test_worker(page: Page) -> None:
    """A worker is shown with its state and SDK version."""
    page.wait_for("document.querySelector('#worker-list li')")

    assert "echo" in page.text("#worker-list li b")
    assert page.text("#worker-list .badge") == "idle"
    assert f"SDK {runpod.__version__}" in page.text("#worker-list small")


def test_chat(page: Page) -> None:
    """A chat answers word by word, and its job appears in the table as it ends."""
    page.evaluate("""
        window.seen = [];
        new MutationObserver(() => seen.push(document.querySelector('.words')?.textContent))
            .observe(document.querySelector('#messages'), {childList: true, subtree: true});
    """)
    say(page, "one two three four")
    wait_for_answer(page)
    wait_for_row(page, "COMPLETED", "/v1/chat/completions")
    seen = page.evaluate("seen")

    assert {"one ", "one two ", "one two three "} <= set(seen)
    assert page.text(".turn.assistant .words").split() == ["one", "two", "three", "four"]
    assert "first token" in page.text(".turn.assistant small")
    assert "4 tokens" in page.text(".turn.assistant small")
    assert page.evaluate("document.querySelector('select[name=model]').value") == "echo"
    assert page.problems == []


def test_turns(page: Page, endpoint: LocalEndpoint) -> None:
    """A second question carries the first and its answer; parameters and system prompt go along."""
    page.click("#chat summary")
    fill(page, "[name=system]", "be brief")
    fill(page, "[name=temperature]", "0.5")
    fill(page, "[name=stop]", '["x", "y"]')
    for words in ("first", "second"):
        say(page, words)
        wait_for_answer(page)
    question = endpoint.records()[-1].input["openai_input"]
    page.evaluate("sessionStorage.clear()")

    assert [message["content"].strip() for message in question["messages"]] == [
        "be brief",
        "first",
        "first",
        "second",
    ]
    assert (question["model"], question["temperature"], question["stop"]) == (
        "echo",
        0.5,
        ["x", "y"],
    )


def test_stop(page: Page, endpoint: LocalEndpoint) -> None:
    """Stop ends the answer, and the job behind it is cancelled."""
    say(page, " ".join(map(str, range(500))))
    page.wait_for("document.querySelector('.turn.assistant .words')?.textContent.length > 10")
    page.click("#chat .stop")
    wait_for_answer(page)
    ended = endpoint.wait_for_end(endpoint.records()[-1].job_id)
    wait_for_row(page, "CANCELLED", "/v1/chat/completions")

    assert page.text(".turn.assistant small").endswith("stopped")
    assert ended.status == "CANCELLED"
    assert page.evaluate("document.querySelector('.turn .error')") is None


def test_failure(page: Page) -> None:
    """A failed job shows its reason in the chat and in its details."""
    say(page, "fail")
    wait_for_answer(page)
    wait_for_row(page, "FAILED", "/v1/chat/completions")
    page.click("#job-rows tr")
    page.wait_for("document.querySelector('#job .error')")

    assert page.text(".turn .error") == "as you wish"
    assert "failed after" in page.text(".turn small")
    assert "tokens" not in page.text(".turn small") + page.text("#job")
    assert page.text("#job .error") == "as you wish"
    assert "FAILED" in page.text("#job .steps")


def test_bad_parameter(page: Page, endpoint: LocalEndpoint) -> None:
    """What cannot be sent is named, without a job; whether a value is good, the worker says."""
    jobs = len(endpoint.records())
    page.click("#chat summary")
    fill(page, "[name=stop]", '["x"')
    say(page, "hello")
    wait_for_answer(page)
    reason = page.text(".turn .error")
    fill(page, "[name=stop]", "")
    fill(page, "[name=temperature]", "-1")
    say(page, "hello")
    page.wait_for("document.querySelectorAll('.turn.assistant:not(.busy)').length === 2")
    page.evaluate("sessionStorage.clear()")
    inputs = [record.input for record in endpoint.records()[jobs:]]
    asked = [body for order in inputs if (body := order.get("openai_input"))]

    assert reason.startswith("stop is not JSON")
    assert [question["temperature"] for question in asked] == [-1]


def test_text_is_text(page: Page) -> None:
    """HTML in a question, an answer or an error is shown as text and never becomes markup."""
    evil = """<img src=x onerror="window.hit=1"><b>bold</b><script>window.hit=1</script>"""
    say(page, evil)
    wait_for_answer(page)
    wait_for_row(page, "COMPLETED", "/v1/chat/completions")
    answer = page.text(".turn.assistant .words").strip()
    page.click("#job-rows tr")
    page.wait_for("document.querySelector('#job svg')")
    page.click("#tab-raw")
    fill(page, "#raw textarea", json.dumps({"raise": evil, "yields": [evil]}))
    page.click("#raw .primary")
    page.wait_for("document.querySelector('#raw .error')")

    assert answer == evil
    assert evil in page.text("#raw .error")
    assert (
        page.evaluate("document.querySelectorAll('main :is(img, b:not(li > b), script)').length")
        == 0
    )
    assert page.evaluate("window.hit") is None


def test_raw(page: Page) -> None:
    """Any input can be run; its result is shown, a failed job can be retried, a long one ended."""
    page.click("#tab-raw")
    fill(page, "#raw textarea", '{"yields": ["a", 1]}')
    page.click("#raw .primary")
    page.wait_for("document.querySelector('#raw .badge')?.textContent === 'COMPLETED'")
    view = json.loads(page.evaluate("document.querySelector('#raw pre.code').textContent"))
    fill(page, "#raw textarea", '{"raise": "out of echoes"}')
    page.click("#raw .primary")
    page.wait_for("document.querySelector('#raw .retry:not([hidden])')")
    failed = page.text("#raw .error p")
    page.click("#raw .retry")
    page.wait_for("document.querySelector('#raw .retry:not([hidden])')")
    fill(page, "#raw textarea", '{"yields": [1, 2], "pause_s": 30}')
    page.click("#raw .primary")
    page.wait_for("document.querySelector('#raw .badge')?.textContent === 'IN_PROGRESS'")
    page.click("#raw .stop")
    page.wait_for("document.querySelector('#raw .badge')?.textContent === 'CANCELLED'")

    assert view["output"] == ["a", 1]
    assert "out of echoes" in failed


def test_native(house, chromium: Page) -> None:
    """A native answer grows on the page, sequence by sequence, from /run and /stream."""
    endpoint = house.serve()
    worker = house.worker()
    page = opened(chromium, endpoint)
    page.click("#tab-native")
    fill(page, "#native [name=prompt]", "The Moon is")
    page.click("#native .primary")
    job = worker.take()
    for first, second, count in (["big", "round"], [" and"], 3), (["."], [" and grey"], 5):
        choices = [{"tokens": first}, {"tokens": second}]
        worker.stream(job["id"], {"choices": choices, "usage": {"input": 3, "output": count}})
        last = (first + second)[-1]
        page.wait_for(f"document.querySelector('#native .words')?.textContent.includes('{last}')")
    worker.done(job["id"], output=[])
    page.wait_for("document.querySelector('#native .badge')?.textContent === 'COMPLETED'")
    params = {"max_tokens": 100, "temperature": 0.7}

    assert job["input"] == {"prompt": "The Moon is", "sampling_params": params, "stream": True}
    assert page.text("#native .words") == "[0] biground.\n\n[1]  and and grey"
    assert "5 tokens" in page.text("#native .facts")


RUNNERS = {
    "curl": ["bash", "-c"],
    "python": [sys.executable, "-c"],
    "javascript": ["node", "--input-type=module", "-e"],
}


def run_code(page: Page, language: str) -> str:
    """Run the code that is shown, as it is, and return what it prints."""
    if language == "javascript" and not (CLIENTS / "node_modules").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("there are no Node clients here, and in CI there must be some")
        pytest.skip("there are no Node clients here: make clients")
    page.click("#show-code")
    page.click(f"#tab-{language}")
    command = [*RUNNERS[language], page.text(f"#{language}")]
    page.press("Escape")
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=CLIENTS)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("language", RUNNERS)
def test_code(page: Page, language: str) -> None:
    """The code that is shown for a request can be run as it is, and does the same."""
    page.click("#chat textarea[name=text]")
    page.wait_for("document.querySelector('select[name=model]').value === 'echo'")
    page.write('it\'s "quoted" ünd so on')
    said = run_code(page, language)

    assert "quoted" in said
    assert "ünd" in said or "\\u00fcnd" in said


@pytest.mark.parametrize("language", RUNNERS)
@pytest.mark.parametrize("mode", ["run", "runsync"])
def test_code_of_jobs(page: Page, language: str, mode: str) -> None:
    """So can the code of a native request, by each way; this worker yields nothing to it."""
    page.click("#tab-native")
    page.evaluate(f"document.querySelector('#native [name=mode]').value = '{mode}'")
    said = run_code(page, language)

    assert ("IN_QUEUE" if (language, mode) == ("curl", "run") else "COMPLETED") in said or (
        language == "python" and said.split()[-1:] in (["[]"], ["COMPLETED"])
    )


def test_code_for_runpod(page: Page, endpoint: LocalEndpoint) -> None:
    """The same code can be shown for the real platform; only id and key are to be filled in."""
    page.click("#show-code")
    here = page.text("#code")
    page.click("#code [value=runpod]")
    codes = [page.evaluate(f"document.querySelector('#{name}').textContent") for name in RUNNERS]
    page.press("Escape")
    page.click("#tab-raw")
    page.click("#show-code")
    raws = [page.evaluate(f"document.querySelector('#{name}').textContent") for name in RUNNERS]

    assert endpoint.url in here
    for code in codes:
        assert "https://api.runpod.ai/v2/<ENDPOINT_ID>/openai/v1" in code
    for code in raws:
        assert "https://api.runpod.ai/v2" in code
        assert "<ENDPOINT_ID>" in code
    for code in codes + raws:
        assert "<RUNPOD_API_KEY>" in code
        assert origin(endpoint) not in code
        assert endpoint.api_key not in code


def test_events(page: Page) -> None:
    """However the bytes are cut, the events are the same."""
    text = ': hi\r\ndata: {"a": "ü"}\r\n\r\nevent: error\ndata:x\ndata: y\n\ndata: 🌕\r\r'
    script = """
        (async (text, size) => {
            const {events} = await import("/page/api.js");
            const bytes = new TextEncoder().encode(text);
            const stream = new ReadableStream({start(out) {
                for (let at = 0; at < bytes.length; at += size) {
                    out.enqueue(bytes.slice(at, at + size));
                }
                out.close();
            }});
            const got = [];
            for await (const {event, data} of events(stream)) got.push([event, data]);
            return got;
        })
    """
    text += "data: [DONE]\n\ndata: never finished"
    expected = [["", '{"a": "ü"}'], ["error", "x\ny"], ["", "🌕"], ["", "[DONE]"]]

    for size in (1, 2, 3, 7, 1000):
        assert expected == page.evaluate(f"({script})({json.dumps(text)}, {size})"), size


def test_supervised_worker(chromium: Page, tmp_path: Path) -> None:
    """A worker that the endpoint runs can be killed from the page, and another takes its place."""
    run = CommandLine("--port", "0", "--", *ECHO, directory=tmp_path)
    try:
        chromium.open(run.url().split("/v2/")[0] + "/")
        chromium.wait_for("document.querySelector('#worker-list .badge')?.textContent === 'idle'")
        first = chromium.text("#worker-list small")
        press(chromium, "#worker-list li", "Kill")
        chromium.click("#sure [value=yes]")
        chromium.wait_for("document.querySelector('#worker-list').innerText.includes('1 restart')")
        chromium.wait_for("document.querySelector('#worker-list .badge')?.textContent === 'idle'")
        second = chromium.text("#worker-list small")
    finally:
        run.close()

    assert "pid " in first
    assert first.split("pid ")[1].split()[0] != second.split("pid ")[1].split()[0]


def test_stopped(chromium: Page) -> None:
    """When the endpoint goes away, the page says so."""
    with local_endpoint.serve(Knobs()) as endpoint:
        page = opened(chromium, endpoint)
        page.wait_for("document.querySelector('#connection').textContent.includes('running')")
    page.wait_for("document.querySelector('#connection').textContent === 'endpoint stopped'")


WIDER_THAN_ITS_PANEL = """
    [...document.querySelectorAll(
        "header, .figures, main, .panel, .scroll, #worker-list li, #job, #log, .turn, #messages"
    )]
        .filter((node) => node.scrollWidth > node.clientWidth)
        .map((node) => `${node.tagName} ${node.id}: ${node.scrollWidth} > ${node.clientWidth}`)
"""
ANSWER = f"""## Moon

It is **round**, see [NASA](https://moon.nasa.gov/) or https://example.org/{"a-long-path/" * 9}.

1. One `code`
   - nested

```python
print("{"a long line " * 20}")
```

| {" | ".join("abcdefgh")} |
| {" | ".join("-" * 8)} |
| {" | ".join(["a wide cell"] * 8)} |
"""
TURNS = [
    {"question": "word" * 40, "thought": "Hm.", "words": ANSWER, "calls": {}, "isWhole": True},
    {
        "question": "And the weather?",
        "thought": "",
        "words": "I ask.",
        "isWhole": True,
        "calls": {"0": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
    },
]


@contextmanager
def sized(page: Page, width: int, height: int = 800, scheme: str = "light") -> Iterator[None]:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", features=media)
    try:
        yield
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
        page.call("Emulation.setEmulatedMedia", features=[])


@pytest.fixture(scope="module")
def busy() -> Iterator[LocalEndpoint]:
    """Return an endpoint with long names, a failure with a long reason, and an engine's figures."""
    with local_endpoint.serve(command=[*ENGINE, "heart"]) as endpoint:
        endpoint.submit({"openai_route": "/v1/" + "a/very/long/route/name" * 5})
        endpoint.wait_for_end(endpoint.submit({"error": "It did not work, " * 20}))
        endpoint.submit({"seconds": 600})
        yield endpoint


@pytest.mark.timeout(180)  # a browser that draws everything is slow on a busy machine
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_fits(house, busy: LocalEndpoint, chromium: Page, width: int, scheme: str) -> None:
    """On a desk and on a phone nothing is wider than its panel, however long the names are.

    It leaves pictures of every part in `.cache/screenshots`, to look at.
    """
    house.endpoint = busy
    house.worker("a-worker-with-a-very-long-name-0123456789").ping("a", "b")
    SHOTS.mkdir(parents=True, exist_ok=True)
    wide = []

    def seen(name: str) -> None:
        page.wait_for("new Promise((done) => requestAnimationFrame(() => done(true)))")
        page.screenshot(SHOTS / f"{width}-{scheme}-{name}.png")
        wide.extend(page.evaluate(WIDER_THAN_ITS_PANEL))
        whole = page.evaluate("document.documentElement.scrollWidth")
        wide.extend([] if whole == width else [f"{name}: {whole}"])

    def turn_to(part: str) -> None:
        if width <= 900:
            page.evaluate("scrollTo(0, 0)")
            page.click(f"#tab-{part}")

    with sized(chromium, width, scheme=scheme):
        page = opened(chromium, busy)
        page.evaluate(f"localStorage.setItem('chat.turns', {json.dumps(json.dumps(TURNS))})")
        page.open(origin(busy))
        page.wait_for(f"innerWidth === {width} && document.querySelector('.turn')")
        page.wait_for("document.querySelector('#model').textContent === 'tiny'")
        seen("chat")
        page.click("#chat summary")
        seen("parameters")
        page.click("#show-code")
        page.click("#tab-javascript")
        seen("code")
        page.press("Escape")
        turn_to("workers")
        press(page, "[data-id=local-1]", "Log")
        page.wait_for("document.querySelector('#log pre').textContent.includes('step')")
        seen("log")
        press(page, "[data-id=local-1]", "Stop")
        seen("sure")
        page.press("Escape")
        page.click("#close-log")
        turn_to("jobs")
        page.click("#job-rows tr:nth-child(2) button")
        page.wait_for("document.querySelector('#job svg')")
        seen("jobs")
        rate = "document.querySelector('#job-rows td:nth-child(5)').getBoundingClientRect()"
        right = page.evaluate(f"{rate}.right")

    assert wide == []
    assert 0 < right <= width
    assert page.problems == []


def test_places(chromium: Page, busy: LocalEndpoint) -> None:
    """On a phone tabs show one part at a time, by touch and by keys; on a desk all are there."""
    parts = ["ask", "workers", "jobs"]
    visible = "['ask', 'workers', 'jobs'].filter((id) => document.getElementById(id).clientWidth)"
    with sized(chromium, 390):
        page = opened(chromium, busy)
        shown = [page.evaluate(visible)]
        for part in ("workers", "jobs"):
            page.click(f"#tab-{part}")
            shown.append(page.evaluate(visible))
        page.evaluate("document.querySelector('#tab-ask').focus()")
        page.press("ArrowRight")
        by_key = page.evaluate(visible)
    page.wait_for("innerWidth > 900")

    assert shown == [[part] for part in parts]
    assert by_key == ["workers"]
    assert page.evaluate(visible) == parts
    assert page.evaluate("document.querySelector('#places').clientWidth") == 0


def test_engine(chromium: Page, busy: LocalEndpoint) -> None:
    """The model, the engine's requests, tokens a second and cache use are told by the engine."""
    page = opened(chromium, busy)
    page.wait_for("+document.querySelector('#rate').textContent > 0")

    assert page.text("#model") == "tiny"
    figures = ["#engine-running", "#engine-waiting", "#engine-cache", "#rate-of"]
    assert [page.text(one).replace("\xa0", " ") for one in figures] == [
        "5",
        "1",
        "50 %",
        "tokens/s",
    ]
    page.wait_for("document.querySelector('[data-id=local-1] small').textContent.includes('cache')")


def test_no_engine(page: Page) -> None:
    """A worker of another kind has its posts counted, and its model is known once it was asked."""
    say(page, "one two three")
    page.wait_for("+document.querySelector('#rate').textContent > 0")
    page.wait_for("document.querySelector('#model').textContent === 'echo'")

    assert page.text("#rate-of") == "posts/s"
    assert page.evaluate("document.querySelector('#engine').hidden") is True


def test_log(chromium: Page) -> None:
    """A worker's log is followed, keeps its latest lines, and is there when the worker is not."""
    lines = "document.querySelector('#log pre')"
    last = f"{lines}.lastChild.textContent"
    with local_endpoint.serve(command=[*ENGINE, "flood", "heart"]) as endpoint:
        page = opened(chromium, endpoint)
        page.wait_for("document.querySelector('#worker-list li')")
        press(page, "[data-id=local-1]", "Log")
        page.wait_for(f"{lines}.childElementCount")
        page.evaluate(f"window.first = {last}")
        page.wait_for(f"{last} !== first")
        follows = page.evaluate(f"{lines}.scrollTop + {lines}.clientHeight - {lines}.scrollHeight")
        count = page.evaluate(f"{lines}.childElementCount")
        endpoint.act("kill", "local-1")
        page.wait_for("document.querySelector('[data-id=local-2]')")
        page.click("#close-log")
        page.evaluate("import('/page/log.js').then(({open}) => open('local-1'))")
        page.wait_for(f"{last}.startsWith('step')")

    assert page.problems == []
    assert abs(follows) < 2
    assert count == 2000


def test_reason_and_filter(house, chromium: Page) -> None:
    """The reason of a failure stands in its row; jobs of one state are shown, old ones too."""
    endpoint = house.serve(rtt_ms=0)
    customer, worker = house.customer(), house.worker()
    failed = customer.run()
    worker.take()
    worker.done(failed, error=json.dumps({"error": {"message": "no such model\nTraceback"}}))
    for _ in range(200):
        endpoint.submit("later")
    page = opened(chromium, endpoint)
    page.wait_for("document.querySelectorAll('#job-rows tr').length === 200")
    latest = page.text("#job-rows")
    choose = """
        (status) => {
            const field = document.querySelector("#job-filter");
            field.value = status;
            field.dispatchEvent(new Event("change"));
        }
    """
    page.evaluate(f"({choose})('FAILED')")
    page.wait_for("document.querySelectorAll('#job-rows tr').length === 1")
    reason = page.text("#job-rows .reason")
    page.evaluate(f"({choose})('TIMED_OUT')")
    page.wait_for("document.querySelectorAll('#job-rows tr').length === 0")
    none = page.text("#no-jobs")

    assert "FAILED" not in latest
    assert reason == "no such model"
    assert none == "No job is TIMED_OUT."


def test_ask_first(chromium: Page) -> None:
    """Stop and Kill ask before they end a worker, and Cancel or Escape leave it alone."""
    with local_endpoint.serve(command=QUICK, min_workers=2) as endpoint:
        page = opened(chromium, endpoint)
        page.wait_for("document.querySelectorAll('#worker-list li').length === 2")
        press(page, "[data-id=local-1]", "Kill")
        question = page.text("#sure")
        press(page, "#sure", "Cancel")
        press(page, "[data-id=local-1]", "Stop")
        page.press("Escape")
        page.wait_for("!document.querySelector('#sure').open")
        page.wait_for("document.querySelectorAll('#worker-list li').length === 2")
        left = [worker.id for worker in endpoint.workers()]
        press(page, "[data-id=local-1]", "Stop")
        press(page, "#sure", "Stop")
        page.wait_for("document.querySelectorAll('#worker-list li').length === 1")

        assert "Kill local-1?" in question
        assert left == ["local-1", "local-2"]
        assert [worker.id for worker in endpoint.workers()] == ["local-2"]


def test_regenerate_and_copy(page: Page, endpoint: LocalEndpoint) -> None:
    """An answer can be copied as it was written, and asked for again in its place."""
    page.call("Browser.grantPermissions", permissions=CLIPBOARD)
    for words in ("first", "**bold** word"):
        say(page, words)
        wait_for_answer(page)
    jobs = len(endpoint.records())
    press(page, ".turn.assistant:last-child", "Copy")
    page.wait_for("document.querySelector('.turn:last-child .copy').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    fill(page, "#chat textarea[name=text]", "a draft")
    press(page, ".turn.assistant:last-child", "Regenerate")
    page.wait_for("document.querySelectorAll('.turn.assistant:not(.busy)').length === 2")
    (again,) = endpoint.records()[jobs:]
    messages = [message["content"].strip() for message in again.input["openai_input"]["messages"]]

    assert copied.strip() == "**bold** word"
    assert page.text(".turn.assistant:last-child .words strong") == "bold"
    assert messages == ["first", "first", "**bold** word"]
    assert page.evaluate("document.querySelectorAll('.turn').length") == 4
    assert page.evaluate("document.querySelector('#chat textarea[name=text]').value") == "a draft"


def test_tool_calls(house, chromium: Page) -> None:
    """Tools go with a question, and calls, which come in pieces, are shown whole and readable."""
    endpoint = house.serve()
    worker = house.worker()
    worker.ping()
    page = opened(chromium, endpoint)
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    page.click("#chat summary")
    fill(page, "[name=tools]", json.dumps(tools))
    say(page, "How is the weather?")
    job = worker.take()
    while job["input"]["openai_route"] != "/v1/chat/completions":
        worker.done(job["id"], output=[{"data": [{"id": "tiny"}]}])
        job = worker.take()
    pieces = [
        [{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"city": '}}],
        [{"index": 0, "function": {"arguments": '"Paris"}'}}],
        [{"index": 1, "id": "b", "function": {"name": "get_time", "arguments": "{"}}],
    ]
    for piece in pieces:
        event = {"choices": [{"index": 0, "delta": {"tool_calls": piece}}]}
        worker.stream(job["id"], f"data: {json.dumps(event)}\n\n")
    worker.stream(job["id"], "data: [DONE]\n\n")
    worker.done(job["id"], output=[])
    wait_for_answer(page)
    calls = page.evaluate("[...document.querySelectorAll('.call')].map((node) => node.innerText)")
    page.evaluate("sessionStorage.clear()")

    assert job["input"]["openai_input"]["tools"] == tools
    assert [call.split("\n") for call in calls] == [
        ["calls get_weather", "{", '  "city": "Paris"', "}"],
        ["calls get_time", "{"],
    ]


RENDERED = """
    async (text) => {
        const {render} = await import("/page/markdown.js");
        const place = document.createElement("div");
        render(place, text);
        place.querySelectorAll("figcaption").forEach((node) => node.remove());
        return place.innerHTML;
    }
"""
LINK = 'target="_blank" rel="noreferrer"'
MARKDOWN = [
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("# One\n### Three ##", "<h3>One</h3><h5>Three</h5>"),
    (
        "- a\n- b\n  1. c\n  2. d",
        "<ul><li>a</li><li>b<ol start='1'><li>c</li><li>d</li></ol></li></ul>",
    ),
    ("3. a\n\n4. b", "<ol start='3'><li>a</li><li>b</li></ol>"),
    ("- a\n\ntext", "<ul><li>a</li></ul><p>text</p>"),
    ("- a\n\n  b", "<ul><li><p>a</p><p>b</p></li></ul>"),
    (
        "* a\n  ```\n  x\n  ```",
        "<ul><li>a<figure class='listing'><pre><code>x</code></pre></figure></li></ul>",
    ),
    (
        "```py\na **b** <i>\n",
        "<figure class='listing'><pre><code>a **b** &lt;i&gt;\n</code></pre></figure>",
    ),
    (
        "`a*b*` **b *c* d** _e_ snake_case_name 2 * 3 * 4",
        "<p><code>a*b*</code> <strong>b <em>c</em> d</strong> <em>e</em> snake_case_name 2 * 3 * 4"
        "</p>",
    ),
    (r"\*no\* **open", "<p>*no* **open</p>"),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    (
        "|a|b|\n|-|-|\n|1|`2`|",
        "<div class='table'><table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td><code>2</code></td></tr></tbody></table></div>",
    ),
    (
        "[x](https://a.b/c_(d)) https://e.f/g_h_i.",
        f"<p><a href='https://a.b/c_(d)' {LINK}>x</a> "
        f"<a href='https://e.f/g_h_i' {LINK}>https://e.f/g_h_i</a>.</p>",
    ),
    (
        "[x](javascript:alert(1)) [y](javascript://%0aalert(1)) [z](/local)",
        "<p>[x](javascript:alert(1)) [y](javascript://%0aalert(1)) [z](/local)</p>",
    ),
    (
        '<img src=x onerror="hit=1"> [a"><b>](https://x.y/"onclick="hit=1)',
        f'<p>&lt;img src=x onerror="hit=1"&gt; '
        f"<a href='https://x.y/&quot;onclick=&quot;hit=1' {LINK}>a\"&gt;&lt;b&gt;</a></p>",
    ),
]


@pytest.mark.parametrize(("text", "html"), MARKDOWN, ids=lambda text: text[:9])
def test_markdown(page: Page, text: str, html: str) -> None:
    """Markdown as models write it becomes elements; HTML in it stays text, links are http only."""
    rendered = page.evaluate(f"({RENDERED})({json.dumps(text)})")

    assert rendered == html.replace("'", '"')


def test_markdown_grows(page: Page) -> None:
    """What is rendered piece by piece ends as the whole does, and finished blocks stay in place."""
    script = f"""
        (async (text) => {{
            const {{render}} = await import("/page/markdown.js");
            const place = document.createElement("div");
            render(place, text.slice(0, 40));
            const first = place.firstChild;
            for (let end = 41; end <= text.length; end += 1) render(place, text.slice(0, end));
            place.querySelectorAll("figcaption").forEach((node) => node.remove());
            return [place.innerHTML, place.firstChild === first, await ({RENDERED})(text)];
        }})
    """
    grown, is_kept, whole = page.evaluate(f"{script}({json.dumps(ANSWER)})")

    assert grown == whole
    assert is_kept


@pytest.mark.parametrize(
    "text",
    [
        "*" * 50_000,
        "_a" * 20_000,
        "`" * 50_000,
        "[" * 50_000,
        "**a" * 20_000,
        "https://" * 6_000,
        "> " * 20_000,
        "|-" * 20_000,
        "# " + " " * 50_000 + "x",
        "```" + " " * 50_000 + "`",
        "- " + " " * 50_000 + "x\n" * 5,
        "\n".join(" " * depth + "- a" for depth in range(300)),
    ],
    ids=lambda text: text[:5],
)
def test_markdown_of_nonsense(page: Page, text: str) -> None:
    """A model gone wild is shown too, and does not hold up the page."""
    shown = page.evaluate(f"({RENDERED})({json.dumps(text)})")

    assert shown


def test_reload(page: Page, endpoint: LocalEndpoint) -> None:
    """A reload keeps the conversation, and the next question carries it."""
    for words in ("first", "fail", "second"):
        say(page, words)
        wait_for_answer(page)
    before = page.text("#messages")
    page.evaluate("sessionStorage.clear()")  # as if the tab had been closed
    page.open(origin(endpoint))
    page.wait_for("document.querySelectorAll('.turn').length")
    after = page.text("#messages")
    say(page, "third")
    wait_for_answer(page)
    question = endpoint.records()[-1].input["openai_input"]
    page.click("#new-chat")
    page.open(origin(endpoint))

    assert after == before
    assert "as you wish" in after
    assert [message["content"].strip() for message in question["messages"]] == [
        *("first", "first", "second", "second", "third")
    ]
    assert page.evaluate("document.querySelectorAll('.turn').length") == 0


def test_keyboard(page: Page) -> None:
    """Tabs move with the arrow keys, and only the chosen panel shows."""
    page.evaluate("document.querySelector('#tab-chat').focus()")
    page.press("ArrowRight")

    assert page.evaluate("document.activeElement.id") == "tab-native"
    assert page.evaluate("document.querySelector('#chat').hidden") is True
    assert page.evaluate("document.querySelector('#native').hidden") is False


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("", "text/html; charset=utf-8"),
        ("page/page.css", "text/css; charset=utf-8"),
        ("page/page.js", "text/javascript; charset=utf-8"),
        ("page/icon.svg", "image/svg+xml; charset=utf-8"),
    ],
)
def test_files(house, path: str, content_type: str) -> None:
    """The files need no key, are never cached, and allow no script from elsewhere."""
    answer = requests.get(origin(house.serve()) + path, timeout=TIMEOUT_S)

    assert (answer.status_code, answer.headers["Content-Type"]) == (200, content_type)
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")


@pytest.mark.parametrize(
    "name", ["__init__.py", "..%2Fapp.py", "%2Fetc%2Fpasswd", "nothing.js", ""]
)
def test_no_other_files(house, name: str) -> None:
    """Nothing but the page's own files is given out."""
    answer = requests.get(f"{origin(house.serve())}page/{name}", timeout=TIMEOUT_S)

    assert answer.status_code == 404


def test_files_are_packed() -> None:
    """The page names only files that exist."""
    folder = Path(local_endpoint.__file__).parent / "page"
    text = (folder / "index.html").read_text()
    names = {part.split('"')[0] for part in text.split('"/page/')[1:]}

    assert names <= {file.name for file in folder.iterdir()}
