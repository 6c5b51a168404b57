"""Health: whether the process is up, and whether it can do its work."""

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from khala.api.context import Context
from khala.api.http.problem_details import documented_success
from khala.api.operations.types import HealthReport, Liveness


class HealthController(Controller):
    """For load balancers and people."""

    path = "/health"
    tags = ("Health",)

    @get("/live", operation_id="live", summary="Is the process up?", response_description="It is.")
    async def live(self) -> dict[str, bool]:
        """Answers as long as the process does."""
        return {"ok": True}

    @get(
        "/ready",
        operation_id="ready",
        summary="Can it do its work?",
        response_description="It can.",
        responses={503: documented_success(HealthReport, "Something is out of reach.")},
    )
    async def ready(self, context: NamedDependency[Context]) -> Response[HealthReport]:
        """Whether the database takes writes, notifications arrive, files have room, and the process is to go on."""
        health = await context.process.readiness.examine(stopping=context.process.stopping.is_set())
        return Response(health, status_code=200 if health.ok else 503)


@get("/health", operation_id="health", summary="Is the process up?", response_description="It is up.", tags=["Health"])
async def health() -> Liveness:
    """A short answer. `/api/health/ready` also checks what the process depends on."""
    return Liveness(ok=True)
