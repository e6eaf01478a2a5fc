"""A Prometheus that knows one job, answers every query with nothing, and notes each in a file."""

import sys
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from lockstep_cli.small_server import JSON, Answer, Request, SmallServer


class Noting(SmallServer):
    """Notes the queries that boards ask."""

    def respond(self, request: Request) -> Answer:
        """No series, and the names of one job."""
        form = parse_qs(request.body.decode() or request.query)
        with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
            file.writelines(f"{query!r}\n" for query in form.get("query", []))
        data = '["victim"]' if request.path.endswith("/values") else '{"result":[]}'
        data = '{"resultType":"vector","result":[]}' if "/query" in request.path else data
        data = data.replace("vector", "matrix") if "_range" in request.path else data
        return Answer(HTTPStatus.OK, f'{{"status":"success","data":{data}}}'.encode(), JSON)


if __name__ == "__main__":
    Noting("127.0.0.1", int(sys.argv[2]), max_body_bytes=1 << 20).serve_forever()
