-- Runs: the scheduler's spans with those of nodes in them, and what no scheduler knows of.

-- The scheduler's run in whose zone a node's span begins; NULL for none.
CREATE TEMP TABLE rc_zoned AS
SELECT n.*, CASE WHEN s.ended IS NULL OR n.began <= s.ended + 5 THEN s.number END AS owner
FROM rc_spans AS n LEFT JOIN rc_scheduler AS s ON s.job = n.job AND s.has_start = 1
    AND s.number = (
        SELECT max(number) FROM rc_scheduler AS z
        WHERE z.job = n.job AND z.has_start = 1 AND z.began - 5 <= n.began
    );

CREATE TEMP TABLE rc_orphans AS
SELECT job, node, number, began, attempt, has_start, coalesce(ended, 1e300) AS over_at, position,
       lag(position) OVER (PARTITION BY job, node ORDER BY position) AS position_before
FROM (
    SELECT *, row_number() OVER (PARTITION BY job ORDER BY began, attempt, node BYTES) AS position
    FROM rc_zoned WHERE owner IS NULL
) AS ordered;
CREATE INDEX rc_orphans_position ON rc_orphans (job, position);

-- A span joins the run before it unless it BEGINS_ANEW (recount.py writes the condition in).
CREATE TEMP TABLE rc_walk AS
WITH RECURSIVE walk (job, position, first, first_attempt, over_at) AS (
    SELECT job, position, position, attempt, over_at FROM rc_orphans WHERE position = 1
    UNION ALL
    SELECT o.job, o.position,
           CASE WHEN BEGINS_ANEW THEN o.position ELSE w.first END,
           CASE WHEN BEGINS_ANEW THEN o.attempt ELSE w.first_attempt END,
           CASE WHEN BEGINS_ANEW THEN o.over_at ELSE GREATEST(o.over_at, w.over_at) END
    FROM walk AS w JOIN rc_orphans AS o ON o.job = w.job AND o.position = w.position + 1
    JOIN rc_jobs AS j ON j.job = w.job
)
SELECT job, position, first FROM walk;
CREATE INDEX rc_walk_position ON rc_walk (job, position);

-- A scheduler's end without a start ends the newest run of nodes that it can end.
CREATE TEMP TABLE rc_attached AS
SELECT s.job, s.number, (
    SELECT max(w.first) FROM rc_walk AS w
    JOIN rc_orphans AS o ON o.job = w.job AND o.position = w.first
    WHERE w.job = s.job AND o.began <= s.began AND o.began >= coalesce(s.after_requeue, -1e300)
) AS first
FROM rc_scheduler AS s WHERE s.has_start = 0;

CREATE TEMP TABLE rc_members AS
SELECT job, node, number, began, attempt, has_start, ended, end_place, bound, 0 AS form,
       owner AS key FROM rc_zoned WHERE owner IS NOT NULL
UNION ALL
SELECT z.job, z.node, z.number, z.began, z.attempt, z.has_start, z.ended, z.end_place, z.bound, 1,
       w.first
FROM rc_zoned AS z
JOIN rc_orphans AS o ON o.job = z.job AND o.node = z.node AND o.number = z.number
JOIN rc_walk AS w ON w.job = o.job AND w.position = o.position;
CREATE INDEX rc_members_run ON rc_members (job, form, key);

-- Form 0: of a start of the scheduler, 1: of nodes alone, 2: an end in the queue.
CREATE TEMP TABLE rc_runs AS
WITH keys AS (
    SELECT job, 0 AS form, number AS key, number AS stated FROM rc_scheduler WHERE has_start = 1
    UNION ALL
    SELECT w.job, 1, w.first, max(a.number) FROM rc_walk AS w
    LEFT JOIN rc_attached AS a ON a.job = w.job AND a.first = w.first GROUP BY w.job, w.first
    UNION ALL
    SELECT job, 2, number, number FROM rc_attached WHERE first IS NULL
), nodes AS (
    SELECT m.job, m.form, m.key, min(m.began) AS began, max(m.ended) AS ended,
           max(m.has_start) AS has_start, max(coalesce(t.heard, m.began)) AS heard,
           max(coalesce(t.is_preempted, 0)) AS is_preempted, max(coalesce(t.alive, 0)) AS alive,
           min(t.sized) AS sized, count(*) AS num_spans
    FROM rc_members AS m
    LEFT JOIN rc_told AS t ON t.job = m.job AND t.node = m.node AND t.number = m.number
    GROUP BY m.job, m.form, m.key
), joined AS (
    SELECT k.job, k.form, k.key, k.stated, s.ended AS stated_end, s.end_place, s.end_received,
           s.began AS stated_begin, coalesce(s.has_start, 0) AS is_granted,
           GREATEST(coalesce(n.has_start, 0), coalesce(s.has_start, 0)) AS has_start,
           CASE WHEN n.began IS NULL THEN s.began
                WHEN s.has_start = 1 THEN LEAST(s.began, n.began) ELSE n.began END AS began,
           n.ended AS node_end, n.heard, coalesce(n.is_preempted, 0) AS is_preempted,
           coalesce(n.alive, 0) AS alive, n.sized, coalesce(n.num_spans, 0) AS num_spans
    FROM keys AS k
    LEFT JOIN rc_scheduler AS s ON s.job = k.job AND s.number = k.stated
    LEFT JOIN nodes AS n ON n.job = k.job AND n.form = k.form AND n.key = k.key
)
SELECT job, form, key, stated, stated_end, end_place, end_received, is_granted, has_start, began,
       is_preempted, alive, num_spans, stated_begin,
       CASE WHEN node_end IS NULL AND stated_end IS NULL
            THEN GREATEST(GREATEST(began, coalesce(heard, began)), coalesce(stated_begin, began))
            ELSE GREATEST(coalesce(node_end, -1e300), coalesce(stated_end, -1e300)) END AS ended,
       row_number() OVER (PARTITION BY job ORDER BY began, form, key) AS run,
       count(*) OVER (PARTITION BY job) AS num_runs,
       -- The scheduler's newest word by its end, else a launcher's in the run, else the job's.
       coalesce((
           SELECT number FROM rc_stated AS w WHERE w.job = joined.job AND w.field = 'num_nodes'
               AND w.node = '' AND (stated_end IS NULL OR w.time <= stated_end)
           ORDER BY w.place DESC LIMIT 1
       ), (SELECT num_nodes FROM rc_facts AS f WHERE f.job = joined.job AND f.place = sized),
       (SELECT num_nodes FROM rc_jobs AS j WHERE j.job = joined.job)) AS num_nodes,
       (
           SELECT number FROM rc_stated AS w WHERE w.job = joined.job AND w.field = 'num_gpus'
               AND w.node = '' AND (stated_end IS NULL OR w.time <= stated_end)
           ORDER BY w.place DESC LIMIT 1
       ) AS granted_gpus
FROM joined;
CREATE UNIQUE INDEX rc_runs_run ON rc_runs (job, run);

-- The newest span of each node in a run: its end is the node's end.
CREATE TEMP TABLE rc_last AS
SELECT * FROM (
    SELECT r.run, m.*, row_number() OVER (
        PARTITION BY m.job, r.run, m.node ORDER BY m.began DESC, m.number DESC
    ) AS choice
    FROM rc_members AS m
    JOIN rc_runs AS r ON r.job = m.job AND r.form = m.form AND r.key = m.key
) AS ranked WHERE choice = 1;
CREATE INDEX rc_last_run ON rc_last (job, run);

-- Words of preemption and incidents belong to the newest run that begins before them, else the first.
CREATE TEMP TABLE rc_words AS
SELECT f.job, f.id, f.place, f.kind, f.time, f.lost, coalesce((
    SELECT max(run) FROM rc_runs AS r WHERE r.job = f.job AND r.began <= f.time
), 1) AS run
FROM rc_facts AS f WHERE f.kind IN ('job_preempted', 'node_event')
    AND EXISTS (SELECT 1 FROM rc_runs AS r WHERE r.job = f.job);
CREATE INDEX rc_words_run ON rc_words (job, run);
