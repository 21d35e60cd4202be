"""The official client's loggers, so that its programs run.

This package logs to the logger ``pulsar_spark`` of Python's `logging`, whose handlers and levels
apply. A client accepts these classes as `logger=` and ignores them.
"""

from __future__ import annotations

from pulsar_spark.client.enums import LoggerLevel, choice
from pulsar_spark.errors import OptionError


class ConsoleLogger:
    """Logs to standard output. Raises OptionError if the level is not a LoggerLevel."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        self.log_level = choice(LoggerLevel, log_level, "log_level")


class FileLogger:
    """Logs to a file. Raises OptionError if the level is not a LoggerLevel, or the name is not
    text.
    """

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        self.log_level = choice(LoggerLevel, log_level, "log_level")
        if not isinstance(log_file, str):
            raise OptionError(f"log_file is a {type(log_file).__name__}, it must be str")
        self.log_file = log_file
