-- Who may do what: strobe_owner makes tables, strobe_writer fills them, strobe_reader reads what is public.

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
DO $$ BEGIN EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()); END $$;
DO $$ BEGIN EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO strobe_writer', current_database()); END $$;

GRANT USAGE ON SCHEMA public TO strobe_reader, strobe_writer;
GRANT USAGE ON SCHEMA strobe TO strobe_writer;

GRANT SELECT ON public.dead_letters, public.dirty_windows, public.stage_health, public.pipeline_health
    TO strobe_reader, strobe_writer;
GRANT INSERT, UPDATE, DELETE ON public.dead_letters TO strobe_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA strobe TO strobe_writer;
REVOKE INSERT, UPDATE, DELETE ON strobe.migrations, strobe.retention, strobe.views FROM strobe_writer;
GRANT EXECUTE ON FUNCTION strobe.drop_old_chunks(integer) TO strobe_writer;

ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO strobe_reader, strobe_writer;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT INSERT, UPDATE, DELETE ON TABLES TO strobe_writer;
ALTER DEFAULT PRIVILEGES IN SCHEMA strobe GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO strobe_writer;
