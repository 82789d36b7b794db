from .accounts import (
    ApiKey as ApiKey,
)
from .accounts import (
    AuditEntry as AuditEntry,
)
from .accounts import (
    Member as Member,
)
from .accounts import (
    Project as Project,
)
from .accounts import (
    Protocol as Protocol,
)
from .accounts import (
    QueuePolicy as QueuePolicy,
)
from .accounts import (
    Role as Role,
)
from .accounts import (
    Session as Session,
)
from .accounts import (
    User as User,
)
from .database import Database as Database
from .database import open_database as open_database
from .gateway_log import Counter as Counter
from .gateway_log import GatewayRow as GatewayRow
from .gateway_log import ScoredRequest as ScoredRequest
from .labelling import (
    Adjudication as Adjudication,
)
from .labelling import (
    AnnotatorItem as AnnotatorItem,
)
from .labelling import (
    AnnotatorProgress as AnnotatorProgress,
)
from .labelling import (
    Assignment as Assignment,
)
from .labelling import (
    Choice as Choice,
)
from .labelling import (
    ChoiceInput as ChoiceInput,
)
from .labelling import (
    Comment as Comment,
)
from .labelling import (
    CommentKind as CommentKind,
)
from .labelling import (
    Disagreement as Disagreement,
)
from .labelling import (
    Item as Item,
)
from .labelling import (
    KnownAnswer as KnownAnswer,
)
from .labelling import (
    LabelInput as LabelInput,
)
from .labelling import (
    MatrixCell as MatrixCell,
)
from .labelling import (
    NewItem as NewItem,
)
from .labelling import (
    Offer as Offer,
)
from .labelling import (
    Progress as Progress,
)
from .labelling import (
    StoredLabel as StoredLabel,
)
from .labelling import (
    Submission as Submission,
)
from .reviews import Ratings as Ratings
from .reviews import ratings as ratings
from .traces import Added as Added
from .traces import TraceRow as TraceRow
from .transfer import Imported as Imported
from .transfer import ImportReport as ImportReport
from .transfer import import_files as import_files
