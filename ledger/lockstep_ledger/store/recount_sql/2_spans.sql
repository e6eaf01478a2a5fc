-- From a start to an end: of the scheduler, and of every node.

-- An end ends what began before it; after a requeue, or first of all, it is a span without a start.
CREATE TEMP TABLE rc_scheduler AS
WITH words AS (
    SELECT job, place, kind, attempt, time, received, outcome, failure_class, cause,
           lag(kind) OVER by_place AS kind_before, lag(time) OVER by_place AS time_before,
           lead(kind) OVER by_place AS kind_after, lead(time) OVER by_place AS time_after,
           lead(place) OVER by_place AS place_after
    FROM rc_facts WHERE node = '' AND kind IN ('job_started', 'job_finished', 'job_requeued')
    WINDOW by_place AS (PARTITION BY job ORDER BY place)
), opened AS (
    SELECT job, place, attempt, time AS began, 1 AS has_start,
           CASE WHEN kind_after IN ('job_finished', 'job_requeued') THEN time_after END AS ended,
           CASE kind_after WHEN 'job_finished' THEN place_after END AS end_place,
           CASE WHEN kind_after IN ('job_finished', 'job_requeued') THEN place_after END AS closed_by,
           NULL AS after_requeue
    FROM words WHERE kind = 'job_started'
    UNION ALL
    SELECT job, place, attempt, time, 0, time, place, place,
           CASE kind_before WHEN 'job_requeued' THEN time_before END
    FROM words
    WHERE kind = 'job_finished' AND (kind_before IS NULL OR kind_before = 'job_requeued')
)
SELECT opened.job, began, attempt, has_start, ended, end_place, after_requeue,
       row_number() OVER (PARTITION BY opened.job ORDER BY opened.place) AS number,
       (SELECT received FROM rc_facts AS f WHERE f.job = opened.job AND f.place = closed_by)
           AS end_received
FROM opened;
CREATE INDEX rc_scheduler_job ON rc_scheduler (job, began);

-- A start of ranks in a later run of the scheduler than the open span's is no restart in place.
CREATE TEMP TABLE rc_spans AS
WITH edges AS (
    SELECT job, node, place, kind, attempt, time, (
        SELECT count(*) FROM rc_scheduler AS s
        WHERE s.job = f.job AND s.has_start = 1 AND s.began - 5 <= f.time
    ) AS zone
    FROM rc_facts AS f
    WHERE node <> '' AND kind IN ('job_started', 'attempt_started', 'job_finished')
), steps AS (
    SELECT *, lag(kind) OVER by_place AS kind_before, lag(zone) OVER by_place AS zone_before
    FROM edges WINDOW by_place AS (PARTITION BY job, node ORDER BY place)
), opening AS (
    SELECT *, CASE
        WHEN kind = 'job_started' OR kind_before IS NULL THEN 1
        WHEN kind = 'attempt_started' AND (kind_before = 'job_finished' OR zone_before <> zone) THEN 1
        ELSE 0 END AS opens
    FROM steps
), numbered AS (
    SELECT *, sum(opens) OVER (PARTITION BY job, node ORDER BY place) AS number FROM opening
), ends AS (
    SELECT job, node, number, min(place) AS end_place, min(time) AS ended
    FROM numbered WHERE kind = 'job_finished' GROUP BY job, node, number
)
SELECT n.job, n.node, n.number, n.place, n.attempt, n.time AS began,
       CASE n.kind WHEN 'job_finished' THEN 0 ELSE 1 END AS has_start, e.ended, e.end_place,
       lead(n.time) OVER (PARTITION BY n.job, n.node ORDER BY n.number) AS bound
FROM numbered AS n
LEFT JOIN ends AS e ON e.job = n.job AND e.node = n.node AND e.number = n.number
WHERE n.opens = 1;
CREATE INDEX rc_spans_node ON rc_spans (job, node, number);

-- Every event of a node belongs to its newest span whose first event is at or before it.
CREATE TEMP TABLE rc_placed AS
SELECT job, node, place, number FROM (
    SELECT job, node, place, max(number) OVER (
        PARTITION BY job, node ORDER BY place, is_fact
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS number, is_fact
    FROM (
        SELECT job, node, place, NULL AS number, 1 AS is_fact FROM rc_facts WHERE node <> ''
        UNION ALL
        SELECT job, node, place, number, 0 FROM rc_spans
    ) AS both_of_them
) AS placed WHERE is_fact = 1 AND number IS NOT NULL;
CREATE INDEX rc_placed_span ON rc_placed (job, node, number, place);

-- What the events of a span state: GPUs by the best source, nodes, the newest event.
CREATE TEMP TABLE rc_told AS
WITH own AS (
    SELECT p.job, p.node, p.number, f.place, f.kind, f.time, f.num_gpus, f.num_nodes,
           f.num_ranks_started, f.outcome
    FROM rc_placed AS p JOIN rc_facts AS f ON f.job = p.job AND f.place = p.place
), newest AS (
    SELECT job, node, number, max(time) AS heard,
           max(CASE WHEN kind <> 'job_finished' THEN time END) AS alive,
           max(CASE WHEN kind = 'attempt_started' AND num_gpus IS NOT NULL THEN place END) AS started,
           max(CASE WHEN kind = 'goodput' AND num_gpus IS NOT NULL THEN place END) AS reported,
           max(CASE WHEN kind = 'job_started' AND num_ranks_started IS NOT NULL THEN place END)
               AS launched,
           min(CASE WHEN kind = 'job_started' AND num_nodes IS NOT NULL THEN place END) AS sized,
           max(CASE WHEN kind IN ('attempt_ended', 'job_finished') AND outcome = 'preempted'
               THEN 1 ELSE 0 END) AS is_preempted
    FROM own GROUP BY job, node, number
)
SELECT n.job, n.node, n.number, n.heard, n.alive, n.is_preempted, n.sized, coalesce(
    (SELECT num_gpus FROM rc_facts AS f WHERE f.job = n.job AND f.place = n.started),
    (SELECT num_gpus FROM rc_facts AS f WHERE f.job = n.job AND f.place = n.reported),
    CASE WHEN j.num_nodes > 0 THEN j.num_gpus / j.num_nodes END,
    (SELECT num_ranks_started FROM rc_facts AS f WHERE f.job = n.job AND f.place = n.launched),
    0) AS gpus
FROM newest AS n JOIN rc_jobs AS j ON j.job = n.job;
CREATE INDEX rc_told_span ON rc_told (job, node, number);
