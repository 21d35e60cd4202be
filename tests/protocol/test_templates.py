"""Templates: they cut what has the same sizes, and few are made where nothing repeats."""

from __future__ import annotations

import pytest

from pulsar_spark.protocol.templates import Templates

NewTemplates = Templates[object, str]


@pytest.fixture
def templates() -> NewTemplates:
    return Templates()


def test_a_template_cuts_other_bytes_into_fixed_ones_and_values(templates: NewTemplates) -> None:
    templates.add("like", b"a=12,b=3.", [(2, 4), (7, 8)], "two numbers")
    length, cut, fixed, meaning = templates["like"]
    assert (length, fixed, meaning) == (9, (b"a=", b",b=", b"."), "two numbers")
    parts = cut(b"...a=45,b=6.", 3)
    assert (parts[0::2], parts[1::2]) == (fixed, (b"45", b"6"))


def test_the_number_of_templates_is_bounded(templates: NewTemplates) -> None:
    for number in range(2000):
        templates.add(number, b"data", [(1, 2)], "")
    assert 900 < len(templates) <= 1024


def test_templates_are_paid_for_by_messages_that_were_read(templates: NewTemplates) -> None:
    templates.credit = 10**9
    made = 0
    for number in range(10_000):
        if templates.may_add(b"data"):
            templates.add(number, b"data", [(1, 2)], "")
            made += 1
    # So many at first, and one for each 256 messages.
    assert 64 <= made <= 64 + 10_000 // 256 + 2


def test_large_bytes_become_no_template(templates: NewTemplates) -> None:
    assert templates.may_add(bytes(1024))
    assert not templates.may_add(bytes(1025))


def test_a_template_that_did_not_fit_stays_if_it_can_be_replaced(templates: NewTemplates) -> None:
    templates.add("like", b"data", [(1, 2)], "")
    templates.drop("like")
    assert "like" in templates
    templates.credit = 0
    templates.drop("like")
    templates.drop("like")
    assert not templates
