-- The functions through which runs move live in sql/functions from here on; migrate keeps them as the code has them.
CREATE TABLE rowcall.schema_functions (
    name text PRIMARY KEY,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
