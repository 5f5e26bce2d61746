"""UTC days and months, by which budgets are counted."""

from __future__ import annotations

import time

import msgspec

DAY_S = 86_400


class Period(msgspec.Struct, frozen=True):
    """The UTC day and month of an instant."""

    day: int  # days since 1970
    month: int  # months since the year 0
    day_ends: int  # Unix time
    month_ends: int

    @classmethod
    def at(cls, unix_s: float) -> Period:
        day = int(unix_s // DAY_S)
        date = time.gmtime(unix_s)
        first = day - date.tm_mday + 1
        # Day 1 plus 31 is in the next month, whose own day tells how far.
        month_ends = first + 32 - time.gmtime((first + 31) * DAY_S).tm_mday
        return cls(day, date.tm_year * 12 + date.tm_mon, (day + 1) * DAY_S, month_ends * DAY_S)
