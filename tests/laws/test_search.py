"""Laws of the search: its parts are pure and complete, and over any history nobody finds what they may not read."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from khala.domain import ids, search_terms
from khala.domain.access import Action, Caller, key_hash
from khala.domain.errors import KhalaError
from khala.domain.passages import MAX_TOKENS, passages
from khala.domain.search_matches import SearchText
from khala.domain.search_segments import MAX_CHARACTERS, MAX_MESSAGES, MessageText, cut
from khala.domain.search_signatures import may_have, signature
from khala.domain.vectors import unit_vector
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.port import EmbeddingResult, Purpose
from khala.search.passage_embedder import PassageEmbedder
from khala.search.search_service import SearchService
from khala.store.accounts import claims
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.postgres.database import Database
from khala.store.search import indexing, search_queue
from khala.store.sharing import access, sharing
from khala.store.threads import threads
from tests.support.blobs import new_blob_service
from tests.support.callers import person
from tests.support.people import make_member

TEXTS = st.text(st.sampled_from("ab cdé東京都กข1 \n.\U0001f600ﬁİ"), max_size=60)
LONG_TEXTS = st.builds(lambda text, many: text * many, TEXTS, st.integers(0, 200))
bounded = settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)


@given(LONG_TEXTS)
def test_passages_join_to_the_text_and_are_short(text: str) -> None:
    cuts = list(passages(text))
    assert "".join(text[start:end] for start, end in cuts) == text
    assert all(0 < end - start <= 4 * MAX_TOKENS for start, end in cuts)


@given(st.sets(st.text(max_size=8), max_size=200))
def test_a_signature_has_each_of_its_terms(terms: set[str]) -> None:
    bits = signature(terms)
    assert all(may_have(bits, term) for term in terms)


def test_a_signature_has_few_other_terms() -> None:
    bits = signature({f"term{number}" for number in range(700)})
    assert sum(may_have(bits, f"other{number}") for number in range(20_000)) < 20_000 / 250


@given(st.lists(LONG_TEXTS, max_size=40))
def test_segments_have_each_word_of_their_messages_and_are_small(texts: list[str]) -> None:
    messages = [MessageText(position, text) for position, text in enumerate(texts, start=1)]
    made = list(cut(messages))
    assert len({(one.first_position, one.piece) for one in made}) == len(made)
    for one in made:
        inside = [
            text for position, text in enumerate(texts, start=1) if one.first_position <= position <= one.last_position
        ]
        assert sum(text != "" for text in inside) <= MAX_MESSAGES
    for message in messages:
        for start, end in passages(message.text[:MAX_CHARACTERS]):
            for term in search_terms.terms(message.text[start:end]):
                covering = [one for one in made if one.first_position <= message.position <= one.last_position]
                assert any(may_have(one.signature, term) for one in covering), term


@given(TEXTS, TEXTS, TEXTS)
def test_a_text_matches_its_own_words_exactly_and_highlights_lie_in_it(before: str, text: str, after: str) -> None:
    asked = SearchText(text)
    whole = f"{before} {text} {after}"
    match = asked.match(whole, {})
    assert (match is not None and match.exact) == bool(asked.words)
    units = len(whole.encode("utf-16-le")) // 2
    last = 0
    for part in asked.highlights(whole):
        assert last <= part.start < part.end <= units
        last = part.end


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["say", "join", "remove", "link", "unlink", "claim", "reset", "delete", "purge", "index", "embed"]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=4,
    max_size=14,
)
WORD = "probe"
SYNONYM = "worker"
"""A word that no message has, and that is near to all of them."""
ORPHANS = """
    SELECT count(*) FROM passage_vectors AS vectors LEFT JOIN messages USING (thread_id, position)
    WHERE messages.id IS NULL
"""


class OneMeaning:
    """A model to which all texts mean the same."""

    name = provider = model = "same"
    max_texts = 64

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        return EmbeddingResult(vectors=tuple(unit_vector([1.0, 1.0]) for _ in texts), tokens=len(texts))

    async def aclose(self) -> None:
        return None


class History:
    """A database with three people, a guest and threads of theirs, in which anything may happen."""

    def __init__(self, db: Database) -> None:
        self._db = db
        memories = MemoryService(db, Embedder(OneMeaning()))
        self._memories = memories
        self._passages = PassageEmbedder(db, memories, days=1)
        self._service = SearchService(db, memories, new_blob_service(db), enabled=True, by_meaning=True)
        self._callers: list[Caller] = []
        self._threads: list[UUID] = []
        self._owners: list[Caller] = []
        self._key = ids.new_secret()
        self._links: dict[int, tuple[UUID, str]] = {}
        self._positions: dict[UUID, int] = {}

    async def begin(self) -> None:
        """Create the people and threads."""
        await self._memories.prepare()
        await self._passages.prepare()
        self._callers = [(await person(self._db, name)).caller for name in ("Artanis", "Zeratul", "Tassadar")]
        guest = Caller(anon_key_hash=key_hash(self._key))
        for owner in (*self._callers[:2], guest):
            thread, _ = await threads.create(self._db, ids.new(), owner, title=None, welcome="")
            self._threads.append(thread.id)
            self._owners.append(owner)

    async def step(self, kind: str, which: int, who: int) -> None:
        """Do one thing; what is refused changes nothing."""
        thread_id, owner, user = self._threads[which], self._owners[which], self._callers[who]
        try:
            match kind:
                case "say":
                    await self._say(thread_id)
                case "join":
                    await make_member(self._db, thread_id, user.user_id, "viewer", owner)  # type: ignore[arg-type]
                case "remove":
                    await sharing.remove_member(self._db, thread_id, user.user_id, owner)  # type: ignore[arg-type]
                case "link":
                    link, key = await sharing.create_link(self._db, thread_id, "viewer", None, owner)
                    self._links[which] = (link.id, key)
                case "unlink" if which in self._links:
                    await sharing.revoke_link(self._db, thread_id, self._links[which][0], owner)
                case "claim":
                    await claims.claim(self._db, thread_id, key_hash(self._key), user)
                    self._owners[which] = user
                case "reset":
                    await threads.reset(self._db, thread_id, owner, welcome="")
                case "delete":
                    await threads.remove(self._db, thread_id, owner)
                case "purge":
                    await purge(self._db, RetentionPolicy(idle=timedelta(0)))
                case "index":
                    while (await indexing.index_next(self._db, with_passages=True)).more:
                        pass
                case "embed":
                    async with self._db.driver() as driver:  # the process of another history had it
                        await driver.execute("UPDATE vector_generations SET leased_until = now()")
                    while await self._passages.embed_some():
                        pass
        except KhalaError:
            return

    async def _say(self, thread_id: UUID) -> None:
        position = self._positions[thread_id] = self._positions.get(thread_id, 0) + 1
        query = """
            INSERT INTO messages (id, thread_id, position, role, status, content, revision)
            VALUES ($1, $2, greatest($3, (SELECT first_position FROM thread_resets WHERE thread_id = $2)), 'user',
                    'final', '[{"type": "text", "text": "probe"}]', 1)
        """
        async with self._db.driver() as driver:
            await driver.execute(query, ids.new(), thread_id, position)
            await search_queue.add(driver, thread_id, position, position)

    async def check(self) -> None:
        """Compare what each caller finds with what they may read."""
        shared = [Caller(share_key_hash=key_hash(key)) for _, key in self._links.values()]
        for caller in (*self._callers, Caller(anon_key_hash=key_hash(self._key)), *shared):
            found = await self._found(caller, None)
            for thread_id in self._threads:
                allowed = await self._readable(caller, thread_id)
                assert all(one in allowed for one in found.get(thread_id, ())), "found what may not be read"
                if not allowed:
                    continue
                assert set((await self._found(caller, thread_id)).get(thread_id, ())) <= set(allowed)

    async def complete(self) -> None:
        """Once everything is prepared, each caller finds all that they may read in a thread."""
        await self.step("index", 0, 0)
        await self.step("embed", 0, 0)
        for caller in (*self._callers, Caller(anon_key_hash=key_hash(self._key))):
            for thread_id in self._threads:
                allowed = await self._readable(caller, thread_id)
                if allowed:
                    for word in (WORD, SYNONYM):
                        assert set((await self._found(caller, thread_id, word))[thread_id]) == set(allowed)
        await self.step("purge", 0, 0)
        async with self._db.driver() as driver:
            assert not await driver.fetchval(ORPHANS), "vectors of messages that are gone"

    async def _found(self, caller: Caller, thread_id: UUID | None, word: str = WORD) -> dict[Any, list[Any]]:
        """What the caller finds by words, and by meaning: all texts are near to each other."""
        items, _ = await self._service.search(caller, word, thread_id=thread_id, kind="message", cursor=None, limit=100)
        found: dict[Any, list[Any]] = {}
        for item in items:
            found.setdefault(item.thread_id, []).append(item.message_id)
        return found

    async def _readable(self, caller: Caller, thread_id: UUID) -> list[UUID]:
        async with self._db.driver() as driver:
            (authorization,) = await access.authorizations(driver, [(thread_id, caller)])
            if authorization is None or not authorization.allows(Action.READ_THREAD):
                return []
            rows = await driver.fetch(
                "SELECT id FROM messages WHERE thread_id = $1 AND position >= coalesce((SELECT first_position"
                " FROM thread_resets WHERE thread_resets.thread_id = $1), 0)",
                thread_id,
            )
            return [row["id"] for row in rows]


async def _play(url: str, script: list[tuple[str, int, int]]) -> None:
    db = Database(url)
    try:
        history = History(db)
        await history.begin()
        for which in range(3):
            await history.step("say", which, 0)
        for step in script:
            await history.step(*step)
            await history.check()
        await history.complete()
    finally:
        await db.close()


def test_over_any_history_nobody_finds_what_they_may_not_read(database_url: str) -> None:
    @bounded
    @given(STEPS)
    def law(script: list[tuple[str, int, int]]) -> None:
        asyncio.run(_play(database_url, script))

    law()
