"""The database store: users, projects, labels and the gateway's record, in SQLite or PostgreSQL."""

from surefoot.errors import StoreError
from surefoot.store.database._database import Database, open_database
from surefoot.store.database._errors import ConflictError, ForbiddenError, NotFoundError, UnavailableError
from surefoot.store.database._records import Added
from surefoot.store.database.accounts import (
    ApiKey,
    AuditEntry,
    Member,
    Project,
    Protocol,
    QueuePolicy,
    Role,
    Session,
    User,
)
from surefoot.store.database.annotation import (
    Adjudication,
    AnnotatorItem,
    AnnotatorProgress,
    Assignment,
    Choice,
    ChoiceInput,
    Disagreement,
    Item,
    KnownAnswer,
    LabelInput,
    MatrixCell,
    NewItem,
    Offer,
    Progress,
    Remark,
    StoredLabel,
    Submission,
)
from surefoot.store.database.gateway import Counter, GatewayRow, ScoredRequest
from surefoot.store.database.gateway_record import GatewayCandidate, GatewayLog, GatewayRecord
from surefoot.store.database.imports import Imported, ImportReport, import_files
from surefoot.store.database.ratings import Ratings, ratings
from surefoot.store.database.traces import TraceRow

__all__ = [
    "Added",
    "Adjudication",
    "AnnotatorItem",
    "AnnotatorProgress",
    "ApiKey",
    "Assignment",
    "AuditEntry",
    "Choice",
    "ChoiceInput",
    "ConflictError",
    "Counter",
    "Database",
    "Disagreement",
    "ForbiddenError",
    "GatewayCandidate",
    "GatewayLog",
    "GatewayRecord",
    "GatewayRow",
    "ImportReport",
    "Imported",
    "Item",
    "KnownAnswer",
    "LabelInput",
    "MatrixCell",
    "Member",
    "NewItem",
    "NotFoundError",
    "Offer",
    "Progress",
    "Project",
    "Protocol",
    "QueuePolicy",
    "Ratings",
    "Remark",
    "Role",
    "ScoredRequest",
    "Session",
    "StoreError",
    "StoredLabel",
    "Submission",
    "TraceRow",
    "UnavailableError",
    "User",
    "import_files",
    "open_database",
    "ratings",
]
