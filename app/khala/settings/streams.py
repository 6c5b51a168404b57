"""Settings of durable streams."""

from typing import Literal

from khala.settings.fields import MAX_NUMBER, Number, SettingGroup, Whole, setting


class StreamSettings(SettingGroup):
    """Streams of the Durable Streams protocol."""

    access: Literal["accounts", "open", "off"] = setting(
        "KHALA_STREAMS",
        "accounts",
        "Who may create streams: accounts, whose streams nobody else sees; with `open`, also people without one, who "
        "share theirs; with `off`, nobody.",
    )
    per_account: Whole = setting(
        "KHALA_STREAMS_PER_ACCOUNT",
        1000,
        "Streams of one account, and of all people without one together; further ones get status 429.",
        minimum=1,
        maximum=MAX_NUMBER,
    )
    max_bytes: Whole = setting(
        "KHALA_STREAM_BYTES",
        64 << 20,
        "Contents of one stream; further appends get status 413.",
        unit="bytes",
        minimum=1,
        maximum=1 << 40,
    )
    bytes_per_account: Whole = setting(
        "KHALA_STREAM_BYTES_PER_ACCOUNT",
        4 << 30,
        "Contents of all streams of one account, and of all people without one together; further ones get status 413.",
        unit="bytes",
        minimum=1,
        maximum=1 << 40,
    )
    long_poll_seconds: Number = setting(
        "KHALA_STREAMS_LONG_POLL_SECONDS",
        20.0,
        "Time that a long-poll waits for new contents.",
        unit="seconds",
        minimum=0.1,
        maximum=60,
    )
