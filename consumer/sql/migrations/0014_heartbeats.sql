-- Beats of processes, one row a role and process. `progress` counts turns of the role's loop: beats without progress are
-- how a hung loop shows.
CREATE TABLE rowcall.heartbeats (
    subject text NOT NULL CHECK (length(subject) BETWEEN 1 AND 100),
    instance text NOT NULL CHECK (length(instance) BETWEEN 1 AND 200),
    kind text NOT NULL DEFAULT 'process',
    state text NOT NULL DEFAULT 'RUNNING' CHECK (state IN ('RUNNING', 'STOPPED')),
    started_at timestamptz NOT NULL DEFAULT rowcall.now(),
    at timestamptz NOT NULL DEFAULT rowcall.now(),
    expected_next timestamptz,
    progress bigint NOT NULL DEFAULT 0,
    progress_at timestamptz NOT NULL DEFAULT rowcall.now(),
    run_id bigint,
    detail json NOT NULL DEFAULT '{}',
    PRIMARY KEY (subject, instance)
) WITH (fillfactor = 50);
