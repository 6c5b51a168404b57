"""All curated mutants, by the part of the source that they change."""

from tests.mutants.listed import (
    api,
    client_network,
    client_state,
    domain_log,
    domain_requests,
    domain_rules,
    live,
    runs,
    store_accounts,
    store_append,
    store_budgets,
    store_packing,
    store_requests,
    store_runs,
    store_threads,
)

MUTANTS = (
    *domain_log.MUTANTS,
    *domain_rules.MUTANTS,
    *domain_requests.MUTANTS,
    *store_append.MUTANTS,
    *store_runs.MUTANTS,
    *store_threads.MUTANTS,
    *store_packing.MUTANTS,
    *store_budgets.MUTANTS,
    *store_accounts.MUTANTS,
    *store_requests.MUTANTS,
    *live.MUTANTS,
    *runs.MUTANTS,
    *api.MUTANTS,
    *client_state.MUTANTS,
    *client_network.MUTANTS,
)
