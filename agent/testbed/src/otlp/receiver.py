"""Receiver of OTLP over HTTP, with the messages of the published package opentelemetry-proto.

Prints the port, and then a JSON line for each accepted request. Arguments: port (0: any), certificate and key (both
empty: no TLS), and optionally a header that a request must have.
"""
import gzip
import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(inner) for inner in any_value.array_value.values]
    return getattr(any_value, kind) if kind else None


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def unknown(message):
    """Returns whether a message has bytes that the published types do not know."""
    bare = type(message)()
    bare.CopyFrom(message)
    bare.DiscardUnknownFields()
    return len(bare.SerializeToString()) != len(message.SerializeToString())


def logs(request):
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                yield {
                    "resource": attributes(resource.resource.attributes),
                    "event": record.event_name,
                    "severity": record.severity_number,
                    "time": record.time_unix_nano,
                    "body": value(record.body),
                    "attributes": attributes(record.attributes),
                }


def points(metric):
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points if kind else []:
        number = point.count if kind == "histogram" else point.as_double
        yield {"name": metric.name, "kind": kind, "value": number, "attributes": attributes(point.attributes)}


def metrics(request):
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from points(metric)


KINDS = {
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse, logs),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse, metrics),
}


PRINTING = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind, answer, read = KINDS[self.path]
        status = 200
        if self.headers["Content-Encoding"] != "gzip" or self.headers["Content-Type"] != "application/x-protobuf":
            status = 415
        if REQUIRED and self.headers.get(REQUIRED[0]) != REQUIRED[1]:
            status = 401
        if status == 200:
            request = kind.FromString(gzip.decompress(body))
            if unknown(request):
                status = 400
            else:
                line = json.dumps({"path": self.path, "items": list(read(request))})
                # Text files of Python are not safe for threads: lines of two requests would mix.
                with PRINTING:
                    print(line, flush=True)
        content = answer().SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


PORT, CERTIFICATE, KEY = int(sys.argv[1]), sys.argv[2], sys.argv[3]
REQUIRED = [part.strip() for part in sys.argv[4].split(":", 1)] if len(sys.argv) > 4 else None
ThreadingHTTPServer.allow_reuse_address = True
server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
if CERTIFICATE:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
