"""What is used of Flower beside its public interface (`flwr.app`, `flwr.clientapp`,
`flwr.serverapp`), each with the reason.

Flower's own processes (SuperNode, SuperExec) run an app that a coordinator sends; here a
client runs nothing but fedtailor that it has installed, under a policy of its own. So
fedtailor speaks the protocol of Flower's SuperLink itself, with Flower's clients and
messages. These may move at any release: the supported ones stand in `pyproject.toml`, and
tests/remote/test_flower_internals.py fails with the name that has moved.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

_PROTOCOL = "a message of the SuperLink's protocol, which only Flower's processes speak"
_SIGNED = "how a client signs its requests; the public interface signs in its processes"
_RUN = "starts the run in whose name messages are sent, without Flower's command"
_OBJECTS = "messages travel as trees of objects, which the public interface hides"

INTERNALS = {
    # a client's connection
    "FleetHttpClient": ("supernode.fleet_http_client", _PROTOCOL),
    "NodeAuthHttpInterceptor": ("supernode.node_auth_http_interceptor", _SIGNED),
    "RuntimeVersionHttpInterceptor": (
        "supercore.interceptors",
        "the SuperLink refuses requests without the version of Flower",
    ),
    "public_key_to_bytes": ("supercore.primitives.asymmetric", _SIGNED),
    "ActivateNodeRequest": ("proto.fleet_pb2", _PROTOCOL),
    "DeactivateNodeRequest": ("proto.fleet_pb2", _PROTOCOL),
    "PullMessagesRequest": ("proto.fleet_pb2", _PROTOCOL),
    "PushMessagesRequest": ("proto.fleet_pb2", _PROTOCOL),
    "SendNodeHeartbeatRequest": ("proto.heartbeat_pb2", _PROTOCOL),
    "Node": ("proto.node_pb2", _PROTOCOL),
    "TaskIdentity": ("supercore.task_identity", _PROTOCOL),
    # messages
    "message_to_proto": ("common.serde", _OBJECTS),
    "remove_content_from_message": ("app.message", _OBJECTS),
    "get_all_nested_objects": ("supercore.inflatable.inflatable_object", _OBJECTS),
    "get_object_tree": ("supercore.inflatable.inflatable_object", _OBJECTS),
    "iterate_object_tree": ("supercore.inflatable.inflatable_object", _OBJECTS),
    "no_object_id_recompute": ("supercore.inflatable.inflatable_object", _OBJECTS),
    "inflate_object_from_contents": (
        "supercore.inflatable.inflatable_utils",
        _OBJECTS,
    ),
    "pull_and_inflate_object_from_tree": (
        "supercore.inflatable.inflatable_utils",
        _OBJECTS,
    ),
    "push_objects": ("supercore.inflatable.inflatable_utils", _OBJECTS),
    "make_confirm_message_received_fn_protobuf": (
        "supercore.inflatable.inflatable_protobuf_utils",
        _OBJECTS,
    ),
    "make_pull_object_fn_protobuf": (
        "supercore.inflatable.inflatable_protobuf_utils",
        _OBJECTS,
    ),
    "make_push_object_fn_protobuf": (
        "supercore.inflatable.inflatable_protobuf_utils",
        _OBJECTS,
    ),
    "ConfirmMessageReceivedRequest": ("proto.message_pb2", _PROTOCOL),
    "PullObjectRequest": ("proto.message_pb2", _PROTOCOL),
    # the coordinator's run
    "HttpGrid": ("superlink.grid.http_grid", "the public Grid is handed to apps only"),
    "PullAppMessagesRequest": ("proto.runtime_pb2", _PROTOCOL),
    "AcquireTaskRequest": ("proto.runtime_pb2", _RUN),
    "PullTaskInputRequest": ("proto.runtime_pb2", _RUN),
    "PushTaskOutputRequest": ("proto.runtime_pb2", _RUN),
    "RuntimeHttpClient": ("supercore.runtime", _RUN),
    "SuperExecAuthHttpInterceptor": ("supercore.interceptors", _RUN),
    "ControlHttpClient": ("supercore.control", _RUN),
    "StartRunRequest": ("proto.control_pb2", _RUN),
    "build_fab_from_files": ("cli.build", _RUN),
    "Fab": ("supercore.fab", _RUN),
    "fab_to_proto": ("common.serde", _RUN),
    "run_from_proto": ("common.serde", _RUN),
    "SubStatus": ("common.constant", _RUN),
    "TaskType": ("supercore.constant", _RUN),
    "HeartbeatSender": ("supercore.heartbeat", "the SuperLink ends runs without one"),
    "make_task_heartbeat_fn_http": (
        "supercore.heartbeat",
        "the SuperLink ends runs without one",
    ),
    # who may connect
    "ListNodesRequest": ("proto.control_pb2", "Flower's command asks for a login"),
    "RegisterNodeRequest": ("proto.control_pb2", "Flower's command asks for a login"),
    "UnregisterNodeRequest": ("proto.control_pb2", "Flower's command asks for a login"),
    "ApiErrorCode": ("supercore.error", "tells a key that is registered already"),
    "FlowerError": ("supercore.error", "tells a key that is registered already"),
    # the SuperLink, whose requests are bounded before they are read
    "FLEET_HTTP_PUBLIC_KEY_HEADER": ("supercore.constant", _SIGNED),
    "FLEET_HTTP_SIGNATURE_HEADER": ("supercore.constant", _SIGNED),
    "TIMESTAMP_HEADER": ("common.constant", _SIGNED),
    "bytes_to_public_key": ("supercore.primitives.asymmetric", _SIGNED),
    "verify_signature": ("supercore.primitives.asymmetric", _SIGNED),
    "now": ("supercore.date", "the clock by which signatures are made"),
    "create_app": (
        "superlink.main",
        "Flower has no option for middleware; its command looks this name up",
    ),
    "flower_superlink": (
        "superlink.cli.flower_superlink",
        "the command, started in a process that has bounded its requests",
    ),
    "start_parent_process_monitor": (
        "supercore.app_utils",
        "ends the SuperLink with its coordinator",
    ),
}
"""Name -> its module below `flwr`, and why the public interface does not do."""


def __getattr__(name: str) -> Any:
    """A name of `INTERNALS`, imported when it is first used."""
    if name not in INTERNALS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, reason = INTERNALS[name]
    try:
        return getattr(import_module(f"flwr.{module}"), name)
    except (ImportError, AttributeError):
        raise ImportError(
            f"Flower {version('flwr')} has no flwr.{module}.{name} ({reason}); install"
            " a release that pyproject.toml allows"
        ) from None


def flower_module(name: str) -> Any:
    """The module of Flower in which a name of `INTERNALS` is looked up, to replace it
    there.
    """
    return import_module(f"flwr.{INTERNALS[name][0]}")
