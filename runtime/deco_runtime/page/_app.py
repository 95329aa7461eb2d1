"""The page's addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from deco_runtime.errors import DecoError
from deco_runtime.page import access as rules
from deco_runtime.page import pictures
from deco_runtime.page._metrics import Metrics
from deco_runtime.page.access import Access
from deco_runtime.page.board import Board
from deco_runtime.running.control import Control
from deco_runtime.storage.untrusted import parse_json

FRAMES_PER_SECOND, TOLD_PER_SECOND = 8, 2
"""To each viewer, at most."""
MOST_BODY = 64 << 10
"""Bytes of a request."""
VIEWERS = 64
"""That are connected at a time; further ones are refused."""
STATIC = Path(__file__).parent / "static"

_BOUNDARY = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: "
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def app(control: Control, board: Board, metrics: Metrics, frames: pictures.Frames, access: Access) -> Any:
    """The application, guarded by `access`."""

    def page(_: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html; charset=utf-8")

    def health(_: Request) -> Response:
        return PlainTextResponse("ok\n" if board.healthy else "no frames\n", 200 if board.healthy else 503)

    def told(_: Request) -> Response:
        return JSONResponse(board.told())

    async def events(_: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                text = await run_in_threadpool(lambda: json.dumps(board.told()))
                yield f"data: {text}\n\n".encode()
                await asyncio.sleep(1 / TOLD_PER_SECOND)

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def live(_: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            last = None
            while True:
                found = await run_in_threadpool(frames.newest, last)
                if found is not None:
                    last, data = found
                    yield _BOUNDARY + str(len(data)).encode() + b"\r\n\r\n" + data + b"\r\n"
                await asyncio.sleep(1 / FRAMES_PER_SECOND)

        return StreamingResponse(parts(), media_type="multipart/x-mixed-replace; boundary=frame")

    def buffer(_: Request) -> Response:
        found = control.buffer
        if found is None:
            return PlainTextResponse("no condensed images\n", 404)
        sheet = pictures.condensed(*found, control.bundle.preprocessing)
        return Response(pictures.jpeg(sheet), media_type="image/jpeg")

    def recent(_: Request) -> Response:
        return JSONResponse({"groups": groups(control)})

    def thumb(request: Request) -> Response:
        number = request.path_params["number"]
        found = next((each for each in control.recent.frames() if each.number == number), None)
        if found is None:
            return PlainTextResponse("gone\n", 404)
        return Response(found.picture, media_type="image/jpeg")

    async def change(request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                return JSONResponse({"error": "expected a small request, but found a large one"}, 413)
        try:
            asked = dict(parse_json(bytes(body)))
            answer = await run_in_threadpool(_change, control, request.path_params["what"], asked)
        except DecoError as error:
            return JSONResponse({"error": str(error)}, 409)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return JSONResponse({"error": "expected a request of the page, but found another; load it again"}, 400)
        return JSONResponse(answer)

    def measured(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [
        Route("/", page),
        Route("/healthz", health),
        Route("/state.json", told),
        Route("/events", events),
        Route("/live.mjpg", live),
        Route("/buffer.jpg", buffer),
        Route("/recent.json", recent),
        Route("/thumb/{number:int}.jpg", thumb),
        Route("/do/{what}", change, methods=["POST"]),
        Route("/metrics", measured),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return _Gate(Starlette(routes=routes), access)


def groups(control: Control) -> list[dict[str, Any]]:
    """The frames of the last minutes by take and answer, the least certain group first."""
    found: dict[tuple[int, str | None], list[Any]] = {}
    for each in control.recent.frames():
        found.setdefault((each.take, each.label), []).append(each)
    told = []
    for (take, label), of in found.items():
        sure = float(np.mean([each.confidence for each in of]))
        certain = sure if label is not None else 1 - sure
        numbers = [each.number for each in of]
        told.append({"take": take, "label": label, "confidence": sure, "certain": certain, "numbers": numbers,
                     "from": of[0].time, "to": of[-1].time})  # fmt: skip
    return sorted(told, key=lambda group: (group["certain"], -group["take"]))


def _change(control: Control, what: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Do what a person asks by the page; what to answer."""
    if what == "teach":
        told = control.teach_recent(str(asked["class"]), np.asarray(asked["numbers"], np.int64).reshape(-1))
        return {"words": f"not taught: that {told.refused}" if told.refused else f"taught {told.frames} as {told.name}",
                "refused": told.refused is not None}  # fmt: skip
    if what == "judge":
        answer = None if asked["answer"] is None else str(asked["answer"])
        control.judge(answer, asked["right"] is True, min(max(int(asked["frames"]), 1), 1000))
        return {"words": "noted"}
    if what == "undo":
        control.undo()
        return {"words": "the last teaching was taken back"}
    if what == "hold":
        control.hold(asked["held"] is True)
        return {"words": "learning waits" if control.held else "learning goes on"}
    if what == "back":
        return {"words": f"went back: {control.back(str(asked['to'])).segments} segments"}
    if what == "save":
        control.save()
        return {"words": "saved"}
    raise ValueError(what)


class _Gate:
    """In front of the application: who may pass, and how many at a time."""

    def __init__(self, inner: Any, access: Access) -> None:
        self._inner, self._access, self._viewers = inner, access, 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        query = QueryParams(scope["query_string"]).get("token")
        cookie = cookie_parser(headers.get("cookie", "")).get(rules.COOKIE)
        status = self._access.refusal(scope["method"], scope["path"], headers, query, cookie)
        response: Response | None = None
        if status == 401:
            await asyncio.sleep(0.5)  # who tries many tokens has to wait for each
            response = PlainTextResponse("expected the token; open the address that deco-run printed\n", 401)
        elif status:
            response = PlainTextResponse("expected a request of the page itself; open it by its own address\n", status)
        elif query is not None and scope["path"] == "/":
            response = RedirectResponse("/", 303)
            response.set_cookie(rules.COOKIE, query, httponly=True, samesite="strict",
                                secure=self._access.certificate is not None)  # fmt: skip
        elif self._viewers >= VIEWERS:
            response = PlainTextResponse("too many viewers; close some pages\n", 503)

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.decode() not in rules.HEADERS]
                ours = [(name.encode(), value.encode()) for name, value in rules.HEADERS.items()]
                message["headers"] = kept + ours
            await send(message)

        self._viewers += 1
        try:
            with suppress(ClientDisconnect):
                await (response or self._inner)(scope, receive, with_headers)
        finally:
            self._viewers -= 1
