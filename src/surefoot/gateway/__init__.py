"""The gateway: chat and completions that are searched and verified; scores, verdicts, health, metrics."""

from surefoot.gateway.gateway import Gateway
from surefoot.gateway.monitor import Monitor, MonitorSettings, resumed
from surefoot.gateway.settings import GatewaySettings
from surefoot.gateway.strategies import Strategy, strategy_of

__all__ = [
    "Gateway",
    "GatewaySettings",
    "Monitor",
    "MonitorSettings",
    "Strategy",
    "resumed",
    "strategy_of",
]
