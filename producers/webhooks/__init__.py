"""Webhooks: verified, put onto a topic byte for byte, answered when the brokers have it.

Read `sources` (who may send, by which scheme), `signatures` (whether a request is theirs, and which delivery it is),
`endpoint` (the HTTP side) and `process`. A webhook starts no run by itself: agents subscribe to its topic.
"""
