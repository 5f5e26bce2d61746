"""What can be seen from outside: metrics made from what the stages report."""
