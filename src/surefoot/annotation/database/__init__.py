"""The database store: users, projects, labels and the gateway's record, in SQLite or PostgreSQL."""

from surefoot.annotation.database._database import Database, open_database
from surefoot.annotation.database._errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
)
from surefoot.annotation.database._records import Added
from surefoot.annotation.database.accounts import (
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
from surefoot.annotation.database.annotation import (
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
from surefoot.annotation.database.gateway import Counter, GatewayRow, ScoredRequest
from surefoot.annotation.database.gateway_record import GatewayCandidate, GatewayLog, GatewayRecord
from surefoot.annotation.database.imports import Imported, ImportReport, import_files
from surefoot.annotation.database.ratings import Ratings, ratings
from surefoot.annotation.database.traces import TraceRow
from surefoot.errors import StoreError

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
