"""The subcommands of ``neuron-compiler``, one a file: ``HELP``, ``add_arguments(parser)``, ``run(arguments)``.

What is slow to load is imported by ``run``, so that ``--help`` answers at once.
"""
