from .database import (
    Adjudication as Adjudication,
)
from .database import (
    AnnotatorItem as AnnotatorItem,
)
from .database import (
    ApiKey as ApiKey,
)
from .database import (
    Assignment as Assignment,
)
from .database import (
    Choice as Choice,
)
from .database import (
    ChoiceInput as ChoiceInput,
)
from .database import (
    Comment as Comment,
)
from .database import (
    Database as Database,
)
from .database import (
    Disagreement as Disagreement,
)
from .database import (
    Item as Item,
)
from .database import (
    KnownAnswer as KnownAnswer,
)
from .database import (
    LabelInput as LabelInput,
)
from .database import (
    MatrixCell as MatrixCell,
)
from .database import (
    Member as Member,
)
from .database import (
    NewItem as NewItem,
)
from .database import (
    Progress as Progress,
)
from .database import (
    Project as Project,
)
from .database import (
    Protocol as Protocol,
)
from .database import (
    Ratings as Ratings,
)
from .database import (
    StoredLabel as StoredLabel,
)
from .database import (
    User as User,
)
from .database import (
    import_files as import_files,
)
from .database import (
    open_database as open_database,
)
from .database import (
    ratings as ratings,
)
from .pages.access import PageSettings as PageSettings
from .pages.app import create_pages_app as create_pages_app
