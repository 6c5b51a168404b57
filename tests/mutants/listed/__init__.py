"""All curated mutants, by the part of the source that they change."""

from tests.mutants.listed import api, client, domain, live, runs, store_runs, store_threads

MUTANTS = (
    *domain.MUTANTS,
    *store_runs.MUTANTS,
    *store_threads.MUTANTS,
    *live.MUTANTS,
    *runs.MUTANTS,
    *api.MUTANTS,
    *client.MUTANTS,
)
