from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.limits.period import Period


@given(st.datetimes(datetime(2024, 1, 1), datetime(2101, 1, 1)))
def test_days_and_months_end_as_the_calendar_says(naive: datetime) -> None:
    at = naive.replace(tzinfo=UTC)
    period = Period.at(at.timestamp())
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)

    assert period.day_ends == (midnight + timedelta(days=1)).timestamp()
    assert period.month_ends == next_month.timestamp()
    assert Period.at(period.day_ends - 1).day == period.day == Period.at(period.day_ends).day - 1
    assert Period.at(period.month_ends - 1).month == period.month == Period.at(period.month_ends).month - 1
