-- What became of each run and job.

CREATE TEMP TABLE rc_verdicts AS
WITH sides AS (
    SELECT n.job, n.run, n.has_end, n.is_silence, n.is_implied, s.outcome AS stated,
           s.failure_class AS stated_class,
           CASE WHEN n.is_silence = 1 THEN 'unknown' WHEN a.job IS NOT NULL THEN 'failed'
                ELSE n.outcome END AS outcome,
           CASE WHEN n.is_silence = 1 THEN 'unknown' ELSE coalesce(a.failure_class, n.failure_class)
                END AS failure_class
    FROM rc_nodes AS n
    JOIN rc_scheduler_says AS s ON s.job = n.job AND s.run = n.run
    LEFT JOIN rc_judged AS a ON a.job = n.job AND a.run = n.run AND a.side = 'nodes'
), chosen AS (
    SELECT job, run, stated, stated_class, outcome, failure_class, CASE
        WHEN has_end = 0 AND stated IS NULL THEN 'silence'
        WHEN has_end = 0 THEN 'scheduler'
        WHEN is_implied = 1 AND is_silence = 0 AND outcome NOT IN ('failed', 'unknown')
             AND stated NOT IN ('succeeded', 'unknown') THEN 'scheduler'
        WHEN stated IN ('time_limit', 'cancelled', 'preempted')
             OR (stated = 'failed' AND stated_class IN ('infra', 'user')) THEN
            CASE WHEN outcome IN ('unknown', 'preempted')
                      OR (outcome = 'failed' AND failure_class NOT IN ('infra', 'user'))
                      OR (outcome = 'cancelled' AND stated <> 'cancelled') THEN 'scheduler'
                 WHEN is_silence = 1 THEN 'silence' ELSE 'nodes' END
        WHEN is_silence = 1 AND stated IN ('failed', 'succeeded', 'not_converged') THEN 'scheduler'
        WHEN is_silence = 1 THEN 'silence'
        ELSE 'nodes' END AS side
    FROM sides
)
SELECT c.job, c.run, CASE WHEN j.job IS NOT NULL THEN 'failed' ELSE CASE c.side
           WHEN 'silence' THEN 'unknown' WHEN 'scheduler' THEN stated ELSE outcome END END AS outcome,
       CASE WHEN j.job IS NOT NULL THEN j.failure_class ELSE CASE c.side
           WHEN 'silence' THEN 'unknown' WHEN 'scheduler' THEN stated_class
           ELSE c.failure_class END END AS failure_class
FROM chosen AS c
LEFT JOIN rc_judged AS j ON j.job = c.job AND j.run = c.run AND j.side = c.side;
CREATE UNIQUE INDEX rc_verdicts_run ON rc_verdicts (job, run);

-- The newest run of each job, and whether anybody waits for something.
CREATE TEMP TABLE rc_newest AS
SELECT r.*, v.outcome, v.failure_class,
       CASE WHEN r.num_spans = 0 THEN CASE WHEN r.stated_end IS NULL THEN 0 ELSE 1 END
            WHEN n.silent > 0 OR n.num_nodes < r.num_nodes THEN 0 ELSE 1 END AS is_complete,
       CASE WHEN r.has_start = 1 AND j.requeued >= CASE WHEN r.stated IS NULL THEN r.began
            ELSE r.stated_end END THEN 1 ELSE 0 END AS waits_in_queue,
       -- First receipt of an end of it, and newest receipt of anything.
       (SELECT min(received) FROM (
           SELECT f.received FROM rc_last AS l
           JOIN rc_facts AS f ON f.job = l.job AND f.place = l.end_place
           WHERE l.job = r.job AND l.run = r.run
           UNION ALL SELECT r.end_received
       ) AS receipts) AS first_received, j.received
FROM rc_runs AS r
JOIN rc_verdicts AS v ON v.job = r.job AND v.run = r.run
JOIN rc_nodes AS n ON n.job = r.job AND n.run = r.run
JOIN rc_jobs AS j ON j.job = r.job
WHERE r.run = r.num_runs;
CREATE UNIQUE INDEX rc_newest_job ON rc_newest (job);

-- A job is finished where nothing is waited for, or the ledger has settled it and no node has
-- spoken since; what is heard after all waits changes nothing of that.
CREATE TEMP TABLE rc_finished AS
WITH due AS (
    SELECT job, CASE
        WHEN first_received IS NULL THEN CASE WHEN stated IS NULL THEN received + {silent} END
        ELSE GREATEST(first_received + CASE is_complete WHEN 1 THEN 0 ELSE {node} END,
                      first_received + CASE WHEN outcome = 'preempted' AND has_start = 1
                                            THEN {requeue} ELSE 0 END) END AS settle_at
    FROM rc_newest
)
SELECT j.job, CASE
    WHEN n.job IS NULL OR n.waits_in_queue = 1 THEN CASE WHEN EXISTS (
        SELECT 1 FROM rc_settlements AS s
        WHERE s.job = j.job AND s.run_begin IS NULL AND s.time >= j.heard) THEN 1 ELSE 0 END
    WHEN n.is_complete = 1 AND NOT (n.has_start = 1 AND n.outcome = 'preempted') THEN 1
    WHEN EXISTS (
        SELECT 1 FROM rc_settlements AS s WHERE s.job = j.job AND s.run_begin >= n.began - 5
            AND (s.time >= n.alive OR d.settle_at <= j.received)) THEN 1
    ELSE 0 END AS is_finished
FROM rc_jobs AS j LEFT JOIN rc_newest AS n ON n.job = j.job LEFT JOIN due AS d ON d.job = j.job;
CREATE UNIQUE INDEX rc_finished_job ON rc_finished (job);

CREATE TEMP TABLE rc_outcomes AS
SELECT f.job, f.is_finished, CASE f.is_finished WHEN 1 THEN coalesce(n.outcome, 'unknown') END
           AS outcome,
       CASE f.is_finished WHEN 1 THEN CASE WHEN n.job IS NULL THEN 'unknown' ELSE n.failure_class END
           END AS failure_class,
       CASE f.is_finished WHEN 1 THEN coalesce(n.ended, j.heard) END AS ended,
       CASE WHEN f.is_finished = 1 OR n.is_complete = 1 OR n.waits_in_queue = 1 THEN 1 ELSE 0 END
           AS is_over
FROM rc_finished AS f JOIN rc_jobs AS j ON j.job = f.job LEFT JOIN rc_newest AS n ON n.job = f.job;
CREATE UNIQUE INDEX rc_outcomes_job ON rc_outcomes (job);
