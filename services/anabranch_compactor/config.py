"""Settings of the compactor, beside those that every service has; the command's options go before them."""

from __future__ import annotations

from pydantic import Field

from anabranch.runtime.config import ServiceSettings


class CompactorSettings(ServiceSettings):
    """The settings of the compactor."""

    lake_root: str
    """Where the lake lies: a folder of this machine, or a path of Hadoop's (``file:/data/lake``,
    ``s3a://bucket/lake``)."""
    compact_database: str | None = None
    """The database to compact. None: all."""
    spark_master: str | None = None
    """Spark's master. None: what spark-submit says, else this machine."""
    spark_driver_memory_mib: int = Field(1_024, ge=512)
    """Java's heap on this machine, or the driver's. Python's workers have their memory beside it."""
    orphan_grace_ms: int = Field(86_400_000, ge=0)
    """How long files stay that no current manifest names: longer than any run, and than any reader, takes."""
