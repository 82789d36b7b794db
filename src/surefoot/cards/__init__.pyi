from .build import build_card as build_card
from .record import About as About
from .record import ReleaseCard as ReleaseCard
from .record import read_release as read_release
from .render import check_card as check_card
from .render import diff_cards as diff_cards
from .render import render_all as render_all
from .render import safety_case as safety_case
