-- What each job adds to the windows, and when.

-- Reports of a span never claim more than its GPUs can have had by then, with a tenth and two minutes
-- before its begin, but not of the span before: the sum so far is the least of what was claimed and
-- what was possible at any report before.
CREATE TEMP TABLE rc_claims AS
WITH claims AS (
    SELECT g.job, g.node, g.number, g.place, g.time, sum(g.growth) AS claimed
    FROM rc_growths AS g GROUP BY g.job, g.node, g.number, g.place, g.time
), sums AS (
    SELECT c.*, sum(claimed) OVER by_place AS so_far, ((c.time - s.began) * 1.1
               + LEAST(120, CASE s.number WHEN 1 THEN 120 ELSE s.began - (
                   SELECT max(f.time) FROM rc_facts AS f
                   WHERE f.job = s.job AND f.node = s.node AND f.place < s.place AND f.kind IN (
                       'job_started', 'attempt_started', 'attempt_ended', 'job_finished', 'goodput')
               ) END)) * t.gpus AS most
    FROM claims AS c
    JOIN rc_spans AS s ON s.job = c.job AND s.node = c.node AND s.number = c.number
    JOIN rc_told AS t ON t.job = c.job AND t.node = c.node AND t.number = c.number
    WINDOW by_place AS (PARTITION BY c.job, c.node, c.number ORDER BY c.place)
), counted AS (
    SELECT sums.*, so_far + LEAST(0, min(most - so_far) OVER by_place) AS counted
    FROM sums WINDOW by_place AS (PARTITION BY job, node, number ORDER BY place)
)
SELECT job, place, CASE WHEN claimed > 0 THEN (counted - coalesce(lag(counted) OVER (
    PARTITION BY job, node, number ORDER BY place), 0)) / claimed ELSE 0 END AS share
FROM counted;
CREATE INDEX rc_claims_place ON rc_claims (job, place);

CREATE TEMP TABLE rc_rows AS
SELECT o.job, o.ended AS time, 'job_success' AS slo,
       CASE o.outcome WHEN 'succeeded' THEN 1.0 ELSE 0.0 END AS good, 1.0 AS total
FROM rc_outcomes AS o WHERE is_finished = 1 AND outcome <> 'cancelled'
    AND coalesce(failure_class, '') <> 'user'
UNION ALL SELECT o.job, o.ended, 'job_success_gpu_seconds',
    CASE o.outcome WHEN 'succeeded' THEN t.gpu_seconds ELSE 0 END, t.gpu_seconds
    FROM rc_outcomes AS o JOIN rc_totals AS t ON t.job = o.job
    WHERE is_finished = 1 AND outcome <> 'cancelled' AND coalesce(failure_class, '') <> 'user'
UNION ALL SELECT job, ended, 'time_to_complete', is_met, 1 FROM rc_deadlines
UNION ALL SELECT s.job, s.started, 'queue_wait', CASE WHEN s.queue_wait <= {wait_target}
    THEN 1 ELSE 0 END, 1 FROM (
        SELECT s.*, coalesce(j.num_gpus, j.world_size) AS gpus
        FROM rc_started AS s JOIN rc_jobs AS j ON j.job = s.job
    ) AS s WHERE queue_wait IS NOT NULL AND started IS NOT NULL AND gpus IS NOT NULL
UNION ALL SELECT r.job, r.began, 'requeue', CASE WHEN q.cause IS NULL OR q.cause = 'user' THEN 1
    ELSE 0 END, 1 FROM rc_runs AS r LEFT JOIN rc_requeues AS q ON q.job = r.job AND q.run = r.run
    WHERE r.has_start = 1
UNION ALL SELECT a.job, a.time, 'requeue', 1, 1 FROM rc_attempts AS a
    JOIN rc_runs AS r ON r.job = a.job AND r.run = a.run WHERE a.choice > 1 AND r.has_start = 1
UNION ALL SELECT job, time, 'checkpoint_success', 1, 1 FROM rc_marks
UNION ALL SELECT job, time, CASE kind WHEN 'checkpoint_failed' THEN 'checkpoint_success'
    ELSE 'resume_success' END, 0, growth FROM rc_failures
UNION ALL SELECT job, time, 'resume_success', CASE fallback WHEN 1 THEN 0 ELSE 1 END, 1
    FROM rc_resumes
UNION ALL SELECT job, ended, 'preemption_loss', CASE WHEN lost <= ((last_mark - first_mark)
    / (num_marks - 1) + {grace}) * gpus THEN 1 ELSE 0 END, 1
    FROM (SELECT * FROM rc_preemptions WHERE num_marks > 1) AS judged
UNION ALL SELECT g.job, g.time, 'goodput', CASE g.state WHEN 'productive' THEN g.growth * c.share
    ELSE 0 END, g.growth * c.share
    FROM rc_growths AS g JOIN rc_claims AS c ON c.job = g.job AND c.place = g.place
    WHERE g.state <> 'unknown'
UNION ALL SELECT g.job, g.time, 'ettr', CASE WHEN g.state IN ({progress}) THEN g.growth * c.share
    ELSE 0 END, g.growth * c.share
    FROM rc_growths AS g JOIN rc_claims AS c ON c.job = g.job AND c.place = g.place
    WHERE g.state <> 'unknown'
UNION ALL SELECT c.job, c.ended, slo, 0, (c.ended - c.began) * t.gpus
    FROM rc_recoveries AS c
    JOIN rc_told AS t ON t.job = c.job AND t.node = c.node AND t.number = c.number
    CROSS JOIN (SELECT 'goodput' AS slo UNION ALL SELECT 'ettr') AS slos;
