"""What Rowcall costs and how fast it is, measured on real services against its peers: `make bench`.

`__main__` runs the benchmarks by name and writes build/bench.json; each benchmark is one module with a function
`measure`. A ratio is measured in one run with its reference, in rounds that alternate, and its figure is the median
over the rounds, so that a busy machine slows both sides alike. What cannot be measured fails by name.
"""
