"""`rowcall demo`: the main job end to end on the embedded real stack, while you watch.

`scene` starts stack, schema, connectors and workers; `acts` commits orders, kills a worker, kills Connect; `watch`
shows the runs; `verdict` counts in the database and on the topics. Promises: the last line is `demo ok: …` with exit
code 0, or says what was wrong with another exit code (130 after Ctrl-C); no process is left behind.
"""
