"""The account, the API token and the webhook of a development server, which stay the same in its database."""

import secrets
from pathlib import Path
from uuid import UUID

import msgspec

from khala.domain.access import ACCOUNT_SCOPES, Caller
from khala.domain.accounts import Identity
from khala.domain.errors import NotFound
from khala.domain.webhooks import DEPLOYMENT
from khala.store.accounts import account_status, accounts, api_tokens
from khala.store.postgres.database import Database
from khala.store.webhooks import endpoints
from khala.store.webhooks.endpoints import MAX_DEPLOYMENT_ENDPOINTS, EndpointConfig, StoredEndpoint

STATE_FILE = "dev.json"
DEVELOPER = Identity(issuer="khala-dev", subject="developer", name="Developer")
TOKEN_NAME = "khala dev"  # noqa: S105  # the name of a token
WEBHOOK_NAME = "khala dev: shown in the terminal"


class DevState(msgspec.Struct, kw_only=True):
    """The content of `dev.json`: secrets of this machine's developer."""

    page_secret: str
    """The part of the page's address that gives the right to read it, and to sign in."""
    token: str = ""
    webhook_id: UUID | None = None


def read_state(home: Path) -> DevState:
    """Read the stored state, or begin a new one, which only this user may read."""
    path = home / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=DevState)
    except (FileNotFoundError, msgspec.MsgspecError):
        state = DevState(page_secret=secrets.token_urlsafe(16))
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        return state


async def prepare_account(db: Database, state: DevState) -> UUID:
    """The developer's account, which is an administrator's. Sets `state.token` to a token with all scopes."""
    user_id = await accounts.of_identity(db, DEVELOPER, Caller())
    await account_status.set_admin(db, str(user_id), admin=True)
    async with db.driver() as driver:
        known = await api_tokens.find(driver, state.token) if state.token else None
    if known is None or known.user_id != user_id:
        _, state.token = await api_tokens.create(
            db, Caller(user_id=user_id), TOKEN_NAME, sorted(ACCOUNT_SCOPES), expires_at=None
        )
    return user_id


async def prepare_webhook(db: Database, state: DevState, url: str) -> StoredEndpoint:
    """The webhook that gets the events of all threads at this URL. Sets `state.webhook_id`."""
    config = EndpointConfig(url=url, description=WEBHOOK_NAME, include_content=True)
    if state.webhook_id is not None:
        try:
            return await endpoints.change(
                db, DEPLOYMENT, state.webhook_id, {"url": url, "is_enabled": True}, caller=Caller()
            )
        except NotFound:  # The developer has deleted it.
            state.webhook_id = None
    stored = await endpoints.create(db, DEPLOYMENT, config, caller=Caller(), limit=MAX_DEPLOYMENT_ENDPOINTS)
    state.webhook_id = stored.id
    return stored


def write_state(home: Path, state: DevState) -> None:
    """Store the state."""
    (home / STATE_FILE).write_bytes(msgspec.json.encode(state))
