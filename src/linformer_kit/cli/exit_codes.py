"""How a command ends besides 0."""

MISTAKE = 2  # of the user, or of the machine that the user can change: one line says which
STOPPED = 130  # 128 + SIGINT: ended by Ctrl-C
PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of the output has gone away
