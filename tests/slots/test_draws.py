"""Random numbers of a sequence drawn at once are those drawn one by one, whatever was drawn before."""

from __future__ import annotations

from spinf_stream.slots.draws import uniform, uniforms


def test_a_sequence_s_numbers_at_once_equal_those_one_by_one():
    for key in ((0, 0), (1, 2), (2**64 - 1, 2**63 + 5)):
        for sequence in (0, 1, 63):
            got = uniforms(key, sequence, 40)
            assert got == [uniform(key, sequence, step) for step in range(40)] and len(set(got)) == 40
            assert got[:7] == uniforms(key, sequence, 7)
