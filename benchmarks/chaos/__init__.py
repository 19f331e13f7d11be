"""Minutes of load on the whole real stack while parts of it are killed, frozen and restarted: `make chaos`.

Read in this order: `scene` builds the stack, tables, connectors, model and receiver; `load` commits rows; `agents` is
what they wake; `workers` keeps the worker processes alive as a service manager would; `faults` strikes; `evidence`
reads what is outside Rowcall's own tables (topics, the receiver's journal); `verdict` judges it. `__main__` runs all of
it and writes build/chaos.json.
"""
