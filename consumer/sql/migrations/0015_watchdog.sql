-- What the watchdog knows, what it saw change, and whom it told. Written by watchdogs and by `rowcall watchdog` alone.
CREATE TABLE rowcall.watch_states (
    subject text PRIMARY KEY CHECK (length(subject) BETWEEN 3 AND 400 AND position(':' IN subject) > 1),
    state text NOT NULL DEFAULT 'new' CHECK (state IN (
        'new', 'up', 'late', 'overdue', 'failed', 'stuck', 'no_output', 'paused')),
    since timestamptz NOT NULL DEFAULT rowcall.now(),
    -- whether somebody was told of the state that it is in, so that its end is worth telling too
    told boolean NOT NULL DEFAULT false,
    message text NOT NULL DEFAULT '',
    due_at timestamptz,
    last_beat_at timestamptz,
    run_id bigint,
    reminders integer NOT NULL DEFAULT 0,
    reminded_at timestamptz,
    -- infinity where a person paused it without an end
    paused_until timestamptz,
    paused_by text,
    seen_at timestamptz NOT NULL DEFAULT rowcall.now()
) WITH (fillfactor = 70);

-- Every change of a state, once. `due_at` is the exact moment from which it held, `at` when a watchdog saw it.
CREATE TABLE rowcall.watch_flips (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject text NOT NULL,
    old_state text NOT NULL,
    new_state text NOT NULL,
    due_at timestamptz,
    at timestamptz NOT NULL DEFAULT rowcall.now(),
    last_beat_at timestamptz,
    run_id bigint,
    message text NOT NULL
);
CREATE INDEX watch_flips_subject ON rowcall.watch_flips (subject, id);
CREATE INDEX watch_flips_at ON rowcall.watch_flips (at);

-- Append-only; what is older than a day may be pruned.
CREATE FUNCTION rowcall.refuse_young() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rowcall.% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON rowcall.watch_flips
    FOR EACH STATEMENT EXECUTE FUNCTION rowcall.refuse_change();
CREATE TRIGGER keep_young BEFORE DELETE ON rowcall.watch_flips
    FOR EACH ROW WHEN (OLD.at > rowcall.now() - interval '1 day') EXECUTE FUNCTION rowcall.refuse_young();

-- One row a flip or reminder, and channel. It waits until it is sent, or given up after too many tries.
CREATE TABLE rowcall.watch_alerts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flip bigint NOT NULL,
    reminder integer NOT NULL DEFAULT 0 CHECK (reminder >= 0),
    channel text NOT NULL,
    message text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT rowcall.now(),
    attempts integer NOT NULL DEFAULT 0,
    next_try timestamptz DEFAULT rowcall.now(),
    sent_at timestamptz,
    gave_up_at timestamptz,
    last_error text,
    UNIQUE (flip, reminder, channel),
    CONSTRAINT ended_is_not_tried CHECK ((next_try IS NULL) = (sent_at IS NOT NULL OR gave_up_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX watch_alerts_due ON rowcall.watch_alerts (channel, next_try, id) WHERE next_try IS NOT NULL;
CREATE INDEX watch_alerts_made ON rowcall.watch_alerts (made_at);

-- When any watchdog last looked: a long time without one is a gap. Nothing is found overdue before quiet_until.
CREATE TABLE rowcall.watch_rounds (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    last_at timestamptz NOT NULL DEFAULT rowcall.now(),
    quiet_until timestamptz
) WITH (fillfactor = 50);

-- When the attempt under way began; started_at is that of the whole run.
ALTER TABLE rowcall.agent_jobs ADD COLUMN claimed_at timestamptz;
-- The last run of an agent that ended so, without reading those before it.
CREATE INDEX jobs_ended ON rowcall.agent_jobs (job_type, status, finished_at) WHERE finished_at IS NOT NULL;
-- Runs that succeeded and left nothing behind, unless their agent may.
CREATE INDEX steps_empty ON rowcall.job_steps (finished_at)
    WHERE kind = 'WRITE_RESULT' AND superseded = 0 AND output ->> 'rows' = '0' AND output ->> 'emitted' = '0'
    AND output ->> 'empty_output' IS NULL;
