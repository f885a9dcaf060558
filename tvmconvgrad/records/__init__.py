"""What tuning has found: choices, logs, and their look-up. Needs no compiler.

How a line of a log becomes a kernel:

1. kernels.py asks lookup.py for the problem, with as few axes as it allows (spec/reducing/), and the target. The line
   (entry.py) must be of the installed version of TVM and of the same version of the schedules. The user's logs go
   before the shipped ones (logs.py).
2. Its `Choice` (choice.py), a rule's name and numbers, is part of the kernel's key in the cache
   (compiler/description.py) and of what the compile service asks a worker (compiler/worker.py).
3. schedules/chosen.py lets that rule schedule the problem again. Where the rule's cost model would draw a number, it
   takes the chosen one (schedules/decisions.py).
4. If these numbers now lead to another plan than the one that was measured, the choice is refused. Then the kernel is
   built with the rules' own numbers, and a warning says so.
"""
