"""Health checks: liveness and readiness."""

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from khala.api.context import Context
from khala.api.http.problem_details import documented_success
from khala.api.operations.types import HealthReport, Liveness


class HealthController(Controller):
    """Health checks for load balancers and operators."""

    path = "/health"
    tags = ("Health",)

    @get("/live", operation_id="live", summary="Is the process up?", response_description="It is up.")
    async def live(self) -> dict[str, bool]:
        """Respond as long as the process is up."""
        return {"ok": True}

    @get(
        "/ready",
        operation_id="ready",
        summary="Is the process ready?",
        response_description="It is ready.",
        responses={503: documented_success(HealthReport, "A dependency is unavailable.")},
    )
    async def ready(self, context: NamedDependency[Context]) -> Response[HealthReport]:
        """Check that the database accepts writes, notifications arrive, files have space, and no shutdown has begun."""
        health = await context.process.readiness.examine(stopping=context.process.stopping.is_set())
        return Response(health, status_code=200 if health.ok else 503)


@get("/health", operation_id="health", summary="Is the process up?", response_description="It is up.", tags=["Health"])
async def health() -> Liveness:
    """Respond as long as the process is up. `/api/health/ready` also checks its dependencies."""
    return Liveness(ok=True)
