"""Groups of tests: where several processes run the tests, one of them runs all of a group.

A test gets the first two from its fixtures, the others by ``pytest.mark.xdist_group``.
"""

SPARK = "spark and the real broker"
REAL_BROKER = "the real broker"
CONNECT_PORT = "the default port of Spark Connect"
"""They start a server of Spark Connect in a way that takes no other port."""
NOTEBOOKS = "the notebooks"
"""They start Spark themselves and take minutes, so they run beside the other slow tests."""
THREE_MINUTES = "sleeps for three minutes, beside the others"
