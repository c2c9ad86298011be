"""Federations of machines that keep their own data: messages, keys, jobs, and Flower as
the carrier.

Nothing here imports Flower (`flwr`) or `cryptography` before it is needed; both come
with the extra `flower`.

* `messages`, `transport`: one exchange with each of some clients, as bytes; the checks
  of what comes back.
* `job`, `table`, `kit`, `keys`: what a federation trains, the clients' files, and what
  each machine holds.
* `waits`: how long anybody may wait for clients.
* `client_store`: what a client keeps between rounds.
* `flower`, `flower_server`, `flower_client`, `superlink`, `processes`: the transport
  over Flower's SuperLink.
* `service`: a coordinator that is connected, and a client that takes part.
"""
