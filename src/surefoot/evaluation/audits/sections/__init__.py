"""What each audit found as sentences, tables and figures, any number of scorers side by side."""

from __future__ import annotations

from surefoot.evaluation.audits.sections.attack import attack_section
from surefoot.evaluation.audits.sections.clean import clean_section
from surefoot.evaluation.audits.sections.gaming import gaming_section
from surefoot.evaluation.audits.sections.outcome import outcome_section
from surefoot.evaluation.audits.sections.over_optimisation import over_optimisation_section
from surefoot.evaluation.audits.sections.section import Section, Table
from surefoot.evaluation.audits.sections.transfer import transfer_section

__all__ = [
    "Section",
    "Table",
    "attack_section",
    "clean_section",
    "gaming_section",
    "outcome_section",
    "over_optimisation_section",
    "transfer_section",
]
