"""The interface, described for programs: made from the types that requests are read with."""

from __future__ import annotations

from typing import Any

import msgspec

from redenvelope import __version__
from redenvelope.serve.answers import (
    DecisionAnswer,
    DecisionBatch,
    DecisionRequest,
    OutcomeAnswer,
    OutcomeBatch,
    OutcomeRequest,
    PlanRequest,
)

__all__ = ["document"]

_ERROR = {
    "type": "object",
    "required": ["code", "message", "remedy"],
    "properties": {name: {"type": "string"} for name in ("code", "message", "remedy")},
}


def document() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    kinds = [DecisionRequest, DecisionBatch, OutcomeRequest, OutcomeBatch, PlanRequest, DecisionAnswer, OutcomeAnswer]
    shapes, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    shape = {kind.__name__: found for kind, found in zip(kinds, shapes, strict=True)}

    def answers(kind: str) -> dict[str, Any]:
        either = {"anyOf": [shape[kind], {"$ref": "#/components/schemas/Error"}]}
        return {"type": "object", "properties": {"answers": {"type": "array", "items": either}}}

    text = {"type": "string"}
    anything = {"type": "object"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "redenvelope", "version": __version__, "description": "Decisions paid from a ledger."},
        "paths": {
            "/v1/decisions": {"post": _post("decide", "Decide", shape["DecisionRequest"], shape["DecisionAnswer"])},
            "/v1/decisions/batch": {
                "post": _post("decide", "Decide for several", shape["DecisionBatch"], answers("DecisionAnswer"))
            },
            "/v1/outcomes": {"post": _post("settle", "Report", shape["OutcomeRequest"], shape["OutcomeAnswer"])},
            "/v1/outcomes/batch": {
                "post": _post("settle", "Report several", shape["OutcomeBatch"], answers("OutcomeAnswer"))
            },
            "/v1/plan": {"post": _post("admin", "Take another plan", shape["PlanRequest"], anything)},
            "/v1/campaign": {"get": _get("read", "Money, price, pacing, who gets what", anything)},
            "/v1/log": {
                "get": {
                    **_get("read", "Decisions as JSON lines", text, "application/x-ndjson"),
                    "parameters": [
                        _parameter("after", "Number of the last decision seen"),
                        _parameter("limit", "Rows"),
                    ],
                }
            },
            "/metrics": {"get": _get("read", "Counters for Prometheus", text, "text/plain")},
            "/healthz": {"get": _get(None, "The process lives", anything)},
            "/readyz": {"get": _get(None, "200 once it is warm", anything)},
        },
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(role: str, said: str, taken: Any, given: Any) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": taken}}}
    return {**_get(role, said, given), "requestBody": body}


def _get(role: str | None, said: str, given: Any, kind: str = "application/json") -> dict[str, Any]:
    wrong = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    found: dict[str, Any] = {
        "summary": said,
        "responses": {"200": {"description": "Done", "content": {kind: {"schema": given}}}, "default": wrong},
    }
    if role is not None:
        found |= {"security": [{"token": []}], "description": f"Needs the role {role}."}
    return found


def _parameter(name: str, said: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": said, "schema": {"type": "integer", "minimum": 0}}
