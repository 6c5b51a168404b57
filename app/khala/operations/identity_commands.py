"""The operators' commands for service tokens and accounts. Each works on the database, without a running server."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import click

from khala.console import EPILOG, KnownFailure, run
from khala.domain.access import SERVICE_SCOPES
from khala.operations.home_notice import command_settings

if TYPE_CHECKING:
    from khala.domain.accounts import ServiceToken
    from khala.settings import Settings
    from khala.store.postgres.database import Database

SERVICE_NAME = r"[a-z][a-z0-9-]{0,39}"
MAX_DAYS = 3650
PASSWORD_BYTES = 12
"""Random bytes of a password that replaces a lost one."""

T = TypeVar("T")


@click.group(epilog=EPILOG)
def tokens() -> None:
    """Service tokens, with which the backend of an application calls for its users."""


@tokens.command("create", epilog=EPILOG)
@click.option("--service", required=True, metavar="NAME", help="The service: lower-case letters, digits and dashes.")
@click.option(
    "--scopes", required=True, metavar="LIST", help=f"Scopes, separated by commas: {', '.join(SERVICE_SCOPES)}."
)
@click.option(
    "--issuer", metavar="URL", help="Act for users of this configured issuer, and not for users of the service alone."
)
@click.option("--days", type=click.IntRange(1, MAX_DAYS), help="Days until it expires; by default never.")
def create_token(*, service: str, scopes: str, issuer: str | None, days: int | None) -> None:
    """Create a service token and print it. It is stored as a hash, so it is shown only once."""
    import re

    if not re.fullmatch(SERVICE_NAME, service):
        raise click.BadParameter("use 1 to 40 lower-case letters, digits and dashes.", param_hint="--service")
    named = [scope.strip() for scope in scopes.split(",")]
    if unknown := [scope for scope in named if scope not in SERVICE_SCOPES]:
        message = f"there is no scope {unknown[0]!r}: use {', '.join(SERVICE_SCOPES)}."
        raise click.BadParameter(message, param_hint="--scopes")
    settings = command_settings()
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    token = run(_on_database(settings, lambda db: _create(db, settings, service, named, issuer, expires_at)))
    click.echo(token)


@tokens.command("list", epilog=EPILOG)
def list_tokens() -> None:
    """List service tokens, without their secrets."""
    from khala.store.accounts import service_tokens

    async def read(db: "Database") -> "list[ServiceToken]":
        async with db.driver() as driver:
            return await service_tokens.all_tokens(driver)

    for token in run(_on_database(command_settings(), read)) or ():
        used = "never used" if token.used_at is None else f"used {token.used_at:%Y-%m-%d}"
        ends = "" if token.expires_at is None else f"  expires {token.expires_at:%Y-%m-%d}"
        click.echo(f"{token.id}  {token.service}  {','.join(token.scopes)}  {used}{ends}")


@tokens.command("revoke", epilog=EPILOG)
@click.argument("token_id", type=click.UUID, metavar="ID")
def revoke_token(*, token_id: UUID) -> None:
    """Revoke the service token with this ID. Its sockets lose their access at once."""
    from khala.store.accounts import service_tokens

    run(_on_database(command_settings(), lambda db: service_tokens.revoke(db, token_id)))
    click.echo("Revoked.")


@click.group(epilog=EPILOG)
def accounts() -> None:
    """Administrators, blocked accounts, and lost passwords. An account is named by its id or its e-mail address."""


@accounts.command(epilog=EPILOG)
@click.argument("account")
@click.option("--revoke", is_flag=True, help="The account is no administrator any more.")
def admin(*, account: str, revoke: bool) -> None:
    """Make ACCOUNT an administrator.

    KHALA_ADMINS and a claim of a JWT can make administrators, too: --revoke does not change these.
    """
    from khala.store.accounts import account_status

    user_id = run(_on_database(command_settings(), lambda db: account_status.set_admin(db, account, admin=not revoke)))
    click.echo(f"{user_id} is {'no' if revoke else 'an'} administrator.")


@accounts.command(epilog=EPILOG)
@click.argument("account")
def block(*, account: str) -> None:
    """Block ACCOUNT: its sessions end, and none of its credentials is accepted. Its data stays."""
    from khala.store.accounts import account_status

    user_id = run(_on_database(command_settings(), lambda db: account_status.set_blocked(db, account, blocked=True)))
    click.echo(f"{user_id} is blocked.")


@accounts.command(epilog=EPILOG)
@click.argument("account")
def unblock(*, account: str) -> None:
    """Unblock ACCOUNT. Its tokens are valid again; its sessions have ended."""
    from khala.store.accounts import account_status

    user_id = run(_on_database(command_settings(), lambda db: account_status.set_blocked(db, account, blocked=False)))
    click.echo(f"{user_id} is not blocked.")


@accounts.command("reset-password", epilog=EPILOG)
@click.argument("account")
def reset_password(*, account: str) -> None:
    """Give ACCOUNT a new password, and print it. Its sessions end.

    Its API tokens and the access of apps stay valid. Nobody can read the old password. Ask the person to change the
    new one in the settings.
    """
    import secrets

    from khala.identity import passwords
    from khala.store.accounts import account_status

    password = secrets.token_urlsafe(PASSWORD_BYTES)

    async def reset(db: "Database") -> UUID:
        return await account_status.reset_password(db, account, await passwords.hash_password(password))

    run(_on_database(command_settings(), reset))
    click.echo(password)


async def _create(
    db: "Database",
    settings: "Settings",
    service: str,
    scopes: list[str],
    issuer: str | None,
    expires_at: datetime | None,
) -> str:
    from khala.domain.access import Caller
    from khala.domain.accounts import Identity
    from khala.store.accounts import accounts as stored_accounts
    from khala.store.accounts import service_tokens

    known = {each.issuer for each in settings.identity.issuers} | {settings.accounts.oidc_issuer}
    if issuer is not None and issuer not in known:
        raise KnownFailure(f"{issuer} is no issuer of KHALA_JWT, and not KHALA_OIDC_ISSUER.")
    identity = Identity(issuer=service_tokens.ISSUER, subject=service, name=service)
    account_id = await stored_accounts.of_identity(db, identity, Caller())
    chosen = [scope for scope in SERVICE_SCOPES if scope in scopes]
    users = issuer or service_tokens.user_issuer_of(service)
    _, secret = await service_tokens.create(db, account_id, service, chosen, user_issuer=users, expires_at=expires_at)
    return secret


async def _on_database(settings: "Settings", command: "Callable[[Database], Awaitable[T]]") -> T:
    """The result of the command. Raises `KnownFailure` for its errors, and if the schema is not up to date."""
    from khala.components import open_database
    from khala.domain.errors import KhalaError, Unavailable
    from khala.store.postgres import migrations

    async with open_database(settings) as db:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        try:
            return await command(db)
        except Unavailable:
            raise
        except KhalaError as error:
            raise KnownFailure(error.message) from error
