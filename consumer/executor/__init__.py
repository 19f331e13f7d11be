"""LOOP 2: claim runs, work through their steps, validate, and commit the outcome.

Read in this order: `loop` claims and starts runs, `run` turns one run into a verdict, `context` is what the agent sees,
`commit` groups the database writes of many runs, `settlement` carries verdicts out, `beat` renews the leases.
"""
