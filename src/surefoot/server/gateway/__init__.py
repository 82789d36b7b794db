"""The gateway: chat and completions that are searched and verified; scores, verdicts, health, metrics."""

from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.log import GatewayEntry, GatewayLog, JsonLinesLog, NoLog
from surefoot.server.gateway.monitor import Monitor, MonitorSettings
from surefoot.server.gateway.settings import GatewaySettings
from surefoot.server.gateway.strategies import Strategy, strategy_of

__all__ = [
    "Gateway",
    "GatewayEntry",
    "GatewayLog",
    "GatewaySettings",
    "JsonLinesLog",
    "Monitor",
    "MonitorSettings",
    "NoLog",
    "Strategy",
    "strategy_of",
]
