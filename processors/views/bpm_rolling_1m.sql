-- Beam position and button amplitudes of every monitor over the last minute, every second.
CREATE MATERIALIZED VIEW bpm_rolling_1m AS
WITH amplitudes AS (
  -- In double precision from here on: sums of real are real in SQL, and too coarse for a position.
  SELECT
    instrument_id,
    time,
    top_in::double precision AS top_in,
    bot_in::double precision AS bot_in,
    bot_out::double precision AS bot_out,
    top_out::double precision AS top_out
  FROM bpm
), positions AS (
  SELECT
    instrument_id, time, top_in, bot_in, bot_out, top_out,
    ((top_out + bot_out) - (top_in + bot_in)) / NULLIF(top_in + bot_in + bot_out + top_out, 0) AS x,
    ((top_in + top_out) - (bot_in + bot_out)) / NULLIF(top_in + bot_in + bot_out + top_out, 0) AS y
  FROM amplitudes
)
SELECT
  instrument_id,
  window_start,
  window_end,
  count(*) AS count,
  avg(top_in) AS top_in_mean, stddev(top_in) AS top_in_stddev, min(top_in) AS top_in_min, max(top_in) AS top_in_max,
  avg(bot_in) AS bot_in_mean, stddev(bot_in) AS bot_in_stddev, min(bot_in) AS bot_in_min, max(bot_in) AS bot_in_max,
  avg(bot_out) AS bot_out_mean, stddev(bot_out) AS bot_out_stddev, min(bot_out) AS bot_out_min, max(bot_out) AS bot_out_max,
  avg(top_out) AS top_out_mean, stddev(top_out) AS top_out_stddev, min(top_out) AS top_out_min, max(top_out) AS top_out_max,
  avg(x) AS x_mean, stddev(x) AS x_stddev, min(x) AS x_min, max(x) AS x_max,
  avg(y) AS y_mean, stddev(y) AS y_stddev, min(y) AS y_min, max(y) AS y_max
FROM HOP(positions, time, INTERVAL '1 second', INTERVAL '1 minute')
GROUP BY instrument_id, window_start, window_end;
