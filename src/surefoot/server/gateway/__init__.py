"""The gateway: chat and completions that are searched and verified; scores, verdicts, health, metrics."""

from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.monitor import Monitor, MonitorSettings, resumed
from surefoot.server.gateway.settings import GatewaySettings
from surefoot.server.gateway.strategies import Strategy, strategy_of

__all__ = [
    "Gateway",
    "GatewaySettings",
    "Monitor",
    "MonitorSettings",
    "Strategy",
    "resumed",
    "strategy_of",
]
