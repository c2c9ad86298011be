"""`python -m fedtailor COMMAND`: the command line, with the interpreter that is
named.
"""

from fedtailor.cli import main

raise SystemExit(main())
