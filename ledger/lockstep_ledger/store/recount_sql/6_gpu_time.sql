-- GPU time of each run by goodput state.

-- Recoveries: from the end of an attempt to the next start of ranks in the same span.
CREATE TEMP TABLE rc_recoveries AS
SELECT job, node, number, time_before AS began, time AS ended FROM (
    SELECT p.job, p.node, p.number, f.kind, f.time, lag(f.kind) OVER by_place AS kind_before,
           lag(f.time) OVER by_place AS time_before
    FROM rc_placed AS p JOIN rc_facts AS f ON f.job = p.job AND f.place = p.place
    WHERE f.kind IN ('job_started', 'attempt_started', 'attempt_ended')
    WINDOW by_place AS (PARTITION BY p.job, p.node, p.number ORDER BY f.place)
) AS edges WHERE kind = 'attempt_started' AND kind_before = 'attempt_ended';

-- Reports of goodput in GPU-seconds, with what each state has grown by beyond its highest total.
CREATE TEMP TABLE rc_growths AS
SELECT *, CASE WHEN highest IS NULL OR seconds > highest
               THEN GREATEST(seconds, 0) - coalesce(highest, 0) ELSE 0 END AS growth
FROM (
    SELECT scaled.*, max(seconds) OVER (
        PARTITION BY job, node, number, attempt, state ORDER BY place
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS highest
    FROM (
        SELECT p.job, p.node, p.number, f.place, f.time, f.attempt, g.state,
               g.seconds * CASE WHEN f.num_ranks IS NULL THEN 1 WHEN f.num_ranks = 0 THEN 0
                                ELSE t.gpus / f.num_ranks END AS seconds
        FROM rc_reports AS g
        JOIN rc_facts AS f ON f.job = g.job AND f.id = g.id
        JOIN rc_placed AS p ON p.job = f.job AND p.place = f.place
        JOIN rc_told AS t ON t.job = p.job AND t.node = p.node AND t.number = p.number
    ) AS scaled
) AS compared;

-- What each span had, and what it reported of it.
CREATE TEMP TABLE rc_span_states AS
WITH had AS (
    SELECT m.job, r.run, m.node, m.number, t.gpus,
           CASE WHEN r.run < r.num_runs THEN 1 ELSE o.is_over END AS is_over,
           GREATEST(0, coalesce(m.ended, LEAST(coalesce(m.bound, 1e300), coalesce(CASE
               WHEN r.run < r.num_runs OR o.is_over = 1 THEN r.stated_end END, t.heard))) - m.began)
               * t.gpus AS had
    FROM rc_members AS m
    JOIN rc_runs AS r ON r.job = m.job AND r.form = m.form AND r.key = m.key
    JOIN rc_told AS t ON t.job = m.job AND t.node = m.node AND t.number = m.number
    JOIN rc_outcomes AS o ON o.job = m.job
), stated AS (
    SELECT job, node, number, state, sum(growth) AS seconds FROM rc_growths
    GROUP BY job, node, number, state
    UNION ALL
    SELECT c.job, c.node, c.number, 'recovery', (c.ended - c.began) * t.gpus
    FROM rc_recoveries AS c
    JOIN rc_told AS t ON t.job = c.job AND t.node = c.node AND t.number = c.number
), sums AS (
    SELECT job, node, number, sum(seconds) AS seconds FROM stated GROUP BY job, node, number
), totals AS (
    SELECT h.*, coalesce(s.seconds, 0) AS reported, CASE is_over WHEN 1 THEN had
               ELSE LEAST(had, coalesce(s.seconds, 0)) END AS total
    FROM had AS h LEFT JOIN sums AS s ON s.job = h.job AND s.node = h.node AND s.number = h.number
)
SELECT t.job, t.run, t.is_over, s.state,
       s.seconds * CASE WHEN t.reported > t.total THEN t.total / t.reported ELSE 1 END AS seconds
FROM totals AS t JOIN stated AS s ON s.job = t.job AND s.node = t.node AND s.number = t.number
UNION ALL
SELECT job, run, is_over, 'unknown', GREATEST(0, total - reported) FROM totals;

-- The scheduler's allocation of a run that is over: its parts, else its span times its GPUs, unless
-- the job has parts in other runs.
CREATE TEMP TABLE rc_granted AS
WITH parts AS (
    SELECT job, part, kind, time, num_gpus,
           lead(kind) OVER by_place AS kind_after, lead(time) OVER by_place AS time_after
    FROM rc_facts WHERE node = '' AND kind IN ('resources_allocated', 'resources_released')
    WINDOW by_place AS (PARTITION BY job, part ORDER BY place)
), zoned AS (
    SELECT p.job, s.number, GREATEST(0, coalesce(
        CASE kind_after WHEN 'resources_released' THEN time_after END, s.ended) - p.time)
        * coalesce(p.num_gpus, 0) AS seconds
    -- Both are the scheduler's words, which need no slack.
    FROM parts AS p JOIN rc_scheduler AS s ON s.job = p.job AND s.number = coalesce((
        SELECT max(number) FROM rc_scheduler AS z
        WHERE z.job = p.job AND z.has_start = 1 AND z.began <= p.time
    ), (SELECT min(number) FROM rc_scheduler AS z WHERE z.job = p.job AND z.has_start = 1))
    WHERE p.kind = 'resources_allocated'
), sums AS (
    SELECT job, number, sum(seconds) AS seconds FROM zoned GROUP BY job, number
)
SELECT r.job, r.run, CASE WHEN r.job IN (SELECT job FROM zoned) THEN s.seconds
           ELSE (r.stated_end - r.stated_begin) * r.granted_gpus END AS total
FROM rc_runs AS r
JOIN rc_outcomes AS o ON o.job = r.job
LEFT JOIN sums AS s ON s.job = r.job AND s.number = r.stated AND r.is_granted = 1
WHERE r.is_granted = 1 AND r.stated_end IS NOT NULL AND (r.run < r.num_runs OR o.is_over = 1);

CREATE TEMP TABLE rc_states AS
WITH sums AS (
    SELECT job, run, sum(seconds) AS seconds FROM rc_span_states GROUP BY job, run
), totals AS (
    SELECT r.job, r.run, coalesce(s.seconds, 0) AS reported,
           coalesce(g.total, s.seconds, 0) AS total
    FROM rc_runs AS r LEFT JOIN sums AS s ON s.job = r.job AND s.run = r.run
    LEFT JOIN rc_granted AS g ON g.job = r.job AND g.run = r.run
)
SELECT job, run, state, sum(seconds) AS seconds FROM (
    SELECT t.job, t.run, s.state, s.seconds * CASE WHEN t.reported > t.total
               THEN t.total / t.reported ELSE 1 END AS seconds
    FROM totals AS t JOIN rc_span_states AS s ON s.job = t.job AND s.run = t.run
    UNION ALL
    SELECT job, run, 'unknown', GREATEST(0, total - reported) FROM totals
) AS fitted GROUP BY job, run, state;

-- GPUs that a run holds at its end.
CREATE TEMP TABLE rc_held AS
SELECT r.job, r.run, CASE r.num_spans WHEN 0 THEN coalesce(r.granted_gpus, 0) ELSE (
    SELECT sum(t.gpus) FROM rc_last AS l
    JOIN rc_told AS t ON t.job = l.job AND t.node = l.node AND t.number = l.number
    WHERE l.job = r.job AND l.run = r.run) END AS gpus
FROM rc_runs AS r;
