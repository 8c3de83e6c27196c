import signal

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests of Ctrl-C would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)
