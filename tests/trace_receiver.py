"""A receiver of OpenTelemetry's traces: prints its port, then each span as a line of JSON."""

import json
import sys
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request: Any, _: Any) -> Any:  # noqa: N802 - gRPC's name
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    said = {
                        "name": span.name,
                        "trace": span.trace_id.hex(),
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "attributes": {one.key: one.value.string_value for one in span.attributes},
                    }
                    print(json.dumps(said), flush=True)
        return trace_service_pb2.ExportTraceServiceResponse()


if __name__ == "__main__":
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()
    sys.exit()
