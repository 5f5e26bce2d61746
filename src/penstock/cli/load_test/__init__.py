"""The load test behind `penstock bench`: what is sent and when (`workload`), the client (`client`), the figures
(`measures`), and how they are shown (`report`, `html_report`)."""
