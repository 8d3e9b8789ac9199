"""An app with one behaviour per route, called as vLLM's own app is."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, Request, Response, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict

from worker.engine.refusals import Refusals
from worker.engine.server import Engine
from worker.facts import Facts
from worker.generation.turns import Turns
from worker.openai.older_names import OlderNames
from worker.processor.reports import Report

MODEL = "org/served"
CHAT = "/v1/chat/completions"


def event(data: Any, name: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chunk(delta: dict[str, Any], **choice: Any) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, **choice}]})


ROLE = chunk({"role": "assistant", "content": ""}, finish_reason=None)
FINISH = chunk({}, finish_reason="stop")
USAGE = event({"id": "c", "choices": [], "usage": {"prompt_tokens": 3}})
DONE = event("[DONE]")
KEEP_ALIVE = b": keep-alive\n\n"
ANSWER = [ROLE, chunk({"content": "Grüße"}), chunk({"content": " 👩‍🚀"}), FINISH, USAGE, DONE]
REFUSED = {"message": "No such model.", "type": "NotFoundError", "param": "model", "code": 404}


class Body(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str
    stream: bool = False


async def disconnected(request: Request) -> None:
    while not await request.is_disconnected():  # noqa: ASYNC110 - all that the app has is this
        await asyncio.sleep(0.01)


def make_app(seen: list[str]) -> FastAPI:
    """An app with one behaviour per route; what its routes notice goes into `seen`."""
    app = FastAPI()

    async def told(request: Request) -> dict[str, Any]:
        return {
            "method": request.method,
            "path": request.url.path,
            "query": request.url.query,
            "type": request.headers.get("content-type"),
            "id": request.headers.get("x-request-id"),
            "body": (await request.body()).decode(),
        }

    @app.post(CHAT)
    async def chat(body: Body) -> Any:
        async def events() -> AsyncIterator[bytes]:
            # One read may hold half an event, or half a character.
            for start in range(0, len(b"".join(ANSWER)), 7):
                yield b"".join(ANSWER)[start : start + 7]

        if body.stream:
            return StreamingResponse(events(), media_type="text/event-stream")
        return {"id": "c", "model": body.model, "extra": body.model_extra}

    @app.post("/v1/completions")
    async def completions(body: Body) -> Any:
        return body

    @app.post("/v1/responses")
    async def responses(body: Body) -> Any:
        return body

    @app.get("/v1/responses/{response_id}")
    @app.get("/v1/models")
    @app.get("/health")
    @app.post("/tokenize")
    @app.post("/v1/raw")
    @app.get("/v1/both")
    @app.post("/v1/both")
    @app.post("/pause")
    @app.post("/v1/load_lora_adapter")
    async def mirror(request: Request) -> Any:
        return await told(request)

    @app.api_route("/v1/odd", methods=["GET", "DELETE"])
    async def odd() -> str:
        return "odd"

    @app.post("/v1/empty")
    async def empty() -> Response:
        return Response(status_code=200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse("requests 1.0\n", media_type="text/plain; version=0.0.4")

    @app.post("/v1/audio/speech")
    async def speech() -> Response:
        return Response(bytes(range(256)), media_type="audio/wav")

    @app.post("/v1/audio/transcriptions")
    async def transcriptions(
        file: Annotated[UploadFile, File()],
        model: Annotated[str, Form()],
        language: Annotated[str | None, Form()] = None,
        temperature: Annotated[float | None, Form()] = None,
        stream: Annotated[bool | None, Form()] = None,
        granularities: Annotated[list[str] | None, Form()] = None,
    ) -> Any:
        content = await file.read()
        return {
            "content": content.decode("latin-1"),
            "filename": file.filename,
            "type": file.content_type,
            "model": model,
            "language": language,
            "temperature": temperature,
            "stream": stream,
            "granularities": granularities,
        }

    @app.post("/v1/reply")
    async def reply(request: Request) -> Response:
        wanted = await request.json()
        content = base64.b64decode(wanted["base64"])
        return Response(content, wanted["status"], media_type=wanted["type"])

    @app.post("/v1/raises")
    async def raises() -> None:
        raise RuntimeError("nobody foresaw this")

    @app.exception_handler(RuntimeError)
    async def explain(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "code": 500}}, 500)

    @app.post("/v1/raises/unhandled")
    async def raises_unhandled() -> None:
        raise LookupError("nobody foresaw this")

    @app.post("/v1/gives-up")
    async def gives_up() -> None:
        raise asyncio.CancelledError

    @app.post("/v1/breaks")
    async def breaks(body: Body) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            yield ANSWER[0] + ANSWER[1]
            raise ValueError("the tool call could not be parsed")

        kind = "text/event-stream" if body.stream else "application/json"
        return StreamingResponse(events(), media_type=kind)

    @app.post("/v1/fails")
    async def fails(body: Body) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            yield ANSWER[0] + ANSWER[1] + event({"error": REFUSED}) + DONE

        assert body.stream
        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/v1/quiet")
    async def quiet() -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            yield KEEP_ALIVE
            yield ROLE
            yield KEEP_ALIVE + ANSWER[1]
            yield KEEP_ALIVE + FINISH + DONE

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/v1/unended")
    async def unended() -> StreamingResponse:
        return StreamingResponse(
            iter([ANSWER[0], ANSWER[1], b"data: [DONE]"]), media_type="text/event-stream"
        )

    @app.post("/v1/waits")
    async def waits(request: Request, body: Body) -> Any:
        seen.append("started " + body.model)
        await disconnected(request)
        seen.append("disconnected")
        await asyncio.sleep(0.05)
        seen.append("stopped")

    @app.post("/v1/waits/for-messages")
    async def waits_for_messages(request: Request, body: Body) -> Any:
        # As vLLM's own routes do: work in a task, and the client's messages beside it.
        async def work() -> None:
            seen.append("started " + body.model)
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("stopped")

        async def listen() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.create_task(work()), asyncio.create_task(listen())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[0].cancel()
        await asyncio.wait(tasks)

    @app.post("/v1/waits/streaming")
    async def waits_streaming(body: Body) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            seen.append("started " + body.model)
            try:
                for number in itertools.count():
                    yield chunk({"content": str(number)})
                    await asyncio.sleep(0.01)
            finally:
                seen.append("stopped")

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/v1/waits/and-raises")
    async def waits_and_raises(request: Request, body: Body) -> None:
        seen.append("started " + body.model)
        await disconnected(request)
        seen.append("stopped")
        raise LookupError("after the client had gone")

    return app


# What a body is judged by.
RULES = Facts(vocab_size=100, max_model_len=100), Turns(1, 1), OlderNames()


def make_engine(app: Any, *, errored: bool = False) -> Engine:
    """The value that a call is given; of the client it only asks whether the engine is dead."""
    client = SimpleNamespace(errored=errored)
    nothing = Path("/dev/null")
    return Engine(client, app, None, "", nothing, Refusals(Report(nothing)))


# Routes that only this app has.
OURS = (
    *("/v1/raw", "/v1/both", "/v1/odd", "/v1/empty", "/v1/audio/speech", "/v1/reply", "/v1/raises"),
    *("/v1/raises/unhandled", "/v1/gives-up", "/v1/breaks", "/v1/fails", "/v1/unended"),
    *("/v1/waits", "/v1/waits/for-messages", "/v1/waits/streaming", "/v1/waits/and-raises"),
    "/v1/quiet",
)
