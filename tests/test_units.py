"""Numbers as people read them: the unit fits what is shown."""

from __future__ import annotations

import pytest

from mhaprof.units import format_bytes, format_seconds, format_si


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.99999, "1 s"),
        (0.99994, "999.9 ms"),
        (9.99996e-4, "1 ms"),
        (9.99996e-7, "1 us"),
        (1.5e-9, "1.5 ns"),
        (0.0, "0 ns"),
        (0.0123456, "12.35 ms"),
        (1234.5, "1234 s"),
    ],
)
def test_a_duration_is_in_the_unit_that_fits_once_it_is_rounded(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1024**2 - 1, "1 MiB"),
        (int(1023.4 * 1024), "1023 KiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**53, "8192 TiB"),
    ],
)
def test_bytes_are_in_the_unit_that_fits_once_they_are_rounded(count: int, shown: str) -> None:
    assert format_bytes(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (999_999, "999999"),
        (999_999_999, "1 G"),
        (51_539_607_552, "51.54 G"),
        (60_000_000_000, "60 G"),
        (600 * 10**9, "600 G"),
        (10**18, "1 E"),
    ],
)
def test_a_count_has_four_digits_and_the_prefix_that_fits(value: int, shown: str) -> None:
    assert format_si(value) == shown
