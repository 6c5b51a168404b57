"""Settings of every process: its data folder, its log, metrics and traces."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import field_validator, model_validator

from khala.settings.fields import FilePath, NetworkAddress, Number, SettingGroup, TextValue, read_table, setting

MIN_WATCHDOG_SECONDS = 1.0
HTTP_PROTOBUF = "http/protobuf"


class ProcessSettings(SettingGroup):
    """A process of Khala."""

    home: FilePath = setting(
        "KHALA_HOME",
        None,
        "Folder for the embedded Postgres' data, blobs and temporary files.",
        shown_default="`~/.local/share/khala`; on macOS `~/Library/Application Support/khala`; for root "
        "`/var/lib/khala`",
    )
    user_data: TextValue = setting(
        "XDG_DATA_HOME", "~/.local/share", "The user's folder for data, in which `KHALA_HOME` is by default."
    )
    log_format: Literal["text", "json"] = setting(
        "KHALA_LOG", None, "Format of the log.", shown_default="`text` on a terminal, else `json`"
    )
    metrics: NetworkAddress | None = setting(
        "KHALA_METRICS",
        None,
        "Address at which `/metrics` for Prometheus, `/health/live` and `/health/ready` are served, as "
        "`127.0.0.1:9464`. Everybody who can reach this address can read the metrics.",
    )

    watchdog_seconds: Number = setting(
        "KHALA_WATCHDOG_SECONDS",
        30.0,
        "Time after which a process whose event loop hangs exits with code 14, so that it is restarted "
        "([the watchdog](operations.md#the-watchdog)); 0 for never, else at least 1.",
        unit="seconds",
        minimum=0,
        maximum=3600,
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Fill in the defaults that depend on the machine, the user and the terminal."""
        values = {name: value for name, value in read_table(values).items() if value not in (None, "")}
        home = {} if "home" in values else {"home": default_home(values.get("user_data"))}
        log_format = {} if "log_format" in values else {"log_format": "text" if sys.stderr.isatty() else "json"}
        return {**values, **home, **log_format}

    @field_validator("watchdog_seconds", mode="after")
    @classmethod
    def _check_watchdog(cls, seconds: float) -> float:
        if 0 < seconds < MIN_WATCHDOG_SECONDS:
            raise ValueError(f"must be 0 or at least {MIN_WATCHDOG_SECONDS:g}, not {seconds:g}.")
        return seconds


def default_home(user_data: str | None = None) -> str:
    """The default data folder: the system's for root, else a folder of the user."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return "/var/lib/khala"
    if sys.platform == "darwin":
        return "~/Library/Application Support/khala"
    return (user_data or "~/.local/share") + "/khala"


def exports_traces(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables name a destination of traces. Its library reads the rest of them.

    Raises `ValueError` for a protocol other than OTLP over HTTP.
    """

    def read(name: str) -> str:
        return environment.get(name, "").strip()

    endpoint = read("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or read("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or read("OTEL_SDK_DISABLED").lower() == "true" or read("OTEL_TRACES_EXPORTER") == "none":
        return False
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := read(name) or HTTP_PROTOBUF) != HTTP_PROTOBUF:
            raise ValueError(f"{name} must be one of {HTTP_PROTOBUF}, not {protocol!r}.")
    return True
