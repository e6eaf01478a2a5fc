-- What nodes and scheduler say of the end of each run, before incidents are judged.

CREATE TEMP TABLE rc_ends AS
SELECT l.job, l.run, f.place, f.time, coalesce(f.outcome, 'unknown') AS outcome,
       coalesce(f.failure_class, CASE WHEN coalesce(f.outcome, 'unknown') IN ('failed', 'unknown')
           THEN 'unknown' END) AS failure_class,
       CASE WHEN f.cause IN ('peer_failure', 'collective_timeout') THEN 1 ELSE 0 END AS is_consequence,
       CASE f.source WHEN 'pages' THEN 1 ELSE 0 END AS is_implied
FROM rc_last AS l JOIN rc_facts AS f ON f.job = l.job AND f.place = l.end_place;

-- The earliest end that is neither a success nor unknown decides; consequences come after it.
CREATE TEMP TABLE rc_nodes AS
WITH counts AS (
    SELECT job, run, count(*) AS num_nodes, sum(CASE WHEN ended IS NULL THEN 1 ELSE 0 END) AS silent
    FROM rc_last GROUP BY job, run
), ranked AS (
    SELECT e.*, max(is_implied) OVER (PARTITION BY job, run) AS any_implied, row_number() OVER (PARTITION BY job, run ORDER BY CASE
        WHEN outcome NOT IN ('succeeded', 'unknown') AND is_consequence = 0 THEN 0
        WHEN outcome NOT IN ('succeeded', 'unknown') THEN 1
        WHEN outcome = 'unknown' THEN 2 ELSE 3 END, place) AS choice
    FROM rc_ends AS e
)
SELECT r.job, r.run, coalesce(c.num_nodes, 0) AS num_nodes, coalesce(c.silent, 0) AS silent,
       CASE WHEN k.job IS NOT NULL THEN 1 ELSE 0 END AS has_end,
       CASE WHEN k.outcome IN ('succeeded', 'unknown')
                AND (c.silent > 0 OR c.num_nodes < r.num_nodes) THEN 1 ELSE 0 END AS is_silence,
       k.outcome, k.failure_class, k.time,
       CASE WHEN k.outcome = 'succeeded' THEN k.any_implied ELSE k.is_implied END AS is_implied
FROM rc_runs AS r
LEFT JOIN counts AS c ON c.job = r.job AND c.run = r.run
LEFT JOIN ranked AS k ON k.job = r.job AND k.run = r.run AND k.choice = 1;
CREATE UNIQUE INDEX rc_nodes_run ON rc_nodes (job, run);

-- A word of preemption fills in an end that is missing, unknown or a failure without a class.
CREATE TEMP TABLE rc_scheduler_says AS
WITH words AS (
    SELECT job, run, min(time) AS time, max(lost) AS lost FROM rc_words
    WHERE kind = 'job_preempted' GROUP BY job, run
), stated AS (
    SELECT r.job, r.run, r.began, r.ended, f.time, CASE WHEN f.place IS NOT NULL
               THEN coalesce(f.outcome, 'unknown') END AS outcome,
           CASE WHEN f.place IS NOT NULL THEN coalesce(f.failure_class, CASE WHEN
               coalesce(f.outcome, 'unknown') IN ('failed', 'unknown') THEN 'unknown' END) END
               AS failure_class
    FROM rc_runs AS r LEFT JOIN rc_facts AS f ON f.job = r.job AND f.place = r.end_place
), weighed AS (
    SELECT s.*, w.lost, w.time AS word_time,
           CASE WHEN w.job IS NOT NULL OR s.outcome = 'preempted' THEN 1 ELSE 0 END AS is_preempted,
           CASE WHEN w.job IS NOT NULL AND (s.outcome IS NULL OR s.outcome = 'unknown' OR (
               s.outcome = 'failed' AND s.failure_class NOT IN ('infra', 'user')
           )) THEN 1 ELSE 0 END AS fills_in
    FROM stated AS s LEFT JOIN words AS w ON w.job = s.job AND w.run = s.run
)
SELECT job, run, lost, is_preempted,
       CASE fills_in WHEN 1 THEN 'preempted' ELSE outcome END AS outcome,
       CASE fills_in WHEN 0 THEN failure_class END AS failure_class,
       CASE fills_in WHEN 1 THEN word_time ELSE time END AS time
FROM weighed;
CREATE UNIQUE INDEX rc_scheduler_says_run ON rc_scheduler_says (job, run);

-- Ends without a named class are judged by the incidents of the half hour before: recount.py asks the
-- outcome table, which is no part of the merge, and writes its answers into rc_judged.
CREATE TEMP TABLE rc_questions AS
SELECT n.job, n.run, 'nodes' AS side, n.time - 1800 AS since FROM rc_nodes AS n
WHERE has_end = 1 AND is_silence = 0 AND (
    outcome = 'unknown' OR (outcome = 'failed' AND failure_class NOT IN ('infra', 'user')))
UNION ALL
SELECT job, run, 'scheduler', time - 1800 FROM rc_scheduler_says
WHERE outcome = 'unknown' OR (outcome = 'failed' AND failure_class NOT IN ('infra', 'user'))
UNION ALL
SELECT job, run, 'silence', ended - 1800 FROM rc_runs;
CREATE TEMP TABLE rc_judged (job BIGINT, run BIGINT, side TEXT, failure_class TEXT);
