"""One class per boundary that can fail. Each message names the field and the fix."""


class SurefootError(Exception):
    """Base of every error the package raises on purpose."""


class RecordError(SurefootError):
    """Bytes from outside do not form a valid record (bad JSON, wrong field, broken span)."""


class AnswerError(SurefootError):
    """An answer could not be extracted or compared within its limits."""


class SegmentError(SurefootError):
    """A text could not be cut into steps, or spans do not fit the text or its tokens."""


class PolicyError(SurefootError):
    """A policy could not be loaded or did not answer."""


class LabelError(SurefootError):
    """Labels are missing, contradictory or of the wrong kind for what was asked."""


class CheckpointError(SurefootError):
    """A checkpoint directory is incomplete or belongs to another family."""


class ScoreError(SurefootError):
    """A trace could not be scored, or scores could not be reduced to one number."""


class SchemaError(SurefootError):
    """The JSON schema of a tool's parameters cannot be used; the message says why."""


class GuardError(SurefootError):
    """A guard's settings make no sense, or what it protects did not answer."""


class TrainingError(SurefootError):
    """Training data or numbers are unusable (nothing labelled, loss not finite)."""


class DeviceError(SurefootError):
    """The device that a model is to run on is not there."""


class SandboxError(SurefootError):
    """Programs cannot be isolated here, or a sandbox did not answer; the message says what to install."""


class MissingExtraError(SurefootError):
    """An optional package is not installed; the message has the command that installs it."""


class RunError(SurefootError):
    """A run directory does not match what it is asked to continue."""


class IncompleteError(SurefootError):
    """The work ended, and what succeeded is kept, but some of it failed or is left to do."""


class StoreError(SurefootError):
    """The database cannot be opened, or refuses what it is asked to keep or give."""


class NotFoundError(StoreError):
    """There is no such thing, or not in this project."""


class ConflictError(StoreError):
    """Somebody else was first: a version, a name, a lease, or an idempotency key used for something else."""


class ForbiddenError(StoreError):
    """The user is not a member of the project, or does not have the item."""


class ExpiredKeyError(ForbiddenError):
    """The API key is valid no more."""


class ScopeError(ForbiddenError):
    """The API key may not do this."""


class UnavailableError(StoreError):
    """The database failed or did not respond: nothing is wrong with the request."""
