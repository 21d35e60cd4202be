"""The admin REST of the embedded broker: a part of Pulsar's, with its paths and answers."""
