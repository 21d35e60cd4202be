"""Read and write Apache Pulsar topics from Apache Spark in Python."""

__version__ = "0.1.0"
