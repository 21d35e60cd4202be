"""Loggers whose lines are safe for terminals and files, whatever a broker says in them."""

from __future__ import annotations

import logging

from pulsar_spark.errors import printable


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
