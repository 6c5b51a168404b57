from tests.support.inside import khala


async def test_two_observers_see_the_same_exact_answer(database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        async with server.observer(thread).following() as one, server.observer(thread).following() as two:
            sent = await thread.send("/words=100 /pace=200")
            answer = sent["assistantMessageId"]
            for observer in (one, two):
                view = await observer.until(lambda seen: answer in seen.finished)
                assert view.text(answer).split() == [f"word{n}" for n in range(1, 101)]
