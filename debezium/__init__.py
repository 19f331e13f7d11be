"""The local stack and what Kafka Connect needs of this project.

`stack` starts and stops real Postgres, Kafka, Connect and a schema registry for tests, the demo and development
(`rowcall dev` is its command line); `connectors/` holds the Debezium configurations as operators use them; `transform/`
is the Connect transform that keeps NULL. Imports nothing of `consumer` or `producers`.
"""
