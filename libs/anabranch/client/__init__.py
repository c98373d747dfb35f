"""Offline-first sync for a device: ``SyncedDb`` keeps a SQLite file in step with the server's Postgres.

from anabranch.client import RemoteDb, SyncedDb

db = SyncedDb("gate.db", remote=RemoteDb("localhost:7400", token=...), db_name="flights")
db.start()
with db.batch():
    db.table("flights").update({"id": 7, "dep_delay": 12})
    db.table("notes").insert({"id": "01J...", "flight_id": 7, "body": "gate change"})
db.execute("select count(*) from flights").fetchone()
"""

from anabranch.client.db import SyncedDb
from anabranch.client.errors import (
    AppOutdated,
    BatchState,
    CallFailed,
    ClientError,
    DiskFull,
    FileDamaged,
    FileFailed,
    ForeignFile,
    NotChosen,
    NotReady,
    RowExists,
    RowMissing,
    SyncedElsewhere,
    TokenFailed,
    TriggerWrites,
    WrongPrincipal,
)
from anabranch.client.events import STATE_KINDS, Change, ConflictEvent, DeadLetter, Schema, State
from anabranch.client.letters.conflicts import Conflict
from anabranch.client.queue.verdicts import BatchVerdict, Explanation, MutationVerdict
from anabranch.client.reading.bootstrap import Progress
from anabranch.client.reading.repair import Repaired
from anabranch.client.remote import RemoteDb, Tls
from anabranch.client.status import Status
from anabranch.client.synced_table import Batch, SyncedTable
from anabranch.values.decimals import add_decimals

__all__ = [
    "STATE_KINDS",
    "AppOutdated",
    "Batch",
    "BatchState",
    "BatchVerdict",
    "CallFailed",
    "Change",
    "ClientError",
    "Conflict",
    "ConflictEvent",
    "DeadLetter",
    "DiskFull",
    "Explanation",
    "FileDamaged",
    "FileFailed",
    "ForeignFile",
    "MutationVerdict",
    "NotChosen",
    "NotReady",
    "Progress",
    "RemoteDb",
    "Repaired",
    "RowExists",
    "RowMissing",
    "Schema",
    "State",
    "Status",
    "SyncedDb",
    "SyncedElsewhere",
    "SyncedTable",
    "Tls",
    "TokenFailed",
    "TriggerWrites",
    "WrongPrincipal",
    "add_decimals",
]
