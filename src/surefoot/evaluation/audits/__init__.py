"""Audits of the failures that process reward models are known for, for any step scorer."""

from surefoot.evaluation.audits.attack import AttackAudit, audit_attack
from surefoot.evaluation.audits.cases import Case, lab_cases, lab_right, labelled_cases
from surefoot.evaluation.audits.clean import CleanAudit, audit_clean, rationalised_lab_cases
from surefoot.evaluation.audits.edits import EDITS, Edit, edited
from surefoot.evaluation.audits.gaming import GamingAudit, audit_gaming
from surefoot.evaluation.audits.outcome import OutcomeAudit, audit_outcome
from surefoot.evaluation.audits.over_optimisation import OverOptimisationAudit, audit_over_optimisation
from surefoot.evaluation.audits.pieces import Edited
from surefoot.evaluation.audits.report import write_audit_report
from surefoot.evaluation.audits.subject import Remembered, StoredScores, Subject
from surefoot.evaluation.audits.transfer import TransferAudit, audit_transfer

__all__ = [
    "EDITS",
    "AttackAudit",
    "Case",
    "CleanAudit",
    "Edit",
    "Edited",
    "GamingAudit",
    "OutcomeAudit",
    "OverOptimisationAudit",
    "Remembered",
    "StoredScores",
    "Subject",
    "TransferAudit",
    "audit_attack",
    "audit_clean",
    "audit_gaming",
    "audit_outcome",
    "audit_over_optimisation",
    "audit_transfer",
    "edited",
    "lab_cases",
    "lab_right",
    "labelled_cases",
    "rationalised_lab_cases",
    "write_audit_report",
]
