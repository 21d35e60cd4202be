"""Groups of tests: where several processes run the tests, one of them runs all of a group.

A test gets the first two from its fixtures, the others by ``pytest.mark.xdist_group``.
"""

SPARK = "spark and the real broker"
REAL_BROKER = "the real broker"
CONNECT_PORT = "the default port of Spark Connect"
"""They start a server of Spark Connect in a way that takes no other port."""
OWN_SPARKS = "start Sparks and kill them"
"""They need no others' Spark or broker, and take minutes: a process runs them when it is free."""
NOTEBOOKS = "the notebooks"
"""They start Spark themselves and take minutes, so they run beside the other slow tests."""
THREE_MINUTES = "sleeps for three minutes, beside the others"
