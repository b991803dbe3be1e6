"""Requests drawn from the schema, with every role: whatever comes, it is never an error of the server."""

from __future__ import annotations

import os
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok

from tests.server.conftest import Served

CASES = int(os.environ.get("SILO_HTTP_CASES", "300"))
"""Requests in all."""


@pytest.mark.parametrize("role", ["reader", "owner", "operator"])
def test_no_request_is_an_error_of_the_server(served: Served, role: str) -> None:
    schema = schemathesis.openapi.from_dict(served.app.openapi())
    operations = [item.ok() for item in schema.get_all_operations() if isinstance(item, Ok)]
    few = settings(
        max_examples=max(1, CASES // 3 // len(operations)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    key = {"authorization": f"Bearer {served.keys[role]}"}
    with requests.Session() as session:
        for operation in operations:

            @few
            @given(case=operation.as_strategy())
            def send(case: Any) -> None:
                answer = case.call(session=session, base_url=served.address, headers=key)
                assert answer.status_code < 500, (case.as_curl_command(), answer.text)

            send()
