"""Mutants of the feed in `app/khala/live`."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="whoever-is-in-doubt-is-handed-on",
        file="app/khala/live/observer.py",
        old="if self.cursor != since or self.suspended:",
        new="if self.cursor != since:",
        tests=(
            "tests/unit/test_observer.py",
            "tests/integration/test_revocation.py::test_while_access_cannot_be_rechecked_no_observer_is_revoked_and_nothing_leaks",
        ),
        why="An observer whose access is revoked would receive later frames.",
    ),
    Mutant(
        name="a-fall-goes-to-the-last-frame-dropped",
        file="app/khala/live/observer.py",
        old="self.cursor = min(self.cursor, cursor)",
        new="self.cursor = cursor",
        tests=(
            "tests/unit/test_observer.py",
            "tests/integration/test_hub.py::test_a_slow_observer_falls_back_and_catches_up_with_one_read",
        ),
        why="A slow reader would miss all that was dropped but the last frame.",
    ),
    Mutant(
        name="doubt-leaves-the-outbox",
        file="app/khala/live/observer.py",
        old=("        self.suspended = True\n        self.client.drop_frames(self)\n"),
        new="        self.suspended = True\n",
        tests=("tests/unit/test_observer.py",),
        why="Frames that wait for a slow reader would be sent after a revocation.",
    ),
    Mutant(
        name="a-drop-forgets-the-first-frames",
        file="app/khala/live/observer.py",
        old="subscription.fall_back(dropped[0].since)",
        new="subscription.fall_back(dropped[-1].since)",
        tests=("tests/unit/test_observer.py",),
        why="A reader who was in doubt for a moment would miss frames.",
    ),
    Mutant(
        name="a-new-frame-overtakes-the-outbox",
        file="app/khala/live/observer.py",
        old="if self._sending or self._outbox or self._write is None:",
        new="if self._sending or self._write is None:",
        tests=("tests/unit/test_observer.py",),
        why="Frames would come in the wrong order.",
    ),
    Mutant(
        name="a-new-frame-overtakes-the-pump",
        file="app/khala/live/observer.py",
        old="if self._sending or self._outbox or self._write is None:",
        new="if self._outbox or self._write is None:",
        tests=("tests/unit/test_observer.py",),
        why="Frames would come in the wrong order.",
    ),
    Mutant(
        name="a-read-under-another-access-is-taken",
        file="app/khala/live/observer.py",
        old=(
            "        elif read.access_id != subscription.access_id:\n"
            "            subscription.source.recheck(subscription)\n"
        ),
        new="",
        tests=(
            "tests/integration/test_revocation.py::test_a_change_of_access_between_authorization_and_first_read_is_noticed",
        ),
        why="A user who lost access between the check and the first read would get a snapshot.",
    ),
    Mutant(
        name="a-read-that-was-left-is-sent",
        file="app/khala/live/observer.py",
        old=("        if subscription.ended:\n            return\n        if read is None:"),
        new="        if read is None:",
        tests=(
            "tests/unit/test_observer.py",
            "tests/integration/test_hub.py::test_after_a_second_subscribe_no_frame_of_the_first_one_comes",
        ),
        why="After an unsubscribe a whole snapshot could still come.",
    ),
    Mutant(
        name="a-read-in-doubt-is-sent",
        file="app/khala/live/observer.py",
        old=("        elif not subscription.suspended:\n            await self._advance"),
        new=("        else:\n            await self._advance"),
        tests=("tests/unit/test_observer.py",),
        why="Changes that were read before a revocation was noticed would be sent after it.",
    ),
    Mutant(
        name="the-outbox-only-grows",
        file="app/khala/live/observer.py",
        old=("            out = self._outbox.popleft()\n            self._bytes -= len(out.body)\n"),
        new="            out = self._outbox.popleft()\n",
        tests=("tests/unit/test_observer.py",),
        why="A client that reads all it gets would be dropped back for being slow.",
    ),
    Mutant(
        name="presence-is-told-in-doubt",
        file="app/khala/live/observer.py",
        old="if not subscription.behind and not subscription.suspended and subscription in",
        new="if not subscription.behind and subscription in",
        tests=("tests/unit/test_observer.py",),
        why="An observer whose access is revoked would receive presence.",
    ),
    Mutant(
        name="a-stale-read-moves-the-topic",
        file="app/khala/live/hub.py",
        old="if topic is not None and topic.revision == cursors[topic_id]:",
        new="if topic is not None:",
        tests=(
            "tests/integration/test_hub.py::test_an_observer_whose_first_read_is_overtaken_catches_up",
            "tests/integration/test_hub.py::test_a_read_from_an_earlier_cursor_moves_no_observer_back",
        ),
        why="Observers would receive the same change twice.",
    ),
    Mutant(
        name="a-read-that-was-overtaken-is-forgotten",
        file="app/khala/live/hub.py",
        old=("                self._mark_changed({topic_id})\n        if reads:"),
        new=("                pass\n        if reads:"),
        tests=(
            "tests/integration/test_hub.py::test_an_observer_whose_first_read_is_overtaken_catches_up",
            "tests/integration/test_hub.py::test_a_read_from_an_earlier_cursor_moves_no_observer_back",
        ),
        why="A change could show only with the next one.",
    ),
    Mutant(
        name="strangers-are-not-doubted",
        file="app/khala/live/hub.py",
        old=(
            "        for subscription in [each for each in topic.subscriptions if each.access_id != access_id]:\n"
            "            self._guard.recheck(subscription)\n"
        ),
        new="",
        tests=(
            "tests/integration/test_revocation.py::test_after_a_revocation_its_observers_get_nothing_in_any_process_and_others_miss_nothing",
        ),
        why="An observer whose access is revoked would continue to follow.",
    ),
    Mutant(
        name="a-sign-out-during-the-admission-is-missed",
        file="app/khala/live/hub.py",
        old=(
            "        if notified_since and authorization.caller.user_id is not None:\n"
            "            self._guard.recheck(subscription)\n"
        ),
        new="",
        tests=(
            "tests/integration/test_revocation.py::test_a_sign_out_between_authorization_and_subscription_is_noticed",
        ),
        why="A user who signs out while they subscribe would continue to follow until the next poll.",
    ),
    Mutant(
        name="a-failed-look-is-forgotten",
        file="app/khala/live/hub.py",
        old=(
            "                self._mark_changed(changed)\n                await asyncio.sleep(RETRY_INTERVAL_SECONDS)"
        ),
        new="                await asyncio.sleep(RETRY_INTERVAL_SECONDS)",
        tests=("tests/integration/test_hub.py::test_a_failed_read_is_retried",),
        why="A change that was committed while the database was away would show at the next poll only.",
    ),
    Mutant(
        name="ended-credentials-are-not-counted",
        file="app/khala/live/access_guard.py",
        old="        self.credential_notices += 1\n",
        new="",
        tests=(
            "tests/integration/test_revocation.py::test_a_sign_out_between_authorization_and_subscription_is_noticed",
        ),
        why="A user who signs out while they subscribe would continue to follow until the next poll.",
    ),
    Mutant(
        name="a-jwt-outlasts-its-time",
        file="app/khala/live/access_guard.py",
        old=(
            "            if not is_unexpired(subscription.caller):\n"
            "                self._remove_account(subscription)\n"
            "            self.recheck"
        ),
        new="            self.recheck",
        tests=(
            "tests/integration/test_revocation.py::test_an_expired_credential_is_revoked_within_a_second_and_keys_continue",
        ),
        why="A signed token, which no row knows, would be followed for ever.",
    ),
    Mutant(
        name="a-failed-check-is-forgotten",
        file="app/khala/live/access_guard.py",
        old=(
            "            self._pending = {subscription: None for subscription in batch if not subscription.ended}"
            " | self._pending\n"
            "            raise"
        ),
        new="            raise",
        tests=(
            "tests/integration/test_revocation.py::test_while_access_cannot_be_rechecked_no_observer_is_revoked_and_nothing_leaks",
        ),
        why="Observers that wait for a recheck would never receive anything again.",
    ),
    Mutant(
        name="links-end-with-the-account",
        file="app/khala/live/access_guard.py",
        old="        share_key_hash=caller.share_key_hash,\n",
        new="",
        tests=(
            "tests/integration/test_revocation.py::test_access_by_a_link_continues_when_the_account_beside_it_ends",
        ),
        why="A user who signs out would lose the access that a link grants.",
    ),
    Mutant(
        name="a-trusted-grant-has-no-end",
        file="app/khala/live/access_guard.py",
        old=("        subscription.confirm(authorization)\n        self.watch(subscription)\n"),
        new="        subscription.confirm(authorization)\n",
        tests=("tests/integration/test_revocation.py::test_an_expiry_that_a_later_check_finds_is_stored",),
        why="A session that is renewed for an hour would be followed for ever.",
    ),
    Mutant(
        name="a-renewed-account-ends-as-before",
        file="app/khala/live/access_guard.py",
        old=("            scopes=account.scopes,\n            expires_at=account.expires_at,\n"),
        new="            scopes=account.scopes,\n",
        tests=("tests/integration/test_revocation.py::test_authenticating_again_extends_subscriptions",),
        why="A socket would be cut though its account was shown anew.",
    ),
    Mutant(
        name="a-reconnect-looks-at-nothing",
        file="app/khala/live/listener.py",
        old=("            LISTENER_CONNECTED.set(1)\n            self._refresh_all()\n"),
        new="            LISTENER_CONNECTED.set(1)\n",
        tests=(
            "tests/integration/test_revocation.py::test_revocations_during_an_outage_of_the_listener_are_noticed_after_it",
        ),
        why="Changes during a lost connection would show only at the next poll.",
    ),
    Mutant(
        name="the-poll-always-looks",
        file="app/khala/live/fallback_poll.py",
        old=("                last_snapshot = snapshot\n                self._refresh_all()"),
        new="                self._refresh_all()",
        tests=("tests/unit/test_fallback_poll.py",),
        why="Each process would read all that is watched every five seconds.",
    ),
    Mutant(
        name="the-poll-never-rests",
        file="app/khala/live/fallback_poll.py",
        old=("            if not self._is_watched():\n                continue\n"),
        new="",
        tests=("tests/unit/test_fallback_poll.py",),
        why="A process without observers would poll the database needlessly.",
    ),
    Mutant(
        name="the-poll-forgets-credentials",
        file="app/khala/live/service.py",
        old="for watcher in (self.threads, self.accounts, self.guard, self.streams):",
        new="for watcher in (self.threads, self.accounts, self.streams):",
        tests=("tests/integration/test_revocation.py::test_a_revocation_without_a_notification_is_found_by_the_poll",),
        why="A sign-out whose NOTIFY was lost would never be noticed.",
    ),
    Mutant(
        name="a-shared-read-may-be-stale",
        file="app/khala/live/catch_up_reader.py",
        old=("                del self._reading[key]\n                shared = False\n                read"),
        new="                read",
        tests=("tests/unit/test_catch_up_reader.py",),
        why="A subscription right after a change could get the state before it.",
    ),
    Mutant(
        name="whoever-leaves-takes-the-read-along",
        file="app/khala/live/catch_up_reader.py",
        old="return await asyncio.shield(task)",
        new="return await task",
        tests=("tests/unit/test_catch_up_reader.py",),
        why="A client that hangs up would fail the read of others who asked for the same.",
    ),
    Mutant(
        name="every-snapshot-says-reset",
        file="app/khala/live/catch_up_reader.py",
        old="reset=reset and after >= 0)",
        new="reset=reset)",
        tests=(
            "tests/integration/test_feed_deltas.py::test_a_cursor_from_before_a_reset_gets_a_snapshot_that_says_so",
        ),
        why="A page that opens a thread for the first time would get a reset.",
    ),
    Mutant(
        name="the-same-state-is-told-again",
        file="app/khala/live/presence.py",
        old=("        elif entry.state == state:\n            return\n"),
        new="",
        tests=("tests/integration/test_presence.py::test_an_unchanged_state_is_not_sent",),
        why="A client that repeats its state would cost a write and a frame for all each time.",
    ),
    Mutant(
        name="presence-of-another-access-is-told",
        file="app/khala/live/presence.py",
        old="            if subscription.access_id != present.access_id:",
        new="            if subscription.access_id is None:",
        tests=(
            "tests/integration/test_presence.py::test_a_participant_who_loses_access_is_removed_and_gets_no_more_presence",
        ),
        why="An observer whose access is revoked could receive presence once more.",
    ),
    Mutant(
        name="a-frame-of-126-bytes-is-short",
        file="app/khala/live/encoded_frame.py",
        old="if size < 126:",
        new="if size <= 126:",
        tests=("tests/unit/test_encoded_frame.py",),
        why="A frame of 126 bytes would break the connection.",
    ),
    Mutant(
        name="a-frame-of-64-kib-is-short",
        file="app/khala/live/encoded_frame.py",
        old="if size < 1 << 16:",
        new="if size <= 1 << 16:",
        tests=("tests/unit/test_encoded_frame.py",),
        why="A frame of 65,536 bytes would fail to be sent.",
    ),
    Mutant(
        name="other-changes-of-own-appends-are-not-read",
        file="app/khala/live/own_appends.py",
        old="            else:\n                self._hub.refresh(thread_id)\n",
        new="",
        tests=("tests/unit/test_own_appends.py::test_threads_that_may_have_changed_otherwise_are_read",),
        why="The end of an answer would arrive seconds late, because its notification needs no read.",
    ),
    Mutant(
        name="notifications-of-other-threads-are-taken-for-own",
        file="app/khala/live/own_appends.py",
        old='return {str(thread_id) for thread_id in self._thread_ids}.issuperset(payload.split(","))',
        new="return True",
        tests=("tests/unit/test_own_appends.py::test_the_notification_of_an_append_is_taken_once",),
        why="A change of a thread that another transaction wrote would arrive seconds late.",
    ),
)
