"""Settings of the database and of blobs."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import BeforeValidator, model_validator

from khala.live import nats_url
from khala.live.nats_url import NatsServers
from khala.settings.fields import PostgresUrl, SettingGroup, SwitchValue, ValueKind, Whole, setting

if TYPE_CHECKING:
    from khala.store.blobs.blobs import StorageQuota

INNER_POOL_SIZE = 10
"""Connections of the pool that the writer, the executor and the feed share."""
ISOLATED_POOL_SIZE = 4
"""Connections of a process that executes a single run."""
MAX_MB = 1_000_000
MAX_MB_PER_DAY = 9_000_000
BY_MEMORY = "The process that starts the server decides. [How it is chosen](operations.md#the-embedded-postgres)."


def _wake_url(value: object) -> NatsServers:
    if find_spec("nats") is None:
        raise ValueError("needs nats-py: pip install 'khala-server[nats]'.")
    try:
        return nats_url.parse(str(value))
    except ValueError as error:
        # The value is not repeated: it may hold a password.
        raise ValueError(f"{error}.") from error


def _bucket_url(value: object) -> str:
    from khala.blobs import store_url

    try:
        return store_url.validated_store_url(str(value))
    except ValueError as error:
        raise ValueError(f"{error}.") from error


NatsUrl: TypeAlias = Annotated[NatsServers, BeforeValidator(_wake_url), ValueKind("URL")]
BucketUrl: TypeAlias = Annotated[str, BeforeValidator(_bucket_url), ValueKind("URL")]


class DatabaseSettings(SettingGroup):
    """Postgres, and the NATS server that may carry wake-ups."""

    url: PostgresUrl | None = setting(
        "DATABASE_URL",
        None,
        "A Postgres 15 or newer to use instead of the embedded one, as `postgresql://user:password@host:5432/database`.",
        shown_default="the embedded Postgres",
        secret=True,
    )
    direct_url: PostgresUrl | None = setting(
        "DATABASE_DIRECT_URL",
        None,
        "The same database without the pooler, for LISTEN and migrations. Set it where `DATABASE_URL` leads to a "
        "pooler that lends connections for one transaction at a time (PgBouncer).",
        secret=True,
    )
    pool_size: Whole = setting(
        "KHALA_POOL_SIZE", 16, "Connections to the database for requests, per process.", minimum=4, maximum=500
    )
    search: SwitchValue = setting(
        "KHALA_SEARCH",
        default=True,
        description="1 to prepare past messages for searches, 0 to prepare none and delete what was prepared. All "
        "processes of a database need the same value: [search](operations.md#search).",
    )
    wake_url: NatsUrl | None = setting(
        "KHALA_WAKE_URL",
        None,
        "A NATS server that carries the wake-ups of the hot path instead of NOTIFY, as "
        "`nats://name:password@host:4222/prefix`. All processes of a database need the same value; databases that "
        "share a NATS server need a prefix each. It needs `khala-server[nats]`; [scaling](scaling.md) says when it "
        "helps.",
        secret=True,
    )
    parts_days: Whole = setting(
        "KHALA_PARTS_DAYS",
        30,
        "The time after the end of a run in which its parts stay as they were written. Then they are packed, which "
        "takes a fraction of the space: [packed parts](operations.md#packed-parts). 0 to pack none.",
        unit="days",
        minimum=0,
        maximum=3650,
    )

    shared_buffers_mb: Whole | None = setting(
        "KHALA_PG_SHARED_BUFFERS_MB",
        None,
        f"Memory in which the embedded Postgres caches its tables (`shared_buffers`). {BY_MEMORY}",
        unit="MiB",
        minimum=16,
        maximum=MAX_MB,
        shown_default="an eighth of the memory, 64 to 1024",
    )
    effective_cache_mb: Whole | None = setting(
        "KHALA_PG_EFFECTIVE_CACHE_MB",
        None,
        f"Memory that the embedded Postgres assumes for the system's cache of files (`effective_cache_size`). "
        f"{BY_MEMORY}",
        unit="MiB",
        minimum=16,
        maximum=MAX_MB,
        shown_default="half of the memory, 256 to 65536",
    )
    maintenance_mb: Whole | None = setting(
        "KHALA_PG_MAINTENANCE_MB",
        None,
        "Memory of each vacuum and of the creation of an index in the embedded Postgres (`maintenance_work_mem`). "
        f"{BY_MEMORY}",
        unit="MiB",
        minimum=1,
        maximum=MAX_MB,
        shown_default="a 32nd of the memory, 32 to 512",
    )
    max_wal_mb: Whole | None = setting(
        "KHALA_PG_MAX_WAL_MB",
        None,
        "WAL after which the embedded Postgres makes a checkpoint (`max_wal_size`). The WAL takes about this much disk "
        f"space. {BY_MEMORY}",
        unit="MiB",
        minimum=64,
        maximum=MAX_MB,
        shown_default="a quarter of the memory, at most a 20th of the disk, 512 to 4096",
    )

    @property
    def embedded_parameters(self) -> dict[str, str]:
        """The settings of the embedded Postgres that replace those for the machine's memory."""
        megabytes = {
            "shared_buffers": self.shared_buffers_mb,
            "effective_cache_size": self.effective_cache_mb,
            "maintenance_work_mem": self.maintenance_mb,
            "max_wal_size": self.max_wal_mb,
        }
        return {name: f"{value}MB" for name, value in megabytes.items() if value is not None}

    @model_validator(mode="after")
    def _check_direct_url(self) -> "DatabaseSettings":
        if self.direct_url and not self.url:
            raise ValueError("DATABASE_DIRECT_URL needs a DATABASE_URL that leads to a pooler: set that, too.")
        return self


class BlobSettings(SettingGroup):
    """The store of blobs, and how much it takes."""

    url: BucketUrl | None = setting(
        "BLOB_URL",
        None,
        "A bucket for blobs, as `s3://bucket/prefix` (S3, R2, MinIO), for one database only. Credentials come by "
        "`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL` and the other variables of "
        "boto3.",
        shown_default="a folder in `KHALA_HOME`, which all processes must share",
        secret=True,
    )
    upload_mb: Whole = setting("KHALA_UPLOAD_MB", 20, "Size of one uploaded file.", unit="MiB", minimum=1, maximum=1024)
    thread_mb: Whole = setting(
        "KHALA_THREAD_BLOB_MB", 1024, "Size of all blobs of one thread.", unit="MiB", minimum=1, maximum=MAX_MB
    )
    guest_thread_mb: Whole = setting(
        "KHALA_GUEST_BLOB_MB",
        64,
        "Size of all blobs of one thread of a user without an account.",
        unit="MiB",
        minimum=1,
        maximum=MAX_MB,
    )
    guests_mb_per_day: Whole = setting(
        "KHALA_GUESTS_BLOB_MB_PER_DAY",
        10_240,
        "Size of all blobs that all users without an account store in a day (UTC) together; 0 for no limit.",
        unit="MiB",
        minimum=0,
        maximum=MAX_MB_PER_DAY,
    )

    @property
    def max_upload_bytes(self) -> int:
        """Bytes of one uploaded file, at most."""
        return self.upload_mb << 20

    @property
    def quota(self) -> "StorageQuota":
        """Bytes that threads may store."""
        from khala.store.blobs.blobs import StorageQuota

        return StorageQuota(
            thread=self.thread_mb << 20, guest=self.guest_thread_mb << 20, guests_a_day=self.guests_mb_per_day << 20
        )
