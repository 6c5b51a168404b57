"""A FastAPI app with users of its own, each of whom chats with Khala: `uvicorn app:app`.

The browser only knows this app and its session. The app calls Khala for its users, and passes the text on as it comes.
"""

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Cookie, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from khala_client import AsyncKhala, AsyncRun, InvalidSetting, KhalaError, NotFound, RateLimited, RunFailed

USERS = {"ada": "lovelace", "alan": "turing"}
"""Names and passwords. An app has a table of users and a library for passwords here."""
SESSION_SECONDS = 3_600
MAX_SESSIONS = 10_000

sessions: dict[str, str] = {}
threads: dict[str, set[str]] = {}
"""The threads of each user, in the app's own tables."""


def khala_for(app: FastAPI, user: str) -> AsyncKhala:
    """The client that acts for a user of this app. This is the only place that knows how the app is known to Khala.

    All users share one API token here: Khala sees one account, and this app decides who may use which thread. With a
    service token, give each user a client of their own: `AsyncKhala(token=SERVICE_TOKEN, user=user)`. With JWTs of the
    app: `AsyncKhala(token=lambda: sign_jwt(user))`.
    """
    khala: AsyncKhala = app.state.khala
    return khala


def create_client() -> AsyncKhala:
    """The client of this process. Ends the program with one line if there is no usable token."""
    token = os.environ.get("KHALA_TOKEN")
    if not token:
        sys.exit("Set KHALA_TOKEN to an API token with the scopes `read` and `write`.")
    try:
        return AsyncKhala(token=token)
    except InvalidSetting as error:
        sys.exit(error.message)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Close the client's connections when the process ends."""
    async with app.state.khala:
        yield


app = FastAPI(lifespan=lifespan)
app.state.khala = create_client()


class SignIn(BaseModel):
    """A name and a password."""

    name: str = Field(max_length=100)
    password: str = Field(max_length=200)


class Question(BaseModel):
    """A message to send."""

    text: str = Field(min_length=1, max_length=10_000)


def current_user(session: Annotated[str | None, Cookie()] = None) -> str:
    """The user of the session."""
    user = sessions.get(session or "")
    if user is None:
        raise HTTPException(401, "Sign in first.")
    return user


User = Annotated[str, Depends(current_user)]


@app.exception_handler(KhalaError)
async def khala_failed(_: Request, error: KhalaError) -> Response:
    """Answer with the error of Khala, as far as it is one of the user."""
    if isinstance(error, RateLimited):
        headers = {} if error.retry_after is None else {"Retry-After": str(int(error.retry_after))}
        return JSONResponse({"detail": error.message}, 429, headers)
    status = error.status if error.status in (400, 404, 409, 413) else 502
    return JSONResponse({"detail": error.message}, status or 502)


@app.post("/sign-in", status_code=204)
async def sign_in(given: SignIn, response: Response) -> None:
    """Begin a session."""
    if not secrets.compare_digest(USERS.get(given.name, "").encode() or b"\0", given.password.encode()):
        raise HTTPException(401, "Wrong name or password.")
    while len(sessions) >= MAX_SESSIONS:
        sessions.pop(next(iter(sessions)))
    session = secrets.token_urlsafe(32)
    sessions[session] = given.name
    response.set_cookie("session", session, max_age=SESSION_SECONDS, httponly=True, samesite="lax")


@app.post("/threads", status_code=201)
async def create(user: User) -> dict[str, str]:
    """Create a thread of the user's."""
    thread = await khala_for(app, user).threads.create(title=user)
    threads.setdefault(user, set()).add(str(thread.id))
    return {"id": str(thread.id)}


@app.post("/threads/{thread_id}/ask")
async def ask(thread_id: str, question: Question, user: User) -> StreamingResponse:
    """Send a message. The body is the answer as it is written, and `X-Run` names its run."""
    if thread_id not in threads.get(user, set()):
        raise NotFound("There is no such thread.", status=404)
    run = await khala_for(app, user).thread(thread_id).send(question.text)
    return StreamingResponse(text_of(run), media_type="text/plain; charset=utf-8", headers={"X-Run": str(run.id)})


async def text_of(run: AsyncRun) -> AsyncIterator[str]:
    """The answer's text. If the browser leaves, the stream is closed here, and the run goes on."""
    async with run.stream_text() as pieces:
        try:
            async for piece in pieces:
                yield piece
        except RunFailed as error:
            yield f"\n[{error.code}]"
