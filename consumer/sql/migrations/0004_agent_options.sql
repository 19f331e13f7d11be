-- What the database itself must know of an agent: the options of its definition that decide moves of its runs. Written
-- at activation from `Agent.options`; a missing name is the option's default.
ALTER TABLE rowcall.agents ADD COLUMN options jsonb NOT NULL DEFAULT '{}';
