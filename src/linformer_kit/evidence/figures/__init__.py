"""Tables and figures as plain data, and the ways to show them: terminal, page, picture."""
