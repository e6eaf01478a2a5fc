-- What every event states, in the order in which events count, and which words on a job hold.
-- Written for SQLite and PostgreSQL alike; what they spell differently is in capitals with brackets
-- (TEXT, NUMBER, FLAG, GREATEST, LEAST) or a word (STORED, BYTES), and recount.py replaces it.

CREATE TEMP TABLE rc_events AS
SELECT job, id, kind, node, attempt, time, received,
       row_number() OVER (PARTITION BY job ORDER BY time, attempt, CASE kind
           WHEN 'job_submitted' THEN 0 WHEN 'resources_allocated' THEN 1 WHEN 'job_started' THEN 2
           WHEN 'attempt_started' THEN 3 WHEN 'attempt_ended' THEN 5 WHEN 'job_preempted' THEN 6
           WHEN 'resources_released' THEN 7 WHEN 'job_finished' THEN 8 WHEN 'job_requeued' THEN 9
           WHEN 'ledger_settled' THEN 10 ELSE 4 END, id BYTES) AS place,
       TEXT(queue) AS queue, TEXT(project) AS project, TEXT(job_class) AS job_class,
       TEXT(currency) AS currency, NUMBER(num_gpus) AS num_gpus, NUMBER(num_nodes) AS num_nodes,
       NUMBER(world_size) AS world_size, NUMBER(price_per_gpu_hour) AS price,
       NUMBER(deadline_time) AS deadline, NUMBER(nproc_per_node) AS num_ranks_started,
       NUMBER(num_ranks) AS num_ranks, TEXT(outcome) AS outcome,
       TEXT(failure_class) AS failure_class, TEXT(cause) AS cause, TEXT(source) AS source, NUMBER(total) AS total,
       NUMBER(step) AS step, FLAG(fallback) AS fallback, NUMBER(lost_gpu_seconds) AS lost,
       TEXT(part) AS part, NUMBER(run_begin) AS run_begin
FROM STORED;

REPORTS;
CREATE INDEX rc_reports_id ON rc_reports (job, id);

CREATE TEMP TABLE rc_facts AS SELECT * FROM rc_events WHERE kind <> 'ledger_settled';
CREATE INDEX rc_facts_place ON rc_facts (job, place);
CREATE INDEX rc_facts_time ON rc_facts (job, node, time);
CREATE TEMP TABLE rc_settlements AS
SELECT job, time, run_begin FROM rc_events WHERE kind = 'ledger_settled';

-- Every word of a submission or start on the job as a whole.
CREATE TEMP TABLE rc_stated AS
SELECT * FROM (
    SELECT job, place, time, node, field, CASE field
               WHEN 'queue' THEN queue WHEN 'project' THEN project WHEN 'job_class' THEN job_class
               WHEN 'currency' THEN currency END AS name,
           CASE field
               WHEN 'num_gpus' THEN num_gpus WHEN 'num_nodes' THEN num_nodes
               WHEN 'world_size' THEN world_size WHEN 'price' THEN price
               WHEN 'deadline' THEN deadline END AS number
    FROM rc_facts CROSS JOIN (
        SELECT 'queue' AS field UNION ALL SELECT 'project' UNION ALL SELECT 'job_class'
        UNION ALL SELECT 'currency' UNION ALL SELECT 'num_gpus' UNION ALL SELECT 'num_nodes'
        UNION ALL SELECT 'world_size' UNION ALL SELECT 'price' UNION ALL SELECT 'deadline'
    ) AS fields
    WHERE kind IN ('job_submitted', 'job_started')
) AS every_field WHERE name IS NOT NULL OR number IS NOT NULL;
CREATE INDEX rc_stated_job ON rc_stated (job, field, place);

-- The scheduler's newest word holds, else the first of a launcher.
CREATE TEMP TABLE rc_jobs AS
WITH chosen AS (
    SELECT job, field, name, number FROM (
        SELECT *, row_number() OVER (
            PARTITION BY job, field
            ORDER BY CASE node WHEN '' THEN 0 ELSE 1 END, CASE node WHEN '' THEN -place ELSE place END
        ) AS choice FROM rc_stated
    ) AS ranked WHERE choice = 1
), words AS (
    SELECT job, max(CASE field WHEN 'queue' THEN name END) AS queue,
           max(CASE field WHEN 'project' THEN name END) AS project,
           max(CASE field WHEN 'job_class' THEN name END) AS job_class,
           max(CASE field WHEN 'currency' THEN name END) AS currency,
           max(CASE field WHEN 'num_gpus' THEN number END) AS num_gpus,
           max(CASE field WHEN 'num_nodes' THEN number END) AS num_nodes,
           max(CASE field WHEN 'world_size' THEN number END) AS world_size,
           max(CASE field WHEN 'price' THEN number END) AS price,
           max(CASE field WHEN 'deadline' THEN number END) AS deadline
    FROM chosen GROUP BY job
), times AS (
    SELECT job, max(time) AS heard, max(received) AS received,
           min(CASE kind WHEN 'job_submitted' THEN time END) AS submitted,
           min(CASE WHEN kind = 'job_submitted' AND node = '' THEN time END) AS own_submitted,
           min(CASE WHEN kind = 'job_started' AND node = '' THEN time END) AS own_started,
           max(CASE kind WHEN 'job_requeued' THEN time END) AS requeued
    FROM rc_facts GROUP BY job
)
SELECT times.job, heard, received, submitted, own_submitted, own_started, requeued,
       coalesce(queue, '') AS queue, coalesce(project, '') AS project,
       coalesce(job_class, '') AS job_class, coalesce(currency, '') AS currency,
       num_gpus, num_nodes, world_size, price, deadline
FROM times LEFT JOIN words ON words.job = times.job;
CREATE UNIQUE INDEX rc_jobs_job ON rc_jobs (job);
