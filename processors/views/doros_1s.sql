-- Beam position by DOROS electronics, second by second. A position is 0 in the middle and ±1 at an electrode.
CREATE MATERIALIZED VIEW doros_1s AS
WITH amplitudes AS (
  -- In double precision from here on: sums of real are real in SQL, and too coarse for a position.
  SELECT
    instrument_id,
    time,
    hor_v1::double precision AS hor_v1,
    hor_v2::double precision AS hor_v2,
    ver_v1::double precision AS ver_v1,
    ver_v2::double precision AS ver_v2
  FROM doros
), positions AS (
  SELECT
    instrument_id,
    time,
    (hor_v1 - hor_v2) / NULLIF(hor_v1 + hor_v2, 0) AS hor,
    (ver_v1 - ver_v2) / NULLIF(ver_v1 + ver_v2, 0) AS ver
  FROM amplitudes
)
SELECT
  instrument_id,
  window_start,
  window_end,
  count(*) AS count,
  avg(hor) AS hor_mean, stddev(hor) AS hor_stddev, min(hor) AS hor_min, max(hor) AS hor_max,
  avg(ver) AS ver_mean, stddev(ver) AS ver_stddev, min(ver) AS ver_min, max(ver) AS ver_max
FROM TUMBLE(positions, time, INTERVAL '1 second')
GROUP BY instrument_id, window_start, window_end;
