-- Logs the committed changes of runs, parts and revisions for the checks.
CREATE SCHEMA chaos;

CREATE TABLE chaos.runs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL, status text NOT NULL, epoch int NOT NULL, lease_owner text, port int, at timestamptz NOT NULL
);
CREATE TABLE chaos.parts (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL, seq int NOT NULL, kind text NOT NULL, epoch int NOT NULL, status text NOT NULL,
    revision bigint NOT NULL, port int, at timestamptz NOT NULL
);
CREATE TABLE chaos.revisions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    thread_id uuid NOT NULL, before bigint NOT NULL, after bigint NOT NULL
);

CREATE FUNCTION chaos.run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.runs (run_id, status, epoch, lease_owner, port, at)
    VALUES (NEW.id, NEW.status, NEW.epoch, NEW.lease_owner, inet_client_port(), clock_timestamp());
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_run AFTER INSERT OR UPDATE OF status, epoch, lease_owner ON public.runs
    FOR EACH ROW EXECUTE FUNCTION chaos.run();

CREATE FUNCTION chaos.part() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.parts (run_id, seq, kind, epoch, status, revision, port, at)
    SELECT NEW.run_id, NEW.seq, NEW.kind, runs.epoch, runs.status, NEW.revision, inet_client_port(), clock_timestamp()
    FROM public.runs WHERE runs.id = NEW.run_id;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_part AFTER INSERT ON public.message_parts FOR EACH ROW EXECUTE FUNCTION chaos.part();

CREATE FUNCTION chaos.revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.revision <> OLD.revision THEN
        INSERT INTO chaos.revisions (thread_id, before, after) VALUES (NEW.id, OLD.revision, NEW.revision);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_revision AFTER UPDATE OF revision ON public.threads FOR EACH ROW EXECUTE FUNCTION chaos.revision();
