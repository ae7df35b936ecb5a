-- Continuous views: what they are, and which of their windows lack late readings.

CREATE TABLE strobe.views (
    view text NOT NULL,
    generation integer NOT NULL,
    stream text NOT NULL,
    fingerprint text NOT NULL,
    group_columns text[] NOT NULL,
    pane_us bigint NOT NULL CHECK (pane_us > 0),
    size_us bigint NOT NULL CHECK (size_us >= pane_us),
    hop_us bigint NOT NULL CHECK (hop_us > 0),
    lateness_us bigint NOT NULL,
    PRIMARY KEY (view, generation)
);
COMMENT ON TABLE strobe.views IS 'Definitions of the continuous views, as the schemas of their topics describe them.';

CREATE TABLE strobe.marks (
    view text NOT NULL,
    generation integer NOT NULL,
    group_values text[] NOT NULL,
    pane_start timestamptz NOT NULL,
    kafka_partition integer NOT NULL,
    kafka_offset bigint NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (view, generation, group_values, pane_start, kafka_partition)
);
COMMENT ON TABLE strobe.marks IS 'Panes that a reading reached later than the view''s lateness: such a reading is stored, but in no row of the view.';
COMMENT ON COLUMN strobe.marks.kafka_offset IS 'greatest offset of such a reading in that source partition';

CREATE VIEW public.dirty_windows AS
SELECT m.view,
       m.generation,
       m.group_values[1] AS instrument_id,
       m.pane_start - make_interval(secs => k * v.hop_us / 1e6) AS window_start,
       m.pane_start - make_interval(secs => (k * v.hop_us - v.size_us) / 1e6) AS window_end,
       m.kafka_partition,
       m.kafka_offset,
       m.noted_at,
       m.group_values
FROM strobe.marks m
JOIN strobe.views v USING (view, generation)
CROSS JOIN LATERAL generate_series(0::bigint, (v.size_us - v.pane_us) / v.hop_us) AS k;
COMMENT ON VIEW public.dirty_windows IS 'Windows that lack readings which came later than the view''s lateness; the readings are in the raw table.';
COMMENT ON COLUMN public.dirty_windows.view IS 'name of the view';
COMMENT ON COLUMN public.dirty_windows.generation IS 'generation of the view''s definition';
COMMENT ON COLUMN public.dirty_windows.instrument_id IS 'value of the view''s first group column, as text';
COMMENT ON COLUMN public.dirty_windows.window_start IS 'begin of the window, UTC, inclusive';
COMMENT ON COLUMN public.dirty_windows.window_end IS 'end of the window, UTC, exclusive';
COMMENT ON COLUMN public.dirty_windows.kafka_partition IS 'source partition of the late readings';
COMMENT ON COLUMN public.dirty_windows.kafka_offset IS 'greatest offset of the late readings in that partition';
COMMENT ON COLUMN public.dirty_windows.noted_at IS 'when the window was noted, UTC';
COMMENT ON COLUMN public.dirty_windows.group_values IS 'values of all group columns, as text';
