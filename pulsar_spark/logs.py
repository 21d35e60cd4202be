"""Loggers whose lines are safe for terminals and files, whatever a broker says in them."""

from __future__ import annotations

import logging

from pulsar_spark.errors import printable

LOG_LEVEL_VARIABLE = "PULSAR_SPARK_LOG_LEVEL"
"""Environment variable with the minimum level of log messages on stderr, such as INFO.

Without it, Spark's Python workers show warnings. Nobody can configure their logging.
"""


def show_log(level: str = "WARNING") -> None:
    """Log to stderr from a level on, with times, unless logging is already configured."""
    logger = logging.getLogger("pulsar_spark")
    try:
        logger.setLevel(level.strip().upper())
    except ValueError:
        logger.warning("%s is not a level such as INFO: it is ignored", LOG_LEVEL_VARIABLE)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    # With logging configured, its own handlers print the lines.
    handler.addFilter(lambda _: not logging.getLogger().handlers)
    logger.addHandler(handler)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; it escapes unprintable characters, line breaks too."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape)
    return logger


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        lines = logging.Formatter().formatException(record.exc_info).splitlines()
        record.exc_text = "\n".join(printable(line) for line in lines)
    return True
