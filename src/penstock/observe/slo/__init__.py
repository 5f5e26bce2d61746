"""Service level objectives: `monitor` measures them and raises alerts, `causes` names the likely cause of an alert,
`webhook` posts it."""
