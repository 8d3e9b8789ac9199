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
from workers import ECHO

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

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
        process = subprocess.Popen(
            ECHO, env=environ, stdout=log, stderr=log, start_new_session=True
        )
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
    page.evaluate("sessionStorage.clear()")  # of the test before
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


@pytest.mark.parametrize("language", ["curl", "python"])
def test_code(page: Page, language: str) -> None:
    """The code that is shown for a request can be run as it is, and does the same."""
    page.click("#chat textarea[name=text]")
    page.wait_for("document.querySelector('select[name=model]').value === 'echo'")
    page.write('it\'s "quoted" ünd so on')
    page.click("#show-code")
    page.click(f"#tab-{language}")
    code = page.text(f"#{language}")
    page.press("Escape")
    command = {"curl": ["bash", "-c"], "python": [sys.executable, "-c"]}[language]
    run = subprocess.run([*command, code], capture_output=True, text=True, timeout=TIMEOUT_S)

    assert run.returncode == 0, run.stderr
    assert "quoted" in run.stdout
    assert "ünd" in run.stdout or "\\u00fcnd" in run.stdout


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
        chromium.click("#worker-list .acts button:last-child")
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
    [...document.querySelectorAll("header, main, .panel, .scroll, #worker-list li, #job")]
        .filter((node) => node.scrollWidth > node.clientWidth)
        .map((node) => `${node.tagName} ${node.id}: ${node.scrollWidth} > ${node.clientWidth}`)
"""


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_fits(house, chromium: Page, width: int) -> None:
    """On a desk and on a phone nothing is wider than its panel, however long the names are."""
    endpoint = house.serve(rtt_ms=0)
    customer, worker = house.customer(), house.worker("a-worker-with-a-very-long-name-0123456789")
    for route in ("v1/chat/completions", "v1/" + "a/very/long/route/name" * 5):
        asking = house.later(customer.post, f"openai/{route}", {"stream": True})
        job_id = worker.take()["id"]
        worker.stream(job_id, "data: {}")
        worker.done(job_id, output=[])
        asking.result()
    customer.run()
    worker.take()
    house.worker("w2").ping("a", "b")
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        page = opened(chromium, endpoint)
        page.wait_for(f"innerWidth === {width}")
        page.wait_for("document.querySelectorAll('#job-rows tr').length === 3")
        page.click("#job-rows tr:last-child button")
        page.wait_for("document.querySelector('#job svg')")
        wide = page.evaluate(WIDER_THAN_ITS_PANEL)
        whole = page.evaluate("document.documentElement.scrollWidth")
        rate = "document.querySelector('#job-rows td:nth-child(5)').getBoundingClientRect()"
        right = page.evaluate(f"{rate}.right")
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")

    assert (whole, wide) == (width, [])
    assert 0 < right <= width


def test_reload(page: Page, endpoint: LocalEndpoint) -> None:
    """A reload keeps the conversation, and the next question carries it."""
    for words in ("first", "fail", "second"):
        say(page, words)
        wait_for_answer(page)
    before = page.text("#messages")
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
