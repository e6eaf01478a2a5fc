-- What each job adds to every counter: family without its prefix, and the labels behind the group's.

CREATE TEMP TABLE rc_marks AS
SELECT job, attempt, coalesce(step, -1) AS step, min(time) AS time, min(place) AS place
FROM rc_facts WHERE kind = 'checkpoint_durable' GROUP BY job, attempt, coalesce(step, -1);

CREATE TEMP TABLE rc_resumes AS
SELECT job, attempt, min(time) AS time, max(fallback) AS fallback
FROM rc_facts WHERE kind = 'job_resumed' AND step > 0 GROUP BY job, attempt;

-- Growth of the highest total that any node states.
CREATE TEMP TABLE rc_failures AS
SELECT job, time, kind, outcome, total - coalesce(highest, 0) AS growth FROM (
    SELECT job, time, kind, coalesce(outcome, 'failed') AS outcome, total, max(total) OVER (
        PARTITION BY job, kind, attempt, outcome ORDER BY place
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS highest
    FROM rc_facts WHERE kind IN ('checkpoint_failed', 'restore_failed') AND total > 0
) AS compared WHERE highest IS NULL OR total > highest;

CREATE TEMP TABLE rc_attempts AS
SELECT job, run, time, row_number() OVER (PARTITION BY job, run ORDER BY time) AS choice FROM (
    SELECT m.job, r.run, f.attempt, min(f.time) AS time
    FROM rc_members AS m
    JOIN rc_runs AS r ON r.job = m.job AND r.form = m.form AND r.key = m.key
    JOIN rc_placed AS p ON p.job = m.job AND p.node = m.node AND p.number = m.number
    JOIN rc_facts AS f ON f.job = p.job AND f.place = p.place
    WHERE f.kind IN ('job_started', 'attempt_started')
    GROUP BY m.job, r.run, f.attempt
) AS starts;

-- Started runs but the first, each with why the one before it ended.
CREATE TEMP TABLE rc_requeues AS
SELECT job, run, began, cause_before AS cause FROM (
    SELECT r.job, r.run, r.began, lag(CASE
        WHEN v.outcome = 'preempted' THEN 'preemption'
        WHEN v.failure_class IN ('infra', 'user') THEN v.failure_class ELSE 'unknown' END
    ) OVER (PARTITION BY r.job ORDER BY r.run) AS cause_before
    FROM rc_runs AS r JOIN rc_verdicts AS v ON v.job = r.job AND v.run = r.run
    WHERE r.has_start = 1
) AS started WHERE cause_before IS NOT NULL;

CREATE TEMP TABLE rc_started AS
SELECT j.job, min(CASE r.has_start WHEN 1 THEN r.began END) AS started, CASE
           WHEN min(j.own_submitted) IS NOT NULL AND min(j.own_started) IS NOT NULL
           THEN GREATEST(0, min(j.own_started) - min(j.own_submitted))
           WHEN min(j.submitted) IS NOT NULL AND min(CASE r.has_start WHEN 1 THEN r.began END)
               IS NOT NULL
           THEN GREATEST(0, min(CASE r.has_start WHEN 1 THEN r.began END) - min(j.submitted))
           END AS queue_wait
FROM rc_jobs AS j LEFT JOIN rc_runs AS r ON r.job = j.job GROUP BY j.job;
CREATE UNIQUE INDEX rc_started_job ON rc_started (job);

-- When each node begins an attempt, and when a checkpoint is durable.
CREATE TEMP TABLE rc_safe AS
SELECT m.job, m.form, m.key, min(f.time) AS time
FROM rc_members AS m
JOIN rc_placed AS p ON p.job = m.job AND p.node = m.node AND p.number = m.number
JOIN rc_facts AS f ON f.job = p.job AND f.place = p.place
WHERE f.kind IN ('checkpoint_durable', 'job_started', 'attempt_started')
GROUP BY m.job, m.form, m.key, m.node, m.number,
         CASE f.kind WHEN 'checkpoint_durable' THEN f.place END, f.attempt;
CREATE INDEX rc_safe_run ON rc_safe (job, form, key, time);

-- Time since the newest start or durable checkpoint in a preempted run, unless the scheduler says.
CREATE TEMP TABLE rc_preemptions AS
SELECT job, run, ended, gpus, num_marks, first_mark, last_mark, CASE
    WHEN stated IS NOT NULL THEN stated
    ELSE (ended - GREATEST(began, coalesce(safe, began))) * gpus END AS lost
FROM (
    SELECT r.job, r.run, r.began, r.ended, h.gpus, s.lost AS stated,
           (SELECT count(*) FROM rc_marks AS c WHERE c.job = r.job AND c.time <= r.ended) AS num_marks,
           (SELECT min(time) FROM rc_marks AS c WHERE c.job = r.job AND c.time <= r.ended)
               AS first_mark,
           (SELECT max(time) FROM rc_marks AS c WHERE c.job = r.job AND c.time <= r.ended) AS last_mark,
           (SELECT max(time) FROM rc_safe AS c
            WHERE c.job = r.job AND c.form = r.form AND c.key = r.key AND c.time <= r.ended) AS safe
    FROM rc_runs AS r
    JOIN rc_scheduler_says AS s ON s.job = r.job AND s.run = r.run
    JOIN rc_held AS h ON h.job = r.job AND h.run = r.run
    WHERE r.is_preempted = 1 OR s.is_preempted = 1
) AS preempted;

CREATE TEMP TABLE rc_totals AS
SELECT j.job, coalesce(sum(s.seconds), 0) AS gpu_seconds,
       coalesce(sum(s.seconds), 0) / 3600 * coalesce(min(j.price), 0) AS cost
FROM rc_jobs AS j LEFT JOIN rc_states AS s ON s.job = j.job GROUP BY j.job;
CREATE UNIQUE INDEX rc_totals_job ON rc_totals (job);

CREATE TEMP TABLE rc_deadlines AS
SELECT j.job, o.ended, CASE WHEN o.outcome = 'succeeded' AND o.ended <= j.deadline THEN 1 ELSE 0 END
           AS is_met
FROM rc_jobs AS j JOIN rc_outcomes AS o ON o.job = j.job
WHERE j.deadline IS NOT NULL AND o.is_finished = 1 AND o.outcome <> 'cancelled';

CREATE TEMP TABLE rc_counts AS
SELECT job, 'gpu_seconds' AS family, state AS label, '' AS second_label, sum(seconds) AS value
FROM rc_states GROUP BY job, state
UNION ALL SELECT job, 'jobs_finished', outcome, coalesce(failure_class, 'none'), 1
    FROM rc_outcomes WHERE is_finished = 1
UNION ALL SELECT o.job, 'jobs_finished_gpu_seconds', outcome, coalesce(failure_class, 'none'),
    t.gpu_seconds FROM rc_outcomes AS o JOIN rc_totals AS t ON t.job = o.job WHERE is_finished = 1
UNION ALL SELECT job, 'jobs_started', '', '', 1 FROM rc_started WHERE started IS NOT NULL
UNION ALL SELECT r.job, 'attempts_started', '', '', GREATEST(1, (
        SELECT count(*) FROM rc_attempts AS a WHERE a.job = r.job AND a.run = r.run
    )) FROM rc_runs AS r WHERE has_start = 1
UNION ALL SELECT t.job, 'cost', j.currency, '', t.cost
    FROM rc_totals AS t JOIN rc_jobs AS j ON j.job = t.job
UNION ALL SELECT job, 'job_deadlines', CASE is_met WHEN 1 THEN 'met' ELSE 'missed' END, '', 1
    FROM rc_deadlines
UNION ALL SELECT job, 'preemptions', '', '', 1 FROM rc_preemptions
UNION ALL SELECT job, 'preemption_lost_gpu_seconds', '', '', lost FROM rc_preemptions
UNION ALL SELECT job, 'requeues', cause, '', 1 FROM rc_requeues
UNION ALL SELECT job, 'resumes', CASE fallback WHEN 1 THEN 'fallback' ELSE 'ok' END, '', 1
    FROM rc_resumes
UNION ALL SELECT job, 'resumes', 'failed', '', growth FROM rc_failures WHERE kind = 'restore_failed'
UNION ALL SELECT job, 'checkpoints', 'ok', '', 1 FROM rc_marks
UNION ALL SELECT job, 'checkpoints', outcome, '', growth FROM rc_failures
    WHERE kind = 'checkpoint_failed';
