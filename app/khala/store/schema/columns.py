"""The metadata of all tables, and columns that many tables have."""

from sqlalchemy import Column, DateTime, ForeignKey, MetaData, Uuid, func

NAMES = {
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s_check",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}

metadata = MetaData(naming_convention=NAMES)


def time_column(name: str, *, nullable: bool = False) -> Column[object]:
    """A time. Unless it is nullable, its default is the time of the transaction."""
    default = None if nullable else func.now()
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def required_time_column(name: str, *, primary_key: bool = False) -> Column[object]:
    """A time without a default, which every row must have."""
    return Column(name, DateTime(timezone=True), nullable=False, primary_key=primary_key)


def thread_id_column(*, primary_key: bool = False) -> Column[object]:
    """The thread that the row belongs to. Deleting the thread deletes the row."""
    key = ForeignKey("threads.id", ondelete="CASCADE")
    return Column("thread_id", Uuid, key, nullable=False, primary_key=primary_key)


def user_id_column(*, primary_key: bool = False) -> Column[object]:
    """The user that the row belongs to. Deleting the user deletes the row."""
    key = ForeignKey("users.id", ondelete="CASCADE")
    return Column("user_id", Uuid, key, nullable=False, primary_key=primary_key)
