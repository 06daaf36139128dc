"""The other side of gRPC, as its C core has it. Run by core_test.go."""
import concurrent.futures
import sys
import threading

import grpc

OPTIONS = [("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", 16 << 20)]


def echo(requests, context):
    md = dict(context.invocation_metadata())
    context.send_initial_metadata([("x-header", md.get("x-sent", "")), ("x-header-bin", md.get("x-sent-bin", b""))])
    context.set_trailing_metadata([("x-trailer-bin", b"\x00\xff")])
    for r in requests:
        yield r


def fail(requests, context):
    for _ in requests:
        pass
    context.set_trailing_metadata([("grpc-status-details-bin", b"\x08\x05\x12\x02no")])
    context.abort(grpc.StatusCode.NOT_FOUND, "50% of \u00fc")


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.stream_stream_rpc_method_handler({"/s.S/Echo": echo, "/s.S/Fail": fail}[details.method])


def serve(address):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(80), handlers=[Handlers()], options=OPTIONS)
    server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0)


def call(address):
    channel = grpc.insecure_channel(address, options=OPTIONS)
    unary = channel.unary_unary("/s.S/Echo")
    for n in [0, 1, 1000, 16000, 20000, 65535, 1 << 20, 10 << 20]:
        body = bytes(i % 251 for i in range(1000)) * (n // 1000) + bytes(n % 1000)
        reply, made = unary.with_call(body, metadata=[("x-sent", "1"), ("x-sent-bin", b"\x00\xff")], timeout=20)
        assert reply == body, n
        header = dict(made.initial_metadata())
        assert header["x-header"] == "1" and header["x-header-bin"] == b"\x00\xff", header
        assert dict(made.trailing_metadata())["x-trailer-bin"] == b"\x00\xff"
    assert unary(b"z" * 100000, compression=grpc.Compression.Gzip, timeout=20) == b"z" * 100000

    both = channel.stream_stream("/s.S/Echo")
    messages = [bytes([i % 256]) * (i % 3000) for i in range(2000)]
    assert list(both(iter(messages), timeout=20)) == messages

    try:
        channel.unary_unary("/s.S/Fail")(b"", timeout=20)
        raise AssertionError("it did not fail")
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.NOT_FOUND and e.details() == "50% of \u00fc", e
    try:
        channel.unary_unary("/s.S/Hang")(b"", timeout=0.1)
        raise AssertionError("it did not end")
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.DEADLINE_EXCEEDED, e
    hanging = channel.unary_unary("/s.S/Hang").future(b"")
    hanging.cancel()
    try:
        channel.unary_unary("/s.S/Nobody")(b"", timeout=20)
        raise AssertionError("it did not fail")
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.UNIMPLEMENTED, e

    failures = []

    def many():
        try:
            for i in range(50):
                body = bytes([i]) * (i * 397)
                assert unary(body, timeout=20) == body
        except Exception as e:  # is told below
            failures.append(e)

    threads = [threading.Thread(target=many) for _ in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    print("ok", flush=True)


{"serve": serve, "call": call}[sys.argv[1]](sys.argv[2])
