"""What is known of a row beside its times."""

from __future__ import annotations

from fx_instrument.facts import RowFacts, facts_in_common


def test_facts_that_differ_are_not_known_of_the_whole() -> None:
    first = RowFacts(class_name="Net", shapes=((2, 3),), flops=12, has_all_flops=False)
    other = RowFacts(class_name="Net", shapes=((4, 3),), flops=24, has_all_flops=False)
    both = RowFacts(class_name="Net", has_all_flops=False)
    assert facts_in_common([first, other]) == both
    assert facts_in_common([first, first]) == first
    assert facts_in_common([first]) == first
