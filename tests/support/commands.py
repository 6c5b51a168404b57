"""All commands that change rows of several tables, for concurrent runs on the same threads and users."""

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.budgets import DAY_SECONDS, HOUR_SECONDS, BudgetLimit, BudgetPolicy
from khala.domain.chat import RunOptions
from khala.domain.fold import TextBlock
from khala.domain.parts import Step
from khala.store.accounts import accounts, api_tokens, claims, sessions
from khala.store.operations import retention
from khala.store.postgres.database import Database
from khala.store.runs import run_queue, runs
from khala.store.runs.leases import Lease
from khala.store.runs.parts import ApprovalRequest, Batch
from khala.store.sharing import sharing
from khala.store.threads import conversation_imports, presence, sends, thread_lists, threads
from khala.store.threads.conversation_imports import ConversationImport, ImportedMessage
from khala.store.threads.sends import SendLimits, SendRequest
from khala.store.tools import approvals, todos, workspace_files
from tests.support.callers import Person, person
from tests.support.store import batch, ending, write

LIMITS = SendLimits(
    per_owner=10_000,
    waiting=100_000,
    budgets=BudgetPolicy(
        limits=(
            BudgetLimit(scope="accounts", measure="usd", most=Decimal(1_000_000), window=DAY_SECONDS),
            BudgetLimit(scope="user", measure="runs", most=Decimal(1_000_000), window=HOUR_SECONDS),
            BudgetLimit(scope="user", measure="usd", most=Decimal(1_000_000), window=DAY_SECONDS),
            BudgetLimit(scope="anonymous", measure="usd", most=Decimal(1_000_000), window=DAY_SECONDS),
            BudgetLimit(scope="key", measure="runs", most=Decimal(1_000_000), window=HOUR_SECONDS),
            BudgetLimit(scope="run", measure="usd", most=Decimal(1)),
        )
    ),
)
"""Budget windows that all sends share, and that are never exhausted."""
FUNCTION = '{"type": "object"}'
PURGED = retention.RetentionPolicy(idle=timedelta(0))


class Crowd:
    """Users with shared threads, and an executor that claims and executes all runs."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.users: list[Person] = []
        self.threads: list[UUID] = []
        self.links: list[Caller] = []
        self.process_id = ids.new()
        self._random = random.Random(seed)
        self._leases: dict[UUID, tuple[Lease, int]] = {}

    async def create_users(self, users: int = 4) -> None:
        """Create the users, and a thread of each with the others as members."""
        self.users = [await person(self.db) for _ in range(users)]
        for user in self.users:
            thread, _ = await threads.create(self.db, ids.new(), user.caller, title=None, welcome="")
            self.threads.append(thread.id)
            for other in self.users:
                if other is not user:
                    await sharing.set_role(self.db, thread.id, other.id, "owner", user.caller)
            _, key = await sharing.create_link(self.db, thread.id, "editor", None, user.caller)
            self.links.append(Caller(share_key_hash=key_hash(key)))

    @property
    def commands(self) -> list[Callable[[], Awaitable[object]]]:
        """All commands; `execute` occurs twice."""
        return [
            self.send,
            self.interrupt,
            self.import_conversation,
            self.cancel,
            self.claim,
            self.reset,
            self.delete,
            self.join,
            self.share,
            self.change_role,
            self.approve,
            self.expire,
            self.token,
            self.sign_in,
            self.change_password,
            self.read,
            self.rename,
            self.work_files,
            self.change_presence,
            self.purge,
            self.delete_account,
            self.execute,
            self.execute,
            self.renew_leases,
        ]

    async def send(self) -> None:
        """Send to a shared thread."""
        await self._ask(self._thread(), self._user().caller, "queue")

    async def interrupt(self) -> None:
        """Send to a shared thread, and cancel its active run."""
        await self._ask(self._thread(), self._user().caller, "interrupt")

    async def import_conversation(self) -> None:
        """Import a conversation to a new thread, as `/v1` does."""
        question = self._question(ids.new(), "queue")
        message = ImportedMessage(role="user", content=(TextBlock(text="before"),))
        conversation = ConversationImport(title="Imported", history=[message], question=question)
        await conversation_imports.start(self.db, conversation, self._user().caller, LIMITS)

    async def cancel(self) -> None:
        """Cancel an active run."""
        query = "SELECT id FROM runs WHERE status IN ('queued', 'running', 'blocked') AND thread_id = $1 LIMIT 1"
        found = await self._one(query, self._thread())
        if found is not None:
            await runs.cancel(self.db, found, self._user().caller)

    async def claim(self) -> None:
        """Create a guest's thread with a run and a file, and claim it for a user."""
        key = ids.new_secret()
        guest = Caller(anon_key_hash=key_hash(key))
        thread, _ = await threads.create(self.db, ids.new(), guest, title=None, welcome="")
        await self._ask(thread.id, guest, "queue")
        await workspace_files.write(self.db, thread.id, "a.txt", b"a")
        await claims.claim(self.db, thread.id, key_hash(key), self._user().caller)

    async def reset(self) -> None:
        """Empty a shared thread."""
        await threads.reset(self.db, self._thread(), self._user().caller, welcome="")

    async def delete(self) -> None:
        """Create a thread with a run, and delete it."""
        user = self._user()
        thread, _ = await threads.create(self.db, ids.new(), user.caller, title=None, welcome="")
        await sharing.set_role(self.db, thread.id, self._user(but=user).id, "viewer", user.caller)
        await self._ask(thread.id, user.caller, "queue")
        await threads.remove(self.db, thread.id, user.caller)

    async def join(self) -> None:
        """Let another user join by a link, and leave."""
        index = self._random.randrange(len(self.threads))
        other = await person(self.db)
        caller = msgspec.structs.replace(self.links[index], user_id=other.id)
        await sharing.join(self.db, self.threads[index], other.id, caller)
        await sharing.remove_member(self.db, self.threads[index], other.id, other.caller)

    async def share(self) -> None:
        """Create a link, and revoke it."""
        thread_id, caller = self._thread(), self._user().caller
        link, _ = await sharing.create_link(self.db, thread_id, "viewer", None, caller)
        await sharing.revoke_link(self.db, thread_id, link.id, caller)

    async def change_role(self) -> None:
        """Give a user a role in a thread of another."""
        owner = self._user()
        index = self.users.index(owner)
        await sharing.set_role(self.db, self.threads[index], self._user(but=owner).id, "owner", owner.caller)

    async def approve(self) -> None:
        """Approve a pending tool call."""
        query = "SELECT run_id FROM approvals WHERE state = 'pending' ORDER BY random() LIMIT 1"
        run_id = await self._one(query)
        if run_id is not None:
            await approvals.decide(
                self.db, run_id, "call", self._user().caller, approvals.ApprovalDecision(approved=True)
            )

    async def expire(self) -> None:
        """Expire approvals, as the executors do periodically."""
        async with self.db.driver() as driver:
            await driver.execute("UPDATE approvals SET expires_at = now() WHERE run_id = $1", ids.new())
        await approvals.expire(self.db)

    async def token(self) -> None:
        """Create a token, and revoke it."""
        caller = self._user().caller
        made, _ = await api_tokens.create(self.db, caller, "crowd", ("read",), None)
        await api_tokens.revoke(self.db, made.id, caller)

    async def sign_in(self) -> None:
        """Begin another session of a user."""
        user = self._user()
        await sessions.begin(self.db, user.id, user.caller, user_agent=None)

    async def change_password(self) -> None:
        """End all sessions of a user."""
        await accounts.set_password(self.db, self._user().caller, "hash", email=None)

    async def read(self) -> None:
        """Mark a thread as read by a user."""
        await thread_lists.mark_read(self.db, self._thread(), self._user().id, 1_000_000)

    async def rename(self) -> None:
        """Change the title of a thread."""
        await threads.update_thread(self.db, self._thread(), self._user().caller, title=str(ids.new()))

    async def work_files(self) -> None:
        """Write a file and a todo of a user."""
        user = self._user()
        await workspace_files.write(self.db, user.id, f"{self._random.randrange(5)}.txt", b"text")
        await todos.add(self.db, user.id, "do it", key=str(ids.new()))

    async def change_presence(self) -> None:
        """Write and delete a presence row."""
        row = presence.PresenceRow(
            thread_id=self._thread(), participant_id=ids.new(), user_id=None, name=None, state="{}"
        )
        async with self.db.driver() as driver:
            await presence.write(driver, self.process_id, [row], [])
            await presence.write(driver, self.process_id, [], [(row.thread_id, row.participant_id)])

    async def purge(self) -> None:
        """Purge threads, as retention does."""
        await retention.purge(self.db, PURGED)

    async def delete_account(self) -> None:
        """Delete the account of a member of all threads, who has a thread with a run that others see."""
        member = await person(self.db)
        for thread_id, user in zip(self.threads, self.users, strict=True):
            await sharing.set_role(self.db, thread_id, member.id, "editor", user.caller)
        thread, _ = await threads.create(self.db, ids.new(), member.caller, title=None, welcome="")
        await sharing.set_role(self.db, thread.id, self._user().id, "editor", member.caller)
        await self._ask(thread.id, member.caller, "queue")
        await self._ask(self._thread(), member.caller, "queue")
        await accounts.remove(self.db, member.caller)

    async def execute(self) -> None:
        """Claim queued runs, and write to all in one flush: some start a step, some wait for approval, and some end."""
        async with self.db.driver() as driver:
            claimed = await run_queue.claim(driver, most=20, owner="crowd", lease_seconds=30, held=list(self._leases))
        mine = [(one.lease, one.next_seq) for one in claimed]
        batches = [self._batch(lease, seq) for lease, seq in mine]
        if not batches:
            return
        self._leases |= {lease.run_id: (lease, seq) for lease, seq in mine}
        written = await write(self.db, *batches)
        more = [one for one in batches if one.lease.run_id in written and one.steps is not None and not one.approvals]
        last = [ending(one.lease, one.parts[-1][0] + 1, (TextBlock(text="Hello."),)) for one in more[::2]]
        last += [self._step(one.lease, one.parts[-1][0] + 1) for one in more[1::2]]
        if last:
            await write(self.db, *last)
        for waiting in (one for one in batches if one.approvals):
            await run_queue.release(self.db, waiting.lease, (), awaited_approvals=("call",))
        for one in batches:
            self._leases.pop(one.lease.run_id, None)

    async def renew_leases(self) -> None:
        """Renew all leases."""
        leases = [lease for lease, _ in self._leases.values()]
        async with self.db.driver() as driver:
            await run_queue.renew_leases(driver, leases, lease_seconds=30)

    def _batch(self, lease: Lease, seq: int) -> Batch:
        choice = self._random.randrange(3)
        if choice == 0:
            return ending(lease, seq, ())
        begun = self._step(lease, seq)
        return msgspec.structs.replace(begun, approvals=[_approval_request()]) if choice == 1 else begun

    def _step(self, lease: Lease, seq: int) -> Batch:
        return msgspec.structs.replace(batch(lease, seq, "Hello.", Step(step=1, max_steps=20, tool_count=1)), steps=1)

    async def _ask(self, thread_id: UUID, caller: Caller, if_busy: Any) -> None:
        await sends.send(self.db, self._question(thread_id, if_busy), caller, LIMITS)

    def _question(self, thread_id: UUID, if_busy: Any) -> SendRequest:
        return SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions(if_busy=if_busy))

    async def _one(self, query: str, *values: object) -> Any:
        async with self.db.driver() as driver:
            return await driver.fetchval(query, *values)

    def _thread(self) -> UUID:
        return self._random.choice(self.threads)

    def _user(self, *, but: Person | None = None) -> Person:
        return self._random.choice([user for user in self.users if user is not but])

    def shuffled(self) -> list[Callable[[], Awaitable[object]]]:
        """All commands in random order."""
        commands = self.commands
        self._random.shuffle(commands)
        return commands


def _approval_request() -> ApprovalRequest:
    ends = datetime.now(UTC) + timedelta(milliseconds=500)
    return ApprovalRequest(tool_call_id="call", tool="t", args="{}", parameters=FUNCTION, digest="d", expires_at=ends)
