"""Prompts that ask for a function with one change: most of the answer is in the prompt."""

EDITS = (
    "rename the function to compute_result",
    "add a docstring of one line",
    "add type hints",
    "print the result before it is returned",
    "raise ValueError if the first argument is empty",
)
FUNCTIONS = (
    """def summarize_orders(orders):
    totals = {}
    for order in orders:
        customer = order["customer"]
        amount = order["price"] * order["quantity"]
        if customer not in totals:
            totals[customer] = {"count": 0, "amount": 0.0}
        totals[customer]["count"] += 1
        totals[customer]["amount"] += amount
    return sorted(totals.items(), key=lambda item: item[1]["amount"], reverse=True)
""",
    """def parse_config(lines):
    settings = {}
    section = None
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            settings[section] = {}
        elif "=" in line and section is not None:
            key, value = line.split("=", 1)
            settings[section][key.strip()] = value.strip()
        else:
            raise SyntaxError(f"line {number}: {line}")
    return settings
""",
)


def code_edits() -> list[str]:
    return [
        f"Rewrite this function: {edit}. Answer with the whole function.\n\n```python\n{code}```"
        for edit in EDITS
        for code in FUNCTIONS
    ]
