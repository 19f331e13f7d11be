-- The ledger of what agents do outside the database: one row an effect, written before the request leaves.

-- Every legal move of an effect. CONFIRMED is final. What may have happened is sent again only where the agent has said
-- that sending it twice does no harm; FAILED means that it is known not to have happened.
CREATE FUNCTION rowcall.effect_may_move(old_state text, new_state text, idempotent boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE old_state
    WHEN 'PLANNED' THEN new_state IN ('PLANNED', 'SENT', 'FAILED')
    WHEN 'SENT' THEN new_state IN ('CONFIRMED', 'UNKNOWN', 'FAILED')
    WHEN 'UNKNOWN' THEN new_state IN ('CONFIRMED', 'FAILED') OR (new_state = 'SENT' AND idempotent)
    WHEN 'FAILED' THEN new_state = 'PLANNED'
    ELSE false
END;

CREATE TABLE rowcall.effects (
    id uuid PRIMARY KEY,
    job_id bigint NOT NULL,
    delivery integer NOT NULL,
    step text NOT NULL CHECK (length(step) BETWEEN 1 AND 200),
    business_key text NOT NULL CHECK (length(business_key) <= 500),
    state text NOT NULL DEFAULT 'PLANNED' CHECK (state IN ('PLANNED', 'SENT', 'CONFIRMED', 'UNKNOWN', 'FAILED')),
    idempotent boolean NOT NULL,
    method text NOT NULL,
    -- secrets masked, user and password refused before
    url text NOT NULL,
    request_sha256 bytea NOT NULL CHECK (octet_length(request_sha256) = 32),
    lease_epoch bigint NOT NULL,
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    error_code text,
    error text,
    response_status integer,
    response_sha256 bytea,
    -- what the agent gets for its answer, at most 64 KiB of body
    response json,
    response_truncated boolean NOT NULL DEFAULT false,
    planned_at timestamptz NOT NULL DEFAULT rowcall.now(),
    sent_at timestamptz,
    settled_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    resolved_by text,
    CONSTRAINT sent_has_a_time CHECK (state NOT IN ('SENT', 'UNKNOWN') OR sent_at IS NOT NULL),
    CONSTRAINT settled_by_somebody CHECK ((state IN ('CONFIRMED', 'FAILED'))
        = (settled_at IS NOT NULL AND resolved_by IS NOT NULL)),
    CONSTRAINT confirmed_has_an_answer CHECK (state <> 'CONFIRMED' OR response IS NOT NULL),
    CONSTRAINT one_effect_a_key UNIQUE (job_id, step, business_key, delivery)
);
-- What people look for: effects that nobody knows the end of, and those that are under way.
CREATE INDEX effects_open ON rowcall.effects (state, updated_at) WHERE state IN ('PLANNED', 'SENT', 'UNKNOWN');

CREATE FUNCTION rowcall.refuse_effect_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'effect % cannot go from % to %', NEW.id, OLD.state, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_effect_move';
END $$;
CREATE TRIGGER legal_effect_move BEFORE UPDATE OF state ON rowcall.effects FOR EACH ROW
    WHEN (NOT rowcall.effect_may_move(OLD.state, NEW.state, OLD.idempotent))
    EXECUTE FUNCTION rowcall.refuse_effect_move();

-- A run that was held because an effect may have happened goes on only after somebody has said whether it did.
CREATE FUNCTION rowcall.refuse_unresolved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM rowcall.effects WHERE job_id = NEW.id AND state IN ('SENT', 'UNKNOWN')) THEN
        RAISE EXCEPTION 'job % waits for `rowcall effects resolve`: an effect of it may have happened', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'effects_resolved';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER effects_resolved BEFORE UPDATE OF status ON rowcall.agent_jobs FOR EACH ROW
    WHEN (OLD.status = 'WAITING_REVIEW' AND NEW.status = 'PENDING' AND OLD.error_code = 'effect_unknown')
    EXECUTE FUNCTION rowcall.refuse_unresolved();
