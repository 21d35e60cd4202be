"""The soak of `PulsarClient`, a small one."""

from __future__ import annotations

import pytest

from tests.soak.client import ClientSoak


@pytest.mark.slow
@pytest.mark.fault(14)
@pytest.mark.timeout(1200)
def test_all_that_a_client_has_made_goes_on_through_many_disturbances() -> None:
    report = ClientSoak(seconds=40, seed=1).run()
    print(report)
    assert report.problems == []
    assert len(report.steps) >= 6
