-- name: open_review
-- Holds an answer for a person; a run has at most one open review.
INSERT INTO rowcall.reviews (job_id, code, reasons, raw_answer, proposed_answer)
VALUES (%(id)s, %(code)s, %(reasons)s, %(raw)s, %(proposed)s::json)
ON CONFLICT (job_id) WHERE state = 'OPEN' DO UPDATE
SET code = excluded.code, reasons = excluded.reasons, raw_answer = excluded.raw_answer,
    proposed_answer = excluded.proposed_answer
RETURNING id;
